/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rank 0 is killed (SIGKILL) while others depend on it. As an exporter: rank 1 has its slab mapped
 * and waits for its word; does the mapping live, does poison end the wait, how long until the dead
 * process is gone, does its memory come back? As a waiter: its own stream waits when it is killed;
 * does it go at once, or only when rank 1 has poisoned the word?
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define VICTIM    0
#define SURVIVOR  1
#define WAIT_WORD 4
#define MARK      0x6b
#define BYTES     MIB

enum variant { EXPORTER_FD, EXPORTER_LEGACY, WAITER, VARIANTS };
static const char *const variant_names[VARIANTS] = {"exporter, file descriptor",
                                                    "exporter, legacy handle", "waiter"};

static enum shc_status die(struct lab *lab)
{
    lab->board->seats[lab->rank].numbers[0] = (double)shc_clock_ns();
    SHC_TRY(lab_meet(lab));
    raise(SIGKILL);
    return SHC_OK;
}

/* When the dead process was gone, in ms since it was killed; -1: it is not, in that time. */
static double await_death(const struct lab *lab, uint64_t patience_ns)
{
    struct seat *victim = &lab->board->seats[VICTIM];
    const uint64_t end_ns = shc_clock_ns() + patience_ns;
    for (;;) {
        /* acquire experiments/gone <- release in look(). */
        const uint64_t gone_ns = shc_a64_load_acquire(&victim->gone_ns);
        if (gone_ns != 0)
            return ((double)gone_ns - victim->numbers[0]) / 1e6;
        if (shc_clock_ns() > end_ns)
            return -1;
        shc_sys_sleep_ns(SHC_NS_PER_MS);
    }
}

/* Reads the dead rank's data, writes other data there and reads it back. */
static enum shc_status use_mapping(const struct lab *lab, struct lab_pinned *host, bool *right)
{
    const shc_cu_address data = lab_data(lab, VICTIM);
    memset(host->memory, 0, BYTES);
    SHC_TRY(lab_copy(lab, lab->second, host->address, data, BYTES));
    SHC_TRY(lab_drain(lab, lab->second));
    *right = true;
    for (size_t i = 0; i < BYTES; i++)
        *right = *right && host->memory[i] == MARK;
    SHC_TRY(lab_cu(lab, lab->driver.cuMemsetD8Async(data, MARK + 1, BYTES, lab->second),
                   "cuMemsetD8Async"));
    SHC_TRY(lab_copy(lab, lab->second, host->address, data, BYTES));
    SHC_TRY(lab_drain(lab, lab->second));
    for (size_t i = 0; i < BYTES; i++)
        *right = *right && host->memory[i] == MARK + 1;
    return SHC_OK;
}

static void report(const struct lab *lab, double gone_ms, const char *mapping, const char *pending,
                   double poison_us, double freed_mib)
{
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "killed", variant_names[lab->job->variant]);
    line_number(&line, "gone_ms", gone_ms);
    line_text(&line, "mapping", mapping);
    line_text(&line, "wait", pending);
    line_number(&line, "poison_us", poison_us);
    line_number(&line, "freed_mib", freed_mib);
    line_end(&line);
}

/* The exporter is dead: rank 1's side. */
static enum shc_status outlive_exporter(struct lab *lab, struct lab_pinned *host)
{
    bool idle, right;
    const double free_before = extras_free_mib(&lab->extras);
    SHC_TRY(lab_wait(lab, lab->stream, lab_word(lab, SURVIVOR, WAIT_WORD), 1));
    SHC_TRY(lab_meet(lab));
    const double gone_ms = await_death(lab, 10 * lab->options->patience_ns);
    SHC_TRY(use_mapping(lab, host, &right));
    SHC_TRY(lab_idle(lab, lab->stream, 20 * SHC_NS_PER_MS, &idle));
    const bool ended_early = idle;
    const uint64_t begun_ns = shc_clock_ns();
    SHC_TRY(lab_end_wait(lab, lab->stream, lab_word(lab, SURVIVOR, WAIT_WORD), NULL, &idle));
    const double poison_us = NS_TO_US(shc_clock_ns() - begun_ns);
    if (!idle)
        return shc_cuda_fail(SHC_ERR_TIMEOUT, "poison does not end the wait");
    SHC_TRY(lab_slabs_undo(lab));
    report(lab, gone_ms, right ? "lives" : "WRONG DATA",
           ended_early ? "ended by itself" : "ended by poison", poison_us,
           extras_free_mib(&lab->extras) - free_before);
    return SHC_OK;
}

/* The waiter is dead, or cannot die yet. */
static enum shc_status outlive_waiter(struct lab *lab, struct lab_pinned *host)
{
    SHC_TRY(lab_meet(lab));
    const char *pending = "went at once";
    double gone_ms = await_death(lab, 3 * lab->options->patience_ns);
    const uint64_t begun_ns = shc_clock_ns();
    double poison_us = NAN;
    if (gone_ms < 0) {
        pending = "went when poisoned";
        SHC_TRY(lab_write(lab, lab->second, lab_word(lab, VICTIM, WAIT_WORD), POISON));
        gone_ms = await_death(lab, 10 * lab->options->patience_ns);
        poison_us = NS_TO_US(shc_clock_ns() - begun_ns);
    }
    if (gone_ms < 0) {
        gone_ms = NAN;
        pending = "NOT GONE, poisoned as it is";
    }
    bool right;
    SHC_TRY(use_mapping(lab, host, &right));
    SHC_TRY(lab_slabs_undo(lab));
    report(lab, gone_ms, right ? "lives" : "WRONG DATA", pending, poison_us, NAN);
    return SHC_OK;
}

static enum shc_status be_victim(struct lab *lab)
{
    bool idle;
    SHC_TRY(lab_cu(lab,
                   lab->driver.cuMemsetD8Async(lab_data(lab, VICTIM), MARK, BYTES, lab->second),
                   "cuMemsetD8Async"));
    SHC_TRY(lab_drain(lab, lab->second));
    if (lab->job->variant == WAITER) {
        SHC_TRY(lab_wait(lab, lab->stream, lab_word(lab, VICTIM, WAIT_WORD), 1));
        SHC_TRY(lab_idle(lab, lab->stream, 20 * SHC_NS_PER_MS, &idle));
    }
    return die(lab);
}

static enum shc_status killed(struct lab *lab)
{
    const bool legacy = lab->job->variant == EXPORTER_LEGACY;
    char why[SEAT_BYTES];
    SHC_TRY(lab_slabs_try(lab, legacy ? SHC_SLAB_LEGACY : SHC_SLAB_FD, BYTES, why));
    if (why[0] != '\0') {
        if (lab->rank == SURVIVOR)
            report(lab, NAN, "none", why, NAN, NAN);
        SHC_TRY(lab_meet(lab));
        if (lab->rank == VICTIM)
            raise(SIGKILL); /* as it is to end */
        return SHC_OK;
    }
    if (lab->rank == VICTIM)
        return be_victim(lab);
    struct lab_pinned host;
    SHC_TRY(lab_pinned_make(lab, BYTES, &host));
    SHC_TRY(lab->job->variant == WAITER ? outlive_waiter(lab, &host)
                                        : outlive_exporter(lab, &host));
    lab_pinned_free(lab, &host);
    return SHC_OK;
}

int experiment_kill(const struct options *options)
{
    int failed = 0;
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct job job = {.experiment = "kill",
                          .body = killed,
                          .world = 2,
                          .variant = variant,
                          .first_one_dies = true};
        failed |= job_run(options, &job);
    }
    return failed;
}
