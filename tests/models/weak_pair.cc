// SPDX-License-Identifier: BSD-3-Clause
//
// Pair lines, eager buffers and the pool under weak memory: what is read is what was stored, and nothing
// is refilled before it has been read.
//
// Runs the real src/shm/proto/pair.c; docs/internals/protocol/messages.md, P2P-2 to P2P-5, P2P-16 and
// P2P-17, and edges pair/line, pair/taken, buffer/read. There are one sender, one receiver, one eager
// buffer and a pool of two. An even message takes the eager buffer, an odd one the next of the pool. A
// message goes in its line while the receiver still has these. There are two lines, so that they are used
// again, or eight, so that no line says that a buffer has been read. Line and buffer are plain memory:
// relacy reports a race where no edge orders two accesses. Rings are weak_bell's.
//
// FAULT_post_relaxed      the sender's store of a line's number is relaxed
// FAULT_peek_relaxed      the receiver's load of a line's number is relaxed
// FAULT_take_relaxed      the receiver's store of `taken` is relaxed
// FAULT_draft_relaxed     the sender's load of `taken` is relaxed
// FAULT_return_relaxed    the receiver's store of a buffer's word is relaxed
// FAULT_reclaim_relaxed   the sender's load of a buffer's word is relaxed
// FAULT_return_early      the receiver gives the buffer back before it has read it
// FAULT_take_early        the receiver has taken the line before it has read it

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/proto/pair.h"

#undef calloc // C allows what C++ does not
#undef free
#define calloc(count, bytes) static_cast<shc_pair *>(std::calloc(count, bytes))
#define free                 std::free
#include "shm/proto/pair.c"

#include "tests/models/mailboxes.h"

namespace
{

const uint32_t kFewLines = 2, kLines = 8;
const uint64_t kMessages = 7, kPlaces = SHC_MEMORIES * SHC_POOL_BUFFERS;
const int kSender = 0, kReceiver = 1, kRanks = 2;

struct Mailbox {
    char bell[SHC_LINE_BYTES];
    shc_ack_shm acks[kRanks];
    shc_line_shm lines[kRanks * kLines], hand_off_lines[kRanks]; // there are no hand-off buffers
    shc_word eager[SHC_EAGER_BUFFERS], pool[SHC_POOL_BUFFERS], long_hand_off[2];
};

const Mailbox *mailboxes_now;

struct Mail : rl::test_suite<Mail, kRanks> {
    Mailbox mailboxes[kRanks];
    shc_seat seats[kRanks];
    shc_pairs pairs[kRanks];

    void before()
    {
        mailboxes_now = mailboxes;
        begin_mailboxes(mailboxes, seats, pairs,
                        {rl::rand(2) ? kLines : kFewLines, offsetof(Mailbox, lines),
                         offsetof(Mailbox, hand_off_lines), offsetof(Mailbox, eager),
                         offsetof(Mailbox, pool), 0, 0, sizeof(Mailbox)});
    }

    void after()
    {
        for (shc_pairs &each : pairs)
            shc_pairs_fini(&each);
    }

    bool send(uint64_t message)
    {
        shc_line_shm *line = shc_pair_draft(&pairs[kSender], kReceiver);
        if (!line)
            return false;
        const shc_place place = lend(&pairs[kSender], message);
        if (place.memory != SHC_IN_LINE)
            shc_word_put(buffer_of(pairs[kSender], place), message);
        shc_word_put(&line->word,
                     message * kPlaces + place.memory * SHC_POOL_BUFFERS + place.index);
        shc_pair_post(&pairs[kSender], kReceiver, line, place);
        return true;
    }

    bool receive(uint64_t message)
    {
        shc_pairs *mine = &pairs[kReceiver];
        const shc_pair_found found = shc_pair_peek(mine, kSender);
        if (!found.line)
            return false;
        if (WITH(FAULT_take_early))
            shc_pair_take(mine, kSender, found);
        const uint64_t word = shc_word_get(&found.line->word);
        RL_ASSERT(word / kPlaces == message);
        const shc_place place = {static_cast<uint8_t>(word % kPlaces / SHC_POOL_BUFFERS),
                                 static_cast<uint8_t>(word % SHC_POOL_BUFFERS)};
        RL_ASSERT(shc_place_exists(mine, kSender, place));
        if (place.memory != SHC_IN_LINE) {
            if (WITH(FAULT_return_early))
                shc_place_return(mine, kSender, place);
            RL_ASSERT(shc_word_get(buffer_of(*mine, place)) == message);
            if (!WITH(FAULT_return_early))
                shc_place_return(mine, kSender, place);
        }
        if (!WITH(FAULT_take_early))
            shc_pair_take(mine, kSender, found);
        return true;
    }

    static shc_place lend(shc_pairs *mine, uint64_t message)
    {
        if (message % 2 == 0)
            return shc_eager_lend(mine, kReceiver, SHC_EAGER_WHOLE);
        RL_ASSERT(shc_pair_has_pool(mine, kReceiver));
        return shc_pool_lend(mine, kReceiver);
    }

    static shc_word *buffer_of(const shc_pairs &view, shc_place place)
    {
        return reinterpret_cast<shc_word *>(shc_place_at(&view, kSender, kReceiver, place));
    }

    void thread(unsigned index)
    {
        for (uint64_t message = 0; message < kMessages;) {
            bool moved = index == kSender ? send(message) : receive(message);
            message += moved;
            if (!moved)
                rl::yield(1, $);
        }
    }
};

enum class Word { kNumber, kTaken, kBuffer };

Word word_of(const void *address)
{
    for (int rank = 0; rank < kRanks; rank++)
        for (const shc_ack_shm &ack : mailboxes_now[rank].acks) {
            if (address == &ack.taken)
                return Word::kTaken;
            if (address == &ack.eager[0] || address == &ack.pool)
                return Word::kBuffer;
        }
    return Word::kNumber;
}

} // namespace

shc_status shc_fail(shc_status status, const char *, ...)
{
    return status;
}

ModelOrder model_order(const void *address, ModelOrder order, uint64_t)
{
    const Word word = word_of(address);
    const bool release = order == rl::mo_release;
    const bool weak = (WITH(FAULT_post_relaxed) && word == Word::kNumber && release) ||
                      (WITH(FAULT_peek_relaxed) && word == Word::kNumber && !release) ||
                      (WITH(FAULT_take_relaxed) && word == Word::kTaken && release) ||
                      (WITH(FAULT_draft_relaxed) && word == Word::kTaken && !release) ||
                      (WITH(FAULT_return_relaxed) && word == Word::kBuffer && release) ||
                      (WITH(FAULT_reclaim_relaxed) && word == Word::kBuffer && !release);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Mail>(argc, argv, 100000);
}
