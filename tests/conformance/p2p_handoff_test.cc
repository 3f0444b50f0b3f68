// SPDX-License-Identifier: BSD-3-Clause

// Hand-off buffers, short and long, which two ranks fill in
// turn, and the pool (the large eager pool), which are used in turn. In any order of sends, and
// whatever is put aside or given up meanwhile, each message has its own bytes. Ranks as threads and as
// processes.
#include "tests/support/messages.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <vector>

extern "C" {
#include "shm/base/clock.h"
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
}

using namespace shmcoll::test;

namespace
{

// One send or receive of bytes that tell their rank and their message.
struct Message : ByteMessage {
    std::vector<unsigned char> wanted;

    Message(shc_op_kind kind, int sender, int peer, int number, size_t count)
        : ByteMessage(kind, peer, number, std::vector<unsigned char>(count, 0xee)), wanted(count)
    {
        for (size_t i = 0; i < count; i++)
            wanted[i] = static_cast<unsigned char>(i / 32768 * 13 + i / 64 + i * 7 +
                                                   static_cast<size_t>(number) * 31 +
                                                   static_cast<size_t>(sender) * 101);
        if (kind == SHC_SEND)
            std::copy(wanted.begin(), wanted.end(), bytes.begin());
    }

    void run(Rank &rank)
    {
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        check();
    }
    void end()
    {
        ASSERT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
        check();
    }
    void check() const
    {
        EXPECT_TRUE(bytes == wanted) << "message " << op.tag << " of " << size << " bytes";
    }
};

const int kTurns = 400;

// To the other rank and back.
uint64_t told(Rank &rank, int tag, uint64_t mine)
{
    uint64_t theirs = 0;
    int64_t size = sizeof mine;
    const shc_tensor given = {&mine, 1, &size, nullptr}, got = {&theirs, 1, &size, nullptr};
    shc_op op = {};
    op.dtype = SHC_UINT8;
    op.peer = 1 - rank.rank;
    op.tag = tag;
    op.input = {&given, 1};
    op.output = {&got, 1};
    for (int step = 0; step < 2; step++) {
        op.kind = (step == 0) == (rank.rank == 0) ? SHC_SEND : SHC_RECV;
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    }
    return theirs;
}

// Messages through lines, hand-off and eager buffers; between two ranks alone now and then by long buffer, too.
size_t some_bytes(std::mt19937 &random, int world)
{
    static const size_t counts[] = {0, 8, 88, 89, 100, 1000, 5000, 16383, 16384, 16385, 40000};
    static const size_t large[] = {131072, 131073, 200001, 400000, 524289, 700000};
    if (world == 2 && random() % 16 == 0)
        return large[random() % (sizeof large / sizeof large[0])];
    return counts[random() % (sizeof counts / sizeof counts[0])];
}

void back_and_forth(Rank &rank, int peer, int number, size_t bytes)
{
    Message there(SHC_SEND, rank.rank, peer, number, bytes);
    Message back(SHC_RECV, peer, peer, number, bytes);
    if (rank.rank < peer) {
        there.run(rank);
        back.run(rank);
    } else {
        back.run(rank);
        there.run(rank);
    }
}

// Messages in a row, which are then received in the opposite order: each hand-off and eager buffer lies with a
// message that was put aside.
void burst(Rank &rank, int peer, bool sends, int number, int count, size_t bytes)
{
    std::vector<std::unique_ptr<Message>> messages;
    for (int i = 0; i < count; i++) {
        const int which = sends ? i : count - 1 - i;
        const int sender = sends ? rank.rank : peer;
        messages.push_back(std::make_unique<Message>(sends ? SHC_SEND : SHC_RECV, sender, peer,
                                                     number * 16 + which, bytes));
        messages.back()->start(rank);
    }
    for (auto &message : messages)
        message->end();
}

// Both send before they receive: hand-off buffers cross on their way.
void swap(Rank &rank, int peer, int number, size_t bytes)
{
    Message there(SHC_SEND, rank.rank, peer, number, bytes);
    there.start(rank);
    Message(SHC_RECV, peer, peer, number, bytes).run(rank);
    there.end();
}

void talk(Rank &rank, int peer, unsigned seed)
{
    std::mt19937 random(seed);
    for (int turn = 0; turn < kTurns && !testing::Test::HasFatalFailure(); turn++) {
        const size_t bytes = some_bytes(random, rank.world);
        const unsigned what = random() % 4;
        const bool lower_sends = random() % 2 == 0;
        if (what == 0)
            burst(rank, peer, lower_sends == (rank.rank < peer), turn,
                  1 + static_cast<int>(random() % 8), bytes);
        else if (what == 1)
            swap(rank, peer, turn, bytes);
        else
            back_and_forth(rank, peer, turn, bytes);
    }
}

TEST(HandOff, GoBackAndForthUnderAnyTraffic)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) { talk(rank, 1 - rank.rank, 1); });
}

