/* SPDX-License-Identifier: BSD-3-Clause */
/* What the thread of flights.h does: all of this file belongs to it, except what the header declares. */
#include "hosts/hosts_p2p.h"

#include "hosts/flights.h"
#include "hosts/group.h"

#include "shm/base/clock.h"
#include "shm/p2p/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC        0x53686d31u         /* "Shm1" */
#define FRAME_BYTES  1024                /* of a frame with its payload */
#define CHUNK_BYTES  ((size_t)512 << 10) /* of a long message */
#define CHUNKS       2                   /* of one message, under way at once */
#define STREAMS      8                   /* long messages under way at once, in each direction */
#define FRAME_SLOT   0u
#define FIRST_SLOT   1u
#define SLOTS        (1u << 30)
#define MONITOR_SLOT (SLOTS + 1)           /* nothing is ever sent there */
#define LOOK_NS      (20 * SHC_NS_PER_MS)  /* between two looks while something is in doubt */
#define LATE_NS      (100 * SHC_NS_PER_MS) /* then a rank that is waited for is watched */
#define ASK_NS \
    (500 * SHC_NS_PER_MS) /* and after each so long the store is asked whether it has left */
#define HINT_LOOKS 4      /* an engine's error is only a hint for so many looks */
#define LEFT_LOOKS 10     /* what a rank sent before it left may be on its way for so many */

/* What goes over the network. */
struct envelope {
    uint32_t magic;
    int32_t from; /* its rank */
    struct shc_remote_frame frame;
    uint8_t unused[FRAME_BYTES - 8 - sizeof(struct shc_remote_frame) - SHC_REMOTE_EAGER_BYTES];
    uint8_t payload[SHC_REMOTE_EAGER_BYTES];
};
_Static_assert(sizeof(struct envelope) == FRAME_BYTES, "one size for all ranks");

/* A long message under way. */
struct stream {
    struct stream *next;
    int index; /* of the other rank */
    uint32_t number;
    bool goes_out;
    uint64_t bytes, begun, ended;
    bool busy[CHUNKS]; /* the slot of every CHUNKS-th chunk */
};

enum flight_kind { ANY_FRAME, FRAME, CHUNK, MONITOR };

struct peer {
    bool busy;                   /* a frame is on its way to it */
    bool watched;                /* a receive of the monitor is under way */
    uint64_t wanted_ns;          /* since when a message waits for it; 0: none does */
    struct shc_work_item *asked; /* whether it has left; NULL: not under way */
    uint64_t ask_ns;             /* when it is asked next */
    bool broken;                 /* the engine has failed with it, or it has left */
    uint64_t look_ns;            /* then, or at the last look for the reason after it */
    int looks;                   /* that many */
    char error[256];
};

struct shc_hosts_p2p {
    struct shc_hosts *hosts;
    struct shc_p2p *messages;
    struct shc_flights *flights;
    int self;   /* this rank */
    int locals; /* ranks of this host: the first number of a rank of another one */
    int others;
    int32_t *rank_of;  /* [others] */
    int32_t *index_of; /* [all ranks]; -1: of this host */

    /* Of the thread. */
    bool began;
    struct peer *peers; /* [others] */
    struct stream *streams;
    bool in_doubt; /* it looks again soon */
    bool asks;     /* it looks again in some time */
};

/* ---- failures ---- */

/* The group cannot go on. */
static void fail(struct shc_hosts_p2p *p2p, const char *text)
{
    shc_comm_abort(p2p->hosts->island, text);
}

static void no_memory(struct shc_hosts_p2p *p2p)
{
    fail(p2p, "no memory for messages between hosts");
}

/* REM-8: the engine has failed with that rank, or it has left (""). Why, others may be about to tell. */
static void note_broken(struct shc_hosts_p2p *p2p, int index, const char *error)
{
    struct peer *peer = &p2p->peers[index - p2p->locals];
    if (peer->broken)
        return;
    peer->broken = true;
    peer->look_ns = shc_clock_ns();
    snprintf(peer->error, sizeof peer->error, "%.200s", error);
}

static void check_broken(struct shc_hosts_p2p *p2p, int index, uint64_t now_ns)
{
    struct peer *peer = &p2p->peers[index - p2p->locals];
    const int rank = p2p->rank_of[index - p2p->locals];
    char text[512];
    if (now_ns - peer->look_ns >= LOOK_NS) {
        peer->looks++;
        peer->look_ns = now_ns;
        shc_oob_stir(p2p->hosts->dead.oob); /* the store is asked now */
    }
    if (peer->looks < (peer->error[0] ? HINT_LOOKS : LEFT_LOOKS)) {
        p2p->in_doubt = true;
        return;
    }
    const int name = p2p->hosts->plan.name_of[rank], host = p2p->hosts->plan.host_of[rank];
    if (peer->error[0])
        snprintf(
            text, sizeof text,
            "the connection to rank %d (host %d) has ended, so it has left the group, or died: "
            "%s",
            name, host, peer->error);
    else
        snprintf(text, sizeof text, "rank %d (host %d) has left the group", name, host);
    shc_remote_gone(p2p->messages, index, text);
}

