/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What ranks share for point-to-point: pair lines and windows (docs/internals/protocol.md, P2P-1 to
 * P2P-41).
 *
 * Each ordered pair of ranks has a few lines, used in turn: the sender fills the next one when the
 * receiver has taken what was in it before, and releases its number. Nothing is overtaken.
 *
 * Each rank lends windows of its own to whom it sends: it fills one, names it in a line, and has it
 * back when that receiver's word for the window has moved. Whoever holds a window keeps it as long
 * as he likes; the lines go on beside it.
 *
 * Between the two ranks of a world of two, chunks of large messages have windows of their own, the
 * bulk windows, larger and many, which are lent and read in turn, so that a count gives them back.
 * Heads and whole messages may go there, too: nobody keeps a window by not asking for them, as the
 * receiver puts them aside.
 *
 * Two ranks have two shuttles besides, each a line and a window that nobody gives back: the receiver of
 * one fills it with its own next message. So what is stored to is in the cache of the rank that has just
 * read it, where the owner of a line or window must fetch it back. At first each holds the one in its own
 * mailbox; its line hands it over. A receiver looks at the next line in turn and at those of both
 * shuttles; the numbers tell which comes first. A rank that holds none uses its own lines
 * and windows.
 *
 * Ferries are the same for what is larger, between the two ranks of a world of two: whole messages, heads,
 * and chunks while large messages go both ways at once. Then each rank reads what a ferry has brought and
 * stores its own next bytes in the same pass over its lines. A whole message is read while it is stored: lines
 * say how much of it is there by now, in front of the one that hands the ferry over.
 *
 * One shc_pairs per rank and group. All functions are called with its owner's lock held.
 */

#include "shm/proto/bell.h"
#include "shm/proto/seat.h"

/* The windows that may hold messages, or eager prefixes, for which no receive is posted. The other windows
 * serve posted receives, so that these never wait for unexpected messages. Prefixes leave some to messages,
 * which go at once with them. */
#define SHC_EAGER_WINDOWS 4
#define SHC_HEAD_WINDOWS  2

/* Two shuttles or ferries lie in this rank's mailbox and in the peer's. Where each one is: there is none,
 * it is this rank's to fill, the peer has it, or it is in flight. */
enum shc_whereabouts { SHC_NOWHERE, SHC_HERE, SHC_AWAY };
enum { SHC_OURS, SHC_THEIRS }; /* in whose mailbox it lies, as this rank sees it */

struct shc_hold {
    uint8_t where[2]; /* enum shc_whereabouts */
    uint8_t newest;   /* the one that came last: more of it is in the cache */
};

struct shc_pair {
    size_t out, in; /* offset in the segment of the lines to the peer, and of those from it */
    size_t shuttle_line[2]; /* and of the shuttles' lines */
    size_t heard, told;     /* where the peer tells this rank what it has read, and the reverse */
    uint64_t sent, taken;   /* numbers of the last lines to the peer, and from it */
    uint64_t turns_out;     /* lines to the peer that were used in turn, without shuttles' */
    uint64_t freed;         /* of these, those taken by the peer at the last look */
    uint64_t turns_in;      /* of the lines from the peer */
    uint64_t run;           /* messages to the peer since one came from it */
    uint64_t last_run;      /* and before that one, since the one before it */
    uint32_t lent;          /* windows that carry chunks to the peer */
    uint32_t bulk_lent, bulk_read; /* bulk windows lent to the peer, and read of its own */
    uint32_t bulk_at; /* index of the peer's next one; the counts wrap in the middle of a round */
    /* Windows of unexpected messages among these: sent, and of the peer's taken by receives. */
    uint32_t whole_sent, whole_taken;
    uint32_t aside_seen, aside_told; /* open messages put aside by the peer, and by this rank */
    uint32_t announces;              /* that many messages to the peer do not go open */
    bool ring;                       /* the peer is to be rung */
    struct shc_hold shuttles, ferries;
    uint8_t ferry_lent; /* the ferry that was handed over last */
    bool crosses;       /* the last message that came by ferry passed one of this rank's */
    uint64_t ferried;   /* of turns_out, with the newest line that named a ferry */
};

struct shc_lease {
    int peer; /* -1: the window is free */
    bool eager;
    uint32_t due;   /* the peer's word when it has read the window */
    uint32_t chunk; /* for one that carries chunks: its number among all these */
};

