/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What one operation through host memory costs, where ranks share a GPU: in each rank's stream a copy
 * from the GPU to registered memory, a write of a word after it, a wait for a word that the CPU
 * stores when all ranks' words are there, a copy back, and one more write, which stops the clock.
 * No kernel runs, so no context should need a turn. Which call copies back is varied: a driver may
 * use a copy engine for one call, and the units that contexts take turns at for another.
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <stdio.h>

#define OUT_WORD    3 /* the stream: it has copied to the host */
#define GO_WORD     4 /* the CPU: it may copy back */
#define BACK_WORD   5 /* the stream: it has copied back */
#define MOST_ROUNDS 60
#define WARM_ROUNDS 8
#define ROW_BYTES   4
#define ROWS_MOST   65536 /* bytes that are copied by rows */

enum back { COPY, ROWS, PEER, OTHER_STREAM, NOTHING, BACKS };
static const char *const back_names[BACKS] = {
    "cuMemcpyAsync", "cuMemcpy2DAsync", "cuMemcpyPeerAsync",
    "cuMemcpyAsync in another stream, after the meeting", "nothing"};

struct ends {
    shc_cu_address gpu;
    const struct lab_pinned *host;
};

/* Microseconds: of the calls, to the word after the copy out, of the meeting, from the CPU's store
 * to the last word, and of all. */
enum part { CALLS, OUT, MEETING, BACK, ALL, PARTS };
static const char *const part_names[PARTS] = {"calls_us", "out_us", "meeting_us", "back_us", "us"};

struct run {
    enum back back;
    size_t bytes;
    uint64_t value; /* of all three words */
    double us[PARTS][MOST_ROUNDS];
};

static enum shc_status copy_rows(const struct lab *lab, const struct ends *ends, size_t rows)
{
    const struct shc_cu_copy_rows copy = {
        .from = {.type = SHC_CU_MEMORY_UNIFIED, .device = ends->host->address, .pitch = ROW_BYTES},
        .to = {.type = SHC_CU_MEMORY_UNIFIED, .device = ends->gpu, .pitch = ROW_BYTES},
        .width = ROW_BYTES,
        .height = rows,
    };
    return lab_cu(lab, lab->driver.cuMemcpy2DAsync(&copy, lab->stream), back_names[ROWS]);
}

static enum shc_status copy_back(const struct lab *lab, const struct ends *ends,
                                 const struct run *run)
{
    const struct extras *extras = &lab->extras;
    switch (run->back) {
    case COPY:
        return lab_copy(lab, lab->stream, ends->gpu, ends->host->address, run->bytes);
    case ROWS:
        return copy_rows(lab, ends, run->bytes / ROW_BYTES);
    case PEER:
        return lab_cu(lab,
                      extras->copy_peer(ends->gpu, lab->gpu.context, ends->host->address,
                                        lab->gpu.context, run->bytes, lab->stream),
                      back_names[PEER]);
    default:
        return SHC_OK;
    }
}

/* A busy wait, as a thread that serves the group would. */
static enum shc_status await(const struct lab *lab, int rank, int word, uint64_t value)
{
    const uint64_t end_ns = shc_clock_ns() + 10 * lab->options->patience_ns;
    /* acquire timeline/word <- the stream's write, or another CPU's store. */
    while (shc_a64_load_acquire(lab_host(lab, rank, word)) < value) {
        if (lab_stopped(lab))
            return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
        if (shc_clock_ns() > end_ns)
            return shc_cuda_fail(SHC_ERR_TIMEOUT, "word %d of rank %d does not come", word, rank);
        if (lab->options->small)
            shc_sys_sleep_ns(20 * SHC_NS_PER_US);
        shc_cpu_relax();
    }
    return SHC_OK;
}

static enum shc_status enqueue(const struct lab *lab, const struct ends *ends,
                               const struct run *run)
{
    SHC_TRY(lab_copy(lab, lab->stream, ends->host->address, ends->gpu, run->bytes));
    SHC_TRY(lab_write(lab, lab->stream, lab_host_word(lab, lab->rank, OUT_WORD), run->value));
    if (run->back == OTHER_STREAM)
        return SHC_OK;
    SHC_TRY(lab_wait(lab, lab->stream, lab_host_word(lab, lab->rank, GO_WORD), run->value));
    SHC_TRY(copy_back(lab, ends, run));
    return lab_write(lab, lab->stream, lab_host_word(lab, lab->rank, BACK_WORD), run->value);
}

