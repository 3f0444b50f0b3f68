/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ends a stream's pending wait? Rank 0 waits, in turn, for a word in its own slab, in the other
 * rank's slab, and in registered host memory; the other rank, or rank 0 itself, makes the word what
 * is waited for: by a stream write, a copy from the GPU, a copy from the host, a fill, a store of
 * the CPU, a store of a kernel. What does not end the wait in time is followed by a stream write of
 * the same value, and that by poison.
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <stdio.h>
#include <string.h>

#define AIM           0x0101010101010101u /* what a fill can write, and below every poison */
#define WAIT_WORD     1
#define SOURCE_WORD   2 /* holds AIM */
#define BEGUN_WORD    3 /* the waiter's stream is about to wait */
#define PENDING_NS    (50 * SHC_NS_PER_MS)
#define AT_ONCE_NS    (20 * SHC_NS_PER_MS)
#define WAITER        0
#define PEER          1
#define NUMBER_BEGUN  0
#define NUMBER_FAILED 1

enum place { OWN, IMPORTED, HOST, PLACES };
enum release { WRITE, COPY, COPY_FROM_HOST, FILL, CPU_STORE, KERNEL_STORE, RELEASES };

static const char *const place_names[PLACES] = {"own slab", "other's slab", "host"};
static const char *const release_names[RELEASES] = {"stream write", "copy",      "copy from host",
                                                    "fill",         "cpu store", "kernel store"};

struct test {
    enum place place;
    enum release release;
    int actor; /* the rank that releases */
};

static shc_cu_address word_of(const struct lab *lab, enum place place)
{
    return place == HOST ? lab_host_word(lab, WAITER, WAIT_WORD)
                         : lab_word(lab, place == OWN ? WAITER : PEER, WAIT_WORD);
}

/* Enqueues it, or does it; the result is the driver's. */
static int release(const struct lab *lab, const struct test *test)
{
    const shc_cu_address word = word_of(lab, test->place);
    const struct shc_driver *driver = &lab->driver;
    switch (test->release) {
    case WRITE:
        return driver->cuStreamWriteValue64(lab->second, word, AIM, SHC_CU_WRITE_DEFAULT);
    case COPY:
        return driver->cuMemcpyAsync(word, lab_word(lab, lab->rank, SOURCE_WORD), 8, lab->second);
    case COPY_FROM_HOST:
        return driver->cuMemcpyAsync(word, lab_host_word(lab, lab->rank, SOURCE_WORD), 8,
                                     lab->second);
    case FILL:
        return driver->cuMemsetD8Async(word, 1, 8, lab->second);
    case KERNEL_STORE:
        return kernels_store(&lab->gpu, &lab->kernels, lab->second, word, AIM);
    default:
        /* release timeline/word -> acquire in the device: nothing but the value. */
        shc_a64_store_release(lab_host(lab, WAITER, WAIT_WORD), AIM);
        return SHC_CU_SUCCESS;
    }
}

/* Why this test cannot be made, or NULL. */
static const char *impossible(const struct lab *lab, const struct test *test)
{
    if (test->release == CPU_STORE && test->place != HOST)
        return "the CPU does not reach the GPU's memory";
    if (test->release == KERNEL_STORE && lab->kernels.why_not[0] != '\0')
        return lab->kernels.why_not;
    return NULL;
}

static enum shc_status reset(const struct lab *lab, const struct test *test)
{
    SHC_TRY(lab_write(lab, lab->second, word_of(lab, test->place), 0));
    return lab_drain(lab, lab->second);
}

/* After a release that did not wake: what does? */
static enum shc_status rescue(const struct lab *lab, const struct test *test, const char **outcome)
{
    bool idle;
    SHC_TRY(lab_write(lab, lab->second, word_of(lab, test->place), AIM));
    SHC_TRY(lab_drain(lab, lab->second));
    SHC_TRY(lab_idle(lab, lab->stream, 4 * lab->options->patience_ns, &idle)); /* it comes */
    *outcome = "only a later stream write wakes";
    if (idle)
        return SHC_OK;
    *outcome = "only poison wakes";
    SHC_TRY(lab_end_wait(lab, lab->stream, word_of(lab, test->place),
                         test->place == HOST ? lab_host(lab, WAITER, WAIT_WORD) : NULL, &idle));
    if (!idle)
        return shc_cuda_fail(SHC_ERR_TIMEOUT, "a wait for a word in %s is not to be ended",
                             place_names[test->place]);
    return SHC_OK;
}

/* What the waiter sees. */
struct seen {
    const char *outcome;
    double us;
};

static void report(const struct lab *lab, const struct test *test, const struct seen *seen,
                   const char *reason)
{
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "word", place_names[test->place]);
    line_text(&line, "release", release_names[test->release]);
    line_text(&line, "by", test->actor == WAITER ? "itself" : "peer");
    line_text(&line, "outcome", seen->outcome);
    if (seen->us >= 0)
        line_number(&line, "us", seen->us);
    if (reason[0] != '\0')
        line_text(&line, "reason", reason);
    line_end(&line);
}

