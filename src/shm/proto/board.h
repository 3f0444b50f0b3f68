/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The board: what a process does in its groups, for tools that look from outside (`shmcoll status`). It is
 * a memfd, which this process alone can write and which every process of the same user can read, even while
 * this one is stopped. docs/internals/protocol/board.md has its rules, python/shmcoll/watch/board.py
 * reads it. Ranks that are late read each other's boards, to find a cycle of waits (proto/deadlock.h).
 *
 * Each field has one writer: the thread that holds the group's runner, unless its comment names another.
 */

#include "shm/base/atomic.h"
#include "shm/base/clock.h"
#include "shm/os/os.h"
#include "shm/proto/call.h"
#include "shm/proto/seat.h"
#include "shm/proto/usdt.h" /* for the same places */

#define SHC_BOARD_NAME    "shmcoll:board"              /* of the memfd */
#define SHC_BOARD_MAGIC   UINT64_C(0x6472616f626d6873) /* "shmboard" in memory */
#define SHC_BOARD_VERSION 3
#define SHC_BOARD_GROUPS  512
#define SHC_BOARD_RECORDS 256 /* the last calls of each group; a power of two */
#define SHC_BOARD_KEPT    256 /* the last messages that are kept; a power of two */
#define SHC_BOARD_DEVICE  128 /* the last operations and messages on a GPU that are kept */
#define SHC_BOARD_TEXT    64
#define SHC_BOARD_REASON  512
#define SHC_BOARD_KINDS   16

#define SHC_BOARD_SHORT_BYTES SHC_SMALL_SLOT_BYTES
#define SHC_BOARD_SHORT_CALLS 6 /* of 7, so that no power of two keeps step with it */

#define SHC_BOARD_CALL_WORDS 16 /* of text */
#define SHC_BOARD_WHOM_WORDS 32

/* The values of SHMCOLL_BOARD. */
enum shc_board_level { SHC_BOARD_OFF = 0, SHC_BOARD_COUNTS, SHC_BOARD_TIMES };

struct shc_board_header_shm {
    shc_a64 magic; /* stored last */
    uint32_t version;
    uint32_t header_bytes;
    uint32_t group_bytes;
    uint32_t group_count;
    uint32_t record_offset; /* in a group */
    uint32_t record_bytes;
    uint32_t record_count;
    uint32_t kind_count;
    uint32_t level; /* enum shc_board_level */
    uint32_t layout;
    int32_t pid;
    uint32_t reserved;
    uint64_t start_time;
    uint64_t pid_namespace;
    uint64_t boot;
    uint64_t ticks; /* of the processor's counter; 0: `level` is not SHC_BOARD_TIMES */
    uint64_t ns;    /* CLOCK_MONOTONIC at that moment */
    char library[32];
    /* Of a dump alone (proto/dump.h); zero on a board. */
    uint64_t dumped_ns;      /* CLOCK_MONOTONIC */
    uint64_t dumped_unix_ns; /* CLOCK_REALTIME */
    uint32_t failed; /* 1 + the part of the group whose failure it is; 0: written on demand */
    uint32_t reserved_too;
    char host[64];
    char job[64];         /* "": no launcher has named it */
    uint32_t kept_offset; /* of the records of messages in a group; they are like those of calls */
    uint32_t kept_count;
    uint32_t device_offset; /* of those of a GPU */
    uint32_t device_count;
};

enum shc_board_state {
    SHC_BOARD_FREE = 0,
    SHC_BOARD_TAKEN, /* its texts are being written */
    SHC_BOARD_MAKING,
    SHC_BOARD_MADE,
    SHC_BOARD_CLOSED,
};

/* One call, or one message. A reader takes `number`, the rest, and `number` again. */
struct shc_board_record_shm {
    shc_a64 number; /* the epoch, or which message is kept; 0 while the rest changes */
    shc_a64 begin;  /* in ticks */
    shc_a64 end;    /* 0: it has not ended; of short calls an estimate (BOARD-19) */
    shc_a64 what;   /* kind, dtype, redop, status: a byte each; then the root, 32 bits */
    shc_a64 count;  /* elements */
    shc_a64 bytes;
    shc_a64 peer; /* of a message: its rank (UINT32_MAX: not known), then its tag, 32 bits */
    shc_a64 pair; /* of a message: its number from its sender to its receiver, 32 bits */
};

