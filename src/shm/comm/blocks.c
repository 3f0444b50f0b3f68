/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/blocks.h"

#include "shm/base/num.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 64

/* Room for two more entries: a block may leave a rest on each side. */
static bool make_room(struct shc_blocks *blocks)
{
    if (blocks->count + 2 <= blocks->room)
        return true;
    const size_t room = blocks->room ? 2 * blocks->room : FIRST_ROOM;
    struct shc_block *entry = realloc(blocks->entry, room * sizeof *entry);
    if (!entry)
        return false;
    blocks->entry = entry;
    blocks->room = room;
    return true;
}

static void insert(struct shc_blocks *blocks, size_t at, struct shc_block block)
{
    memmove(&blocks->entry[at + 1], &blocks->entry[at],
            (blocks->count - at) * sizeof *blocks->entry);
    blocks->entry[at] = block;
    blocks->count++;
}

static void remove_some(struct shc_blocks *blocks, size_t at, size_t count)
{
    memmove(&blocks->entry[at], &blocks->entry[at + count],
            (blocks->count - at - count) * sizeof *blocks->entry);
    blocks->count -= count;
}

static bool is_in_use(const struct shc_block *block)
{
    return block->state == SHC_BLOCK_USED || block->state == SHC_BLOCK_DIVORCED;
}

static void set_state(struct shc_blocks *blocks, struct shc_block *block,
                      enum shc_block_state state)
{
    if (block->state == SHC_BLOCK_READY)
        blocks->ready_bytes -= block->bytes;
    if (is_in_use(block)) {
        blocks->used_bytes -= block->bytes;
        blocks->used_count--;
    }
    block->state = state;
    if (state == SHC_BLOCK_READY)
        blocks->ready_bytes += block->bytes;
    if (is_in_use(block)) {
        blocks->used_bytes += block->bytes;
        blocks->used_count++;
    }
}

/* Cuts a free entry in two; both parts keep its state. pre: make_room(). */
static void cut(struct shc_blocks *blocks, size_t at, size_t bytes)
{
    struct shc_block rest = blocks->entry[at];
    if (rest.bytes == bytes)
        return;
    rest.offset += bytes;
    rest.bytes -= bytes;
    blocks->entry[at].bytes = bytes;
    insert(blocks, at + 1, rest);
}

/* Joins a free entry with its neighbours of the same state. */
static void join(struct shc_blocks *blocks, size_t at)
{
    const enum shc_block_state state = blocks->entry[at].state;
    size_t first = at, last = at;
    if (first > 0 && blocks->entry[first - 1].state == state)
        first--;
    if (last + 1 < blocks->count && blocks->entry[last + 1].state == state)
        last++;
    for (size_t i = first + 1; i <= last; i++)
        blocks->entry[first].bytes += blocks->entry[i].bytes;
    blocks->entry[first].freed_at = blocks->entry[at].freed_at;
    remove_some(blocks, first + 1, last - first);
}

/* The smallest free entry in that state that is large enough, or blocks->count. */
static size_t best_of(const struct shc_blocks *blocks, size_t bytes, enum shc_block_state state)
{
    size_t best = blocks->count;
    for (size_t i = 0; i < blocks->count; i++) {
        const struct shc_block *block = &blocks->entry[i];
        if (block->state == state && block->bytes >= bytes &&
            (best == blocks->count || block->bytes < blocks->entry[best].bytes))
            best = i;
    }
    return best;
}

/* Free entries that follow one another and are together large enough; else those at the heap's end,
 * which may be none. Returns their bytes. */
static size_t run_of(const struct shc_blocks *blocks, size_t bytes, size_t *first, size_t *count)
{
    size_t sum = 0;
    *first = *count = 0;
    for (size_t i = 0; i < blocks->count && sum < bytes; i++) {
        const bool is_free = blocks->entry[i].state <= SHC_BLOCK_READY;
        sum = is_free ? sum + blocks->entry[i].bytes : 0;
        *first = is_free && *count > 0 ? *first : is_free ? i : i + 1;
        *count = is_free ? *count + 1 : 0;
    }
    return sum;
}

/* Makes one EMPTY entry of the run and of as much of the heap's end as is missing. *rest: where READY pages may
 * lie after the block. */
