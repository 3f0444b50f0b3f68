/* SPDX-License-Identifier: BSD-3-Clause */
#include "oneccl.h"
#include "peers.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM 16 /* messages of a stream before its receiver answers */

/* How an operation divides its bytes. */
enum shape { NOTHING, ONE, ALL_GIVEN, ALL_GOT, ALL_BOTH };

struct call {
    const struct world *world;
    const struct kind *kind;
    int count; /* elements of one rank's block */
    int64_t size_given, size_got;
    struct shc_tensor given[SHC_MAX_WORLD], got[SHC_MAX_WORLD];
    struct shc_op op;
};

struct kind {
    const char *name;
    enum shape shape;
    bool rooted;
    enum shc_op_kind ours;
    void (*theirs)(struct call *call, int root);
    void (*both)(struct call *call, enum side side, int i); /* in the place of one operation */
    float (*expected)(const struct call *call, int root, size_t i);
    double (*bare)(const struct world *world, size_t bytes);
};

static void demand(bool good, const char *what, const char *why)
{
    if (good)
        return;
    fprintf(stderr, "peers: %s failed: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void mpi(int error, const char *what)
{
    demand(error == MPI_SUCCESS, what, "an MPI error");
}

/* ---- through MPI ---- */

static void mpi_barrier(struct call *call, int root)
{
    (void)call, (void)root;
    mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

static void mpi_all_reduce(struct call *call, int root)
{
    (void)root;
    mpi(MPI_Allreduce(MPI_IN_PLACE, call->world->got, call->count, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD),
        "MPI_Allreduce");
}

static void mpi_broadcast(struct call *call, int root)
{
    mpi(MPI_Bcast(call->world->got, call->count, MPI_FLOAT, root, MPI_COMM_WORLD), "MPI_Bcast");
}

static void mpi_reduce(struct call *call, int root)
{
    mpi(MPI_Reduce(call->world->given, call->world->got, call->count, MPI_FLOAT, MPI_SUM, root,
                   MPI_COMM_WORLD),
        "MPI_Reduce");
}

static void mpi_all_gather(struct call *call, int root)
{
    (void)root;
    mpi(MPI_Allgather(call->world->given, call->count, MPI_FLOAT, call->world->got, call->count,
                      MPI_FLOAT, MPI_COMM_WORLD),
        "MPI_Allgather");
}

static void mpi_gather(struct call *call, int root)
{
    mpi(MPI_Gather(call->world->given, call->count, MPI_FLOAT, call->world->got, call->count,
                   MPI_FLOAT, root, MPI_COMM_WORLD),
        "MPI_Gather");
}

static void mpi_scatter(struct call *call, int root)
{
    mpi(MPI_Scatter(call->world->given, call->count, MPI_FLOAT, call->world->got, call->count,
                    MPI_FLOAT, root, MPI_COMM_WORLD),
        "MPI_Scatter");
}

static void mpi_reduce_scatter(struct call *call, int root)
{
    (void)root;
    mpi(MPI_Reduce_scatter_block(call->world->given, call->world->got, call->count, MPI_FLOAT,
                                 MPI_SUM, MPI_COMM_WORLD),
        "MPI_Reduce_scatter_block");
}

static void mpi_all_to_all(struct call *call, int root)
{
    (void)root;
    mpi(MPI_Alltoall(call->world->given, call->count, MPI_FLOAT, call->world->got, call->count,
                     MPI_FLOAT, MPI_COMM_WORLD),
        "MPI_Alltoall");
}

/* ---- messages ---- */

static const struct build *build_of(const struct call *call, enum side side)
{
    return call->world->builds[side].comm ? &call->world->builds[side] : NULL;
}

static void run_op(struct call *call, const struct build *build)
{
    demand(build->run(build->comm, &call->op) == SHC_OK, call->kind->name, build->error());
}

static void pass(struct call *call, enum side side, bool sends, int peer)
{
    const struct world *world = call->world;
    const struct build *build = build_of(call, side);
    if (!build) {
        mpi(sends ? MPI_Send(world->given, call->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD)
                  : MPI_Recv(world->got, call->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE),
            "a message");
        return;
    }
    call->op.kind = sends ? SHC_SEND : SHC_RECV;
    call->op.peer = peer;
    run_op(call, build);
}

/* One way, there in even turns and back in odd ones. */
static void ping(struct call *call, enum side side, int i)
{
    const int rank = call->world->rank;
    if (rank < 2)
        pass(call, side, rank == i % 2, 1 - rank);
}

/* One of STREAM messages from rank 0 to rank 1, which then answers. */
static void stream(struct call *call, enum side side, int i)
{
    const int rank = call->world->rank;
    if (rank < 2)
        pass(call, side, rank == 0, 1 - rank);
    if (rank < 2 && i % STREAM == STREAM - 1) {
        int count = call->count;
        call->count = 1;
        call->size_given = call->size_got = 1;
        pass(call, side, rank == 1, 1 - rank);
        call->count = count;
        call->size_given = call->size_got = count;
    }
}

/* There and back at once. */
static void sendrecv(struct call *call, enum side side, int i)
{
    const struct world *world = call->world;
    const struct build *build = build_of(call, side);
    const int peer = 1 - world->rank;
    (void)i;
    if (world->rank >= 2)
        return;
    if (!build) {
        mpi(MPI_Sendrecv(world->given, call->count, MPI_FLOAT, peer, 0, world->got, call->count,
                         MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
        return;
    }
    struct shc_request *sent;
    call->op.kind = SHC_SEND;
    call->op.peer = peer;
    demand(build->submit(build->comm, &call->op, NULL, &sent) == SHC_OK, "a send", build->error());
    call->op.kind = SHC_RECV;
    run_op(call, build);
    demand(build->wait(sent, 0) == SHC_OK, "a send", build->error());
    build->release(sent);
}

/* ---- what must come out ---- */

/* Small whole numbers: their sums are exact. */
static float pattern(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 101);
}

static float summed(const struct call *call, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < call->world->size; rank++)
        sum += pattern(rank, i);
    return sum;
}

static float expect_sum(const struct call *call, int root, size_t i)
{
    (void)root;
    return summed(call, i);
}

static float expect_root(const struct call *call, int root, size_t i)
{
    (void)call;
    return pattern(root, i);
}

static float expect_blocks(const struct call *call, int root, size_t i)
{
    (void)root;
    const size_t count = (size_t)call->count;
    return pattern((int)(i / count), i % count);
}

static float expect_block_of_sum(const struct call *call, int root, size_t i)
{
    (void)root;
    return summed(call, i + (size_t)call->world->rank * (size_t)call->count);
}

static float expect_block_of_root(const struct call *call, int root, size_t i)
{
    return pattern(root, i + (size_t)call->world->rank * (size_t)call->count);
}

static float expect_my_blocks(const struct call *call, int root, size_t i)
{
    (void)root;
    const size_t count = (size_t)call->count;
    return pattern((int)(i / count), i % count + (size_t)call->world->rank * count);
}

static float expect_peer(const struct call *call, int root, size_t i)
{
    (void)root;
    return pattern(1 - call->world->rank, i);
}

/* ---- all of them ---- */

static const struct kind kinds[] = {
    {"barrier", NOTHING, false, SHC_BARRIER, mpi_barrier, NULL, NULL, NULL},
    {"all_reduce", ONE, false, SHC_ALL_REDUCE, mpi_all_reduce, NULL, expect_sum, bare_all_reduce},
    {"broadcast", ONE, true, SHC_BROADCAST, mpi_broadcast, NULL, expect_root, bare_one_way},
    {"reduce", ONE, true, SHC_REDUCE, mpi_reduce, NULL, expect_sum, bare_one_way},
    {"all_gather", ALL_GOT, false, SHC_ALL_GATHER, mpi_all_gather, NULL, expect_blocks,
     bare_both_ways},
    {"reduce_scatter", ALL_GIVEN, false, SHC_REDUCE_SCATTER, mpi_reduce_scatter, NULL,
     expect_block_of_sum, bare_trade},
    {"all_to_all", ALL_BOTH, false, SHC_ALL_TO_ALL, mpi_all_to_all, NULL, expect_my_blocks,
     bare_both_ways},
    {"gather", ALL_GOT, true, SHC_GATHER, mpi_gather, NULL, expect_blocks, bare_gather},
    {"scatter", ALL_GIVEN, true, SHC_SCATTER, mpi_scatter, NULL, expect_block_of_root,
     bare_scatter},
    {"ping", ONE, false, SHC_SEND, NULL, ping, expect_peer, bare_pass},
    {"stream", ONE, false, SHC_SEND, NULL, stream, expect_peer, bare_stream},
    {"sendrecv", ONE, false, SHC_SEND, NULL, sendrecv, expect_peer, bare_trade},
};

#define KINDS (sizeof kinds / sizeof kinds[0])

const char *call_name(size_t k)
{
    return k < KINDS ? kinds[k].name : NULL;
}

bool call_has_other(const struct world *world, size_t k)
{
    return world->builds[THEIRS].comm || !ONECCL || oneccl_has(kinds[k].ours);
}

static bool in_place(const struct kind *kind)
{
    return kind->ours == SHC_ALL_REDUCE || kind->ours == SHC_BROADCAST;
}

static size_t blocks(const struct call *call, bool given)
{
    const enum shape shape = call->kind->shape;
    bool all = shape == ALL_BOTH || shape == (given ? ALL_GIVEN : ALL_GOT);
    return shape == NOTHING ? 0 : all ? (size_t)call->world->size : 1;
}

void call_describe(struct call *call)
{
    const struct world *world = call->world;
    const size_t lists = call->kind->ours == SHC_ALL_TO_ALL ? (size_t)world->size : 1;
    float *given = in_place(call->kind) ? world->got : world->given;
    call->size_given = (int64_t)(blocks(call, true) / lists) * call->count;
    call->size_got = (int64_t)(blocks(call, false) / lists) * call->count;
    for (size_t i = 0; i < lists; i++) {
        size_t skip = i * (size_t)call->count;
        call->given[i] = (struct shc_tensor){given + skip, 1, &call->size_given, NULL};
        call->got[i] = (struct shc_tensor){world->got + skip, 1, &call->size_got, NULL};
    }
    call->op = (struct shc_op){
        .kind = call->kind->ours,
        .dtype = SHC_FLOAT32,
        .redop = SHC_SUM,
        .premul = 1,
        .input = {call->given, (uint32_t)lists},
        .output = {call->got, (uint32_t)lists},
    };
}

struct call *call_make(const struct world *world, const char *op, size_t bytes)
{
    struct call *call = calloc(1, sizeof *call);
    demand(call != NULL, op, "no memory");
    call->world = world;
    for (size_t k = 0; k < KINDS; k++)
        if (strcmp(kinds[k].name, op) == 0)
            call->kind = &kinds[k];
    demand(call->kind != NULL, op, "no such operation");
    bool divided = call->kind->shape != ONE && call->kind->shape != NOTHING;
    call->count = (int)(bytes / sizeof(float) / (divided ? (size_t)world->size : 1));
    if (call->count == 0 && call->kind->shape != NOTHING) {
        free(call);
        return NULL;
    }
    call_describe(call);
    return call;
}

double call_bare(const struct call *call)
{
    const size_t bytes = (size_t)call->count * sizeof(float);
    const bool known = call->kind->bare && call->world->size == 2 && !call->world->renumbered;
    return known && (bytes & (bytes - 1)) == 0 ? call->kind->bare(call->world, bytes) : 0;
}

void call_free(struct call *call)
{
    free(call);
}

static bool sums_floats(const struct numbers *numbers)
{
    return numbers->dtype == SHC_FLOAT32 && numbers->redop == SHC_SUM;
}

/* The side's own numbers, in the same bytes. */
static void renumber(struct call *call, enum side side)
{
    const struct numbers *numbers = &call->world->numbers[side];
    const size_t bytes = (size_t)call->count * sizeof(float);
    call->op.dtype = numbers->dtype;
    call->op.redop = numbers->redop;
    call->size_given = call->size_got = (int64_t)(bytes / shc_dtype_bytes(numbers->dtype));
}

/* The root of turn i: each rank in turn, unless it stays. */
static int root_of(const struct call *call, int i)
{
    return call->kind->rooted && !call->world->root_stays ? i % call->world->size : 0;
}

void call_run(struct call *call, enum side side, int i)
{
    const int root = root_of(call, i);
    if (call->kind->both) {
        call->kind->both(call, side, i);
        return;
    }
    const struct build *build = build_of(call, side);
    call->op.root = root;
    if (call->world->renumbered)
        renumber(call, side);
    if (build)
        run_op(call, build);
    else if (ONECCL)
        oneccl_run(call->kind->ours, call->world->given, call->world->got, (size_t)call->count,
                   root);
    else
        call->kind->theirs(call, root);
}

/* Does this rank send, or get, in turn i of messages? */
static bool passes(const struct call *call, int i, bool sends)
{
    const int sender = call->kind->both == ping ? i % 2 : 0;
    return call->kind->both == sendrecv || (call->world->rank == sender) == sends;
}

/* Does this rank give something in turn i that it does not give in place? */
static bool gives(const struct call *call, int i)
{
    const struct kind *kind = call->kind;
    if (kind->both)
        return call->world->rank < 2 && passes(call, i, true);
    const bool root_gives = kind->ours == SHC_SCATTER;
    return !in_place(kind) && (!root_gives || call->world->rank == root_of(call, i));
}

void call_rewrite(const struct call *call, int i)
{
    if (gives(call, i))
        memset(call->world->given, 0, blocks(call, true) * (size_t)call->count * sizeof(float));
}

/* Has this rank a result in turn i? */
static bool ends_with_data(const struct call *call, int i)
{
    const int rank = call->world->rank, root = root_of(call, i);
    if (call->kind->shape == NOTHING)
        return false;
    if (call->kind->both)
        return rank < 2 && passes(call, i, false);
    return (call->kind->ours != SHC_REDUCE && call->kind->ours != SHC_GATHER) || rank == root;
}

uint32_t call_use(const struct call *call, int i)
{
    if (!ends_with_data(call, i))
        return 0;
    const uint32_t *got = (const uint32_t *)call->world->got;
    const size_t words = blocks(call, false) * (size_t)call->count;
    uint32_t all = 0;
    for (size_t k = 0; k < words; k++)
        all |= got[k];
    return all;
}

static bool numbers_come_out(struct call *call, enum side side)
{
    const struct world *world = call->world;
    const size_t bytes = (size_t)call->count * sizeof(float);
    numbers_fill(&world->numbers[side], world->got, bytes);
    call_run(call, side, 0);
    bool right = numbers_right(&world->numbers[side], world->got, bytes);
    memset(world->got, 0, bytes);
    return right;
}

bool call_right(struct call *call, enum side side, int i)
{
    const struct world *world = call->world;
    if (!sums_floats(&world->numbers[side]))
        return numbers_come_out(call, side);
    const int root = root_of(call, i);
    const size_t given = blocks(call, true) * (size_t)call->count;
    const size_t got = blocks(call, false) * (size_t)call->count;
    for (size_t k = 0; k < got; k++)
        world->got[k] = -1;
    for (size_t k = 0; k < given; k++)
        (in_place(call->kind) ? world->got : world->given)[k] = pattern(world->rank, k);
    call_run(call, side, i);
    for (size_t k = 0; k < got && ends_with_data(call, i); k++)
        if (world->got[k] != call->kind->expected(call, root, k))
            return false;
    memset(world->got, 0, got * sizeof(float)); /* sums of sums stay finite */
    memset(world->given, 0, given * sizeof(float));
    return true;
}
