/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rounds of an operation as work in a stream (docs/internals/cuda/rounds.md). rounds.c says which bytes move;
 * this file enqueues the steps that move them. Nothing here waits.
 */
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/placement.h"
#include "shm/base/num.h"

#include <string.h>

/* ---- addresses ---- */

/* Rank r's half of a round: the address at which it stages, and where peers read. */
static shc_cu_address half_of(const struct shc_work *work, int r, uint64_t round)
{
    const struct shc_cuda_comm *comm = work->comm;
    const shc_cu_address halves =
        comm->by_slabs ? comm->share.slabs[r].address
                       : shc_host_device(&comm->host, shc_host_halves(&comm->host, r));
    return halves + work->halves_at + (round & 1) * comm->half_bytes;
}

/* The address at which this rank's kernels read rank r's half: scratch memory where there are no slabs. */
static shc_cu_address source_of(const struct shc_work *work, int r)
{
    return work->comm->by_slabs ? half_of(work, r, work->round)
                                : work->scratch + (size_t)r * work->comm->half_bytes;
}

/* ---- copies ---- */

/* From the user's memory to this rank's half. */
static enum shc_status stage(struct shc_work *work, const struct shc_move *move)
{
    const shc_cu_address half = half_of(work, work->comm->rank, work->round);
    return shc_copies_add_flat(&work->copies, &work->comm->demand.in, move->from, half + move->to,
                               move->bytes, true);
}

static enum shc_status keep(struct shc_work *work, const struct shc_move *move)
{
    for (uint64_t moved = 0, run; moved < move->bytes; moved += run) {
        uint64_t room;
        const char *from = shc_flat_at(&work->comm->demand.in, move->from + moved, &run);
        char *to = shc_flat_at(&work->comm->demand.out, move->to + moved, &room);
        run = shc_min_size(shc_min_size(run, room), move->bytes - moved);
        SHC_TRY(shc_copies_add(&work->copies, to, from, run));
    }
    return SHC_OK;
}

static enum shc_status fetch(struct shc_work *work, const struct shc_move *move)
{
    return shc_copies_add_flat(&work->copies, &work->comm->demand.out, move->to,
                               source_of(work, move->rank) + move->from, move->bytes, false);
}

/* Without slabs: copies the bytes that this move reads into scratch memory. None is the user's, so no gate. */
static enum shc_status pull(struct shc_work *work, const struct shc_move *move)
{
    const struct shc_cuda_comm *comm = work->comm;
    const bool all = move->kind == SHC_MOVE_SUM || move->kind == SHC_MOVE_SUM_AHEAD;
    if (comm->by_slabs || (!all && move->kind != SHC_MOVE_FETCH))
        return SHC_OK;
    for (int r = all ? 0 : move->rank; r < (all ? comm->world : move->rank + 1); r++) {
        const int result = comm->driver.cuMemcpyAsync(source_of(work, r) + move->from,
                                                      half_of(work, r, work->round) + move->from,
                                                      move->bytes, work->stream);
        if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(&comm->driver, result, "from %s's host memory",
                                   shc_comm_rank_name(comm->core, r).text);
    }
    return SHC_OK;
}

/* ---- reductions ---- */

static enum shc_status reduce(struct shc_work *work, void *to, uint64_t from, uint64_t bytes)
{
    const struct shc_cuda_comm *comm = work->comm;
    const struct shc_demand *demand = &comm->demand;
    const struct shc_cuda_record *record =
        &shc_host_lane(&comm->host, 0)->records[work->sequence % SHC_RECORDS];
    struct shc_reduce_args args;
    memset(&args, 0, sizeof args);
    args.gate = work->lane->args.gate;
    args.out = to;
    args.count = bytes / demand->elem_bytes;
    args.factors = shc_host_pointer(&comm->host, &record->factor);
    args.factor_stride = comm->host.part_bytes;
    args.world = comm->world;
    for (int r = 0; r < comm->world; r++)
        args.source[r] = shc_cu_pointer(source_of(work, r) + from);
    return shc_kernels_reduce(&comm->kernels, work->stream, demand->dtype, demand->redop, &args);
}

static enum shc_status sum(struct shc_work *work, const struct shc_move *move)
{
    if (move->kind == SHC_MOVE_SUM_AHEAD) {
        const shc_cu_address next = half_of(work, work->comm->rank, work->round + 1);
        return reduce(work, shc_cu_pointer(next + move->to), move->from, move->bytes);
    }
    for (uint64_t moved = 0, run; moved < move->bytes; moved += run) {
        char *to = shc_flat_at(&work->comm->demand.out, move->to + moved, &run);
        run = shc_min_size(run, move->bytes - moved);
        SHC_TRY(reduce(work, to, move->from + moved, run));
    }
    return SHC_OK;
}

/* ---- a round ---- */

static enum shc_status consume(struct shc_work *work, const struct shc_move *move)
{
    SHC_TRY(pull(work, move));
    switch (move->kind) {
    case SHC_MOVE_KEEP:
        return keep(work, move);
    case SHC_MOVE_FETCH:
        return fetch(work, move);
    default:
        return sum(work, move);
    }
}

enum shc_status shc_work_meet(struct shc_work *work)
{
    struct shc_cuda_comm *comm = work->comm;
    SHC_TRY(shc_lane_meet(comm, work->stream, SHC_ROW_ARRIVAL, work->round, work->round));
    return shc_lane_gate(comm, work->lane, work->stream, work->sequence, work->round, work->first);
}

enum shc_status shc_work_round(struct shc_work *work, uint64_t k)
{
    struct shc_cuda_comm *comm = work->comm;
    const size_t count = shc_rounds_moves(&comm->demand.rounds, k, comm->moves);
    size_t i = 0;
    work->round = work->tag != 0 ? k : ++comm->round;
    work->first = k == 0;
    for (; i < count && comm->moves[i].kind == SHC_MOVE_STAGE; i++)
        SHC_TRY(stage(work, &comm->moves[i]));
    SHC_TRY(shc_copies_flush(&work->copies));
    SHC_TRY(work->meet(work));
    for (; i < count; i++)
        SHC_TRY(consume(work, &comm->moves[i]));
    return shc_copies_flush(&work->copies);
}

enum shc_status shc_work_demand(struct shc_cuda_comm *comm, const struct shc_op *op)
{
    struct shc_demand *demand = &comm->demand;
    SHC_TRY(shc_demand_make(op, comm->rank, comm->world, demand));
    SHC_TRY(shc_placement_check(&comm->gpu, demand));
    demand->rounds.half_bytes = comm->half_bytes;
    demand->rounds.two =
        op->kind == SHC_ALL_REDUCE && shc_rounds_wants_two(&demand->rounds, comm->sharing);
    return SHC_OK;
}

void shc_work_init(struct shc_cuda_comm *comm)
{
    const struct shc_host *host = &comm->host;
    struct shc_lane *lane = &comm->lane;
    lane->flights = comm->flights;
    lane->args = (struct shc_gate_args){
        .arrived = shc_host_pointer(host, shc_host_word(host, comm->rank, SHC_ROW_ARRIVAL, 0)),
        .arrived_stride = sizeof(struct shc_lone_shm),
        .records = shc_host_pointer(host, shc_host_lane(host, 0)->records),
        .record_stride = host->part_bytes,
        .rank = comm->rank,
        .world = comm->world,
    };
    shc_lane_init(comm, shc_host_lane(host, comm->rank), comm->gates, lane);
}