struct shc_board_sum_shm {
    shc_a64 ops;
    shc_a64 bytes;
    shc_a64 ticks;
};

/* The oldest message that is pending, and how many are. Stored under the lock of messages, at most every
 * 10 ms, so messages that take less do not show. */
struct shc_board_messages_shm {
    shc_a64 number; /* odd while the rest changes */
    shc_a32 sends;
    shc_a32 receives;
    shc_a32 kind; /* of the oldest one, as the rest */
    shc_a32 peer; /* 1 + rank; 0: any rank */
    shc_a32 tag;
    shc_a32 waiters; /* threads that wait for a message, or submit one */
    shc_a64 bytes;
    shc_a64 since_ns; /* CLOCK_MONOTONIC */
};

/* Operations, or messages, on a GPU, whose calls return before they are carried out. Stored by the thread that watches
 * them. */
struct shc_board_device_shm {
    shc_a64 number; /* odd while the rest changes */
    shc_a64 called;
    shc_a64 done;
    shc_a64 since_ns; /* since when the oldest one that is not over is under way; CLOCK_MONOTONIC */
    shc_a64 call[SHC_BOARD_CALL_WORDS];  /* that operation, as text */
    shc_a64 whom[SHC_BOARD_WHOM_WORDS];  /* whom it waits for, as text */
    shc_a64 missing[SHC_MAX_WORLD / 64]; /* a bit for each of these ranks */
};

/* A thread of the application that sleeps in a wait on this group: the first one, if there are several. Only
 * the thread that has put its number here stores to the rest. A reader takes `since_ns`, the rest, and
 * `since_ns` again. */
struct shc_board_block_shm {
    shc_a64 since_ns; /* 0 while the rest changes; stored last */
    shc_a64 thread;   /* 0: none sleeps */
    shc_a32 peer;     /* 1 + the rank of the message, or SHC_BOARD_ANY; 0: it waits for a call */
    shc_a32 kind;     /* of the message, as the tag */
    shc_a32 tag;
    uint32_t reserved;
};

/* Whose end has failed the group, and which rank found the failure. Stored like the reason; zeros: not known. */
struct shc_board_end_shm {
    uint32_t finder; /* 1 + rank */
    uint32_t rank;   /* 1 + the rank that has ended; 0: the reason is another one */
    int32_t pid;     /* as the group knows it */
    uint32_t died;   /* 1: without leaving the group */
    uint32_t kind;   /* enum shc_os_end_kind */
    int32_t code;
    uint64_t last_call; /* its newest collective; 0: it has made none */
    char why[96];       /* the exception that it has told of, or "" */
};

#define SHC_BOARD_ANY UINT32_MAX /* a message of any rank */

/* Of a group over several hosts, of which this part shows the ranks of one (BOARD-23). Zeros: of one host. */
struct shc_board_over_shm {
    shc_a64 id; /* the same on all hosts; not 0; stored last of those that do not change */
    uint32_t hosts;
    uint32_t host;
    uint32_t world; /* ranks of all hosts */
    uint32_t reserved;
    uint16_t ranks[SHC_MAX_WORLD]; /* which rank of these each rank of this part is */
    shc_a64 awaits_epoch;          /* of the call that waits for other hosts */
    shc_a64 awaits_since_ns;
    shc_a64 number;     /* odd while the rest changes; a thread that tells of late calls */
    shc_a64 whom_epoch; /* of the call that `whom` belongs to */
    shc_a64 whom[SHC_BOARD_WHOM_WORDS]; /* the hosts that it waits for, as text */
};

struct shc_board_group_shm {
    shc_a32 state; /* any thread; texts, numbers and members are stored before MAKING or MADE */
    int32_t rank;
    int32_t world_size;
    int32_t global_rank; /* -1: not known */
    uint64_t begun_ns;   /* when making the group began */
    uint64_t made_ns;
    shc_a64 timeout_ns; /* any thread */
    uint64_t segment_bytes;
    uint8_t nonce[16]; /* equal on the boards of one group's ranks */
    char name[SHC_BOARD_TEXT];
    shc_a32 failed_once; /* any thread: the reason is being written */
    shc_a32 status;      /* enum shc_status of the failure; stored after `reason` */
    char reason[SHC_BOARD_REASON];
    shc_a32 described; /* any thread: enum, as in a seat */
    char description[SHC_BOARD_TEXT];

