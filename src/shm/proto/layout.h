/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Every byte that ranks share. Structs, offsets and asserts, no functions. The type says where it lives:
 * struct shc_x_shm is in the segment. W: is the one writer of a field. Fields of different writers are
 * SHC_LINE_BYTES apart. The rules are in docs/internals/protocol/memory.md.
 *
 * The group's first segment. tests/lint/offsets.py compares the rows with what the compiler makes of this file.
 * p is the world size; shc_mail_plan() of proto/pair.c computes `lines`, s and which buffers there are.
 *
 *   offset                      bytes            name             W
 *
 *   0                           272              header           rank 0, before it publishes the segment's name
 *   1024                        4                abort            compare-and-swap from 0, once
 *   1152                        4                decision         rank 0, while the group is made
 *   1280                        8                late             compare-and-swap, by ranks that log a late call
 *   2048                        8 * 256          member           life: its rank's liveness thread, then the
 *                                                                   kernel; state: compare-and-swap
 *   4096 + r * 20480            20480            block            rank r
 *
 * The block of rank r, reserved and written by rank r:
 *
 *   block + 0                   320              identity         before the rank's verdict
 *   block + 320                 64               heap             once, before its call line names a place there
 *   block + 384                 16               progress
 *   block + 512                 8                bell             any rank, by WAIT-1
 *   block + 640                 2 * 128          call             by parity of the epoch; two ranks: both in turn
 *   block + 896                 768              reason           once, before it sets the abort word
 *   block + 1664                160              offer            lazy arena: its name (rank 0), the verdict
 *   block + 1824                96               leaving          once, before its process ends
 *   block + 1920                2 * 64           call_record      by parity of the epoch
 *   block + 2048                2 * 8192         small            as `call`
 *   block + 18432               2 * 1024         cma              by parity of the epoch
 *
 * After the blocks one mailbox per rank, for messages, written by that rank:
 *
 *   mailbox + 0                 8                mail bell        any rank, by WAIT-1
 *   mailbox + 128               p * 64           ack              of what rank s has sent here
 *   after the acks              p * lines * 128  line             to rank r
 *   after the lines             p * 128          hand-off line    the one of two ranks that holds the buffer
 *   next page                   8 * 16384        eager            reserved by the rank when it needs them
 *   after the eager buffers     p * s            hand-off         its holder; reserved with them
 *   after the hand-off buffers  48 * 32768       pool             reserved when needed; two ranks only
 *   after the pool              524288           long hand-off    its holder; reserved with the pool
 *
 * After the mailboxes, in a world of two:
 *
 *   after the mailboxes         2 * 8192         hand-off slot    the one of two ranks that gives; each reserves one
 */

#include "shm/base/atomic.h"
#include "shm/os/os.h"
#include "shm/shmcoll.h"

#include <assert.h>

#define SHC_LAYOUT_MAGIC   0x006c6c6f636d6873ULL /* "shmcoll" */
#define SHC_LAYOUT_VERSION 43u

#define SHC_NONCE_BYTES  16
#define SHC_TUNING_WORDS 24

struct shc_header_shm {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t world_size;
    uint64_t total_bytes;
    uint64_t block_bytes;
    uint32_t small_slot_bytes;
    uint32_t byte_order;  /* 0x01020304 */
    uint64_t arena_limit; /* bytes; rank 0's setting holds for all */
    uint64_t first_epoch; /* the epoch before the first operation's */
    uint64_t list;        /* hash of the members' list (comm/record.h) */
    uint8_t nonce[SHC_NONCE_BYTES];
    uint64_t tuning[SHC_TUNING_WORDS]; /* rank 0's settings, compared by all (coll/tuning.c) */
};

/* 0, or 1 + the rank that found the group broken and wrote the reason into its own block. */
struct shc_abort_shm {
    shc_a32 finder;
};

/* What rank 0 tells the ranks that have a seat in the segment of its attempt. OK follows the store's
 * decision; LOOK may come before the news. */
enum shc_decision {
    SHC_DECISION_NOTHING = 0,
    SHC_DECISION_OK,   /* the group is made */
    SHC_DECISION_LOOK, /* this attempt has ended: look at the store now and then */
};

