/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A group over several hosts, and what its operations share. All of it belongs to the thread that runs the operation:
 * the sequencer is a group of this rank alone, whose runner takes one operation after another (SHC_CALL).
 *
 * Every operation goes the same way:
 *   1. announce  The ranks of the island compare what they call.
 *   2. records   The leaders compare what their hosts call; the data of short calls travel along.
 *   3. verdict   The leader tells its island; only now may user memory change.
 *   4. rails     The rest, for long messages.
 * A failure anywhere fails the island and the sequencer. Another host sees it in a record, or finds that its engine's
 * call does not end.
 */

#include "hosts/dead.h"
#include "hosts/gate.h"
#include "hosts/hosts.h"
#include "hosts/hosts_plan.h"
#include "hosts/oob.h"

#include "shm/base/agreed_call.h"
#include "shm/base/attrs.h"

/* Of what hosts tell one another, and how. Hosts with another one are told in the first record. */
#define SHC_HOSTS_VERSION 3

#define SHC_HOSTS_DEPTH        3  /* chunks under way at once */
#define SHC_HOSTS_MAX_RUNS     64 /* of ranks on one host, for sums in the order of ranks */
#define SHC_HOSTS_ENGINE_BYTES 32
#define SHC_HOSTS_ANSWER_BYTES 64 /* HOST-35; what they are does not matter */

/* One operation, checked. */
struct shc_hosts_call {
    struct shc_hosts *hosts;
    const struct shc_op *op;
    uint64_t count; /* elements */
    uint32_t elem_bytes;
    bool proves;          /* a barrier before which the engines are tried */
    struct shc_call said; /* the same for texts and tools */
};

/* Sizes of an all_to_all, of one rank or of several. */
struct shc_hosts_sizes {
    uint64_t given, wanted; /* hashes of all sizes */
    uint64_t least, most;
    uint64_t width;    /* of a column */
    uint64_t longest;  /* of a tensor that goes to another host, or comes from it */
    uint64_t carried;  /* 1: all that goes to other hosts goes along with the record */
    uint64_t rate;     /* of any call: what the host has measured; in a record alone */
    uint64_t messages; /* of any call: 1, the line has messages; in a record alone */
};

/* What a host says of its call. */
struct shc_hosts_said {
    uint64_t number; /* of the call */
    uint64_t count;
    uint32_t kind, dtype, redop, elem_bytes, dtype_tag;
    int32_t root;
    /* A hash of the sizes of a list whose tensors may differ, or of a sparse tensor. */
    uint64_t list;
    uint32_t version; /* SHC_HOSTS_VERSION */
    uint8_t unused[64 - 52];
    struct shc_hosts_sizes sizes; /* is not compared */
};

/* What goes between the leaders; `payload` follows. */
struct shc_hosts_record {
    struct shc_hosts_said said;
    uint32_t status; /* not SHC_OK: the payload is the text */
    uint32_t unused[13];
};

/* Parts of the staging memory. */
struct shc_hosts_stage {
    char *said;    /* of the ranks of the island, shc_hosts_said each */
    char *record;  /* one, with its payload; more than two hosts: room for one for each */
    char *records; /* all hosts' */
    char *given;   /* this host's data that go along with its record */
    char *taken;   /* the other hosts' */
    char *verdict; /* 64 bytes, then data */
    char *text;    /* of a bad verdict */
    char *answers; /* of hosts that live without the store */
    char *narrow;  /* a chunk of user memory that is not contiguous */
    char *wide;    /* a chunk in the type of the sums */
    struct {
        char *in, *out, *sum;
        char *inputs; /* of all ranks of the host; only if sums are added in the order of ranks */
    } chunk[SHC_HOSTS_DEPTH];
};