static enum shc_status go(const struct lab *lab, const struct ends *ends, const struct run *run)
{
    if (run->back != OTHER_STREAM) {
        /* release timeline/word -> acquire in the device: the word alone. */
        shc_a64_store_release(lab_host(lab, lab->rank, GO_WORD), run->value);
        return SHC_OK;
    }
    SHC_TRY(lab_copy(lab, lab->second, ends->gpu, ends->host->address, run->bytes));
    return lab_write(lab, lab->second, lab_host_word(lab, lab->rank, BACK_WORD), run->value);
}

static enum shc_status round_trip(const struct lab *lab, const struct ends *ends, struct run *run,
                                  double us[PARTS])
{
    uint64_t at[PARTS];
    run->value++;
    const uint64_t begun_ns = shc_clock_ns();
    SHC_TRY(enqueue(lab, ends, run));
    at[CALLS] = shc_clock_ns();
    SHC_TRY(await(lab, lab->rank, OUT_WORD, run->value));
    at[OUT] = shc_clock_ns();
    for (int r = 0; r < lab->world; r++)
        SHC_TRY(await(lab, r, OUT_WORD, run->value));
    at[MEETING] = shc_clock_ns();
    SHC_TRY(go(lab, ends, run));
    SHC_TRY(await(lab, lab->rank, BACK_WORD, run->value));
    at[BACK] = shc_clock_ns();
    us[CALLS] = NS_TO_US(at[CALLS] - begun_ns);
    us[OUT] = NS_TO_US(at[OUT] - begun_ns);
    us[MEETING] = NS_TO_US(at[MEETING] - at[OUT]);
    us[BACK] = NS_TO_US(at[BACK] - at[MEETING]);
    us[ALL] = NS_TO_US(at[BACK] - begun_ns);
    return SHC_OK;
}

static void report(const struct lab *lab, struct run *run, int rounds)
{
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "back_by", back_names[run->back]);
    line_number(&line, "bytes", (double)run->bytes);
    for (int p = 0; p < PARTS; p++) {
        lab_sort(run->us[p], rounds);
        line_number(&line, part_names[p], lab_quantile(run->us[p], rounds, 0.5));
    }
    line_number(&line, "p90_us", lab_quantile(run->us[ALL], rounds, 0.9));
    line_number(&line, "best_us", lab_quantile(run->us[ALL], rounds, 0));
    line_end(&line);
}

static bool is_there(const struct lab *lab, const struct run *run)
{
    return (run->back != PEER || lab->extras.copy_peer != NULL) &&
           (run->back != ROWS || run->bytes <= ROWS_MOST);
}

static enum shc_status measure(struct lab *lab, const struct ends *ends, struct run *run)
{
    const int rounds = lab->options->small ? 4 : run->bytes > MIB ? 10 : MOST_ROUNDS;
    double us[PARTS];
    if (!is_there(lab, run))
        return SHC_OK;
    SHC_TRY(lab_meet(lab));
    for (int i = 0; i < WARM_ROUNDS; i++)
        SHC_TRY(round_trip(lab, ends, run, us));
    for (int i = 0; i < rounds; i++) {
        SHC_TRY(round_trip(lab, ends, run, us));
        for (int p = 0; p < PARTS; p++)
            run->us[p][i] = us[p];
    }
    SHC_TRY(lab_drain(lab, lab->stream));
    SHC_TRY(lab_drain(lab, lab->second));
    if (lab->rank == 0)
        report(lab, run, rounds);
    return lab_meet(lab);
}

static enum shc_status relay(struct lab *lab)
{
    static struct run run;
    static const size_t sizes[] = {8, 16, 64, 256, 1024, 2048, 4096, 65536, MIB, 16 * MIB};
    const size_t count = lab->options->small ? 2 : sizeof sizes / sizeof sizes[0];
    const size_t most = lab->options->small ? MIB : 16 * MIB;
    struct lab_pinned host;
    SHC_TRY(lab_slabs(lab, 2 * most));
    SHC_TRY(lab_pinned_make(lab, most, &host));
    const struct ends ends = {.gpu = lab_data(lab, lab->rank), .host = &host};
    for (int w = OUT_WORD; w <= BACK_WORD; w++)
        SHC_TRY(lab_write(lab, lab->second, lab_host_word(lab, lab->rank, w), 0));
    SHC_TRY(lab_drain(lab, lab->second));
    SHC_TRY(lab_meet(lab));
    for (size_t i = 0; i < count; i++)
        for (int back = 0; back < BACKS; back++) {
            run.back = (enum back)back;
            run.bytes = sizes[i];
            SHC_TRY(measure(lab, &ends, &run));
        }
    lab_pinned_free(lab, &host);
    return lab_slabs_undo(lab);
}

int experiment_relay(const struct options *options)
{
    struct job job = {.experiment = "relay", .body = relay};
    return job_run_worlds(options, &job);
}
