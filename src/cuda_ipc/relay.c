/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/relay.h"
#include "cuda_ipc/cuda_comm.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/atomic.h"
#include "shm/base/clock.h"
#include "shm/base/num.h"

#include <stdlib.h>
#include <string.h>

/* Below this the driver brings bytes to a GPU by what contexts take turns at, but not by rows (an H100,
 * driver 580: 1024 bytes and less). */
#define SHORT_COPY_BYTES 2048

/* A sum of more than this, of more than two ranks: each adds a slice, then all fetch all slices. */
#define TWO_ROUNDS_BYTES ((uint64_t)32 << 10)

/* Messages of at most so many bytes; in all what the boxes of a kind may take of a rank's memory. */
#define MESSAGE_BYTES ((size_t)64 << 10)
#define BOXES_BYTES   ((size_t)1 << 20)

/* After the last operation the thread looks for the next one so long before it sleeps: a wake-up takes as
 * long as the copies do. */
#define LINGER_NS (50 * SHC_NS_PER_US)

/* Looks before the thread gives its CPU away, and before it naps. With a busy thread of the caller's and
 * one of these on each of 16 CPUs, a thread that spins for a millisecond keeps out one that others wait for: 8
 * ranks took up to seven times as long. */
#define SPINNING_LOOKS 300
#define YIELDING_LOOKS 20000
#define FEW_LOOKS      200 /* where ranks share CPUs */
#define NAP_NS         (50 * SHC_NS_PER_US)
#define LONG_NAP_NS    (10 * SHC_NS_PER_MS)

enum cell { HALVES = 0, RESULT = 2, KEPT = 3, OLD = 4 }; /* SHC_RELAY_CELLS in all */

/* ---- which operations, and their memory ---- */

size_t shc_relay_limit(const struct shc_cuda_comm *comm)
{
    /* An H100: 2 ranks take 159 us for 512 KiB, by kernels 180; 4 ranks 438 and 547 for 1 MiB, 8 ranks 743
     * and 1470. By an MPS server kernels need no turns: 2 ranks take 45 us for 64 KiB, by kernels 32. */
    if (comm->sharing < 2 || comm->by_mps)
        return 0;
    return comm->sharing == 2 ? (size_t)512 << 10 : (size_t)1 << 20;
}

size_t shc_relay_cell_bytes(size_t limit, int world)
{
    return shc_align_up(limit + (size_t)world * SHC_LINE_BYTES, SHC_PAGE_BYTES);
}

size_t shc_relay_box_bytes(size_t limit, int world)
{
    const size_t most = shc_min_size(MESSAGE_BYTES, BOXES_BYTES / (size_t)world);
    return shc_min_size(limit, most) / SHC_LINE_BYTES * SHC_LINE_BYTES;
}

/* The bytes that the largest cell of any rank has to hold. */
static uint64_t whole(const struct shc_rounds *rounds)
{
    const enum shc_op_kind kind = rounds->kind;
    const bool is_one = kind == SHC_BROADCAST || kind == SHC_ALL_REDUCE || kind == SHC_REDUCE;
    const uint64_t blocks = is_one ? 1 : (uint64_t)rounds->world;
    const uint64_t longest = kind == SHC_ALL_TO_ALL ? rounds->fullest : shc_rounds_longest(rounds);
    return longest > UINT64_MAX / 2 / blocks ? UINT64_MAX : longest * blocks;
}

bool shc_relay_takes(const struct shc_cuda_comm *comm, struct shc_rounds *rounds)
{
    const uint64_t bytes = whole(rounds);
    if (comm->relay.limit == 0 || bytes > comm->relay.limit)
        return false;
    rounds->half_bytes = comm->relay.cell_bytes;
    rounds->two = rounds->kind == SHC_ALL_REDUCE && rounds->world > 2 && bytes > TWO_ROUNDS_BYTES;
    return true;
}

static char *cell(const struct shc_cuda_comm *comm, int rank, int which)
{
    return shc_host_cells(&comm->host, rank) + (size_t)which * comm->relay.cell_bytes;
}

static char *half(const struct shc_cuda_comm *comm, int rank, uint64_t round)
{
    return cell(comm, rank, HALVES + (int)(round & 1));
}

/* ---- an operation as work in a stream ---- */

