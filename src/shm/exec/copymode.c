/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/copymode.h"

#define TRIAL_BYTES (3 * SHC_COPY_ROUND)

/* Bytes before another mode is tried again: twice as many whenever the last try has changed nothing,
 * up to 3 GiB; and at least STAY_NOTES messages or rounds, as a few large messages are not enough to
 * tell. Where messages are not timed, one is timed after STAY_BYTES. */
#define STAY_BYTES (128 * SHC_COPY_ROUND)
#define STAY_TWICE 4
#define STAY_NOTES 32

/* So many bytes in a row, slower by this factor than another mode once was: the machine has
 * changed. */
#define WORSE_BYTES  (4 * SHC_COPY_ROUND)
#define WORSE_FACTOR 1.25

/* A trial of at least a round, in which every note was slower than another mode by this factor, need
 * not go on. Some messages wait for a reader that has no CPU, but not HOPELESS_NOTES of them; nor
 * two, if the last trial of the mode ended so, too. */
#define HOPELESS_NOTES  4
#define HOPELESS_FACTOR 2.5

void shc_copy_trials_init(struct shc_copy_trial trials[SHC_COPY_TRIALS], unsigned modes,
                          enum shc_copy_mode mode)
{
    for (int i = 0; i < SHC_COPY_TRIALS; i++)
        trials[i] =
            (struct shc_copy_trial){.mode = mode, .modes = modes, .settled = SHC_COPY_MODES};
}

/* The fastest of the other modes that are known; this mode if none is known. */
static unsigned best_other(const struct shc_copy_trial *trial)
{
    unsigned best = trial->mode;
    for (unsigned mode = 0; mode < trial->modes; mode++)
        if (mode != trial->mode && trial->took[mode] > 0 &&
            (best == trial->mode || trial->took[mode] < trial->took[best]))
            best = mode;
    return best;
}

/* Begins with another mode. `took`: what a byte took in this one. */
static void turn(struct shc_copy_trial *trial, double took, unsigned mode)
{
    trial->took[trial->mode] = took;
    trial->mode = (enum shc_copy_mode)mode;
    trial->notes = 0;
    trial->bytes = trial->looked = trial->worse = 0;
    trial->least = trial->best = 0;
}

/* This mode has become slow. What was found of the others may no longer hold, either. */
static void leave(struct shc_copy_trial *trial, double took, unsigned mode)
{
    trial->stays = 0;
    turn(trial, took, mode);
}

/* A mode that was never tried; if there is none, the fastest other one. */
static unsigned untried_or_best(const struct shc_copy_trial *trial)
{
    for (unsigned mode = 0; mode < trial->modes; mode++)
        if (mode != trial->mode && trial->took[mode] == 0)
            return mode;
    return best_other(trial);
}

/* The mode to try again: the other modes take turns. */
static unsigned next_retry(struct shc_copy_trial *trial)
{
    do
        trial->retry = (trial->retry + 1) % trial->modes;
    while (trial->retry == trial->mode);
    return trial->retry;
}

static bool is_trial(const struct shc_copy_trial *trial)
{
    return trial->bytes < TRIAL_BYTES;
}

bool shc_copy_trial_tries(const struct shc_copy_trial *trial)
{
    return is_trial(trial) || trial->bytes - trial->looked >= STAY_BYTES;
}

static bool is_hopeless(const struct shc_copy_trial *trial, double other)
{
    const double slow = HOPELESS_FACTOR * other;
    const bool as_before = trial->took[trial->mode] > slow;
    return other > 0 && trial->least > slow && trial->notes >= (as_before ? 2 : HOPELESS_NOTES) &&
           trial->bytes >= SHC_COPY_ROUND;
}

static bool has_stayed(const struct shc_copy_trial *trial)
{
    const unsigned twice = trial->mode == trial->settled ? trial->stays : 0;
    return trial->bytes >= STAY_BYTES << twice && trial->notes >= STAY_NOTES;
}

/* The mode has been in use for long enough: tries another one again. */
static void retry(struct shc_copy_trial *trial)
{
    if (trial->mode != trial->settled)
        trial->stays = 1;
    else if (trial->stays < STAY_TWICE)
        trial->stays++;
    trial->settled = trial->mode;
    turn(trial, trial->best, next_retry(trial));
}

void shc_copy_trial_count(struct shc_copy_trial *trial, uint64_t bytes)
{
    trial->notes++;
    trial->bytes += bytes;
    if (has_stayed(trial))
        retry(trial);
}

void shc_copy_trial_note(struct shc_copy_trial *trial, uint64_t bytes, uint64_t ns)
{
    const double took = (double)ns / (double)bytes;
    const bool tries = is_trial(trial);
    const unsigned best_mode = best_other(trial);
    const double other = best_mode == trial->mode ? 0 : trial->took[best_mode];
    trial->notes++;
    trial->bytes += bytes;
    if (trial->least == 0 || took < trial->least)
        trial->least = took; /* the slower ones may have had to wait for a reader */
    /* The first round finds the cache lines as the last mode has left them. */
    if (tries && trial->bytes > SHC_COPY_ROUND && (trial->best == 0 || took < trial->best))
        trial->best = took;
    trial->worse = other > 0 && took > WORSE_FACTOR * other
                       ? trial->worse + (bytes < SHC_COPY_ROUND ? bytes : SHC_COPY_ROUND)
                       : 0; /* a message may wait for its receiver */
    if (trial->worse == 0)
        trial->looked = trial->bytes;
    const unsigned next = untried_or_best(trial);
    if (tries && is_hopeless(trial, other))
        turn(trial, trial->least, next);
    else if (is_trial(trial))
        return;
    else if (trial->worse >= WORSE_BYTES)
        leave(trial, took, best_mode);
    else if (trial->took[next] == 0 || trial->best > trial->took[next])
        turn(trial, trial->best, next);
    else if (has_stayed(trial))
        retry(trial);
}

enum shc_copy_mode shc_copy_trial_untimed(const struct shc_copy_trial *trial, bool streams)
{
    const bool is_new = trial->notes == 0 && best_other(trial) == trial->mode;
    if (!streams)
        return trial->mode == SHC_COPY_NON_TEMPORAL ? SHC_COPY_LINES : trial->mode;
    return is_new ? SHC_COPY_NON_TEMPORAL : trial->mode;
}