struct shc_decision_shm {
    shc_a32 word; /* enum shc_decision */
};

/*
 * The newest line about a late call, so that one rank says it for all (WAIT-10): the last 24 bits of the call's
 * epoch (of a message: of the time in ms), then how often it has been late, 8 bits, then what the line said, a hash
 * of 32 bits.
 */
struct shc_late_shm {
    shc_a64 said;
};

/*
 * Rank state. Changes are compare-and-swaps:
 *   EMPTY -> ALIVE     the rank, when its life word is linked
 *   ALIVE -> LEAVING   the rank: its process has begun to end
 *   ALIVE -> LEFT      the rank: it closes the group
 *   LEAVING -> LEFT    any rank that finds the process gone; the rank, if its end takes long, or
 *                      if it closes
 *   ALIVE -> DEAD      any rank that finds the process gone
 * LEFT and DEAD are final. life holds the thread id of the rank's liveness thread; the kernel adds SHC_OS_OWNER_DIED
 * when that thread ends. A rank is dead if its life word says so and its state is still ALIVE.
 */
enum shc_member_state {
    SHC_MEMBER_EMPTY = 0,
    SHC_MEMBER_ALIVE,
    SHC_MEMBER_LEFT,
    SHC_MEMBER_DEAD,
    SHC_MEMBER_LEAVING,
};

struct shc_member_shm {
    shc_a32 life;
    shc_a32 state;
};

struct shc_identity {
    struct shc_os_process process;
    struct shc_os_cpus cpus;  /* the CPUs it may run on */
    int32_t cpu_quota;        /* CPUs' worth of time its cgroup grants; 0: no limit */
    int32_t threads;          /* reduction threads of its process; -1: by the ranks' cores */
    struct shc_os_cpus cores; /* of those CPUs, if there are such threads; else none */
    uint64_t key;             /* a number of this rank alone, */
    uint64_t key_address;     /* and its address: a rank that finds it there can read it */
};

struct shc_identity_shm {
    struct shc_identity said; /* shc_seat_identity() copies it */
};

/* A heap's name: everything that another process needs to open that file of the rank's process and no other. */
struct shc_heap_name {
    struct shc_os_file_id file;
    int32_t owner_fd;
    uint32_t unused;
    uint8_t nonce[SHC_NONCE_BYTES]; /* of the heap: an inode's number may come again */
};

/* The heap of the rank's process (docs/internals/protocol/heap.md). */
struct shc_heap_shm {
    shc_a32 named; /* 1: the name is there */
    uint32_t unused;
    struct shc_heap_name name;
    uint8_t pad[16];
};

/* P = epoch << SHC_STEP_BITS | step, modulo 2^64, compared by signed difference. P >= s means: all
 * this rank's stores and reads before s are done. Step 0 is the call line itself. */
#define SHC_STEP_BITS 24

struct shc_progress_shm {
    shc_a64 reached;
    shc_a64 finished; /* the newest operation that the rank has left successfully */
};

struct shc_bell_shm {
    shc_a32 flag; /* a thread may sleep on `count` */
    shc_a32 count;
};

/* One call, as far as a healthy operation reads it: 64 bytes. */
#define SHC_INLINE_BYTES 48

struct shc_call_shm {
    shc_a64 epoch;
    uint64_t hash;
    char payload[SHC_INLINE_BYTES];
    char unused[SHC_LINE_BYTES - 16 - SHC_INLINE_BYTES];
};

/* The same call in full, for messages. It may be read while it is being rewritten: a seal over the words
 * and the epoch shows that. */
#define SHC_CALL_RECORD_WORDS 7

struct shc_call_record_shm {
    shc_a64 epoch;
    shc_a64 words[SHC_CALL_RECORD_WORDS];
};

/* Why the group is broken, in words that make sense on every rank, and from which operation on. What a rank
 * finds in one operation fails that one and all later ones. Ranks that are still in an earlier one go on,
 * because the finder has done its part of that. */
#define SHC_REASON_BYTES 768

