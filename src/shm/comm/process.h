/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What a process has one of: its liveness thread, its reduction threads, the list of its groups, the machine's
 * default limits, and the word that tells a forked child from its parent. Any thread. Never destructed:
 * threads of ours may outlive every destructor.
 *
 * Fork: the word lies on a page that the kernel wipes in a child. There every call on a group of
 * the parent fails (the test is one load, takes no lock), and the first group the child makes
 * builds the process's state anew.
 */

#include "shm/base/status.h"
#include "shm/coll/select.h"
#include "shm/exec/pool.h"
#include "shm/proto/liveness.h"

struct shc_comm;
struct shc_seat;

/* Identifies the process image: another number after every fork that made groups of its own. */
struct shc_process_mark {
    const shc_a64 *word;
    uint64_t generation;
};

/* post: this process has a liveness thread, and *mark and *self are its own. */
SHC_NODISCARD enum shc_status shc_process_enter(struct shc_liveness **liveness,
                                                struct shc_process_mark *mark,
                                                struct shc_os_process *self);

/* The same without a liveness thread, for what needs no group. */
SHC_NODISCARD enum shc_status shc_process_be(struct shc_process_mark *mark);

/* Is this still the process that made the mark? */
SHC_INLINE bool shc_process_is(const struct shc_process_mark *mark)
{
    /* relaxed: the word is set before the first group exists, and wiped by the kernel in fork. */
    return shc_a64_load_relaxed(mark->word) == mark->generation;
}

/* The default limits on this machine (shc_tuning_default()), at which the process looks once. */
const struct shc_tuning *shc_process_tuning(void);

/* The number of reduction threads that a group reports if it wants that many (or SHC_THREADS_AUTO): the
 * process's own number once that is decided; 0 stays 0. */
int shc_process_threads(int wish);

/* The process's reduction threads: made by the first group that wants some, then that many for all. NULL
 * for a group that wants none. `counted`: by the CPUs, which is done once, because a later group may have
 * fewer ranks than share them. */
struct shc_pool *shc_process_pool(int threads, bool counted);

/* Not zero once shc_process_leave() has been called; for shc_process_leaving(). */
extern shc_a32 shc_process_left;

/* Has shc_process_leave() been called? Then no callback is made any more. */
SHC_INLINE bool shc_process_leaving(void)
{
    /* acquire process/leaving <- release in shc_process_leave(): no other data. */
    return shc_a32_load_acquire(&shc_process_left) != 0;
}

/* Around a callback: false if the process is leaving; then the callback must not be made. */
bool shc_process_callback_begin(void);
void shc_process_callback_end(void);

/* A seat's `elsewhere`: ", in group "dp" it is in broadcast #3 (...), which this rank has not called"; for
 * a group that has failed, its last call. Waits for no lock, and may return nothing. */
void shc_process_elsewhere(const struct shc_seat *seat, int rank, char *text, size_t capacity);

/* (log_file.c) From now on lines of the log go to the file of SHMCOLL_LOG_FILE, if that is set, and texts about late
 * waits to the pipe of shc_late_pipe(). Once per process. */
void shc_log_file_use(void);

/* Gives the group its part of this process's board. pre: shc_process_enter(). */
void shc_process_board_begin(struct shc_comm *comm);

/* How the groups of a process that is about to end leave, one after the other. */
struct shc_leaving {
    /* If no thread runs what is queued or moves what is pending, the calling one does, until that time. */
    void (*finish)(struct shc_comm *comm, uint64_t until_ns);
    /* shc_comm_begin_to_leave() */
    void (*begin)(struct shc_comm *comm, uint64_t patience_ns);
    /* Marks this rank LEFT: it publishes nothing any more. */
    void (*say_left)(struct shc_comm *comm);
};

/* The list of groups. A group is listed from creation to its close. `leaving` is the same for all of them. */
void shc_process_list(struct shc_comm *comm, const struct shc_leaving *leaving);
void shc_process_unlist(struct shc_comm *comm);

/* What this process's groups know about a rank that is gone. */
struct shc_end {
    int32_t pid;
    char group[SHC_GROUP_NAME_BYTES]; /* the rank that has found it gone */
    char why[320]; /* what may have ended it: a failed group's reason, another's death; or "" */
};

/* Is the process that is this rank of the job, a member of a listed group, gone? */
bool shc_process_knows_dead(int32_t global_rank, struct shc_end *end);

/* A number that is equal in two processes if the oldest group of each is the same group: then they are in
 * the same run of the same job. 0: this process has no group. */
uint64_t shc_process_life(void);

/* "rank 0 (pid 12, stopped)": which rank of the job, a member of a listed group, listens at that TCP port
 * of this machine. False if that cannot be seen. */
bool shc_process_find_server(int port, char *text, size_t capacity);

/* "rank 0 (pid 12)": the first rank of the job that is gone as far as the groups know. */
bool shc_process_find_dead(char *text, size_t capacity);
