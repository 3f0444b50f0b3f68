/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A seat: this rank's view of one group's first segment. Holds no shared byte itself. Made by the
 * bootstrap, used by the thread that runs the group's operations. If other threads may touch a field, its
 * comment says so.
 */

#include "shm/base/once.h"
#include "shm/proto/cpu_sharing.h"
#include "shm/proto/layout.h"
#include "shm/proto/segment.h"

/* How long a wait keeps its CPU. */
struct shc_patience {
    uint32_t spins;    /* turns with a pause between them */
    uint32_t yields;   /* then turns that yield the CPU; then sleep */
    uint64_t awake_ns; /* but not before that much time has passed */
    bool migrates;     /* may leave a CPU that is another rank's, too */
};

/* One rank's mailbox (proto/pair.h): the same on all ranks, computed from the world size alone. */
struct shc_mail_geometry {
    uint32_t lines;      /* per ordered pair, a power of two */
    size_t lines_offset; /* in the mailbox */
    size_t hand_off_lines_offset;
    size_t buffers_offset; /* of the eager buffers, and after them the hand-off buffers */
    size_t pool_offset; /* of the pool, and after it the long hand-off buffer; 0: there are none */
    uint32_t hand_offs; /* one for each rank, or none: a line, and a buffer */
    size_t hand_off_bytes;
    size_t total_bytes;
};

/* With two ranks: the giver of the last operation in which only one of them stored to a hand-off slot, and
 * that slot. The same on both. */
struct shc_hand_off_slot {
    uint64_t epoch;
    int giver;
    int slot;
};

/* This group's part of the process's board (proto/board.h). */
struct shc_board {
    struct shc_board_group_shm *shm;
    int level; /* enum shc_board_level; SHC_BOARD_OFF: it has none */
    int calls; /* the same for collectives; SHC_BOARD_OFF: those of a user are shown in their place (BOARD-23) */
    const struct shc_board_header_shm *header; /* of that board */
    /* The last short call whose end was read from the clock, for the calls like it (BOARD-19). */
    uint64_t short_hash;
    uint64_t short_ticks;
    uint32_t short_left; /* so many more calls in a row may be taken to last as long */
    bool lent;           /* the part is another group's */
};

/* A cycle of waits that was seen once (proto/deadlock.h). */
struct shc_suspicion {
    uint64_t hash;    /* of all that it rests on */
    uint64_t seen_ns; /* 0: there is none */
    uint32_t looks;
};

#define SHC_GROUP_NAME_BYTES 64

/* Values of `described`. */
enum { SHC_NOT_DESCRIBED = 0, SHC_BEING_DESCRIBED, SHC_DESCRIBED };

struct shc_peer_heaps;

struct shc_seat {
    struct shc_segment segment;
    int rank;
    int world_size;
    struct shc_mail_geometry mail;
    /* For messages; shc_seat_group() chooses. */
    const char *name;
    char description[SHC_GROUP_NAME_BYTES];
    shc_a32 described;
    bool plain_names;            /* texts name ranks by their numbers in the job alone */
    const int32_t *global_ranks; /* NULL: each rank has the same number in the job */
    struct shc_board board;
    struct shc_suspicion suspicions[2]; /* of calls and of messages */
    shc_a64 deadlocked_since_ns; /* the wait whose cycle this rank has named (proto/deadlock.h) */
    struct shc_os_process self;
    struct shc_patience patience;     /* of the application's threads, in collectives */
    struct shc_patience patience_p2p; /* and in messages */
    struct shc_patience patience_engine;
    struct shc_cpu_sharing cpu_sharing;
    /* Does, in the calling thread, the work of a library thread that could not be made. True: that work is
     * not finished, and the function must be called again soon. May be NULL. */
    bool (*attend)(struct shc_seat *seat);
    uint64_t late_ns; /* a wait is reported after this long */
    uint64_t key;     /* others look for it in this process's memory (struct shc_identity_shm) */
    shc_a64 single_copies; /* operations whose blocks were copied that way; stored by the runner */
    /* The runner's: bytes of the small slots in its block that it alone has stored, for others; with two
     * ranks, of a hand-off slot. */
    uint32_t lent[SHC_SMALL_SLOTS];
    struct shc_hand_off_slot hand_off_slot; /* the runner's */
    struct shc_peer_heaps *heaps; /* the runner's (proto/peer_heaps.h); NULL: nothing is pushed */
    /* Writes what that rank's process does in another group that this process is in too, or "". May
     * be NULL. */
    void (*elsewhere)(const struct shc_seat *seat, int rank, char *text, size_t capacity);
    bool (*interrupted)(void *ctx);
    void *interrupted_ctx;
    shc_a64 leaves_ns; /* any thread of this process: its calls end then, as if closed; 0: no end */
    shc_a32 closed;    /* any thread of this process: its calls must end */
    shc_a32 reason_used; /* any thread of this process: the reason has been written */
};