/* Short copies have two rows or more: the driver may treat a single row as a copy that is not by rows. */
static enum shc_status copy_back(const struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                                 char *user, void *host, uint64_t bytes)
{
    const shc_cu_address to = (shc_cu_address)(uintptr_t)user,
                         from = shc_host_device(&comm->host, host);
    int result;
    if (bytes >= SHORT_COPY_BYTES) {
        result = comm->driver.cuMemcpyAsync(to, from, bytes, stream);
    } else {
        const size_t width = bytes % 4 == 0 && bytes > 4 ? 4 : bytes % 2 == 0 && bytes > 2 ? 2 : 1;
        const struct shc_cu_copy_rows rows = {
            .from = {.type = SHC_CU_MEMORY_UNIFIED, .device = from, .pitch = width},
            .to = {.type = SHC_CU_MEMORY_UNIFIED, .device = to, .pitch = width},
            .width = width,
            .height = bytes / width,
        };
        result = comm->driver.cuMemcpy2DAsync(&rows, stream);
    }
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "from host memory");
    return SHC_OK;
}

enum shc_status shc_relay_copy_out(const struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                                   char *host, struct shc_flat *flat, uint64_t at, uint64_t bytes)
{
    for (uint64_t moved = 0, run; moved < bytes; moved += run) {
        const char *user = shc_flat_at(flat, at + moved, &run);
        run = shc_min_size(run, bytes - moved);
        const int result = comm->driver.cuMemcpyAsync(shc_host_device(&comm->host, host + moved),
                                                      (shc_cu_address)(uintptr_t)user, run, stream);
        if (result != SHC_CU_SUCCESS)
            return shc_driver_fail(&comm->driver, result, "to host memory");
    }
    return SHC_OK;
}

enum shc_status shc_relay_copy_back(const struct shc_cuda_comm *comm, struct shc_cu_stream *stream,
                                    char *host, struct shc_flat *flat)
{
    for (uint64_t moved = 0, run; moved < flat->bytes; moved += run) {
        char *user = shc_flat_at(flat, moved, &run);
        SHC_TRY(copy_back(comm, stream, user, host + moved, run));
    }
    return SHC_OK;
}

/* Are input and output the same memory, element by element? */
static bool is_in_place(struct shc_demand *demand)
{
    const enum shc_op_kind kind = demand->rounds.kind;
    if ((kind != SHC_ALL_REDUCE && kind != SHC_REDUCE) || demand->in.bytes != demand->out.bytes)
        return false;
    for (uint64_t at = 0, in_run, out_run; at < demand->in.bytes; at += in_run)
        if (shc_flat_at(&demand->in, at, &in_run) != shc_flat_at(&demand->out, at, &out_run) ||
            in_run != out_run)
            return false;
    return true;
}

/* Copies out the bytes that others need, those that this rank keeps, and those that its output holds now. */
static enum shc_status stage(const struct shc_work *work, const struct shc_relayed *op,
                             size_t count)
{
    struct shc_cuda_comm *comm = work->comm;
    struct shc_demand *demand = &comm->demand;
    for (size_t i = 0; i < count; i++) {
        const struct shc_move *move = &comm->moves[i];
        if (move->kind == SHC_MOVE_STAGE)
            SHC_TRY(shc_relay_copy_out(comm, work->stream,
                                       half(comm, comm->rank, op->round) + move->to, &demand->in,
                                       move->from, move->bytes));
        else if (move->kind == SHC_MOVE_KEEP)
            SHC_TRY(shc_relay_copy_out(comm, work->stream, cell(comm, comm->rank, KEPT),
                                       &demand->in, move->from, move->bytes));
    }
    return op->in_place ? SHC_OK
                        : shc_relay_copy_out(comm, work->stream, cell(comm, comm->rank, OLD),
                                             &demand->out, 0, demand->out.bytes);
}

/* Adds the moves of a round that are the thread's. */
static void add_moves(struct shc_relayed *op, const struct shc_move *moves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (moves[i].kind != SHC_MOVE_STAGE)
            op->moves[op->move_count++] = moves[i];
}

static void stir(struct shc_cuda_comm *comm)
{
    pthread_mutex_lock(&comm->state_lock);
    if (comm->relay.asleep)
        pthread_cond_signal(&comm->relay.stir);
    pthread_mutex_unlock(&comm->state_lock);
}

void shc_relay_hand_over(struct shc_cuda_comm *comm, struct shc_relay_queue *queue, shc_a32 *state)
{
    /* relaxed: handed over with the entry. */
    shc_a32_store_relaxed(state, SHC_RELAY_ENQUEUING);
    shc_relay_queue_push(queue);
    stir(comm);
}

