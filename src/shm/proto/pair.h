/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What ranks share for point-to-point messages: lines and staging memory. The rules are P2P-1 to
 * P2P-41 in docs/internals/protocol/messages.md.
 *
 * Line (P2P-2): each ordered pair of ranks has a few lines, used in turn. The sender fills the next
 * line once the receiver has taken what was in it before, and then releases its number. No line
 * overtakes another.
 *
 * Window (an eager buffer, P2P-5): each rank lends windows of its own to the ranks that it sends
 * to. It fills a window, names it in a line, and has it back when the receiver's word for that
 * window has grown. A receiver may keep a window for any time; lines do not wait for it.
 *
 * Bulk windows (the eager pool, P2P-16): the two ranks of a world of two have larger and more
 * windows for the chunks of large messages. They are lent and read in turn, so one count gives them
 * back. Prefixes and whole messages may use them, too: a receiver without a receive for them copies
 * the bytes into memory of its own, so no bulk window is ever kept (P2P-19).
 *
 * Shuttle (a hand-off buffer, also called a ping-pong buffer, P2P-9): two ranks share two shuttles.
 * Each is a line and a buffer that is not given back: the rank that has read a shuttle fills it
 * with its own next message. So a rank stores to memory that is already in its cache, while the
 * owner of a line or window must fetch it back. At first each rank holds the shuttle in its own
 * mailbox; releasing the shuttle's line hands it over. A receiver looks at the next line in turn
 * and at the lines of both shuttles; the numbers tell which comes first (P2P-4). A rank that holds
 * no shuttle uses lines and windows.
 *
 * Ferry (a long hand-off buffer, P2P-29): the same for larger pieces, between the two ranks of a
 * world of two. Ferries carry whole messages, prefixes, and chunks while large messages go both
 * ways at once. In that case a rank reads what a ferry has brought and stores its own next bytes in
 * one pass over the ferry's cache lines (P2P-32). A whole message is read while it is stored: AHEAD
 * lines say how much of it is there so far, and the EAGER line after them hands the ferry over
 * (P2P-35).
 *
 * There is one shc_pairs per rank and group. All functions are called with its owner's lock held.
 */

#include "shm/proto/bell.h"
#include "shm/proto/seat.h"

/* P2P-6: at most SHC_EAGER_WINDOWS windows hold messages or prefixes for which no receive is
 * posted. P2P-7: the other windows serve posted receives, so these never wait for unexpected
 * messages. Prefixes leave some of the eager windows to messages, which can be sent at once with
 * them. */
#define SHC_EAGER_WINDOWS 4
#define SHC_HEAD_WINDOWS  2

/* Two ranks share two shuttles and two ferries, one of each in the mailbox of each rank. For one of
 * them: it does not exist, this rank holds it, or it is away: the peer holds it, or it is on its
 * way (P2P-10). */
enum shc_whereabouts { SHC_NOWHERE, SHC_HERE, SHC_AWAY };
enum { SHC_OURS, SHC_THEIRS }; /* the mailbox it lies in, as this rank sees it */

struct shc_hold {
    uint8_t where[2]; /* enum shc_whereabouts */
    uint8_t newest;   /* the one that came last: more of it is in the cache */
};

struct shc_pair {
    size_t out, in;         /* offsets in the segment: lines to the peer, and from it */
    size_t shuttle_line[2]; /* offsets of the shuttles' lines */
    size_t heard, told;     /* offsets of what the peer has read, and of what this rank has */
    uint64_t sent, taken;   /* numbers of the last lines to the peer, and from it */
    uint64_t turns_out;     /* lines in turn to the peer: all except those of shuttles */
    uint64_t freed;         /* of these, the lines taken by the peer at the last look */
    uint64_t turns_in;      /* lines in turn from the peer that were taken */
    uint64_t run;           /* messages to the peer since the last one from it */
    uint64_t last_run;      /* the length of the last such run that a message from it ended */
    uint32_t lent;          /* windows that carry chunks to the peer */
    uint32_t bulk_lent, bulk_read; /* bulk windows lent to the peer; of its own, those read */
    uint32_t bulk_at; /* index of the peer's next bulk window; wraps independently of the counts */
    /* P2P-20, in bulk windows: of the EAGER and OPEN messages sent, and of those of the peer that
     * receives have taken. */
    uint32_t whole_sent, whole_taken;
    uint32_t aside_seen, aside_told; /* OPEN messages put aside by the peer, and by this rank */
    uint32_t announces;              /* that many messages to the peer do not go OPEN (P2P-26) */
    bool ring;                       /* the peer's doorbell is to be rung */
    struct shc_hold shuttles, ferries;
    uint8_t ferry_lent; /* the ferry that was handed over last */
    bool crosses;       /* the last message that came by ferry passed one of this rank's */
    uint64_t ferried;   /* turns_out just after the newest line that named a ferry */
};

struct shc_lease {
    int peer; /* -1: the window is free */
    bool eager;
    uint32_t due;   /* the value of the peer's word once it has read the window */
    uint32_t chunk; /* of a window with a chunk: its number among all of these */
};

