/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The host arena: one piece of host memory that all ranks of a group and their GPUs see
 * (docs/internals/cuda/rounds.md). It has one part per rank, which that rank reserves and touches first. A part has
 * the words that its rank writes or waits for, and its records; without shared GPU memory also its halves and
 * its mail; with a relay also its cells and boxes. Every word lies on lines of its own and has one writer. Words
 * that are set back or poisoned have a second one: the rank that waits for them.
 *
 * A GPU sees the arena at another address than the CPU: shc_host_device() converts.
 */

#include "cuda_ipc/control.h"
#include "cuda_ipc/gpu.h"
#include "cuda_ipc/kernel/args.h"
#include "shm/base/atomic.h"
#include "shm/base/once.h"

#define SHC_RECORDS           64 /* a ring: how far a CPU may be ahead of the slowest GPU */
#define SHC_HALVES            4  /* of a rank: two of eager rounds, two of captured ones */
#define SHC_MAIL_SLOTS        2  /* of a channel: pieces that wait to be taken */
#define SHC_RELAY_CELLS       5 /* of a rank: two halves, the result, a block kept, the old output */
#define SHC_HOST_REASON_BYTES 504

/* A word with cache lines of its own. */
struct shc_lone_shm {
    shc_a64 word;
    unsigned char pad[SHC_LINE_BYTES - sizeof(shc_a64)];
};

/* The shared part of a lane (lane.h): of the collectives, or of one end of a channel of messages. */
struct shc_lane_shm {
    struct shc_lone_shm done;      /* its stream: the newest operation that is over */
    struct shc_lone_shm verdict;   /* its gate: SHC_VERDICT of the first failure */
    struct shc_lone_shm published; /* its CPU: the newest record */
    struct shc_lone_shm arrived;   /* relay: its stream: the round or piece that it has reached; */
    /* in the second round of a sum its relay thread writes `arrived` */
    struct shc_lone_shm released; /* relay: its thread: the newest operation or piece served */
    struct shc_cuda_record records[SHC_RECORDS];
};

/* The beginning of a part. The words that this rank waits for follow without a gap: see enum shc_host_row.
 * Then come the ends of its channels, the counts, the halves, the mail, the cells, the boxes. */
struct shc_part_shm {
    struct shc_lane_shm lane;    /* of the collectives */
    struct shc_lone_shm left;    /* its CPU, closing: 1 + the last operation */
    struct shc_lone_shm pace[2]; /* relay: its thread, alternating: SHC_PACE of an operation */
    struct {
        uint32_t status; /* enum shc_status */
        uint32_t unused;
        char text[SHC_HOST_REASON_BYTES];
    } reason; /* its CPU, once, before the abort word */
    /* Of captured operations (capture.h). */
    struct shc_lone_shm busy;   /* its stream, and its gate: SHC_BUSY of a replay, or 0 */
    struct shc_lone_shm passed; /* its gate: rounds it has completed */
    struct {                  /* its gate: SHC_VERDICT of the first failure; where ranks differ, */
        shc_a64 word, theirs; /* before that the value of the other rank's arrival */
        unsigned char pad[SHC_LINE_BYTES - 2 * sizeof(shc_a64)];
    } graph_verdict;
};

/* The rows of words that a rank waits for, each with one word per rank, which that rank writes. */
enum shc_host_row {
    SHC_ROW_ARRIVAL = 0,  /* rounds of collectives */
    SHC_ROW_CAPTURED = 1, /* captured rounds: two rows, by parity */
    SHC_ROW_SENT = 3,     /* messages: the newest piece that the rank has sent to this one */
    SHC_ROW_TAKEN = 4,    /* messages: the newest piece of this rank's that the rank has taken */
    SHC_ROWS
};

/* The beginning of an arena. */
struct shc_host_header_shm {
    uint64_t magic;
    uint64_t world, part_bytes;
    unsigned char pad[SHC_LINE_BYTES - 3 * sizeof(uint64_t)];
    struct shc_lone_shm aborted; /* 1 + the rank that failed the group: compare-and-swap, once */
};

struct shc_host {
    const struct shc_gpu *gpu;
    char *base;
    shc_cu_address device; /* of the base, as this rank's GPU sees it */
    size_t bytes, part_bytes;
    size_t ends_offset, counts_offset, halves_offset, cells_offset, boxes_offset; /* in a part */
    size_t box_bytes;
    int rank, world;
    int fd; /* while it is being made; else -1 */
};

/* The bytes of one slot: the most that a piece of a message has. */
SHC_INLINE size_t shc_mail_slot_bytes(size_t half_bytes, int world)
{
    return half_bytes / (size_t)world / SHC_LINE_BYTES * SHC_LINE_BYTES;
}