enum shc_status shc_relay_meet(const struct shc_cuda_comm *comm, const struct shc_lane *lane,
                               struct shc_cu_stream *stream, uint64_t arrived, uint64_t released)
{
    const shc_cu_address word = shc_host_device(&comm->host, &lane->shm->released.word);
    SHC_TRY(shc_lane_tell(comm, stream, &lane->shm->arrived, arrived));
    const int result = comm->driver.cuStreamWaitValue64(stream, word, released, SHC_CU_WAIT_GEQ);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(&comm->driver, result, "cuStreamWaitValue64");
    return SHC_OK;
}

void shc_relay_settle(shc_a32 *state, enum shc_status st)
{
    /* release relay/state -> acquire in shc_relay_state_of(): nothing; the word is all there is. */
    shc_a32_store_release(state, st == SHC_OK ? SHC_RELAY_ENQUEUED : SHC_RELAY_BROKEN);
}

enum shc_relay_state shc_relay_state_of(const shc_a32 *state)
{
    /* acquire relay/state <- release in shc_relay_settle(): nothing. */
    return (enum shc_relay_state)shc_a32_load_acquire(state);
}

void shc_relay_release(const struct shc_lane *lane, uint64_t value)
{
    /* release cuda/released -> acquire in the device: what the stream copies back. */
    shc_a64_store_release(&lane->shm->released.word, value);
}

enum shc_status shc_relay_enqueue(struct shc_work *work)
{
    struct shc_cuda_comm *comm = work->comm;
    struct shc_demand *demand = &comm->demand;
    struct shc_relayed *op = &comm->relay.ring[shc_relay_queue_place(&comm->relay.queue)];
    op->sequence = work->sequence;
    op->round = comm->relay.round + 1;
    memcpy(op->call, demand->call, sizeof op->call);
    op->dtype = demand->dtype;
    op->redop = demand->redop;
    op->elem_bytes = demand->elem_bytes;
    op->two = demand->rounds.two;
    op->paced = shc_relay_is_paced(whole(&demand->rounds));
    op->in_place = is_in_place(demand);
    op->out_bytes = demand->out.bytes;
    op->move_count = 0;
    comm->relay.round += op->two ? 2 : 1;
    shc_lane_extend(comm, &comm->lane, comm->relay.round, true, op->two);
    if (op->two) /* the second round's, before: the first round's stay for stage() */
        add_moves(op, comm->moves, shc_rounds_moves(&demand->rounds, 1, comm->moves));
    op->fetches = op->move_count;
    const size_t count = shc_rounds_moves(&demand->rounds, 0, comm->moves);
    add_moves(op, comm->moves, count);
    shc_relay_hand_over(comm, &comm->relay.queue, &op->state);
    enum shc_status st = stage(work, op, count);
    if (st == SHC_OK)
        st = shc_relay_meet(comm, work->lane, work->stream, op->round, op->sequence);
    shc_relay_settle(&op->state, st);
    if (st != SHC_OK)
        return st;
    return shc_relay_copy_back(comm, work->stream, cell(comm, comm->rank, RESULT), &demand->out);
}

/* ---- the thread: waiting ---- */

static bool is_stopping(const struct shc_relay *relay)
{
    /* relaxed: the word is all there is; the thread is joined. */
    return shc_a32_load_relaxed(&relay->stopping) != 0;
}

static bool has_work(const struct shc_relay *relay)
{
    return shc_relay_queue_has(&relay->queue) || shc_relay_has_receives(relay);
}

/* Until something is handed over, but no longer than that; 0: for ever. */
static void doze(struct shc_cuda_comm *comm, uint64_t ns)
{
    struct shc_relay *relay = &comm->relay;
    const struct timespec end = shc_sys_after(ns);
    pthread_mutex_lock(&comm->state_lock);
    relay->asleep = true;
    if (ns != 0)
        pthread_cond_timedwait(&relay->stir, &comm->state_lock, &end);
    else
        while (!has_work(relay) && !is_stopping(relay))
            pthread_cond_wait(&relay->stir, &comm->state_lock);
    relay->asleep = false;
    pthread_mutex_unlock(&comm->state_lock);
}

/* After a failure the streams' waits are ended here as well: the watcher may be blocked in the driver by a
 * thread that waits for them there. A wait that has not ended a second later may never end. */
static uint64_t nap_ns(struct shc_cuda_comm *comm)
{
    struct shc_relay *relay = &comm->relay;
    if (!shc_failure_is_set(comm))
        return NAP_NS;
    shc_timeline_poison_by_cpu(&comm->timeline);
    if (relay->failed_ns == 0)
        relay->failed_ns = shc_clock_ns();
    return shc_clock_ns() - relay->failed_ns > SHC_NS_PER_S ? LONG_NAP_NS : NAP_NS;
}

