/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/pair.h"

#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/proto/member.h"

#include <stdlib.h>

#define LINES_BYTES (8u << 10) /* per rank, as long as each pair has one line */
#define MAX_LINES   8u
#define TWO_LINES   16u /* two ranks: their chunks use the pool, so eager buffers stay free */

/* With up to 4 ranks a hand-off buffer is as long as an eager buffer. With more ranks, all hand-off
 * buffers of a group take at most SHORT_HAND_OFFS bytes. */
#define LONG_ENOUGH_RANKS 4
#define SHORT_HAND_OFFS   ((size_t)128 << 10)

#define POOL_TOTAL ((size_t)SHC_POOL_BUFFERS * SHC_POOL_BYTES + SHC_LONG_HAND_OFF_BYTES)

static const struct shc_place in_line = {SHC_IN_LINE, 0};

/* The bytes of a rank's eager and hand-off buffers, in whole pages. */
static size_t buffers_bytes(const struct shc_mail_geometry *mail)
{
    return SHC_EAGER_BUFFERS * SHC_EAGER_BYTES +
           shc_align_up(mail->hand_offs * (size_t)mail->hand_off_bytes, SHC_PAGE_BYTES);
}

struct shc_mail_geometry shc_mail_plan(int world_size)
{
    const size_t world = (size_t)world_size;
    struct shc_mail_geometry mail = {.lines = world_size <= SHC_POOL_RANKS ? TWO_LINES : MAX_LINES};
    while (mail.lines > 1 && world * mail.lines * SHC_LINE_BYTES > LINES_BYTES)
        mail.lines /= 2;
    mail.lines_offset =
        SHC_LINE_BYTES + shc_align_up(world * sizeof(struct shc_ack_shm), SHC_LINE_BYTES);
    mail.hand_off_lines_offset =
        mail.lines_offset + world * mail.lines * sizeof(struct shc_line_shm);
    mail.hand_offs = world_size <= SHC_HAND_OFF_RANKS ? (uint32_t)world_size : 0;
    mail.hand_off_bytes = SHC_EAGER_BYTES;
    while (world > LONG_ENOUGH_RANKS && world * world * mail.hand_off_bytes > SHORT_HAND_OFFS)
        mail.hand_off_bytes /= 2;
    mail.buffers_offset = shc_align_up(
        mail.hand_off_lines_offset + mail.hand_offs * sizeof(struct shc_line_shm), SHC_PAGE_BYTES);
    mail.total_bytes = mail.buffers_offset + buffers_bytes(&mail);
    if (world_size <= SHC_POOL_RANKS) {
        mail.pool_offset = mail.total_bytes;
        mail.total_bytes += POOL_TOTAL;
    }
    return mail;
}

size_t shc_mail_reserved_bytes(const struct shc_mail_geometry *mail)
{
    /* Where memory cannot be populated later without the risk of a signal, it is reserved at
     * once. */
    if (shc_os_can_populate())
        return mail->buffers_offset;
    return mail->pool_offset > 0 ? mail->pool_offset
                                 : mail->total_bytes; /* the pool stays unused */
}

/* The offset in the segment of the words of `receiver` for `sender`. The segment need not be mapped
 * yet. */
static size_t ack_offset(const struct shc_seat *seat, int receiver, int sender)
{
    return shc_seat_mail_offset(seat, receiver) + SHC_LINE_BYTES +
           (size_t)sender * sizeof(struct shc_ack_shm);
}

static size_t lines_offset(const struct shc_seat *seat, int sender, int receiver)
{
    return shc_seat_mail_offset(seat, sender) + seat->mail.lines_offset +
           (size_t)receiver * seat->mail.lines * sizeof(struct shc_line_shm);
}

static size_t hand_off_line_offset(const struct shc_seat *seat, int owner, int other)
{
    return shc_seat_mail_offset(seat, owner) + seat->mail.hand_off_lines_offset +
           (size_t)other * sizeof(struct shc_line_shm);
}

