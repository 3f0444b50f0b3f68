/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * shmcoll compared with an MPI, or with another build of itself, in one program: the same ranks, the same
 * buffers, turn by turn.
 *
 *   peers.c     options, rounds, the table
 *   calls.c     every operation, through libshmcoll and through MPI, and what it must give
 *   oneccl.cc   through oneCCL, in MPI's place
 *   numbers.c   dtypes and reductions other than the sum of float32
 *   bounds.c    what the machine could do: in-place scaling, lines that change hands, flags
 *   bare.c      what an operation could take: its flags and copies with no library around them
 *   rows.c      what was measured, as a table and as JSON
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <shm/shmcoll.h>

enum side { OURS, THEIRS };

/* A build of libshmcoll, and its group. */
struct build {
    struct shc_comm *comm; /* NULL: none; this side is MPI */
    enum shc_status (*create)(const struct shc_comm_config *config, struct shc_comm **comm);
    enum shc_status (*run)(struct shc_comm *comm, const struct shc_op *op);
    enum shc_status (*submit)(struct shc_comm *comm, const struct shc_op *op,
                              const struct shc_request_hooks *hooks, struct shc_request **request);
    enum shc_status (*wait)(struct shc_request *request, uint64_t timeout_ns);
    void (*release)(struct shc_request *request);
    void (*free)(struct shc_comm *comm);
    const char *(*error)(void);
};

struct numbers {
    enum shc_dtype dtype;
    enum shc_redop redop;
};

/* One rank's view of the run. */
struct world {
    int rank, size;
    struct build builds[2];    /* of both sides */
    struct numbers numbers[2]; /* that they reduce */
    bool root_stays;           /* rank 0 is the root of each operation that has one */
    bool renumbered;           /* the two differ; all_reduce of two ranks only */
    float *given, *got;        /* room for the largest size each */
};

/* One operation of one size, ready to run. */
struct call;

/* What `bytes` means for an operation: as in nccl-tests, what one rank gives or ends with, whichever
 * is more. Returns NULL where the size is too small for the number of ranks. */
struct call *call_make(const struct world *world, const char *op, size_t bytes);
void call_free(struct call *call);

/* The world's buffers are elsewhere now. */
void call_describe(struct call *call);

/* The i-th time; roots take turns, unless `root_stays`. Ends the program when it fails. */
void call_run(struct call *call, enum side side, int i);

/* Stores to what this rank gives the i-th time, as who computes it does. */
void call_rewrite(const struct call *call, int i);

/* Reads what this rank got the i-th time, as who goes on with it does. Returns its bits, or nothing would
 * have to be read. */
uint32_t call_use(const struct call *call, int i);

/* Runs it once with numbers that tell ranks and places apart. False: the result is wrong. */
bool call_right(struct call *call, enum side side, int i);

/* Seconds that its flags and copies take with no library around them; 0: nobody knows. */
double call_bare(const struct call *call);

/* The k-th operation's name; NULL after the last. */
const char *call_name(size_t k);

/* Has the other side the k-th operation, too? */
bool call_has_other(const struct world *world, size_t k);

/* Is it in the list a,b,...? NULL is a list of everything. */
bool listed(const char *names, const char *name);

/* Of up to MEDIAN_ROOM values. */
double median(const double *values, int count);
#define MEDIAN_ROOM 200

/* ---- numbers ---- */

#define FLOAT_SUM ((struct numbers){SHC_FLOAT32, SHC_SUM})

/* The k-th pair there is whose dtype is in `names` (a,b; or all). False after the last. */
bool numbers_choose(const char *names, size_t k, struct numbers *numbers);

/* Ones of the dtype; and whether the memory holds what two ranks' ones are reduced to. */
void numbers_fill(const struct numbers *numbers, void *memory, size_t bytes);
bool numbers_right(const struct numbers *numbers, const void *memory, size_t bytes);

/* ---- rows ---- */

#define MAX_ROUNDS 99

/* An operation of one size, round by round. */
struct row {
    const char *op;
    struct numbers numbers;
    size_t bytes;
    int rounds;
    bool right;
    bool scaled; /* is there something in `scale`? */
    bool hopped; /* is `hop` a bound of it? */
    double seconds[2][MAX_ROUNDS];
    double exchange[MAX_ROUNDS]; /* bytes per second */
    double scale[MAX_ROUNDS], hop[MAX_ROUNDS];
    double bare[MAX_ROUNDS]; /* 0: nobody knows */
};

/* What stands before the rows. */
struct head {
    const char *other; /* the second side */
    double hop, exchange, rewrite;
};

/* Part of our time that scaling in place and exchanging the lines would need, at least. */
double row_roof(const struct row *row, int round);

/* On standard output, and a line of JSON each in `json` if that is not NULL. */
void rows_begin(const struct world *world, const struct head *head, FILE *json);
void rows_add(const struct row *row, FILE *json);

/* ---- bounds: seconds, the slowest rank's median ---- */

/* All ranks at once: x *= c over `bytes` of floats, in place. */
double bound_scale(const struct world *world, size_t bytes);

/* Rank 0 and rank 1 at once read what the other has just stored: bytes per second, one way. */
double bound_exchange(const struct world *world);

/* The original writer stores again to lines the other has read: bytes per second. */
double bound_rewrite(const struct world *world);

/* One way of a ping-pong between rank 0 and rank 1 over one line. */
double bound_hop(const struct world *world);

/* ---- bare loops of two ranks: seconds, the slowest rank's median; 0: there is no such loop ---- */

/* Of `bytes` that a rank gives to the other, a power of two: with a flag and a copy on each side. */
double bare_pass(const struct world *world, size_t bytes);    /* and back next time; up to 16 KiB */
double bare_one_way(const struct world *world, size_t bytes); /* longer ones through a ring */
double bare_gather(const struct world *world, size_t bytes);  /* and a copy of the receiver's own */
double bare_scatter(const struct world *world, size_t bytes); /* and one of the sender's own */
double bare_stream(const struct world *world, size_t bytes);  /* many in a row, from 32 KiB on */

/* Longer ones through lines that change hands; what the one who takes longer does, less all waiting. */
double bare_both_ways(const struct world *world, size_t bytes); /* and a copy of what is kept */
double bare_trade(const struct world *world, size_t bytes);
double bare_all_reduce(const struct world *world, size_t bytes); /* from 64 KiB on: in two halves */
