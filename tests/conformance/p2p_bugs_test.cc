// SPDX-License-Identifier: BSD-3-Clause

// Point-to-point bugs that were found. Each case makes by hand the
// moment that the bug needs.
#include "tests/support/messages.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

extern "C" {
#include "shm/comm/request.h"
#include "shm/proto/member.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kSmall = 8, kOneBuffer = 16000, kBig = 1 << 20;
const uint64_t kSecond = 1000ULL * 1000 * 1000;

// One send or receive of bytes.
struct Message : ByteMessage {
    Message(shc_op_kind kind, int peer, int tag, size_t count, uint64_t timeout_ns = 0)
        : ByteMessage(kind, peer, tag,
                      std::vector<unsigned char>(
                          count, kind == SHC_SEND ? static_cast<unsigned char>(tag) : 0xee))
    {
        op.timeout_ns = timeout_ns;
    }

    shc_status run(Rank &rank) { return shc_run(rank.comm, &op); }
    bool arrived() const
    {
        return bytes ==
               std::vector<unsigned char>(bytes.size(), static_cast<unsigned char>(op.tag));
    }
};

template <typename Condition>
bool within_seconds(int seconds, const Condition &condition)
{
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until)
            return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

int pending(Rank &rank)
{
    shc_p2p_lock(&rank.comm->p2p);
    int count = (int)shc_p2p_pending(&rank.comm->p2p);
    shc_p2p_unlock(&rank.comm->p2p);
    return count;
}

// An interrupt callback that delays the one thread for which it is meant, like an interpreter whose lock
// another thread keeps.
struct Held {
    std::thread::id whom;
    std::atomic<bool> inside{false}, release{false};

    static bool ask(void *ctx)
    {
        auto *held = static_cast<Held *>(ctx);
        if (std::this_thread::get_id() != held->whom)
            return false;
        held->inside = true;
        while (!held->release)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return false;
    }
};

// Rank 0 has a thread that waits for message 1 and is delayed; `then` runs while it is.
template <typename Then>
void with_held_waiter(Rank &rank, const Then &then)
{
    Held held;
    std::atomic<bool> known{false};
    rank.comm->seat.interrupted_ctx = &held;
    rank.comm->seat.interrupted = Held::ask;
    std::thread waiter([&] {
        held.whom = std::this_thread::get_id();
        known = true;
        EXPECT_EQ(Message(SHC_RECV, 1, 1, kSmall).run(rank), SHC_OK) << error_text();
    });
    EXPECT_TRUE(within_seconds(20, [&] { return held.inside.load(); }));
    then(held);
    held.release = true;
    waiter.join();
    rank.comm->seat.interrupted = nullptr;
}

// The progress thread slept on for its 10 s when the last waiting thread left a submission that had relied
// on it.
TEST(P2pBugs, AWaiterThatLeavesLeavesAnProgressThreadThatIsAwake)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        if (rank.rank == 1) {
            EXPECT_EQ(Message(SHC_RECV, 0, 9, kSmall).run(rank), SHC_OK);
            EXPECT_EQ(Message(SHC_SEND, 0, 1, kSmall).run(rank), SHC_OK);
            Message in(SHC_RECV, 0, 2, kBig, 5 * kSecond);
            EXPECT_EQ(in.run(rank), SHC_OK) << error_text();
            EXPECT_TRUE(in.arrived());
            return;
        }
        std::unique_ptr<Message> out;
        with_held_waiter(rank, [&](Held &) {
            EXPECT_EQ(Message(SHC_SEND, 1, 9, kSmall).run(rank), SHC_OK);
            EXPECT_TRUE(within_seconds(20, [&] { // each submission makes a pass
                EXPECT_EQ(Message(SHC_SEND, 0, 8, 0).run(rank), SHC_OK);
                return pending(rank) == 0;
            }));
            shc_bell_shm *bell = &rank.comm->p2p.progress_bell;
            EXPECT_TRUE(within_seconds(20, [&] { return shc_a32_load_acquire(&bell->flag) == 1; }));
            out = std::make_unique<Message>(SHC_SEND, 1, 2, kBig);
            out->start(rank);
        });
        EXPECT_TRUE(within_seconds(20, [&] { return out->done(); }));
    });
}

