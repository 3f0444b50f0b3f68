/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/pair.h"

#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/proto/member.h"

#include <stdlib.h>

#define LINES_BYTES (8u << 10) /* per rank, as long as each pair has one line */
#define MAX_LINES   8u
#define TWO_LINES   16u /* two ranks: their chunks do not use windows, so some are always free */

/* With up to 4 ranks a shuttle (a hand-off buffer) is as long as a window (an eager buffer). With
 * more ranks, all shuttles of a group take at most SHORT_SHUTTLES bytes. */
#define LONG_SHUTTLE_RANKS 4
#define SHORT_SHUTTLES     ((size_t)128 << 10)

#define BULK_TOTAL ((size_t)SHC_BULK_WINDOWS * SHC_BULK_BYTES + SHC_FERRY_BYTES)

/* The bytes of a rank's windows and shuttles, in whole pages. */
static size_t windows_bytes(const struct shc_mail_geometry *mail)
{
    return SHC_WINDOWS * SHC_WINDOW_BYTES +
           shc_align_up(mail->shuttles * (size_t)mail->shuttle_bytes, SHC_PAGE_BYTES);
}

struct shc_mail_geometry shc_mail_plan(int world_size)
{
    const size_t world = (size_t)world_size;
    struct shc_mail_geometry mail = {.lines = world_size <= SHC_BULK_RANKS ? TWO_LINES : MAX_LINES};
    while (mail.lines > 1 && world * mail.lines * SHC_LINE_BYTES > LINES_BYTES)
        mail.lines /= 2;
    mail.lines_offset =
        SHC_LINE_BYTES + shc_align_up(world * sizeof(struct shc_ack_shm), SHC_LINE_BYTES);
    mail.shuttle_lines_offset =
        mail.lines_offset + world * mail.lines * sizeof(struct shc_line_shm);
    mail.shuttles = world_size <= SHC_SHUTTLE_RANKS ? (uint32_t)world_size : 0;
    mail.shuttle_bytes = SHC_WINDOW_BYTES;
    while (world > LONG_SHUTTLE_RANKS && world * world * mail.shuttle_bytes > SHORT_SHUTTLES)
        mail.shuttle_bytes /= 2;
    mail.windows_offset = shc_align_up(
        mail.shuttle_lines_offset + mail.shuttles * sizeof(struct shc_line_shm), SHC_PAGE_BYTES);
    mail.total_bytes = mail.windows_offset + windows_bytes(&mail);
    if (world_size <= SHC_BULK_RANKS) {
        mail.bulk_offset = mail.total_bytes;
        mail.total_bytes += BULK_TOTAL;
    }
    return mail;
}

size_t shc_mail_reserved_bytes(const struct shc_mail_geometry *mail)
{
    /* Where memory cannot be populated later without the risk of a signal, it is reserved at
     * once. */
    if (shc_os_can_populate())
        return mail->windows_offset;
    return mail->bulk_offset > 0 ? mail->bulk_offset
                                 : mail->total_bytes; /* the bulk windows stay unused */
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

static size_t shuttle_line_offset(const struct shc_seat *seat, int owner, int other)
{
    return shc_seat_mail_offset(seat, owner) + seat->mail.shuttle_lines_offset +
           (size_t)other * sizeof(struct shc_line_shm);
}

enum shc_status shc_pairs_init(struct shc_pairs *pairs, const struct shc_seat *seat)
{
    pairs->seat = seat;
    for (int i = 0; i < SHC_WINDOWS; i++)
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
        pair->shuttle_line[SHC_OURS] = shuttle_line_offset(seat, seat->rank, peer);
        pair->shuttle_line[SHC_THEIRS] = shuttle_line_offset(seat, peer, seat->rank);
        if (peer == seat->rank) /* a rank hands nothing over to itself */
            continue;
        if (peer < (int)seat->mail.shuttles)
            pair->shuttles = (struct shc_hold){.where = {SHC_HERE, SHC_AWAY}};
        if (seat->mail.bulk_offset > 0)
            pair->ferries = (struct shc_hold){.where = {SHC_HERE, SHC_AWAY}};
        pair->ferry_lent = SHC_THEIRS; /* so the peer's first one counts as an answer to it */
    }
    return SHC_OK;
}

