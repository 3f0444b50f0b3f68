/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/pace.h"

#define TRIAL_BYTES (3 * SHC_PACE_ROUND)
#define STAY_BYTES  (128 * SHC_PACE_ROUND)

/* So much in a row, by so much slower than the other way once was: the machine has changed. */
#define WORSE_BYTES  (4 * SHC_PACE_ROUND)
#define WORSE_FACTOR 1.25

/* Two messages in a row or more, and so many bytes, by so much slower: no need to try any longer. */
#define HOPELESS_BYTES  ((uint64_t)512 << 10)
#define HOPELESS_FACTOR 2.5

/* The other way; this one took so long at last. */
static void turn(struct shc_pace *pace, double took)
{
    *pace = (struct shc_pace){.into_caches = !pace->into_caches, .other = took};
}

bool shc_pace_tries(const struct shc_pace *pace)
{
    return pace->bytes < TRIAL_BYTES;
}

void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns)
{
    const double took = (double)ns / (double)bytes;
    const bool trying = shc_pace_tries(pace);
    pace->bytes += bytes;
    /* The first round meets the lines as the other way has left them. */
    if (trying && pace->bytes > SHC_PACE_ROUND && (pace->best == 0 || took < pace->best))
        pace->best = took; /* the others may have had to wait */
    pace->worse = pace->other > 0 && took > WORSE_FACTOR * pace->other
                      ? pace->worse + (bytes < SHC_PACE_ROUND ? bytes : SHC_PACE_ROUND)
                      : 0; /* a message may wait for its receiver */
    pace->hopeless =
        pace->other > 0 && took > HOPELESS_FACTOR * pace->other ? pace->hopeless + 1 : 0;
    if (trying && pace->hopeless >= 2 && pace->worse >= HOPELESS_BYTES)
        turn(pace, took);
    if (shc_pace_tries(pace))
        return;
    if (pace->worse >= WORSE_BYTES)
        turn(pace, took);
    else if (pace->other == 0 || pace->best > pace->other || pace->bytes >= STAY_BYTES)
        turn(pace, pace->best);
}
