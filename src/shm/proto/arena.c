/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/arena.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/base/num.h"

#include <string.h>

/* A small limit makes slots no smaller, and not fewer. */
#define MIN_SHOUT_BYTES (8u << 10)
#define MIN_SHOUT_DEPTH 4

/* verdict = attempt * 4 + outcome, growing. NOT_OPENED: the rank could not open the file. */
enum outcome { RESERVED = 1, FAILED = 2, NOT_OPENED = 3 };

/* One of each form. */
#define MOST_ATTEMPTS 3

static size_t total_bytes(const struct shc_arena_geometry *g, int world_size)
{
    return g->range_bytes * (size_t)world_size;
}

static size_t end_of_cells(const struct shc_arena_geometry *g)
{
    return (size_t)g->pairs_hosted * g->depth * 2 * g->cell_bytes;
}

static size_t end_of_shouts(const struct shc_arena_geometry *g)
{
    return shc_arena_shout_offset(g) + g->shout_depth * g->shout_bytes;
}

static void size_range(struct shc_arena_geometry *g)
{
    size_t cells = end_of_cells(g), shouts = end_of_shouts(g);
    g->range_bytes = shc_align_up(cells > shouts ? cells : shouts, SHC_PAGE_BYTES);
}

static size_t cell_bytes(size_t world, const struct shc_arena_sizes *wish)
{
    size_t chunk = world > 4 ? wish->chunk_of_many_bytes : wish->chunk_bytes;
    size_t cell = shc_align_up(shc_div_ceil(chunk, world), SHC_LINE_BYTES);
    if (cell < SHC_ARENA_MIN_CELL_BYTES)
        return SHC_ARENA_MIN_CELL_BYTES;
    return shc_min_size(cell, SHC_ARENA_MAX_CELL_BYTES);
}

/* Up to four ranks share as many slots as two of them have. With one each, all would wait for all to
 * take the first chunk before they take it. */
static size_t shout_depth(size_t world, const struct shc_arena_sizes *wish)
{
    const size_t shared = shc_div_ceil(2 * wish->shout_depth, world);
    return world > 4 ? wish->shout_depth_of_many : shared < 2 ? 2 : shared;
}

struct shc_arena_geometry shc_arena_plan(int world_size, size_t limit_bytes,
                                         const struct shc_arena_sizes *wish)
{
    struct shc_arena_geometry g = {
        .depth = (uint32_t)wish->depth,
        .cell_bytes = cell_bytes((size_t)world_size, wish),
        .pairs_hosted = (uint32_t)world_size / 2,
        .shout_depth = (uint32_t)shout_depth((size_t)world_size, wish),
        .shout_bytes = wish->shout_bytes,
    };
    for (size_range(&g); total_bytes(&g, world_size) > limit_bytes; size_range(&g)) {
        const bool shouts = end_of_shouts(&g) > end_of_cells(&g);
        if (shouts && g.shout_depth > MIN_SHOUT_DEPTH)
            g.shout_depth--;
        else if (shouts && g.shout_bytes > MIN_SHOUT_BYTES)
            g.shout_bytes = shc_align_up(g.shout_bytes / 2, SHC_LINE_BYTES);
        else if (g.cell_bytes / 2 >= SHC_ARENA_MIN_CELL_BYTES)
            g.cell_bytes = shc_align_up(g.cell_bytes / 2, SHC_LINE_BYTES);
        else if (g.depth > 2)
            g.depth--;
        else
            return (struct shc_arena_geometry){0};
    }
    return g;
}

void shc_arena_init(struct shc_arena *arena, int world_size, size_t limit_bytes,
                    const struct shc_arena_sizes *wish, int node)
{
    *arena = (struct shc_arena){.node = node, .segment = {.fd = -1}};
    arena->geometry = shc_arena_plan(world_size, limit_bytes, wish);
    arena->tried = arena->geometry.depth == 0;
}

/* Rank 0: the form for the attempt after one of `form` that has failed; 0: none. A file without a name
 * cannot be opened by others once this process has changed its user, or is not dumpable, though it
 * could when the group was made. A memfd does not ask how big /dev/shm is. */
static uint32_t next_form(uint32_t form, bool not_opened)
{
    const bool free_choice = shc_config_get()->segment == SHC_SEGMENT_AUTO;
    if (form == SHC_FORM_UNNAMED && not_opened && free_choice)
        return SHC_FORM_NAMED;
    return form == SHC_FORM_MEMFD ? 0 : (uint32_t)SHC_FORM_MEMFD;
}

/* Rank 0: makes the file and lays its name out. */
static enum shc_status create(struct shc_arena *arena, struct shc_seat *seat)
{
    if (arena->form == 0)
        return shc_fail(SHC_ERR_NOSPACE, "no form of the arena is left");
    SHC_TRY(shc_segment_create(&arena->segment, arena->form,
                               total_bytes(&arena->geometry, seat->world_size), 0, &seat->self,
                               seat->segment.cache));
    shc_seat_offer(seat, 0)->name = arena->segment.name;
    return SHC_OK;
}

