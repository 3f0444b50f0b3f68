/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One piece of shared memory, registered with the GPU by all processes: does that work, what does a
 * GiB of it cost, and does it matter whether others have registered it, or do so at the same time?
 * Every process then copies a part of it to the GPU and back to another part.
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <string.h>

#define PIECE ((size_t)65536)

static double since_s(uint64_t begun_ns)
{
    return (double)(shc_clock_ns() - begun_ns) / 1e9;
}

static enum shc_status take(const struct lab *lab, double *seconds)
{
    const uint64_t begun_ns = shc_clock_ns();
    SHC_TRY(lab_cu(lab,
                   lab->driver.cuMemHostRegister(lab->job->region, lab->job->region_bytes,
                                                 SHC_CU_HOST_PORTABLE | SHC_CU_HOST_DEVICEMAP),
                   "cuMemHostRegister of what others have registered"));
    *seconds = since_s(begun_ns);
    return SHC_OK;
}

static enum shc_status leave(const struct lab *lab, double *seconds)
{
    const uint64_t begun_ns = shc_clock_ns();
    SHC_TRY(lab_cu(lab, lab->driver.cuMemHostUnregister(lab->job->region), "cuMemHostUnregister"));
    *seconds = since_s(begun_ns);
    return SHC_OK;
}

/* Rank r fills piece r; the GPU of the next rank takes it from there, and piece world + r is what
 * comes back. */
static enum shc_status check(struct lab *lab, bool *right)
{
    unsigned char *memory = lab->job->region;
    const int before = (lab->rank + lab->world - 1) % lab->world;
    const size_t from = (size_t)before * PIECE, back = (size_t)(lab->world + lab->rank) * PIECE;
    shc_cu_address address;
    memset(memory + (size_t)lab->rank * PIECE, 0x40 + lab->rank, PIECE);
    SHC_TRY(lab_meet(lab));
    SHC_TRY(lab_cu(lab, lab->driver.cuMemHostGetDevicePointer(&address, memory, 0),
                   "cuMemHostGetDevicePointer"));
    SHC_TRY(lab_copy(lab, lab->stream, lab_data(lab, lab->rank), address + from, PIECE));
    SHC_TRY(lab_copy(lab, lab->stream, address + back, lab_data(lab, lab->rank), PIECE));
    SHC_TRY(lab_drain(lab, lab->stream));
    *right = true;
    for (size_t i = 0; i < PIECE; i++)
        *right = *right && memory[back + i] == 0x40 + before;
    return lab_meet(lab);
}

static void report(const struct lab *lab, const char *what, int numbers)
{
    const double gib = (double)lab->job->region_bytes / (1 << 30);
    const struct seat *seats = lab->board->seats;
    double first = seats[0].numbers[numbers], worst = 0, sum = 0;
    for (int r = 0; r < lab->world; r++) {
        const double seconds = seats[r].numbers[numbers];
        worst = seconds > worst ? seconds : worst;
        sum += seconds;
    }
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "step", what);
    line_number(&line, "mib", gib * 1024);
    line_number(&line, "first_s_per_gib", first / gib);
    line_number(&line, "mean_s_per_gib", sum / lab->world / gib);
    line_number(&line, "worst_s_per_gib", worst / gib);
    line_end(&line);
}

static void tell_data(const struct lab *lab, int number)
{
    int right = 0;
    for (int r = 0; r < lab->world; r++)
        right += lab->board->seats[r].numbers[number] != 0;
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "outcome", right == lab->world ? "right" : "WRONG DATA");
    line_number(&line, "right_ranks", right);
    line_end(&line);
}

static enum shc_status one_after_another(struct lab *lab, double *numbers)
{
    for (int r = 0; r < lab->world; r++) {
        if (r == lab->rank)
            SHC_TRY(take(lab, &numbers[1]));
        SHC_TRY(lab_meet(lab));
    }
    return SHC_OK;
}

static enum shc_status registers(struct lab *lab)
{
    double *numbers = lab->board->seats[lab->rank].numbers;
    bool right;
    SHC_TRY(lab_slabs(lab, MIB));
    if (lab->rank == 0) {
        const uint64_t begun_ns = shc_clock_ns();
        memset(lab->job->region, 1, lab->job->region_bytes);
        numbers[0] = since_s(begun_ns);
    }
    SHC_TRY(lab_meet(lab));
    SHC_TRY(one_after_another(lab, numbers));
    SHC_TRY(check(lab, &right));
    SHC_TRY(leave(lab, &numbers[2]));
    SHC_TRY(lab_meet(lab));
    SHC_TRY(take(lab, &numbers[3]));
    SHC_TRY(lab_meet(lab));
    SHC_TRY(leave(lab, &numbers[4]));
    numbers[5] = right;
    SHC_TRY(lab_meet(lab));
    if (lab->rank == 0) {
        report(lab, "first touch (rank 0)", 0);
        report(lab, "register, one after another", 1);
        report(lab, "unregister, all at once", 2);
        report(lab, "register, all at once", 3);
        report(lab, "unregister again", 4);
        tell_data(lab, 5);
    }
    SHC_TRY(lab_meet(lab));
    return lab_slabs_undo(lab);
}

int experiment_register(const struct options *options)
{
    const size_t bytes = options->small ? 4 * MIB : 1024 * MIB;
    struct job job = {.experiment = "register", .body = registers, .region_bytes = bytes};
    return job_run_worlds(options, &job);
}