struct shc_pairs {
    const struct shc_seat *seat;
    struct shc_pair *pairs; /* [world_size] */
    struct shc_lease leases[SHC_WINDOWS];
    uint32_t eager_count;
    uint32_t chunks;              /* windows lent for chunks, to any rank; used in turn */
    uint32_t next_bulk;           /* to be lent */
    bool bulk_tried, bulk_usable; /* as the windows' memory */
    bool tried, usable;           /* the windows' memory: tried to reserve it; it is there */
    bool any_ring;
    uint64_t moves; /* lines posted, lines taken, windows returned */
};

struct shc_mail_geometry shc_mail_plan(int world_size);

/* Bytes of a mailbox that are reserved before the group is used. */
size_t shc_mail_reserved_bytes(const struct shc_mail_geometry *mail);

SHC_NODISCARD enum shc_status shc_pairs_init(struct shc_pairs *pairs, const struct shc_seat *seat);
void shc_pairs_fini(struct shc_pairs *pairs);

/* What one of the two tells the other, at that offset. */
SHC_INLINE struct shc_ack_shm *shc_pair_ack(const struct shc_pairs *pairs, size_t offset)
{
    return (struct shc_ack_shm *)(void *)(pairs->seat->segment.base + offset);
}

/* Of the lines that begin at that offset, the one for this number. */
SHC_INLINE struct shc_line_shm *shc_pair_line(const struct shc_pairs *pairs, size_t offset,
                                              uint64_t number)
{
    return (struct shc_line_shm *)(void *)(pairs->seat->segment.base + offset) +
           (number & (pairs->seat->mail.lines - 1));
}

/* The peer is to be rung. */
SHC_INLINE void shc_pair_note_news(struct shc_pairs *pairs, int peer)
{
    pairs->pairs[peer].ring = true;
    pairs->any_ring = true;
    pairs->moves++;
}

/* The next one in turn to fill for the peer, or NULL while it still holds something. */
SHC_INLINE struct shc_line_shm *shc_pair_draft(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    if (pair->turns_out - pair->freed >= pairs->seat->mail.lines) {
        /* acquire pair/taken <- release in shc_pair_take(): the line has been read. */
        pair->freed = shc_a64_load_acquire(&shc_pair_ack(pairs, pair->heard)->taken);
        if (pair->turns_out - pair->freed >= pairs->seat->mail.lines)
            return NULL;
    }
    return shc_pair_line(pairs, pair->out, pair->turns_out);
}

/* Is less than half of them in use? Then there is one more after it. pre: shc_pair_draft() has found it
 * free. */
SHC_INLINE bool shc_pair_has_half(struct shc_pairs *pairs, int peer)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    const uint64_t half = pairs->seat->mail.lines / 2;
    if (pair->turns_out - pair->freed >= half) {
        /* acquire pair/taken <- release in shc_pair_take(): the lines have been read. */
        pair->freed = shc_a64_load_acquire(&shc_pair_ack(pairs, pair->heard)->taken);
    }
    return pair->turns_out - pair->freed < half;
}

/* Which of the two the next line names: of those that are here, the one that came last; or -1. Not this
 * rank's own if there is no memory for what lies in its mailbox. */
SHC_INLINE int shc_hold_hand_over(struct shc_hold *hold, bool own_usable)
{
    int which = hold->where[hold->newest] == SHC_HERE ? hold->newest : 1 - hold->newest;
    if (SHC_UNLIKELY(!own_usable))
        which = SHC_THEIRS;
    if (hold->where[which] != SHC_HERE)
        return -1;
    hold->where[which] = SHC_AWAY;
    return which;
}

/* What it brought has been read: it is this rank's to fill. */
SHC_INLINE void shc_hold_keep(struct shc_hold *hold, uint8_t which)
{
    hold->newest = which;
    hold->where[which] = SHC_HERE;
}

/* Reserves the windows' memory at their first use, including a shuttle's, so that it is there before the
 * peer has the shuttle. False: there is none, and everything goes through the lines. */
bool shc_pairs_have_windows(struct shc_pairs *pairs);

/* A shuttle for the next message to the peer, of that many bytes: they go into it and its line, which names
 * it. -1 if none is here, or they are too short. Also -1 if the message fits a line and this rank sent more
 * messages in a row than there are shuttles before the peer last answered: adjacent lines are faster than
 * an occasional one elsewhere. */