static size_t join_run(struct shc_blocks *blocks, size_t bytes, size_t sum, size_t first,
                       size_t count)
{
    for (size_t i = first; i < first + count; i++)
        set_state(blocks, &blocks->entry[i], SHC_BLOCK_EMPTY);
    if (count == 0)
        insert(blocks, first, (struct shc_block){.offset = blocks->end, .state = SHC_BLOCK_EMPTY});
    else
        remove_some(blocks, first + 1, count - 1);
    blocks->entry[first].bytes = sum > bytes ? sum : bytes;
    if (sum < bytes)
        blocks->end += bytes - sum;
    return first;
}

bool shc_blocks_take(struct shc_blocks *blocks, size_t bytes, size_t limit, struct shc_part *taken,
                     bool *ready, struct shc_part *rest)
{
    if (bytes > limit || !make_room(blocks))
        return false;
    size_t at = best_of(blocks, bytes, SHC_BLOCK_READY);
    *rest = (struct shc_part){0, 0};
    *ready = at < blocks->count;
    if (at == blocks->count)
        at = best_of(blocks, bytes, SHC_BLOCK_EMPTY);
    if (at == blocks->count) {
        size_t first, count;
        const size_t sum = run_of(blocks, bytes, &first, &count);
        if (sum < bytes && bytes - sum > limit - blocks->end)
            return false;
        at = join_run(blocks, bytes, sum, first, count);
        const struct shc_block *whole = &blocks->entry[at];
        *rest = (struct shc_part){whole->offset + bytes, whole->bytes - bytes};
    }
    cut(blocks, at, bytes);
    set_state(blocks, &blocks->entry[at], SHC_BLOCK_USED);
    *taken = (struct shc_part){blocks->entry[at].offset, bytes};
    return true;
}

/* The entry that holds this offset, or blocks->count. */
static size_t index_of(const struct shc_blocks *blocks, size_t offset)
{
    size_t low = 0, high = blocks->count;
    if (offset >= blocks->end)
        return blocks->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (blocks->entry[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const struct shc_block *shc_blocks_find(const struct shc_blocks *blocks, size_t offset)
{
    const size_t at = index_of(blocks, offset);
    return at < blocks->count && is_in_use(&blocks->entry[at]) ? &blocks->entry[at] : NULL;
}

void shc_blocks_divorce(struct shc_blocks *blocks, size_t offset)
{
    const size_t at = index_of(blocks, offset);
    if (at < blocks->count && is_in_use(&blocks->entry[at]))
        set_state(blocks, &blocks->entry[at], SHC_BLOCK_DIVORCED);
}

static bool give(struct shc_blocks *blocks, size_t offset, enum shc_block_state state)
{
    const size_t at = index_of(blocks, offset);
    if (at == blocks->count || !is_in_use(&blocks->entry[at]) || blocks->entry[at].offset != offset)
        return false;
    if (blocks->entry[at].state == SHC_BLOCK_DIVORCED) {
        set_state(blocks, &blocks->entry[at], SHC_BLOCK_LOST);
        return true;
    }
    set_state(blocks, &blocks->entry[at], state);
    blocks->entry[at].freed_at = ++blocks->frees;
    join(blocks, at);
    return true;
}

bool shc_blocks_give(struct shc_blocks *blocks, size_t offset)
{
    return give(blocks, offset, SHC_BLOCK_READY);
}

void shc_blocks_give_empty(struct shc_blocks *blocks, size_t offset)
{
    (void)give(blocks, offset, SHC_BLOCK_EMPTY);
}

bool shc_blocks_trim(struct shc_blocks *blocks, size_t most, struct shc_part *part)
{
    size_t oldest = blocks->count;
    if (blocks->ready_bytes <= most || !make_room(blocks))
        return false;
    for (size_t i = 0; i < blocks->count; i++)
        if (blocks->entry[i].state == SHC_BLOCK_READY &&
            (oldest == blocks->count || blocks->entry[i].freed_at < blocks->entry[oldest].freed_at))
            oldest = i;
    const size_t excess = shc_min_size(blocks->ready_bytes - most, blocks->entry[oldest].bytes);
    const size_t kept = blocks->entry[oldest].bytes - excess;
    if (kept > 0)
        cut(blocks, oldest++, kept);
    struct shc_block *block = &blocks->entry[oldest];
    *part = (struct shc_part){block->offset, block->bytes};
    set_state(blocks, block, SHC_BLOCK_EMPTY);
    join(blocks, oldest);
    return true;
}
