// SPDX-License-Identifier: BSD-3-Clause
//
// Hand-off buffers, short and long, under weak memory: what is read is what was stored, and only the rank
// that holds a buffer stores to it.
//
// Runs the real src/shm/proto/pair.c and handoff.h; docs/internals/protocol/messages.md, P2P-3, P2P-4, P2P-9
// to P2P-14, P2P-29, P2P-35 and P2P-36, and edge pair/line. Two ranks send to one another and receive, in
// any order, but never more than three messages ahead. An odd message takes a long buffer if its sender
// holds one, in two fragments if two lines are free. An even one, or an odd one that finds no long buffer,
// takes a short one and its line, or otherwise the next line in turn and the only eager buffer, or none.
// A receiver reads a fragment at once, or with the last one. What a chunk in a long buffer takes back with
// it is the receiver's next message. All are plain memory: relacy reports a race where no edge orders two
// accesses.
//
// FAULT_post_relaxed      the store of a line's number is relaxed
// FAULT_peek_relaxed      the load of a line's number is relaxed
// FAULT_held_unread       a receiver holds a buffer before it has read it
// FAULT_kept              a sender of a buffer goes on holding it
// FAULT_wrong_buffer      the receiver takes the other buffer of its kind for the one that is named
// FAULT_whosever          a line's number does not say which rank's message it is
// FAULT_any_order         a short buffer's line is taken although one in turn comes before it
// FAULT_held_ahead        a receiver that reads a fragment holds the buffer
// FAULT_no_line_left      a fragment goes out although the next line is not free

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/proto/layout.h"
const uint64_t kOfHigher = SHC_LINE_OF_HIGHER;
#undef SHC_LINE_OF_HIGHER
#define SHC_LINE_OF_HIGHER (WITH(FAULT_whosever) ? 0 : kOfHigher)
#include "shm/proto/pair.h"

#undef calloc // C allows what C++ does not
#undef free
#define calloc(count, bytes) static_cast<shc_pair *>(std::calloc(count, bytes))
#define free                 std::free
#include "shm/proto/pair.c"

#include "tests/models/mailboxes.h"

namespace
{

const uint32_t kLines = 2;
const uint64_t kMessages = 8, kAhead = 3;
const int kRanks = 2;

struct Mailbox {
    char bell[SHC_LINE_BYTES];
    shc_ack_shm acks[kRanks];
    shc_line_shm lines[kRanks * kLines], hand_off_lines[kRanks];
    shc_word buffers[SHC_EAGER_BUFFERS + kRanks], pool[SHC_POOL_BUFFERS], long_hand_off[2];
};

const Mailbox *mailboxes_now;

struct HandOff : rl::test_suite<HandOff, kRanks> {
    Mailbox mailboxes[kRanks];
    shc_seat seats[kRanks];
    shc_pairs pairs[kRanks];

    void before()
    {
        mailboxes_now = mailboxes;
        begin_mailboxes(mailboxes, seats, pairs,
                        {kLines, offsetof(Mailbox, lines), offsetof(Mailbox, hand_off_lines),
                         offsetof(Mailbox, buffers), offsetof(Mailbox, pool), kRanks,
                         SHC_EAGER_BYTES, sizeof(Mailbox)});
    }

    void after()
    {
        for (shc_pairs &each : pairs)
            shc_pairs_fini(&each);
    }

    // An odd message leaves the short buffers alone if a line in turn is free.
    static shc_place lend(shc_pairs *mine, int peer, uint64_t message, bool in_turn)
    {
        shc_place place = {SHC_IN_LINE, 0};
        if (message % 2 == 1 && in_turn)
            place = shc_long_lend(mine, peer);
        if (place.memory == SHC_IN_LINE)
            place = shc_hand_off_lend(mine, peer, sizeof(shc_word));
        if (place.memory == SHC_IN_LINE && in_turn)
            place = shc_eager_lend(mine, peer, SHC_EAGER_WHOLE);
        return place;
    }

    // A different word for each message of each rank.
    static uint64_t word_for(int sender, uint64_t message)
    {
        return message * kRanks + static_cast<uint64_t>(sender);
    }

    // What a line carries: the message and the place.
    static uint64_t line_for(int sender, uint64_t message, shc_place place)
    {
        return word_for(sender, message) * kPlaces + place.memory * 2u + place.index;
    }

    // The first message of each goes through the short buffer in its own mailbox, the second through the
    // long one there.
    bool send(int me, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const bool in_turn = shc_pair_draft(mine, 1 - me) != nullptr;
        const shc_place place = lend(mine, 1 - me, message, in_turn);
        if (!in_turn && place.memory != SHC_IN_HAND_OFF)
            return false;
        RL_ASSERT(message > 0 || (place.memory == SHC_IN_HAND_OFF && place.index == SHC_OURS));
        RL_ASSERT(message != 1 || place.memory == SHC_IN_LONG_HAND_OFF);
        if (WITH(FAULT_kept) && is_handed_over(place))
            shc_place_return(mine, 1 - me, mirror(place)); // the peer has the other name for it
        if (place.memory != SHC_IN_LINE)
            shc_word_put(word_of(*mine, me, 1 - me, place), word_for(me, message));
        if (place.memory == SHC_IN_LONG_HAND_OFF) {
            if (shc_pair_has_lines(mine, 1 - me, 2) || WITH(FAULT_no_line_left))
                post(me, place, kItIsFirst + line_for(me, message, place));
            shc_word_put(word_of(*mine, me, 1 - me, place) + 1, word_for(me, message));
        }
        post(me, place, line_for(me, message, place));
        return true;
    }