SHC_INLINE int shc_shuttle_lend(struct shc_pairs *pairs, int peer, size_t bytes)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    if (bytes > pairs->seat->mail.shuttle_bytes || pair->shuttles.where[SHC_OURS] == SHC_NOWHERE ||
        (bytes <= SHC_LINE_DATA_BYTES && pair->last_run > 2))
        return -1;
    const int which =
        shc_hold_hand_over(&pair->shuttles, pairs->usable || shc_pairs_have_windows(pairs));
    return which < 0 ? -1 : SHC_SHUTTLE_OURS + which;
}

SHC_INLINE bool shc_window_is_shuttle(uint32_t name)
{
    return name == SHC_SHUTTLE_OURS || name == SHC_SHUTTLE_THEIRS;
}

/* Are these bytes in the line that names it, although it is a shuttle? */
SHC_INLINE bool shc_window_spares(uint32_t name, size_t bytes)
{
    return bytes <= SHC_SHUTTLE_LINE_BYTES && shc_window_is_shuttle(name);
}

/* The line that goes out with that window, or with none (-1): the shuttle's own, or the next one in turn,
 * which shc_pair_draft() has found free. */
SHC_INLINE struct shc_line_shm *shc_pair_line_for(const struct shc_pairs *pairs, int peer,
                                                  int window)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    if (shc_window_is_shuttle((uint32_t)window)) /* -1 is none */
        return shc_pair_line(pairs, pair->shuttle_line[window - SHC_SHUTTLE_OURS], 0);
    return shc_pair_line(pairs, pair->out, pair->turns_out);
}

/* The number in a line, given how many lines this rank has sent to the other one. */
SHC_INLINE uint64_t shc_pair_number(int sender, int receiver, uint64_t count)
{
    return sender > receiver ? count | SHC_LINE_OF_HIGHER : count;
}

/* Releases that line, which goes with that window. The peer is rung by shc_pairs_ring(). */
SHC_INLINE void shc_pair_post(struct shc_pairs *pairs, int peer, struct shc_line_shm *line,
                              int window)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->turns_out += !shc_window_is_shuttle((uint32_t)window);
    pair->sent++;
    /* release pair/line -> acquire in shc_line_is(): the line, and the window it names. */
    shc_a64_store_release(&line->number, shc_pair_number(pairs->seat->rank, peer, pair->sent));
    shc_pair_note_news(pairs, peer);
}

/* What is in such a line is a message, or the beginning of one, to the peer; and from it. */
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

/* Is the peer's next message an answer? */
SHC_INLINE bool shc_pair_awaits_answer(const struct shc_pairs *pairs, int peer)
{
    return pairs->pairs[peer].run > 0;
}

/* The number of the peer's lines that may be there and were not taken. */
SHC_INLINE uint32_t shc_pair_capacity(const struct shc_pairs *pairs)
{
    return pairs->seat->mail.lines + (pairs->seat->mail.shuttles > 0 ? 2 : 0);
}

/* Where the next line of a peer may come, and its number. May be looked at without the lock, while the
 * segment is mapped. The line of a shuttle that is here never has that number: it has an older one of the
 * peer's, or none. */
struct shc_pair_watch {
    const struct shc_line_shm *turn, *shuttle[2]; /* NULL: there is none */
    uint64_t want;
};

SHC_INLINE struct shc_pair_watch shc_pair_next(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    const bool shuttles = pair->shuttles.where[0] != SHC_NOWHERE;
    return (struct shc_pair_watch){
        .turn = shc_pair_line(pairs, pair->in, pair->turns_in),
        .shuttle = {shuttles ? shc_pair_line(pairs, pair->shuttle_line[0], 0) : NULL,
                    shuttles ? shc_pair_line(pairs, pair->shuttle_line[1], 0) : NULL},
        .want = shc_pair_number(peer, pairs->seat->rank, pair->taken + 1),
    };
}

/* A line of the peer. Its fields come from another process. */
struct shc_pair_found {
    const struct shc_line_shm *line; /* or NULL */
    uint32_t shuttle; /* the shuttle whose line it is, as the peer calls it, or SHC_NO_WINDOW */
};

