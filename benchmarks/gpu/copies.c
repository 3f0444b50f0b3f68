/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The bounds that collectives are judged by: how fast copies are inside the GPU, from a slab of
 * another process, and to and from registered shared memory; one way and both ways at once. First
 * by one process alone, by size; then the same copies by 2, 4, 8 processes at once, which shows
 * whether copies of different contexts overlap.
 *
 * GB/s counts the bytes once. Copies are enqueued together; the clock is the CPU's, from the first
 * call until the stream is idle, so that small ones show what a call costs, too.
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS       5
#define MOST_REPEATS 200
#define MOVED_BYTES  (2048 * MIB) /* of a round, about */

enum way { INSIDE, IMPORTED, H2D, D2H, DUPLEX, WAYS };
static const char *const way_names[WAYS] = {"inside", "from another's slab", "host to gpu",
                                            "gpu to host", "host both ways"};

struct ends {
    shc_cu_address own, to, imported, host;
    size_t bytes; /* of each */
};

/* A duplex counts both directions, each on its own stream. */
static enum shc_status enqueue(const struct lab *lab, const struct ends *e, enum way way,
                               size_t bytes)
{
    if (way == INSIDE)
        return lab_copy(lab, lab->stream, e->to, e->own, bytes);
    if (way == IMPORTED)
        return lab_copy(lab, lab->stream, e->to, e->imported, bytes);
    if (way == H2D)
        return lab_copy(lab, lab->stream, e->own, e->host, bytes);
    if (way == D2H)
        return lab_copy(lab, lab->stream, e->host, e->own, bytes);
    SHC_TRY(lab_copy(lab, lab->stream, e->own, e->host, bytes / 2));
    return lab_copy(lab, lab->second, e->host + bytes / 2, e->to, bytes / 2);
}

static enum shc_status time_round(const struct lab *lab, const struct ends *e, enum way way,
                                  size_t bytes, int repeats, double *seconds)
{
    const uint64_t begun_ns = shc_clock_ns();
    for (int i = 0; i < repeats; i++)
        SHC_TRY(enqueue(lab, e, way, bytes));
    SHC_TRY(lab_drain(lab, lab->stream));
    SHC_TRY(lab_drain(lab, lab->second));
    *seconds = (double)(shc_clock_ns() - begun_ns) / 1e9;
    return SHC_OK;
}

static int repeats_of(const struct lab *lab, size_t bytes)
{
    const size_t wanted = lab->options->small ? 1 : MOVED_BYTES / bytes;
    return wanted < 1 ? 1 : wanted > MOST_REPEATS ? MOST_REPEATS : (int)wanted;
}

static void report(const struct lab *lab, enum way way, size_t bytes, const char *what, double gb_s)
{
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "copy", way_names[way]);
    line_number(&line, "kib", (double)bytes / 1024);
    line_text(&line, "at_once", what);
    line_number(&line, "gb_s", gb_s);
    line_end(&line);
}

static enum shc_status alone(const struct lab *lab, const struct ends *e, enum way way)
{
    for (size_t bytes = 64 << 10; bytes <= e->bytes; bytes *= 4) {
        const int repeats = repeats_of(lab, bytes);
        double seconds[ROUNDS];
        SHC_TRY(time_round(lab, e, way, bytes, 1, &seconds[0])); /* warm */
        for (int i = 0; i < ROUNDS; i++)
            SHC_TRY(time_round(lab, e, way, bytes, repeats, &seconds[i]));
        lab_sort(seconds, ROUNDS);
        report(lab, way, bytes, "one",
               (double)bytes * repeats / lab_quantile(seconds, ROUNDS, 0.5) / 1e9);
    }
    return SHC_OK;
}

/* All ranks at once: the sum of what they moved, over the time from the first to the last. */
static enum shc_status together(struct lab *lab, const struct ends *e, enum way way)
{
    const size_t bytes = lab->options->small ? MIB / 4 : 64 * MIB;
    const int repeats = lab->options->small ? 2 : 64;
    struct seat *seats = lab->board->seats;
    double seconds;
    SHC_TRY(time_round(lab, e, way, bytes, 1, &seconds));
    SHC_TRY(lab_meet(lab));
    seats[lab->rank].numbers[0] = (double)shc_clock_ns();
    SHC_TRY(time_round(lab, e, way, bytes, repeats, &seconds));
    seats[lab->rank].numbers[1] = (double)shc_clock_ns();
    SHC_TRY(lab_meet(lab));
    double first = seats[0].numbers[0], last = 0;
    for (int r = 0; r < lab->world; r++) {
        first = seats[r].numbers[0] < first ? seats[r].numbers[0] : first;
        last = seats[r].numbers[1] > last ? seats[r].numbers[1] : last;
    }
    if (lab->rank == 0)
        report(lab, way, bytes, "all", (double)bytes * repeats * lab->world / (last - first));
    return lab_meet(lab);
}

/* Rank 0 alone wants the largest sizes, of 2 ranks; the others' slabs hold what `together` needs. */
static size_t bytes_of(const struct lab *lab)
{
    if (lab->options->small)
        return MIB;
    return lab->world == 2 ? 1024 * MIB : 64 * MIB;
}

static enum shc_status copies(struct lab *lab)
{
    const size_t bytes = bytes_of(lab);
    struct lab_pinned host;
    SHC_TRY(lab_slabs(lab, 2 * bytes));
    SHC_TRY(lab_pinned_make(lab, bytes, &host));
    const struct ends e = {.own = lab_data(lab, lab->rank),
                           .to = lab_data(lab, lab->rank) + bytes,
                           .imported = lab_data(lab, (lab->rank + 1) % lab->world),
                           .host = host.address,
                           .bytes = bytes};
    SHC_TRY(lab_copy(lab, lab->stream, e.own, e.host, bytes)); /* no page untouched */
    SHC_TRY(lab_copy(lab, lab->stream, e.to, e.host, bytes));
    SHC_TRY(lab_drain(lab, lab->stream));
    SHC_TRY(lab_meet(lab));
    for (int way = 0; lab->world == 2 && way < WAYS; way++) {
        if (lab->rank == 0)
            SHC_TRY(alone(lab, &e, (enum way)way));
        SHC_TRY(lab_meet(lab));
    }
    for (int way = 0; way < WAYS; way++)
        SHC_TRY(together(lab, &e, (enum way)way));
    lab_pinned_free(lab, &host);
    return lab_slabs_undo(lab);
}

int experiment_copies(const struct options *options)
{
    struct job job = {.experiment = "copies", .body = copies};
    return job_run_worlds(options, &job);
}
