/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What ranks share for messages: lines and staging memory. The rules are P2P-1 to P2P-40 in
 * docs/internals/protocol/messages.md. Two disciplines:
 *
 * Credit ring. Its sender fills the parts in turn, or those that are free, and a count of its
 * receiver gives them back.
 *   line         P2P-2   each ordered pair of ranks has a few; no line overtakes another
 *   eager buffer P2P-5   each rank lends eight of its own to any rank; the receiver may keep one for
 *                        any time, and lines do not wait for it
 *   pool         P2P-16  two ranks: more and larger buffers, read in the order of lines
 *
 * Ownership transfer (proto/handoff.h): the rank that has read a buffer fills it next.
 *   hand-off buffer      P2P-9   a line of its own, and up to 16 KiB; releasing the line hands it
 *                                over. A receiver looks at the next line in turn and at both of
 *                                these; the numbers tell which comes first (P2P-4)
 *   long hand-off buffer P2P-29  two ranks: 512 KiB, named by a line in turn. It carries messages
 *                                whole, in fragments or as prefixes. While large messages go both
 *                                ways, a rank reads a chunk and stores its own next one in one pass
 *                                over the buffer's cache lines (P2P-32)
 *
 * There is one shc_pairs per rank and group. All functions are called with its owner's lock held.
 */

#include "shm/proto/bell.h"
#include "shm/proto/handoff.h"
#include "shm/proto/seat.h"

struct shc_pair {
    size_t out, in;          /* offsets in the segment: lines to the peer, and from it */
    size_t hand_off_line[2]; /* offsets of the lines of the hand-off buffers */
    size_t heard, told;      /* offsets of what the peer has read, and of what this rank has */
    uint64_t sent, taken;    /* numbers of the last lines to the peer, and from it */
    uint64_t turns_out;      /* lines in turn to the peer: all except those of hand-off buffers */
    uint64_t freed;          /* of these, the lines taken by the peer at the last look */
    uint64_t turns_in;       /* lines in turn from the peer that were taken */
    uint64_t run;            /* messages to the peer since the last one from it */
    uint64_t last_run;       /* the length of the last such run that a message from it ended */
    uint32_t lent;           /* eager buffers that carry chunks to the peer */
    uint64_t pool_lent;      /* pool buffers lent to the peer; their index is this count mod 48 */
    uint64_t pool_read;      /* pool buffers of the peer that were read */
    uint32_t credit_used;    /* P2P-20: pool buffers of the messages that were sent without CTS, */
    uint32_t credit_back;    /* and of those of the peer that receives have taken */
    uint32_t aside_seen, aside_told; /* messages put aside by the peer, and by this rank */
    uint32_t announces;              /* that many long messages to the peer wait for CTS (P2P-26) */
    bool ring;                       /* the peer's doorbell is to be rung */
    struct shc_hand_off hand_offs, long_hand_offs;
    uint8_t long_passed; /* the long hand-off buffer that was handed over last */
    bool crosses;        /* the last message in such a buffer passed one of this rank's */
    uint64_t long_named; /* turns_out just after the newest line that named one */
};

struct shc_lease {
    int peer;       /* -1: the eager buffer is free */
    bool asked;     /* it holds a chunk, which a receive has asked for */
    uint32_t due;   /* the value of the peer's word once it has read the buffer */
    uint32_t chunk; /* of a chunk: its number among all of these */
};

struct shc_pairs {
    const struct shc_seat *seat;
    struct shc_pair *pairs; /* [world_size] */
    struct shc_lease leases[SHC_EAGER_BUFFERS];
    uint32_t unasked;             /* eager buffers with bytes that no receive has asked for */
    uint32_t chunks;              /* eager buffers lent for chunks until now, to any rank */
    bool tried, usable;           /* the buffers' memory: tried to reserve it; it is there */
    bool pool_tried, pool_usable; /* the same for the pool and the long hand-off buffer */
    bool any_ring;
    uint64_t moves; /* counts lines posted, lines taken, buffers returned */
};