void shc_pairs_fini(struct shc_pairs *pairs)
{
    free(pairs->pairs);
    pairs->pairs = NULL;
}

/* ---- windows ---- */

bool shc_pairs_have_windows(struct shc_pairs *pairs)
{
    if (pairs->tried)
        return pairs->usable;
    const struct shc_mail_geometry *mail = &pairs->seat->mail;
    pairs->tried = true;
    pairs->usable = !shc_os_can_populate() ||
                    shc_os_populate(shc_window(pairs, pairs->seat->rank, pairs->seat->rank, 0),
                                    windows_bytes(mail)) == 0;
    return pairs->usable;
}

bool shc_window_exists(const struct shc_pairs *pairs, int peer, uint32_t name)
{
    if (name < SHC_WINDOWS)
        return true;
    const bool bulk = pairs->seat->mail.bulk_offset > 0 && peer != pairs->seat->rank;
    if (name >= SHC_BULK_NAME)
        return bulk && name < SHC_WINDOW_NAMES;
    return shc_window_is_ferry(name) &&
           pairs->pairs[peer].ferries.where[shc_hold_which(name)] == SHC_AWAY;
}

/* Takes back the windows that their receivers have read. */
static void reclaim(struct shc_pairs *pairs)
{
    for (int i = 0; i < SHC_WINDOWS; i++) {
        struct shc_lease *lease = &pairs->leases[i];
        if (lease->peer < 0)
            continue;
        const struct shc_ack_shm *ack = shc_pair_ack(pairs, pairs->pairs[lease->peer].heard);
        /* acquire window/read <- release in shc_window_return(): the window has been read. */
        bool read = shc_a32_load_acquire(&ack->windows[i]) == lease->due;
        if (!read && shc_member_look(pairs->seat, lease->peer) != SHC_MEMBER_LEFT)
            continue; /* P2P-8: a rank that has LEFT reads no more */
        if (lease->eager)
            pairs->eager_count--;
        else
            pairs->pairs[lease->peer].lent--;
        lease->peer = -1;
    }
}

static int free_window(const struct shc_pairs *pairs)
{
    for (int i = 0; i < SHC_WINDOWS; i++)
        if (pairs->leases[i].peer < 0)
            return i;
    return -1;
}

bool shc_window_has_bulk(struct shc_pairs *pairs, int peer)
{
    const int me = pairs->seat->rank;
    if (peer == me) /* they are used in turn, for one reader */
        return false;
    if (pairs->bulk_tried)
        return pairs->bulk_usable;
    pairs->bulk_tried = true;
    pairs->bulk_usable = pairs->seat->mail.bulk_offset > 0 && shc_os_can_populate() &&
                         shc_os_populate(shc_window(pairs, me, me, SHC_BULK_NAME), BULK_TOTAL) == 0;
    return pairs->bulk_usable;
}

/* How many of the bulk windows lent to the peer has it not read? */
static uint32_t bulk_out(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* acquire window/read <- release in shc_window_return(): the windows have been read. */
    return pair->bulk_lent - shc_a32_load_acquire(&shc_pair_ack(pairs, pair->heard)->bulk);
}

static uint32_t bulk_windows_for(size_t bytes)
{
    return bytes <= SHC_BULK_BYTES ? 1 : (uint32_t)((bytes - 1) / SHC_BULK_BYTES + 1);
}

/* Bulk windows are used in turn (P2P-16). By the time one is stored to again, the nearest caches of
 * its reader have lost it, so it need not be fetched from there. */