SHC_INLINE char *shc_seat_block(const struct shc_seat *seat, int rank)
{
    return seat->segment.base + SHC_BLOCKS_OFFSET + (size_t)rank * SHC_BLOCK_BYTES;
}

SHC_INLINE struct shc_header_shm *shc_seat_header(const struct shc_seat *seat)
{
    return (struct shc_header_shm *)(void *)seat->segment.base;
}

SHC_INLINE struct shc_abort_shm *shc_seat_abort(const struct shc_seat *seat)
{
    return (struct shc_abort_shm *)(void *)(seat->segment.base + SHC_ABORT_OFFSET);
}

SHC_INLINE struct shc_decision_shm *shc_seat_decision(const struct shc_seat *seat)
{
    return (struct shc_decision_shm *)(void *)(seat->segment.base + SHC_DECISION_OFFSET);
}

SHC_INLINE struct shc_late_shm *shc_seat_late(const struct shc_seat *seat)
{
    return (struct shc_late_shm *)(void *)(seat->segment.base + SHC_LATE_OFFSET);
}

SHC_INLINE struct shc_leaving_shm *shc_seat_leaving(const struct shc_seat *seat, int rank)
{
    return (struct shc_leaving_shm *)(void *)(shc_seat_block(seat, rank) + SHC_LEAVING_OFFSET);
}

SHC_INLINE struct shc_member_shm *shc_seat_member(const struct shc_seat *seat, int rank)
{
    return (struct shc_member_shm *)(void *)(seat->segment.base + SHC_MEMBERS_OFFSET) + rank;
}

SHC_INLINE struct shc_identity_shm *shc_seat_identity_shm(const struct shc_seat *seat, int rank)
{
    return (struct shc_identity_shm *)(void *)(shc_seat_block(seat, rank) + SHC_IDENTITY_OFFSET);
}

/* What the rank publishes about itself, or about its process: copies. */
SHC_INLINE struct shc_identity shc_seat_identity(const struct shc_seat *seat, int rank)
{
    struct shc_identity copy;
    shc_copy_once(&copy, &shc_seat_identity_shm(seat, rank)->said, sizeof copy);
    return copy;
}

SHC_INLINE struct shc_os_process shc_seat_process(const struct shc_seat *seat, int rank)
{
    struct shc_os_process copy;
    shc_copy_once(&copy, &shc_seat_identity_shm(seat, rank)->said.process, sizeof copy);
    return copy;
}

/* For messages. */
SHC_INLINE int shc_seat_pid(const struct shc_seat *seat, int rank)
{
    return (int)SHC_READ_ONCE(shc_seat_identity_shm(seat, rank)->said.process.pid);
}

SHC_INLINE struct shc_heap_shm *shc_seat_heap(const struct shc_seat *seat, int rank)
{
    return (struct shc_heap_shm *)(void *)(shc_seat_block(seat, rank) + SHC_HEAP_OFFSET);
}

SHC_INLINE struct shc_progress_shm *shc_seat_progress(const struct shc_seat *seat, int rank)
{
    return (struct shc_progress_shm *)(void *)(shc_seat_block(seat, rank) + SHC_PROGRESS_OFFSET);
}

SHC_INLINE struct shc_bell_shm *shc_seat_bell(const struct shc_seat *seat, int rank)
{
    return (struct shc_bell_shm *)(void *)(shc_seat_block(seat, rank) + SHC_BELL_OFFSET);
}

/* In whose block the rank stores its call line for the operation of that epoch, and its small slot in
 * operations in which all ranks fill theirs. Those of two ranks change hands: the rank that has read one in
 * an operation is its writer two operations later, and finds it in its own cache. */
SHC_INLINE int shc_seat_host(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    return seat->world_size == 2 ? rank ^ (int)(epoch >> 1 & 1) : rank;
}

/* The ranks after this one, cyclically, turn 1 to world_size - 1: each begins with another's memory. If all
 * took the lines of rank 0 first, and then those of rank 1, they would wait for one another
 * (docs/notebook/many-ranks.md). */
SHC_INLINE int shc_seat_peer(const struct shc_seat *seat, int turn)
{
    const int peer = seat->rank + turn;
    return peer < seat->world_size ? peer : peer - seat->world_size;
}

SHC_INLINE struct shc_call_shm *shc_seat_call(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    char *const block = shc_seat_block(seat, shc_seat_host(seat, rank, epoch));
    return (struct shc_call_shm *)(void *)(block + SHC_CALLS_OFFSET) + (epoch & 1);
}

SHC_INLINE struct shc_call_record_shm *shc_seat_call_record(const struct shc_seat *seat, int rank,
                                                            uint64_t epoch)
{
    return (struct shc_call_record_shm *)(void *)(shc_seat_block(seat, rank) +
                                                  SHC_CALL_RECORD_OFFSET) +
           (epoch & 1);
}

SHC_INLINE struct shc_reason_shm *shc_seat_reason(const struct shc_seat *seat, int rank)
{
    return (struct shc_reason_shm *)(void *)(shc_seat_block(seat, rank) + SHC_REASON_OFFSET);
}

