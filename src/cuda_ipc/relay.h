/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The relay: collectives and messages through host memory, without a kernel (docs/internals/cuda/relay.md). Contexts
 * that share a GPU take turns at kernels, 0.18 ms each; copies to and from host memory, and words in
 * it, need none. A rank's stream copies its bytes into the host arena, tells that by a word, and waits. A thread
 * of the group reduces or moves all ranks' bytes there, and lets the stream copy the result back.
 *
 * A failed operation changes nothing in a user's tensor: the stream then copies back what the tensor held
 * before. So the thread never needs the driver, and no wait needs to be poisoned.
 */

#include "cuda_ipc/demand.h"
#include "cuda_ipc/lane.h"
#include "cuda_ipc/rounds.h"
#include "cuda_ipc/sys.h"

#include <pthread.h>

struct shc_cuda_comm;
struct shc_end;
struct shc_work;

enum shc_relay_state {
    SHC_RELAY_ENQUEUING = 0,
    SHC_RELAY_ENQUEUED, /* to the last copy, or at least to the wait before them */
    SHC_RELAY_BROKEN,   /* nothing will be copied back */
};

/* An operation that was handed to the thread. */
struct shc_relayed {
    uint64_t sequence;
    uint64_t round; /* its first; a sum in two has the next one as well */
    uint64_t call[SHC_RECORD_CALL_WORDS];
    enum shc_dtype dtype;
    enum shc_redop redop;
    uint32_t elem_bytes;
    bool two, in_place, paced;
    uint64_t out_bytes;
    /* Of a sum in two the second round's moves come first, and after them the first's. */
    size_t fetches, move_count;
    struct shc_move *moves;
    shc_a32 state; /* enum shc_relay_state: written by the enqueuing thread */
};

/* A rank's report on the relayed operation before the one of this number: did its stream take longer to
 * bring the result back than a round of kernels takes? */
#define SHC_PACE(sequence, slow) ((sequence) << 1 | ((slow) ? 1 : 0))

/* The paces of operations, by number, the same on all ranks. A few more than can be in flight. */
#define SHC_PACES ((size_t)4 * SHC_RECORDS)
enum shc_pace { SHC_PACE_UNKNOWN = 0, SHC_PACE_FAST, SHC_PACE_SLOW };

/*
 * Entries for the relay thread, in order, in a ring of SHC_RECORDS. One thread at a time hands over (its caller
 * holds a lock); the relay thread serves.
 */
struct shc_relay_queue {
    shc_a64 pushed, served; /* totals */
};

/* The place of the next entry. It is free, or will be soon: the stream is past the entry that was there. */
SHC_INLINE size_t shc_relay_queue_place(const struct shc_relay_queue *queue)
{
    uint64_t pause_ns = 0;
    /* relaxed: written by the thread that hands over. */
    const uint64_t pushed = shc_a64_load_relaxed(&queue->pushed);
    /* acquire relay/served <- release in shc_relay_queue_pop(): the thread no longer looks at that place. */
    while (pushed - shc_a64_load_acquire(&queue->served) >= SHC_RECORDS)
        shc_sys_nap(&pause_ns);
    return pushed % SHC_RECORDS;
}

SHC_INLINE void shc_relay_queue_push(struct shc_relay_queue *queue)
{
    /* relaxed: written by the thread that hands over. */
    const uint64_t pushed = shc_a64_load_relaxed(&queue->pushed);
    /* release relay/pushed -> acquire in shc_relay_queue_has(): the entry. */
    shc_a64_store_release(&queue->pushed, pushed + 1);
}

/* The thread's: how many it has served. The next entry lies at that place, modulo SHC_RECORDS. */
SHC_INLINE uint64_t shc_relay_queue_served(const struct shc_relay_queue *queue)
{
    /* relaxed: this thread's own. */
    return shc_a64_load_relaxed(&queue->served);
}

/* The thread's: is there a next one? */
SHC_INLINE bool shc_relay_queue_has(const struct shc_relay_queue *queue)
{
    /* acquire relay/pushed <- release in shc_relay_queue_push(): the entry. */
    return shc_a64_load_acquire(&queue->pushed) != shc_relay_queue_served(queue);
}