struct shc_hosts {
    struct shc_hosts_plan plan;
    int rank, host, local;
    char name[64];
    char prefix[SHC_HOSTS_PREFIX_BYTES]; /* of its keys */
    uint64_t id;                         /* the same on all hosts; for tools */
    char engine[SHC_HOSTS_ENGINE_BYTES]; /* its name */
    char **words; /* on rank 0, by rank: of the first rank of each host; NULL: none */
    bool by_rank, wide;
    struct shc_comm *sequencer, *island;
    struct shc_fabric line, rail;
    struct shc_gate *gate; /* NULL: not connected */
    struct shc_hosts_stage stage;
    struct shc_hosts_p2p *p2p; /* NULL: no messages between hosts */
    struct shc_dead dead;      /* what is known of failures of other hosts */
    size_t payload_bytes;
    uint64_t known_rate;            /* of the wish; 0: none */
    const void **sources;           /* room for a pointer for each rank */
    uint64_t *in_bytes, *out_bytes; /* and for its blocks of an exchange */
    bool (*interrupted)(void *ctx);
    void *interrupted_ctx;
    bool making; /* the island's rendezvous is under way */

    /* Of the operation that runs. */
    uint64_t number;
    struct shc_hosts_sizes sizes; /* of the island */
    uint64_t rate; /* of the slowest host's link (hosts_plan.h), once hosts have met */
    bool messages; /* all lines have them; known, as the rate is, once hosts have met */
    struct shc_turn *turn;
    uint64_t deadline_ns;
};

SHC_INLINE bool shc_hosts_leads(const struct shc_hosts *hosts)
{
    return hosts->local == 0;
}

/* As the user knows the group. */
SHC_INLINE const char *shc_hosts_group_name(const struct shc_hosts *hosts)
{
    return shc_comm_group_name(hosts->sequencer);
}

SHC_INLINE bool shc_hosts_carries(const struct shc_hosts *hosts)
{
    return hosts->local < hosts->plan.rails;
}

SHC_INLINE size_t shc_hosts_record_bytes(const struct shc_hosts *hosts)
{
    return sizeof(struct shc_hosts_record) + hosts->payload_bytes;
}

SHC_INLINE struct shc_hosts_record *shc_hosts_record_of(const struct shc_hosts *hosts, int host)
{
    char *at = hosts->stage.records + (size_t)host * shc_hosts_record_bytes(hosts);
    return (struct shc_hosts_record *)(void *)at;
}

/* The leader: this host's, before hosts meet. */
SHC_INLINE struct shc_hosts_record *shc_hosts_own_record(const struct shc_hosts *hosts)
{
    return (struct shc_hosts_record *)(void *)hosts->stage.record;
}

/* The payload of a record. */
SHC_INLINE char *shc_hosts_payload(struct shc_hosts_record *record)
{
    return (char *)(record + 1);
}

/* The store is gone (HOST-10). */
SHC_INLINE bool shc_dead_lacks_store(const struct shc_hosts *hosts)
{
    const struct shc_dead *dead = &hosts->dead;
    if (!dead->oob)
        return false;
    shc_oob_lock(dead->oob);
    const bool gone = dead->gone;
    shc_oob_unlock(dead->oob);
    return gone;
}

/* A contiguous tensor of staging memory. `size` lives as long. */
SHC_INLINE struct shc_tensor shc_hosts_flat(void *data, const int64_t *size)
{
    return (struct shc_tensor){.data = data, .ndim = 1, .sizes = size};
}

/* ---- hosts_map.c ---- */

/* Finds the map and makes this rank's island: fills plan, host, local and island. */
SHC_NODISCARD enum shc_status shc_hosts_map(struct shc_hosts *hosts,
                                            const struct shc_comm_config *config,
                                            const struct shc_hosts_wish *wish, char *error);
void shc_hosts_map_fini(struct shc_hosts *hosts, int world);

/* ---- hosts_text.c ---- */

#define SHC_HOSTS_CALL_TEXT 160

/* Fills `said` of a call that is checked. */
void shc_hosts_say_call(struct shc_hosts_call *call);

/* What this rank says of its call. */
struct shc_hosts_said shc_hosts_said_of(const struct shc_hosts_call *call);

