/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/flow.h"

#include "shm/coll/parts.h"
#include "shm/proto/member.h"

#define EAGER_BYTES ((size_t)64 << 10) /* stored without waiting for the others (STAGE-20) */

/* Shorter messages are timed only while a copy mode is tried. */
#define UNTIMED_BYTES ((size_t)64 << 10)

/* Longer messages do not change hands (STAGE-56): non-temporal stores may be faster for them. */
#define HAND_OVER_BYTES ((size_t)1 << 20)

/*
 * Chunks through broadcast slots (STAGE-13 to STAGE-22).
 * S: bytes of one giver's input. n: number of chunks.
 *
 * Steps at a rank that gives and takes:
 *   1. give 0     Store chunk 0.
 *   2. For each k from 1 to n - 1:
 *      give k     Store chunk k.
 *      take k-1   Read chunk k - 1 of all givers.
 *   3. take n-1   Read the last chunk of all givers.
 * In this order a taker as a rule finds the next chunk already there. A rank that only gives, or only takes, does its
 * part of these steps.
 *
 * Cost: a giver stores S bytes; a taker loads S bytes for each giver. One flag per chunk and side, none for a
 * chunk 0 that the call line announces.
 *
 * A chunk fills a place: a slot, or a half, a quarter, ... of a slot if the message is short (STAGE-14).
 * Chunk 0 goes into the place after those of the last run (STAGE-16); two ranks that give in turns use the places of
 * the last run again (STAGE-56). Chunk k goes into the k-th place after that one, which is refilled when all takers
 * have published take(k - depth). If the place of chunk 0 is free for sure, give 0 comes before the call line, and a
 * few more may follow right after it (STAGE-18, STAGE-20).
 *
 * Edges: call/publish (chunk 0, announced), progress/step both ways.
 *
 * The small slots serve other operations by parity of the epoch, without a check (CALL-3). So an operation
 * that cuts a message through them ends only when all takers have read the last chunk (STAGE-25).
 */
struct flow_run {
    const struct shc_flow *flow;
    bool small;
    bool gives, takes;
    struct shc_copy_meter meter; /* measures what this rank gives */
    uint64_t first_noted;        /* the first chunk whose bytes count */
    bool timed_whole;            /* the message is timed as a whole, until it has been read */
};

static struct shc_span chunk_of(const struct shc_flow *flow, uint64_t k)
{
    return shc_plan_chunk(flow->total_bytes, flow->cut.chunk_bytes, k);
}

/* The trial of copy modes for what this rank stores. NULL: the message is too short to be worth one, or
 * the lines that it stores to are in this rank's cache. */
static struct shc_copy_trial *trial_for(const struct shc_flow *flow)
{
    const struct shc_task *task = flow->task;
    if (flow->cut.handed_over || !shc_select_streams(task->tuning, task->in.bytes))
        return NULL;
    return shc_copy_trial_for(task->trials, task->in.bytes);
}

/* After chunk k: notes a round when it is full. At the end of this rank's input, which may come before the
 * end of the run, it notes what remains. The time contains the copies of what the rank keeps of earlier
 * chunks, in every copy mode alike. */
static void note_chunk(struct flow_run *run, uint64_t k, struct shc_span chunk)
{
    struct shc_copy_meter *meter = &run->meter;
    const size_t input = run->flow->task->in.bytes;
    const size_t own = shc_plan_overlap(chunk, (struct shc_span){0, input}).bytes;
    if (k < run->first_noted) {
        shc_copy_meter_restart(meter);
        return;
    }
    meter->bytes += own;
    const bool last = k + 1 == run->flow->cut.chunk_count || chunk.offset + chunk.bytes >= input;
    if (own > 0 && (meter->bytes >= SHC_COPY_ROUND || last) && !run->timed_whole)
        shc_copy_meter_note(meter);
}

