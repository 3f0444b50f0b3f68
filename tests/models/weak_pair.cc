// SPDX-License-Identifier: BSD-3-Clause
//
// Pair lines and eager buffers (windows) under weak memory: what is read is what was stored, and nothing
// is refilled before it has been read.
//
// Runs the real src/shm/proto/pair.c; docs/internals/protocol.md, P2P-2 to P2P-5 and P2P-16 to
// P2P-18, and edges pair/line, pair/taken, window/read. There are one sender, one receiver, one window
// and two windows of the eager pool (bulk windows). An even message takes the window, an odd one a bulk
// window. A message goes in its line while the receiver still has these. There are two lines, so that
// they are used again, or eight, so that no line says that a window has been read. Line and window are
// plain memory: relacy reports a race where no edge orders two accesses. Rings are weak_bell's.
//
// FAULT_post_relaxed      the sender's store of a line's number is relaxed
// FAULT_peek_relaxed      the receiver's load of a line's number is relaxed
// FAULT_take_relaxed      the receiver's store of `taken` is relaxed
// FAULT_draft_relaxed     the sender's load of `taken` is relaxed
// FAULT_return_relaxed    the receiver's store of a window's word is relaxed
// FAULT_reclaim_relaxed   the sender's load of a window's word is relaxed
// FAULT_return_early      the receiver gives the window back before it has read it
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
const uint64_t kMessages = 7, kNames = SHC_WINDOW_NAMES + 1;
const int kSender = 0, kReceiver = 1, kRanks = 2;

struct Mailbox {
    char bell[SHC_LINE_BYTES];
    shc_ack_shm acks[kRanks];
    shc_line_shm lines[kRanks * kLines], shuttle_lines[kRanks]; // no shuttles
    shc_word windows[SHC_WINDOWS], bulk[SHC_BULK_WINDOWS];
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
                         offsetof(Mailbox, shuttle_lines), offsetof(Mailbox, windows),
                         offsetof(Mailbox, bulk), 0, sizeof(Mailbox)});
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
        const int window = shc_window_lend(&pairs[kSender], kReceiver, message % 2 == 0);
        if (window >= 0)
            shc_word_put(window_of(pairs[kSender], window), message);
        shc_word_put(&line->word, message * kNames + static_cast<uint64_t>(window + 1));
        shc_pair_post(&pairs[kSender], kReceiver, line, window);
        return true;
    }

    bool receive(uint64_t message)
    {
        shc_pairs *mine = &pairs[kReceiver];
        const shc_line_shm *line = shc_pair_peek(mine, kSender).line;
        if (!line)
            return false;
        if (WITH(FAULT_take_early))
            shc_pair_take(mine, kSender, SHC_NO_WINDOW);
        const uint64_t word = shc_word_get(&line->word);
        RL_ASSERT(word / kNames == message);
        if (word % kNames > 0) {
            const int name = static_cast<int>(word % kNames) - 1;
            if (WITH(FAULT_return_early))
                shc_window_return(mine, kSender, static_cast<uint32_t>(name), sizeof(shc_word));
            RL_ASSERT(shc_word_get(window_of(*mine, name)) == message);
            if (!WITH(FAULT_return_early))
                shc_window_return(mine, kSender, static_cast<uint32_t>(name), sizeof(shc_word));
        }
        if (!WITH(FAULT_take_early))
            shc_pair_take(mine, kSender, SHC_NO_WINDOW);
        return true;
    }

    static shc_word *window_of(const shc_pairs &view, int name)
    {
        return reinterpret_cast<shc_word *>(
            shc_window(&view, kSender, kReceiver, static_cast<uint32_t>(name)));
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

enum class Word { kNumber, kTaken, kWindow };

Word word_of(const void *address)
{
    for (int rank = 0; rank < kRanks; rank++)
        for (const shc_ack_shm &ack : mailboxes_now[rank].acks) {
            if (address == &ack.taken)
                return Word::kTaken;
            if (address == &ack.windows[0] || address == &ack.bulk)
                return Word::kWindow;
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
                      (WITH(FAULT_return_relaxed) && word == Word::kWindow && release) ||
                      (WITH(FAULT_reclaim_relaxed) && word == Word::kWindow && !release);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Mail>(argc, argv, 100000);
}
