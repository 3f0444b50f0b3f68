/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * shmcoll beside an MPI, or beside another build of itself, in one program: the same ranks, the same
 * buffers, turn by turn.
 *
 *   peers.c     options, rounds, the table
 *   calls.c     every operation, through libshmcoll and through MPI, and what it must give
 *   bounds.c    what the machine could do: in-place scaling, lines that change hands, flags
 */
#include <stdbool.h>
#include <stddef.h>

#include <shm/shmcoll.h>

enum side { OURS, THEIRS };

/* A build of libshmcoll, and its group. */
struct build {
    struct shc_comm *comm; /* NULL: none; this side is MPI */
    enum shc_status (*create)(const struct shc_comm_config *config, struct shc_comm **comm);
    enum shc_status (*run)(struct shc_comm *comm, const struct shc_op *op);
    void (*free)(struct shc_comm *comm);
    const char *(*error)(void);
};

/* One rank's view of the run. */
struct world {
    int rank, size;
    struct build builds[2]; /* of both sides */
    float *given, *got;     /* room for the largest size each, page-aligned */
};

/* One operation of one size, ready to run. */
struct call;

/* What `bytes` means for an operation: as in nccl-tests, what one rank gives or ends with, whichever
 * is more. Returns NULL where the size is too small for the number of ranks. */
struct call *call_make(const struct world *world, const char *op, size_t bytes);
void call_free(struct call *call);

/* The i-th time; roots take turns. Ends the program when it fails. */
void call_run(struct call *call, enum side side, int i);

/* Runs it once with numbers that tell ranks and places apart. False: the result is wrong. */
bool call_right(struct call *call, enum side side, int i);

/* The k-th operation's name; NULL behind the last. */
const char *call_name(size_t k);

/* Of up to MEDIAN_ROOM values. */
double median(const double *values, int count);
#define MEDIAN_ROOM 200

/* ---- bounds: seconds, the slowest rank's median ---- */

/* All ranks at once: x *= c over `bytes` of floats, in place. */
double bound_scale(const struct world *world, size_t bytes);

/* Rank 0 and rank 1 at once read what the other has just stored: bytes per second, one way. */
double bound_exchange(const struct world *world);

/* The original writer stores again to lines the other has read: bytes per second. */
double bound_rewrite(const struct world *world);

/* One way of a ping-pong between rank 0 and rank 1 over one line. */
double bound_hop(const struct world *world);