enum shc_status shc_pairs_init(struct shc_pairs *pairs, const struct shc_seat *seat)
{
    pairs->seat = seat;
    for (int i = 0; i < SHC_EAGER_BUFFERS; i++)
        pairs->leases[i].peer = -1;
    pairs->pairs = calloc((size_t)seat->world_size, sizeof *pairs->pairs);
    if (!pairs->pairs)
        return shc_fail(SHC_ERR_NOMEM, "no memory for %d pairs of ranks", seat->world_size);
    for (int peer = 0; peer < seat->world_size; peer++) {
        struct shc_pair *pair = &pairs->pairs[peer];
        pair->out = lines_offset(seat, seat->rank, peer);
        pair->in = lines_offset(seat, peer, seat->rank);
        pair->heard = ack_offset(seat, peer, seat->rank);
        pair->told = ack_offset(seat, seat->rank, peer);
        pair->hand_off_line[SHC_OURS] = hand_off_line_offset(seat, seat->rank, peer);
        pair->hand_off_line[SHC_THEIRS] = hand_off_line_offset(seat, peer, seat->rank);
        if (peer == seat->rank) /* a rank hands nothing over to itself */
            continue;
        if (peer < (int)seat->mail.hand_offs)
            pair->hand_offs = shc_hand_off_begin();
        if (seat->mail.pool_offset > 0)
            pair->long_hand_offs = shc_hand_off_begin();
        pair->long_passed = SHC_THEIRS; /* so the peer's first one counts as an answer to it */
    }
    return SHC_OK;
}

void shc_pairs_fini(struct shc_pairs *pairs)
{
    free(pairs->pairs);
    pairs->pairs = NULL;
}

/* ---- memory ---- */

bool shc_pairs_have_buffers(struct shc_pairs *pairs)
{
    if (pairs->tried)
        return pairs->usable;
    const struct shc_seat *seat = pairs->seat;
    const struct shc_place first = {SHC_IN_EAGER, 0};
    pairs->tried = true;
    pairs->usable = !shc_os_can_populate() ||
                    shc_os_populate(shc_place_at(pairs, seat->rank, seat->rank, first),
                                    buffers_bytes(&seat->mail)) == 0;
    return pairs->usable;
}

bool shc_pair_has_pool(struct shc_pairs *pairs, int peer)
{
    const int me = pairs->seat->rank;
    const struct shc_place first = {SHC_IN_POOL, 0};
    if (peer == me) /* the pool is used in turn, for one reader */
        return false;
    if (pairs->pool_tried)
        return pairs->pool_usable;
    pairs->pool_tried = true;
    pairs->pool_usable = pairs->seat->mail.pool_offset > 0 && shc_os_can_populate() &&
                         shc_os_populate(shc_place_at(pairs, me, me, first), POOL_TOTAL) == 0;
    return pairs->pool_usable;
}

bool shc_place_exists(const struct shc_pairs *pairs, int peer, struct shc_place place)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    switch (place.memory) {
    case SHC_IN_LINE:
        return true;
    case SHC_IN_EAGER:
        return place.index < SHC_EAGER_BUFFERS;
    case SHC_IN_LONG_HAND_OFF:
        return place.index < 2 &&
               pair->long_hand_offs.where[shc_hand_off_mirror(place.index)] == SHC_AWAY;
    case SHC_IN_POOL:
        return pairs->seat->mail.pool_offset > 0 && peer != pairs->seat->rank &&
               place.index == pair->pool_read % SHC_POOL_BUFFERS;
    default:
        return false;
    }
}

/* ---- eager buffers ---- */

/* Takes back the buffers that their receivers have read. */
static void reclaim(struct shc_pairs *pairs)
{
    for (int i = 0; i < SHC_EAGER_BUFFERS; i++) {
        struct shc_lease *lease = &pairs->leases[i];
        if (lease->peer < 0)
            continue;
        const struct shc_ack_shm *ack = shc_pair_ack(pairs, pairs->pairs[lease->peer].heard);
        /* acquire buffer/read <- release in shc_place_return(): the buffer has been read. */
        bool read = shc_a32_load_acquire(&ack->eager[i]) == lease->due;
        if (!read && shc_member_look(pairs->seat, lease->peer) != SHC_MEMBER_LEFT)
            continue; /* P2P-8: a rank that has LEFT reads no more */
        if (lease->asked)
            pairs->pairs[lease->peer].lent--;
        else
            pairs->unasked--;
        lease->peer = -1;
    }
}

