/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/arena.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/base/num.h"

#include <string.h>

/* With a small limit slots are neither smaller nor fewer. */
#define MIN_BCAST_SLOT_BYTES (8u << 10)
#define MIN_BCAST_SLOT_DEPTH 4
#define MIN_DEPTH            2

/* verdict = attempt * 4 + outcome, growing. NOT_OPENED: the rank could not open the file. */
enum outcome { RESERVED = 1, FAILED = 2, NOT_OPENED = 3 };

/* One of each form. */
#define MOST_ATTEMPTS 3

#define USUAL_BYTES ((size_t)32 << 20)
#define USUAL_DEPTH 3

static size_t total_bytes(const struct shc_arena_geometry *g, int world_size)
{
    return g->range_bytes * (size_t)world_size;
}

static size_t end_of_cells(const struct shc_arena_geometry *g)
{
    return (size_t)g->pairs_hosted * g->depth * 2 * g->cell_bytes;
}

static size_t end_of_bcast_slots(const struct shc_arena_geometry *g)
{
    return shc_arena_bcast_slot_offset(g) + g->bcast_slot_depth * g->bcast_slot_bytes;
}

static void size_range(struct shc_arena_geometry *g)
{
    size_t cells = end_of_cells(g), bcast_slots = end_of_bcast_slots(g);
    g->range_bytes = shc_align_up(cells > bcast_slots ? cells : bcast_slots, SHC_PAGE_BYTES);
}

static size_t cell_bytes(size_t world, const struct shc_arena_sizes *wish)
{
    size_t cell = shc_align_up(shc_div_ceil(wish->chunk_bytes, world), SHC_LINE_BYTES);
    if (cell < SHC_ARENA_MIN_CELL_BYTES)
        return SHC_ARENA_MIN_CELL_BYTES;
    return shc_min_size(cell, SHC_ARENA_MAX_CELL_BYTES);
}

/* Three and four ranks share as many slots as two ranks have. With one slot each, every rank would wait until
 * all others have taken the first chunk. */
static size_t bcast_slot_depth(size_t world, const struct shc_arena_sizes *wish)
{
    const size_t shared = shc_div_ceil(2 * wish->bcast_slot_depth, world);
    return world > 4 ? wish->bcast_slot_depth : shared < 2 ? 2 : shared;
}

static size_t shorter_cell(size_t bytes)
{
    const size_t half = shc_align_up(bytes / 2, SHC_LINE_BYTES);
    return half > SHC_ARENA_MIN_CELL_BYTES ? half : SHC_ARENA_MIN_CELL_BYTES;
}

/* For the parts that are short: one turn of an operation that carries that many bytes. With two ranks each
 * may have the other's whole input. Up to four use broadcast slots only for uneven lists when that
 * short. */
static struct shc_arena_sizes shorten(const struct shc_arena_sizes *wish, int world_size,
                                      unsigned parts)
{
    struct shc_arena_sizes sizes = *wish;
    const size_t chunk = SHC_ARENA_SHORT_BYTES * (world_size == 2 ? 2 : 1);
    const size_t bcast_slot = world_size > 4 ? SHC_ARENA_SHORT_BYTES : MIN_BCAST_SLOT_BYTES;
    if (!(parts & SHC_ARENA_CELLS)) {
        sizes.chunk_bytes = shc_min_size(chunk, wish->chunk_bytes);
        sizes.depth = MIN_DEPTH;
    }
    if (!(parts & SHC_ARENA_BCAST_SLOTS)) {
        sizes.bcast_slot_bytes = shc_min_size(bcast_slot, wish->bcast_slot_bytes);
        sizes.bcast_slot_depth = shc_min_size(2 * (size_t)world_size, wish->bcast_slot_depth);
    }
    return sizes;
}