/* The thread's: it has served the next one. */
SHC_INLINE void shc_relay_queue_pop(struct shc_relay_queue *queue)
{
    /* release relay/served -> acquire in shc_relay_queue_place(): the place is free. */
    shc_a64_store_release(&queue->served, shc_relay_queue_served(queue) + 1);
}

/* The relay's round at which a rank's stream, or its thread, has arrived last. */
SHC_INLINE uint64_t shc_relay_arrival(const struct shc_host *host, int rank)
{
    /* acquire cuda/relay <- release in the device, or in consume(): what lies in the rank's half. */
    return shc_a64_load_acquire(&shc_host_lane(host, rank)->arrived.word);
}

/* A receive that was handed to the thread. */
struct shc_relayed_receive {
    uint64_t number, piece;
    uint64_t bytes;
    shc_a32 state; /* enum shc_relay_state */
};

/* The receives of one end, in its order; independent of the collectives and of other ends. */
struct shc_relay_receives {
    struct shc_relay_queue queue; /* handed over under the mail's lock */
    struct shc_relayed_receive ring[SHC_RECORDS];
};

struct shc_relay {
    /* Constant once it is made. */
    size_t limit; /* the largest operation, in bytes; 0: there is no relay */
    size_t cell_bytes;
    size_t box_bytes; /* the largest message */
    bool busy_waits;  /* a thread of each rank has a CPU of its own */
    char reason[200]; /* why there is none, or "" */
    /* Guarded by order_lock. */
    uint64_t round;
    uint64_t counted; /* operations up to this number have counted */
    int slowness;     /* of late */
    uint64_t next_backoff, trial, hold;
    uint64_t backoff; /* the operations that still go by kernels */
    shc_a64 backoffs; /* how often that began */
    /* Written under order_lock, then by the thread. */
    shc_a32 paces[SHC_PACES];     /* enum shc_pace, by number */
    struct shc_relay_queue queue; /* of operations, handed over under order_lock */
    struct shc_relayed ring[SHC_RECORDS];
    struct shc_move *moves;
    /* Written under the mail's lock: ends that receive, in the order in which they first did. */
    struct shc_end *ends[SHC_MAX_WORLD];
    shc_a32 end_count;
    shc_a64 messages; /* relayed ones, in or out */
    /* Guarded by state_lock. */
    pthread_cond_t stir;
    bool asleep;
    /* The thread's. */
    uint64_t timed;     /* the operation that its stream brings back; 0: none, or long enough */
    uint64_t timed_ns;  /* since when */
    uint64_t undone_ns; /* it was last seen under way */
    bool slow;          /* too long already */
    uint64_t before;    /* the operation that was served last */
    bool paced, before_paced; /* does its time count? and that of the one before it? */
    uint64_t failed_ns;       /* when it saw that the group had failed; 0: it has not */
    shc_a32 stopping;
    struct shc_sys_thread thread;
    bool started;
};

/* The default of a group's limit, in bytes; 0: these ranks are faster by kernels. The same on all ranks. */
size_t shc_relay_limit(const struct shc_cuda_comm *comm);

/* The bytes of a cell in the host arena for operations of that size, and of a box for messages. */
size_t shc_relay_cell_bytes(size_t limit, int world);
size_t shc_relay_box_bytes(size_t limit, int world);

/* ---- relayprobe.c ---- */

/* *works: does a CPU's store end a stream's wait, as what is in the stream is let go? pre: the host arena
 * is registered; this rank's `released` word is not in use yet. */
SHC_NODISCARD enum shc_status shc_relay_look(struct shc_cuda_comm *comm, bool *works);

/* ---- relay.c ---- */

/* Makes the thread. pre: limit and cell_bytes are set, and not 0; the host arena is there. */
SHC_NODISCARD enum shc_status shc_relay_start(struct shc_cuda_comm *comm);