/* -1: none is free, or too many are lent for that use. */
static int free_buffer(const struct shc_pairs *pairs, enum shc_eager_use use)
{
    static const uint32_t most[] = {
        [SHC_EAGER_WHOLE] = SHC_EAGER_UNASKED, [SHC_EAGER_PREFIX] = SHC_EAGER_PREFIXES};
    if (use != SHC_EAGER_CHUNK && pairs->unasked >= most[use])
        return -1;
    for (int i = 0; i < SHC_EAGER_BUFFERS; i++)
        if (pairs->leases[i].peer < 0)
            return i;
    return -1;
}

struct shc_place shc_eager_lend(struct shc_pairs *pairs, int peer, enum shc_eager_use use)
{
    if (!shc_pairs_have_buffers(pairs))
        return in_line;
    int index = free_buffer(pairs, use);
    if (index < 0) {
        reclaim(pairs);
        index = free_buffer(pairs, use);
    }
    if (index < 0)
        return in_line;
    struct shc_lease *lease = &pairs->leases[index];
    struct shc_pair *pair = &pairs->pairs[peer];
    lease->peer = peer;
    lease->asked = use == SHC_EAGER_CHUNK;
    /* relaxed: the peer has no buffer of this number now, so its word stands still. */
    lease->due = shc_a32_load_relaxed(&shc_pair_ack(pairs, pair->heard)->eager[index]) + 1;
    if (lease->asked) {
        pair->lent++;
        lease->chunk = ++pairs->chunks;
    } else {
        pairs->unasked++;
    }
    return (struct shc_place){SHC_IN_EAGER, (uint8_t)index};
}

/* ---- the pool ---- */

/* How many of the pool buffers lent to the peer has it not read? */
static uint64_t pool_out(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* acquire buffer/read <- release in shc_place_return(): the buffers have been read. */
    return pair->pool_lent - shc_a64_load_acquire(&shc_pair_ack(pairs, pair->heard)->pool);
}

bool shc_pool_has(const struct shc_pairs *pairs, int peer, uint32_t count)
{
    return pool_out(pairs, peer) + count <= SHC_POOL_BUFFERS;
}

/* Pool buffers are used in turn (P2P-16). By the time one is stored to again, the nearest caches of
 * its reader have lost it, so it need not be fetched from there. */
struct shc_place shc_pool_lend(struct shc_pairs *pairs, int peer)
{
    if (!shc_pool_has(pairs, peer, 1))
        return in_line;
    const uint64_t count = pairs->pairs[peer].pool_lent++;
    return (struct shc_place){SHC_IN_POOL, (uint8_t)(count % SHC_POOL_BUFFERS)};
}

struct shc_place shc_chunk_lend(struct shc_pairs *pairs, int peer)
{
    return shc_pair_has_pool(pairs, peer) ? shc_pool_lend(pairs, peer)
                                          : shc_eager_lend(pairs, peer, SHC_EAGER_CHUNK);
}

bool shc_chunk_awaited(const struct shc_pairs *pairs, int peer)
{
    return pairs->pairs[peer].lent > 0 || pool_out(pairs, peer) > 0;
}

bool shc_chunks_were_read(struct shc_pairs *pairs, int peer, uint64_t pool, uint32_t chunks)
{
    if (pairs->pairs[peer].lent > 0)
        reclaim(pairs);
    for (int i = 0; pairs->pairs[peer].lent > 0 && i < SHC_EAGER_BUFFERS; i++) {
        const struct shc_lease *lease = &pairs->leases[i];
        if (lease->peer == peer && lease->asked && (int32_t)(chunks - lease->chunk) >= 0)
            return false; /* the others carry chunks of later messages */
    }
    return pool_out(pairs, peer) <= pairs->pairs[peer].pool_lent - pool;
}