SHC_INLINE bool shc_line_is(const struct shc_line_shm *line, uint64_t number)
{
    /* acquire pair/line <- release in shc_pair_post(): the line, and the window it names. */
    return shc_a64_load_acquire(&line->number) == number;
}

SHC_INLINE struct shc_pair_found shc_pair_look(const struct shc_pair_watch *watch)
{
    if (watch->shuttle[0] && shc_line_is(watch->shuttle[0], watch->want))
        return (struct shc_pair_found){watch->shuttle[0], SHC_SHUTTLE_THEIRS};
    if (watch->shuttle[1] && shc_line_is(watch->shuttle[1], watch->want))
        return (struct shc_pair_found){watch->shuttle[1], SHC_SHUTTLE_OURS};
    if (shc_line_is(watch->turn, watch->want))
        return (struct shc_pair_found){watch->turn, SHC_NO_WINDOW};
    return (struct shc_pair_found){NULL, SHC_NO_WINDOW};
}

/* The oldest line from the peer that was not taken. */
SHC_INLINE struct shc_pair_found shc_pair_peek(const struct shc_pairs *pairs, int peer)
{
    const struct shc_pair_watch watch = shc_pair_next(pairs, peer);
    return shc_pair_look(&watch);
}

/* The oldest line, `shuttle`'s or the next one in turn, has been read. A shuttle's needs no word and no
 * ring: no rank waits for it. */
SHC_INLINE void shc_pair_take(struct shc_pairs *pairs, int peer, uint32_t shuttle)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->taken++;
    if (shuttle != SHC_NO_WINDOW) {
        pairs->moves++;
        return;
    }
    pair->turns_in++;
    /* release pair/taken -> acquire in shc_pair_draft(): the line has been read. */
    shc_a64_store_release(&shc_pair_ack(pairs, pair->told)->taken, pair->turns_in);
    shc_pair_note_news(pairs, peer);
}

/* A shuttle or a ferry of the peer, by its name there: the names of "own" and "peer's" are reversed here. */
SHC_INLINE uint8_t shc_hold_which(uint32_t name)
{
    return (name - SHC_SHUTTLE_OURS) % 2 == SHC_OURS ? SHC_THEIRS : SHC_OURS;
}

SHC_INLINE void shc_shuttle_keep(struct shc_pairs *pairs, int peer, uint32_t name)
{
    shc_hold_keep(&pairs->pairs[peer].shuttles, shc_hold_which(name));
}

/* A window for the peer; -1 if none is free or there are none. The next line in turn to the peer names it. */
int shc_window_lend(struct shc_pairs *pairs, int peer, bool eager);

/* The same for the eager prefix of a message. */
int shc_window_lend_for_head(struct shc_pairs *pairs, int peer);

/* As many adjacent bulk windows as *bytes need, or fewer, but enough for `least`: the next line names the
 * first. -1 if not enough are free there. *bytes: how much of it fits. pre: shc_window_has_bulk(). */
int shc_window_lend_run(struct shc_pairs *pairs, int peer, size_t least, size_t *bytes);

/* An unexpected message that goes to the peer in bulk windows may have to be put aside there. May one of
 * that many bytes be sent, before receives have taken those that were sent? */
bool shc_window_may_send_whole(const struct shc_pairs *pairs, int peer, size_t bytes);

/* It is sent; and a receive has taken one of the peer's. */
void shc_window_note_whole(struct shc_pairs *pairs, int peer, size_t bytes);
void shc_window_take_whole(struct shc_pairs *pairs, int peer, size_t bytes);

/* An open message of the peer found no receive, which costs more than a rendezvous: for a while the peer
 * should use a rendezvous. */
void shc_pair_tell_aside(struct shc_pairs *pairs, int peer);

/* May a message to the peer go open, as far as the peer has told? Counts them. */
bool shc_pair_may_open(struct shc_pairs *pairs, int peer);

/* Do chunks go to the peer in bulk windows? Reserves their memory when first asked. */
bool shc_window_has_bulk(struct shc_pairs *pairs, int peer);

/* Is a window that carries chunks on its way back from the peer? */
bool shc_window_awaited(const struct shc_pairs *pairs, int peer);

/* How many bulk windows the peer has been lent until now; and has it read that many of them, or all? */
SHC_INLINE uint32_t shc_window_bulk_lent(const struct shc_pairs *pairs, int peer)
{
    return pairs->pairs[peer].bulk_lent;
}
bool shc_window_bulk_was_read(const struct shc_pairs *pairs, int peer, uint32_t lent);

