// SPDX-License-Identifier: BSD-3-Clause

// Who looks after messages while a thread waits for one: the waiting thread itself, also where it cannot
// park, and the progress thread, which that thread calls where it may be held up (P2P-51).
#include "tests/support/messages.h"

#include <atomic>
#include <csignal>
#include <functional>
#include <gtest/gtest.h>
#include <pthread.h>
#include <thread>
#include <vector>

extern "C" {
#include "shm/proto/member.h"
#include "shm/proto/park.h"
}

using namespace shmcoll::test;

namespace
{

ByteMessage message_of(shc_op_kind kind, int peer, int tag)
{
    return {kind, peer, tag, std::vector<unsigned char>(8, 7)};
}

void until(const std::function<bool()> &true_at_last)
{
    while (!true_at_last())
        shc_os_sleep_ns(SHC_NS_PER_MS / 2); // a rank that hangs here is ended by the run's limit
}

// The interrupt callback of a rank, which asks it before each sleep.
struct Asked {
    Rank &rank;
    std::function<void()> ask;

    Asked(Rank &of, std::function<void()> then) : rank(of), ask(std::move(then))
    {
        rank.comm->seat.interrupted_ctx = this;
        rank.comm->seat.interrupted = [](void *ctx) {
            static_cast<Asked *>(ctx)->ask();
            return false;
        };
    }
    Asked(const Asked &) = delete;
    ~Asked() { rank.comm->seat.interrupted = nullptr; }
};

// Three ranks are threads. Two of them do nothing until rank 0 has ended its body.
void rank_0_alone(const Body &body)
{
    std::atomic<bool> over{false};
    run_ranks(Mode::kOwnMapping, 3, [&](Rank &rank) {
        if (rank.rank == 0) {
            body(rank);
            over = true;
        }
        until([&] { return over.load(); });
    });
}

// ---- a thread that cannot park ----

// WAIT-14: no thread parks while the life word of a rank that is alive lacks that bit. That is rank 2 here.
struct NoParking {
    shc_seat *seat;
    shc_a32 *life;
    uint32_t before;

    explicit NoParking(Rank &rank)
        : seat(&rank.comm->seat), life(&shc_seat_member(seat, 2)->life),
          before(shc_a32_load_acquire(life))
    {
        shc_a32_store_release(life, before & ~SHC_OS_OWNER_AWAITED);
        shc_park park;
        shc_park_begin(&park, seat, shc_seat_mail_bell(seat, 0));
        EXPECT_FALSE(park.quiet);
    }
    NoParking(const NoParking &) = delete;
    ~NoParking() { shc_a32_store_release(life, before); }
};

// Waits for a message of rank 1, which leaves without a ring once the wait has slept twice. Returns how often
// the thread slept after that slice in which rank 1 left.
int slices_until_found(Rank &rank)
{
    shc_a32 *state = &shc_seat_member(&rank.comm->seat, 1)->state;
    int sleeps = 0, more = 0;
    const Asked asked(rank, [&] {
        if (++sleeps == 3)
            shc_a32_store_release(state, SHC_MEMBER_LEFT);
        else if (sleeps > 3)
            more++;
    });
    ByteMessage in = message_of(SHC_RECV, 1, 1);
    EXPECT_EQ(shc_run(rank.comm, &in.op), SHC_ERR_PEER_LEFT) << error_text();
    shc_a32_store_release(state, SHC_MEMBER_ALIVE);
    EXPECT_GE(sleeps, 3);
    return more;
}

// The looks were due only once the slices together had lasted 10 ms longer than asked. Sleeps are counted, not
// timed: on a busy machine one may last long, and a look is due after it in any case. But not after all of ten.
TEST(P2pLooks, AThreadThatCannotParkLooksAtMembersAfterEachSlice)
{
    rank_0_alone([](Rank &rank) {
        const NoParking no_parking(rank);
        rank.comm->p2p.progress_thread_started = true; // as if it ran: it would look, too
        for (int round = 0; round < 10; round++)
            EXPECT_EQ(slices_until_found(rank), 0) << "round " << round;
        rank.comm->p2p.progress_thread_started = false;
    });
}

// ---- P2P-51: the waiting thread may be held up from now on ----

// The progress thread leaves the passes to a thread that waits, and sleeps until it is called.
bool sleeps_until_called(const Rank &rank)
{
    return shc_a32_load_acquire(&rank.comm->p2p.progress_bell.flag) == 1;
}

bool is_parked(const Rank &rank)
{
    shc_p2p_lock(&rank.comm->p2p);
    const bool parked = shc_p2p_has_parked(&rank.comm->p2p);
    shc_p2p_unlock(&rank.comm->p2p);
    return parked;
}

// How often the progress thread has been called out of its sleep.
uint32_t calls_of(const Rank &rank)
{
    return shc_a32_load_acquire(&rank.comm->p2p.progress_bell.count);
}

void receive(Rank &rank)
{
    ByteMessage in = message_of(SHC_RECV, 1, 1);
    EXPECT_EQ(shc_run(rank.comm, &in.op), SHC_OK) << error_text();
}

// Rank 0 has a thread that waits for a message, which rank 1 sends after `body` has ended. The thread begins
// after a Setup is made of the rank, and ends before that goes.
template <typename Setup, typename Body>
void beside_a_waiter(const Body &body)
{
    std::atomic<bool> over{false};
    run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
        if (rank.rank == 1) {
            until([&] { return over.load(); });
            ByteMessage out = message_of(SHC_SEND, 0, 1);
            EXPECT_EQ(shc_run(rank.comm, &out.op), SHC_OK) << error_text();
            return;
        }
        Setup setup(rank);
        std::thread waiter([&] { receive(rank); });
        body(setup, waiter);
        over = true;
        waiter.join();
    });
}

