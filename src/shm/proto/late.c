/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/late.h"

#include "shm/base/clock.h"

#define TRIES   8
#define SKEW_MS 100 /* the clocks of two ranks that look at the same time */

/* Of the word: 24 bits of the number, or milliseconds; 8 of how often; 32 of the hash. */
#define NUMBER_BIT 40
#define NUMBERS    UINT64_C(0xffffff)

/* Does the word of another rank say what this rank would say? window_ms 0: the number is a call's. */
static bool covers(uint64_t theirs, uint64_t ours, uint64_t window_ms)
{
    const uint64_t age = (ours >> NUMBER_BIT) - (theirs >> NUMBER_BIT);
    if ((uint32_t)theirs != (uint32_t)ours)
        return false;
    if (window_ms != 0)
        return ((age + SKEW_MS) & NUMBERS) < window_ms + SKEW_MS;
    return age == 0 && (theirs >> 32 & 0xff) >= (ours >> 32 & 0xff);
}

static bool is_covered(const struct shc_seat *seat, uint64_t ours, uint64_t window_ms)
{
    shc_a64 *said = &shc_seat_late(seat)->said;
    for (int tries = 0; tries < TRIES; tries++) {
        /* relaxed: a hint; no other data. */
        const uint64_t theirs = shc_a64_load_relaxed(said);
        if (covers(theirs, ours, window_ms))
            return true;
        /* acq_rel late/said: one of the ranks that try wins; no other data. */
        if (shc_a64_cas_acq_rel(said, theirs, ours))
            return false;
    }
    return false;
}

bool shc_late_is_said(const struct shc_seat *seat, uint64_t number, uint32_t which,
                      uint64_t waited_ns)
{
    uint64_t times = 0;
    while (times < 63 && waited_ns >> (times + 1) >= seat->late_ns)
        times++;
    return is_covered(seat, number << NUMBER_BIT | times << 32 | which, 0);
}

bool shc_late_was_said(const struct shc_seat *seat, uint32_t which, uint64_t now_ns)
{
    /* Less than a period: the same rank speaks again after that. */
    const uint64_t window_ms = 1 + (seat->late_ns - seat->late_ns / 4) / SHC_NS_PER_MS;
    return is_covered(seat, (now_ns / SHC_NS_PER_MS) << NUMBER_BIT | which, window_ms);
}