struct shc_pairs {
    const struct shc_seat *seat;
    struct shc_pair *pairs; /* [world_size] */
    struct shc_lease leases[SHC_WINDOWS];
    uint32_t eager_count;
    uint32_t chunks;              /* windows lent for chunks, to any rank */
    uint32_t next_bulk;           /* the bulk window to be lent next */
    bool bulk_tried, bulk_usable; /* the same for the bulk windows */
    bool tried, usable;           /* the windows' memory: tried to reserve it; it is there */
    bool any_ring;
    uint64_t moves; /* counts lines posted, lines taken, windows returned */
};

struct shc_mail_geometry shc_mail_plan(int world_size);

/* Bytes of a mailbox that are reserved before the group is used. */
size_t shc_mail_reserved_bytes(const struct shc_mail_geometry *mail);

SHC_NODISCARD enum shc_status shc_pairs_init(struct shc_pairs *pairs, const struct shc_seat *seat);
void shc_pairs_fini(struct shc_pairs *pairs);

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

/* The next line in turn to the peer, to be filled; NULL while it still holds something (P2P-2). */
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

/* Is less than half of the lines in turn in use? Then one more is free after the next one. pre:
 * shc_pair_draft() has found the next one free. */
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

/* P2P-14: the shuttle or ferry that the next line hands over: of those this rank holds, the one
 * that came last. -1: it holds none. own_usable: there is memory for the one in this rank's own
 * mailbox; without it that one is never used. */
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

/* P2P-12: what the buffer brought has been read, so this rank holds it now and may fill it. */
SHC_INLINE void shc_hold_keep(struct shc_hold *hold, uint8_t which)
{
    hold->newest = which;
    hold->where[which] = SHC_HERE;
}

/* Reserves the memory of this rank's windows and shuttles at their first use, so that it is there
 * before the peer gets a shuttle. False: there is no memory, and all bytes go through lines. */
bool shc_pairs_have_windows(struct shc_pairs *pairs);

/* A shuttle for the next message to the peer, of that many bytes: its line names it, and the bytes
 * go into that line or into the buffer (P2P-13). -1: this rank holds none, or shuttles are too short
 * for the message. P2P-14: also -1 if the message fits a line and this rank sent more than two
 * messages in a row before the peer last answered, as adjacent lines are faster than an occasional
 * line elsewhere. */
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

/* Are these bytes in the shuttle's line, and not in its buffer (P2P-13)? */
SHC_INLINE bool shc_window_spares(uint32_t name, size_t bytes)
{
    return bytes <= SHC_SHUTTLE_LINE_BYTES && shc_window_is_shuttle(name);
}

/* The line that goes out with that window: the shuttle's own line, or else (also with no window,
 * -1) the next line in turn, which shc_pair_draft() has found free. */
SHC_INLINE struct shc_line_shm *shc_pair_line_for(const struct shc_pairs *pairs, int peer,
                                                  int window)
{
    const struct shc_pair *pair = &pairs->pairs[peer];
    if (shc_window_is_shuttle((uint32_t)window)) /* -1 is no window */
        return shc_pair_line(pairs, pair->shuttle_line[window - SHC_SHUTTLE_OURS], 0);
    return shc_pair_line(pairs, pair->out, pair->turns_out);
}

/* P2P-3: the number in a line, from the count of lines that the sender has sent to the receiver. */
SHC_INLINE uint64_t shc_pair_number(int sender, int receiver, uint64_t count)
{
    return sender > receiver ? count | SHC_LINE_OF_HIGHER : count;
}

/* Releases that line, which names that window. shc_pairs_ring() rings the peer's doorbell. */
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
    return pairs->seat->mail.lines + (pairs->seat->mail.shuttles > 0 ? 2 : 0);
}

/* Where the next line of a peer may come, and its number (P2P-4). A thread without the lock may
 * look at these lines while the segment is mapped. The line of a shuttle that this rank holds never
 * has that number: it has an older number of the peer, or none. */