/*
 * A writer that fills empty slots does not wait for readers, so its time says nothing about them. While a rank
 * tries a copy mode, two rules hold:
 *   1. A message that hardly needs a slot twice is timed as a whole, until it has been read.
 *   2. Of a longer message, the chunks that fill the slots for the first time do not count.
 * Rule 1 does not hold for an input that ends before those of other ranks: its time would contain the wait for
 * these.
 */
static void begin_meter(struct flow_run *run)
{
    const struct shc_flow *flow = run->flow;
    const size_t input = shc_min_size(flow->task->in.bytes, flow->total_bytes);
    const uint64_t own = shc_plan_chunk_count(input, flow->cut.chunk_bytes);
    run->meter = flow->meter;
    if (!run->meter.trial)
        return;
    const bool tries = shc_copy_trial_tries(run->meter.trial);
    if (tries && own >= 3 * flow->cut.depth) {
        shc_copy_meter_restart(&run->meter);
        run->first_noted = flow->cut.depth;
        return;
    }
    shc_copy_meter_resume(&run->meter);
    run->meter.bytes = shc_min_size((size_t)flow->begun * flow->cut.chunk_bytes, input);
    run->timed_whole = tries && own == flow->cut.chunk_count;
    if (flow->begun > 0 && flow->begun >= own && !run->timed_whole)
        shc_copy_meter_note(&run->meter);
}

/* Bytes of a rank's broadcast slots before the place of chunk k. */
static size_t place_of(const struct shc_flow *flow, uint64_t k)
{
    const struct shc_cut *cut = &flow->cut;
    return (cut->first + k) % cut->depth * cut->place_bytes;
}

/* Where the rank stores chunk k. */
static char *bcast_slot_of(const struct shc_flow *flow, int rank, uint64_t k)
{
    const int owner = flow->cut.owner >= 0 ? flow->cut.owner : rank;
    return shc_arena_bcast_slots(flow->task->arena, owner) + place_of(flow, k);
}

static char *slot_of(const struct flow_run *run, int rank, uint64_t k)
{
    if (run->small) /* one after the other in one operation: nothing changes hands */
        return shc_seat_slot_in(run->flow->task->seat, rank, k);
    return bcast_slot_of(run->flow, rank, k);
}

static uint64_t step(const struct shc_flow *flow, uint64_t number)
{
    return flow->first_step + number;
}

/* The only giver of a run takes nothing, and the only taker gives nothing: each has what it would
 * read. */
static bool is_giver(const struct shc_flow *flow, int rank)
{
    return flow->giver >= 0 ? rank == flow->giver : rank != flow->taker;
}

static bool is_taker(const struct shc_flow *flow, int rank)
{
    return flow->taker >= 0 ? rank == flow->taker : rank != flow->giver;
}

/* Waits until all takers except this rank have taken chunk k. */
static enum shc_status wait_taken(const struct flow_run *run, uint64_t k)
{
    struct shc_wait *wait = &run->flow->task->wait;
    for (int rank = 0; rank < wait->seat->world_size; rank++)
        if (rank != wait->seat->rank && is_taker(run->flow, rank))
            SHC_TRY(shc_progress_wait(wait, rank, step(run->flow, shc_plan_step_work(k))));
    return SHC_OK;
}

static enum shc_status store_chunk(struct flow_run *run, uint64_t k, struct shc_span chunk)
{
    struct shc_task *task = run->flow->task;
    if (k >= run->flow->cut.depth)
        SHC_TRY(wait_taken(run, k - run->flow->cut.depth));
    run->flow->give(task, chunk, slot_of(run, task->seat->rank, k));
    shc_progress_publish(task->seat, task->wait.epoch, step(run->flow, shc_plan_step_out(k)));
    if (run->meter.trial)
        note_chunk(run, k, chunk);
    return SHC_OK;
}

static enum shc_status give_chunk(struct flow_run *run, uint64_t k)
{
    const struct shc_span chunk = chunk_of(run->flow, k);
    if (k >= run->flow->begun)
        SHC_TRY(store_chunk(run, k, chunk));
    if (run->flow->keep)
        run->flow->keep(run->flow->task, chunk);
    return SHC_OK;
}

