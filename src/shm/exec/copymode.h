/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copy modes: how a CPU copies what another CPU reads next. Which mode is fastest depends on the processor and on
 * whether the CPUs of the writer and of the reader share a cache. A virtual machine does not tell that, and may change
 * it; it is worth a factor of two either way. So each writer tries all modes one after the other, stays with the
 * fastest, and tries another one again now and then: the more rarely, the more often that was in vain. Every rank
 * chooses for itself. A reader is told the mode where that matters to it.
 *
 * A mover takes a mode. A meter measures the mover for the trial.
 */

#include "shm/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shc_copy_mode {
    SHC_COPY_PLAIN, /* shc_copy(): the C library's, often the processor's string instructions */
    SHC_COPY_NON_TEMPORAL, /* shc_copy_stream(): past the caches */
    SHC_COPY_LINES,        /* shc_copy_lines() */
    SHC_COPY_MODES
};

struct shc_copy_trial {
    enum shc_copy_mode mode;     /* in use */
    unsigned modes;              /* number of modes: the first ones of the enum */
    unsigned retry;              /* the mode that is tried again next */
    unsigned notes;              /* messages and rounds since `mode` came into use */
    uint64_t bytes;              /* the bytes of these */
    enum shc_copy_mode settled;  /* the mode that stayed last */
    unsigned stays;              /* how often in a row it has stayed */
    uint64_t looked;             /* `bytes` when a message was last timed and was not slow */
    uint64_t worse;              /* the last bytes, in a row, that were slower than another mode */
    double least;                /* nanoseconds a byte of the fastest note */
    double best;                 /* the same in the trial, after its first round */
    double took[SHC_COPY_MODES]; /* `best` of each mode when it was in use last; 0: not known */
};

/* A round goes at least once through all memory that is stored to (the pool, default broadcast slots). */
#define SHC_COPY_ROUND ((uint64_t)1536 << 10)

/* One trial is for sizes up to a factor of four. The time of a byte and the fastest mode depend on
 * how much of a message is waiting, and on which cache it fits into. */
#define SHC_COPY_TRIALS 7

/* `modes`: the number of modes that exist, at least two; `mode` is tried first. */
void shc_copy_trials_init(struct shc_copy_trial trials[SHC_COPY_TRIALS], unsigned modes,
                          enum shc_copy_mode mode);

static inline struct shc_copy_trial *
shc_copy_trial_for(struct shc_copy_trial trials[SHC_COPY_TRIALS], size_t bytes)
{
    int i = 0;
    while (i < SHC_COPY_TRIALS - 1 && bytes >= (size_t)32 << 10 << (2 * i))
        i++;
    return &trials[i];
}

/* Does it try this mode, or look whether the mode has become slow, which untimed messages do not
 * show? Then a message is timed until its readers have read it: what is faster for the writer alone
 * may be slower for them. */
bool shc_copy_trial_tries(const struct shc_copy_trial *trial);

/* A message, or a round of one, with so many bytes was stored in that mode. The time includes waits
 * for readers. */
void shc_copy_trial_note(struct shc_copy_trial *trial, uint64_t bytes, uint64_t ns);

/* So many more bytes were stored, and not timed. pre: the trial does not try. */
void shc_copy_trial_count(struct shc_copy_trial *trial, uint64_t bytes);

/* The mode for a message that is not timed: the one in use. Before anything has been timed, non-temporal stores: at
 * worst they are a little slower, and ordinary ones several times. streams: it may have such stores. */
enum shc_copy_mode shc_copy_trial_untimed(const struct shc_copy_trial *trial, bool streams);

/* ---- the meter: measures a writer for a trial ---- */

struct shc_copy_meter {
    struct shc_copy_trial *trial; /* NULL: nothing is measured */
    uint64_t since_ns;            /* the time since then, for `bytes`, has not been noted */
    uint64_t spent_ns;            /* the same for the time of what was stored before */
    uint64_t bytes;
};

/* Begin and pause: around what is stored before the rest. */
static inline void shc_copy_meter_begin(struct shc_copy_meter *meter)
{
    meter->since_ns = meter->trial ? shc_clock_ns() : 0;
}

static inline void shc_copy_meter_pause(struct shc_copy_meter *meter)
{
    meter->spent_ns += meter->trial ? shc_clock_ns() - meter->since_ns : 0;
}

/* Resume goes on with the time spent so far; restart begins from nothing. */
static inline void shc_copy_meter_resume(struct shc_copy_meter *meter)
{
    meter->since_ns = shc_clock_ns() - meter->spent_ns;
}

static inline void shc_copy_meter_restart(struct shc_copy_meter *meter)
{
    meter->since_ns = shc_clock_ns();
    meter->spent_ns = meter->bytes = 0;
}

/* Gives the time to the trial, and starts anew. */
static inline void shc_copy_meter_note(struct shc_copy_meter *meter)
{
    const uint64_t now_ns = shc_clock_ns();
    shc_copy_trial_note(meter->trial, meter->bytes, now_ns - meter->since_ns);
    meter->since_ns = now_ns;
    meter->spent_ns = meter->bytes = 0;
}