TEST(HandOff, OfEachPairAreItsOwn)
{
    for (Mode mode : modes())
        run_ranks(mode, 3, [](Rank &rank) {
            for (int low = 0; low < 3; low++) // each pair in turn
                for (int high = low + 1; high < 3; high++)
                    if (rank.rank == low || rank.rank == high)
                        talk(rank, rank.rank == low ? high : low,
                             static_cast<unsigned>(low + high));
        });
}

// A message that is too long for one goes through lines and buffers; the next one, which is not, does not.
TEST(HandOff, OfManyRanksAreShort)
{
    for (const auto &[world, bytes] : {std::pair{4, 16384u}, {5, 4096u}, {8, 2048u}, {16, 512u}}) {
        run_ranks(Mode::kOwnMapping, world, [&](Rank &rank) {
            const shc_mail_geometry &mail = rank.comm->seat.mail;
            EXPECT_EQ(static_cast<int>(mail.hand_offs), world);
            EXPECT_EQ(mail.hand_off_bytes, bytes);
            const shc_pairs &pairs = rank.comm->p2p.pairs;
            const char *mailbox =
                rank.comm->seat.segment.base + shc_seat_mail_offset(&rank.comm->seat, rank.rank);
            for (int other = 0; other < world; other++) // as many as there are, adjacent
                EXPECT_EQ(shc_hand_off_at(&pairs, rank.rank, other, SHC_OURS) + bytes,
                          mailbox + mail.total_bytes - (world - 1 - other) * bytes);
            const int peer = rank.rank ^ 1;
            if (peer >= world)
                return;
            const shc_pair &pair = pairs.pairs[peer];
            const size_t counts[] = {8, bytes, 89, bytes - 1};
            for (int turn = 0; turn < 16; turn++)
                back_and_forth(rank, peer, turn, counts[turn % 4]);
            EXPECT_EQ(pair.turns_out, 0u);
            for (int turn = 16; turn < 32; turn++)
                back_and_forth(rank, peer, turn, counts[turn % 4] + bytes);
            EXPECT_GE(pair.turns_out, 16u);
        });
    }
}

TEST(HandOff, AreNotMissedWhereThereAreNone)
{
    const int world = SHC_HAND_OFF_RANKS + 1;
    run_ranks(Mode::kOwnMapping, world, [&](Rank &rank) {
        EXPECT_EQ(rank.comm->seat.mail.hand_offs, 0u);
        for (int turn = 0; turn < 20 && rank.rank < 2; turn++)
            back_and_forth(rank, 1 - rank.rank, turn, turn % 2 ? 89 : 16384);
    });
}

// The reply lies in the memory that the message came in, whatever its size: that is what a hand-off buffer is for.
// Nothing else is stored to: no line in turn, and no word of what was read.
TEST(HandOff, CarryTheReplyInTheLinesOfTheMessage)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const shc_pair *pair = &rank.comm->p2p.pairs.pairs[1 - rank.rank];
        const size_t counts[] = {0, 24, 25, 88, 89, 4096, 16384};
        for (int turn = 0; turn < 14; turn++) {
            back_and_forth(rank, 1 - rank.rank, turn, counts[turn % 7]);
            // Rank 0's went back and forth; rank 1 has kept its own for a message that is no answer.
            EXPECT_EQ(pair->hand_offs.where[0], SHC_HERE) << "its own, rank " << rank.rank;
            EXPECT_EQ(pair->hand_offs.where[1], SHC_AWAY) << "the other's, rank " << rank.rank;
        }
        EXPECT_EQ(pair->sent, 14u);
        EXPECT_EQ(pair->turns_out, 0u);
        EXPECT_EQ(pair->turns_in, 0u);
    });
}

// A rank without memory for its own mailbox's buffers answers in what the other one has sent, and uses
// lines for the rest.
TEST(HandOff, NeedTheMemoryOfOneRank)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        shc_pairs &pairs = rank.comm->p2p.pairs;
        const shc_pair *pair = &pairs.pairs[1 - rank.rank];
        if (rank.rank == 1)
            pairs.tried = true; // and had none
        const size_t counts[] = {0, 24, 25, 4096, 16384};
        for (int turn = 0; turn < 10; turn++)
            back_and_forth(rank, 1 - rank.rank, turn, counts[turn % 5]);
        EXPECT_EQ(pair->turns_out, 0u);
        for (int turn = 10; turn < 20; turn++) { // of its own accord
            Message first(rank.rank == 1 ? SHC_SEND : SHC_RECV, 1, 1 - rank.rank, turn,
                          counts[turn % 5]);
            first.run(rank);
            EXPECT_EQ(pair->hand_offs.where[0], SHC_HERE) << rank.rank << " " << turn;
            EXPECT_EQ(pair->hand_offs.where[1], SHC_AWAY) << rank.rank << " " << turn;
        }
        if (rank.rank == 1) {
            EXPECT_GE(pair->turns_out, 10u);
        }
        for (int turn = 20; turn < 30; turn++)
            back_and_forth(rank, 1 - rank.rank, turn, counts[turn % 5]);
    });
}