    /* The call that runs, or ran last: its record has the rest. */
    shc_a64 entered __attribute__((aligned(SHC_LINE_BYTES)));
    shc_a64 left;
    shc_a64 waits_epoch; /* of the call that `waits_for` belongs to */
    shc_a64 waits_since_ns;
    shc_a32 waits_for; /* 1 + rank */
    uint32_t reserved;
    shc_a64 late;     /* lines that said that a call is late */
    shc_a64 slept_ns; /* in waits that went to sleep */
    shc_a64 user; /* the thread that made the last call or message, or made the group; any thread */
    /* A later moment than the header's, for the rate of the ticks. */
    shc_a64 clock_number; /* odd while the rest changes */
    shc_a64 clock_ticks;
    shc_a64 clock_ns;
    shc_a32 submitted; /* collectives that were queued; under the queue's lock */
    shc_a32 ended;     /* those of them that are over; the runner */
    struct shc_board_block_shm block;

    struct shc_board_messages_shm messages __attribute__((aligned(SHC_LINE_BYTES)));
    shc_a32 sending; /* messages that are not over, at any time; under the lock of messages */
    shc_a32 receiving;
    shc_a64 looked_ns; /* when the thread in `block` last looked in vain for what it waits for */
    struct shc_board_sum_shm sums[SHC_BOARD_KINDS] __attribute__((aligned(SHC_LINE_BYTES)));
    struct shc_board_device_shm device __attribute__((aligned(SHC_LINE_BYTES)));
    struct shc_board_device_shm device_messages;
    shc_a64 device_kept;   /* so many records of a GPU's work were stored; that thread */
    shc_a64 kept_messages; /* so many records of messages were stored; under the lock of messages */
    struct shc_board_end_shm end; /* any thread; stored before `status` */
    struct shc_board_over_shm over;

    /* On pages of their own. */
    int32_t pids[SHC_MAX_WORLD] __attribute__((aligned(SHC_PAGE_BYTES)));
    int32_t global_ranks[SHC_MAX_WORLD];
    shc_a64 waited_ns[SHC_MAX_WORLD]; /* asleep, for each rank */
    struct shc_board_record_shm records[SHC_BOARD_RECORDS] __attribute__((aligned(SHC_PAGE_BYTES)));
    struct shc_board_record_shm kept[SHC_BOARD_KEPT];
    /* `begin` and `end` are in ns; of a collective, `pair` is its number. */
    struct shc_board_record_shm device_records[SHC_BOARD_DEVICE];
};

/* ---- the process's board ---- */

struct shc_board_process {
    struct shc_board_header_shm *header;
    enum shc_board_level level;
    int fd;
    struct shc_os_file_id file; /* what it is open for */
};

/* Makes this process's board. If that is refused there is none, which changes nothing else. */
void shc_board_process_make(struct shc_board_process *process, const struct shc_os_process *self);

/* ---- a group's part ---- */

struct shc_board_facts {
    const char *name;
    const char *description; /* the name, if there is no other */
    int rank;
    int world_size;
    const int32_t *global_ranks; /* or NULL */
    uint64_t timeout_ns;
};

/* Takes a free part, in state MAKING. Any thread. If there is none, the group is not on the board. */
void shc_board_begin(struct shc_board *board, const struct shc_board_process *process,
                     const struct shc_board_facts *facts);

void shc_board_set_timeout(const struct shc_board *board, uint64_t timeout_ns);

/* The group's description, after it was made. Any thread; only the first one counts. */
void shc_board_describe(const struct shc_board *board, const char *description);

/* MADE. pre: the ranks have met. */
void shc_board_made(struct shc_board *board, const struct shc_seat *seat);

