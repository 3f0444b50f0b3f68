/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The processes of an experiment. A coordinator, which never touches CUDA, forks the ranks and
 * watches them: when one fails, when the time is over, or when it is told to end (SIGTERM, SIGINT),
 * it raises `stop`, and every rank's guard writes poison until its rank has ended (lab.h). A rank
 * that is still there after that is killed, and a process that cannot be killed is reported.
 */

#include "cuda_ipc/control.h"
#include "shm/base/atomic.h"
#include "shm/base/clock.h"

#define RANKS_MAX    16 /* those that only keep the GPU busy included */
#define WORDS        16 /* of a rank, that streams wait for */
#define NUMBERS      8
#define SEAT_BYTES   600
#define GRACE_NS     (8 * SHC_NS_PER_S) /* for a rank to end once `stop` is raised */
#define WORLDS_MAX   4
#define RANK_STOPPED 3 /* exit status: it was told to end, and did */
#define RANK_LEFT    4 /* ... and did not, so that its guard left everything as it was */
#define MIB          ((size_t)1 << 20)
#define NS_TO_US(ns) ((double)(ns) / 1e3)

struct options {
    const char *driver, *image;
    int ordinal;
    bool json, small; /* small: does everything run? */
    int worlds[WORLDS_MAX], world_count;
    uint64_t limit_ns;    /* of one group of processes */
    uint64_t patience_ns; /* with something that may never come */
};

struct word {
    _Alignas(SHC_LINE_BYTES) shc_a64 value;
};

/* What a rank shows the others. Plain fields are handed over by lab_meet(). */
struct seat {
    _Alignas(SHC_LINE_BYTES) shc_a32 published;
    shc_a64 gone_ns; /* when the coordinator saw its end */
    struct shc_control_address address;
    double numbers[NUMBERS];
    char text[SEAT_BYTES];    /* of the experiment */
    char failure[SEAT_BYTES]; /* why it gave up; "": it did not */
};

/* In memory that all processes of the experiment share. */
struct board {
    shc_a32 stop;
    shc_a32 arrived;            /* how often a rank came to a meeting */
    shc_a32 busy_ready, unbusy; /* for those that keep the GPU busy */
    struct seat seats[RANKS_MAX];
    _Alignas(SHC_PAGE_BYTES) struct word words[RANKS_MAX][WORDS]; /* registered by every rank */
};

struct lab;

struct job {
    const char *experiment;
    enum shc_status (*body)(struct lab *lab);
    int world;
    int busy;            /* further processes that keep the GPU busy */
    int variant;         /* the body's to read */
    bool first_one_dies; /* rank 0 is killed, and that is no failure */
    size_t region_bytes; /* of one more piece of shared memory */
    void *region;        /* set by job_run() */
};

/* 0; or 1 when a rank failed, which is said in a line of results. */
int job_run(const struct options *options, struct job *job);

/* The same with each of the worlds that are asked for. */
int job_run_worlds(const struct options *options, struct job *job);
