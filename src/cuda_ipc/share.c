/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/share.h"
#include "cuda_ipc/cuda_error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERDICT_REASON_BYTES 200

/* The control message of a rank that has tried to import all slabs. */
struct verdict {
    uint32_t good;
    char reason[VERDICT_REASON_BYTES];
};

_Static_assert(sizeof(struct verdict) <= SHC_CONTROL_BYTES, "a verdict fits a message");

/* The control messages of one attempt, too many for a stack. */
struct messages {
    struct shc_control_message mine;
    struct shc_control_message theirs[SHC_MAX_WORLD];
};

static void forget(struct shc_share *share)
{
    for (int r = 0; r < share->world; r++)
        shc_slab_destroy(&share->slabs[r]);
    share->kind = SHC_SLAB_NONE;
}

/* This rank's GPU reads a slab and does not come to an end: unmapping would pull the memory
 * from under it, or wait for it. */
static void abandon(struct shc_share *share)
{
    for (int r = 0; r < share->world; r++)
        share->slabs[r] = (struct shc_slab){.fd = -1};
    share->kind = SHC_SLAB_NONE;
}

/* Makes and shows this rank's slab. A failure is said in an empty message: the others wait for one. */
static enum shc_status offer(const struct shc_gpu *gpu, enum shc_slab_kind kind, size_t bytes,
                             struct shc_slab *slab, struct shc_control_message *message)
{
    enum shc_status st = shc_slab_create(gpu, kind, bytes, slab);
    if (st == SHC_OK) {
        st = shc_slab_show(slab, message);
        if (st != SHC_OK)
            shc_slab_destroy(slab);
    }
    if (st != SHC_OK) {
        message->count = 1; /* no slab is that short */
        message->bytes[0] = 0;
        message->fd = -1;
    }
    return st;
}

/* A rank may show a slab of any size; at least `bytes` are needed, and no more are used. */
static enum shc_status import_all(struct shc_share *share, const struct shc_control *control,
                                  const struct shc_gpu *gpu,
                                  const struct shc_control_message *theirs, size_t bytes)
{
    for (int r = 0; r < share->world; r++) {
        if (r == share->rank)
            continue;
        if (theirs[r].count == 1)
            return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "%s made no slab",
                                 shc_control_rank_name(control, r).text);
        SHC_TRY(shc_slab_import(gpu, &theirs[r], &share->slabs[r]));
        if (share->slabs[r].bytes < bytes)
            return shc_cuda_fail(SHC_ERR_VERSION, "%s's slab has %zu bytes, not %zu",
                                 shc_control_rank_name(control, r).text, share->slabs[r].bytes,
                                 bytes);
    }
    return SHC_OK;
}

static void pack_verdict(enum shc_status mine, struct shc_control_message *message)
{
    struct verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    verdict.good = mine == SHC_OK;
    if (mine != SHC_OK)
        snprintf(verdict.reason, sizeof verdict.reason, "%s", shc_cuda_failure());
    message->count = sizeof verdict;
    message->fd = -1;
    memcpy(message->bytes, &verdict, sizeof verdict);
}

/* True when all are good; else the lowest rank's reason that is its own, not another's. */
static bool all_good(const struct shc_control *control, const struct shc_control_message *theirs,
                     const bool *offered, char *reason)
{
    bool good = true, own = false;
    for (int r = 0; r < control->world; r++) {
        struct verdict verdict;
        memcpy(&verdict, theirs[r].bytes, sizeof verdict);
        const bool fits = theirs[r].count == sizeof verdict;
        if (fits && verdict.good)
            continue;
        verdict.reason[sizeof verdict.reason - 1] = 0;
        if (good || (!own && !offered[r]))
            snprintf(reason, SHC_SHARE_REASON_BYTES, "%s: %.180s",
                     shc_control_rank_name(control, r).text,
                     fits ? verdict.reason : "sent no verdict");
        good = false;
        own = own || !offered[r];
    }
    return good;
}

/* All slabs are mapped: are the bytes that are read there right? */
static enum shc_status look(struct shc_share *share, struct shc_prober *prober,
                            enum shc_slab_kind kind, size_t bytes)
{
    struct shc_probe_area area = {.bytes = bytes};
    struct shc_probe_answer answer;
    for (int r = 0; r < share->world; r++)
        area.at[r] = share->slabs[r].address;
    SHC_TRY(shc_probe(prober, &area, &answer));
    if (answer.outcome == SHC_PROBE_GOOD)
        return SHC_OK;
    share->kind = SHC_SLAB_NONE;
    share->late = answer.outcome == SHC_PROBE_LATE;
    snprintf(share->reasons[kind], SHC_SHARE_REASON_BYTES, "%s", answer.reason);
    return SHC_OK;
}

/* One kind. SHC_OK with share->kind still NONE: it did not hold, share->reasons says why. */
static enum shc_status attempt(struct shc_share *share, struct shc_control *control,
                               const struct shc_gpu *gpu, enum shc_slab_kind kind, size_t bytes,
                               uint64_t deadline_ns, struct messages *p)
{
    bool offered[SHC_MAX_WORLD];
    struct shc_slab *own = &share->slabs[share->rank];
    enum shc_status mine = offer(gpu, kind, bytes, own, &p->mine);
    char failure[SHC_CUDA_ERROR_BYTES];
    snprintf(failure, sizeof failure, "%s", shc_cuda_failure());

    enum shc_status st = shc_control_swap(control, &p->mine, deadline_ns, p->theirs);
    if (st != SHC_OK)
        return st;
    for (int r = 0; r < share->world; r++)
        offered[r] = p->theirs[r].count != 1;
    if (mine == SHC_OK)
        mine = import_all(share, control, gpu, p->theirs, bytes);
    else
        (void)!shc_cuda_fail(mine, "%s", failure); /* the swap's is not the reason */
    shc_control_close_received(p->theirs, share->world);

    pack_verdict(mine, &p->mine);
    st = shc_control_swap(control, &p->mine, deadline_ns, p->theirs);
    if (st != SHC_OK)
        return st;
    shc_control_close_received(p->theirs, share->world);
    if (all_good(control, p->theirs, offered, share->reasons[kind])) {
        share->kind = kind;
        shc_sys_close(own->fd); /* all have theirs */
        own->fd = -1;
    }
    return SHC_OK;
}

enum shc_status shc_share_make(struct shc_control *control, const struct shc_gpu *gpu, size_t bytes,
                               uint64_t deadline_ns, struct shc_prober *prober,
                               struct shc_share *share)
{
    static const enum shc_slab_kind kinds[] = {SHC_SLAB_FD, SHC_SLAB_LEGACY};
    enum shc_status st = SHC_OK;
    struct messages *messages = malloc(sizeof *messages);
    if (messages == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    memset(share, 0, sizeof *share);
    share->rank = control->rank;
    share->world = control->world;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && st == SHC_OK; i++) {
        st = attempt(share, control, gpu, kinds[i], bytes, deadline_ns, messages);
        if (share->kind != SHC_SLAB_NONE && prober != NULL && share->world > 1)
            st = look(share, prober, kinds[i], bytes);
        if (st == SHC_OK && share->kind != SHC_SLAB_NONE)
            break;
        if (prober != NULL && prober->hung)
            abandon(share);
        else
            forget(share);
        if (share->late)
            break;
    }
    free(messages);
    return st;
}

void shc_share_undo(struct shc_share *share)
{
    forget(share);
}