/* What a reason says, as facts. */
struct shc_board_end {
    int finder; /* the rank that found the failure */
    int rank;   /* whose end is the reason; -1: it is another one, and the rest does not count */
    int32_t pid;
    bool died;
    struct shc_os_end how;
    uint64_t last_call;
    const char *why;
};

/* The group has failed; only the first reason is kept. Any thread. */
void shc_board_fail(const struct shc_board *board, enum shc_status status, const char *reason,
                    const struct shc_board_end *end);

/* What a group over hosts says of itself. */
struct shc_board_over {
    uint32_t hosts, host, world;
    const int32_t *ranks; /* of the host's ranks, their numbers in the group */
    uint64_t id;
};

/* The group of one rank `calls` runs the calls of a group over hosts: they are shown in the part of `board`, in the place of
 * its own. No thread uses either group yet. */
void shc_board_share(struct shc_board *board, struct shc_board *calls,
                     const struct shc_board_over *over);

/* The call of that epoch waits for other hosts, since that moment; 0: no more. Its thread. */
void shc_board_await(const struct shc_board *board, uint64_t epoch, uint64_t since_ns);

/* It waits for these. One thread. */
void shc_board_missing(const struct shc_board *board, uint64_t epoch, const char *whom);

void shc_board_close(const struct shc_board *board);

/* Another group may have the part. pre: no thread stores to it any more. */
void shc_board_free(struct shc_board *board);

/* ---- hooks ---- */

/* Adds to a counter that has one writer. */
SHC_INLINE void shc_board_add(shc_a64 *counter, uint64_t change)
{
    /* relaxed: a number for people. */
    const uint64_t before = shc_a64_load_relaxed(counter);
    /* relaxed: a number for people. */
    shc_a64_store_relaxed(counter, before + change);
}

SHC_INLINE void shc_board_add32(shc_a32 *counter, uint32_t change)
{
    /* relaxed: one writer. */
    const uint32_t before = shc_a32_load_relaxed(counter);
    /* relaxed: a reader looks twice, with time between. */
    shc_a32_store_relaxed(counter, before + change);
}

/* Stores a field of what has a number, which is odd, or of a record 0, while its fields change. */
SHC_INLINE void shc_board_store(shc_a64 *field, uint64_t value)
{
    /* release board/record -> acquire in a tool outside: `number` was 0 before. */
    /* release board/kept -> acquire in a tool outside: `number` was 0 before. */
    /* release board/clock -> acquire in a tool outside: the number was odd before. */
    /* release board/messages -> acquire in a tool outside: the number was odd before. */
    /* release board/device -> acquire in a tool outside: the number was odd before. */
    shc_a64_store_release(field, value);
}

SHC_INLINE void shc_board_count(const struct shc_board *board, enum shc_op_kind kind,
                                uint64_t bytes)
{
    if (SHC_UNLIKELY(board->level == SHC_BOARD_OFF))
        return;
    shc_board_add(&board->shm->sums[kind].ops, 1);
    shc_board_add(&board->shm->sums[kind].bytes, bytes);
}

SHC_INLINE struct shc_board_record_shm *shc_board_record(const struct shc_board *board,
                                                         uint64_t epoch)
{
    return &board->shm->records[epoch & (SHC_BOARD_RECORDS - 1)];
}

SHC_INLINE uint64_t shc_board_what(const struct shc_call *call, enum shc_status status)
{
    return (uint64_t)call->kind | (uint64_t)call->dtype << 8 | (uint64_t)call->redop << 16 |
           (uint64_t)status << 24 | (uint64_t)(uint32_t)call->root << 32;
}

/* The calling thread uses the group: whatever this rank does there next is most likely its doing, too. */
SHC_INLINE void shc_board_use(const struct shc_board *board, uint64_t thread)
{
    if (SHC_UNLIKELY(board->level == SHC_BOARD_OFF))
        return;
    /* relaxed: one value. */
    shc_a64_store_relaxed(&board->shm->user, thread);
}

/* The same for a collective. */
SHC_INLINE void shc_board_use_call(const struct shc_board *board, uint64_t thread)
{
    if (SHC_LIKELY(board->calls != SHC_BOARD_OFF))
        shc_board_use(board, thread);
}