// One of many that only their order distinguishes.
void of_one_tag(Rank &rank, int sender, int number, size_t bytes)
{
    Message message(sender == rank.rank ? SHC_SEND : SHC_RECV, sender, 1 - rank.rank, number,
                    bytes);
    message.op.tag = 0;
    message.run(rank);
}

// A message by hand-off buffer, and those in lines in turn before and after it, are received in their order.
TEST(HandOff, ComeInTurnWithTheLines)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const shc_pair *pair = &rank.comm->p2p.pairs.pairs[1 - rank.rank];
            for (int turn = 0; turn < 200; turn++)
                for (int sender : {0, 1})
                    for (int i = 0; i < 1 + turn % 5; i++)
                        of_one_tag(rank, sender, turn * 8 + i, i % 2 ? 100 : 8);
            EXPECT_GT(pair->turns_out, 0u);
            EXPECT_LT(pair->turns_out, pair->sent);
        });
}

// Of many short messages in a row only the first ones go by hand-off buffer, before it is known that there are
// many.
TEST(HandOff, AreLeftToMessagesThatAreAnswered)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const shc_pair *pair = &rank.comm->p2p.pairs.pairs[1 - rank.rank];
        for (int turn = 0; turn < 4; turn++) {
            for (int i = 0; i < 5; i++)
                Message(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, 1 - rank.rank, i, 8).run(rank);
            Message(rank.rank == 1 ? SHC_SEND : SHC_RECV, 1, 1 - rank.rank, 5, 8).run(rank);
        }
        if (rank.rank == 0) {
            EXPECT_EQ(pair->sent - pair->turns_out, 1u);
        }
    });
}

// A second thread wants the lock while the first one looks for its answer under it. The first one notices,
// and looks without the lock. They go on until it has happened to both ranks.
TEST(HandOff, LeaveTheLockToWhoWantsIt)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_p2p &p2p = rank.comm->p2p;
            rank.comm->seat.patience_p2p.spins = 100; // also where there is one CPU
            std::atomic<bool> crowded{false};         // seen by either thread
            const auto pass = [&](int tag) {
                bool both = false;
                for (int turn = 0; !both && turn < 10000000; turn++) {
                    shc_p2p_lock(&p2p);
                    if (p2p.crowded > 0)
                        crowded = true;
                    shc_p2p_unlock(&p2p);
                    const bool mine = crowded; // as it is told: both ranks end in the same turn
                    both = told(rank, tag, mine) != 0 && mine;
                }
                EXPECT_TRUE(both) << "thread " << tag;
            };
            std::thread other([&] { pass(1); });
            pass(2);
            other.join();
        });
}

// It does not matter whether the lock is biased, and towards which thread.
bool lock_is_biased(const Rank &rank)
{
    return shc_a64_load_acquire(&rank.comm->p2p.lock.bias.whose) != 0;
}

// Both ranks tell the other one until both locks are biased.
void tell_until_biased(Rank &rank)
{
    await_fences();
    bool both = false;
    for (int turn = 0; !both && !testing::Test::HasFailure() && turn < 100000; turn++) {
        const bool mine =
            lock_is_biased(rank); // a progress thread may end it: both go by what was told
        both = told(rank, 1, mine) != 0 && mine;
    }
    EXPECT_TRUE(both);
}

// It naps for a while after it has been called, and looks for something to do.
TEST(P2pBias, OutlivesTheProgressThreadsNaps)
{
    SKIP_WITHOUT_BIAS();
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_p2p &p2p = rank.comm->p2p;
            shc_p2p_lock(&p2p);
            shc_progress_thread_start(&p2p);
            EXPECT_TRUE(p2p.progress_thread_started);
            shc_p2p_unlock(&p2p);
            int outlived = 0;
            // A progress thread that was called for a message may take its last look just now.
            for (int turn = 0; turn < 6; turn++) {
                tell_until_biased(rank);
                shc_progress_thread_call(&p2p);
                shc_os_sleep_ns(60 * SHC_NS_PER_MS); // all its naps, and into its sleep
                outlived += lock_is_biased(rank);
            }
            EXPECT_GT(outlived, 0);
        });
}

// A receive stores to a page that is locked: what the handler sees is the middle of a submission.
struct Locked {
    shc_p2p *p2p;
    void *page;
    size_t bytes;
    uint32_t waiters;
    bool recent;
    int times;
} locked;

void unlock_page(int)
{
    locked.waiters = shc_p2p_waiters(locked.p2p);
    locked.recent =
        shc_clock_ns() - shc_a64_load_relaxed(&locked.p2p->waited_ns) < 20 * SHC_NS_PER_S;
    locked.times++;
    mprotect(locked.page, locked.bytes, PROT_READ | PROT_WRITE);
}