// While a waiting thread was delayed, no thread moved the messages of the others.
TEST(P2pBugs, AWaiterThatIsHeldUpHoldsUpNobodyElse)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        if (rank.rank == 1) {
            Message in(SHC_RECV, 0, 2, kBig, 5 * kSecond);
            EXPECT_EQ(in.run(rank), SHC_OK) << error_text();
            EXPECT_TRUE(in.arrived());
            EXPECT_EQ(Message(SHC_SEND, 0, 1, kSmall).run(rank), SHC_OK);
            return;
        }
        with_held_waiter(rank, [&](Held &) {
            Message out(SHC_SEND, 1, 2, kBig);
            out.start(rank);
            EXPECT_TRUE(within_seconds(10, [&] { return out.done(); }));
        });
    });
}

// While another thread of the rank was just failing the group, a message's time-out ended all requests.
// Then it checked the next one, which was over and out of its queue.
TEST(P2pBugs, ATimeOutBesideAnotherFailureJudgesNothingThatIsOver)
{
    std::atomic<bool> over{false};
    run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
        if (rank.rank == 1) {
            EXPECT_TRUE(within_seconds(20, [&] { return over.load(); }));
            return;
        }
        const uint32_t lines = rank.comm->seat.mail.lines;
        for (uint32_t i = 0; i < lines; i++) // one goes by hand-off buffer, and one line is left
            EXPECT_EQ(Message(SHC_SEND, 1, 1, kSmall).run(rank), SHC_OK);
        Message announced(SHC_SEND, 1, 2, kBig, kSecond / 10);
        Message queued(SHC_SEND, 1, 3, kSmall, kSecond / 10);
        // It has taken the reason's line, and has not set the abort word yet. (Before the messages: their
        // time may be over as soon as they are there, on a busy machine.)
        shc_a32_exchange_acq_rel(&rank.comm->seat.reason_used, 1);
        announced.start(rank);
        queued.start(rank);
        EXPECT_EQ(shc_request_wait(announced.request, 0), SHC_ERR_TIMEOUT);
        EXPECT_EQ(shc_request_wait(queued.request, 0), SHC_ERR_TIMEOUT);
        over = true;
    });
}

// A pass read as many lines as there are in turn, and a pair has two more with those of its hand-off buffers. So a
// delayed rank said that something was missing that another rank had sent before it left.
TEST(P2pBugs, OnePassReadsAllThatWhoHasLeftHasSent)
{
    for (int others : {1, 2}) {
        std::atomic<bool> posted{false}, left{false};
        run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
            const int peer = 1 - rank.rank;
            const int count = static_cast<int>(rank.comm->seat.mail.lines) + others;
            if (others == 2) { // rank 1's is with rank 0 then
                EXPECT_EQ(Message(rank.rank == 1 ? SHC_SEND : SHC_RECV, peer, 99, kSmall).run(rank),
                          SHC_OK);
            }
            if (rank.rank == 0) {
                EXPECT_TRUE(within_seconds(20, [&] { return posted.load(); }));
                for (int i = 0; i < count; i++)
                    EXPECT_EQ(Message(SHC_SEND, 1, i, kSmall).run(rank), SHC_OK) << error_text();
                shc_comm_close(rank.comm);
                left = true;
                return;
            }
            std::vector<std::unique_ptr<Message>> in;
            for (int i = 0; i < count; i++) {
                in.push_back(std::make_unique<Message>(SHC_RECV, 0, i, kSmall));
                in.back()->start(rank);
            }
            shc_p2p_lock(&rank.comm->p2p); // as if it were stopped
            posted = true;
            EXPECT_TRUE(within_seconds(20, [&] { return left.load(); }));
            shc_os_sleep_ns(kSecond / 50);
            shc_p2p_unlock(&rank.comm->p2p);
            for (auto &message : in)
                EXPECT_EQ(shc_request_wait(message->request, 0), SHC_OK) << error_text();
        });
    }
}

