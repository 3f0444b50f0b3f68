/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Members: which ranks are alive, have left, or have died; and the one abort word that fails the
 * group. Any thread of a rank may call these while the seat is mapped.
 *
 * A failed group stays failed: nothing in the segment is repaired. The rank that finds the group
 * broken writes the reason into its own block, then sets the abort word; all others read that
 * reason. A reason found in one operation does not touch earlier ones: a rank that is still in one
 * of them looks for a reason that covers it, which may be another rank's than the one in the abort
 * word.
 */

#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/proto/seat.h"

/*
 * What is known of the rank. LEAVING counts as ALIVE for a waiting rank. It becomes LEFT once the
 * process that started the rank can see its end. So no rank ends because of another rank before
 * that one has ended, and a launcher finds the first one first. A caller that found data missing
 * reads the state FIRST and the data again after it: a peer may publish and leave in between.
 */
enum shc_member_state shc_member_look(const struct shc_seat *seat, int rank);

/* Until now, has the rank neither left nor died as far as any rank has seen, and is its memory
 * there? */
bool shc_member_has_memory(const struct shc_seat *seat, int rank);

/* This rank leaves. No effect if another rank has declared it dead. */
void shc_member_leave(const struct shc_seat *seat);

/* The process of this rank has begun to end. No effect unless the rank is ALIVE. */
void shc_member_begin_to_leave(const struct shc_seat *seat);

/* The process of this rank is gone: declares it dead, unless it left before, or was leaving: then
 * it has left. */
void shc_member_declare_dead(const struct shc_seat *seat, int rank);

/* Asks /proc: gone, a zombie, or writing a core dump (its memory is being read, and it will not
 * come back; the kernel marks the life word only after the dump). Slow: system calls. */
bool shc_member_process_gone(const struct shc_seat *seat, int rank);

#define SHC_MEMBER_LOOKS 16 /* processes per look, by a waiting rank that will look again */

/* A second witness, in addition to the life words: late for a big process, but it sees a core dump. Asks
 * /proc for that many ranks, from this one on, and declares those dead that are gone. */
void shc_member_look_at_processes(const struct shc_seat *seat, int first, int count);

/* The same for a parked thread, and cheaper: looks at the liveness threads of the peer (-1: none) and of the ranks that
 * follow this one, of which it sees that they end, or that their processes write a core dump. */
void shc_member_look_at_threads(const struct shc_seat *seat, int peer);

/* The first rank whose state is DEAD, other than this one and `other` (-1: any); -1: none. */
int shc_member_find_dead(const struct shc_seat *seat, int other);

/* This rank's process is about to end because of that exception. Only the first one counts. */
void shc_member_tell_why(const struct shc_seat *seat, const char *why);

/* What is known of the end of a rank that is gone, or is about to go. */
struct shc_member_end {
    int rank;
    bool died; /* without leaving the group */
    struct shc_os_end how;
};
struct shc_member_end shc_member_get_end(const struct shc_seat *seat, int rank);

/* " because of KeyError: 'x' (train.py:41)", ", killed by signal 9", or "". */
void shc_member_end_text(const struct shc_seat *seat, const struct shc_member_end *end, char *text,
                         size_t capacity);

/* How many ranks have not made the call of that epoch, and a number that differs where these ranks do. */
int shc_member_missing(const struct shc_seat *seat, uint64_t epoch, uint32_t *which);

/* "rank 3 (pid 57) died, killed by signal 9; its last call was all_reduce #12 (...)". */
void shc_member_death_text(const struct shc_seat *seat, const struct shc_member_end *end,
                           char *text, size_t capacity);

/* "has left the group because of ...", or why a rank leaves without a word. */
void shc_member_left_text(const struct shc_seat *seat, const struct shc_member_end *end, char *text,
                          size_t capacity);

/* "rank 3 (pid 8123, stopped, last call broadcast #411 (...))" */
void shc_member_text(const struct shc_seat *seat, int rank, char *text, size_t capacity);

/* Appends the same for every rank that has not published this epoch's call, at most a few. Returns
 * their number. */
int shc_member_missing_text(const struct shc_seat *seat, uint64_t epoch, char *text,
                            size_t capacity);

/* Has the rank published its call of this epoch? pre: the caller is in that operation, or in the
 * one before. If the rank's state matters, too, it is read first, as with any data. */
SHC_INLINE bool shc_member_has_entered(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    /* acquire call/publish <- release in shc_call_publish(): only the epoch itself. */
    return shc_reached(shc_a64_load_acquire(&shc_seat_call(seat, rank, epoch)->epoch), epoch);
}

/* This rank has left that operation: all that it owes there is published. */
SHC_INLINE void shc_member_finish(const struct shc_seat *seat, uint64_t epoch)
{
    /* release progress/finished -> acquire in shc_member_has_finished(): all that it published. */
    shc_a64_store_release(&shc_seat_progress(seat, seat->rank)->finished, epoch);
}

/* Has the rank? Read its state before this. */
SHC_INLINE bool shc_member_has_finished(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    /* acquire progress/finished <- release in shc_member_finish(): all that the rank published. */
    return shc_reached(shc_a64_load_acquire(&shc_seat_progress(seat, rank)->finished), epoch);
}

/*
 * Fails the group: writes the reason, sets the abort word, wakes all. If the group has failed
 * already, nothing changes. Returns `status` with the text recorded for this thread.
 * `end`: whose end is the reason, or NULL.
 */
enum shc_status shc_group_fail(struct shc_seat *seat, enum shc_status status, const char *text,
                               const struct shc_member_end *end);

/* The same for a reason found in one operation: that one and all later ones fail. Ranks that are in
 * an earlier one go on. */
enum shc_status shc_group_fail_from(struct shc_seat *seat, uint64_t epoch, enum shc_status status,
                                    const char *text, const struct shc_member_end *end);

/* Shows on the board that the group has failed, as this rank found itself, or cannot be used by it. */
void shc_member_show_failure(const struct shc_seat *seat, enum shc_status status, const char *text,
                             const struct shc_member_end *end);

/* Rings the doorbells of all ranks, after a change that those who sleep must look at (WAIT-11). */
void shc_group_wake(const struct shc_seat *seat);

/* Is the abort word set? Then no operation may begin. */
SHC_INLINE bool shc_group_failed(const struct shc_seat *seat)
{
    /* acquire abort/set <- acq_rel in fail_group(): the finder's reason. */
    return shc_a32_load_acquire(&shc_seat_abort(seat)->finder) != 0;
}

/* Has the operation of this epoch failed? False while only later ones have. */
bool shc_group_failed_at(const struct shc_seat *seat, uint64_t epoch);

/* pre: the abort word is set. The reason's status, and its text with the rank that found it. */
enum shc_status shc_group_reason_text(const struct shc_seat *seat, char *text, size_t capacity);

/* pre: the abort word is set. Records "<what> failed: <reason>" and returns the reason's status. */
enum shc_status shc_group_reason(const struct shc_seat *seat, const char *what);

/* The same for the operation of this epoch; a reason that has the words `called` names it already. pre:
 * shc_group_failed_at(). */
enum shc_status shc_group_reason_at(const struct shc_seat *seat, uint64_t epoch, const char *what,
                                    const char *called);