/* "all_reduce #12 (float32[4], sum)" */
void shc_hosts_said_text(const struct shc_hosts_said *said, char *text, size_t capacity);
void shc_hosts_call_text(const struct shc_hosts_call *call, char *text, size_t capacity);

/* Sets the text of the operation that runs, and returns the status. */
SHC_NODISCARD SHC_COLD enum shc_status shc_hosts_fail(struct shc_hosts *hosts,
                                                      enum shc_status status, const char *format,
                                                      ...) SHC_PRINTF(3, 4);

/* Copies a failure's text where there is none yet, and returns the status. */
SHC_NODISCARD enum shc_status shc_hosts_say(char *error, enum shc_status st);

/* ---- hosts_call.c ---- */

/* The island's `interrupted`: its thread may be one of the library's, which asks nothing. */
bool shc_hosts_is_interrupted(void *hosts);

/* The first operation of the island in a call: who is missing is not there yet. */
SHC_NODISCARD enum shc_status shc_hosts_island_first(struct shc_hosts *hosts, struct shc_op *op);

/* Runs an operation of the island. Its time is what is left, and a little more: a rank that waits for another host
 * names it before the others of its island give up. */
SHC_NODISCARD enum shc_status shc_hosts_island(struct shc_hosts *hosts, struct shc_op *op);

/* A ticket for a call of an engine. SHC_ERR_NOMEM. */
SHC_NODISCARD enum shc_status shc_hosts_ticket(struct shc_hosts *hosts, struct shc_ticket **ticket);

/* The same for a call of the rail that brings `bytes` of other hosts. */
SHC_NODISCARD enum shc_status shc_hosts_rail_ticket(struct shc_hosts *hosts, uint64_t bytes,
                                                    struct shc_ticket **ticket);

/* An engine has refused to begin a call: its ticket is gone. 0: it has begun. */
SHC_NODISCARD enum shc_status shc_hosts_begun(struct shc_hosts *hosts, struct shc_ticket **ticket,
                                              int error);

/* Waits for the end of the call. The ticket is gone after that, and NULL. */
SHC_NODISCARD enum shc_status shc_hosts_await(struct shc_hosts *hosts, struct shc_ticket **ticket);

/* ---- hosts_between.c ---- */

/* Begins an exchange on this rank's rail, of blocks of `bytes` each. */
SHC_NODISCARD enum shc_status shc_hosts_exchange_even(struct shc_hosts *hosts, const char *in,
                                                      uint64_t bytes, char *out,
                                                      struct shc_ticket **ticket);

/* The leader: begins to bring the first `bytes` of its record to all other leaders. `out`: those of all, in the order of
 * hosts. The blocks go all at once: a gather of torch's gloo is a ring, whose steps wait for one another. */
SHC_NODISCARD enum shc_status shc_hosts_tell_leaders(struct shc_hosts *hosts, uint64_t bytes,
                                                     char *out, struct shc_ticket **ticket);

/* Begins to bring `bytes` of each host to all on this rank's rail, in the order of hosts. Two hosts exchange them: torch's gloo copies what
 * it gathers once more, through memory that it allocates for each call (benchmarks/hosts/against_gloo.py). */
SHC_NODISCARD enum shc_status shc_hosts_gather_even(struct shc_hosts *hosts, const char *in,
                                                    uint64_t bytes, char *out,
                                                    struct shc_ticket **ticket);

/* ---- hosts_turn.c ---- */

/* The function of the sequencer's call; ctx: the struct shc_hosts_call. */
SHC_NODISCARD enum shc_status shc_hosts_turn(void *ctx, struct shc_turn *turn);

/* Checks the operation, and fills the call. */
SHC_NODISCARD enum shc_status shc_hosts_describe(struct shc_hosts *hosts, const struct shc_op *op,
                                                 struct shc_hosts_call *call, char *error);

/* ---- hosts_prove.c ---- */

/* Tries each call of this rank's engine. */
SHC_NODISCARD enum shc_status shc_hosts_try_rail(struct shc_hosts *hosts);

/* ---- hosts_record.c ---- */