struct shc_mail_geometry shc_mail_plan(int world_size);

/* Bytes of a mailbox that are reserved before the group is used. */
size_t shc_mail_reserved_bytes(const struct shc_mail_geometry *mail);

SHC_NODISCARD enum shc_status shc_pairs_init(struct shc_pairs *pairs, const struct shc_seat *seat);
void shc_pairs_fini(struct shc_pairs *pairs);

/* ---- lines ---- */

/* The words of one rank of a pair for the other, at that offset. */
SHC_INLINE struct shc_ack_shm *shc_pair_ack(const struct shc_pairs *pairs, size_t offset)
{
    return (struct shc_ack_shm *)(void *)(pairs->seat->segment.base + offset);
}

/* The line for this number, of the lines that begin at that offset. */
SHC_INLINE struct shc_line_shm *shc_pair_line(const struct shc_pairs *pairs, size_t offset,
                                              uint64_t number)
{
    return (struct shc_line_shm *)(void *)(pairs->seat->segment.base + offset) +
           (number & (pairs->seat->mail.lines - 1));
}

/* Notes that the peer's doorbell is to be rung. */
SHC_INLINE void shc_pair_note_news(struct shc_pairs *pairs, int peer)
{
    pairs->pairs[peer].ring = true;
    pairs->any_ring = true;
    pairs->moves++;
}

/* Are so many lines in turn to the peer free (P2P-2)? */
SHC_INLINE bool shc_pair_has_lines(struct shc_pairs *pairs, int peer, uint32_t count)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    const uint32_t lines = pairs->seat->mail.lines;
    if (pair->turns_out - pair->freed + count > lines) {
        /* acquire pair/taken <- release in shc_pair_take(): the lines have been read. */
        pair->freed = shc_a64_load_acquire(&shc_pair_ack(pairs, pair->heard)->taken);
    }
    return pair->turns_out - pair->freed + count <= lines;
}

/* The next line in turn to the peer, to be filled; NULL while it still holds something. */
SHC_INLINE struct shc_line_shm *shc_pair_draft(struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    return shc_pair_has_lines(pairs, peer, 1) ? shc_pair_line(pairs, pair->out, pair->turns_out)
                                              : NULL;
}

/* The line that goes out with the bytes in that place: the hand-off buffer's own line, or else the
 * next line in turn, which shc_pair_draft() has found free. */
SHC_INLINE struct shc_line_shm *shc_pair_line_for(const struct shc_pairs *pairs, int peer,
                                                  struct shc_place place)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    if (place.memory == SHC_IN_HAND_OFF)
        return shc_pair_line(pairs, pair->hand_off_line[place.index], 0);
    return shc_pair_line(pairs, pair->out, pair->turns_out);
}

/* P2P-3: the number in a line, from the count of lines that the sender has sent to the receiver. */
SHC_INLINE uint64_t shc_pair_number(int sender, int receiver, uint64_t count)
{
    return sender > receiver ? count | SHC_LINE_OF_HIGHER : count;
}

/* Releases that line, which names that place. shc_pairs_ring() rings the peer's doorbell. */
SHC_INLINE void shc_pair_post(struct shc_pairs *pairs, int peer, struct shc_line_shm *line,
                              struct shc_place place)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->turns_out += place.memory != SHC_IN_HAND_OFF;
    if (place.memory == SHC_IN_LONG_HAND_OFF)
        pair->long_named = pair->turns_out;
    pair->sent++;
    /* release pair/line -> acquire in shc_line_is(): the line, and the place it names. */
    shc_a64_store_release(&line->number, shc_pair_number(pairs->seat->rank, peer, pair->sent));
    shc_pair_note_news(pairs, peer);
}

/* Notes that a line to the peer, or a line from it, holds a message or its beginning. */
SHC_INLINE void shc_pair_note_message(struct shc_pairs *pairs, int peer)
{
    pairs->pairs[peer].run++;
}