/* REM-10: a rank that has never used messages has no connection that could end. */
static void ask_for_peer(struct shc_hosts_p2p *p2p, int index, uint64_t now_ns)
{
    struct peer *peer = &p2p->peers[index - p2p->locals];
    p2p->asks = true;
    if (!peer->asked && now_ns >= peer->ask_ns)
        peer->asked = shc_dead_ask_gone(p2p->hosts, p2p->rank_of[index - p2p->locals]);
    if (!peer->asked)
        return;
    p2p->in_doubt = true;
    if (!shc_work_item_wait(peer->asked, 0))
        return;
    if (shc_dead_is_gone(peer->asked))
        note_broken(p2p, index, "");
    shc_work_item_drop(peer->asked);
    peer->asked = NULL;
    peer->ask_ns = now_ns + ASK_NS;
}

/* REM-6: a rank that a message has waited for for some time is watched: by a receive that ends when the connection
 * does. */
static void watch_peer(struct shc_hosts_p2p *p2p, int index, uint64_t now_ns)
{
    struct peer *peer = &p2p->peers[index - p2p->locals];
    if (!shc_remote_waits(p2p->messages, index)) {
        peer->wanted_ns = 0;
        return;
    }
    if (peer->wanted_ns == 0)
        peer->wanted_ns = now_ns;
    if (now_ns - peer->wanted_ns < LATE_NS) {
        p2p->in_doubt = true;
        return;
    }
    ask_for_peer(p2p, index, now_ns);
    if (peer->watched)
        return;
    struct shc_flight *flight = shc_flight_new(p2p->flights, MONITOR, index, 8);
    if (!flight)
        return;
    peer->watched = true;
    shc_flight_receive(flight, p2p->rank_of[index - p2p->locals], MONITOR_SLOT);
}

static void look_at_peers(struct shc_hosts_p2p *p2p)
{
    const uint64_t now_ns = shc_clock_ns();
    p2p->in_doubt = p2p->asks = false;
    if (!shc_remote_pends(p2p->messages))
        return;
    for (int i = 0; i < p2p->others; i++)
        if (p2p->peers[i].broken)
            check_broken(p2p, p2p->locals + i, now_ns);
        else
            watch_peer(p2p, p2p->locals + i, now_ns);
}

/* ---- frames ---- */

static void receive_any(struct shc_hosts_p2p *p2p)
{
    struct shc_flight *flight = shc_flight_new(p2p->flights, ANY_FRAME, -1, FRAME_BYTES);
    if (flight)
        shc_flight_receive(flight, -1, FRAME_SLOT);
    else
        no_memory(p2p);
}

static void begin_stream(struct shc_hosts_p2p *p2p, int index, struct shc_remote_flow flow,
                         bool goes_out)
{
    struct stream *stream = calloc(1, sizeof *stream), **end = &p2p->streams;
    if (!stream) {
        no_memory(p2p);
        return;
    }
    stream->index = index;
    stream->number = flow.number;
    stream->bytes = flow.bytes;
    stream->goes_out = goes_out;
    while (*end)
        end = &(*end)->next;
    *end = stream; /* the oldest one first */
}

/* REM-2: sends the next frame to that rank, if there is one. */
static void send_frame(struct shc_hosts_p2p *p2p, int index)
{
    struct peer *peer = &p2p->peers[index - p2p->locals];
    struct shc_remote_flow flow;
    struct envelope next = {.magic = MAGIC, .from = p2p->self};
    if (peer->busy || peer->broken ||
        !shc_remote_next(p2p->messages, index, &next.frame, next.payload, &flow))
        return;
    struct shc_flight *flight = shc_flight_new(p2p->flights, FRAME, index, FRAME_BYTES);
    if (!flight) {
        no_memory(p2p);
        return;
    }
    memcpy(flight->data, &next, sizeof next);
    peer->busy = true;
    if (flow.bytes > 0)
        begin_stream(p2p, index, flow, false);
    shc_flight_send(flight, p2p->rank_of[index - p2p->locals], FRAME_SLOT);
}

