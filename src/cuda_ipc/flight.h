/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * An operation or a message that is under way, as the watcher sees it.
 */

#include "cuda_ipc/hostarena.h"
#include "cuda_ipc/kernel/args.h"
#include "shm/base/lateness.h"

#include <stdbool.h>

#define SHC_LATE_NS (5 * SHC_NS_PER_S) /* then whom it waits for is said; and at 10 s, 20, ... */

struct shc_flight {
    struct shc_lateness lateness;
    uint64_t last_round; /* a message's: its last piece */
    bool relayed;        /* by the relay: its rounds are the relay's */
    bool sliced;         /* ... and each rank adds a slice */
    const void *stream;  /* a message's */
    uint64_t call[SHC_RECORD_CALL_WORDS];
};

/* Of a ring of flights: how late the oldest is that is under way, and a copy of it. *number: the newest that is over, then
 * that one. `lost_ns` up to now do not count. SHC_IN_TIME also where nothing is under way. */
SHC_INLINE enum shc_lateness_state shc_flights_look(struct shc_flight *flights, uint64_t newest,
                                                    uint64_t now_ns, uint64_t lost_ns,
                                                    uint64_t *number, struct shc_flight *oldest)
{
    if (*number >= newest)
        return SHC_IN_TIME;
    if (newest - *number > SHC_RECORDS) /* the word of "over" is damaged */
        *number = newest - SHC_RECORDS;
    struct shc_flight *flight = &flights[++*number % SHC_RECORDS];
    for (uint64_t n = *number; lost_ns != 0 && n <= newest; n++)
        shc_lateness_forgive(&flights[n % SHC_RECORDS].lateness, now_ns, lost_ns);
    const enum shc_lateness_state state = shc_lateness_look(&flight->lateness, now_ns);
    *oldest = *flight;
    return state;
}