// The progress thread leaves the lock to a thread that waits and makes passes. A submitting thread counts
// as one, as long as it copies a message that was put aside, or one that it finds in its pass.
TEST(P2pProgressThread, LeavesASubmissionAlone)
{
    const int aside = 5, there = 6, last = 7;
    const size_t bytes = 9000;
    struct sigaction caught = {}, before;
    caught.sa_handler = unlock_page;
    ASSERT_EQ(sigaction(SIGSEGV, &caught, &before), 0);
    run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
        if (rank.rank == 0) {
            Message(SHC_SEND, 0, 1, aside, bytes).run(rank);
            Message(SHC_SEND, 0, 1, last, 8).run(rank);
            Message(SHC_SEND, 0, 1, there, bytes).run(rank);
            Message(SHC_RECV, 1, 1, last, 8).run(rank);
            return;
        }
        Message(SHC_RECV, 0, 0, last, 8).run(rank); // the first one is aside now
        shc_p2p *p2p = &rank.comm->p2p;
        locked = {p2p, nullptr, 16384, 0, false, 0};
        locked.page =
            mmap(nullptr, locked.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(locked.page, MAP_FAILED);
        for (bool came = false; !came;) {
            shc_p2p_lock(p2p);
            came = shc_pair_peek(&p2p->pairs, 0).line != nullptr;
            shc_p2p_unlock(p2p);
        }
        for (int tag : {aside, there}) {
            Message in(SHC_RECV, 0, 0, tag, bytes);
            in.tensor.data = locked.page;
            mprotect(locked.page, locked.bytes, PROT_NONE);
            locked.times = 0;
            shc_a64_store_relaxed(&p2p->waited_ns, 0);
            in.start(rank);
            EXPECT_EQ(shc_a64_load_relaxed(&p2p->waited_ns), 0u)
                << "a waiter that is held up would seem to be there again";
            EXPECT_EQ(shc_request_wait(in.request, 0), SHC_OK) << error_text();
            EXPECT_EQ(memcmp(locked.page, in.wanted.data(), bytes), 0);
            EXPECT_EQ(locked.times, 1);
            EXPECT_EQ(locked.waiters, 1u) << tag;
            EXPECT_TRUE(locked.recent) << tag;
            EXPECT_EQ(shc_p2p_waiters(p2p), 0u);
        }
        munmap(locked.page, locked.bytes);
        Message(SHC_SEND, 1, 0, last, 8).run(rank);
    });
    ASSERT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
}

// A second thread's messages, and those that are pending: each has its own bytes, however the lock was
// taken.
TEST(P2pBias, EndsWhereAnotherThreadComes)
{
    SKIP_WITHOUT_BIAS();
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            shc_p2p &p2p = rank.comm->p2p;
            const uint32_t pay = p2p.lock.bias.pay;
            uint32_t then = 0;
            tell_until_biased(rank);
            std::thread other([&] {
                for (int turn = 0; turn < 60; turn++) {
                    Message out(SHC_SEND, rank.rank, peer, 1000 + turn, 40);
                    Message in(SHC_RECV, peer, peer, 1000 + turn, 40);
                    in.start(rank);
                    shc_os_sleep_ns(static_cast<uint64_t>(turn) * 5 * 1000);
                    out.run(rank);
                    in.end();
                }
                shc_p2p_lock(&p2p); // by the word: it is not this thread's bias
                then = p2p.lock.bias.pay;
                shc_p2p_unlock(&p2p);
            });
            for (int turn = 0; turn < 4000; turn++)
                EXPECT_EQ(told(rank, 2, static_cast<uint64_t>(turn)), static_cast<uint64_t>(turn));
            other.join();
            EXPECT_GT(then, pay); // one has ended
        });
}

bool is_over(const Message &message)
{
    shc_status status;
    return !message.request || shc_request_done(message.request, &status);
}

// Another thread closes the mailbox, as at the process's end: nothing is sent after that, although this
// thread would send on by its bias.
TEST(P2pBias, EndsWithTheMailbox)
{
    SKIP_WITHOUT_BIAS();
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_p2p &p2p = rank.comm->p2p;
            tell_until_biased(rank);
            std::atomic<bool> closed{false};
            std::atomic<uint64_t> sent{0};
            std::thread closer([&] {
                shc_os_sleep_ns(2 * SHC_NS_PER_MS);
                EXPECT_TRUE(shc_p2p_silence(&p2p, SHC_NS_PER_S));
                shc_p2p_lock(&p2p);
                sent = p2p.pairs.pairs[1 - rank.rank].sent;
                shc_p2p_unlock(&p2p);
                closed = true;
            });
            shc_status status = SHC_OK;
            std::deque<std::unique_ptr<Message>> messages;
            for (bool last = false; !last;) {
                last = closed;
                messages.push_back(
                    std::make_unique<Message>(SHC_SEND, rank.rank, 1 - rank.rank, 7, 8));
                Message &message = *messages.back();
                status = shc_submit(rank.comm, &message.op, nullptr, &message.request);
                if (status != SHC_OK || messages.size() > 1000)
                    shc_os_thread_yield();
                while (!messages.empty() && is_over(*messages.front()))
                    messages.pop_front(); // what is pending stays: the progress thread may copy it
            }
            closer.join();
            EXPECT_EQ(status, SHC_ERR_CLOSED);
            EXPECT_EQ(p2p.pairs.pairs[1 - rank.rank].sent, sent);
        });
}