static enum shc_status take_chunk(const struct flow_run *run, uint64_t k)
{
    struct shc_task *task = run->flow->task;
    char *slots[SHC_MAX_WORLD];
    for (int rank = 0; rank < task->seat->world_size; rank++) {
        slots[rank] = slot_of(run, rank, k);
        if (rank != task->seat->rank && is_giver(run->flow, rank) &&
            !(k == 0 && run->flow->announced))
            SHC_TRY(shc_progress_wait(&task->wait, rank, step(run->flow, shc_plan_step_out(k))));
    }
    run->flow->take(task, chunk_of(run->flow, k), slots);
    shc_progress_publish(task->seat, task->wait.epoch, step(run->flow, shc_plan_step_work(k)));
    return SHC_OK;
}

/* A longer message has more chunks than the steps can count: 64 GiB through slots of 8 KiB. */
enum shc_status shc_check_length(struct shc_task *task, uint64_t chunk_count)
{
    if (SHC_LIKELY(chunk_count <= SHC_PLAN_MAX_CHUNKS))
        return SHC_OK;
    return shc_wait_give_up(&task->wait, SHC_ERR_UNSUPPORTED,
                            "the message is too long for the staging memory of this group");
}

void shc_give_piece(struct shc_task *task, struct shc_span piece, char *slot)
{
    if (task->trial && task->trial->mode == SHC_COPY_NON_TEMPORAL)
        shc_task_stream(task, piece.offset, slot, piece.bytes);
    else
        shc_task_read(task, piece.offset, slot, piece.bytes);
}

void shc_give_input(struct shc_task *task, struct shc_span chunk, char *slot)
{
    shc_give_piece(task, shc_plan_overlap(chunk, (struct shc_span){0, task->in.bytes}), slot);
}

enum shc_status shc_small_slots_reuse(struct shc_task *task)
{
    shc_progress_publish(task->seat, task->wait.epoch, 1);
    return shc_progress_wait_all(&task->wait, 1);
}

/* The only rank of two that gives. -1: there is none. */
static int lone_giver(const struct shc_flow *flow)
{
    if (flow->task->seat->world_size != 2)
        return -1;
    return flow->giver >= 0 ? flow->giver : flow->taker >= 0 ? 1 - flow->taker : -1;
}

/*
 * Which places of broadcast slots: after those of the last run. But if the other one of two ranks gave alone in
 * the last run, the giver takes the places of that run, which it has read: their lines are in its cache, and no
 * rank needs them any more (STAGE-56).
 */
static void choose_places(const struct shc_flow *flow, struct shc_cut *cut)
{
    const struct shc_arena_places *last = &flow->task->arena->in_bcast_slots;
    const int giver = lone_giver(flow);
    const size_t end = shc_arena_places_end(last);
    cut->owner = giver;
    cut->first = (uint32_t)(shc_div_ceil(end, cut->place_bytes) % cut->depth);
    if (giver < 0 || last->ring == 0 || last->giver != 1 - giver ||
        flow->total_bytes > HAND_OVER_BYTES)
        return;
    cut->handed_over = true;
    cut->owner = last->owner;
    cut->first = (uint32_t)(last->first / cut->place_bytes % cut->depth);
}

/* Cuts the message into places of broadcast slots, or into small slots. */
static struct shc_cut cut_for(const struct shc_flow *flow, bool arena)
{
    const struct shc_task *task = flow->task;
    struct shc_cut cut = {
        .place_bytes = SHC_SMALL_SLOT_BYTES, .depth = SHC_SMALL_SLOTS, .owner = -1};
    if (arena) {
        const struct shc_arena_geometry *g = &task->arena->geometry;
        cut.place_bytes = shc_select_piece(task->tuning, flow->total_bytes, g->bcast_slot_bytes,
                                           task->seat->world_size);
        cut.depth = (uint32_t)(g->bcast_slot_depth * g->bcast_slot_bytes / cut.place_bytes);
        choose_places(flow, &cut);
    }
    /* The size of opaque elements may not divide it. */
    cut.chunk_bytes = cut.place_bytes - cut.place_bytes % task->call.elem_bytes;
    cut.chunk_count = shc_plan_chunk_count(flow->total_bytes, cut.chunk_bytes);
    return cut;
}

