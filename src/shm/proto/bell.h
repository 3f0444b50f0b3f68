/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Doorbells: sleeping, and being woken without a lost wake-up. One bell per writer; any number of
 * sleepers.
 *
 *   publisher                          sleeper
 *   store data (release)               heard = count
 *   exchange(flag, 0)            (a)   exchange(flag, 1)            (b)
 *     was 1: count += 1, wake all      data there? then no sleep
 *                                      futex wait while count == heard
 *
 * Both hinges are read-modify-writes of the same word, so one comes first. If (b) comes after (a),
 * it reads what (a) wrote, and sees the data stored before it. If (b) comes before (a), then (a)
 * finds 1 and moves count: the futex does not start, or ends. Each of these alternatives loses a
 * wake-up: the flag itself as the futex word; one flag per sleeper's data word; a plain load of the
 * flag.
 *
 * Used for ranks (in the segment, `shared`) and inside a process (the engine, waiters).
 */

#include "shm/os/os.h"
#include "shm/proto/layout.h"

/* Wakes all sleepers, even if they have not raised the flag. */
SHC_INLINE void shc_bell_rouse(struct shc_bell_shm *bell, bool shared)
{
    /* acq_rel bell/count: only its change matters, to the futex that compares it. */
    shc_a32_add_acq_rel(&bell->count, 1);
    shc_os_futex_wake_all(&bell->count, shared);
}

/* Once after any number of release stores. Any thread. */
SHC_INLINE void shc_bell_ring(struct shc_bell_shm *bell, bool shared)
{
    /* acq_rel bell/flag: hinge (a); what was stored before is visible to a sleeper that reads our
     * 0. */
    if (SHC_LIKELY(shc_a32_exchange_acq_rel(&bell->flag, 0) == 0))
        return;
    shc_bell_rouse(bell, shared);
}

/* First half of going to sleep: what comes before the last look at the data. */
SHC_INLINE uint32_t shc_bell_listen(struct shc_bell_shm *bell)
{
    /* acquire bell/count <- acq_rel in shc_bell_rouse(): read before the flag is raised. */
    uint32_t heard = shc_a32_load_acquire(&bell->count);
    /* acq_rel bell/flag: hinge (b); the look at the data comes after it. */
    shc_a32_exchange_acq_rel(&bell->flag, 1);
    return heard;
}

/* Second half. Returns early for many reasons; the caller looks again. EINTR after a signal. */
SHC_INLINE int shc_bell_sleep(struct shc_bell_shm *bell, uint32_t heard, uint64_t timeout_ns,
                              bool shared)
{
    return shc_os_futex_wait(&bell->count, heard, timeout_ns, shared);
}