// The lock cannot be taken while the group is closed: the next holder ends what is pending, inside a wait
// or not.
TEST(P2pClose, EndsWhatPendsAlsoWhereTheLockIsKept)
{
    void *shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    std::atomic<bool> *over = new (shared) std::atomic<bool>(false);
    run_ranks(all_modes().front(), 2, [over](Rank &rank) {
        while (rank.rank == 1 && !*over) // it does not leave before: that would end them, too
            shc_os_sleep_ns(SHC_NS_PER_MS);
        if (rank.rank == 1)
            return;
        shc_p2p *p2p = &rank.comm->p2p;
        Message awaited(SHC_RECV, 1, 1, 1, 8), other(SHC_RECV, 1, 1, 2, 8);
        awaited.start(rank);
        other.start(rank);
        std::atomic<int> step{0};
        std::thread liveness([&] {
            while (shc_p2p_waiters(p2p) == 0)
                shc_os_thread_yield();
            shc_p2p_lock(p2p);
            step = 1;
            while (step == 1)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            shc_p2p_unlock(p2p);
        });
        std::thread waiter([&] {
            EXPECT_EQ(shc_request_wait(awaited.request, 0), SHC_ERR_CLOSED) << error_text();
        });
        while (step == 0)
            shc_os_sleep_ns(SHC_NS_PER_MS);
        shc_comm_close(rank.comm); // in vain for a second
        const uint64_t begun_ns = shc_clock_ns();
        step = 2;
        waiter.join();
        shc_status status = SHC_OK;
        while (!shc_request_done(other.request, &status) &&
               shc_clock_ns() - begun_ns < 10 * SHC_NS_PER_S)
            shc_os_sleep_ns(SHC_NS_PER_MS);
        EXPECT_EQ(status, SHC_ERR_CLOSED);
        EXPECT_LT(shc_clock_ns() - begun_ns, 10 * SHC_NS_PER_S);
        liveness.join();
        Message late(SHC_SEND, 0, 1, 3, 8);
        EXPECT_EQ(shc_run(rank.comm, &late.op), SHC_ERR_CLOSED);
        *over = true;
    });
    munmap(shared, 4096);
}

const size_t kRound = size_t{SHC_POOL_BUFFERS} * SHC_POOL_BYTES;
const int kAnnounced = 99; // tag of an empty message after a large one

// Lets a message begin and reads nothing for a while; the buffers of its chunks stay with this rank.
void begin_and_stop(Rank &rank, Message &message)
{
    message.start(rank); // it has been announced
    shc_p2p_lock(&rank.comm->p2p);
    shc_os_sleep_ns(20 * SHC_NS_PER_MS);
    shc_p2p_unlock(&rank.comm->p2p);
}

// How much of a message one pass sends, as this thread sees it: it has the lock.
size_t sent_by_a_pass(shc_p2p *p2p, const shc_request *request)
{
    const size_t before = request->message.moved;
    shc_p2p_pass(p2p, false);
    return request->message.moved - before;
}

const int64_t kLong = 8 << 20;

// Bytes in every other place are sent more slowly than they are received.
struct Slow {
    std::vector<unsigned char> bytes = std::vector<unsigned char>(2 * kLong);
    int64_t size = kLong, step = 2;
    shc_tensor tensor = {bytes.data(), 1, &size, &step};
    shc_op op = {};
    shc_request *request = nullptr;

    explicit Slow(Rank &rank)
    {
        op.kind = SHC_SEND;
        op.dtype = SHC_UINT8;
        op.peer = 1 - rank.rank;
        op.input = {&tensor, 1};
        EXPECT_EQ(shc_submit(rank.comm, &op, nullptr, &request), SHC_OK) << error_text();
    }
    Slow(const Slow &) = delete;
    ~Slow()
    {
        EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
        shc_request_release(request);
    }
};

void receive_slow(Rank &rank)
{
    std::vector<unsigned char> bytes(kLong);
    shc_tensor tensor = {bytes.data(), 1, &kLong, nullptr};
    shc_op op = {};
    op.kind = SHC_RECV;
    op.dtype = SHC_UINT8;
    op.peer = 1 - rank.rank;
    op.output = {&tensor, 1};
    EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// Its receiver takes it as fast as it comes. A pass ends all the same, so that deadlines, members, other
// peers and threads have their turn.
TEST(Passes, EndBehindAMebibyte)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            if (rank.rank == 1)
                return receive_slow(rank);
            shc_p2p *p2p = &rank.comm->p2p;
            size_t most = 0;
            Slow message(rank);
            for (shc_status status; !shc_request_done(message.request, &status);) {
                shc_p2p_lock(p2p);
                if (!shc_request_done(message.request, &status))
                    most = std::max(most, sent_by_a_pass(p2p, message.request));
                shc_p2p_unlock(p2p);
            }
            EXPECT_LE(most, (size_t{1} << 20) + SHC_PREFIX_BYTES);
        });
}

