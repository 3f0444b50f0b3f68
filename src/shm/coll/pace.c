/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/pace.h"

#define TRIAL_BYTES (3 * SHC_PACE_ROUND)

/* Until another way is tried again: twice as many whenever that has changed nothing, up to 3 GiB. Few
 * large messages are not often enough to tell. And until one is timed where nobody does that. */
#define STAY_BYTES (128 * SHC_PACE_ROUND)
#define STAY_TWICE 4
#define STAY_NOTES 32

/* So much in a row, by so much slower than another way once was: the machine has changed. */
#define WORSE_BYTES  (4 * SHC_PACE_ROUND)
#define WORSE_FACTOR 1.25

/* A trial of a round that never once was less slow than that need not go on. Some messages wait for a
 * reader that has no CPU: not all of so many, nor two of them behind a trial that ended so. */
#define HOPELESS_NOTES  4
#define HOPELESS_FACTOR 2.5

void shc_paces_init(struct shc_pace paces[SHC_PACES], unsigned ways, enum shc_way way)
{
    for (int i = 0; i < SHC_PACES; i++)
        paces[i] = (struct shc_pace){.way = way, .ways = ways, .settled = SHC_WAYS};
}

/* The fastest of the other ways that are known; or this one, where none is. */
static unsigned best_other(const struct shc_pace *pace)
{
    unsigned best = pace->way;
    for (unsigned way = 0; way < pace->ways; way++)
        if (way != pace->way && pace->took[way] > 0 &&
            (best == pace->way || pace->took[way] < pace->took[best]))
            best = way;
    return best;
}

/* Another way; this one took so long at last. */
static void turn(struct shc_pace *pace, double took, unsigned way)
{
    pace->took[pace->way] = took;
    pace->way = (enum shc_way)way;
    pace->notes = 0;
    pace->bytes = pace->looked = pace->worse = 0;
    pace->least = pace->best = 0;
}

/* It has become slow: what was found of the others, too, may be so no more. */
static void leave(struct shc_pace *pace, double took, unsigned way)
{
    pace->stays = 0;
    turn(pace, took, way);
}

/* A way that was never tried, or else the fastest other one. */
static unsigned untried_or_best(const struct shc_pace *pace)
{
    for (unsigned way = 0; way < pace->ways; way++)
        if (way != pace->way && pace->took[way] == 0)
            return way;
    return best_other(pace);
}

/* The others take turns, too. */
static unsigned next_retry(struct shc_pace *pace)
{
    do
        pace->retry = (pace->retry + 1) % pace->ways;
    while (pace->retry == pace->way);
    return pace->retry;
}

static bool is_trial(const struct shc_pace *pace)
{
    return pace->bytes < TRIAL_BYTES;
}

bool shc_pace_tries(const struct shc_pace *pace)
{
    return is_trial(pace) || pace->bytes - pace->looked >= STAY_BYTES;
}

static bool is_hopeless(const struct shc_pace *pace, double other)
{
    const double slow = HOPELESS_FACTOR * other;
    const bool as_before = pace->took[pace->way] > slow;
    return other > 0 && pace->least > slow && pace->notes >= (as_before ? 2 : HOPELESS_NOTES) &&
           pace->bytes >= SHC_PACE_ROUND;
}

static bool has_stayed(const struct shc_pace *pace)
{
    const unsigned twice = pace->way == pace->settled ? pace->stays : 0;
    return pace->bytes >= STAY_BYTES << twice && pace->notes >= STAY_NOTES;
}

/* It was long enough. */
static void retry(struct shc_pace *pace)
{
    if (pace->way != pace->settled)
        pace->stays = 1;
    else if (pace->stays < STAY_TWICE)
        pace->stays++;
    pace->settled = pace->way;
    turn(pace, pace->best, next_retry(pace));
}

void shc_pace_count(struct shc_pace *pace, uint64_t bytes)
{
    pace->notes++;
    pace->bytes += bytes;
    if (has_stayed(pace))
        retry(pace);
}

void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns)
{
    const double took = (double)ns / (double)bytes;
    const bool tries = is_trial(pace);
    const unsigned best_way = best_other(pace);
    const double other = best_way == pace->way ? 0 : pace->took[best_way];
    pace->notes++;
    pace->bytes += bytes;
    if (pace->least == 0 || took < pace->least)
        pace->least = took; /* the others may have had to wait */
    /* The first round meets the lines as the way before has left them. */
    if (tries && pace->bytes > SHC_PACE_ROUND && (pace->best == 0 || took < pace->best))
        pace->best = took;
    pace->worse = other > 0 && took > WORSE_FACTOR * other
                      ? pace->worse + (bytes < SHC_PACE_ROUND ? bytes : SHC_PACE_ROUND)
                      : 0; /* a message may wait for its receiver */
    if (pace->worse == 0)
        pace->looked = pace->bytes;
    const unsigned next = untried_or_best(pace);
    if (tries && is_hopeless(pace, other))
        turn(pace, pace->least, next);
    else if (is_trial(pace))
        return;
    else if (pace->worse >= WORSE_BYTES)
        leave(pace, took, best_way);
    else if (pace->took[next] == 0 || pace->best > pace->took[next])
        turn(pace, pace->best, next);
    else if (has_stayed(pace))
        retry(pace);
}