/* Between two looks: messages go on meanwhile. */
static void look_again_later(struct shc_cuda_comm *comm, uint32_t *looks)
{
    const struct shc_relay *relay = &comm->relay;
    if (shc_relay_serve_receives(comm))
        *looks = 0;
    shc_relay_look_at_pace(comm);
    ++*looks;
    if (relay->busy_waits && *looks < SPINNING_LOOKS)
        shc_cpu_relax();
    else if (*looks < (relay->busy_waits ? YIELDING_LOOKS : FEW_LOOKS))
        shc_sys_yield();
    else
        doze(comm, nap_ns(comm));
}

/* False: the group has failed, or the thread is to stop. */
static bool await_all(struct shc_cuda_comm *comm,
                      bool (*ready)(const struct shc_cuda_comm *, uint64_t), uint64_t value)
{
    uint32_t looks = 0;
    while (!ready(comm, value)) {
        if (shc_failure_is_set(comm) || is_stopping(&comm->relay))
            return false;
        look_again_later(comm, &looks);
    }
    return true;
}

static bool all_arrived(const struct shc_cuda_comm *comm, uint64_t round)
{
    for (int r = 0; r < comm->world; r++)
        if (shc_relay_arrival(&comm->host, r) < round)
            return false;
    return true;
}

/* ---- the thread: an operation ---- */

/* All have arrived. So the stream is through with the operation before; and with this rank's gates, of
 * operations and messages, that lie before this one in it: did one shut? What that one did not store may be
 * staged here. */
static bool gates_are_open(struct shc_cuda_comm *comm)
{
    shc_relay_look_at_pace(comm);
    return shc_watch_verdicts(comm) == SHC_OK;
}

/* Factors of all ranks' calls. */
struct calls {
    double factors[SHC_MAX_WORLD];
};

/* Do the records of all ranks say the same? As the gate of a round compares: with rank 0's. */
static bool compare(struct shc_cuda_comm *comm, const struct shc_relayed *op, struct calls *calls)
{
    struct shc_cuda_record first, record;
    for (int r = 0; r < comm->world; r++) {
        shc_copy_once(&record, &shc_host_lane(&comm->host, r)->records[op->sequence % SHC_RECORDS],
                      sizeof record);
        if (r == comm->rank)
            memcpy(record.call, op->call, sizeof record.call);
        if (r == 0)
            first = record;
        if (record.sequence != op->sequence ||
            memcmp(record.call, first.call, sizeof record.call) != 0) {
            (void)!shc_failure_set_mismatch(comm, op->sequence, r == 0 ? comm->rank : 0, r);
            return false;
        }
        calls->factors[r] = record.factor;
    }
    return true;
}

static bool reduce(struct shc_cuda_comm *comm, const struct shc_relayed *op,
                   const struct calls *calls, const struct shc_move *move, char *to)
{
    const void *sources[SHC_MAX_WORLD];
    for (int r = 0; r < comm->world; r++)
        sources[r] = half(comm, r, op->round) + move->from;
    const enum shc_status st = shc_reduce_local(op->dtype, op->redop, sources, comm->world, to,
                                                move->bytes / op->elem_bytes, calls->factors);
    if (st != SHC_OK)
        (void)!shc_failure_set(comm, st, shc_error_text());
    return st == SHC_OK;
}

static bool carry_out(struct shc_cuda_comm *comm, const struct shc_relayed *op,
                      const struct calls *calls, const struct shc_move *move, uint64_t round)
{
    char *result = cell(comm, comm->rank, RESULT) + move->to;
    switch (move->kind) {
    case SHC_MOVE_KEEP:
        memcpy(result, cell(comm, comm->rank, KEPT), move->bytes);
        return true;
    case SHC_MOVE_FETCH:
        memcpy(result, half(comm, move->rank, round) + move->from, move->bytes);
        return true;
    case SHC_MOVE_SUM:
        return reduce(comm, op, calls, move, result);
    default: /* ahead */
        return reduce(comm, op, calls, move, half(comm, comm->rank, round + 1) + move->to);
    }
}

/* False: the group has failed, and the result is of no use. It looks after all reads: a rank
 * that has failed an operation goes on to the next ones, and its stream stages over bytes that others may still
 * read here. If no rank had failed after all reads, none had begun to. */
