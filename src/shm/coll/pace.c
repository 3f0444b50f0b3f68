/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/pace.h"

/* A round goes at least once through all memory that is stored to. The first one of a way does not
 * count: it meets the lines as the other way has left them. */
#define ROUND_BYTES  ((uint64_t)1536 << 10)
#define TRIAL_ROUNDS 3
#define STAY_ROUNDS  128

/* So many rounds in a row, by so much slower than the other way once was: the machine has changed. */
#define WORSE_ROUNDS 4
#define WORSE_FACTOR 1.25

/* The other way; this one took so long at last. */
static void turn(struct shc_pace *pace, double took)
{
    *pace = (struct shc_pace){.into_caches = !pace->into_caches, .other = took};
}

void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns)
{
    pace->bytes += bytes;
    pace->ns += ns;
    if (pace->bytes < ROUND_BYTES)
        return;
    const double took = (double)pace->ns / (double)pace->bytes;
    pace->bytes = pace->ns = 0;
    pace->rounds++;
    if (pace->rounds > 1 && (pace->best == 0 || took < pace->best))
        pace->best = took; /* the others may have had to wait */
    pace->worse = pace->other > 0 && took > WORSE_FACTOR * pace->other ? pace->worse + 1 : 0;
    if (pace->rounds < TRIAL_ROUNDS)
        return;
    if (pace->worse >= WORSE_ROUNDS)
        turn(pace, took);
    else if (pace->other == 0 || pace->best > pace->other || pace->rounds >= STAY_ROUNDS)
        turn(pace, pace->best);
}