/* Compares the call with those of the island's ranks. The leader tells the other hosts of a difference. */
SHC_NODISCARD enum shc_status shc_hosts_announce(const struct shc_hosts_call *call);

/* The data of a short call (hosts_payload.c). */
struct shc_hosts_data {
    const void *ctx;
    /* Bytes of what `from` gives that are a message to `to`: none if they are in the record. Both hosts say the same.
     * shc_hosts_message_of() says it where all others get the same. */
    struct shc_slice (*message)(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to);
    /* Makes what the island gets of what all hosts gave; NULL: it gets nothing. */
    enum shc_status (*make)(const struct shc_hosts_call *call, const void *ctx, char *to);
    /* Compares what only this operation's records have; NULL: nothing. Before messages are awaited, because those of
     * hosts that disagree on their size do not come. */
    enum shc_status (*compare)(const struct shc_hosts_call *call, const void *ctx);
};

/* The leader: exchanges the record and this host's data, and compares. All ranks: the leader's verdict, and `bytes` that
 * the leader made. *made: where they are. data: NULL: none. */
SHC_NODISCARD enum shc_status shc_hosts_meet(const struct shc_hosts_call *call, size_t bytes,
                                             const struct shc_hosts_data *data, char **made);

/* The store is gone: fails the call that begins. The leader tells the others (HOST-35), and finds out whether a host has
 * died with the store (HOST-34). */
SHC_NODISCARD enum shc_status shc_hosts_tell_gone(const struct shc_hosts_call *call);

/* A leader: exchanges the records, which say what became of each host, and compares them. Returns a failure of its own, or
 * the first one of the others. */
SHC_NODISCARD enum shc_status shc_hosts_agree_leaders(const struct shc_hosts_call *call,
                                                      enum shc_status st);

/* A barrier in which ranks say what became of them: all get the first failure. */
SHC_NODISCARD enum shc_status shc_hosts_agree(const struct shc_hosts_call *call,
                                              enum shc_status st);

/* ---- hosts_payload.c ---- */

/* The longest message along with a record; 0: there are none. The same on all hosts. */
uint64_t shc_hosts_message_bytes(const struct shc_hosts *hosts);

/* Of a host that gives all others the same bytes: the message to one that gets them. None if they fit the record. */
SHC_INLINE struct shc_slice shc_hosts_message_of(const struct shc_hosts *hosts, uint64_t bytes,
                                                 bool gets)
{
    return (struct shc_slice){0, gets && bytes > hosts->payload_bytes ? bytes : 0};
}

/* A call whose hosts give all others the same bytes is short if these are at most so many. */
uint64_t shc_hosts_short_bytes(const struct shc_hosts *hosts);

/* Room for what all hosts give in a short call. */
size_t shc_hosts_data_bytes(const struct shc_hosts *hosts);

/* Where a host's data are put that are `bytes` in all, before hosts meet. */
char *shc_hosts_data_given(const struct shc_hosts *hosts, uint64_t bytes);

/* The leader, after that: where the data are that `host` gave this host, of `bytes` in all. Those of this host begin at
 * `first` of them. */
const char *shc_hosts_data_taken(const struct shc_hosts *hosts, int host, uint64_t first,
                                 uint64_t bytes);

/* The leader's messages, by host. */
struct shc_hosts_messages {
    struct shc_ticket *sends[SHC_HOSTS_EAGER_HOSTS], *receives[SHC_HOSTS_EAGER_HOSTS];
};

/* Whatever becomes of it, shc_hosts_messages_abandon() comes last. */
SHC_NODISCARD enum shc_status shc_hosts_messages_begin(const struct shc_hosts_call *call,
                                                       const struct shc_hosts_data *data,
                                                       struct shc_hosts_messages *messages);
SHC_NODISCARD enum shc_status shc_hosts_messages_await(struct shc_hosts *hosts,
                                                       struct shc_ticket **tickets);
void shc_hosts_messages_abandon(const struct shc_hosts_messages *messages);

/* ---- vector.c ---- */