/* A collective was queued; under the queue's lock. */
SHC_INLINE void shc_board_submit(const struct shc_board *board)
{
    if (board->calls != SHC_BOARD_OFF || board->lent)
        shc_board_add32(&board->shm->submitted, 1);
}

/* And has ended; by the runner. */
SHC_INLINE void shc_board_end_queued(const struct shc_board *board)
{
    if (board->calls != SHC_BOARD_OFF || board->lent)
        shc_board_add32(&board->shm->ended, 1);
}

/* So many more messages of that kind are not over; under the lock of messages. */
SHC_INLINE void shc_board_pend(const struct shc_board *board, enum shc_op_kind kind, int change)
{
    if (board->level != SHC_BOARD_OFF)
        shc_board_add32(kind == SHC_SEND ? &board->shm->sending : &board->shm->receiving,
                        (uint32_t)change);
}

/* The runner enters that call. */
SHC_INLINE void shc_board_enter(const struct shc_board *board, uint64_t epoch,
                                const struct shc_call *call)
{
    if (SHC_UNLIKELY(board->calls == SHC_BOARD_OFF))
        return;
    if (SHC_LIKELY(board->calls == SHC_BOARD_TIMES)) {
        struct shc_board_record_shm *record = shc_board_record(board, epoch);
        /* relaxed: the release stores after it keep it before the fields. */
        shc_a64_store_relaxed(&record->number, 0);
        shc_board_store(&record->begin, shc_clock_ticks());
        shc_board_store(&record->end, 0);
        shc_board_store(&record->what, shc_board_what(call, SHC_OK));
        shc_board_store(&record->count, call->count);
        shc_board_store(&record->bytes, call->count * call->elem_bytes);
        /* release board/record -> acquire in a tool outside: the fields. */
        shc_a64_store_release(&record->number, epoch);
    }
    /* release board/entered -> acquire in a tool outside: the record. */
    shc_a64_store_release(&board->shm->entered, epoch);
}

SHC_COLD void shc_board_note_clock(const struct shc_board *board, uint64_t now_ns);

/* How long the call that began then has taken. To read the counter costs up to a tenth of a short call, so
 * one that is like the call before and did not wait is taken to last as long (BOARD-19). */
SHC_INLINE uint64_t shc_board_took(struct shc_board *board, uint64_t begin,
                                   const struct shc_call *call, bool waited)
{
    if (!waited && call->hash == board->short_hash && board->short_left > 0) {
        board->short_left--;
        return board->short_ticks;
    }
    const uint64_t ticks = shc_clock_ticks() - begin;
    const bool is_short = !waited && call->count * call->elem_bytes <= SHC_BOARD_SHORT_BYTES;
    board->short_hash = call->hash;
    board->short_ticks = ticks;
    board->short_left = is_short ? SHC_BOARD_SHORT_CALLS : 0;
    return ticks;
}

/* And leaves it, with that status. `waited`: for another rank, and not just for a moment. */
SHC_INLINE void shc_board_leave(struct shc_board *board, uint64_t epoch,
                                const struct shc_call *call, enum shc_status status, bool waited)
{
    if (SHC_UNLIKELY(board->calls == SHC_BOARD_OFF))
        return;
    shc_board_count(board, call->kind, call->count * call->elem_bytes);
    if (SHC_LIKELY(board->calls == SHC_BOARD_TIMES)) {
        struct shc_board_record_shm *record = shc_board_record(board, epoch);
        /* relaxed: this thread stored it. */
        const uint64_t begin = shc_a64_load_relaxed(&record->begin);
        const uint64_t ticks = shc_board_took(board, begin, call, waited || status != SHC_OK);
        if (SHC_UNLIKELY(status != SHC_OK)) {
            /* relaxed: `end` comes after it. */
            shc_a64_store_relaxed(&record->what, shc_board_what(call, status));
        }
        /* release board/record -> acquire in a tool outside: the status. */
        shc_a64_store_release(&record->end, begin + ticks);
        shc_board_add(&board->shm->sums[call->kind].ticks, ticks);
        if (SHC_UNLIKELY((epoch & 0xffff) == 0))
            shc_board_note_clock(board, shc_clock_ns());
    }
    /* release board/entered -> acquire in a tool outside: the end, and the sums. */
    shc_a64_store_release(&board->shm->left, epoch);
}

