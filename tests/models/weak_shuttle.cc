// SPDX-License-Identifier: BSD-3-Clause
//
// Hand-off buffers (shuttles, and long ones: ferries) under weak memory: what is read is what was stored,
// and only the side that holds a buffer stores to it.
//
// Runs the real src/shm/proto/pair.c; docs/internals/protocol.md, P2P-3, P2P-4, P2P-9 to P2P-14 and
// P2P-29, and edge pair/line. Two ranks send to one another and receive, in any order, but never
// more than three messages ahead. An odd message takes a ferry if its sender holds one. An even one, or
// an odd one that finds no ferry, takes a shuttle and its line, or otherwise the next line in turn and the
// only window, or none. What a chunk by ferry takes back with it is the receiver's next message. All are
// plain memory: relacy reports a race where no edge orders two accesses.
//
// FAULT_post_relaxed      the store of a line's number is relaxed
// FAULT_peek_relaxed      the load of a line's number is relaxed
// FAULT_held_unread       a receiver of a shuttle or a ferry holds it before it has read it
// FAULT_kept              a sender of a shuttle or a ferry goes on holding it
// FAULT_wrong_shuttle     the receiver takes the other one of its kind for the one that is named
// FAULT_whosever          a line's number does not say which rank's message it is
// FAULT_any_order         a shuttle's line is taken although one in turn comes before it
// FAULT_held_ahead        a receiver that finds a line which says how much is in a ferry holds the ferry
// FAULT_no_line_left      a line that says how much is in a ferry goes out although the next is not free

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
    shc_line_shm lines[kRanks * kLines], shuttle_lines[kRanks];
    shc_word windows[SHC_WINDOWS + kRanks], bulk[SHC_BULK_WINDOWS], ferry[2];
};

const Mailbox *mailboxes_now;

struct Shuttles : rl::test_suite<Shuttles, kRanks> {
    Mailbox mailboxes[kRanks];
    shc_seat seats[kRanks];
    shc_pairs pairs[kRanks];

    void before()
    {
        mailboxes_now = mailboxes;
        begin_mailboxes(mailboxes, seats, pairs,
                        {kLines, offsetof(Mailbox, lines), offsetof(Mailbox, shuttle_lines),
                         offsetof(Mailbox, windows), offsetof(Mailbox, bulk), kRanks,
                         SHC_WINDOW_BYTES, sizeof(Mailbox)});
    }

    void after()
    {
        for (shc_pairs &each : pairs)
            shc_pairs_fini(&each);
    }

    // An odd message leaves the shuttles alone if a line in turn is free.
    static int lend(shc_pairs *mine, int peer, uint64_t message, bool in_turn)
    {
        int name = message % 2 == 1 && in_turn ? shc_ferry_lend(mine, peer) : -1;
        if (name < 0)
            name = shc_shuttle_lend(mine, peer, sizeof(shc_word));
        return name < 0 && in_turn ? shc_window_lend(mine, peer, true) : name;
    }

    // A different word for each message of each rank.
    static uint64_t word_for(int sender, uint64_t message)
    {
        return message * kRanks + static_cast<uint64_t>(sender);
    }

    // The first message of each goes through the shuttle in its own mailbox, the second through the ferry;
    // what the line carries is the message and the name.
    bool send(int me, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const bool in_turn = shc_pair_draft(mine, 1 - me) != nullptr;
        const int name = lend(mine, 1 - me, message, in_turn);
        if (!in_turn && name < 0)
            return false;
        shc_line_shm *line = shc_pair_line_for(mine, 1 - me, name);
        RL_ASSERT(message > 0 || name == SHC_SHUTTLE_OURS);
        RL_ASSERT(message != 1 || shc_window_is_ferry(static_cast<uint32_t>(name)));
        if (WITH(FAULT_kept) && name >= SHC_WINDOWS) // the peer has the other name for it
            shc_window_return(mine, 1 - me, other_name(static_cast<uint32_t>(name)),
                              sizeof(shc_word));
        if (name >= 0)
            shc_word_put(word_of(*mine, me, 1 - me, name), word_for(me, message));
        if (name >= 0 && shc_window_is_ferry(static_cast<uint32_t>(name))) {
            if (shc_pair_has_half(mine, 1 - me) || WITH(FAULT_no_line_left))
                line = post_ahead(me, message, line, name);
            shc_word_put(word_of(*mine, me, 1 - me, name) + 1, word_for(me, message));
        }
        shc_word_put(&line->word, word_for(me, message) * kNames + static_cast<uint64_t>(name + 1));
        shc_pair_post(mine, 1 - me, line, name);
        return true;
    }