// It ends earlier if another thread of the rank wants the lock.
TEST(Passes, EndBehindAChunkWhereTheLockIsWanted)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            if (rank.rank == 1)
                return receive_slow(rank);
            shc_p2p *p2p = &rank.comm->p2p;
            Slow message(rank);
            for (shc_status status; !shc_request_done(message.request, &status);) {
                shc_p2p_lock(p2p);
                std::thread other([&] {
                    shc_p2p_lock(p2p);
                    shc_p2p_unlock(p2p);
                });
                while (!shc_biased_lock_is_awaited(&p2p->lock))
                    shc_os_thread_yield();
                if (!shc_request_done(message.request, &status)) {
                    EXPECT_LE(sent_by_a_pass(p2p, message.request), SHC_PREFIX_BYTES);
                }
                shc_p2p_unlock(p2p);
                other.join();
            }
        });
}

// Several rounds of the buffers, whose receiver stops in the middle; both ways at once.
TEST(Pool, GoRoundWhileTheirReceiverStops)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            for (int turn = 0; turn < 3; turn++) {
                const size_t bytes = 3 * kRound + 4099 * static_cast<size_t>(turn);
                Message out(SHC_SEND, rank.rank, peer, turn, bytes);
                Message in(SHC_RECV, peer, peer, turn, bytes);
                out.start(rank);
                Message(SHC_SEND, rank.rank, peer, kAnnounced, 0).run(rank);
                Message(SHC_RECV, peer, peer, kAnnounced, 0).run(rank);
                if (rank.rank == turn % 2)
                    begin_and_stop(rank, in);
                else
                    in.start(rank);
                in.end();
                out.end();
            }
        });
}

// A stream of messages of a few buffers each: all of it goes through the pool, and all comes back.
TEST(Pool, CarriesMessagesInFragments)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_p2p &p2p = rank.comm->p2p;
            settle_trials(p2p);
            const int messages = 120;
            for (int number = 0; number < messages; number++)
                Message(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, 1 - rank.rank, number,
                        SHC_POOL_BYTES * static_cast<size_t>(1 + number % 2))
                    .run(rank);
            Message(rank.rank == 0 ? SHC_RECV : SHC_SEND, 1, 1 - rank.rank, kAnnounced, 0)
                .run(rank);
            const shc_pair &pair = p2p.pairs.pairs[1 - rank.rank];
            if (rank.rank == 0) {
                EXPECT_GT(pair.credit_used, 100u) << "most of them went through the lines";
                EXPECT_TRUE(shc_pool_has(&p2p.pairs, 1, SHC_POOL_BUFFERS));
            }
        });
}

// They are used in turn for one reader: a rank's messages to itself take others.
TEST(Pool, AreNotForMessagesToOneself)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        Message in(SHC_RECV, rank.rank, rank.rank, 0, kRound);
        in.start(rank);
        Message(SHC_SEND, rank.rank, rank.rank, 0, kRound).run(rank);
        in.end();
        Message(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, 1 - rank.rank, 1, kRound).run(rank);
        const shc_pairs &pairs = rank.comm->p2p.pairs;
        EXPECT_EQ(pairs.pairs[rank.rank].pool_lent, 0u);
        if (rank.rank == 0) {
            EXPECT_EQ(pairs.pairs[1].pool_lent,
                      SHC_POOL_BUFFERS - SHC_PREFIX_BYTES / SHC_POOL_BYTES)
                << "its head goes by long buffer";
        }
    });
}

// Messages that pass one another while both ranks wait for them: that many bytes from the lower rank, and
// from the other.
void pass_one_another(Rank &rank, int number, size_t lower, size_t upper)
{
    const int peer = 1 - rank.rank;
    Message in(SHC_RECV, peer, peer, number, rank.rank == 0 ? upper : lower);
    in.start(rank);
    Message(SHC_SEND, rank.rank, peer, kAnnounced, 0).run(rank); // both have asked for theirs
    Message(SHC_RECV, peer, peer, kAnnounced, 0).run(rank);
    Message out(SHC_SEND, rank.rank, peer, number, rank.rank == 0 ? lower : upper);
    out.start(rank);
    in.end();
    out.end();
}

// By passes in turn, so that both messages have begun their rendezvous before either goes on.
void pass_one_another_in_turns(const Comms &comms, size_t bytes)
{
    std::vector<std::unique_ptr<Message>> messages;
    for (shc_op_kind kind : {SHC_RECV, SHC_SEND})
        for (int me : {0, 1}) {
            messages.push_back(
                std::make_unique<Message>(kind, kind == SHC_SEND ? me : 1 - me, 1 - me, 0, bytes));
            messages.back()->start(comms[me]);
        }
    pass_in_turns(comms, 100);
    for (auto &message : messages) {
        shc_status status;
        ASSERT_TRUE(shc_request_done(message->request, &status));
        message->end();
    }
}