/* A wait of the call of that epoch is about to sleep; it began at since_ns. */
SHC_INLINE void shc_board_wait(const struct shc_board *board, uint64_t epoch, int peer,
                               uint64_t since_ns, uint64_t now_ns)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    if (board->calls == SHC_BOARD_OFF) {
        /* relaxed: the thread that stored it waits here. */
        epoch = shc_a64_load_relaxed(&board->shm->entered);
    }
    shc_board_note_clock(board, now_ns);
    /* relaxed: the release store after it keeps it before the rest. */
    shc_a64_store_relaxed(&board->shm->waits_epoch, 0);
    /* release board/waits -> acquire in a tool outside: the epoch was 0 before. */
    shc_a64_store_release(&board->shm->waits_since_ns, since_ns);
    /* release board/waits -> acquire in a tool outside: the epoch was 0 before. */
    shc_a32_store_release(&board->shm->waits_for, (uint32_t)peer + 1);
    /* release board/waits -> acquire in a tool outside: the rank, and since when. */
    shc_a64_store_release(&board->shm->waits_epoch, epoch);
}

/* A wait that slept has ended. */
SHC_INLINE void shc_board_waited(const struct shc_board *board, int peer, uint64_t ns)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    shc_board_add(&board->shm->slept_ns, ns);
    shc_board_add(&board->shm->waited_ns[peer], ns);
}

/* A line said that the call is late. */
SHC_INLINE void shc_board_count_late(const struct shc_board *board)
{
    if (board->level != SHC_BOARD_OFF)
        shc_board_add(&board->shm->late, 1);
}

/* The message that a thread waits for. */
struct shc_board_awaited {
    enum shc_op_kind kind;
    int peer; /* -1: any rank */
    int32_t tag;
};

/* That thread of the application goes to sleep in a wait on this group, for a message or (NULL) a call. False:
 * another one is shown. */
bool shc_board_block(const struct shc_board *board, uint64_t thread,
                     const struct shc_board_awaited *message, uint64_t now_ns);

/* It begins to look for what it waits for. pre: it is shown. */
SHC_INLINE void shc_board_look(const struct shc_board *board, uint64_t now_ns)
{
    /* release board/looked -> acquire in a tool outside: the look before was in vain. */
    shc_a64_store_release(&board->shm->looked_ns, now_ns);
}

/* It sleeps no more. pre: it was shown. */
void shc_board_unblock(const struct shc_board *board);

/* One thread at a time. */
void shc_board_device(const struct shc_board *board, const struct shc_device_work *work);

/* Keeps what has ended on a GPU, as shc_comm_keep_device(). The same thread. */
void shc_board_keep_device(const struct shc_board *board, const struct shc_op *op, uint64_t number,
                           uint64_t count, uint64_t begun_ns);

/* What is pending, under the lock of messages. */
struct shc_board_pending {
    uint32_t sends;
    uint32_t receives;
    enum shc_op_kind kind; /* of the oldest one, as the rest */
    int peer;              /* -1: any */
    int32_t tag;
    uint32_t waiters;
    uint64_t bytes;
    uint64_t since_ns;
};

void shc_board_messages(const struct shc_board *board, const struct shc_board_pending *pending);

/* A message that has ended. */
struct shc_board_message {
    enum shc_op_kind kind;
    enum shc_dtype dtype;
    enum shc_status status;
    uint64_t count; /* elements */
    uint64_t bytes;
    int peer; /* -1: not known */
    int32_t tag;
    uint32_t pair; /* its number among those from its sender to its receiver */
    uint64_t begun_ticks;
};

/* BOARD-17: the moment at which a message begins that took its time, or is large; 0: the board keeps no times. */
SHC_INLINE uint64_t shc_board_begin_message(const struct shc_board *board)
{
    return board->level == SHC_BOARD_TIMES ? shc_clock_ticks() : 0;
}

/* Keeps it, under the lock of messages. pre: begun_ticks is not 0. */
void shc_board_keep(const struct shc_board *board, const struct shc_board_message *message);