    // Posts a line that says that the first of the ferry's two words is there. Returns the next line.
    shc_line_shm *post_ahead(int me, uint64_t message, shc_line_shm *line, int name)
    {
        shc_pairs *mine = &pairs[me];
        shc_word_put(&line->word,
                     kItIsAhead + word_for(me, message) * kNames + static_cast<uint64_t>(name + 1));
        shc_pair_post(mine, 1 - me, line, name);
        shc_ferry_name_again(mine, 1 - me);
        return shc_pair_line_for(mine, 1 - me, name);
    }

    // Returns false if the message is still to come.
    bool read_ahead(int me, uint64_t word, uint64_t message)
    {
        const uint32_t name = static_cast<uint32_t>(word % kNames) - 1;
        RL_ASSERT(word / kNames == word_for(1 - me, message));
        RL_ASSERT(shc_window_is_ferry(name) && shc_window_exists(&pairs[me], 1 - me, name));
        RL_ASSERT(shc_word_get(word_of(pairs[me], 1 - me, me, static_cast<int>(name))) ==
                  word_for(1 - me, message));
        if (WITH(FAULT_held_ahead))
            shc_window_return(&pairs[me], 1 - me, name, sizeof(shc_word));
        shc_pair_take(&pairs[me], 1 - me, SHC_NO_WINDOW);
        return false;
    }

    bool receive(int me, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const int peer = 1 - me;
        const shc_pair_found found = look(*mine, peer);
        if (!found.line)
            return false;
        const uint64_t word = shc_word_get(&found.line->word);
        if (word >= kItIsAhead)
            return read_ahead(me, word - kItIsAhead, message);
        RL_ASSERT(word / kNames == word_for(peer, message));
        const uint32_t name = static_cast<uint32_t>(word % kNames) - 1;
        RL_ASSERT(found.shuttle ==
                  (shc_window_is_shuttle(name) ? name : static_cast<uint32_t>(SHC_NO_WINDOW)));
        if (word % kNames > 0)
            read(me, name, message);
        shc_pair_take(mine, peer, found.shuttle);
        return true;
    }

    static shc_pair_found look(const shc_pairs &mine, int peer)
    {
        shc_pair_watch watch = shc_pair_next(&mine, peer);
        for (uint64_t ahead = 1; WITH(FAULT_any_order) && ahead < kAhead; ahead++) {
            shc_pair_watch later = watch;
            later.want += ahead;
            const shc_pair_found found = shc_pair_look(&later);
            if (found.shuttle != SHC_NO_WINDOW)
                return found;
        }
        return shc_pair_look(&watch);
    }

    void read(int me, uint32_t name, uint64_t message)
    {
        shc_pairs *mine = &pairs[me];
        const int peer = 1 - me;
        RL_ASSERT(shc_window_is_shuttle(name) || shc_window_exists(mine, peer, name));
        if (WITH(FAULT_held_unread)) {
            shc_window_return(mine, peer, name, sizeof(shc_word));
            const int next = lend(mine, peer, message, true);
            shc_word_put(word_of(*mine, me, peer, next), word_for(me, message + 1));
        }
        RL_ASSERT(shc_word_get(word_of(*mine, peer, me, static_cast<int>(name))) ==
                  word_for(peer, message));
        if (shc_window_is_ferry(name))
            RL_ASSERT(shc_word_get(word_of(*mine, peer, me, static_cast<int>(name)) + 1) ==
                      word_for(peer, message));
        if (WITH(FAULT_wrong_shuttle) && name >= SHC_WINDOWS)
            name = other_name(name);
        shc_window_return(mine, peer, name, sizeof(shc_word));
    }

    static const uint64_t kNames = SHC_WINDOW_NAMES + 1, kItIsAhead = 1 << 20;

    static uint32_t other_name(uint32_t name)
    {
        return (shc_window_is_ferry(name) ? SHC_FERRY_OURS + SHC_FERRY_THEIRS
                                          : SHC_SHUTTLE_OURS + SHC_SHUTTLE_THEIRS) -
               name;
    }

    static shc_word *word_of(const shc_pairs &view, int sender, int receiver, int name)
    {
        return reinterpret_cast<shc_word *>(
            shc_window(&view, sender, receiver, static_cast<uint32_t>(name)));
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
        for (const shc_line_shm &line : mailboxes_now[rank].shuttle_lines)
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
    return model_main<Shuttles>(argc, argv, 100000);
}