struct shc_arena_geometry shc_arena_plan(int world_size, size_t limit_bytes,
                                         const struct shc_arena_sizes *wish, unsigned parts)
{
    const struct shc_arena_sizes sizes = shorten(wish, world_size, parts);
    struct shc_arena_geometry g = {
        .depth = (uint32_t)sizes.depth,
        .cell_bytes = cell_bytes((size_t)world_size, &sizes),
        .pairs_hosted = (uint32_t)world_size / 2,
        .bcast_slot_depth = (uint32_t)bcast_slot_depth((size_t)world_size, &sizes),
        .bcast_slot_bytes = sizes.bcast_slot_bytes,
    };
    for (size_range(&g); total_bytes(&g, world_size) > limit_bytes; size_range(&g)) {
        const bool bcast_slots = end_of_bcast_slots(&g) > end_of_cells(&g);
        if (bcast_slots && g.bcast_slot_depth > MIN_BCAST_SLOT_DEPTH)
            g.bcast_slot_depth--;
        else if (bcast_slots && g.bcast_slot_bytes > MIN_BCAST_SLOT_BYTES)
            g.bcast_slot_bytes = shc_align_up(g.bcast_slot_bytes / 2, SHC_LINE_BYTES);
        else if (g.cell_bytes > SHC_ARENA_MIN_CELL_BYTES)
            g.cell_bytes = shorter_cell(g.cell_bytes);
        else if (g.depth > MIN_DEPTH)
            g.depth--;
        else
            return (struct shc_arena_geometry){0};
    }
    return g;
}

size_t shc_arena_usual_limit(int world_size)
{
    const size_t pairs = (size_t)world_size * (size_t)world_size / 2;
    const size_t cells = pairs * 2 * SHC_ARENA_MIN_CELL_BYTES * USUAL_DEPTH;
    return cells > USUAL_BYTES ? cells : USUAL_BYTES;
}

size_t shc_arena_least_limit(int world_size)
{
    struct shc_arena_geometry g = {
        .depth = MIN_DEPTH,
        .cell_bytes = SHC_ARENA_MIN_CELL_BYTES,
        .pairs_hosted = (uint32_t)world_size / 2,
        .bcast_slot_depth = MIN_BCAST_SLOT_DEPTH,
        .bcast_slot_bytes = MIN_BCAST_SLOT_BYTES,
    };
    size_range(&g);
    return total_bytes(&g, world_size);
}

/* In a world of two the lower rank hosts the cells of the one pair. */
struct shc_arena_extent shc_arena_extent_of(const struct shc_arena_geometry *geometry,
                                            int world_size, int rank)
{
    const size_t offset = (size_t)rank * geometry->range_bytes;
    if (world_size > 2 || rank == 0)
        return (struct shc_arena_extent){offset, geometry->range_bytes};
    const size_t skip = shc_arena_bcast_slot_offset(geometry);
    return (struct shc_arena_extent){offset + skip, end_of_bcast_slots(geometry) - skip};
}

static uint64_t bit_of(int node)
{
    return node >= 0 ? UINT64_C(1) << node : 0;
}

static int add_home(struct shc_arena_home *homes, int count, struct shc_arena_home home)
{
    if (home.bytes == 0)
        return count;
    if (count > 0 && homes[count - 1].nodes == home.nodes) {
        homes[count - 1].bytes += home.bytes;
        return count;
    }
    homes[count] = home;
    return count + 1;
}