SHC_INLINE void shc_pair_note_answer(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->last_run = pair->run > 0 ? pair->run : pair->last_run;
    pair->run = 0;
}

/* Has this rank sent a message since the peer's last one? */
SHC_INLINE bool shc_pair_awaits_answer(const struct shc_pairs *pairs, int peer)
{
    return pairs->pairs[peer].run > 0;
}

/* At most so many lines of the peer can be there and not be taken. */
SHC_INLINE uint32_t shc_pair_capacity(const struct shc_pairs *pairs)
{
    return pairs->seat->mail.lines + (pairs->seat->mail.hand_offs > 0 ? 2 : 0);
}

/* Where the next line of a peer may come, and its number (P2P-4). A thread without the lock may
 * look at these lines while the segment is mapped. The line of a hand-off buffer that this rank
 * holds never has that number: it has an older number of the peer, or none. */
struct shc_pair_watch {
    const struct shc_line_shm *turn, *hand_off[2]; /* NULL: there is no hand-off buffer */
    uint64_t want;
};

SHC_INLINE struct shc_pair_watch shc_pair_next(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    const bool both = pair->hand_offs.where[0] != SHC_NOWHERE;
    return (struct shc_pair_watch){
        .turn = shc_pair_line(pairs, pair->in, pair->turns_in),
        .hand_off = {both ? shc_pair_line(pairs, pair->hand_off_line[0], 0) : NULL,
                     both ? shc_pair_line(pairs, pair->hand_off_line[1], 0) : NULL},
        .want = shc_pair_number(peer, pairs->seat->rank, pair->taken + 1),
    };
}

/* A line of the peer. Its fields come from another process. */
struct shc_pair_found {
    const struct shc_line_shm *line; /* NULL: there is no new line */
    struct shc_place place; /* the hand-off buffer whose line it is, by the peer's name for it; or
                             * SHC_IN_LINE: it is a line in turn */
};

SHC_INLINE bool shc_line_is(const struct shc_line_shm *line, uint64_t number)
{
    /* acquire pair/line <- release in shc_pair_post(): the line, and the place it names. */
    return shc_a64_load_acquire(&line->number) == number;
}

SHC_INLINE struct shc_pair_found shc_pair_look(const struct shc_pair_watch *watch)
{
    if (watch->hand_off[0] && shc_line_is(watch->hand_off[0], watch->want))
        return (struct shc_pair_found){watch->hand_off[0], {SHC_IN_HAND_OFF, SHC_THEIRS}};
    if (watch->hand_off[1] && shc_line_is(watch->hand_off[1], watch->want))
        return (struct shc_pair_found){watch->hand_off[1], {SHC_IN_HAND_OFF, SHC_OURS}};
    if (shc_line_is(watch->turn, watch->want))
        return (struct shc_pair_found){watch->turn, {SHC_IN_LINE, 0}};
    return (struct shc_pair_found){NULL, {SHC_IN_LINE, 0}};
}

/* The oldest line from the peer that was not taken. */
SHC_INLINE struct shc_pair_found shc_pair_peek(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair_watch watch = shc_pair_next(pairs, peer);
    return shc_pair_look(&watch);
}

/* The peer's oldest line has been read. The line of a hand-off buffer needs no word and no ring: no
 * rank waits for such a buffer (P2P-15). */
SHC_INLINE void shc_pair_take(struct shc_pairs *pairs, int peer, struct shc_pair_found found)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->taken++;
    if (found.place.memory == SHC_IN_HAND_OFF) {
        pairs->moves++;
        return;
    }
    pair->turns_in++;
    /* release pair/taken -> acquire in shc_pair_has_lines(): the line has been read. */
    shc_a64_store_release(&shc_pair_ack(pairs, pair->told)->taken, pair->turns_in);
    shc_pair_note_news(pairs, peer);
}

/* ---- places: staging memory that a line names ---- */

/* Reserves the memory of this rank's eager and hand-off buffers at their first use, so that it is
 * there before the peer gets a hand-off buffer. False: there is none, and all bytes go in lines. */