// Each chunk goes back where the other rank's has come from.
TEST(LongHandOff, CarryLargeMessagesThatPassOneAnother)
{
    by_one_thread([](const Comms &comms) {
        for (size_t bytes : {SHC_LONG_HAND_OFF_BYTES + 1, 3 * SHC_PREFIX_BYTES - 7, 1000000})
            pass_one_another_in_turns(comms, bytes);
        for (int rank : {0, 1}) {
            shc_pairs &pairs = comms[rank]->p2p.pairs;
            const shc_pair &pair = pairs.pairs[1 - rank];
            if (shc_pair_has_pool(&pairs, 1 - rank)) {
                EXPECT_EQ(pair.pool_lent, 0u);
                EXPECT_GT(pair.long_named, 0u);
            }
        }
    });
}

TEST(LongHandOff, CarryMessagesOfAnySize)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            std::mt19937 random(3); // the same on both ranks
            for (int turn = 0, end = rounds(30); turn < end && !testing::Test::HasFatalFailure();
                 turn++) {
                const size_t lower = random() % 1200000, upper = random() % 1200000;
                pass_one_another(rank, turn, lower, upper);
            }
        });
}

// The reply lies where the message came in, and a stream one way does not wait for a long buffer.
TEST(LongHandOff, ComeBackWithTheReply)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const shc_pair *pair = &rank.comm->p2p.pairs.pairs[1 - rank.rank];
        for (int turn = 0; turn < 4; turn++) {
            back_and_forth(rank, 1 - rank.rank, turn, SHC_LONG_HAND_OFF_BYTES);
            EXPECT_EQ(pair->long_hand_offs.where[0], SHC_HERE) << "its own, rank " << rank.rank;
            EXPECT_EQ(pair->long_hand_offs.where[1], SHC_AWAY) << "the other's, rank " << rank.rank;
        }
        EXPECT_EQ(pair->pool_lent, 0u);
        for (int turn = 0; turn < 5; turn++)
            Message(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, 1 - rank.rank, turn, kRound).run(rank);
        for (uint8_t where : pair->long_hand_offs.where)
            EXPECT_EQ(where, rank.rank == 1 ? SHC_HERE : SHC_AWAY);
    });
}

// One of two that pass one another moves nothing for a while, at some point of the way.
TEST(LongHandOff, WaitForWhoStops)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            for (int turn = 0; turn < 10; turn++) {
                const size_t bytes = 1000000 + 4099 * static_cast<size_t>(turn);
                Message out(SHC_SEND, rank.rank, peer, turn, bytes);
                Message in(SHC_RECV, peer, peer, turn, bytes);
                in.start(rank);
                out.start(rank);
                if (rank.rank == turn % 2) {
                    shc_os_sleep_ns(static_cast<uint64_t>(turn) * 30000);
                    shc_p2p_lock(&rank.comm->p2p);
                    shc_os_sleep_ns(5 * SHC_NS_PER_MS);
                    shc_p2p_unlock(&rank.comm->p2p);
                }
                in.end();
                out.end();
            }
        });
}

// Strided tensors do not go by long buffer, except their eager prefixes; everything arrives all the same.
TEST(LongHandOff, LeaveTensorsInPiecesToOtherWindows)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const int peer = 1 - rank.rank;
        const int64_t rows[] = {100000, 3}, steps[] = {4, 1}, flat = 300000;
        const auto place = [](bool pieces, size_t i) { return pieces ? i / 3 * 4 + i % 3 : i; };
        const auto byte = [](int sender, size_t i) {
            return static_cast<unsigned char>(i * 7 + static_cast<size_t>(sender) * 31);
        };
        for (int turn = 0; turn < 16; turn++) { // what rank 0 gives and gets, and rank 1
            const bool gives = turn >> (2 * rank.rank) & 1, gets = turn >> (2 * rank.rank + 1) & 1;
            std::vector<unsigned char> given(400000, 0xdd), got(400000, 0xee);
            for (size_t i = 0; i < 300000; i++)
                given[place(gives, i)] = byte(rank.rank, i);
            shc_tensor from = {given.data(), gives ? 2 : 1, gives ? rows : &flat,
                               gives ? steps : nullptr};
            shc_tensor to = {got.data(), gets ? 2 : 1, gets ? rows : &flat, gets ? steps : nullptr};
            shc_op op = {};
            op.kind = SHC_RECV;
            op.dtype = SHC_UINT8;
            op.peer = peer;
            op.tag = turn;
            op.output = {&to, 1};
            shc_request *in = nullptr, *out = nullptr;
            ASSERT_EQ(shc_submit(rank.comm, &op, nullptr, &in), SHC_OK) << error_text();
            op.kind = SHC_SEND;
            op.input = {&from, 1};
            ASSERT_EQ(shc_submit(rank.comm, &op, nullptr, &out), SHC_OK) << error_text();
            ASSERT_EQ(shc_request_wait(in, 0), SHC_OK) << error_text();
            ASSERT_EQ(shc_request_wait(out, 0), SHC_OK) << error_text();
            shc_request_release(in);
            shc_request_release(out);
            size_t wrong = 0;
            for (size_t i = 0; i < 300000; i++)
                wrong += got[place(gets, i)] != byte(peer, i);
            EXPECT_EQ(wrong, 0u) << "turn " << turn;
        }
    });
}