/* The halves, and after them the mail: the slots for each rank. */
SHC_INLINE size_t shc_data_bytes(size_t half_bytes, int world)
{
    const size_t slots = SHC_MAIL_SLOTS * (size_t)world;
    return SHC_HALVES * half_bytes + slots * shc_mail_slot_bytes(half_bytes, world);
}

/*
 * The steps of making an arena, collective over the ranks of the control socket: after each, all ranks
 * learn whether all could do it. half_bytes 0: no halves, no mail; cell_bytes, box_bytes 0: no cells, boxes.
 */

/* Rank 0 makes the arena, all get it, and this rank reserves its part. On failure nothing remains, and the
 * others have been told. */
SHC_NODISCARD enum shc_status shc_host_share(struct shc_control *control, size_t half_bytes,
                                             size_t cell_bytes, size_t box_bytes,
                                             uint64_t deadline_ns, struct shc_host *host);

/* Writes this rank's part, and as rank 0 the header. pre: all have reserved. */
void shc_host_begin(struct shc_host *host);

/* Shows all of it to this rank's GPU. pre: all have begun. */
SHC_NODISCARD enum shc_status shc_host_register(struct shc_host *host, const struct shc_gpu *gpu);

/* pre: nothing that is enqueued touches it. */
void shc_host_undo(struct shc_host *host);

SHC_INLINE struct shc_host_header_shm *shc_host_header(const struct shc_host *host)
{
    return (struct shc_host_header_shm *)(void *)host->base;
}

SHC_INLINE struct shc_part_shm *shc_host_part(const struct shc_host *host, int rank)
{
    return (struct shc_part_shm *)(void *)(host->base + SHC_PAGE_BYTES +
                                           (size_t)rank * host->part_bytes);
}

/* The shared part of a rank's lane of collectives. */
SHC_INLINE struct shc_lane_shm *shc_host_lane(const struct shc_host *host, int rank)
{
    return &shc_host_part(host, rank)->lane;
}

/* The word of a row that rank `from` writes and rank `to` waits for. */
SHC_INLINE struct shc_lone_shm *shc_host_word(const struct shc_host *host, int to, int row,
                                              int from)
{
    return (struct shc_lone_shm *)(void *)(shc_host_part(host, to) + 1) + row * host->world + from;
}

/* How many words a rank waits for: all rows. */
SHC_INLINE uint32_t shc_host_waited(const struct shc_host *host)
{
    return SHC_ROWS * (uint32_t)host->world;
}

/* The index of a word among those that this rank waits for. */
SHC_INLINE uint32_t shc_host_index(const struct shc_host *host, const struct shc_lone_shm *word)
{
    return (uint32_t)(word - shc_host_word(host, host->rank, 0, 0));
}

/* A rank's end of its channel to a peer, or from it. */
SHC_INLINE struct shc_lane_shm *shc_host_end(const struct shc_host *host, int rank, bool sends,
                                             int peer)
{
    char *ends = (char *)shc_host_part(host, rank) + host->ends_offset;
    return (struct shc_lane_shm *)(void *)ends + (sends ? peer : host->world + peer);
}

/* The bytes that a rank sends to each rank, then those that it receives from each, in a meeting of that
 * parity. */
SHC_INLINE uint64_t *shc_host_counts(const struct shc_host *host, int rank, uint64_t parity)
{
    char *counts = (char *)shc_host_part(host, rank) + host->counts_offset;
    return (uint64_t *)(void *)counts + (parity & 1) * 2 * (size_t)host->world;
}

SHC_INLINE char *shc_host_halves(const struct shc_host *host, int rank)
{
    return (char *)shc_host_part(host, rank) + host->halves_offset;
}

/* A rank's cells of the relay, in a row. */
SHC_INLINE char *shc_host_cells(const struct shc_host *host, int rank)
{
    return (char *)shc_host_part(host, rank) + host->cells_offset;
}

/* A rank's boxes of relayed messages, after the cells. Of the channel to each rank: two slots. Of the channel
 * from it: the bytes that are copied back, and those that the tensor held before. */
enum { SHC_BOX_SLOT = 0, SHC_BOX_RESULT = 2, SHC_BOX_OLD = 3, SHC_BOXES = 4 };

SHC_INLINE char *shc_host_box(const struct shc_host *host, int rank, int peer, int which)
{
    return (char *)shc_host_part(host, rank) + host->boxes_offset +
           ((size_t)peer * SHC_BOXES + (size_t)which) * host->box_bytes;
}

/* The address of a place in the arena, as this rank's GPU sees it. */
SHC_INLINE shc_cu_address shc_host_device(const struct shc_host *host, const void *there)
{
    return host->device + (shc_cu_address)((const char *)there - host->base);
}

/* The same as a pointer, for kernels. */
SHC_INLINE void *shc_host_pointer(const struct shc_host *host, const void *there)
{
    return shc_cu_pointer(shc_host_device(host, there));
}