struct Plain {
    const Rank &rank;
    explicit Plain(Rank &of) : rank(of) {}
};

// Without the call the progress thread would look within 2 s, too. So calls are counted. A signal that finds the
// thread awake between two sleeps ends none, so there may be more than one.
TEST(P2pLooks, ASignalMakesTheWaitingThreadCallTheProgressThread)
{
    struct sigaction nothing = {}, old = {};
    nothing.sa_handler = [](int) {};
    ASSERT_EQ(sigaction(SIGUSR2, &nothing, &old), 0);
    beside_a_waiter<Plain>([](const Plain &plain, std::thread &waiter) {
        const Rank &rank = plain.rank;
        until([&] { return is_parked(rank) && sleeps_until_called(rank); });
        const uint32_t before = calls_of(rank);
        for (int i = 0; i < 20 && calls_of(rank) == before; i++) {
            pthread_kill(waiter.native_handle(), SIGUSR2);
            shc_os_sleep_ns(20 * SHC_NS_PER_MS);
        }
        EXPECT_EQ(calls_of(rank), before + 1);
    });
    sigaction(SIGUSR2, &old, nullptr);
}

// In the place of the queue of collectives: unattended once the progress thread sleeps.
struct Queue {
    const Rank &rank;
    shc_p2p_env &env;
    const shc_p2p_env own;
    shc_a32 hint;
    uint32_t before = 0;
    std::atomic<uint32_t> calls{0};
    std::atomic<bool> ran{false};

    explicit Queue(Rank &of) : rank(of), env(of.comm->p2p.env), own(env)
    {
        shc_a32_store_relaxed(&hint, 1);
        env.queue = this;
        env.queue_unattended = &hint;
        env.is_queue_unattended = [](void *queue) { return static_cast<Queue *>(queue)->waits(); };
        env.run_queue = [](void *queue) { return static_cast<Queue *>(queue)->run(); };
    }
    Queue(const Queue &) = delete;
    ~Queue() { env = own; }

    bool waits()
    {
        before = calls_of(rank);
        return !ran && sleeps_until_called(rank);
    }
    shc_status run()
    {
        calls = calls_of(rank) - before;
        ran = true;
        return SHC_OK;
    }
};

TEST(P2pLooks, TheProgressThreadIsCalledBeforeAWaitingThreadRunsTheQueue)
{
    beside_a_waiter<Queue>([](const Queue &queue, std::thread &) {
        until([&] { return queue.ran.load(); });
        EXPECT_EQ(queue.calls, 1u);
    });
}

// What a message that ends in its own submission finds there.
struct Found {
    uint32_t waiters;
    uint64_t waited_ns, begun_ns;
};
Found found;
shc_p2p *watched;
void (*own_done)(shc_message *, shc_status, const char *);

TEST(P2pLooks, AThreadThatSubmitsCountsAsAWaitingOne)
{
    std::atomic<bool> sent{false}, over{false};
    run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
        if (rank.rank == 1) {
            ByteMessage out = message_of(SHC_SEND, 0, 1);
            EXPECT_EQ(shc_run(rank.comm, &out.op), SHC_OK) << error_text();
            sent = true;
            until([&] { return over.load(); });
            return;
        }
        until([&] { return sent.load(); });
        shc_p2p &p2p = rank.comm->p2p;
        p2p.progress_thread_started = true; // as if it ran: it might end the message
        watched = &p2p;
        own_done = p2p.env.done;
        p2p.env.done = [](shc_message *m, shc_status status, const char *error) {
            found = {shc_p2p_waiters(watched), shc_a64_load_relaxed(&watched->waited_ns),
                     m->lateness.begun_ns};
            own_done(m, status, error);
        };
        const uint64_t waited_ns = shc_a64_load_relaxed(&p2p.waited_ns);
        ByteMessage in = message_of(SHC_RECV, 1, 1);
        in.start(rank);
        EXPECT_TRUE(in.done());
        EXPECT_EQ(found.waiters, 1u);
        EXPECT_NE(found.begun_ns, 0u);
        EXPECT_GE(found.waited_ns, found.begun_ns);
        EXPECT_EQ(shc_p2p_waiters(&p2p), 0u);
        EXPECT_EQ(shc_a64_load_relaxed(&p2p.waited_ns), waited_ns);
        p2p.env.done = own_done;
        p2p.progress_thread_started = false;
        over = true;
    });
}

} // namespace