int shc_arena_homes(const struct shc_arena_geometry *geometry, int world_size, int rank,
                    const int8_t *node_of, struct shc_arena_home homes[SHC_ARENA_MOST_HOMES])
{
    const struct shc_arena_extent extent = shc_arena_extent_of(geometry, world_size, rank);
    const size_t range = (size_t)rank * geometry->range_bytes, end = extent.offset + extent.bytes;
    const bool has_cells = extent.offset == range;
    const size_t pair_bytes = 2 * geometry->cell_bytes;
    const uint64_t own = bit_of(node_of[rank]);
    uint64_t others = 0;
    int count = 0;
    for (int peer = 0; peer < world_size; peer++)
        others |= peer != rank ? bit_of(node_of[peer]) : 0;
    for (uint32_t i = 0; has_cells && i < geometry->pairs_hosted; i++) {
        const int peer = (rank + (int)i + 1) % world_size;
        const struct shc_arena_home pair = {range + i * pair_bytes, pair_bytes,
                                            own | bit_of(node_of[peer])};
        count = add_home(homes, count, pair);
    }
    const size_t slots = range + shc_arena_bcast_slot_offset(geometry);
    const size_t mixed = has_cells ? range + end_of_cells(geometry) : slots;
    count = add_home(homes, count, (struct shc_arena_home){slots, mixed - slots, own | others});
    return add_home(homes, count, (struct shc_arena_home){mixed, end - mixed, others});
}

static void plan(struct shc_arena *arena, int world_size, unsigned parts)
{
    arena->geometry = shc_arena_plan(world_size, arena->limit_bytes, &arena->wish, parts);
    arena->had = parts;
    arena->tried = arena->geometry.depth == 0;
}

void shc_arena_init(struct shc_arena *arena, int world_size, size_t limit_bytes,
                    const struct shc_arena_sizes *wish)
{
    *arena = (struct shc_arena){.segment = {.fd = -1}, .wish = *wish, .limit_bytes = limit_bytes};
    memset(arena->node_of, -1, sizeof arena->node_of);
    plan(arena, world_size, 0);
    if (arena->tried)
        arena->had = SHC_ARENA_WHOLE; /* not even one fits any more */
}

/* With a small limit, a geometry that is to be longer in all may be shorter in a part. */
static bool is_longer(const struct shc_arena_geometry *a, const struct shc_arena_geometry *b)
{
    const size_t bcast_slots = a->bcast_slot_depth * a->bcast_slot_bytes;
    const size_t bcast_slots_before = b->bcast_slot_depth * b->bcast_slot_bytes;
    if (a->cell_bytes < b->cell_bytes || bcast_slots < bcast_slots_before)
        return false;
    return a->cell_bytes > b->cell_bytes || bcast_slots > bcast_slots_before || a->depth > b->depth;
}

void shc_arena_outgrow(struct shc_arena *arena, int world_size)
{
    const struct shc_arena_geometry before = arena->geometry;
    const bool made = arena->made;
    plan(arena, world_size, arena->wanted);
    if (!is_longer(&arena->geometry, &before)) {
        arena->geometry = before;
        arena->tried = made;
        return;
    }
    shc_segment_detach(&arena->segment);
    arena->made = false;
    /* Nothing lies in the new one yet. */
    arena->in_bcast_slots = (struct shc_arena_places){0};
    arena->swapped_epoch = arena->stored_epoch = 0;
    memset(arena->parity, 0, sizeof arena->parity);
}

/* Rank 0: the form for the attempt after a failed one of `form`; 0: none. Once this process has changed its
 * user, or is not dumpable, others cannot open a file without a name, though they could when the group was
 * made. A memfd does not depend on the size of /dev/shm. */
static uint32_t next_form(uint32_t form, bool not_opened)
{
    const bool free_choice = shc_config_get()->segment == SHC_SEGMENT_AUTO;
    if (form == SHC_FORM_UNNAMED && not_opened && free_choice)
        return SHC_FORM_NAMED;
    return form == SHC_FORM_MEMFD ? 0 : (uint32_t)SHC_FORM_MEMFD;
}

/* Rank 0: makes the file and publishes its name. */
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

/* Waits for the rank's verdict on this attempt. A rank with a later verdict has seen this attempt fail.
 * Rank 0 sees no such verdict, since the next attempt begins with it. */