static void publish_verdict(const struct shc_seat *seat, uint64_t attempt, enum outcome outcome)
{
    /* release offer/verdict -> acquire in shc_wait_has_reached(): the name (rank 0), the reserve. */
    shc_a64_store_release(&shc_seat_offer(seat, seat->rank)->verdict,
                          attempt * 4 + (uint64_t)outcome);
    shc_bell_ring(shc_seat_bell(seat, seat->rank), true);
}

/* Waits for the rank's verdict on this attempt. A rank that is further on has seen it fail; of those
 * rank 0 sees none, since the next attempt begins with it. */
static enum shc_status read_verdict(struct shc_wait *wait, int rank, uint64_t attempt, bool *good,
                                    bool *not_opened)
{
    const struct shc_offer_shm *offer = shc_seat_offer(wait->seat, rank);
    SHC_TRY(shc_wait_reached(wait, rank, &offer->verdict, attempt * 4 + RESERVED));
    /* acquire offer/verdict <- release in publish_verdict(): as above. */
    const uint64_t verdict = shc_a64_load_acquire(&offer->verdict);
    *good = *good && verdict == attempt * 4 + RESERVED;
    *not_opened = *not_opened || verdict == attempt * 4 + NOT_OPENED;
    return SHC_OK;
}

/* This rank's part of one attempt: map and reserve. */
static enum shc_status take_part(struct shc_arena *arena, struct shc_wait *wait, uint64_t attempt)
{
    struct shc_seat *seat = wait->seat;
    if (seat->rank == 0) {
        SHC_TRY(create(arena, seat));
    } else {
        bool offered = true, ignored = false;
        SHC_TRY(read_verdict(wait, 0, attempt, &offered, &ignored));
        if (!offered)
            return shc_fail(SHC_ERR_NOSPACE, "rank 0 could not make the arena");
        struct shc_segment_name name;
        shc_copy_once(&name, &shc_seat_offer(seat, 0)->name, sizeof name);
        if (name.bytes != total_bytes(&arena->geometry, seat->world_size))
            return shc_fail(SHC_ERR_VERSION, "rank 0 offers an arena of another size");
        SHC_TRY(shc_segment_attach(&arena->segment, &name, 0, seat->segment.cache));
    }
    return shc_segment_reserve(&arena->segment, (size_t)seat->rank * arena->geometry.range_bytes,
                               arena->geometry.range_bytes, arena->node);
}

/* A failure that ends the operation, as against one that only ends the attempt. */
static bool is_fatal(enum shc_status status)
{
    return status != SHC_OK && status != SHC_ERR_NOSPACE && status != SHC_ERR_SYSTEM &&
           status != SHC_ERR_UNREACHABLE && status != SHC_ERR_VERSION;
}

static enum shc_status attempt_once(struct shc_arena *arena, struct shc_wait *wait,
                                    uint64_t attempt)
{
    struct shc_seat *seat = wait->seat;
    enum shc_status mine = take_part(arena, wait, attempt);
    if (is_fatal(mine))
        return mine;
    if (mine != SHC_OK)
        shc_log(SHC_LOG_INFO, "rank %d of \"%s\": no arena (attempt %d): %s", seat->rank,
                seat->group, (int)attempt, shc_error_text());
    bool good = mine == SHC_OK, not_opened = false;
    publish_verdict(seat, attempt,
                    good                          ? RESERVED
                    : mine == SHC_ERR_UNREACHABLE ? NOT_OPENED
                                                  : FAILED);
    for (int rank = 0; rank < seat->world_size; rank++)
        if (rank != seat->rank)
            SHC_TRY(read_verdict(wait, rank, attempt, &good, &not_opened));
    arena->made = good;
    arena->form = next_form(arena->form, not_opened);
    return SHC_OK;
}

enum shc_status shc_arena_make(struct shc_arena *arena, struct shc_wait *wait)
{
    arena->form = wait->seat->segment.name.form; /* the one that worked for the first segment */
    for (uint64_t attempt = 1; attempt <= MOST_ATTEMPTS && !arena->made; attempt++) {
        enum shc_status st = attempt_once(arena, wait, attempt);
        if (st != SHC_OK || !arena->made)
            shc_segment_detach(&arena->segment);
        else
            shc_segment_settle(&arena->segment);
        SHC_TRY(st);
    }
    arena->tried = true;
    return SHC_OK;
}

void shc_arena_fini(struct shc_arena *arena)
{
    shc_segment_detach(&arena->segment);
    arena->made = false;
    arena->tried = true;
}