/* A frame has come: its memory is this rank's alone by now. */
static void take_frame(struct shc_hosts_p2p *p2p, const struct shc_flight *flight)
{
    const struct envelope *came = (const struct envelope *)(const void *)flight->data;
    const int from = came->from;
    const int index = from >= 0 && from < p2p->hosts->plan.world ? p2p->index_of[from] : -1;
    struct shc_remote_flow flow;
    char text[160];
    enum shc_status st = SHC_ERR_INVALID;
    if (came->magic == MAGIC && index >= 0)
        st = shc_remote_take(p2p->messages, index, &came->frame, came->payload, &flow);
    if (st == SHC_OK && flow.bytes > 0)
        begin_stream(p2p, index, flow, true);
    if (st == SHC_ERR_NOMEM)
        no_memory(p2p);
    if (st != SHC_ERR_INVALID)
        return;
    snprintf(text, sizeof text, "rank %d got a frame that no rank sends now (of rank %d, kind %u)",
             (int)p2p->hosts->plan.name_of[p2p->self],
             index >= 0 ? (int)p2p->hosts->plan.name_of[from] : from, came->frame.kind);
    fail(p2p, text);
}

/* ---- bytes ---- */

static size_t slot_of(uint64_t offset)
{
    return (size_t)(offset / CHUNK_BYTES % CHUNKS);
}

static bool has_flights(const struct stream *stream)
{
    for (size_t i = 0; i < CHUNKS; i++)
        if (stream->busy[i])
            return true;
    return false;
}

/* REM-5: begins as many chunks as may be under way. False: the message is gone. */
static bool fill(struct shc_hosts_p2p *p2p, struct stream *stream)
{
    const int rank = p2p->rank_of[stream->index - p2p->locals];
    while (stream->begun < stream->bytes && !stream->busy[slot_of(stream->begun)]) {
        const size_t one = slot_of(stream->begun);
        const uint64_t rest = stream->bytes - stream->begun;
        const size_t bytes = rest < CHUNK_BYTES ? (size_t)rest : CHUNK_BYTES;
        struct shc_flight *flight = shc_flight_new(p2p->flights, CHUNK, stream->index, bytes);
        if (!flight) {
            no_memory(p2p);
            return false;
        }
        flight->stream = stream;
        flight->offset = stream->begun;
        if (stream->goes_out &&
            !shc_remote_read(p2p->messages, stream->index, stream->number, flight->data, bytes)) {
            shc_flight_free(flight);
            return false;
        }
        stream->begun += bytes;
        stream->busy[one] = true;
        const uint32_t slot = FIRST_SLOT + (stream->number * CHUNKS + (uint32_t)one) % SLOTS;
        if (stream->goes_out)
            shc_flight_send(flight, rank, slot);
        else
            shc_flight_receive(flight, rank, slot);
    }
    return true;
}

static void end_stream(struct shc_hosts_p2p *p2p, struct stream *stream)
{
    struct stream **at = &p2p->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    free(stream);
}

static void fill_streams(struct shc_hosts_p2p *p2p)
{
    int out = 0, in = 0;
    for (struct stream *stream = p2p->streams, *next; stream; stream = next) {
        int *count = stream->goes_out ? &out : &in;
        next = stream->next;
        if (++*count > STREAMS)
            continue;
        if (p2p->peers[stream->index - p2p->locals].broken || !fill(p2p, stream))
            stream->begun = stream->bytes; /* the rest does not go */
        if (!has_flights(stream) && stream->begun == stream->bytes)
            end_stream(p2p, stream);
    }
}

static void end_chunk(struct shc_hosts_p2p *p2p, const struct shc_flight *flight)
{
    struct stream *stream = flight->stream;
    stream->busy[slot_of(flight->offset)] = false;
    if (!flight->error[0] && !stream->goes_out)
        (void)!shc_remote_write(p2p->messages, stream->index, stream->number, flight->offset,
                                flight->data, flight->bytes);
    stream->ended += flight->error[0] ? 0 : flight->bytes;
    if (stream->goes_out && stream->ended == stream->bytes)
        shc_remote_end(p2p->messages, stream->index, stream->number);
    if (!has_flights(stream) && stream->begun == stream->bytes)
        end_stream(p2p, stream);
}

/* ---- the thread ---- */

static void end_flight(struct shc_hosts_p2p *p2p, struct shc_flight *flight)
{
    const bool failed = flight->error[0] != '\0';
    if (flight->kind == ANY_FRAME) {
        if (failed) {
            char text[512];
            snprintf(text, sizeof text, "the engine for messages between hosts failed: %.400s",
                     flight->error);
            fail(p2p, text);
            return;
        }
        take_frame(p2p, flight);
        receive_any(p2p);
        return;
    }
    const struct envelope *sent = (const struct envelope *)(const void *)flight->data;
    if (failed)
        note_broken(p2p, flight->index, flight->error);
    if (flight->kind == CHUNK)
        end_chunk(p2p, flight);
    if (flight->kind != FRAME)
        return;
    p2p->peers[flight->index - p2p->locals].busy = false;
    if (!failed && sent->frame.kind == SHC_REMOTE_EAGER)
        shc_remote_end(p2p->messages, flight->index, sent->frame.number);
}