uint64_t shc_vector_elements(const struct shc_tensor *tensor);

/* The memory of all elements from `first` on, if it is one contiguous piece; else NULL. */
char *shc_vector_at(const struct shc_tensors *tensors, uint32_t elem_bytes, uint64_t first);

/* Copies elements [first, first + count) of the vector to contiguous memory, or from there. */
void shc_vector_read(const struct shc_tensors *tensors, uint32_t elem_bytes, struct shc_slice part,
                     void *to);
void shc_vector_write(const struct shc_tensors *tensors, uint32_t elem_bytes, struct shc_slice part,
                      const void *from);

/* ---- hosts_chunk.c ---- */

/* A chunk under way. All zero: none is. */
struct shc_hosts_chunk {
    struct shc_slice part;  /* of the vector */
    struct shc_slice slice; /* of the part: this rank's; none if it carries no rail */
    uint64_t piece;         /* elements that each host adds, where hosts add parts of a slice */
    struct shc_ticket *ticket;
};

/* One pass over all chunks: while the engine has one chunk, the island has another. Each function is called for each
 * chunk, and a later one for an earlier chunk. Afterwards no call is waited for. */
struct shc_hosts_steps {
    enum shc_status (*step[SHC_HOSTS_DEPTH])(void *ctx, struct shc_hosts_chunk *chunk, int place);
    void *ctx;
    /* Makes a chunk, which is all zero before. */
    void (*cut)(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk);
};
SHC_NODISCARD enum shc_status shc_hosts_pass(const struct shc_hosts_steps *steps, uint64_t chunks);

/* The same for the chunks of a vector, of `each` elements; without `cut`. */
SHC_NODISCARD enum shc_status shc_hosts_pass_vector(const struct shc_hosts_call *call,
                                                    uint64_t each,
                                                    const struct shc_hosts_steps *steps);

/* ---- hosts_island.c: bytes in the island; sizes are by local rank ---- */

/* Every rank gives `sizes` of its own from `in`, and gets all, one after the other. */
SHC_NODISCARD enum shc_status shc_hosts_share(struct shc_hosts *hosts, const char *in,
                                              const uint64_t *sizes, char *out);

/* Every rank gives each one `give` of its bytes, and gets `take` of each; both lie one after the other. */
SHC_NODISCARD enum shc_status shc_hosts_swap(struct shc_hosts *hosts, const char *in,
                                             const uint64_t *give, char *out, const uint64_t *take);

/* `data` of local rank `root` reaches all. */
SHC_NODISCARD enum shc_status shc_hosts_give(struct shc_hosts *hosts, int root, char *data,
                                             uint64_t bytes);

/* Every rank of the island has its slice, and gets the whole part. */
SHC_NODISCARD enum shc_status shc_hosts_collect(struct shc_hosts *hosts,
                                                const struct shc_hosts_chunk *chunk,
                                                uint32_t elem_bytes, const char *slice, char *part);

/* ---- the operations; gather and scatter: those that gather or scatter for all, too ---- */

SHC_NODISCARD enum shc_status shc_hosts_reduce(const struct shc_hosts_call *call);
SHC_NODISCARD enum shc_status shc_hosts_broadcast(const struct shc_hosts_call *call);
SHC_NODISCARD enum shc_status shc_hosts_scatter(const struct shc_hosts_call *call);
SHC_NODISCARD enum shc_status shc_hosts_alltoall(const struct shc_hosts_call *call);

SHC_NODISCARD enum shc_status shc_hosts_gather(const struct shc_hosts_call *call);
SHC_NODISCARD enum shc_status shc_hosts_sparse(const struct shc_hosts_call *call);

/* ---- hosts_order.c ---- */

/* Must the inputs be added in the order of all ranks, which is another one than that of hosts? */
bool shc_hosts_is_ordered(const struct shc_hosts *hosts, const struct shc_op *op);

/* Then these are the sums: all_reduce, reduce and reduce_scatter. */
SHC_NODISCARD enum shc_status shc_hosts_ordered(const struct shc_hosts_call *call);
