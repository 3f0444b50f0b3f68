/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/pace.h"

#define TRIAL_BYTES (3 * SHC_PACE_ROUND)

/* Until the other way is tried again. Few large messages are not often enough to tell. */
#define STAY_BYTES (128 * SHC_PACE_ROUND)
#define STAY_NOTES 32

/* So much in a row, by so much slower than the other way once was: the machine has changed. */
#define WORSE_BYTES  (4 * SHC_PACE_ROUND)
#define WORSE_FACTOR 1.25

/* A trial of a round that never once was less slow than that need not go on. Some messages wait for a
 * reader that has no CPU: not all of so many. */
#define HOPELESS_NOTES  4
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

static bool is_hopeless(const struct shc_pace *pace)
{
    return pace->other > 0 && pace->least > HOPELESS_FACTOR * pace->other &&
           pace->notes >= HOPELESS_NOTES && pace->bytes >= SHC_PACE_ROUND;
}

static bool has_stayed(const struct shc_pace *pace)
{
    return pace->bytes >= STAY_BYTES && pace->notes >= STAY_NOTES;
}

void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns)
{
    const double took = (double)ns / (double)bytes;
    const bool tries = shc_pace_tries(pace);
    pace->notes++;
    pace->bytes += bytes;
    if (pace->least == 0 || took < pace->least)
        pace->least = took; /* the others may have had to wait */
    /* The first round meets the lines as the other way has left them. */
    if (tries && pace->bytes > SHC_PACE_ROUND && (pace->best == 0 || took < pace->best))
        pace->best = took;
    pace->worse = pace->other > 0 && took > WORSE_FACTOR * pace->other
                      ? pace->worse + (bytes < SHC_PACE_ROUND ? bytes : SHC_PACE_ROUND)
                      : 0; /* a message may wait for its receiver */
    if (tries && is_hopeless(pace))
        turn(pace, pace->least);
    else if (shc_pace_tries(pace))
        return;
    else if (pace->worse >= WORSE_BYTES)
        turn(pace, took);
    else if (pace->other == 0 || pace->best > pace->other || has_stayed(pace))
        turn(pace, pace->best);
}
