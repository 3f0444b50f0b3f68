/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/rounds.h"
#include "shm/base/num.h"

/* The cost of a round besides its bytes, in bytes that a GPU's memory moves meanwhile
 * (docs/internals/adr/0011-rounds.md has the traffic): between GPUs a hand-over takes some microseconds; where
 * contexts share one each of the others has its turn first, which is 0.18 ms on an H100. */
#define ROUND_WORTH_BYTES ((uint64_t)8 << 20)
#define TURN_WORTH_BYTES  ((uint64_t)240 << 20)

/* Moves as they are found. */
struct list {
    struct shc_move *moves;
    size_t count;
};

static void add(struct list *list, enum shc_move_kind kind, int rank, uint64_t from, uint64_t to,
                uint64_t bytes)
{
    if (bytes > 0)
        list->moves[list->count++] =
            (struct shc_move){.kind = kind, .rank = rank, .from = from, .to = to, .bytes = bytes};
}

bool shc_rounds_wants_two(const struct shc_rounds *rounds, int sharing)
{
    const uint64_t n = (uint64_t)rounds->world;
    const uint64_t worth =
        sharing > 1 ? (uint64_t)(sharing - 1) * TURN_WORTH_BYTES : ROUND_WORTH_BYTES;
    /* (n*n + 3n) S against (5n + 1) S: below three ranks one round moves less. */
    return n > 2 && shc_min_size(rounds->bytes, rounds->half_bytes) > worth / (n * n - 2 * n - 1);
}

/* ---- pieces of a half, and how many rounds they take ---- */

/* Where each rank's block has a segment of its own in the half. */
static bool is_segmented(enum shc_op_kind kind)
{
    return kind == SHC_SCATTER || kind == SHC_REDUCE_SCATTER || kind == SHC_REDUCE_SCATTER_UNEVEN ||
           kind == SHC_ALL_TO_ALL;
}

/* The bytes of a block that one round takes. */
static uint64_t piece_bytes(const struct shc_rounds *rounds)
{
    const size_t lines = rounds->half_bytes / SHC_LINE_BYTES;
    const size_t parts = is_segmented(rounds->kind) ? (size_t)rounds->world : 1;
    return lines / parts * SHC_LINE_BYTES;
}

static uint64_t block_bytes(const struct shc_rounds *rounds, int rank)
{
    return rounds->blocks ? rounds->blocks[rank] : rounds->bytes;
}

uint64_t shc_rounds_longest(const struct shc_rounds *rounds)
{
    uint64_t most = 0;
    if (rounds->kind == SHC_BARRIER)
        return 0;
    if (rounds->kind == SHC_ALL_TO_ALL)
        return rounds->largest;
    for (int r = 0; r < rounds->world; r++)
        most = block_bytes(rounds, r) > most ? block_bytes(rounds, r) : most;
    return most;
}

uint64_t shc_rounds_count(const struct shc_rounds *rounds)
{
    const uint64_t pieces = shc_div_ceil(shc_rounds_longest(rounds), piece_bytes(rounds));
    return (pieces > 0 ? pieces : 1) * (rounds->two ? 2 : 1);
}

/* The k-th piece of a block: *at is where it begins. */
static uint64_t piece(const struct shc_rounds *rounds, uint64_t block, uint64_t k, uint64_t *at)
{
    *at = shc_min_size(k * piece_bytes(rounds), block);
    return shc_min_size(piece_bytes(rounds), block - *at);
}

/* ---- each operation's moves ---- */

static void reduce_in_one(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    uint64_t at;
    const uint64_t bytes = piece(rounds, rounds->bytes, k, &at);
    add(list, SHC_MOVE_STAGE, 0, at, 0, bytes);
    if (rounds->kind == SHC_ALL_REDUCE || rounds->root == rounds->rank)
        add(list, SHC_MOVE_SUM, 0, 0, at, bytes);
}

/* Rank r's slice of a chunk: *at is where it begins in it. */
static uint64_t slice(const struct shc_rounds *rounds, uint64_t chunk, int r, uint64_t *at)
{
    const uint64_t each = shc_align_up(shc_div_ceil(chunk, (size_t)rounds->world), SHC_LINE_BYTES);
    *at = shc_min_size(each * (uint64_t)r, chunk);
    return shc_min_size(each, chunk - *at);
}

static void reduce_in_two(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    uint64_t at, within;
    const uint64_t chunk = piece(rounds, rounds->bytes, k / 2, &at);
    if (k % 2 == 0) {
        add(list, SHC_MOVE_STAGE, 0, at, 0, chunk);
        const uint64_t bytes = slice(rounds, chunk, rounds->rank, &within);
        add(list, SHC_MOVE_SUM_AHEAD, 0, within, within, bytes);
        return;
    }
    for (int r = 0; r < rounds->world; r++) {
        const uint64_t bytes = slice(rounds, chunk, r, &within);
        add(list, SHC_MOVE_FETCH, r, within, at + within, bytes);
    }
}

