/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether a bias is possible in this process: heavy fences take a thread of their own to prepare. Apart from bias.c,
 * which the models of weak memory run as it is.
 */
#include "shm/os/bias.h"

#include "shm/base/config.h"
#include "shm/os/os.h"

__thread char shc_thread_mark;

enum fences { FENCES_UNASKED, FENCES_ASKED, FENCES_READY };

/* enum fences. ASKED stays if the kernel has no such fences, or if no thread can prepare them. */
static shc_a32 fences;

static void prepare_fences(void *arg)
{
    (void)arg;
    if (shc_os_fence_prepare()) {
        /* release bias/fences -> acquire in shc_bias_has_fences(): no other data. */
        shc_a32_store_release(&fences, FENCES_READY);
    }
}

bool shc_bias_has_fences(void)
{
    /* acquire bias/fences <- release in prepare_fences(): no other data. */
    const uint32_t now = shc_a32_load_acquire(&fences);
    if (now != FENCES_UNASKED)
        return now == FENCES_READY;
    /* acq_rel bias/fences: only the first thread that asks starts the preparation. */
    if (!shc_a32_cas_acq_rel(&fences, FENCES_UNASKED, FENCES_ASKED))
        return false;
    struct shc_os_thread thread;
    if (shc_os_thread_start(&thread, "shc-fences", prepare_fences, NULL) == 0)
        shc_os_thread_detach(&thread);
    return false;
}

bool shc_bias_is_possible(void)
{
    return shc_config_get()->bias && shc_bias_has_fences();
}

void shc_bias_forget_parent(void)
{
    /* relaxed: the child has one thread. */
    shc_a32_store_relaxed(&fences, FENCES_UNASKED);
}