static enum shc_status read_verdict(struct shc_wait *wait, int rank, uint64_t attempt, bool *good,
                                    bool *not_opened)
{
    const struct shc_offer_shm *offer = shc_seat_offer(wait->seat, rank);
    SHC_TRY(shc_wait_reached(wait, rank, &offer->verdict, attempt * 4 + RESERVED));
    /* acquire offer/verdict <- release in publish_verdict(): the name (rank 0), the reserve. */
    const uint64_t verdict = shc_a64_load_acquire(&offer->verdict);
    *good = *good && verdict == attempt * 4 + RESERVED;
    *not_opened = *not_opened || verdict == attempt * 4 + NOT_OPENED;
    return SHC_OK;
}

/* This rank's part of one attempt: map and reserve. */
static enum shc_status take_part(struct shc_arena *arena, struct shc_wait *wait)
{
    struct shc_seat *seat = wait->seat;
    if (seat->rank == 0) {
        SHC_TRY(create(arena, seat));
    } else {
        bool offered = true, ignored = false;
        SHC_TRY(read_verdict(wait, 0, arena->attempt, &offered, &ignored));
        if (!offered)
            return shc_fail(SHC_ERR_NOSPACE, "rank 0 could not make the arena");
        struct shc_segment_name name;
        shc_copy_once(&name, &shc_seat_offer(seat, 0)->name, sizeof name);
        if (name.bytes != total_bytes(&arena->geometry, seat->world_size))
            return shc_fail(SHC_ERR_VERSION, "rank 0 offers an arena of another size");
        SHC_TRY(shc_segment_attach(&arena->segment, &name, 0, seat->segment.cache));
    }
    struct shc_arena_home homes[SHC_ARENA_MOST_HOMES];
    const int count =
        shc_arena_homes(&arena->geometry, seat->world_size, seat->rank, arena->node_of, homes);
    for (int i = 0; i < count; i++)
        SHC_TRY(
            shc_segment_reserve(&arena->segment, homes[i].offset, homes[i].bytes, homes[i].nodes));
    return SHC_OK;
}

/* A failure that ends the operation, not only the attempt. */
static bool is_fatal(enum shc_status status)
{
    return status != SHC_OK && status != SHC_ERR_NOSPACE && status != SHC_ERR_SYSTEM &&
           status != SHC_ERR_UNREACHABLE && status != SHC_ERR_VERSION;
}

static enum shc_status attempt_once(struct shc_arena *arena, struct shc_wait *wait)
{
    struct shc_seat *seat = wait->seat;
    const uint64_t attempt = ++arena->attempt;
    enum shc_status mine = take_part(arena, wait);
    if (is_fatal(mine))
        return mine;
    if (mine != SHC_OK)
        shc_log(SHC_LOG_INFO, "%s: no arena (attempt %d): %s",
                shc_seat_member_name(seat, seat->rank).text, (int)attempt, shc_error_text());
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

/* One with this geometry. */
static enum shc_status make(struct shc_arena *arena, struct shc_wait *wait)
{
    arena->form = wait->seat->segment.name.form; /* the form that worked for the first segment */
    for (int turn = 0; turn < MOST_ATTEMPTS && !arena->made; turn++) {
        enum shc_status st = attempt_once(arena, wait);
        if (st != SHC_OK || !arena->made)
            shc_segment_detach(&arena->segment);
        else
            shc_segment_settle(&arena->segment);
        SHC_TRY(st);
    }
    return SHC_OK;
}

enum shc_status shc_arena_make(struct shc_arena *arena, struct shc_wait *wait)
{
    SHC_TRY(make(arena, wait));
    if (!arena->made && arena->had != 0) {
        plan(arena, wait->seat->world_size, 0); /* for which there may still be memory */
        SHC_TRY(make(arena, wait));
        arena->had = SHC_ARENA_WHOLE; /* so no operation asks for more again */
    }
    if (!arena->made)
        arena->had = SHC_ARENA_WHOLE;
    arena->tried = true;
    return SHC_OK;
}

void shc_arena_fini(struct shc_arena *arena)
{
    shc_segment_detach(&arena->segment);
    arena->made = false;
    arena->tried = true;
}
