/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One rank of an experiment: its driver and GPU, two streams, slabs that all ranks have mapped,
 * words that streams wait for, and the guard.
 *
 * A stream's wait cannot be interrupted, and a process that has one pending may not even be
 * killable. So each rank has a guard, a thread that does nothing until `stop` is raised, the time
 * is over or the coordinator is gone; then it writes poison, by CPU stores and by a stream of its
 * own, into every word that this rank can reach, again and again, until the rank has ended. The
 * others' guards write into the same words.
 */

#include "cuda_ipc/slab.h"
#include "cuda_ipc/timeline.h"
#include "extras.h"
#include "kernels.h"
#include "line.h"
#include "processes.h"

#include <pthread.h>

#define POISON     SHC_TIMELINE_POISON
#define DATA_AFTER ((size_t)65536) /* in a slab: words first */

struct guard {
    pthread_t thread;
    pthread_mutex_t lock; /* of the words */
    shc_cu_address words[RANKS_MAX];
    int count;
    struct shc_cu_stream *stream;
    shc_a32 over;
};

struct lab {
    const struct options *options;
    const struct job *job;
    struct board *board;
    int rank, world;
    int coordinator; /* its pid */
    uint64_t deadline_ns;
    uint32_t meetings;
    struct shc_driver driver;
    struct shc_gpu gpu;
    struct extras extras;
    struct kernels kernels;
    struct shc_control control;
    struct shc_cu_stream *stream, *second; /* only the first one waits */
    shc_cu_address host_words;             /* the board's, as the GPU sees them */
    struct shc_slab slabs[RANKS_MAX];      /* by rank */
    struct guard guard;
};

/* What a rank process does; its exit status. */
int lab_main(const struct options *options, const struct job *job, struct board *board, int rank);

/* The failure of a driver's call as a status. */
SHC_NODISCARD enum shc_status lab_cu(const struct lab *lab, int result, const char *call);

/* All ranks are here, and see what the others have written before. SHC_ERR_ABORTED: one failed. */
SHC_NODISCARD enum shc_status lab_meet(struct lab *lab);

bool lab_stopped(const struct lab *lab);

/* ---- memory ---- */

/* Slabs of that kind on all ranks, or on none and `why` says the first reason. */
SHC_NODISCARD enum shc_status lab_slabs_try(struct lab *lab, enum shc_slab_kind kind, size_t bytes,
                                            char why[SEAT_BYTES]);
/* Slabs of the kind that the library chooses; a failure where no kind holds. Words are zero. */
SHC_NODISCARD enum shc_status lab_slabs(struct lab *lab, size_t bytes);
/* Frees the slabs after all work of this rank's streams, views first. Collective if no rank is dead. A
 * failure leaves the memory as it is. */
SHC_NODISCARD enum shc_status lab_slabs_undo(struct lab *lab);

shc_cu_address lab_word(const struct lab *lab, int rank, int word);      /* in a slab */
shc_cu_address lab_data(const struct lab *lab, int rank);                /* after the words */
shc_cu_address lab_host_word(const struct lab *lab, int rank, int word); /* on the board */
shc_a64 *lab_host(const struct lab *lab, int rank, int word);

/* Shared memory that is registered with the GPU. */
struct lab_pinned {
    unsigned char *memory;
    size_t bytes;
    shc_cu_address address;
};
SHC_NODISCARD enum shc_status lab_pinned_make(const struct lab *lab, size_t bytes,
                                              struct lab_pinned *pinned);
void lab_pinned_free(const struct lab *lab, struct lab_pinned *pinned);

/* ---- streams ---- */

/* Whether it was idle within that time. */
SHC_NODISCARD enum shc_status lab_idle(const struct lab *lab, struct shc_cu_stream *stream,
                                       uint64_t within_ns, bool *idle);
/* Fails when it is not idle before the time of the experiment is over. */
SHC_NODISCARD enum shc_status lab_drain(const struct lab *lab, struct shc_cu_stream *stream);
SHC_NODISCARD enum shc_status lab_write(const struct lab *lab, struct shc_cu_stream *stream,
                                        shc_cu_address word, uint64_t value);
SHC_NODISCARD enum shc_status lab_wait(const struct lab *lab, struct shc_cu_stream *stream,
                                       shc_cu_address word, uint64_t value);
SHC_NODISCARD enum shc_status lab_copy(const struct lab *lab, struct shc_cu_stream *stream,
                                       shc_cu_address to, shc_cu_address from, size_t bytes);
/* Poison into the word, by the second stream and with `host` by the CPU too, until the stream is
 * idle. The last poison may still be on its way then. */
SHC_NODISCARD enum shc_status lab_end_wait(const struct lab *lab, struct shc_cu_stream *stream,
                                           shc_cu_address word, shc_a64 *host, bool *ended);

/* ---- results ---- */

void lab_line(const struct lab *lab, struct line *line); /* begins one, with the ranks */
void lab_sort(double *values, int count);
double lab_quantile(const double *sorted, int count, double part);