/* ---- long hand-off buffers ---- */

struct shc_place shc_long_lend(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    const int which = shc_hand_off_pass(&pair->long_hand_offs, shc_pair_has_pool(pairs, peer));
    if (which < 0)
        return in_line;
    pair->long_passed = (uint8_t)which;
    return (struct shc_place){SHC_IN_LONG_HAND_OFF, (uint8_t)which};
}

bool shc_long_is_out(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: it decides only whether to wait; a long hand-off buffer comes back in a line. */
    return shc_a64_load_relaxed(&shc_pair_ack(pairs, pair->heard)->taken) < pair->long_named;
}

/* ---- giving back ---- */

void shc_place_return(struct shc_pairs *pairs, int peer, struct shc_place place)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    struct shc_ack_shm *ack = shc_pair_ack(pairs, pair->told);
    switch (place.memory) {
    case SHC_IN_HAND_OFF:
        shc_hand_off_hold(&pair->hand_offs, shc_hand_off_mirror(place.index));
        return;
    case SHC_IN_LONG_HAND_OFF: /* no word and no ring: the peer waits only for the line */
        shc_hand_off_hold(&pair->long_hand_offs, shc_hand_off_mirror(place.index));
        return;
    case SHC_IN_POOL:
        /* release buffer/read -> acquire in pool_out(): the buffer has been read. */
        shc_a64_store_release(&ack->pool, ++pair->pool_read);
        break;
    case SHC_IN_EAGER: {
        /* relaxed: only this rank writes the word. */
        const uint32_t uses = shc_a32_load_relaxed(&ack->eager[place.index]);
        /* release buffer/read -> acquire in reclaim(): the buffer has been read. */
        shc_a32_store_release(&ack->eager[place.index], uses + 1);
        break;
    }
    default:
        return;
    }
    shc_pair_note_news(pairs, peer);
}

/* ---- credit ---- */

static uint32_t credit_of(size_t bytes)
{
    return bytes <= SHC_POOL_BYTES ? 1 : (uint32_t)((bytes - 1) / SHC_POOL_BYTES + 1);
}

bool shc_credit_left(const struct shc_pairs *pairs, int peer, size_t bytes)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: a number that grows, and by which nothing is published. */
    const uint32_t back = shc_a32_load_relaxed(&shc_pair_ack(pairs, pair->heard)->credit);
    return pair->credit_used - back + credit_of(bytes) <= SHC_CREDIT_BUFFERS;
}

void shc_credit_spend(struct shc_pairs *pairs, int peer, size_t bytes)
{
    pairs->pairs[peer].credit_used += credit_of(bytes);
}

void shc_credit_return(struct shc_pairs *pairs, int peer, size_t bytes)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->credit_back += credit_of(bytes);
    /* relaxed: a number that only grows, and by which nothing is published. */
    shc_a32_store_relaxed(&shc_pair_ack(pairs, pair->told)->credit, pair->credit_back);
}

void shc_pair_tell_aside(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: a number that grows, and by which nothing is published. */
    shc_a32_store_relaxed(&shc_pair_ack(pairs, pair->told)->aside, ++pair->aside_told);
}

bool shc_pair_may_go_unasked(struct shc_pairs *pairs, int peer, bool counts)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: a number that grows, and by which nothing is published. */
    const uint32_t aside = shc_a32_load_relaxed(&shc_pair_ack(pairs, pair->heard)->aside);
    if (aside != pair->aside_seen) {
        pair->aside_seen = aside;
        pair->announces = SHC_ASIDE_PAUSE;
    }
    if (pair->announces == 0)
        return true;
    pair->announces -= counts;
    return false;
}

/* ---- doorbells ---- */

void shc_pairs_ring(struct shc_pairs *pairs)
{
    if (!pairs->any_ring)
        return;
    pairs->any_ring = false;
    for (int rank = 0; rank < pairs->seat->world_size; rank++)
        shc_pair_ring(pairs, rank);
}
