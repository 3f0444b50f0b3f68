/* SPDX-License-Identifier: BSD-3-Clause */
#include "lab.h"
#include "cuda_ipc/cuda_error.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_LOOKS_NS (2 * SHC_NS_PER_MS)
#define END_WAIT_NS    (5 * SHC_NS_PER_S)

enum shc_status lab_cu(const struct lab *lab, int result, const char *call)
{
    return result == SHC_CU_SUCCESS ? SHC_OK : shc_driver_fail(&lab->driver, result, "%s", call);
}

bool lab_stopped(const struct lab *lab)
{
    /* acquire experiments/stop <- release in on_signal(): nothing but the order to end. */
    return shc_a32_load_acquire(&lab->board->stop) != 0;
}

enum shc_status lab_meet(struct lab *lab)
{
    const uint32_t all = ++lab->meetings * (uint32_t)lab->world;
    /* acq_rel experiments/meeting: what each wrote before, all see after it. */
    (void)shc_a32_add_acq_rel(&lab->board->arrived, 1);
    /* acquire experiments/meeting <- acq_rel above. */
    while ((int32_t)(shc_a32_load_acquire(&lab->board->arrived) - all) < 0) {
        if (lab_stopped(lab))
            return shc_cuda_fail(SHC_ERR_ABORTED, "another rank failed");
        shc_sys_sleep_ns(20 * SHC_NS_PER_US);
    }
    return SHC_OK;
}

/* ---- the guard ---- */

static void poison_host_words(const struct lab *lab)
{
    for (int r = 0; r < RANKS_MAX; r++)
        for (int w = 0; w < WORDS; w++)
            /* release timeline/word -> acquire in the device: nothing; it ends waits. */
            shc_a64_store_release(&lab->board->words[r][w].value, POISON);
}

static void poison_device_words(struct lab *lab)
{
    struct guard *guard = &lab->guard;
    const struct shc_driver *driver = &lab->driver;
    if (guard->stream == NULL || driver->cuStreamQuery(guard->stream) != SHC_CU_SUCCESS)
        return; /* what was written last is on its way */
    pthread_mutex_lock(&guard->lock);
    for (int i = 0; i < guard->count; i++)
        for (int w = 0; w < WORDS; w++)
            (void)driver->cuStreamWriteValue64(guard->stream,
                                               guard->words[i] + (size_t)w * SHC_LINE_BYTES, POISON,
                                               SHC_CU_WRITE_DEFAULT);
    pthread_mutex_unlock(&guard->lock);
}

/* Until the rank has ended, or for the time that is given it; then it ends here. */
static void poison_on(struct lab *lab)
{
    const uint64_t end_ns = shc_clock_ns() + GRACE_NS;
    /* acquire experiments/over <- release in close_guard(). */
    while (shc_a32_load_acquire(&lab->guard.over) == 0) {
        poison_host_words(lab);
        poison_device_words(lab);
        if (shc_clock_ns() > end_ns) {
            snprintf(lab->board->seats[lab->rank].failure, SEAT_BYTES,
                     "did not end, poisoned as everything was: left by _exit");
            _exit(RANK_LEFT);
        }
        shc_sys_sleep_ns(GUARD_LOOKS_NS);
    }
}

static void *watch_over(void *argument)
{
    struct lab *lab = argument;
    if (shc_gpu_enter(&lab->gpu) != SHC_OK)
        return NULL;
    /* acquire experiments/over <- release in close_guard(). */
    while (shc_a32_load_acquire(&lab->guard.over) == 0) {
        const bool late = shc_clock_ns() > lab->deadline_ns;
        if (late && !lab_stopped(lab))
            snprintf(lab->board->seats[lab->rank].failure, SEAT_BYTES,
                     "the time of the experiment is over");
        if (late || lab_stopped(lab) || getppid() != lab->coordinator) {
            /* release experiments/stop -> acquire in lab_stopped(): the order to end. */
            shc_a32_store_release(&lab->board->stop, 1);
            poison_on(lab);
        }
        shc_sys_sleep_ns(GUARD_LOOKS_NS);
    }
    shc_gpu_leave(&lab->gpu);
    return NULL;
}