/* The next run begins after the places of this one. */
static void leave_places(const struct flow_run *run)
{
    const struct shc_task *task = run->flow->task;
    const struct shc_cut *cut = &run->flow->cut;
    task->arena->in_bcast_slots = (struct shc_arena_places){
        .epoch = task->wait.epoch,
        .first = cut->first * cut->place_bytes,
        .bytes = (size_t)cut->chunk_count * cut->place_bytes,
        .ring = cut->depth * cut->place_bytes,
        .giver = lone_giver(run->flow),
        .owner = cut->owner,
    };
    if (run->gives)
        task->arena->stored_epoch = task->wait.epoch;
}

/* pre: the message is cut for broadcast slots. */
static bool is_free(const struct shc_flow *flow, uint64_t k)
{
    const struct shc_task *task = flow->task;
    const struct shc_cut *cut = &flow->cut;
    if (k >= cut->depth)
        return false;
    if (cut->handed_over)
        return !shc_arena_may_have_cells(task->arena, task->wait.epoch);
    return shc_arena_is_free(task->arena, task->wait.epoch, cut->owner, place_of(flow, k),
                             cut->place_bytes);
}

/* Two looks at the clock take a fifth of the time of a message of 16 KiB. */
static bool is_timed(const struct shc_flow *flow)
{
    const struct shc_copy_trial *trial = flow->task->trial;
    return trial && (flow->task->in.bytes > UNTIMED_BYTES || shc_copy_trial_tries(trial));
}

/* Cuts the message once, before leave_places() notes the places of this run. Without an arena
 * nothing is announced. */
static void cut_once(struct shc_flow *flow, bool arena)
{
    if (flow->cut.depth > 0)
        return;
    flow->cut = cut_for(flow, arena);
    flow->announced = flow->announced && is_free(flow, 0);
    flow->task->trial = flow->meter.trial = trial_for(flow);
    if (!is_timed(flow))
        flow->meter.trial = NULL;
}

/* If this rank stored nothing in the operation before, all slots are free: it has met all other
 * ranks since they read its memory (STAGE-21). */
static bool may_store(const struct shc_flow *flow, uint64_t k)
{
    const struct shc_task *task = flow->task;
    const bool rested = task->arena->stored_epoch + 1 < task->wait.epoch;
    return (rested && k < flow->cut.depth) || is_free(flow, k);
}

static void begin_chunk(struct shc_flow *flow)
{
    struct shc_task *task = flow->task;
    const uint64_t k = flow->begun++;
    flow->give(task, chunk_of(flow, k), bcast_slot_of(flow, task->seat->rank, k));
}

void shc_flow_begin(struct shc_flow *flow)
{
    struct shc_task *task = flow->task;
    flow->announced = task->arena->made;
    /* A rank that only takes learns after its call line whether chunk 0 is announced. */
    if (!flow->announced || !is_giver(flow, task->seat->rank))
        return;
    cut_once(flow, true);
    shc_copy_meter_begin(&flow->meter);
    if (flow->announced)
        begin_chunk(flow);
    shc_copy_meter_pause(&flow->meter);
}

void shc_flow_go_on(struct shc_flow *flow)
{
    struct shc_task *task = flow->task;
    if (!task->arena->made || !is_giver(flow, task->seat->rank) || is_taker(flow, task->seat->rank))
        return;
    cut_once(flow, true);
    if (task->trial && shc_copy_trial_tries(task->trial))
        return;
    shc_copy_meter_begin(&flow->meter);
    const bool eager = flow->total_bytes <= EAGER_BYTES;
    while (flow->begun < flow->cut.chunk_count && may_store(flow, flow->begun)) {
        if ((!eager && shc_call_all_here(&task->wait)) || shc_group_failed(task->seat))
            break;
        begin_chunk(flow);
        shc_progress_publish(task->seat, task->wait.epoch,
                             step(flow, shc_plan_step_out(flow->begun - 1)));
    }
    shc_copy_meter_pause(&flow->meter);
}