    void post(int me, shc_place place, uint64_t word)
    {
        shc_line_shm *line = shc_pair_line_for(&pairs[me], 1 - me, place);
        shc_word_put(&line->word, word);
        shc_pair_post(&pairs[me], 1 - me, line, place);
    }

    bool receive(int me, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const int peer = 1 - me;
        const shc_pair_found found = look(*mine, peer);
        if (!found.line)
            return false;
        const uint64_t line = shc_word_get(&found.line->word), word = line % kItIsFirst;
        const bool first = line >= kItIsFirst;
        const shc_place place = {static_cast<uint8_t>(word % kPlaces / 2),
                                 static_cast<uint8_t>(word % 2)};
        RL_ASSERT(word / kPlaces == word_for(peer, message));
        RL_ASSERT((found.place.memory == SHC_IN_HAND_OFF) == (place.memory == SHC_IN_HAND_OFF));
        RL_ASSERT(place.memory != SHC_IN_HAND_OFF || found.place.index == place.index);
        RL_ASSERT(place.memory == SHC_IN_HAND_OFF || shc_place_exists(mine, peer, place));
        if (first)
            read_first(me, place, message);
        else if (place.memory != SHC_IN_LINE)
            read(me, place, message);
        shc_pair_take(mine, peer, found);
        return !first;
    }

    static shc_pair_found look(const shc_pairs &mine, int peer)
    {
        shc_pair_watch watch = shc_pair_next(&mine, peer);
        for (uint64_t ahead = 1; WITH(FAULT_any_order) && ahead < kAhead; ahead++) {
            shc_pair_watch later = watch;
            later.want += ahead;
            const shc_pair_found found = shc_pair_look(&later);
            if (found.place.memory == SHC_IN_HAND_OFF)
                return found;
        }
        return shc_pair_look(&watch);
    }

    // The first of the two words in a long buffer: the rest of the message is still to come.
    void read_first(int me, shc_place place, uint64_t message)
    {
        RL_ASSERT(place.memory == SHC_IN_LONG_HAND_OFF);
        if (rl::rand(2)) // it has a receive
            RL_ASSERT(shc_word_get(word_of(pairs[me], 1 - me, me, place)) ==
                      word_for(1 - me, message));
        if (WITH(FAULT_held_ahead))
            shc_place_return(&pairs[me], 1 - me, place);
    }

    void read(int me, shc_place place, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const int peer = 1 - me;
        if (WITH(FAULT_held_unread)) {
            shc_place_return(mine, peer, place);
            const shc_place next = lend(mine, peer, message, true);
            shc_word_put(word_of(*mine, me, peer, next), word_for(me, message + 1));
        }
        RL_ASSERT(shc_word_get(word_of(*mine, peer, me, place)) == word_for(peer, message));
        if (place.memory == SHC_IN_LONG_HAND_OFF)
            RL_ASSERT(shc_word_get(word_of(*mine, peer, me, place) + 1) == word_for(peer, message));
        const bool other = WITH(FAULT_wrong_buffer) && is_handed_over(place);
        shc_place_return(mine, peer, other ? mirror(place) : place);
    }

    static const uint64_t kPlaces = SHC_MEMORIES * 2, kItIsFirst = 1 << 20;

    static bool is_handed_over(shc_place place)
    {
        return place.memory == SHC_IN_HAND_OFF || place.memory == SHC_IN_LONG_HAND_OFF;
    }

    static shc_place mirror(shc_place place)
    {
        return {place.memory, static_cast<uint8_t>(shc_hand_off_mirror(place.index))};
    }

    static shc_word *word_of(const shc_pairs &view, int sender, int receiver, shc_place place)
    {
        return reinterpret_cast<shc_word *>(shc_place_at(&view, sender, receiver, place));
    }

    void thread(unsigned index)
    {
        const int me = static_cast<int>(index);
        for (uint64_t sent = 0, received = 0; sent < kMessages || received < kMessages;) {
            const bool may = sent < kMessages && sent < received + kAhead;
            const bool sends = may && send(me, sent);
            sent += sends;
            const bool receives = received < kMessages && receive(me, received);
            received += receives;
            if (!sends && !receives)
                rl::yield(1, $);
        }
    }
};

bool is_number(const void *address)
{
    for (int rank = 0; rank < kRanks; rank++) {
        for (const shc_line_shm &line : mailboxes_now[rank].lines)
            if (address == &line.number)
                return true;
        for (const shc_line_shm &line : mailboxes_now[rank].hand_off_lines)
            if (address == &line.number)
                return true;
    }
    return false;
}

} // namespace

shc_status shc_fail(shc_status status, const char *, ...)
{
    return status;
}

ModelOrder model_order(const void *address, ModelOrder order, uint64_t)
{
    const bool release = order == rl::mo_release;
    const bool weak = (WITH(FAULT_post_relaxed) && is_number(address) && release) ||
                      (WITH(FAULT_peek_relaxed) && is_number(address) && !release);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<HandOff>(argc, argv, 100000);
}