struct shc_reason_shm {
    shc_a32 status;    /* enum shc_status, stored last; 0: this rank has found nothing */
    uint32_t whole;    /* 1: all operations fail, whatever `epoch` says */
    uint64_t epoch;    /* the first operation that fails */
    uint32_t ended;    /* 1 + the rank whose end is the reason; 0: it is another one */
    uint32_t died;     /* 1: without leaving the group */
    uint32_t end_kind; /* enum shc_os_end_kind, as the finder saw it */
    int32_t end_code;
    char text[SHC_REASON_BYTES - 32];
};

/* Why the rank's process is about to end, in words: an exception that nobody caught. */
#define SHC_WHY_BYTES 92

struct shc_leaving_shm {
    shc_a32 told; /* 1: the text is there */
    char text[SHC_WHY_BYTES];
};

/* A segment's name: everything another process needs to open that file and no other. */
struct shc_segment_name {
    struct shc_os_process creator;
    struct shc_os_file_id file;
    uint64_t bytes;
    int32_t creator_fd;
    uint32_t form; /* enum shc_segment_form */
    char path[SHC_OS_NAME_BYTES];
    uint8_t nonce[SHC_NONCE_BYTES];
};

/* A lazy segment on offer. verdict: attempt * 4 + {1: reserved, 2: failed}, growing. */
struct shc_offer_shm {
    shc_a64 verdict;
    struct shc_segment_name name; /* W: rank 0, before its verdict */
};

/*
 * Messages (docs/internals/protocol/messages.md). A pair line carries one frame from its sender to one
 * receiver: a header, and up to 88 bytes of payload. `number` is one more than the line's place among
 * all lines of its sender to this receiver. If the sender is the higher rank, SHC_LINE_OF_HIGHER is
 * added: both ranks write the line of a hand-off buffer in turn (P2P-3).
 */
#define SHC_LINE_OF_HIGHER      (UINT64_C(1) << 63)
#define SHC_LINE_DATA_BYTES     88
#define SHC_EAGER_BUFFERS       8
#define SHC_EAGER_BYTES         16384
#define SHC_HAND_OFF_RANKS      32 /* a larger world has no hand-off buffers: too much memory */
#define SHC_POOL_RANKS          2  /* a larger world has no pool, and no long hand-off buffers */
#define SHC_LONG_HAND_OFF_BYTES 524288
#define SHC_POOL_BUFFERS        48
#define SHC_POOL_BYTES          32768  /* of one buffer */
#define SHC_PREFIX_BYTES        65536  /* in a long hand-off buffer: a prefix, or a chunk */
#define SHC_WHOLE_BYTES         131072 /* by long hand-off buffer at once; more in fragments only */
#define SHC_CREDIT_BUFFERS      32     /* pool buffers that a receiver may have to put aside */
#define SHC_UNASKED_BYTES       (1u << 20) /* the longest message through the pool without CTS */
#define SHC_ASIDE_PAUSE         256        /* messages announced after one that was put aside */

/* A longer payload is not in the line of a hand-off buffer. A rank that looks at the first half of a line
 * prefetches the other half, and takes it away from the rank that stores to it. */
#define SHC_HAND_OFF_LINE_BYTES 24

enum shc_frame {
    SHC_FRAME_EAGER = 1, /* a header with all the bytes, in one place */
    SHC_FRAME_FIRST,     /* a header, perhaps with the first bytes; the rest comes in MORE frames */
    SHC_FRAME_MORE,      /* bytes of `message`, from offset `bytes` on */
    SHC_FRAME_CTS,       /* the receive is posted: send the rest of `message` */
    SHC_FRAME_NACK,      /* the receive has another type or size, this one: `message` is dropped */
};

/* Where the bytes are that come with a line. */
enum shc_memory {
    SHC_IN_LINE, /* in `data` */
    SHC_IN_EAGER,
    SHC_IN_HAND_OFF, /* whose line this is; it holds a piece that is too long for the line */
    SHC_IN_LONG_HAND_OFF,
    SHC_IN_POOL,
    SHC_MEMORIES
};