struct shc_pair_watch {
    const struct shc_line_shm *turn, *shuttle[2]; /* NULL: there is no shuttle */
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
    const struct shc_line_shm *line; /* NULL: there is no new line */
    uint32_t shuttle; /* the shuttle it belongs to, by the peer's name for it, or SHC_NO_WINDOW */
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

/* The peer's oldest line has been read: the line of `shuttle`, or with SHC_NO_WINDOW the next
 * one in turn. The line of a shuttle needs no word and no ring: no rank waits for a shuttle
 * (P2P-15). */
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

/* Which shuttle or ferry a line of the peer names, as this rank sees it: the peer's "ours" is
 * "theirs" here. */
SHC_INLINE uint8_t shc_hold_which(uint32_t name)
{
    return (name - SHC_SHUTTLE_OURS) % 2 == SHC_OURS ? SHC_THEIRS : SHC_OURS;
}

SHC_INLINE void shc_shuttle_keep(struct shc_pairs *pairs, int peer, uint32_t name)
{
    shc_hold_keep(&pairs->pairs[peer].shuttles, shc_hold_which(name));
}

/* Lends a window to the peer, which the next line in turn names. -1: there are no windows, or none
 * is free. */
int shc_window_lend(struct shc_pairs *pairs, int peer, bool eager);

/* Lends a window for the prefix of a message (P2P-6). */
int shc_window_lend_for_head(struct shc_pairs *pairs, int peer);

/* Lends adjacent bulk windows for *bytes; the next line names the first of them. If fewer are free
 * it lends those, if they hold at least `least` bytes; -1 if not. *bytes: how much fits in them.
 * pre: shc_window_has_bulk(). */
int shc_window_lend_run(struct shc_pairs *pairs, int peer, size_t least, size_t *bytes);

/* The peer may have to put aside a message that reaches it in bulk windows before its receive.
 * P2P-20: may one of that many bytes be sent, although receives have not taken all that were sent
 * before? */
bool shc_window_may_send_whole(const struct shc_pairs *pairs, int peer, size_t bytes);

/* Such a message is sent; and a receive has taken one of the peer's. */
void shc_window_note_whole(struct shc_pairs *pairs, int peer, size_t bytes);
void shc_window_take_whole(struct shc_pairs *pairs, int peer, size_t bytes);

/* P2P-26: tells the peer that one of its OPEN messages found no receive. That costs more than a
 * rendezvous, so the peer announces its messages for a while. */
void shc_pair_tell_aside(struct shc_pairs *pairs, int peer);

/* P2P-26: may a message to the peer go OPEN, after what the peer has told? Each call counts as one
 * message. */
bool shc_pair_may_open(struct shc_pairs *pairs, int peer);

/* Do chunks to the peer use bulk windows? The first call reserves their memory. */
bool shc_window_has_bulk(struct shc_pairs *pairs, int peer);

/* Is a window that carries a chunk on its way back from the peer? */
bool shc_window_awaited(const struct shc_pairs *pairs, int peer);

/* How many bulk windows have been lent to the peer until now? And has it read the first `lent` of
 * them? */
SHC_INLINE uint32_t shc_window_bulk_lent(const struct shc_pairs *pairs, int peer)
{
    return pairs->pairs[peer].bulk_lent;
}
bool shc_window_bulk_was_read(const struct shc_pairs *pairs, int peer, uint32_t lent);

/* Has the peer read those bulk windows, and the other windows that carry its chunks with numbers up
 * to `chunks`? (These numbers count chunks to all ranks.) */
bool shc_window_chunks_were_read(struct shc_pairs *pairs, int peer, uint32_t lent, uint32_t chunks);

/* P2P-30: a ferry for the next line to the peer, which names it: of those that this rank holds, the
 * one that came last. -1: it holds none, or only its own, for which there is no memory. */
int shc_ferry_lend(struct shc_pairs *pairs, int peer);

/* P2P-32: the name of the ferry that a line of the peer has just named, for the line that sends it
 * back at once. */
int shc_ferry_turn(struct shc_pairs *pairs, int peer, uint32_t name);

/* The next line in turn names the ferry that this rank has lent. */
SHC_INLINE void shc_ferry_name_again(struct shc_pairs *pairs, int peer)
{
    pairs->pairs[peer].ferried = pairs->pairs[peer].turns_out + 1;
}

/* A message from the peer, or its prefix, has come by the ferry of that name. If that is not the
 * ferry that this rank handed over last, two messages have passed one another (P2P-40). */
SHC_INLINE void shc_ferry_note_message(struct shc_pairs *pairs, int peer, uint32_t name)
{
    struct shc_pair *pair = &pairs->pairs[peer];
    pair->crosses = shc_hold_which(name) != pair->ferry_lent;
}

/* Is there a line that named a ferry, and that the peer has not taken (P2P-33)? */
bool shc_ferry_is_out(const struct shc_pairs *pairs, int peer);

SHC_INLINE bool shc_window_is_ferry(uint32_t name)
{
    return name == SHC_FERRY_OURS || name == SHC_FERRY_THEIRS;
}

/* May a line in turn of the peer name it? No line in turn names a shuttle (P2P-13), or a ferry that
 * this rank holds (P2P-30). */
bool shc_window_exists(const struct shc_pairs *pairs, int peer, uint32_t name);

/* The memory that a line from the sender to the receiver names. pre: name < SHC_WINDOW_NAMES. */
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

/* The length of a window; of a bulk window, with all those after it. */
SHC_INLINE size_t shc_window_bytes(const struct shc_pairs *pairs, uint32_t name)
{
    if (name >= SHC_BULK_NAME)
        return (size_t)(SHC_WINDOW_NAMES - name) * SHC_BULK_BYTES;
    if (shc_window_is_ferry(name))
        return SHC_FERRY_BYTES;
    return shc_window_is_shuttle(name) ? pairs->seat->mail.shuttle_bytes : SHC_WINDOW_BYTES;
}

/* This rank has read the window, or the bulk windows with that many bytes, and gives them back to
 * the peer. A shuttle or ferry is this rank's to fill from now on. SHC_NO_WINDOW: nothing to do. */
void shc_window_return(struct shc_pairs *pairs, int peer, uint32_t name, size_t bytes);

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