bool shc_pairs_have_buffers(struct shc_pairs *pairs);

/* Do chunks to the peer use the pool? The first call reserves its memory. */
bool shc_pair_has_pool(struct shc_pairs *pairs, int peer);

/* The functions *_lend() lend a place to the peer, which the next line names. SHC_IN_LINE: there is
 * none free. */

/* P2P-14: a hand-off buffer for the next message to the peer, of that many bytes. SHC_IN_LINE if
 * the buffers are too short; and if the message fits a line, and this rank sent more than two
 * messages in a row before the peer last answered: then adjacent lines are faster. */
SHC_INLINE struct shc_place shc_hand_off_lend(struct shc_pairs *pairs, int peer, size_t bytes)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    if (bytes > pairs->seat->mail.hand_off_bytes || pair->hand_offs.where[0] == SHC_NOWHERE ||
        (bytes <= SHC_LINE_DATA_BYTES && pair->last_run > 2))
        return (struct shc_place){SHC_IN_LINE, 0};
    const int which =
        shc_hand_off_pass(&pair->hand_offs, pairs->usable || shc_pairs_have_buffers(pairs));
    return which < 0 ? (struct shc_place){SHC_IN_LINE, 0}
                     : (struct shc_place){SHC_IN_HAND_OFF, (uint8_t)which};
}

/* P2P-6: at most SHC_EAGER_UNASKED eager buffers hold bytes that no receive has asked for. Of
 * these, prefixes may fill SHC_EAGER_PREFIXES; the rest is for messages that can be sent whole.
 * P2P-7: the other eager buffers serve posted receives, which so never wait for unexpected
 * messages. */
#define SHC_EAGER_UNASKED  4
#define SHC_EAGER_PREFIXES 2
enum shc_eager_use { SHC_EAGER_WHOLE, SHC_EAGER_PREFIX, SHC_EAGER_CHUNK };
struct shc_place shc_eager_lend(struct shc_pairs *pairs, int peer, enum shc_eager_use use);

/* pre: shc_pair_has_pool(). */
struct shc_place shc_pool_lend(struct shc_pairs *pairs, int peer);

/* For a chunk: of the pool if there is one. */
struct shc_place shc_chunk_lend(struct shc_pairs *pairs, int peer);

/* P2P-30: of the two long hand-off buffers that this rank holds, the one that came last. */
struct shc_place shc_long_lend(struct shc_pairs *pairs, int peer);

/* Are so many pool buffers free? pre: shc_pair_has_pool(). */
bool shc_pool_has(const struct shc_pairs *pairs, int peer, uint32_t count);

/* Is a buffer that carries a chunk on its way back from the peer? */
bool shc_chunk_awaited(const struct shc_pairs *pairs, int peer);

/* Has the peer read the first `pool` pool buffers lent to it, and the eager buffers that carry its
 * chunks with numbers up to `chunks`? (These numbers count chunks to all ranks.) */
bool shc_chunks_were_read(struct shc_pairs *pairs, int peer, uint64_t pool, uint32_t chunks);

/* P2P-33: is there a line that names a long hand-off buffer, and that the peer has not taken? */
bool shc_long_is_out(const struct shc_pairs *pairs, int peer);

/* A message from the peer, or its beginning, has been taken from that place, or is kept there. If it
 * is in a long hand-off buffer, but not in the one that this rank handed over last, two messages have
 * passed one another. */
SHC_INLINE void shc_pair_note_header(struct shc_pairs *pairs, int peer, struct shc_place place)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    shc_pair_note_answer(pairs, peer);
    if (place.memory == SHC_IN_LONG_HAND_OFF)
        pair->crosses = shc_hand_off_mirror(place.index) != pair->long_passed;
}

/* P2P-13: are these bytes in the hand-off buffer's line, and not in the buffer? */
SHC_INLINE bool shc_hand_off_spares(struct shc_place place, size_t bytes)
{
    return bytes <= SHC_HAND_OFF_LINE_BYTES && place.memory == SHC_IN_HAND_OFF;
}

