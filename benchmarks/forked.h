/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Ranks that a benchmark of the C library forks, and how they time something together. Before it is included,
 * PROGRAM is the program's name, and LIMIT_S the seconds that everything may take.
 */
#include "shm/base/atomic.h"
#include "shm/base/clock.h"
#include "shm/shmcoll.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_RANKS 64

/* What the ranks share. */
struct board {
    shc_a32 arrived;
    double seconds[MOST_RANKS];
    int wrong[MOST_RANKS];
    char directory[64];
};

struct forked {
    struct board *board;
    struct shc_comm *comm;
    int rank, ranks;
    uint32_t meetings;
};

static inline void fail(const char *why)
{
    fprintf(stderr, PROGRAM ": %s\n", why);
    exit(2);
}

static inline void demand(enum shc_status status)
{
    if (status != SHC_OK)
        fail(shc_error_text());
}

static inline size_t size_of(const char *text)
{
    char *end;
    const double number = strtod(text, &end);
    const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == text || number < 0 || (shift == 0 ? *end != '\0' : end[1] != '\0'))
        fail("a size is a number, with K, M or G after it");
    return (size_t)(number * (double)((size_t)1 << shift));
}

/* For qsort. */
static inline int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Not the library's: what it measures must not be what it is measured with. */
static inline void meet(struct forked *me)
{
    const uint32_t all = ++me->meetings * (uint32_t)me->ranks;
    /* acq_rel forked/meeting: what each wrote before, all see after it. */
    (void)shc_a32_add_acq_rel(&me->board->arrived, 1);
    /* acquire forked/meeting <- acq_rel above. */
    while ((int32_t)(shc_a32_load_acquire(&me->board->arrived) - all) < 0)
        sched_yield();
}

/* The seconds from then until now, at the slowest rank. */
static inline double slowest_since(struct forked *me, uint64_t begun_ns)
{
    double slowest = 0;
    me->board->seconds[me->rank] = (double)(shc_clock_ns() - begun_ns) / 1e9;
    meet(me);
    for (int r = 0; r < me->ranks; r++)
        slowest = me->board->seconds[r] > slowest ? me->board->seconds[r] : slowest;
    meet(me);
    return slowest;
}

/* Rank r goes to CPUs r * cpus to r * cpus + cpus - 1 of those that this process may use. */
static inline void pin(int rank, int cpus)
{
    cpu_set_t allowed, mine;
    int seen = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
        CPU_COUNT(&allowed) < (rank + 1) * cpus)
        return; /* more ranks than CPUs: the kernel shares them out */
    CPU_ZERO(&mine);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed)) {
            if (seen >= rank * cpus && seen < (rank + 1) * cpus)
                CPU_SET(cpu, &mine);
            seen++;
        }
    (void)sched_setaffinity(0, sizeof mine, &mine);
}

static inline void make_group(struct forked *me)
{
    struct shc_comm_config config = {.rank = me->rank,
                                     .world_size = me->ranks,
                                     .name = PROGRAM,
                                     .timeout_ns = 60 * SHC_NS_PER_S};
    demand(shc_store_dir_open(me->board->directory, &config.store));
    demand(shc_comm_create(&config, &me->comm));
    shc_store_dir_close(&config.store);
}

/* Forks the ranks, each of which runs `be_rank` with these options. The program's exit code. */
static inline int run_ranks(int ranks, void (*be_rank)(struct forked *me, const void *options),
                            const void *options)
{
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST_RANKS];
    int failed = 0;
    if (board == MAP_FAILED)
        fail("no shared memory");
    snprintf(board->directory, sizeof board->directory, "/tmp/shmcoll-" PROGRAM "-XXXXXX");
    if (mkdtemp(board->directory) == NULL)
        fail("no folder in /tmp");
    for (int rank = 0; rank < ranks; rank++) {
        if ((pids[rank] = fork()) != 0)
            continue;
        struct forked me = {.board = board, .rank = rank, .ranks = ranks};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(LIMIT_S);
        be_rank(&me, options);
        exit(0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            for (int r = 0; r < ranks && !failed; r++)
                kill(pids[r], SIGKILL); /* the others may wait for it */
            failed = 1;
        }
    }
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", board->directory);
    return system(command) == 0 ? failed : 1;
}