/*
 * A rank that gives and takes nothing ends while the others still take. The slots that its next message fills
 * were last read in an earlier operation, so their lines are in those readers' caches. The rank prefetches
 * them now, which costs a few instructions; otherwise its next stores would wait for them. It leaves the slots
 * of this operation alone, as they are being read.
 */
static void ask_ahead(const struct flow_run *run)
{
    const struct shc_task *task = run->flow->task;
    const struct shc_cut *cut = &run->flow->cut;
    const struct shc_copy_trial *trial = task->trial;
    if (run->small || run->takes || cut->handed_over || /* if it gives again, then elsewhere */
        (trial && trial->mode == SHC_COPY_NON_TEMPORAL) ||
        run->flow->total_bytes > task->tuning->prefetch_bytes)
        return;
    const size_t bytes =
        shc_plan_free_bytes(cut->chunk_count, cut->depth, cut->place_bytes, run->flow->total_bytes);
    for (size_t done = 0; done < bytes; done += cut->place_bytes)
        shc_cpu_will_store(
            slot_of(run, task->seat->rank, cut->chunk_count + done / cut->place_bytes),
            shc_min_size(cut->place_bytes, bytes - done));
}

enum shc_status shc_flow_run(struct shc_flow *flow)
{
    struct shc_task *task = flow->task;
    bool arena;
    SHC_TRY(shc_task_arena(task, &arena));
    cut_once(flow, arena);
    struct flow_run run = {
        .flow = flow,
        .small = !arena,
        .gives = is_giver(flow, task->seat->rank),
        .takes = is_taker(flow, task->seat->rank),
    };
    const uint64_t n = flow->cut.chunk_count;
    SHC_TRY(shc_check_length(task, n));
    if (arena)
        leave_places(&run);
    if (run.gives)
        begin_meter(&run);
    for (uint64_t k = 0; k <= n; k++) {
        if (k < n && run.gives)
            SHC_TRY(give_chunk(&run, k));
        if (k > 0 && run.takes)
            SHC_TRY(take_chunk(&run, k - 1));
    }
    if (run.small || run.timed_whole)
        SHC_TRY(wait_taken(&run, n - 1));
    if (run.timed_whole)
        shc_copy_meter_note(&run.meter);
    if (run.gives && task->trial && !run.meter.trial)
        shc_copy_trial_count(task->trial, task->in.bytes);
    if (run.gives)
        ask_ahead(&run);
    return SHC_OK;
}

/*
 * Chunks through exchange cells, one use of a cell for each chunk (STAGE-11, STAGE-12).
 *
 * Steps at a rank, with n chunks and `depth` slots per pair:
 *   1. give 0                 Store chunk 0 for each peer; before the call line if there is an arena.
 *   2. Publish the call line, and meet.
 *   3. give 1 ... depth-1     Store the next chunks, a slot for each.
 *   4. For each k from 0 to n - 1:
 *      take k                 Read chunk k of each peer.
 *      give k + depth         Store that chunk into the very cells that take k has read.
 * So no flag says that a cell is free, and the cell's lines are in this rank's cache.
 *
 * Cost: each rank stores and loads one cell per peer and turn. One flag per turn, none for chunk 0 if the call
 * line announces it. Edges: call/publish (chunk 0), progress/step.
 */
static void fill_cells(const struct shc_swap *swap, uint64_t k)
{
    struct shc_task *task = swap->task;
    const int me = task->seat->rank, world = task->seat->world_size;
    const uint32_t slot = (uint32_t)(k % task->arena->geometry.depth);
    for (int peer = 0; peer < world; peer++) {
        if (peer == me)
            continue;
        struct shc_span piece = swap->given(task, peer, k);
        shc_task_read(task, piece.offset, shc_task_write_cell(task, peer, slot), piece.bytes);
    }
}