// A message that does not match is dropped, and the long buffer that it came by belongs to its receiver.
TEST(LongHandOff, AreHeldByWhoDropsTheMessage)
{
    for (size_t bytes : {100000, 600000}) // whole, and its eager prefix
        run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
            const int peer = 1 - rank.rank;
            if (rank.rank == 0) {
                Message out(SHC_SEND, 0, 1, 0, bytes);
                out.start(rank);
                shc_request_wait(out.request, 0); // refused, or gone before that was known
                Message(SHC_SEND, 0, 1, 2, 8).run(rank);
                Message(SHC_RECV, 1, 1, 1, SHC_LONG_HAND_OFF_BYTES).run(rank);
            } else {
                Message in(SHC_RECV, 0, 0, 0, bytes + 4);
                in.start(rank);
                EXPECT_EQ(shc_request_wait(in.request, 0), SHC_ERR_MISMATCH);
                Message(SHC_RECV, 0, 0, 2, 8).run(rank); // what was left of it has been read
                const shc_pair &pair = rank.comm->p2p.pairs.pairs[peer];
                EXPECT_EQ(pair.long_hand_offs.where[0], SHC_HERE);
                EXPECT_EQ(pair.long_hand_offs.where[1], SHC_HERE);
                Message(SHC_SEND, 1, 0, 1, SHC_LONG_HAND_OFF_BYTES).run(rank);
                EXPECT_EQ(pair.long_hand_offs.where[0], SHC_HERE);
                EXPECT_EQ(pair.long_hand_offs.where[1], SHC_AWAY)
                    << "the one that came last goes first";
            }
        });
}

// If only one of the two could have the memory, there is one long buffer, which both of them fill.
TEST(LongHandOff, NeedTheMemoryOfOneRank)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        shc_pairs &pairs = rank.comm->p2p.pairs;
        const int peer = 1 - rank.rank, unasked = 7;
        if (rank.rank == 1)
            pairs.pool_tried = true; // and had none
        for (int turn = 0; turn < 10; turn++)
            pass_one_another(rank, turn, 400000, 500001);
        // Rank 0 keeps its long buffer while all buffers hold unexpected messages, and gets something large.
        Message in(SHC_RECV, peer, peer, 20, rank.rank == 0 ? 4000000 : 1);
        in.start(rank);
        std::vector<std::unique_ptr<Message>> small;
        for (int i = 0; i < unasked; i++)
            small.push_back(std::make_unique<Message>(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, peer,
                                                      30 + i, 16000));
        if (rank.rank == 0)
            for (auto &message : small)
                message->start(rank);
        Message out(SHC_SEND, rank.rank, peer, 20, rank.rank == 0 ? 1 : 4000000);
        out.start(rank);
        if (rank.rank == 1)
            for (auto &message : small)
                message->start(rank);
        for (auto &message : small)
            message->end();
        in.end();
        out.end();
        if (shc_os_can_populate()) {
            EXPECT_GT(pairs.pairs[peer].long_named, 0u) << "rank " << rank.rank;
        }
    });
}

// Messages of all kinds both ways at once, posted and waited for in any order; also if their outputs bypass
// the caches.
TEST(LongHandOff, LetMessagesPassOneAnotherInAnyOrder)
{
    const auto body = [](Rank &rank) {
        const int peer = 1 - rank.rank;
        std::mt19937 both(11), own(static_cast<unsigned>(rank.rank));
        for (int round = 0, end = rounds(16); round < end && !testing::Test::HasFatalFailure();
             round++) {
            std::vector<std::unique_ptr<Message>> messages;
            for (int sender : {0, 1})
                for (int tag = 0, count = 1 + static_cast<int>(both() % 5); tag < count; tag++)
                    messages.push_back(
                        std::make_unique<Message>(sender == rank.rank ? SHC_SEND : SHC_RECV, sender,
                                                  peer, tag, both() % 900000));
            std::shuffle(messages.begin(), messages.end(), own);
            for (auto &message : messages)
                message->start(rank);
            std::shuffle(messages.begin(), messages.end(), own);
            for (auto &message : messages)
                message->end();
        }
    };
    for (Mode mode : modes())
        for (const char *tuning : {"", "output.non_temporal_from=0"}) {
            Options options;
            options.tuning = tuning;
            run_ranks(mode, 2, body, options);
        }
}

} // namespace