// The text of a wait's own time-out read the sender while another thread wrote it (found by a thread
// sanitizer).
TEST(P2pBugs, ATimedWaitReadsTheMessageUnderItsLock)
{
    run_ranks(Mode::kOneMapping, 2, [](Rank &rank) {
        const int end = rounds(2000);
        if (rank.rank == 1) {
            for (int round = 0; round < end; round++) {
                EXPECT_EQ(Message(SHC_RECV, 0, 9, 0).run(rank), SHC_OK) << error_text();
                EXPECT_EQ(Message(SHC_SEND, 0, 1, kSmall).run(rank), SHC_OK) << error_text();
            }
            return;
        }
        std::atomic<bool> over{false};
        rank.comm->seat.patience = {}; // waits that are mostly at their end
        std::thread other([&] {
            while (!over) { // an progress thread that never rests
                shc_p2p_lock(&rank.comm->p2p);
                shc_p2p_pass(&rank.comm->p2p, false);
                shc_p2p_unlock(&rank.comm->p2p);
            }
        });
        for (int round = 0; round < end; round++) {
            Message in(SHC_RECV, SHC_ANY_SOURCE, 1, kSmall);
            in.start(rank);
            EXPECT_EQ(Message(SHC_SEND, 1, 9, 0).run(rank), SHC_OK) << error_text();
            while (shc_request_wait(in.request, 1) == SHC_ERR_TIMEOUT)
                continue;
            EXPECT_TRUE(in.arrived()) << error_text();
        }
        over = true;
        other.join();
    });
}

// At the process's end a running pass was not waited for: LEAVING was published, and lines came after it.
// It is waited for only for some time, so a thread that had no CPU for that long publishes nothing.
TEST(P2pBugs, NothingIsPlacedAfterLeavingAtTheEndOfTheProcess)
{
    bool seen = false;
    for (int tries = 0; tries < 50 && !seen; tries++)
        run_ranks(Mode::kOwnMapping, 1, [&seen](Rank &rank) {
            std::atomic<bool> held{false};
            std::atomic<uint64_t> begun{0}, ended{0};
            std::thread other([&] {
                shc_p2p_lock(&rank.comm->p2p); // a pass
                begun = shc_clock_ns();
                held = true;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                shc_p2p_unlock(&rank.comm->p2p);
                ended = shc_clock_ns();
            });
            EXPECT_TRUE(within_seconds(20, [&] { return held.load(); }));
            shc_comm_begin_to_leave(rank.comm, 0); // an earlier group has used up the time
            const uint64_t left = shc_clock_ns();
            EXPECT_EQ(shc_member_look(&rank.comm->seat, 0), SHC_MEMBER_LEAVING);
            other.join();
            if (std::max<uint64_t>(left, ended) - begun > 15 * SHC_NS_PER_MS)
                return;
            seen = true;
            shc_p2p_lock(&rank.comm->p2p);
            EXPECT_TRUE(shc_p2p_is_closed(&rank.comm->p2p));
            shc_p2p_unlock(&rank.comm->p2p);
        });
    EXPECT_TRUE(seen);
}

// Buffers lent to a rank that left did not come back: the messages of all others went without.
TEST(P2pBugs, BuffersOfARankThatLeftComeBack)
{
    std::atomic<bool> checked{false};
    run_ranks(Mode::kOwnMapping, 3, [&](Rank &rank) {
        if (rank.rank == 2) {
            EXPECT_EQ(Message(SHC_RECV, 0, 7, 0).run(rank), SHC_OK) << error_text();
            return; // leaves, with a hand-off buffer and four buffers of rank 0
        }
        if (rank.rank == 1) {
            EXPECT_TRUE(within_seconds(20, [&] { return checked.load(); }));
            return;
        }
        EXPECT_EQ(Message(SHC_SEND, 1, 2, kOneBuffer).run(rank), SHC_OK)
            << "the hand-off buffer is gone";
        for (int i = 0; i < 1 + SHC_EAGER_UNASKED; i++)
            EXPECT_EQ(Message(SHC_SEND, 2, 1, kOneBuffer).run(rank), SHC_OK) << error_text();
        EXPECT_EQ(Message(SHC_SEND, 2, 7, 0).run(rank), SHC_OK) << error_text();
        EXPECT_TRUE(within_seconds(
            20, [&] { return shc_member_look(&rank.comm->seat, 2) == SHC_MEMBER_LEFT; }));
        Message out(SHC_SEND, 1, 1, kOneBuffer);
        out.start(rank);
        EXPECT_TRUE(out.done()) << "a message that nobody has asked for found no buffer";
        checked = true;
    });
}

