/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Steps of a look, all ranks together: write, tell; read by copies and by a kernel, tell. Two looks.
 * The messages are also the barrier: no rank reads before all have written, nor writes the second
 * pattern before all have read the first.
 */
#include "cuda_ipc/probe.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/clock.h"
#include "shm/base/num.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOKS         2
#define PLACES        3
#define PLACE_MOST    ((size_t)SHC_PAGE_BYTES)
#define LOOK_NS       (5 * SHC_NS_PER_S)
#define LOOK_LEAST_NS (200 * SHC_NS_PER_MS)

/* The message of a rank after a step. */
struct word {
    uint64_t key; /* of its pattern: nobody can know it before */
    uint32_t outcome;
    char reason[SHC_PROBE_REASON_BYTES];
};

_Static_assert(sizeof(struct word) <= SHC_CONTROL_BYTES, "it fits a message");

/* This rank's part of a probe. */
struct probe {
    struct shc_prober *prober;
    const struct shc_probe_area *area;
    const struct shc_gpu *gpu;
    int rank, world;
    size_t place_bytes, places[PLACES]; /* offsets into the area */
    size_t span_bytes;                  /* of all places of one rank */
    struct shc_cu_stream *stream;
    struct shc_cu_event **passed; /* by rank: its bytes have been read */
    char *host;                   /* registered: a span of each rank */
    shc_cu_address host_device;   /* the same as the GPU sees it */
    shc_cu_address own;           /* this rank's memory on its GPU: the same */
    struct word mine;
    struct shc_control_message message, theirs[SHC_MAX_WORLD];
};

static const char *const way_names[] = {"the copy engine", "a kernel"};

/* ---- what a rank has found ---- */

/* The first reason stands; that something does not end counts most. */
static void SHC_PRINTF(3, 4)
    note(struct probe *probe, enum shc_probe_outcome outcome, const char *format, ...)
{
    va_list args;
    const bool first = probe->mine.outcome == SHC_PROBE_GOOD;
    if (outcome == SHC_PROBE_LATE)
        probe->prober->hung = true;
    if (first || outcome == SHC_PROBE_LATE)
        probe->mine.outcome = outcome;
    if (!first)
        return;
    va_start(args, format);
    vsnprintf(probe->mine.reason, sizeof probe->mine.reason, format, args);
    va_end(args);
}

static struct shc_rank_name name_of(const struct probe *probe, int rank)
{
    return shc_control_rank_name(probe->prober->control, rank);
}

/* peer -1: of some rank's. */
static void note_result(struct probe *probe, int result, const char *doing, int peer)
{
    const char *name = NULL;
    struct shc_rank_name whose = {"a rank"};
    if (peer >= 0)
        whose = name_of(probe, peer);
    if (probe->gpu->driver->cuGetErrorName(result, &name) != SHC_CU_SUCCESS || name == NULL)
        name = "an unknown result";
    note(probe, SHC_PROBE_REFUSED, "%s cannot %s %s's memory: %s (%d)",
         name_of(probe, probe->rank).text, doing, whose.text, name, result);
}

static bool fine(const struct probe *probe)
{
    return probe->mine.outcome == SHC_PROBE_GOOD;
}

/* ---- the pattern ---- */