int shc_window_lend_run(struct shc_pairs *pairs, int peer, size_t least, size_t *bytes)
{
    uint32_t index = pairs->next_bulk, to_end = SHC_BULK_WINDOWS - index;
    const uint32_t out = bulk_out(pairs, peer);
    uint32_t back = out < SHC_BULK_WINDOWS ? SHC_BULK_WINDOWS - out : 0;
    uint32_t count = bulk_windows_for(*bytes);
    if (to_end < bulk_windows_for(least) && back >= to_end + bulk_windows_for(least)) {
        pairs->pairs[peer].bulk_lent += to_end; /* P2P-18: the last ones stay empty */
        back -= to_end;
        index = pairs->next_bulk = 0;
        to_end = SHC_BULK_WINDOWS;
    }
    count = count < to_end ? count : to_end;
    count = count < back ? count : back;
    if (count < bulk_windows_for(least))
        return -1;
    *bytes = (size_t)count * SHC_BULK_BYTES;
    pairs->next_bulk = (index + count) % SHC_BULK_WINDOWS;
    pairs->pairs[peer].bulk_lent += count;
    return (int)(SHC_BULK_NAME + index);
}

int shc_ferry_lend(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    const int which = shc_hold_hand_over(&pair->ferries, shc_window_has_bulk(pairs, peer));
    if (which < 0)
        return -1;
    pair->ferry_lent = (uint8_t)which;
    shc_ferry_name_again(pairs, peer);
    return SHC_FERRY_OURS + which;
}

int shc_ferry_turn(struct shc_pairs *pairs, int peer, uint32_t name)
{
    shc_ferry_name_again(pairs, peer);
    return SHC_FERRY_OURS + shc_hold_which(name);
}

bool shc_ferry_is_out(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: it decides only whether to wait; a ferry comes back in a line. */
    return shc_a64_load_relaxed(&shc_pair_ack(pairs, pair->heard)->taken) < pair->ferried;
}

bool shc_window_awaited(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    return pair->lent > 0 || bulk_out(pairs, peer) > 0;
}

bool shc_window_may_send_whole(const struct shc_pairs *pairs, int peer, size_t bytes)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: a number that grows, and by which nothing is published. */
    const uint32_t taken = shc_a32_load_relaxed(&shc_pair_ack(pairs, pair->heard)->whole);
    return pair->whole_sent - taken + bulk_windows_for(bytes) <= SHC_ASIDE_WINDOWS;
}

void shc_window_note_whole(struct shc_pairs *pairs, int peer, size_t bytes)
{
    pairs->pairs[peer].whole_sent += bulk_windows_for(bytes);
}

void shc_window_take_whole(struct shc_pairs *pairs, int peer, size_t bytes)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->whole_taken += bulk_windows_for(bytes);
    /* relaxed: a number that only grows, and by which nothing is published. */
    shc_a32_store_relaxed(&shc_pair_ack(pairs, pair->told)->whole, pair->whole_taken);
}

void shc_pair_tell_aside(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    /* relaxed: a number that grows, and by which nothing is published. */
    shc_a32_store_relaxed(&shc_pair_ack(pairs, pair->told)->aside, ++pair->aside_told);
}

bool shc_pair_may_open(struct shc_pairs *pairs, int peer)
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
    pair->announces--;
    return false;
}

bool shc_window_bulk_was_read(const struct shc_pairs *pairs, int peer, uint32_t lent)
{
    return bulk_out(pairs, peer) <= pairs->pairs[peer].bulk_lent - lent;
}

bool shc_window_chunks_were_read(struct shc_pairs *pairs, int peer, uint32_t lent, uint32_t chunks)
{
    if (pairs->pairs[peer].lent > 0)
        reclaim(pairs);
    for (int i = 0; pairs->pairs[peer].lent > 0 && i < SHC_WINDOWS; i++) {
        const struct shc_lease *lease = &pairs->leases[i];
        if (lease->peer == peer && !lease->eager && (int32_t)(chunks - lease->chunk) >= 0)
            return false; /* the others carry chunks of later messages */
    }
    return shc_window_bulk_was_read(pairs, peer, lent);
}