/* May a line in turn of the peer name that place? No line in turn names a hand-off buffer, or a
 * long one that this rank holds; pool buffers come in turn. */
bool shc_place_exists(const struct shc_pairs *pairs, int peer, struct shc_place place);

SHC_INLINE char *shc_hand_off_at(const struct shc_pairs *pairs, int sender, int receiver,
                                 unsigned index)
{
    const struct shc_seat *seat = pairs->seat;
    const int owner = index == SHC_THEIRS ? receiver : sender;
    const size_t other = (size_t)(owner == sender ? receiver : sender);
    return seat->segment.base + shc_seat_mail_offset(seat, owner) + seat->mail.buffers_offset +
           SHC_EAGER_BUFFERS * SHC_EAGER_BYTES + other * seat->mail.hand_off_bytes;
}

/* The memory that a line from the sender to the receiver names. pre: it is not the line. */
SHC_INLINE char *shc_place_at(const struct shc_pairs *pairs, int sender, int receiver,
                              struct shc_place place)
{
    const struct shc_seat *seat = pairs->seat;
    if (place.memory == SHC_IN_HAND_OFF)
        return shc_hand_off_at(pairs, sender, receiver, place.index);
    const bool theirs = place.memory == SHC_IN_LONG_HAND_OFF && place.index == SHC_THEIRS;
    char *const mailbox =
        seat->segment.base + shc_seat_mail_offset(seat, theirs ? receiver : sender);
    if (place.memory == SHC_IN_EAGER)
        return mailbox + seat->mail.buffers_offset + place.index * (size_t)SHC_EAGER_BYTES;
    const unsigned buffers = place.memory == SHC_IN_POOL ? place.index : SHC_POOL_BUFFERS;
    return mailbox + seat->mail.pool_offset + buffers * (size_t)SHC_POOL_BYTES;
}

SHC_INLINE size_t shc_place_bytes(const struct shc_pairs *pairs, struct shc_place place)
{
    const size_t bytes[SHC_MEMORIES] = {SHC_LINE_DATA_BYTES, SHC_EAGER_BYTES,
                                        pairs->seat->mail.hand_off_bytes, SHC_LONG_HAND_OFF_BYTES,
                                        SHC_POOL_BYTES};
    return bytes[place.memory];
}

/* This rank has read the place, and gives it back to the peer. A hand-off buffer, short or long, is
 * this rank's to fill from now on. */
void shc_place_return(struct shc_pairs *pairs, int peer, struct shc_place place);

/* ---- credit for messages through the pool that no receive has asked for ---- */

/* P2P-20: may one of that many bytes be sent, although receives have not taken all that were sent
 * before? */
bool shc_credit_left(const struct shc_pairs *pairs, int peer, size_t bytes);

/* Such a message is sent; and a receive has taken one of the peer's. */
void shc_credit_spend(struct shc_pairs *pairs, int peer, size_t bytes);
void shc_credit_return(struct shc_pairs *pairs, int peer, size_t bytes);

/* P2P-26: tells the peer that a long message without CTS found no receive. That costs more than a
 * CTS, so the peer waits for CTS for a while. */
void shc_pair_tell_aside(struct shc_pairs *pairs, int peer);

/* P2P-26: may a long message to the peer go without CTS, after what the peer has told? `counts`:
 * a message that otherwise waits for CTS shortens the time in which none may. */
bool shc_pair_may_go_unasked(struct shc_pairs *pairs, int peer, bool counts);

/* ---- doorbells ---- */

/* Rings the doorbells of all ranks for which there is something new. */
void shc_pairs_ring(struct shc_pairs *pairs);

/* Rings the peer's doorbell if there is something new for it. */
SHC_INLINE void shc_pair_ring(struct shc_pairs *pairs, int peer)
{
    if (!pairs->pairs[peer].ring)
        return;
    pairs->pairs[peer].ring = false;
    shc_bell_ring(shc_seat_mail_bell(pairs->seat, peer), true);
}
