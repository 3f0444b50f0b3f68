/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How long something has waited: when a line says so, when its time is over, and what part of that time does not
 * count because this process stood still.
 *
 * Whatever waits for another rank has a shc_lateness: a collective, a message, the rendezvous of a group, an operation
 * on a GPU. The thread that looks at the clock for it has a shc_clock_watch.
 *
 *   shc_lateness_begin(&lateness, now_ns, timeout_ns, late_after_ns);
 *   again and again, at least every 20 ms:
 *       shc_lateness_add_lost(&lateness, now_ns, shc_clock_watch_lost(&watch, now_ns));
 *       switch (shc_lateness_look(&lateness, now_ns)) ...
 */

#include "shm/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* Parts of formats: how all texts of a deadline that is over begin (the seconds follow), and what all lines about a late
 * wait say. */
#define SHC_TIMED_OUT  "Timed out after "
#define SHC_HAS_WAITED "has waited %.1f s"

struct shc_lateness {
    uint64_t begun_ns;
    uint64_t deadline_ns;
    uint64_t late_ns; /* then a line is due: after 5 s, say, then after 10, 20, ... */
};

enum shc_lateness_state { SHC_IN_TIME, SHC_LATE, SHC_TIME_OVER };

SHC_INLINE void shc_lateness_begin(struct shc_lateness *lateness, uint64_t now_ns,
                                   uint64_t timeout_ns, uint64_t late_after_ns)
{
    lateness->begun_ns = now_ns;
    lateness->deadline_ns = shc_deadline_after(now_ns, timeout_ns);
    lateness->late_ns = now_ns + late_after_ns;
}

SHC_INLINE bool shc_lateness_is_over(const struct shc_lateness *lateness, uint64_t now_ns)
{
    return now_ns >= lateness->deadline_ns;
}

/* SHC_LATE: a line is due. The next one is due after twice the time; those that nobody has looked for are left out. */
SHC_INLINE enum shc_lateness_state shc_lateness_look(struct shc_lateness *lateness, uint64_t now_ns)
{
    if (shc_lateness_is_over(lateness, now_ns))
        return SHC_TIME_OVER;
    if (now_ns < lateness->late_ns)
        return SHC_IN_TIME;
    do
        lateness->late_ns += lateness->late_ns - lateness->begun_ns;
    while (lateness->late_ns <= now_ns && lateness->late_ns != lateness->begun_ns);
    return SHC_LATE;
}

SHC_INLINE double shc_lateness_seconds(const struct shc_lateness *lateness, uint64_t now_ns)
{
    return (double)(now_ns - lateness->begun_ns) / (double)SHC_NS_PER_S;
}

/* So much of the time up to now does not count. What began in the middle of it has lost only the rest,
 * and what began after it nothing. */
SHC_INLINE void shc_lateness_add_lost(struct shc_lateness *lateness, uint64_t now_ns,
                                      uint64_t lost_ns)
{
    const uint64_t age_ns = now_ns > lateness->begun_ns ? now_ns - lateness->begun_ns : 0;
    const uint64_t moved_ns = lost_ns < age_ns ? lost_ns : age_ns;
    lateness->begun_ns += moved_ns;
    lateness->late_ns += moved_ns;
    if (lateness->deadline_ns != SHC_NO_DEADLINE)
        lateness->deadline_ns += moved_ns;
}

/* ---- of which ranks a line is, as a number ---- */

/* A hash (FNV-1a): it begins with this, and goes on with each rank. */
#define SHC_LATE_HASH UINT32_C(0x811c9dc5)

SHC_INLINE uint32_t shc_late_hash(uint32_t hash, uint32_t value)
{
    return (hash ^ value) * UINT32_C(0x01000193);
}

/* ---- clock jumps ---- */

#define SHC_LOOK_NS    (10 * SHC_NS_PER_MS) /* about what lies between two looks */
#define SHC_JUMP_NS    SHC_NS_PER_S         /* so much more, and the looking thread was away */
#define SHC_MOST_JUMPS 100                  /* a rank that is always away is late in the end */
#define SHC_CALM_NS    (60 * SHC_NS_PER_S)  /* without a jump: then they are counted anew */

/* One thread's looks at the clock. {.looked_ns = now_ns} to begin with. It may go on for weeks, as long as some message
 * is pending. */
struct shc_clock_watch {
    uint64_t looked_ns;
    uint32_t jumps;
    uint64_t jumped_ns; /* when the last one was seen */
};

/* That much time went by in a sleep that the thread asked for, and does not count as a jump. */
SHC_INLINE void shc_clock_watch_slept(struct shc_clock_watch *watch, uint64_t asked_ns)
{
    watch->looked_ns += asked_ns;
}

/* One look. How long this process was stopped, suspended, or busy itself since the last one: nobody else is late for
 * that time. Almost always 0. */
SHC_INLINE uint64_t shc_clock_watch_lost(struct shc_clock_watch *watch, uint64_t now_ns)
{
    const uint64_t gap_ns = now_ns > watch->looked_ns ? now_ns - watch->looked_ns : 0;
    watch->looked_ns = now_ns;
    if (gap_ns <= SHC_LOOK_NS + SHC_JUMP_NS) {
        if (watch->jumps != 0 && now_ns - watch->jumped_ns >= SHC_CALM_NS)
            watch->jumps = 0;
        return 0;
    }
    watch->jumped_ns = now_ns;
    if (watch->jumps >= SHC_MOST_JUMPS)
        return 0;
    watch->jumps++;
    return gap_ns - SHC_LOOK_NS;
}