/* index: the number of the eager buffer or pool buffer; of a hand-off buffer 0 if it lies in the
 * mailbox of the line's sender, 1 if in that of its receiver. */
struct shc_place {
    uint8_t memory; /* enum shc_memory */
    uint8_t index;
};

struct shc_line_head {
    uint8_t kind; /* enum shc_frame */
    uint8_t dtype;
    uint8_t elem_bytes;
    uint8_t asks; /* FIRST: the rest waits for CTS; otherwise it follows unasked */
    struct shc_place place;
    uint8_t mode; /* enum shc_copy_mode: how the piece was copied there, and is best copied on */
    uint8_t unused;
    uint32_t piece; /* bytes that come with this line */
    int32_t tag;
    uint32_t dtype_tag;
    uint32_t message; /* the sender's number of the message, per pair */
    uint64_t bytes;   /* of the whole message; MORE: where the piece begins in it */
};

struct shc_line_shm {
    shc_a64 number;
    struct shc_line_head head; /* its receiver copies it, and then checks the copy */
    uint8_t data[SHC_LINE_DATA_BYTES];
};

/* What a receiver tells one sender. */
struct shc_ack_shm {
    shc_a64 taken;                    /* lines used in turn: all before are read */
    shc_a32 eager[SHC_EAGER_BUFFERS]; /* grows by one each time the sender's buffer is read */
    shc_a64 pool;                     /* pool buffers that were read, in their order */
    shc_a32 credit;                   /* grows by the pool buffers of each message a receive took */
    shc_a32 aside;                    /* long messages without CTS that found no receive */
    uint8_t pad[8];
};

/*
 * For an operation whose blocks may be copied straight out of this rank's memory (proto/cma.h): where each
 * rank's block lies.
 */
#define SHC_CMA_RANKS 126 /* a larger world does not copy that way */

struct shc_cma_shm {
    shc_a64 withdrawn; /* the epoch in which this rank has given up: its memory may have changed */
    uint64_t able;     /* this rank can take part */
    uint64_t address[SHC_CMA_RANKS]; /* in this rank's process, of what that rank takes */
};

#define SHC_SMALL_SLOTS         2
#define SHC_SMALL_SLOT_BYTES    8192
#define SHC_HAND_OFF_SLOT_RANKS 2 /* a larger world has no hand-off slots */
#define SHC_HAND_OFF_SLOTS      2
#define SHC_HAND_OFF_SLOT_BYTES 8192

#define SHC_ABORT_OFFSET       1024
#define SHC_DECISION_OFFSET    1152
#define SHC_LATE_OFFSET        1280
#define SHC_MEMBERS_OFFSET     2048
#define SHC_BLOCKS_OFFSET      4096
#define SHC_IDENTITY_OFFSET    0
#define SHC_HEAP_OFFSET        320
#define SHC_PROGRESS_OFFSET    384
#define SHC_BELL_OFFSET        512
#define SHC_CALLS_OFFSET       640
#define SHC_REASON_OFFSET      896
#define SHC_OFFER_OFFSET       1664
#define SHC_LEAVING_OFFSET     1824
#define SHC_CALL_RECORD_OFFSET 1920
#define SHC_SMALL_OFFSET       2048
#define SHC_CMA_OFFSET         18432
#define SHC_BLOCK_BYTES        20480 /* whole pages */

static_assert(sizeof(struct shc_header_shm) == 272, "header");
static_assert(sizeof(struct shc_header_shm) <= SHC_ABORT_OFFSET &&
                  SHC_ABORT_OFFSET + SHC_LINE_BYTES <= SHC_DECISION_OFFSET &&
                  SHC_DECISION_OFFSET + SHC_LINE_BYTES <= SHC_LATE_OFFSET &&
                  SHC_LATE_OFFSET + SHC_LINE_BYTES <= SHC_MEMBERS_OFFSET,
              "header, abort, decision and late have their own lines");