SHC_INLINE struct shc_offer_shm *shc_seat_offer(const struct shc_seat *seat, int rank)
{
    return (struct shc_offer_shm *)(void *)(shc_seat_block(seat, rank) + SHC_OFFER_OFFSET);
}

/* The small slot in that rank's block, independent of its writer. */
SHC_INLINE char *shc_seat_slot_in(const struct shc_seat *seat, int host, uint64_t epoch)
{
    return shc_seat_block(seat, host) + SHC_SMALL_OFFSET + (epoch & 1) * SHC_SMALL_SLOT_BYTES;
}

/* The rank's own slot in an operation in which all ranks fill theirs: in the block of its call line. */
SHC_INLINE char *shc_seat_small_slot(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    return shc_seat_slot_in(seat, shc_seat_host(seat, rank, epoch), epoch);
}

SHC_INLINE struct shc_cma_shm *shc_seat_cma(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    return (struct shc_cma_shm *)(void *)(shc_seat_block(seat, rank) + SHC_CMA_OFFSET) +
           (epoch & 1);
}

SHC_INLINE size_t shc_seat_mail_offset(const struct shc_seat *seat, int rank)
{
    return SHC_BLOCKS_OFFSET + (size_t)seat->world_size * SHC_BLOCK_BYTES +
           (size_t)rank * seat->mail.total_bytes;
}

/* After the last mailbox. */
SHC_INLINE size_t shc_seat_hand_off_slot_offset(const struct shc_seat *seat, int slot)
{
    return shc_seat_mail_offset(seat, seat->world_size) + (size_t)slot * SHC_HAND_OFF_SLOT_BYTES;
}

SHC_INLINE char *shc_seat_hand_off_slot(const struct shc_seat *seat, int slot)
{
    return seat->segment.base + shc_seat_hand_off_slot_offset(seat, slot);
}

/*
 * In this operation only that rank of two gives. If the other rank gave last, it stores to the slot that
 * the other one used, which it has read itself. Otherwise it stores to the slot that it used last, if both
 * have met since, or to the other slot. pre: both ranks call it, in each such operation, before their call
 * lines, and nothing fails in between.
 */
SHC_INLINE void shc_hand_off_slot_pass(struct shc_seat *seat, int giver, uint64_t epoch)
{
    struct shc_hand_off_slot *slot_of = &seat->hand_off_slot;
    if (slot_of->giver == giver && slot_of->epoch + 1 == epoch)
        slot_of->slot = 1 - slot_of->slot;
    slot_of->giver = giver;
    slot_of->epoch = epoch;
}

/* ---- how messages name a group and its ranks ---- */

/* As the user knows it: the description (torch's group_desc), or the name. */
SHC_INLINE const char *shc_seat_group(const struct shc_seat *seat)
{
    /* acquire seat/described <- release in shc_seat_describe(): the text. */
    return shc_a32_load_acquire(&seat->described) == SHC_DESCRIBED ? seat->description : seat->name;
}

/* Only the first description counts. Any thread. */
void shc_seat_describe(struct shc_seat *seat, const char *description);

/* "rank 2", or, if it has another number in the group, "rank 5 (rank 2 of group "tp")". */
struct shc_rank_name shc_seat_rank_name(const struct shc_seat *seat, int rank);

/* "rank 2 of "default_pg"", or "rank 5 (rank 2 of group "tp")". */
struct shc_rank_name shc_seat_member_name(const struct shc_seat *seat, int rank);

/* "rank 2 (pid 4711)", or "rank 5 (rank 2 of group "tp", pid 4711)". */
struct shc_rank_name shc_seat_process_name(const struct shc_seat *seat, int rank);

/* The same without the last parenthesis, for further facts. */
struct shc_rank_name shc_seat_process_begin(const struct shc_seat *seat, int rank);

/* This rank in a call: "rank 2: barrier #7 on group "default_pg"", or "rank 5 (rank 2 of group "tp"):
 * barrier #7". */
void shc_seat_doing_text(const struct shc_seat *seat, const char *call, char *text,
                         size_t capacity);

/* The same for an error whose text names the call: "rank 2: group "default_pg"". */
void shc_seat_group_text(const struct shc_seat *seat, char *text, size_t capacity);

/* The rank's number in the job. */
SHC_INLINE int shc_seat_global_rank(const struct shc_seat *seat, int rank)
{
    return seat->global_ranks ? (int)seat->global_ranks[rank] : rank;
}

/* A thread of the library could not be made, and the group goes on without it. Logs that once per process. */
void shc_seat_lacks_thread(const struct shc_seat *seat, int error);

/* The bell of a rank's mailbox: rung by all ranks that have something for it. */
SHC_INLINE struct shc_bell_shm *shc_seat_mail_bell(const struct shc_seat *seat, int rank)
{
    return (struct shc_bell_shm *)(void *)(seat->segment.base + shc_seat_mail_offset(seat, rank));
}