/* All that can be done now. */
static uint64_t work(void *ctx, struct shc_flight *ended)
{
    struct shc_hosts_p2p *p2p = ctx;
    if (!p2p->began)
        receive_any(p2p);
    p2p->began = true;
    while (ended) {
        struct shc_flight *flight = ended;
        ended = flight->next;
        end_flight(p2p, flight);
        shc_flight_free(flight);
    }
    if (shc_comm_error(p2p->hosts->island) != SHC_OK)
        return 0;
    for (int i = 0; i < p2p->others; i++)
        send_frame(p2p, p2p->locals + i);
    fill_streams(p2p);
    look_at_peers(p2p);
    if (p2p->in_doubt)
        return LOOK_NS;
    return p2p->asks ? ASK_NS : 0;
}

/* The island's group: under its lock of messages. */
static void stir(void *ctx)
{
    const struct shc_hosts_p2p *p2p = ctx;
    shc_flights_stir(p2p->flights);
}

static void name(void *ctx, int index, char *text, size_t capacity)
{
    const struct shc_hosts_p2p *p2p = ctx;
    const int rank = p2p->rank_of[index - p2p->locals];
    snprintf(text, capacity, "rank %d (host %d)", p2p->hosts->plan.name_of[rank],
             p2p->hosts->plan.host_of[rank]);
}

/* ---- the group's side ---- */

int shc_hosts_p2p_start(struct shc_hosts_p2p *p2p)
{
    return shc_flights_start(p2p->flights);
}

static void number_ranks(struct shc_hosts_p2p *p2p, const struct shc_hosts *hosts)
{
    int others = 0;
    for (int rank = 0; rank < hosts->plan.world; rank++) {
        const bool here = hosts->plan.host_of[rank] == hosts->host;
        p2p->index_of[rank] = here ? -1 : p2p->locals + others;
        if (!here)
            p2p->rank_of[others++] = rank;
    }
}

enum shc_status shc_hosts_p2p_create(struct shc_hosts *hosts, const struct shc_p2p_fabric *engine,
                                     struct shc_hosts_p2p **out)
{
    const int world = hosts->plan.world, locals = shc_hosts_plan_size(&hosts->plan, hosts->host);
    struct shc_hosts_p2p *p2p = calloc(1, sizeof *p2p);
    if (!p2p)
        return SHC_ERR_NOMEM;
    p2p->hosts = hosts;
    p2p->messages = shc_comm_messages(hosts->island);
    p2p->self = hosts->rank;
    p2p->locals = locals;
    p2p->others = world - locals;
    p2p->flights = shc_flights_create(engine, work, p2p);
    p2p->peers = calloc((size_t)p2p->others + 1, sizeof *p2p->peers);
    p2p->rank_of = calloc((size_t)p2p->others + 1, sizeof *p2p->rank_of);
    p2p->index_of = calloc((size_t)world, sizeof *p2p->index_of);
    const struct shc_remote remote = {p2p, p2p->others, name, stir};
    if (!p2p->flights || !p2p->peers || !p2p->rank_of || !p2p->index_of ||
        shc_remote_attach(p2p->messages, &remote) != SHC_OK) {
        shc_hosts_p2p_free(p2p);
        return SHC_ERR_NOMEM;
    }
    number_ranks(p2p, hosts);
    *out = p2p;
    return SHC_OK;
}

int shc_hosts_p2p_index(const struct shc_hosts_p2p *p2p, int rank)
{
    return p2p->index_of[rank];
}

int shc_hosts_p2p_rank(const struct shc_hosts_p2p *p2p, int index)
{
    return p2p->rank_of[index - p2p->locals];
}

bool shc_hosts_p2p_waits(const struct shc_hosts_p2p *p2p)
{
    return shc_remote_pends(p2p->messages);
}

void shc_hosts_p2p_close(struct shc_hosts_p2p *p2p)
{
    shc_flights_close(p2p->flights);
}

void shc_hosts_p2p_free(struct shc_hosts_p2p *p2p)
{
    while (p2p->streams) {
        struct stream *stream = p2p->streams;
        p2p->streams = stream->next;
        free(stream);
    }
    if (p2p->flights)
        shc_flights_free(p2p->flights);
    for (int i = 0; p2p->peers && i < p2p->others; i++)
        if (p2p->peers[i].asked)
            shc_work_item_drop(p2p->peers[i].asked);
    free(p2p->peers);
    free(p2p->rank_of);
    free(p2p->index_of);
    free(p2p);
}