// A send that has passed the check is measured while another thread closes the group and unmaps it.
TEST(P2pBugs, ASendBesideTheCloseEndsAsClosed)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        if (rank.rank == 1)
            return;
        const int64_t none = 0, one = 1;
        uint8_t byte = 0;
        const size_t many = static_cast<size_t>(rounds(4000000));
        std::vector<shc_tensor> list(many, shc_tensor{&byte, 1, &none, nullptr}); // takes long
        list.back().sizes = &one;
        shc_op op = {};
        op.kind = SHC_SEND;
        op.dtype = SHC_UINT8;
        op.peer = 1;
        op.input = {list.data(), static_cast<uint32_t>(list.size())};
        std::thread closer([&] {
            shc_os_sleep_ns(3 * SHC_NS_PER_MS);
            shc_comm_close(rank.comm);
        });
        const shc_status status = shc_run(rank.comm, &op);
        EXPECT_TRUE(status == SHC_ERR_CLOSED || status == SHC_ERR_PEER_LEFT) << error_text();
        closer.join();
    });
}

// Lines that become free between two looks at them: a message without bytes then used a rendezvous, and its
// receiver waited for the rest. It takes many messages until that happens.
TEST(P2pBugs, EmptyMessagesThatFindNoLineAtFirstArrive)
{
    const int count = 3000, turns = 4;
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            for (int turn = 0; turn < turns; turn++) {
                std::vector<std::unique_ptr<Message>> messages;
                for (int i = 0; i < count && rank.rank == 0; i++) {
                    messages.push_back(std::make_unique<Message>(SHC_SEND, 1, 0, 0));
                    messages.back()->start(rank);
                }
                for (auto &message : messages)
                    ASSERT_EQ(shc_request_wait(message->request, 0), SHC_OK) << error_text();
                for (int i = 0; i < count && rank.rank == 1; i++)
                    ASSERT_EQ(Message(SHC_RECV, 0, 0, 0).run(rank), SHC_OK) << error_text();
            }
        });
}

// Each end of a message woke the engine thread that an asynchronous collective had made, which found
// nothing to do: a sendrecv took 28 us instead of 7 from then on.
TEST(P2pBugs, MessagesLetTheEngineThreadSleep)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_bell_shm &work = rank.comm->engine.work;
            shc_op barrier = {};
            barrier.kind = SHC_BARRIER;
            shc_request *request = nullptr;
            ASSERT_EQ(shc_submit(rank.comm, &barrier, nullptr, &request), SHC_OK);
            ASSERT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
            shc_request_release(request);
            ASSERT_TRUE(within_seconds(5, [&] { return shc_a32_load_acquire(&work.flag) == 1; }));
            const uint32_t rung = shc_a32_load_acquire(&work.count);
            for (int turn = 0; turn < 100; turn++) {
                Message in(SHC_RECV, 1 - rank.rank, turn, kSmall);
                Message out(SHC_SEND, 1 - rank.rank, turn, kSmall);
                in.start(rank);
                out.start(rank);
                ASSERT_EQ(shc_request_wait(in.request, 0), SHC_OK) << error_text();
                ASSERT_EQ(shc_request_wait(out.request, 0), SHC_OK) << error_text();
                EXPECT_TRUE(in.arrived());
            }
            EXPECT_EQ(shc_a32_load_acquire(&work.count), rung);
        });
}

// ---- many pending messages ----

// While it lives, a walk past the message crashes.
struct EndOfWalk {
    shc_message &message;
    shc_message *const next;

    explicit EndOfWalk(const Message &of) : message(of.request->message), next(message.next)
    {
        EXPECT_NE(next, nullptr);
        message.next = reinterpret_cast<shc_message *>(64);
    }
    EndOfWalk(const EndOfWalk &) = delete;
    ~EndOfWalk() { message.next = next; }
};

