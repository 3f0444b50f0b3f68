/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Does another thread run on the CPU on which this rank waits? The length of its yields shows that.
 *
 *   Another rank of the group. A scheduler that has put two ranks there may take tens of milliseconds to notice. So
 *   this rank looks, and migrates to another CPU if it is so.
 *   A thread that computes. It keeps every time slice that a yield gives it. So this rank sleeps for a while where it
 *   would yield: a sleeper is woken sooner than a yielding thread gets its next time slice.
 *
 * Several waiting threads of a process may note something here at the same time. Then one of the notes may get lost:
 * that is a look later, or one too many.
 */

#include "shm/base/atomic.h"

#include <stdbool.h>

struct shc_seat;

struct shc_cpu_sharing {
    bool room; /* there is a CPU for each rank, so no rank keeps one for long */
    /* Moves the calling thread to another CPU, if a rank of the group is on this one. */
    bool (*migrate)(const struct shc_seat *seat);
    shc_a32 taken;      /* yields in a row during which another thread ran */
    shc_a32 migrations; /* of this rank's threads */
    shc_a64 again_ns;   /* no look for other ranks before this time */
    shc_a64 pause_ns;   /* from the last look until then; 0: no look yet, or it migrated */
    shc_a64 busy_ns;    /* waits sleep until this time, */
    shc_a32 sleeps;     /* and until so many more of them have slept */
    shc_a32 spell;      /* how many waits the last kept yield made sleep */
    shc_a32 calm;       /* yields since the last kept one */
};

/* Gives the CPU to another thread. *now_ns: when it is back. True: it is time to look for another rank. */
bool shc_cpu_sharing_yield(struct shc_cpu_sharing *sharing, uint64_t *now_ns);

/* Looks for another rank on this CPU, and migrates if there is one. *now_ns: when that is done. */
void shc_cpu_sharing_look(struct shc_cpu_sharing *sharing, const struct shc_seat *seat,
                          uint64_t *now_ns);

/* Should a wait sleep rather than yield? If so the caller sleeps, and that is counted. */
bool shc_cpu_sharing_wants_sleep(struct shc_cpu_sharing *sharing, uint64_t now_ns);

/* ---- the first two without their clock, for tests ---- */

/* A yield has ended now and took so long. True: it is time to look for another rank. */
bool shc_cpu_sharing_note_yield(struct shc_cpu_sharing *sharing, uint64_t now_ns, uint64_t took_ns);

/* A look has ended now and took so long. If it changed nothing, the next one comes after twice the
 * time, up to 32 ms. It never comes sooner than after 20 times what this look took, or a second. */
void shc_cpu_sharing_note_look(struct shc_cpu_sharing *sharing, uint64_t now_ns, uint64_t took_ns,
                               bool migrated);