void shc_swap_begin(struct shc_swap *swap)
{
    swap->begun = swap->task->arena->made;
    if (swap->begun)
        fill_cells(swap, 0);
}

static void publish_out(const struct shc_swap *swap, uint64_t k)
{
    shc_progress_publish(swap->task->seat, swap->task->wait.epoch, shc_plan_step_out(k));
}

static void keep_chunk(const struct shc_swap *swap, uint64_t k)
{
    if (swap->keep)
        swap->keep(swap->task, k);
}

static void give_cells(const struct shc_swap *swap, uint64_t k)
{
    if (k >= swap->chunk_count)
        return;
    fill_cells(swap, k);
    publish_out(swap, k);
    keep_chunk(swap, k);
}

/* Waits until the peer's chunk k is there. */
static enum shc_status wait_given(const struct shc_swap *swap, int peer, uint64_t k)
{
    if (k == 0 && swap->begun)
        return SHC_OK; /* it was there before the peer's call line */
    return shc_progress_wait(&swap->task->wait, peer, shc_plan_step_out(k));
}

/* take k, and after it give k + depth. */
static enum shc_status take_cells(const struct shc_swap *swap, uint64_t k)
{
    struct shc_task *task = swap->task;
    const int me = task->seat->rank, world = task->seat->world_size;
    const uint32_t depth = task->arena->geometry.depth, slot = (uint32_t)(k % depth);
    char *cells[SHC_MAX_WORLD];
    cells[me] = NULL;
    for (int turn = 1; turn < world; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        SHC_TRY(wait_given(swap, peer, k));
        cells[peer] = shc_task_read_cell(task, peer, slot);
        shc_exchange_swap(task->arena, peer, slot);
    }
    swap->take(task, k, cells);
    give_cells(swap, k + depth);
    return SHC_OK;
}

/* take k and give k + depth, peer by peer and in one pass. */
static enum shc_status trade_cells(const struct shc_swap *swap, uint64_t k)
{
    struct shc_task *task = swap->task;
    const int world = task->seat->world_size;
    const uint32_t depth = task->arena->geometry.depth, slot = (uint32_t)(k % depth);
    for (int turn = 1; turn < world; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        SHC_TRY(wait_given(swap, peer, k));
        shc_task_trade(task, shc_task_read_cell(task, peer, slot), swap->got(task, peer, k),
                       swap->given(task, peer, k + depth));
        shc_exchange_swap(task->arena, peer, slot);
    }
    if (k + depth < swap->chunk_count) {
        publish_out(swap, k + depth);
        keep_chunk(swap, k + depth);
    }
    return SHC_OK;
}

/* All of it was stored before the call lines. */
static enum shc_status trade_one(const struct shc_swap *swap)
{
    struct shc_task *task = swap->task;
    const int world = task->seat->world_size;
    for (int turn = 1; turn < world; turn++) {
        const int peer = shc_seat_peer(task->seat, turn);
        const struct shc_span got = swap->got(task, peer, 0);
        shc_task_write(task, got.offset, shc_task_read_cell(task, peer, 0), got.bytes);
        shc_exchange_swap(task->arena, peer, 0);
    }
    return SHC_OK;
}

enum shc_status shc_swap_run(const struct shc_swap *swap)
{
    /* Noted here, because all ranks come here. A rank that stored no chunk 0 must know of it, too. */
    shc_exchange_note(swap->task->arena, swap->task->wait.epoch);
    if (swap->begun)
        keep_chunk(swap, 0);
    if (swap->begun && swap->chunk_count == 1 && !swap->take)
        return trade_one(swap);
    SHC_TRY(shc_check_length(swap->task, swap->chunk_count));
    for (uint64_t k = swap->begun ? 1 : 0; k < swap->task->arena->geometry.depth; k++)
        give_cells(swap, k);
    for (uint64_t k = 0; k < swap->chunk_count; k++)
        SHC_TRY(swap->take ? take_cells(swap, k) : trade_cells(swap, k));
    return SHC_OK;
}