/* The same for the other windows that carried chunks to it, counted among all of these. */
bool shc_window_chunks_were_read(struct shc_pairs *pairs, int peer, uint32_t lent, uint32_t chunks);

/* Of the ferries that this rank holds, the one that came last: the next line to the peer names it. -1: it
 * holds none, or only its own, for which there is no memory. */
int shc_ferry_lend(struct shc_pairs *pairs, int peer);

/* The same for the one that a line of the peer has just named: it goes back at once. */
int shc_ferry_turn(struct shc_pairs *pairs, int peer, uint32_t name);

/* One more line names the ferry that this rank has lent: the next one. */
SHC_INLINE void shc_ferry_name_again(struct shc_pairs *pairs, int peer)
{
    pairs->pairs[peer].ferried = pairs->pairs[peer].turns_out + 1;
}

/* A message has come from the peer, or its beginning, by the ferry of that name. Is it in the one that this
 * rank has handed over last, or did the two pass one another? */
SHC_INLINE void shc_ferry_note_message(struct shc_pairs *pairs, int peer, uint32_t name)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->crosses = shc_hold_which(name) != pair->ferry_lent;
}

/* Is there a line that named a ferry, and that the peer has not read? */
bool shc_ferry_is_out(const struct shc_pairs *pairs, int peer);

SHC_INLINE bool shc_window_is_ferry(uint32_t name)
{
    return name == SHC_FERRY_OURS || name == SHC_FERRY_THEIRS;
}

/* May a line in turn of the peer name it? Not if it is a shuttle, or a ferry that this rank holds itself. */
bool shc_window_exists(const struct shc_pairs *pairs, int peer, uint32_t name);

/* The memory that a line between the two ranks names. pre: name < SHC_WINDOW_NAMES. */
SHC_INLINE char *shc_window(const struct shc_pairs *pairs, int sender, int receiver, uint32_t name)
{
    const struct shc_seat *seat = pairs->seat;
    const bool theirs = name == SHC_SHUTTLE_THEIRS || name == SHC_FERRY_THEIRS;
    const int owner = theirs ? receiver : sender;
    char *const mailbox = seat->segment.base + shc_seat_mail_offset(seat, owner);
    if (shc_window_is_ferry(name))
        return mailbox + seat->mail.bulk_offset + (size_t)SHC_BULK_WINDOWS * SHC_BULK_BYTES;
    if (name >= SHC_BULK_NAME)
        return mailbox + seat->mail.bulk_offset + (size_t)(name - SHC_BULK_NAME) * SHC_BULK_BYTES;
    char *const windows = mailbox + seat->mail.windows_offset;
    if (name < SHC_WINDOWS)
        return windows + name * (size_t)SHC_WINDOW_BYTES;
    const size_t other = (size_t)(owner == sender ? receiver : sender);
    return windows + SHC_WINDOWS * SHC_WINDOW_BYTES + other * seat->mail.shuttle_bytes;
}

/* Its length; for bulk windows, with all those after it. */
SHC_INLINE size_t shc_window_bytes(const struct shc_pairs *pairs, uint32_t name)
{
    if (name >= SHC_BULK_NAME)
        return (size_t)(SHC_WINDOW_NAMES - name) * SHC_BULK_BYTES;
    if (shc_window_is_ferry(name))
        return SHC_FERRY_BYTES;
    return shc_window_is_shuttle(name) ? pairs->seat->mail.shuttle_bytes : SHC_WINDOW_BYTES;
}

/* This rank has read the window that the peer lent to it, or those that held that many bytes, or none; the
 * shuttle or the ferry is now its own to fill. */
void shc_window_return(struct shc_pairs *pairs, int peer, uint32_t name, size_t bytes);

/* Rings all ranks for which there is something new. */
void shc_pairs_ring(struct shc_pairs *pairs);

/* Rings the peer if there is something new for it. */
SHC_INLINE void shc_pair_ring(struct shc_pairs *pairs, int peer)
{
    if (!pairs->pairs[peer].ring)
        return;
    pairs->pairs[peer].ring = false;
    shc_bell_ring(shc_seat_mail_bell(pairs->seat, peer), true);
}