static enum shc_status open_guard(struct lab *lab)
{
    pthread_mutex_init(&lab->guard.lock, NULL);
    SHC_TRY(lab_cu(
        lab,
        lab->driver.cuStreamCreateWithPriority(&lab->guard.stream, SHC_CU_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority"));
    if (pthread_create(&lab->guard.thread, NULL, watch_over, lab) != 0)
        return shc_cuda_fail(SHC_ERR_SYSTEM, "no thread for the guard");
    return SHC_OK;
}

static void close_guard(struct lab *lab)
{
    if (lab->guard.thread == 0)
        return;
    /* release experiments/over -> acquire in watch_over(): nothing but the word. */
    shc_a32_store_release(&lab->guard.over, 1);
    pthread_join(lab->guard.thread, NULL);
    (void)lab->driver.cuStreamDestroy(lab->guard.stream);
}

/* ---- memory ---- */

static void guard_slabs(struct lab *lab, bool on)
{
    pthread_mutex_lock(&lab->guard.lock);
    lab->guard.count = 0;
    for (int r = 0; on && r < lab->world; r++)
        lab->guard.words[lab->guard.count++] = lab->slabs[r].address;
    pthread_mutex_unlock(&lab->guard.lock);
}

static void destroy_slabs(struct lab *lab)
{
    for (int r = 0; r < lab->world; r++)
        if (r != lab->rank)
            shc_slab_destroy(&lab->slabs[r]);
    if (!lab->job->first_one_dies)
        (void)!lab_meet(lab); /* nobody looks at one's own any more */
    shc_slab_destroy(&lab->slabs[lab->rank]);
}

/* What is on its way must arrive before the memory goes: copies, writes, poison. While a stream may
 * still wait for a word here, the guard keeps the words. */
enum shc_status lab_slabs_undo(struct lab *lab)
{
    SHC_TRY(lab_drain(lab, lab->stream));
    SHC_TRY(lab_drain(lab, lab->second));
    guard_slabs(lab, false);
    SHC_TRY(lab_drain(lab, lab->guard.stream));
    destroy_slabs(lab);
    return SHC_OK;
}

/* Makes, shows and imports. */
static enum shc_status exchange(struct lab *lab, enum shc_slab_kind kind, size_t bytes)
{
    struct shc_control_message mine = {.count = 1, .fd = -1};
    struct shc_control_message *theirs = calloc(SHC_MAX_WORLD, sizeof *theirs);
    char *why = lab->board->seats[lab->rank].text;
    enum shc_status st = SHC_ERR_NOMEM;
    why[0] = '\0';
    if (theirs == NULL)
        return shc_cuda_fail(st, "no memory");
    st = shc_slab_create(&lab->gpu, kind, bytes, &lab->slabs[lab->rank]);
    if (st == SHC_OK)
        st = shc_slab_show(&lab->slabs[lab->rank], &mine);
    if (st != SHC_OK)
        snprintf(why, SEAT_BYTES, "rank %d: %.500s", lab->rank, shc_cuda_failure());
    st = shc_control_swap(&lab->control, &mine, lab->deadline_ns, theirs);
    for (int r = 0; st == SHC_OK && r < lab->world; r++)
        if (r != lab->rank && why[0] == '\0' && theirs[r].count > 1 &&
            shc_slab_import(&lab->gpu, &theirs[r], &lab->slabs[r]) != SHC_OK)
            snprintf(why, SEAT_BYTES, "rank %d: %.500s", lab->rank, shc_cuda_failure());
    if (st == SHC_OK)
        shc_control_close_received(theirs, lab->world);
    free(theirs);
    return st;
}

static enum shc_status clear_words(const struct lab *lab)
{
    SHC_TRY(lab_cu(
        lab, lab->driver.cuMemsetD8Async(lab_word(lab, lab->rank, 0), 0, DATA_AFTER, lab->second),
        "cuMemsetD8Async"));
    return lab_drain(lab, lab->second);
}

enum shc_status lab_slabs_try(struct lab *lab, enum shc_slab_kind kind, size_t bytes,
                              char why[SEAT_BYTES])
{
    memset(lab->slabs, 0, sizeof lab->slabs);
    for (int r = 0; r < RANKS_MAX; r++)
        lab->slabs[r].fd = -1;
    why[0] = '\0';
    SHC_TRY(exchange(lab, kind, bytes + DATA_AFTER));
    SHC_TRY(lab_meet(lab));
    for (int r = 0; r < lab->world && why[0] == '\0'; r++)
        snprintf(why, SEAT_BYTES, "%s", lab->board->seats[r].text);
    if (why[0] == '\0') {
        SHC_TRY(clear_words(lab));
        guard_slabs(lab, true);
    }
    SHC_TRY(lab_meet(lab));
    if (why[0] != '\0')
        destroy_slabs(lab);
    return SHC_OK;
}

enum shc_status lab_slabs(struct lab *lab, size_t bytes)
{
    char fd[SEAT_BYTES], legacy[SEAT_BYTES];
    SHC_TRY(lab_slabs_try(lab, SHC_SLAB_FD, bytes, fd));
    if (fd[0] == '\0')
        return SHC_OK;
    SHC_TRY(lab_slabs_try(lab, SHC_SLAB_LEGACY, bytes, legacy));
    if (legacy[0] == '\0')
        return SHC_OK;
    return shc_cuda_fail(SHC_ERR_UNSUPPORTED, "no shared GPU memory: %.250s; %.250s", fd, legacy);
}

shc_cu_address lab_word(const struct lab *lab, int rank, int word)
{
    return lab->slabs[rank].address + (size_t)word * SHC_LINE_BYTES;
}

shc_cu_address lab_data(const struct lab *lab, int rank)
{
    return lab->slabs[rank].address + DATA_AFTER;
}

shc_cu_address lab_host_word(const struct lab *lab, int rank, int word)
{
    return lab->host_words + ((size_t)rank * WORDS + (size_t)word) * SHC_LINE_BYTES;
}

shc_a64 *lab_host(const struct lab *lab, int rank, int word)
{
    return &lab->board->words[rank][word].value;
}

static enum shc_status pin(const struct lab *lab, void *memory, size_t bytes,
                           shc_cu_address *address)
{
    SHC_TRY(lab_cu(
        lab,
        lab->driver.cuMemHostRegister(memory, bytes, SHC_CU_HOST_PORTABLE | SHC_CU_HOST_DEVICEMAP),
        "cuMemHostRegister"));
    return lab_cu(lab, lab->driver.cuMemHostGetDevicePointer(address, memory, 0),
                  "cuMemHostGetDevicePointer");
}

enum shc_status lab_pinned_make(const struct lab *lab, size_t bytes, struct lab_pinned *pinned)
{
    pinned->bytes = bytes;
    pinned->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pinned->memory == MAP_FAILED)
        return shc_cuda_fail(SHC_ERR_NOMEM, "no shared memory of %zu bytes", bytes);
    memset(pinned->memory, 1 + lab->rank, bytes);
    return pin(lab, pinned->memory, bytes, &pinned->address);
}

void lab_pinned_free(const struct lab *lab, struct lab_pinned *pinned)
{
    (void)lab->driver.cuMemHostUnregister(pinned->memory);
    munmap(pinned->memory, pinned->bytes);
}

/* ---- streams ---- */

enum shc_status lab_idle(const struct lab *lab, struct shc_cu_stream *stream, uint64_t within_ns,
                         bool *idle)
{
    const uint64_t end_ns = shc_clock_ns() + within_ns;
    for (;;) {
        const int result = lab->driver.cuStreamQuery(stream);
        *idle = result == SHC_CU_SUCCESS;
        if (result != SHC_CU_SUCCESS && result != SHC_CU_NOT_READY)
            return lab_cu(lab, result, "cuStreamQuery");
        if (*idle || shc_clock_ns() > end_ns)
            return SHC_OK;
        if (within_ns > 100 * SHC_NS_PER_MS && lab->options->small)
            shc_sys_sleep_ns(50 *
                             SHC_NS_PER_US); /* few CPUs, and the GPU is one of their threads */
        else
            shc_cpu_relax();
    }
}

enum shc_status lab_drain(const struct lab *lab, struct shc_cu_stream *stream)
{
    bool idle;
    const uint64_t now_ns = shc_clock_ns();
    const uint64_t left_ns = lab->deadline_ns > now_ns ? lab->deadline_ns - now_ns : 0;
    /* After the deadline the guard poisons, and that takes a moment. */
    SHC_TRY(lab_idle(lab, stream, left_ns + GRACE_NS / 2, &idle));
    if (!idle)
        return shc_cuda_fail(SHC_ERR_TIMEOUT, "a stream still works, poisoned as it is");
    if (lab_stopped(lab))
        return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
    return SHC_OK;
}

enum shc_status lab_write(const struct lab *lab, struct shc_cu_stream *stream, shc_cu_address word,
                          uint64_t value)
{
    return lab_cu(lab, lab->driver.cuStreamWriteValue64(stream, word, value, SHC_CU_WRITE_DEFAULT),
                  "cuStreamWriteValue64");
}

enum shc_status lab_wait(const struct lab *lab, struct shc_cu_stream *stream, shc_cu_address word,
                         uint64_t value)
{
    if (lab_stopped(lab))
        return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
    return lab_cu(lab, lab->driver.cuStreamWaitValue64(stream, word, value, SHC_CU_WAIT_GEQ),
                  "cuStreamWaitValue64");
}

enum shc_status lab_copy(const struct lab *lab, struct shc_cu_stream *stream, shc_cu_address to,
                         shc_cu_address from, size_t bytes)
{
    return lab_cu(lab, lab->driver.cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync");
}

enum shc_status lab_end_wait(const struct lab *lab, struct shc_cu_stream *stream,
                             shc_cu_address word, shc_a64 *host, bool *ended)
{
    const uint64_t end_ns = shc_clock_ns() + END_WAIT_NS;
    do {
        if (host != NULL)
            /* release timeline/word -> acquire in the device: nothing; it ends waits. */
            shc_a64_store_release(host, POISON);
        SHC_TRY(lab_write(lab, lab->second, word, POISON));
        SHC_TRY(lab_idle(lab, stream, 5 * SHC_NS_PER_MS, ended));
    } while (!*ended && shc_clock_ns() < end_ns);
    return SHC_OK;
}

/* ---- results ---- */

void lab_line(const struct lab *lab, struct line *line)
{
    line_begin(line, lab->options->json, lab->job->experiment);
    line_number(line, "ranks", lab->world);
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void lab_sort(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
}

double lab_quantile(const double *sorted, int count, double part)
{
    return count > 0 ? sorted[(int)(part * (count - 1) + 0.5)] : NAN;
}

/* ---- the process ---- */

static enum shc_status open_gpu(struct lab *lab)
{
    SHC_TRY(shc_driver_open(lab->options->driver, &lab->driver));
    SHC_TRY(shc_gpu_open(&lab->driver, lab->options->ordinal, &lab->gpu));
    SHC_TRY(shc_gpu_enter(&lab->gpu));
    extras_find(lab->options->driver, &lab->extras);
    kernels_load(&lab->gpu, lab->options->image, &lab->kernels);
    const struct shc_driver *driver = &lab->driver;
    struct shc_cu_stream **const streams[] = {&lab->stream, &lab->second};
    for (int i = 0; i < 2; i++)
        SHC_TRY(lab_cu(
            lab, driver->cuStreamCreateWithPriority(streams[i], SHC_CU_STREAM_NON_BLOCKING, 0),
            "cuStreamCreateWithPriority"));
    SHC_TRY(pin(lab, lab->board->words, sizeof lab->board->words, &lab->host_words));
    return open_guard(lab);
}

/* Finds the other ranks, by the addresses on the board. */
static enum shc_status find_others(struct lab *lab)
{
    struct shc_control_address all[RANKS_MAX];
    struct seat *own = &lab->board->seats[lab->rank];
    SHC_TRY(shc_control_open(lab->rank, lab->world, &lab->control));
    own->address = lab->control.self;
    /* release experiments/address -> acquire below: the address. */
    shc_a32_store_release(&own->published, 1);
    for (int r = 0; r < lab->world; r++) {
        /* acquire experiments/address <- release above. */
        while (shc_a32_load_acquire(&lab->board->seats[r].published) == 0) {
            if (lab_stopped(lab))
                return shc_cuda_fail(SHC_ERR_ABORTED, "another rank failed");
            shc_sys_sleep_ns(SHC_NS_PER_MS);
        }
        all[r] = lab->board->seats[r].address;
    }
    return shc_control_meet(&lab->control, all, lab->deadline_ns);
}

/* One piece of the work that keeps the GPU from the ranks: a kernel of a millisecond on all of it,
 * or where there are no kernels a fill. */
static enum shc_status keep_busy(struct lab *lab, shc_cu_address memory, size_t bytes)
{
    if (lab->kernels.why_not[0] == '\0')
        SHC_TRY(lab_cu(lab, kernels_busy(&lab->gpu, &lab->kernels, lab->stream, SHC_NS_PER_MS),
                       "cuLaunchKernel"));
    else
        SHC_TRY(lab_cu(lab, lab->driver.cuMemsetD8Async(memory, 7, bytes, lab->stream),
                       "cuMemsetD8Async"));
    return SHC_OK;
}

static enum shc_status be_busy(struct lab *lab)
{
    const size_t bytes = lab->options->small ? MIB : 256 * MIB;
    shc_cu_address memory;
    SHC_TRY(lab_cu(lab, lab->driver.cuMemAlloc(&memory, bytes), "cuMemAlloc"));
    /* acq_rel experiments/busy: nothing but the count. */
    (void)shc_a32_add_acq_rel(&lab->board->busy_ready, 1);
    /* acquire experiments/unbusy <- release in lab_main(). */
    while (shc_a32_load_acquire(&lab->board->unbusy) == 0 && !lab_stopped(lab)) {
        for (int i = 0; i < 4; i++)
            SHC_TRY(keep_busy(lab, memory, bytes));
        SHC_TRY(lab_drain(lab, lab->stream));
    }
    return SHC_OK;
}

static enum shc_status be_rank(struct lab *lab)
{
    SHC_TRY(open_gpu(lab));
    if (lab->rank >= lab->world)
        return be_busy(lab);
    SHC_TRY(find_others(lab));
    /* acquire experiments/busy <- acq_rel in be_busy(). */
    while (shc_a32_load_acquire(&lab->board->busy_ready) < (uint32_t)lab->job->busy &&
           !lab_stopped(lab))
        shc_sys_sleep_ns(SHC_NS_PER_MS);
    return lab->job->body(lab);
}

/* Says why, has the others end too, and waits while all guards poison. The exit status. */
static int give_up(struct lab *lab, enum shc_status st)
{
    char *said = lab->board->seats[lab->rank].failure;
    bool idle = true;
    if (st != SHC_ERR_ABORTED)
        snprintf(said, SEAT_BYTES, "%s", shc_cuda_failure());
    /* release experiments/stop -> acquire in lab_stopped(): the order to end. */
    shc_a32_store_release(&lab->board->stop, 1);
    if (lab->stream != NULL && lab_idle(lab, lab->stream, GRACE_NS / 2, &idle) == SHC_OK && !idle) {
        snprintf(said, SEAT_BYTES, "ends with a stream that waits, poisoned as everything was");
        return RANK_LEFT;
    }
    return st == SHC_ERR_ABORTED ? RANK_STOPPED : 1;
}

int lab_main(const struct options *options, const struct job *job, struct board *board, int rank)
{
    static struct lab lab;
    signal(SIGTERM, SIG_IGN); /* the coordinator hears it, and ends all in order */
    signal(SIGINT, SIG_IGN);
    lab = (struct lab){.options = options,
                       .job = job,
                       .board = board,
                       .rank = rank,
                       .world = job->world,
                       .coordinator = getppid(),
                       .deadline_ns = shc_clock_ns() + options->limit_ns};
    int status = 0;
    const enum shc_status st = be_rank(&lab);
    if (st != SHC_OK)
        status = give_up(&lab, st);
    /* release experiments/unbusy -> acquire in be_busy(): nothing but the word. */
    if (rank == 0)
        shc_a32_store_release(&board->unbusy, 1);
    close_guard(&lab);
    fflush(stdout);
    return status;
}