/* Lends one of the eight windows; -1 if none is free. `eager`: the bytes have no posted receive
 * (P2P-6); then also -1 if `most` windows are lent for such bytes. */
static int lend_window(struct shc_pairs *pairs, int peer, bool eager, uint32_t most)
{
    int index = free_window(pairs);
    if (index < 0 || (eager && pairs->eager_count >= most)) {
        reclaim(pairs);
        index = free_window(pairs);
    }
    if (index < 0 || (eager && pairs->eager_count >= most))
        return -1;
    struct shc_lease *lease = &pairs->leases[index];
    lease->peer = peer;
    lease->eager = eager;
    /* relaxed: the peer has no window of this number now, so its word stands still. */
    lease->due =
        shc_a32_load_relaxed(&shc_pair_ack(pairs, pairs->pairs[peer].heard)->windows[index]) + 1;
    if (eager) {
        pairs->eager_count++;
    } else {
        pairs->pairs[peer].lent++;
        lease->chunk = ++pairs->chunks;
    }
    return index;
}

int shc_window_lend(struct shc_pairs *pairs, int peer, bool eager)
{
    if (!shc_pairs_have_windows(pairs))
        return -1;
    if (eager)
        return lend_window(pairs, peer, true, SHC_EAGER_WINDOWS);
    size_t bytes = SHC_BULK_BYTES;
    return shc_window_has_bulk(pairs, peer) ? shc_window_lend_run(pairs, peer, 1, &bytes)
                                            : lend_window(pairs, peer, false, 0);
}

int shc_window_lend_for_head(struct shc_pairs *pairs, int peer)
{
    return shc_pairs_have_windows(pairs) ? lend_window(pairs, peer, true, SHC_HEAD_WINDOWS) : -1;
}

void shc_window_return(struct shc_pairs *pairs, int peer, uint32_t name, size_t bytes)
{
    if (name == SHC_NO_WINDOW)
        return;
    if (name >= SHC_BULK_NAME) {
        struct shc_pair *pair = &pairs->pairs[peer];
        const uint32_t index = name - SHC_BULK_NAME, count = bulk_windows_for(bytes);
        /* Gives back also those left empty at the end of the pool (P2P-18). */
        pair->bulk_read += (index + SHC_BULK_WINDOWS - pair->bulk_at) % SHC_BULK_WINDOWS + count;
        pair->bulk_at = (index + count) % SHC_BULK_WINDOWS;
        /* release window/read -> acquire in bulk_out(): the window has been read. */
        shc_a32_store_release(&shc_pair_ack(pairs, pair->told)->bulk, pair->bulk_read);
        shc_pair_note_news(pairs, peer);
        return;
    }
    if (shc_window_is_shuttle(name)) {
        shc_shuttle_keep(pairs, peer, name);
        return;
    }
    if (shc_window_is_ferry(name)) {
        shc_hold_keep(&pairs->pairs[peer].ferries, shc_hold_which(name));
        return; /* no word and no ring: the peer waits only for the ferry's line to be taken */
    }
    shc_a32 *word = &shc_pair_ack(pairs, pairs->pairs[peer].told)->windows[name];
    /* relaxed: only this rank writes the word. */
    uint32_t uses = shc_a32_load_relaxed(word);
    /* release window/read -> acquire in reclaim(): the window has been read. */
    shc_a32_store_release(word, uses + 1);
    shc_pair_note_news(pairs, peer);
}

void shc_pairs_ring(struct shc_pairs *pairs)
{
    if (!pairs->any_ring)
        return;
    pairs->any_ring = false;
    for (int rank = 0; rank < pairs->seat->world_size; rank++) {
        if (!pairs->pairs[rank].ring)
            continue;
        pairs->pairs[rank].ring = false;
        shc_bell_ring(shc_seat_mail_bell(pairs->seat, rank), true);
    }
}