static void broadcast(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    uint64_t at;
    const uint64_t bytes = piece(rounds, rounds->bytes, k, &at);
    if (rounds->root == rounds->rank)
        add(list, SHC_MOVE_STAGE, 0, at, 0, bytes);
    else
        add(list, SHC_MOVE_FETCH, rounds->root, 0, at, bytes);
}

/* gather, and all_gather: every rank is a root. */
static void gather(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    const bool all = rounds->kind != SHC_GATHER, is_root = all || rounds->root == rounds->rank;
    uint64_t at, before = 0;
    const uint64_t own = block_bytes(rounds, rounds->rank);
    if ((all && rounds->world > 1) || !is_root) {
        const uint64_t bytes = piece(rounds, own, k, &at);
        add(list, SHC_MOVE_STAGE, 0, at, 0, bytes);
    }
    for (int r = 0; r < rounds->world && is_root; r++) {
        const uint64_t block = block_bytes(rounds, r);
        const uint64_t bytes = piece(rounds, block, k, &at);
        if (r != rounds->rank)
            add(list, SHC_MOVE_FETCH, r, 0, before + at, bytes);
        else if (k == 0)
            add(list, SHC_MOVE_KEEP, 0, 0, before, own);
        before += block;
    }
}

static void scatter(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    const uint64_t segment = piece_bytes(rounds), block = rounds->bytes;
    uint64_t at;
    const uint64_t bytes = piece(rounds, block, k, &at);
    if (rounds->root != rounds->rank) {
        add(list, SHC_MOVE_FETCH, rounds->root, (uint64_t)rounds->rank * segment, at, bytes);
        return;
    }
    for (int r = 0; r < rounds->world; r++)
        if (r != rounds->rank)
            add(list, SHC_MOVE_STAGE, 0, (uint64_t)r * block + at, (uint64_t)r * segment, bytes);
    if (k == 0)
        add(list, SHC_MOVE_KEEP, 0, (uint64_t)rounds->rank * block, 0, block);
}

static void reduce_scatter(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    const uint64_t segment = piece_bytes(rounds);
    uint64_t at, before = 0;
    for (int r = 0; r < rounds->world; r++) {
        const uint64_t block = block_bytes(rounds, r);
        const uint64_t bytes = piece(rounds, block, k, &at);
        add(list, SHC_MOVE_STAGE, 0, before + at, (uint64_t)r * segment, bytes);
        before += block;
    }
    const uint64_t bytes = piece(rounds, block_bytes(rounds, rounds->rank), k, &at);
    add(list, SHC_MOVE_SUM, 0, (uint64_t)rounds->rank * segment, at, bytes);
}

static void all_to_all(const struct shc_rounds *rounds, uint64_t k, struct list *list)
{
    const uint64_t segment = piece_bytes(rounds);
    uint64_t at, before = 0, own_from = 0;
    for (int r = 0; r < rounds->world; r++) {
        const uint64_t bytes = piece(rounds, rounds->sends[r], k, &at);
        if (r != rounds->rank)
            add(list, SHC_MOVE_STAGE, 0, before + at, (uint64_t)r * segment, bytes);
        else
            own_from = before;
        before += rounds->sends[r];
    }
    before = 0;
    for (int r = 0; r < rounds->world; r++) {
        const uint64_t bytes = piece(rounds, rounds->receives[r], k, &at);
        if (r != rounds->rank)
            add(list, SHC_MOVE_FETCH, r, (uint64_t)rounds->rank * segment, before + at, bytes);
        else if (k == 0)
            add(list, SHC_MOVE_KEEP, 0, own_from, before, rounds->receives[r]);
        before += rounds->receives[r];
    }
}

size_t shc_rounds_moves(const struct shc_rounds *rounds, uint64_t k,
                        struct shc_move moves[SHC_ROUND_MOVES])
{
    struct list list = {.moves = moves, .count = 0};
    switch (rounds->kind) {
    case SHC_ALL_REDUCE:
    case SHC_REDUCE:
        (rounds->two ? reduce_in_two : reduce_in_one)(rounds, k, &list);
        break;
    case SHC_BROADCAST:
        broadcast(rounds, k, &list);
        break;
    case SHC_ALL_GATHER:
    case SHC_ALL_GATHER_UNEVEN:
    case SHC_GATHER:
        gather(rounds, k, &list);
        break;
    case SHC_SCATTER:
        scatter(rounds, k, &list);
        break;
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
        reduce_scatter(rounds, k, &list);
        break;
    case SHC_ALL_TO_ALL:
        all_to_all(rounds, k, &list);
        break;
    default: /* a barrier moves nothing */
        break;
    }
    return list.count;
}