static_assert(SHC_PROGRESS_OFFSET % SHC_LINE_BYTES == 0 && SHC_BELL_OFFSET % SHC_LINE_BYTES == 0 &&
                  SHC_CALLS_OFFSET % SHC_LINE_BYTES == 0 &&
                  SHC_CALL_RECORD_OFFSET % SHC_LINE_BYTES == 0 &&
                  SHC_CMA_OFFSET % SHC_LINE_BYTES == 0,
              "progress, bell, calls, call records and cma have their own lines");
static_assert(sizeof(struct shc_member_shm) == 8, "member");
static_assert(SHC_MEMBERS_OFFSET + SHC_MAX_WORLD * sizeof(struct shc_member_shm) ==
                  SHC_BLOCKS_OFFSET,
              "the member table ends the first page");
static_assert(SHC_BLOCKS_OFFSET <= SHC_OS_ROBUST_DISTANCE,
              "a robust entry lies in the guard just before the mapping");
static_assert(sizeof(struct shc_os_process) == 40, "process");
static_assert(sizeof(struct shc_identity_shm) == 320 &&
                  sizeof(struct shc_identity_shm) <= SHC_HEAP_OFFSET,
              "identity");
static_assert(sizeof(struct shc_heap_shm) == 64 &&
                  SHC_HEAP_OFFSET + sizeof(struct shc_heap_shm) <= SHC_PROGRESS_OFFSET,
              "heap");
static_assert(sizeof(struct shc_call_shm) == SHC_LINE_BYTES, "call line");
static_assert(SHC_CALLS_OFFSET + 2 * sizeof(struct shc_call_shm) == SHC_REASON_OFFSET,
              "reason after the calls");
static_assert(sizeof(struct shc_reason_shm) == SHC_REASON_BYTES &&
                  SHC_REASON_OFFSET + SHC_REASON_BYTES == SHC_OFFER_OFFSET,
              "offer after reason");
static_assert(sizeof(struct shc_segment_name) == 152, "segment name");
static_assert(SHC_OFFER_OFFSET + sizeof(struct shc_offer_shm) == SHC_LEAVING_OFFSET, "offer");
static_assert(SHC_LEAVING_OFFSET + sizeof(struct shc_leaving_shm) == SHC_CALL_RECORD_OFFSET,
              "leaving");
static_assert(SHC_CALL_RECORD_OFFSET + 2 * sizeof(struct shc_call_record_shm) == SHC_SMALL_OFFSET,
              "call records");
static_assert(sizeof(struct shc_line_shm) == SHC_LINE_BYTES, "pair line");
static_assert(sizeof(struct shc_line_head) == 32, "line head");
static_assert(offsetof(struct shc_line_shm, data) + SHC_HAND_OFF_LINE_BYTES == SHC_CPU_LINE_BYTES,
              "only one half of a hand-off buffer's line is used");
static_assert(sizeof(struct shc_ack_shm) == 64, "ack");
static_assert(SHC_EAGER_BYTES % SHC_PAGE_BYTES == 0, "eager buffers are whole pages");
static_assert(SHC_PREFIX_BYTES <= SHC_WHOLE_BYTES && SHC_WHOLE_BYTES <= SHC_LONG_HAND_OFF_BYTES,
              "a long hand-off buffer has room for a prefix, and for each message that goes whole");
static_assert(SHC_UNASKED_BYTES == SHC_CREDIT_BUFFERS * SHC_POOL_BYTES,
              "a message without CTS may have to be put aside");
static_assert(SHC_HAND_OFF_SLOT_RANKS == 2 && SHC_HAND_OFF_SLOTS == 2 &&
                  SHC_HAND_OFF_SLOT_BYTES % SHC_PAGE_BYTES == 0,
              "each rank reserves a hand-off slot, in whole pages");
static_assert(SHC_SMALL_OFFSET + SHC_SMALL_SLOTS * SHC_SMALL_SLOT_BYTES <= SHC_CMA_OFFSET,
              "small slots");
static_assert(sizeof(struct shc_cma_shm) % SHC_LINE_BYTES == 0, "cma is whole lines");
static_assert(SHC_CMA_OFFSET + 2 * sizeof(struct shc_cma_shm) <= SHC_BLOCK_BYTES &&
                  SHC_BLOCK_BYTES % SHC_PAGE_BYTES == 0,
              "block");