/* The actor's part, up to the call. A call that the driver refuses is a result. */
static void act(const struct lab *lab, const struct test *test)
{
    struct seat *seat = &lab->board->seats[lab->rank];
    seat->numbers[NUMBER_BEGUN] = (double)shc_clock_ns();
    const int result = release(lab, test);
    seat->numbers[NUMBER_FAILED] = result;
    seat->text[0] = '\0';
    if (result != SHC_CU_SUCCESS) {
        (void)!lab_cu(lab, result, release_names[test->release]);
        snprintf(seat->text, SEAT_BYTES, "%s", shc_cuda_failure());
    }
}

/* The release is over: what it did not wake has nothing more to come. */
static enum shc_status end_act(struct lab *lab)
{
    SHC_TRY(lab_drain(lab, lab->second));
    return lab_meet(lab);
}

static enum shc_status await(struct lab *lab, const struct test *test, struct seen *seen)
{
    bool idle;
    if (test->actor == WAITER)
        act(lab, test);
    SHC_TRY(lab_idle(lab, lab->stream, AT_ONCE_NS, &idle));
    uint64_t now_ns = shc_clock_ns();
    SHC_TRY(end_act(lab)); /* the actor has said when it began */
    if (!idle) {           /* on a busy machine the release itself may have been late */
        SHC_TRY(lab_idle(lab, lab->stream, lab->options->patience_ns, &idle));
        now_ns = shc_clock_ns();
    }
    const struct seat *actor = &lab->board->seats[test->actor];
    *seen = (struct seen){.outcome = "wakes",
                          .us = NS_TO_US((double)now_ns - actor->numbers[NUMBER_BEGUN])};
    if (idle)
        return SHC_OK;
    seen->us = -1;
    SHC_TRY(rescue(lab, test, &seen->outcome));
    if (actor->numbers[NUMBER_FAILED] != 0)
        seen->outcome = "refused";
    return SHC_OK;
}

/* Enqueues the wait, and returns when it is pending. A wait that begins after the release would end at once,
 * whatever wakes a pending one. */
static enum shc_status begin_wait(const struct lab *lab, const struct test *test, bool *idle)
{
    shc_a64 *begun = lab_host(lab, WAITER, BEGUN_WORD);
    /* relaxed: the stream stores to it only after the next call. */
    shc_a64_store_relaxed(begun, 0);
    SHC_TRY(lab_write(lab, lab->stream, lab_host_word(lab, WAITER, BEGUN_WORD), AIM));
    SHC_TRY(lab_wait(lab, lab->stream, word_of(lab, test->place), AIM));
    /* acquire timeline/word <- release in the device: nothing but the value. */
    while (shc_a64_load_acquire(begun) != AIM && !lab_stopped(lab))
        shc_sys_sleep_ns(50 * SHC_NS_PER_US);
    return lab_idle(lab, lab->stream, PENDING_NS, idle);
}

static enum shc_status run_test(struct lab *lab, const struct test *test)
{
    bool idle = false;
    const char *why = impossible(lab, test);
    struct seen seen = {.outcome = "not possible", .us = -1};
    if (why != NULL) {
        if (lab->rank == WAITER)
            report(lab, test, &seen, why);
        return SHC_OK;
    }
    if (lab->rank == WAITER) {
        SHC_TRY(reset(lab, test));
        SHC_TRY(begin_wait(lab, test, &idle));
    }
    SHC_TRY(lab_meet(lab));
    if (lab->rank == test->actor && lab->rank != WAITER)
        act(lab, test);
    SHC_TRY(lab->rank == WAITER ? await(lab, test, &seen) : end_act(lab));
    SHC_TRY(lab_meet(lab)); /* the wait is over, or ended */
    SHC_TRY(lab_drain(lab, lab->second));
    if (lab->rank == WAITER && idle)
        seen.outcome = "did not wait at all";
    if (lab->rank == WAITER)
        report(lab, test, &seen, lab->board->seats[test->actor].text);
    return lab_meet(lab);
}

static enum shc_status releases(struct lab *lab)
{
    SHC_TRY(lab_slabs(lab, MIB));
    SHC_TRY(lab_write(lab, lab->second, lab_word(lab, lab->rank, SOURCE_WORD), AIM));
    SHC_TRY(lab_drain(lab, lab->second));
    /* relaxed: the next meeting hands it over. */
    shc_a64_store_relaxed(lab_host(lab, lab->rank, SOURCE_WORD), AIM);
    for (int way = 0; way < RELEASES; way++) /* the kernel last: an illegal store ends all */
        for (int place = 0; place < PLACES; place++)
            for (int actor = WAITER; actor <= PEER; actor++) {
                const struct test test = {(enum place)place, (enum release)way, actor};
                lab->board->seats[lab->rank].text[0] = '\0';
                SHC_TRY(lab_meet(lab));
                SHC_TRY(run_test(lab, &test));
            }
    return lab_slabs_undo(lab);
}

int experiment_release(const struct options *options)
{
    struct job job = {.experiment = "release", .body = releases, .world = 2};
    return job_run(options, &job);
}
