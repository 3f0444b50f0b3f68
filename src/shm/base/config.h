/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The one table that reads the environment, once per process, and knows all names of ours in it.
 * Any thread.
 * docs/reference/variables.md's list of variables is compared with this table by tests/lint/docs.py.
 */

/* The values of SHMCOLL_SEGMENT; the order is that of the attempts. */
enum shc_segment_choice {
    SHC_SEGMENT_AUTO = 0,
    SHC_SEGMENT_UNNAMED,
    SHC_SEGMENT_NAMED,
    SHC_SEGMENT_MEMFD,
};

enum shc_log_level {
    SHC_LOG_OFF = 0,
    SHC_LOG_WARN,
    SHC_LOG_INFO,
    SHC_LOG_TRACE,
};

enum shc_cpu_choice {
    SHC_CPU_AUTO = 0,
    SHC_CPU_BASE,
    SHC_CPU_AVX2,
    SHC_CPU_AVX512,
};

#define SHC_THREADS_AUTO (-1) /* as many as the CPUs have room for besides the ranks */

#define SHC_ARENA_AUTO (-1) /* as much as a group of its size needs */

struct shc_config {
    int log_level;        /* enum shc_log_level */
    const char *log_file; /* where lines go in place of stderr; NULL: not set */
    int segment;          /* enum shc_segment_choice */
    int cpu;              /* enum shc_cpu_choice: the best instruction set that may be used */
    int spin_us;          /* how long a wait spins before it yields; -1: decided per group */
    int move;             /* a waiting thread may leave a CPU that it shares with another rank */
    int bias;             /* a group's runner and lock may be biased towards a thread */
    int cma;            /* large blocks may be copied by the kernel out of another rank's memory */
    int late_ms;        /* a wait is reported when it has taken this long */
    int raises;         /* a wait that is part of a deadlock fails */
    int threads;        /* reduction threads per process, or SHC_THREADS_AUTO */
    int board;          /* enum shc_board_level: what tools outside can see */
    const char *dump;   /* the folder for dumps of failed groups; NULL: none */
    int traceable;      /* processes of this user may trace this one, also where Yama forbids it */
    int arena_kib;      /* limit of a group's large staging memory, or SHC_ARENA_AUTO */
    const char *tuning; /* limits of coll/select.h, as text; NULL: not set */
    char job[64];       /* what a launcher calls this run, for a file's name; "": nothing */
};

/* The process's configuration; the first call reads the environment. */
const struct shc_config *shc_config_get(void);