static bool consume(struct shc_cuda_comm *comm, const struct shc_relayed *op,
                    const struct calls *calls)
{
    for (size_t i = op->fetches; i < op->move_count; i++)
        if (!carry_out(comm, op, calls, &op->moves[i], op->round))
            return false;
    if (!op->two)
        return !shc_failure_was_set(comm);
    /* release cuda/relay -> acquire in shc_relay_arrival(): this rank's slice. */
    shc_a64_store_release(&comm->lane.shm->arrived.word, op->round + 1);
    if (!await_all(comm, all_arrived, op->round + 1))
        return false;
    for (size_t i = 0; i < op->fetches; i++)
        (void)carry_out(comm, op, calls, &op->moves[i], op->round + 1);
    return !shc_failure_was_set(comm);
}

/* The stream will copy back what the tensor held: it has brought it here itself, when it has arrived. */
static void restore(struct shc_cuda_comm *comm, const struct shc_relayed *op)
{
    uint32_t looks = 0;
    for (;;) {
        const enum shc_relay_state state = shc_relay_state_of(&op->state);
        if (state == SHC_RELAY_BROKEN || is_stopping(&comm->relay))
            return;
        if (state == SHC_RELAY_ENQUEUED && shc_relay_arrival(&comm->host, comm->rank) >= op->round)
            break;
        look_again_later(comm, &looks);
    }
    const char *old =
        op->in_place ? half(comm, comm->rank, op->round) : cell(comm, comm->rank, OLD);
    memcpy(cell(comm, comm->rank, RESULT), old, op->out_bytes);
}

static void serve_one(struct shc_cuda_comm *comm, const struct shc_relayed *op)
{
    struct calls calls;
    const bool good = await_all(comm, shc_lane_all_published, op->sequence) &&
                      compare(comm, op, &calls) && await_all(comm, all_arrived, op->round) &&
                      gates_are_open(comm) && consume(comm, op, &calls);
    if (!good)
        restore(comm, op);
    else
        shc_relay_agree_on_pace(comm, op);
    shc_relay_tell_pace(comm, op);
    shc_relay_release(&comm->lane, op->sequence);
}

/* False: the thread is to stop. */
static bool await_work(struct shc_cuda_comm *comm)
{
    struct shc_relay *relay = &comm->relay;
    const uint64_t end_ns = shc_clock_ns() + LINGER_NS;
    while (!has_work(relay) && relay->busy_waits && shc_clock_ns() < end_ns) {
        shc_relay_look_at_pace(comm);
        shc_cpu_relax();
    }
    for (shc_relay_look_at_pace(comm); !has_work(relay) && relay->timed != 0 && !is_stopping(relay);
         shc_relay_look_at_pace(comm))
        doze(comm, NAP_NS);
    if (!has_work(relay) && !is_stopping(relay))
        doze(comm, 0);
    return !is_stopping(relay);
}

static void *serve(void *arg)
{
    struct shc_cuda_comm *comm = arg;
    struct shc_relay *relay = &comm->relay;
    uint32_t looks = 0;
    while (await_work(comm)) {
        if (!shc_relay_queue_has(&relay->queue)) {
            look_again_later(comm, &looks);
            continue;
        }
        serve_one(comm, &relay->ring[shc_relay_queue_served(&relay->queue) % SHC_RECORDS]);
        shc_relay_queue_pop(&relay->queue);
        looks = 0;
    }
    return NULL;
}

/* ---- beginning and end ---- */

enum shc_status shc_relay_start(struct shc_cuda_comm *comm)
{
    struct shc_relay *relay = &comm->relay;
    const size_t most =
        (size_t)comm->world + 2; /* of an operation: a move per rank, a block kept, a sum */
    relay->moves = calloc(SHC_RECORDS * most, sizeof *relay->moves);
    if (relay->moves == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < SHC_RECORDS; i++)
        relay->ring[i].moves = relay->moves + i * most;
    relay->busy_waits = shc_sys_cpus() >= 2 * comm->world;
    const int error = shc_sys_thread_start(&relay->thread, "shc-cuda-relay", serve, comm);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_SYSTEM, error, "no thread to relay operations with");
    relay->started = true;
    return SHC_OK;
}

void shc_relay_stop(struct shc_cuda_comm *comm)
{
    struct shc_relay *relay = &comm->relay;
    if (!relay->started)
        return;
    pthread_mutex_lock(&comm->state_lock);
    /* relaxed: the thread looks under the lock, or again soon. */
    shc_a32_store_relaxed(&relay->stopping, 1);
    pthread_cond_signal(&relay->stir);
    pthread_mutex_unlock(&comm->state_lock);
    shc_sys_thread_join(&relay->thread);
    relay->started = false;
}
