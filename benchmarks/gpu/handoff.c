/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A token goes round: rank r's stream waits for its word and then writes the next rank's, many times
 * around, all enqueued before the token starts. The clock is the CPU's: rank 0's stream tells each
 * arrival by a write into host memory that the CPU polls, off the token's way. On words in GPU
 * memory and in host memory; on an idle GPU, and next to two processes that keep it busy; and once
 * with a CPU for the second rank (the stream's write wakes it, its store wakes the stream).
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_WORD    0
#define GATE_WORD     1
#define PROGRESS_WORD 2 /* on the board: how often the token came back */
#define MOST_ROUNDS   4096
#define BUSY          2

enum ring { DEVICE_WORDS, HOST_WORDS, HOST_WORDS_AND_CPU, RINGS };
static const char *const ring_names[RINGS] = {"gpu", "host", "host, answered by a cpu"};

struct run {
    enum ring ring;
    double *us; /* of each time around */
    int count;
    uint64_t token; /* value of the last one */
};

static shc_cu_address token_word(const struct lab *lab, const struct run *run, int rank)
{
    return run->ring == DEVICE_WORDS ? lab_word(lab, rank, TOKEN_WORD)
                                     : lab_host_word(lab, rank, TOKEN_WORD);
}

static enum shc_status enqueue(const struct lab *lab, const struct run *run, int rounds)
{
    const shc_cu_address own = token_word(lab, run, lab->rank);
    const shc_cu_address next = token_word(lab, run, (lab->rank + 1) % lab->world);
    if (lab->rank == 0)
        SHC_TRY(lab_wait(lab, lab->stream, lab_word(lab, 0, GATE_WORD), run->token + 1));
    for (uint64_t k = run->token + 1; k <= run->token + (uint64_t)rounds; k++) {
        if (lab->rank == 0)
            SHC_TRY(lab_write(lab, lab->stream, next, k));
        SHC_TRY(lab_wait(lab, lab->stream, own, k));
        SHC_TRY(lab_write(lab, lab->stream,
                          lab->rank == 0 ? lab_host_word(lab, 0, PROGRESS_WORD) : next, k));
    }
    return SHC_OK;
}

/* Rank 0's CPU: opens the gate and stamps what comes back. */
static enum shc_status stamp(const struct lab *lab, struct run *run, int rounds)
{
    const uint64_t last = run->token + (uint64_t)rounds;
    uint64_t seen = run->token, before_ns = shc_clock_ns(), heard_ns = before_ns;
    SHC_TRY(lab_write(lab, lab->second, lab_word(lab, 0, GATE_WORD), run->token + 1));
    while (seen < last) {
        /* acquire timeline/word <- the stream's write: the count. */
        const uint64_t now = shc_a64_load_acquire(lab_host(lab, 0, PROGRESS_WORD));
        const uint64_t now_ns = shc_clock_ns();
        if (lab_stopped(lab))
            return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
        if (now_ns - heard_ns > 10 * lab->options->patience_ns)
            return shc_cuda_fail(SHC_ERR_TIMEOUT, "the token does not come back: %llu of %d",
                                 (unsigned long long)(seen - run->token), rounds);
        if (now == seen) {
            if (lab->options->small)
                shc_sys_sleep_ns(20 * SHC_NS_PER_US);
            shc_cpu_relax();
            continue;
        }
        heard_ns = now_ns;
        if (now > last) /* poison */
            return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
        const double us = NS_TO_US(now_ns - before_ns) / (double)(now - seen);
        for (; seen < now; seen++)
            if (run->count < MOST_ROUNDS)
                run->us[run->count++] = us;
        before_ns = now_ns;
    }
    return SHC_OK;
}

/* Another rank's CPU, in its stream's place. */
static enum shc_status answer(const struct lab *lab, const struct run *run, int rounds)
{
    const uint64_t last = run->token + (uint64_t)rounds;
    for (uint64_t seen = run->token; seen < last && !lab_stopped(lab);) {
        /* acquire timeline/word <- the stream's write: the token. */
        const uint64_t now = shc_a64_load_acquire(lab_host(lab, lab->rank, TOKEN_WORD));
        if (now == seen) {
            if (lab->options->small)
                shc_sys_sleep_ns(20 * SHC_NS_PER_US);
            shc_cpu_relax();
            continue;
        }
        seen = now;
        /* release timeline/word -> acquire in the device: the token. */
        shc_a64_store_release(lab_host(lab, (lab->rank + 1) % lab->world, TOKEN_WORD), now);
    }
    return SHC_OK;
}

/* One batch: everything is enqueued, then the token starts. */
static enum shc_status batch(struct lab *lab, struct run *run, int rounds)
{
    const bool by_cpu = run->ring == HOST_WORDS_AND_CPU && lab->rank != 0;
    if (!by_cpu)
        SHC_TRY(enqueue(lab, run, rounds));
    SHC_TRY(lab_meet(lab));
    if (lab->rank == 0)
        SHC_TRY(stamp(lab, run, rounds));
    if (by_cpu)
        SHC_TRY(answer(lab, run, rounds));
    SHC_TRY(lab_drain(lab, lab->stream));
    SHC_TRY(lab_drain(lab, lab->second));
    run->token += (uint64_t)rounds;
    return lab_meet(lab);
}

static void report(const struct lab *lab, struct run *run)
{
    struct line line;
    lab_sort(run->us, run->count);
    lab_line(lab, &line);
    line_text(&line, "words", ring_names[run->ring]);
    line_text(&line, "busy",
              lab->job->busy == 0               ? "no"
              : lab->kernels.why_not[0] == '\0' ? "two with kernels"
                                                : "two with fills");
    line_number(&line, "rounds", run->count);
    line_number(&line, "round_trip_us", lab_quantile(run->us, run->count, 0.5));
    line_number(&line, "p99_us", lab_quantile(run->us, run->count, 0.99));
    line_number(&line, "best_us", lab_quantile(run->us, run->count, 0));
    line_number(&line, "hop_us", lab_quantile(run->us, run->count, 0.5) / lab->world);
    line_end(&line);
}

/* Batches, the first one to warm up, until there are enough or a second or two are over. */
static enum shc_status go_round(struct lab *lab, enum ring ring)
{
    static double us[MOST_ROUNDS];
    struct run run = {.ring = ring, .us = us};
    const int rounds = lab->options->small ? 8 : 64, batches = lab->options->small ? 2 : 32;
    double *more = &lab->board->seats[0].numbers[0];
    const uint64_t end_ns = shc_clock_ns() + 2 * SHC_NS_PER_S;
    for (int w = 0; w <= PROGRESS_WORD; w++) {
        SHC_TRY(lab_write(lab, lab->second, lab_word(lab, lab->rank, w), 0));
        SHC_TRY(lab_write(lab, lab->second, lab_host_word(lab, lab->rank, w), 0));
    }
    SHC_TRY(lab_drain(lab, lab->second));
    SHC_TRY(lab_meet(lab));
    SHC_TRY(batch(lab, &run, 8));
    run.count = 0;
    for (int b = 0; b < batches; b++) {
        if (lab->rank == 0)
            *more = shc_clock_ns() < end_ns;
        SHC_TRY(lab_meet(lab));
        if (*more == 0)
            break;
        SHC_TRY(batch(lab, &run, rounds));
    }
    if (lab->rank == 0)
        report(lab, &run);
    return lab_meet(lab);
}

static enum shc_status handoff(struct lab *lab)
{
    SHC_TRY(lab_slabs(lab, MIB));
    if (lab->job->variant == HOST_WORDS_AND_CPU) {
        SHC_TRY(go_round(lab, HOST_WORDS_AND_CPU));
    } else {
        SHC_TRY(go_round(lab, DEVICE_WORDS));
        SHC_TRY(go_round(lab, HOST_WORDS));
    }
    return lab_slabs_undo(lab);
}

int experiment_handoff(const struct options *options)
{
    struct job job = {.experiment = "handoff", .body = handoff};
    int failed = job_run_worlds(options, &job);
    job.busy = BUSY;
    failed |= job_run_worlds(options, &job);
    job = (struct job){.experiment = "handoff", .body = handoff, .world = 2};
    job.variant = HOST_WORDS_AND_CPU;
    return failed | job_run(options, &job);
}
