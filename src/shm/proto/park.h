/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Parking: a sleep without slices. A thread that waits for a rank sleeps on that rank's doorbell and on the other
 * ranks' life words at once; one that waits for messages sleeps on its own rank's mail doorbell and these words.
 * WAIT-11 to WAIT-20 of docs/internals/protocol/waiting.md; the models are park and mail.
 *
 *   shc_park_begin()    reads the life words, raises the doorbell's flag
 *   the caller looks at everything that may end its wait
 *   shc_park_sleep()    unless one of these words has changed since
 *
 * Whatever else may end a wait rings: a failure, LEFT, DEAD, the close. The kernel marks the life word of a process
 * that dies, and wakes one of the threads that sleep on it; that one wakes the others.
 */

#include "shm/base/clock.h"
#include "shm/os/os.h"
#include "shm/proto/bell.h"
#include "shm/proto/seat.h"

#define SHC_PARK_LEAST_NS (50 * SHC_NS_PER_MS)
#define SHC_PARK_MOST_NS  (900 * SHC_NS_PER_MS)

/* WAIT-15: so long sleeps a thread that has waited for that long. Nothing tells a sleeper of a core dump, so it looks
 * for one. */
SHC_INLINE uint64_t shc_park_ns(uint64_t waited_ns)
{
    const uint64_t part_ns = waited_ns / 2;
    if (part_ns < SHC_PARK_LEAST_NS)
        return SHC_PARK_LEAST_NS;
    return part_ns < SHC_PARK_MOST_NS ? part_ns : SHC_PARK_MOST_NS;
}

struct shc_park {
    bool quiet;     /* the thread may sleep; if not, it looks again after a short slice */
    uint32_t heard; /* of the doorbell */
    int count;
    struct shc_os_futex words[SHC_OS_FUTEXES]; /* the doorbell's, then life words */
};

/* Before the looks. Not quiet where a life word does not wake: the kernel marks none there, or has just marked it. */
void shc_park_begin(struct shc_park *park, const struct shc_seat *seat, struct shc_bell_shm *bell);

/* After the looks. pre: quiet. EINTR after a signal whose handler does not restart system calls. */
int shc_park_sleep(const struct shc_park *park, uint64_t timeout_ns);