/* pre: this rank's streams are past all operations, or the group has failed. */
void shc_relay_stop(struct shc_cuda_comm *comm);

/* Does this operation go by the relay? If so, half_bytes and two are set to what it takes: one round, or two
 * for a sum. All ranks that make the same call get the same answer. pre: of an all_to_all `fullest` is known. */
bool shc_relay_takes(const struct shc_cuda_comm *comm, struct shc_rounds *rounds);

/* Enqueues the operation that comm->demand holds, all of it. pre: order_lock is held, the GPU entered;
 * its record is published. */
SHC_NODISCARD enum shc_status shc_relay_enqueue(struct shc_work *work);

/* ---- of both files ---- */

/* Enqueues copies between a piece of a vector and host memory of the arena. */
SHC_NODISCARD enum shc_status shc_relay_copy_out(const struct shc_cuda_comm *comm,
                                                 struct shc_cu_stream *stream, char *host,
                                                 struct shc_flat *flat, uint64_t at,
                                                 uint64_t bytes);
SHC_NODISCARD enum shc_status shc_relay_copy_back(const struct shc_cuda_comm *comm,
                                                  struct shc_cu_stream *stream, char *host,
                                                  struct shc_flat *flat);

/* Hands the queue's next entry, whose state this is, to the thread. */
void shc_relay_hand_over(struct shc_cuda_comm *comm, struct shc_relay_queue *queue, shc_a32 *state);

/* Enqueues what says that the stream has arrived, and a wait that only the relay thread ends. */
SHC_NODISCARD enum shc_status shc_relay_meet(const struct shc_cuda_comm *comm,
                                             const struct shc_lane *lane,
                                             struct shc_cu_stream *stream, uint64_t arrived,
                                             uint64_t released);

/* Tells the thread how far the enqueuing of an entry came: to the wait, or not. */
void shc_relay_settle(shc_a32 *state, enum shc_status st);

/* The thread's: how far it came. */
enum shc_relay_state shc_relay_state_of(const shc_a32 *state);

/* The thread's: lets the stream go on that waits for this value. */
void shc_relay_release(const struct shc_lane *lane, uint64_t value);

/* ---- relaypace.c ---- */

/* May operations go by the relay now? Where other contexts keep the GPU busy, each step of a stream waits for
 * their turns, so that kernels, which take one, are faster: then not for a while. All ranks decide alike, by
 * what all know of operations that are over. pre: order_lock is held; room for the record of this number. */
bool shc_relay_is_fast(struct shc_cuda_comm *comm, uint64_t sequence);

/* Does the time of an operation of so many bytes count? Of long ones copies take as long as turns. */
bool shc_relay_is_paced(uint64_t bytes);

/* The thread's: has the stream brought back what it was let go with? */
void shc_relay_look_at_pace(struct shc_cuda_comm *comm);
/* After the look at the abort word: what have all ranks said? */
void shc_relay_agree_on_pace(struct shc_cuda_comm *comm, const struct shc_relayed *op);
/* Before the stream is let go on with this operation: how was the one before? */
void shc_relay_tell_pace(struct shc_cuda_comm *comm, const struct shc_relayed *op);

/* ---- relaymail.c ---- */

/* A message of one piece, as work in a stream. pre: the mail's lock is held, the GPU entered; the record
 * is published; the stream is past the end's message before it; a SEND's slot is free by then. */
SHC_NODISCARD enum shc_status shc_relay_send(struct shc_cuda_comm *comm, struct shc_end *end,
                                             struct shc_cu_stream *stream, struct shc_flat *flat,
                                             uint64_t piece);
SHC_NODISCARD enum shc_status shc_relay_receive(struct shc_cuda_comm *comm, struct shc_end *end,
                                                struct shc_cu_stream *stream, struct shc_flat *flat,
                                                uint64_t number, uint64_t piece);

/* The thread's: serves what can be served of messages. True: there was some. Does not wait. */
bool shc_relay_serve_receives(struct shc_cuda_comm *comm);
/* Is a receive pending? */
bool shc_relay_has_receives(const struct shc_relay *relay);