static uint64_t pattern_at(uint64_t key, int rank, size_t offset)
{
    uint64_t x = key ^ ((uint64_t)rank << 56) ^ offset;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void write_pattern(const struct probe *probe, uint64_t key, char *to)
{
    for (size_t p = 0; p < PLACES; p++)
        for (size_t at = 0; at < probe->place_bytes; at += sizeof(uint64_t)) {
            const uint64_t x = pattern_at(key, probe->rank, probe->places[p] + at);
            memcpy(to + p * probe->place_bytes + at, &x, sizeof x);
        }
}

/* The offset of the first word that is another; false: there is none. */
static bool find_wrong(const struct probe *probe, uint64_t key, int rank, size_t *offset)
{
    const char *seen = probe->host + (size_t)rank * probe->span_bytes;
    for (size_t p = 0; p < PLACES; p++)
        for (size_t at = 0; at < probe->place_bytes; at += sizeof(uint64_t)) {
            const uint64_t x = pattern_at(key, rank, probe->places[p] + at);
            if (memcmp(seen + p * probe->place_bytes + at, &x, sizeof x) != 0) {
                *offset = probe->places[p] + at;
                return true;
            }
        }
    return false;
}

/* ---- the GPU ---- */

/* Looks until the stream is done. NOT_READY: it is not, and is no longer waited for. It has
 * LOOK_LEAST_NS however little time is left: too short a wait would find every GPU late. */
static int await(const struct probe *probe)
{
    const uint64_t begun_ns = shc_clock_ns(), deadline_ns = probe->prober->deadline_ns;
    const uint64_t left_ns = deadline_ns > begun_ns ? deadline_ns - begun_ns : 0;
    const uint64_t most_ns = shc_min_size(LOOK_NS, left_ns / 4);
    const uint64_t until_ns = begun_ns + (most_ns > LOOK_LEAST_NS ? most_ns : LOOK_LEAST_NS);
    uint64_t pause_ns = 0;
    for (;;) {
        const uint64_t now_ns = shc_clock_ns(); /* before the question: a process may be stopped */
        const int result = probe->gpu->driver->cuStreamQuery(probe->stream);
        if (result != SHC_CU_NOT_READY || now_ns >= until_ns)
            return result;
        shc_sys_nap(&pause_ns);
    }
}

/* Copies by a kernel between a row of places and a span. */
static enum shc_status launch(const struct probe *probe, shc_cu_address places, shc_cu_address span,
                              bool into_places)
{
    struct shc_copy_args args;
    memset(&args, 0, sizeof args);
    args.gate = shc_cu_pointer(probe->prober->gate);
    args.count = PLACES;
    for (size_t p = 0; p < PLACES; p++) {
        void *there = shc_cu_pointer(places + probe->places[p]);
        void *here = shc_cu_pointer(span + p * probe->place_bytes);
        args.piece[p].to = into_places ? there : here;
        args.piece[p].from = into_places ? here : there;
        args.piece[p].bytes = probe->place_bytes;
    }
    return shc_kernels_copy(probe->prober->kernels, probe->stream, &args);
}

/* This rank's pattern, by a kernel: as collectives stage. */
static void write_own(struct probe *probe)
{
    const size_t own = (size_t)probe->rank * probe->span_bytes;
    write_pattern(probe, probe->mine.key, probe->host + own);
    if (launch(probe, probe->area->at[probe->rank], probe->host_device + own, true) != SHC_OK) {
        note(probe, SHC_PROBE_REFUSED, "%s: %s", name_of(probe, probe->rank).text,
             shc_cuda_failure());
        return;
    }
    const int result = await(probe);
    if (result == SHC_CU_NOT_READY)
        note(probe, SHC_PROBE_LATE, "%s: writing its own memory does not end",
             name_of(probe, probe->rank).text);
    else if (result != SHC_CU_SUCCESS)
        note_result(probe, result, "write", probe->rank);
}

static int enqueue_read(struct probe *probe, int peer, int way)
{
    const struct shc_driver *driver = probe->gpu->driver;
    const size_t offset = (size_t)peer * probe->span_bytes;
    const shc_cu_address from = probe->area->at[peer], to = probe->own + offset;
    int result = driver->cuMemsetD8Async(to, 0, probe->span_bytes, probe->stream);
    for (size_t p = 0; way == 0 && p < PLACES && result == SHC_CU_SUCCESS; p++)
        result = driver->cuMemcpyAsync(to + p * probe->place_bytes, from + probe->places[p],
                                       probe->place_bytes, probe->stream);
    if (way == 1 && result == SHC_CU_SUCCESS && launch(probe, from, to, false) != SHC_OK) {
        note(probe, SHC_PROBE_REFUSED, "%s: %s", name_of(probe, probe->rank).text,
             shc_cuda_failure());
        return SHC_CU_SUCCESS;
    }
    if (result == SHC_CU_SUCCESS)
        result = driver->cuMemcpyAsync(probe->host_device + offset, to, probe->span_bytes,
                                       probe->stream);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuEventRecord(probe->passed[peer], probe->stream);
    return result;
}

/* The stream is late: the first rank that it has not got past. */
static int stands_at(const struct probe *probe)
{
    int peer = 0;
    while (peer + 1 < probe->world &&
           probe->gpu->driver->cuEventQuery(probe->passed[peer]) == SHC_CU_SUCCESS)
        peer++;
    return peer;
}

/* All ranks' patterns, by copies or by a kernel. */
static void read_all(struct probe *probe, int way, int look)
{
    const char *name = way_names[way];
    char doing[32];
    snprintf(doing, sizeof doing, "read, by %s,", name);
    memset(probe->host, 0, (size_t)probe->world * probe->span_bytes);
    for (int r = 0; r < probe->world; r++) {
        const int result = enqueue_read(probe, r, way);
        if (result != SHC_CU_SUCCESS) {
            note_result(probe, result, doing, r);
            break; /* what was enqueued before is still awaited */
        }
    }
    const int result = await(probe);
    if (result == SHC_CU_NOT_READY)
        note(probe, SHC_PROBE_LATE, "%s: reading %s's memory by %s does not end",
             name_of(probe, probe->rank).text, name_of(probe, stands_at(probe)).text, name);
    else if (result != SHC_CU_SUCCESS)
        note_result(probe, result, doing, -1); /* a broken context no longer says where it stood */
    for (int r = 0; r < probe->world && fine(probe); r++) {
        size_t offset;
        uint64_t key;
        memcpy(&key, probe->theirs[r].bytes + offsetof(struct word, key), sizeof key);
        if (find_wrong(probe, key, r, &offset))
            note(probe, SHC_PROBE_WRONG,
                 "%s reads, by %s, other bytes than %s has written (at byte %zu of %zu, look %d)",
                 name_of(probe, probe->rank).text, name, name_of(probe, r).text, offset,
                 probe->area->bytes, look);
    }
}

/* ---- together ---- */

/* Every rank's word, and what follows from them all. */
static enum shc_status tell(struct probe *probe, struct shc_probe_answer *answer)
{
    memcpy(probe->message.bytes, &probe->mine, sizeof probe->mine);
    probe->message.count = sizeof probe->mine;
    probe->message.fd = -1;
    SHC_TRY(shc_control_swap(probe->prober->control, &probe->message, probe->prober->deadline_ns,
                             probe->theirs));
    shc_control_close_received(probe->theirs, probe->world);
    memset(answer, 0, sizeof *answer);
    for (int r = probe->world - 1; r >= 0; r--) {
        struct word word;
        memcpy(&word, probe->theirs[r].bytes, sizeof word);
        if (probe->theirs[r].count != sizeof word || word.outcome >= SHC_PROBE_OUTCOMES)
            return shc_cuda_fail(SHC_ERR_VERSION, "%s sent a message of another form",
                                 name_of(probe, r).text);
        if (word.outcome == SHC_PROBE_GOOD)
            continue;
        if (answer->outcome != SHC_PROBE_LATE)
            answer->outcome = (enum shc_probe_outcome)word.outcome;
        word.reason[sizeof word.reason - 1] = '\0';
        memcpy(answer->reason, word.reason, sizeof answer->reason);
    }
    return SHC_OK;
}

static enum shc_status look_once(struct probe *probe, int look, struct shc_probe_answer *answer)
{
    if (fine(probe) && shc_sys_random(&probe->mine.key, sizeof probe->mine.key) != 0)
        note(probe, SHC_PROBE_REFUSED, "%s: no random numbers", name_of(probe, probe->rank).text);
    if (fine(probe))
        write_own(probe);
    SHC_TRY(tell(probe, answer));
    if (answer->outcome != SHC_PROBE_GOOD)
        return SHC_OK;
    for (int way = 0; way < 2 && fine(probe); way++)
        read_all(probe, way, look);
    return tell(probe, answer);
}

/* ---- beginning and end ---- */

static void place(struct probe *probe)
{
    const size_t bytes = probe->area->bytes, unit = 64;
    const size_t third = bytes / PLACES / unit * unit;
    probe->place_bytes = shc_min_size(PLACE_MOST, third);
    probe->places[0] = 0;
    probe->places[1] = (bytes - probe->place_bytes) / 2 / unit * unit;
    probe->places[2] = bytes - probe->place_bytes;
    probe->span_bytes = PLACES * probe->place_bytes;
}

static int make_events(struct probe *probe)
{
    int result = SHC_CU_SUCCESS;
    for (int r = 0; r < probe->world && result == SHC_CU_SUCCESS; r++)
        result = probe->gpu->driver->cuEventCreate(&probe->passed[r], SHC_CU_EVENT_DISABLE_TIMING);
    return result;
}

static size_t host_bytes(const struct probe *probe)
{
    return shc_align_up((size_t)probe->world * probe->span_bytes, SHC_PAGE_BYTES);
}

/* Pages of their own: none may be registered twice. */
static bool map_host(size_t bytes, void **host)
{
    int fd, error = shc_sys_memory_make(bytes, &fd);
    if (error)
        return false;
    error = shc_sys_memory_map(fd, bytes, host);
    shc_sys_close(fd);
    return error == 0;
}

/* pre: the GPU has been entered. Missing memory is a finding of this rank's, and told to all. */
static void begin(struct probe *probe)
{
    const struct shc_driver *driver = probe->gpu->driver;
    const size_t bytes = host_bytes(probe);
    void *host = NULL;
    probe->passed = calloc((size_t)probe->world, sizeof(struct shc_cu_event *));
    if (probe->passed == NULL || !map_host(bytes, &host)) {
        note(probe, SHC_PROBE_REFUSED, "%s: out of memory", name_of(probe, probe->rank).text);
        return;
    }
    int result =
        driver->cuMemHostRegister(host, bytes, SHC_CU_HOST_PORTABLE | SHC_CU_HOST_DEVICEMAP);
    if (result != SHC_CU_SUCCESS)
        shc_sys_memory_unmap(host, bytes);
    else
        probe->host = host;
    if (result == SHC_CU_SUCCESS)
        result = driver->cuMemHostGetDevicePointer(&probe->host_device, host, 0);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuMemAlloc(&probe->own, bytes);
    if (result == SHC_CU_SUCCESS)
        result = driver->cuStreamCreateWithPriority(&probe->stream, SHC_CU_STREAM_NON_BLOCKING, 0);
    if (result == SHC_CU_SUCCESS)
        result = make_events(probe);
    if (result != SHC_CU_SUCCESS)
        note_result(probe, result, "make room to read", probe->rank);
}

/* A stream that has not come to its end will still write what is here, or wait for ever to do so:
 * then all of it stays, and so does the memory of others that it reads (shc_prober, `hung`). */
static void end(struct probe *probe)
{
    const struct shc_driver *driver = probe->gpu->driver;
    if (probe->prober->hung)
        return;
    for (int r = 0; probe->passed != NULL && r < probe->world; r++)
        if (probe->passed[r] != NULL)
            (void)driver->cuEventDestroy(probe->passed[r]);
    free(probe->passed);
    if (probe->stream != NULL)
        (void)driver->cuStreamDestroy(probe->stream);
    probe->prober->rests[probe->prober->rest_count++] =
        (struct shc_probe_rest){.own = probe->own, .host = probe->host, .bytes = host_bytes(probe)};
}

void shc_probe_undo(struct shc_prober *prober, const struct shc_driver *driver)
{
    for (int i = 0; i < prober->rest_count; i++) {
        const struct shc_probe_rest *rest = &prober->rests[i];
        if (rest->own != 0)
            (void)driver->cuMemFree(rest->own);
        if (rest->host != NULL) {
            (void)driver->cuMemHostUnregister(rest->host);
            shc_sys_memory_unmap(rest->host, rest->bytes);
        }
    }
    prober->rest_count = 0;
}

enum shc_status shc_probe(struct shc_prober *prober, const struct shc_probe_area *area,
                          struct shc_probe_answer *answer)
{
    struct probe *probe = calloc(1, sizeof *probe);
    if (probe == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    probe->prober = prober;
    probe->area = area;
    probe->gpu = prober->kernels->gpu;
    probe->rank = prober->control->rank;
    probe->world = prober->control->world;
    memset(answer, 0, sizeof *answer);
    place(probe);
    enum shc_status st = shc_gpu_enter(probe->gpu);
    if (st == SHC_OK) {
        begin(probe);
        for (int look = 1; look <= LOOKS && st == SHC_OK && answer->outcome == SHC_PROBE_GOOD;
             look++)
            st = look_once(probe, look, answer);
        end(probe);
        shc_gpu_leave(probe->gpu);
    }
    free(probe);
    return st;
}