// What a pass does of the lines, without its looks at deadlines: those are at all messages, but rare.
void move_lines(shc_comm *comm, bool writes = true)
{
    shc_p2p_lock(&comm->p2p);
    shc_p2p_read_lines(&comm->p2p, 1 - comm->seat.rank);
    if (writes)
        shc_p2p_write_lines(&comm->p2p, 1 - comm->seat.rank);
    shc_p2p_unlock(&comm->p2p);
}

struct Many {
    std::vector<std::unique_ptr<Message>> messages;

    // Meanwhile the peer reads lines.
    Many(shc_comm *comm, shc_op_kind kind, size_t bytes, shc_comm *peer = nullptr)
    {
        for (int tag = 0; tag < 64; tag++) {
            messages.push_back(
                std::make_unique<Message>(kind, 1 - comm->seat.rank, tag, bytes, 60 * kSecond));
            messages.back()->start(comm);
            if (peer)
                move_lines(peer, false);
        }
    }
    // The first of them that pends, in that state.
    size_t first(shc_message_state state) const
    {
        size_t i = 0;
        while (i < messages.size() &&
               (messages[i]->done() || messages[i]->request->message.state != state))
            i++;
        EXPECT_LT(i, messages.size());
        return i;
    }
    Message &operator[](size_t i) { return *messages[i]; }
    void expect_arrived() const
    {
        for (const auto &message : messages)
            EXPECT_TRUE(message->done() && message->arrived()) << message->op.tag;
    }
};

// Each pass walked past all sends that waited for CTS: a burst of 8000 took seconds.
TEST(P2pBugs, NoPassWalksPastAnnouncedSends)
{
    by_one_thread([](const Comms &comms) {
        Message other(SHC_RECV, 0, 99, kSmall), last(SHC_SEND, 1, 99, kSmall);
        other.start(comms[1]);
        Many out(comms[0], SHC_SEND, 400);
        pass_in_turns(comms, 100);
        const size_t first = out.first(SHC_MESSAGE_ANNOUNCED);
        std::vector<std::unique_ptr<Message>> in;
        for (size_t tag = 0; tag <= first; tag++) {
            in.push_back(std::make_unique<Message>(SHC_RECV, 0, (int)tag, 400));
            in.back()->start(comms[1]);
        }
        {
            const EndOfWalk no_further(out[first + 1]);
            for (int i = 0; i < 4; i++)
                move_lines(comms[i % 2]);
            EXPECT_TRUE(out[first].done()) << "its CTS was not found";
        }
        last.start(comms[0]);
        for (size_t tag = first + 1; tag < out.messages.size(); tag++) {
            in.push_back(std::make_unique<Message>(SHC_RECV, 0, (int)tag, 400));
            in.back()->start(comms[1]);
        }
        pass_in_turns(comms, 200);
        EXPECT_TRUE(other.done() && other.arrived());
        for (const auto &message : in)
            EXPECT_TRUE(message->done() && message->arrived()) << message->op.tag;
    });
}

// Nor past receives whose bytes are on their way, nor past sends that follow one for which no line is free.
TEST(P2pBugs, NoPassWalksPastMessagesThatFollow)
{
    by_one_thread([](const Comms &comms) {
        settle_trials(comms[0]->p2p);
        Message other(SHC_RECV, 0, 99, kSmall);
        other.start(comms[1]);
        Many out(comms[0], SHC_SEND, kBig);
        pass_in_turns(comms, 100);
        Many in(comms[1], SHC_RECV, kBig, comms[0]);
        const size_t streams = out.first(SHC_MESSAGE_STREAMING),
                     fills = in.first(SHC_MESSAGE_FILLING);
        for (int i = 0; i < 4; i++) {
            const EndOfWalk no_further(out[streams + 8]), nor_here(in[fills + 8]);
            move_lines(comms[i % 2]);
        }
        for (int i = 0; i < 5000 && !in[63].done(); i++)
            pass(comms[i % 2]);
        in.expect_arrived();
        Message last(SHC_SEND, 1, 99, kSmall);
        last.start(comms[0]);
        pass_in_turns(comms, 10);
        EXPECT_TRUE(other.done() && other.arrived());
    });
}

} // namespace
