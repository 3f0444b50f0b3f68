// SPDX-License-Identifier: BSD-3-Clause
// How a group over several hosts fails and ends: what happens on one host is told to all others by the store, in one
// sentence. docs/internals/protocol/hosts.md.
#include "tests/support/hosts.h"

extern "C" {
#include "shm/proto/member.h"
}

#include <atomic>
#include <gtest/gtest.h>
#include <regex>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

using namespace shmcoll::test;
using Group = HostsGroup;

namespace
{

// A leader's wait for a key: it looks every millisecond.
class Watch
{
  public:
    explicit Watch(const shc_store &store) : store_(store)
    {
        view_.ctx = this;
        view_.wait = [](void *ctx, const char *key, uint64_t timeout_ns) {
            return static_cast<Watch *>(ctx)->wait(key, timeout_ns);
        };
        view_.release = [](void *ctx) { static_cast<Watch *>(ctx)->released++; };
    }
    Watch(const Watch &) = delete;

    const shc_watch *view() const { return &view_; }

    std::atomic<int> released{0}, said_gone{0};
    std::atomic<bool> gone{false};  // the store is
    std::atomic<bool> stuck{false}; // a wait does not end

  private:
    int wait(const char *key, uint64_t timeout_ns)
    {
        char value[2048];
        size_t bytes;
        const uint64_t until_ns = shc_clock_ns() + timeout_ns;
        do {
            if (gone) {
                said_gone++;
                return ECONNRESET;
            }
            if (store_.get(store_.ctx, key, value, sizeof value, &bytes) != ENOENT)
                return 0;
            shc_os_sleep_ns(SHC_NS_PER_MS);
        } while (stuck || shc_clock_ns() < until_ns);
        return ETIMEDOUT;
    }

    const shc_store store_;
    shc_watch view_ = {};
};

// One for each leader. They outlive the groups.
struct Watches {
    std::mutex lock;
    std::map<int, std::unique_ptr<Watch>> of;

    HostsOptions options()
    {
        HostsOptions how;
        how.watch = [this](const Group &group) {
            std::lock_guard<std::mutex> guard(lock);
            auto &watch = of[group.place.host];
            watch = std::make_unique<Watch>(group.store);
            return watch->view();
        };
        return how;
    }

    // Each watch was the group's, and has been given back.
    void expect_released()
    {
        for (const auto &[host, watch] : of)
            EXPECT_EQ(watch->released, 1) << host;
    }
};

// Ranks wait for one another, without the group.
class Step
{
  public:
    explicit Step(int count) : missing_(count) {}
    void come() { missing_--; }
    void await() const
    {
        while (missing_ > 0)
            shc_os_sleep_ns(SHC_NS_PER_MS);
    }
    void meet()
    {
        come();
        await();
    }

  private:
    std::atomic<int> missing_;
};

// As if the process of this rank were gone.
void die(const Group &group)
{
    shc_member_declare_dead(&shc_hosts_get_island(group.hosts)->seat, group.place.local);
}

// The texts of all ranks.
struct Sentences {
    std::mutex lock;
    std::set<std::string> all;
    int count = 0;

    void add(const char *text)
    {
        std::lock_guard<std::mutex> guard(lock);
        all.insert(text);
        count++;
    }
    // All ranks have said the same.
    void expect(int ranks, const std::string &pattern)
    {
        EXPECT_EQ(count, ranks);
        ASSERT_EQ(all.size(), 1u) << *all.begin() << "\n" << *all.rbegin();
        EXPECT_TRUE(std::regex_match(*all.begin(), std::regex(pattern))) << *all.begin();
    }
};

void expect_sum(Group &group, size_t world)
{
    Sum sum(10);
    ASSERT_EQ(group.run(sum.op), SHC_OK) << group.error;
    EXPECT_EQ(sum.x[0], static_cast<float>(world));
}

// ---- the death line ----

struct Death {
    const char *name;
    Labels labels;
    int victim;
    bool watched;
    const char *whose;
};

void PrintTo(const Death &death, std::ostream *out)
{
    *out << death.name;
}

class HostsDeath : public testing::TestWithParam<Death>
{
};

TEST_P(HostsDeath, IsOneSentenceOnAllRanksOfAllHosts)
{
    const Death &death = GetParam();
    const auto world = static_cast<int>(death.labels.size());
    Network network(host_count(death.labels));
    Watches watches;
    Sentences sentences;
    Step dead(1), told(world - 1);
    run_hosts(
        death.labels, network,
        [&](Group &group) {
            expect_sum(group, death.labels.size());
            if (group.rank == death.victim) {
                die(group);
                dead.come();
                told.await();
                return;
            }
            dead.await();
            Sum sum(10);
            EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
            sentences.add(group.error);
            EXPECT_EQ(sum.x, std::vector<float>(10, 1));
            const std::string first = group.error;
            EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD); // for good
            EXPECT_NE(std::string(group.error).find(first), std::string::npos) << group.error;
            told.meet();
        },
        death.watched ? watches.options() : HostsOptions());
    const std::string rank = std::to_string(death.victim);
    sentences.expect(world - 1, std::string(death.whose) + ": rank " + rank + R"( \(pid )" +
                                    std::to_string(getpid()) +
                                    R"(\) died; its last call was .*; in all_reduce #2 )"
                                    R"(\(float32\[10\], sum\) on "0")");
    watches.expect_released();
}

INSTANTIATE_TEST_SUITE_P(
    Of, HostsDeath,
    testing::Values(
        Death{"AFollower", kTwoOfTwo, 3, true, R"(host 1 \(ranks 2-3\))"},
        Death{"ALeader", kTwoOfTwo, 0, true, R"(host 0 \(ranks 0-1\))"},
        Death{"ARankOfThreeHosts", {0, 1, 2, 0, 2, 2}, 4, true, R"(host 2 \(ranks 2, 4-5\))"},
        Death{"AFollowerWithoutAWatch", kTwoOfTwo, 3, false, R"(host 1 \(ranks 2-3\))"}),
    [](const auto &test) { return test.param.name; });

// Nobody on that host calls anything, so its leader's thread finds it.
TEST(HostsLife, ADeathIsToldWhileItsHostCallsNothing)
{
    Network network(2);
    Watches watches;
    Sentences sentences;
    Step dead(1), told(2);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            if (group.rank == 3) {
                die(group);
                dead.come();
            }
            if (group.place.host == 1)
                return told.await();
            dead.await();
            Sum sum(10);
            EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
            sentences.add(group.error);
            told.meet();
        },
        watches.options());
    sentences.expect(2, R"(host 1 \(ranks 2-3\): rank 3.* is dead)");
}

TEST(HostsLife, AnAbortIsToldWithItsReasonWhileItsHostCallsNothing)
{
    for (const bool watched : {true, false}) {
        Network network(2);
        Watches watches;
        Sentences sentences;
        Step told(2);
        run_hosts(
            kTwoOfTwo, network,
            [&](Group &group) {
                expect_sum(group, 4);
                if (group.rank == 3)
                    shc_hosts_abort(group.hosts, "the loss is not a number");
                if (group.place.host == 1)
                    return told.await();
                Sum sum(10);
                EXPECT_EQ(group.run(sum.op), SHC_ERR_ABORTED) << group.error;
                sentences.add(group.error);
                told.meet();
            },
            watched ? watches.options() : HostsOptions());
        sentences.expect(2, R"(host 1 \(ranks 2-3\): rank 3 aborted the group: the loss is not a )"
                            R"(number)");
    }
}

// An engine says that a connection has ended, and knows no more; the store does.
TEST(HostsLife, AnEnginesErrorIsOnlyAHint)
{
    std::atomic<bool> broken{false};
    Network network(
        2, [&](int, int, int) { return broken ? Network::Fate::kBroken : Network::Fate::kGood; });
    Sentences sentences;
    Step dead(1), told(3);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        expect_sum(group, 4);
        if (group.rank == 3) {
            die(group);
            return told.await();
        }
        if (group.rank == 2) {
            Sum sum(10);
            EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
            sentences.add(group.error);
            broken = true;
            dead.come();
            return told.meet();
        }
        dead.await();
        Sum sum(10);
        EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
        sentences.add(group.error);
        told.meet();
    });
    sentences.expect(3, R"(host 1 \(ranks 2-3\): rank 3.* died.*)");
}

TEST(HostsLife, AnEnginesErrorWithoutAReasonNamesTheRanksThatItJoins)
{
    std::atomic<bool> broken{false};
    Network network(2, [&](int, int host, int) {
        return broken && host == 0 ? Network::Fate::kBroken : Network::Fate::kGood;
    });
    Sentences sentences;
    Step all(4);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        expect_sum(group, 4);
        all.meet();
        broken = true;
        Sum sum(10);
        EXPECT_EQ(group.run(sum.op), SHC_ERR_SYSTEM) << group.error;
        sentences.add(group.error);
    });
    sentences.expect(4, R"(host 0 \(ranks 0-1\): the engine between the hosts of "0" failed: )"
                        R"(Connection closed by peer; it joins rank 0 \(host 0\), rank 2 )"
                        R"(\(host 1\); in all_reduce #2 \(float32\[10\], sum\) on "0")");
}

TEST(HostsLife, ATimeOutNamesTheHostThatIsMissing)
{
    Network network(2);
    Sentences sentences;
    Step told(2);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        expect_sum(group, 4);
        if (group.place.host == 1)
            return told.await();
        Sum sum(10);
        sum.op.timeout_ns = 300 * SHC_NS_PER_MS;
        EXPECT_EQ(group.run(sum.op), SHC_ERR_TIMEOUT) << group.error;
        sentences.add(group.error);
        told.meet();
    });
    sentences.expect(2, R"(host 0 \(ranks 0-1\): Timed out after 0.300 s waiting for host 1 )"
                        R"(\(ranks 2-3\); in all_reduce #2 \(float32\[10\], sum\) on "0")");
}

// ---- leaving ----

TEST(HostsLife, AHostThatHasLeftIsNamed)
{
    Network network(2);
    Sentences sentences;
    Step left(2);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        expect_sum(group, 4);
        if (group.place.host == 1) {
            shc_hosts_close(group.hosts);
            return left.come();
        }
        left.await();
        Sum sum(10);
        EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_LEFT) << group.error;
        sentences.add(group.error);
    });
    sentences.expect(2, R"(host 1 \(ranks 2-3\) has left the group "0" after its call #1)");
}

// It has done its part of the call that the others are still in.
TEST(HostsLife, AHostThatLeavesAfterACallDoesNotFailIt)
{
    std::atomic<int> asked{0};
    Network network(2, [](int rail, int host, int) {
        return rail == -1 && host == 0 ? Network::Fate::kLate : Network::Fate::kGood;
    });
    HostsOptions how;
    how.store = [&](int rank, const shc_store &run) { // counts the questions of host 0
        static std::map<int, shc_store> inner;
        static std::mutex lock;
        static std::atomic<int> *count;
        std::lock_guard<std::mutex> guard(lock);
        inner[rank] = run;
        count = &asked;
        shc_store store = run;
        if (rank == 0)
            store.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
                *count += delta == 0;
                return inner[0].add(ctx, key, delta, value);
            };
        return store;
    };
    Step left(2);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            if (group.place.host == 1) {
                expect_sum(group, 4);
                shc_hosts_close(group.hosts);
                return left.come();
            }
            std::thread ender([&] {
                left.await();
                while (group.rank == 0 && asked < 3)
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                if (group.rank == 0)
                    network.release_late();
            });
            expect_sum(group, 4);
            ender.join();
        },
        how);
    EXPECT_GE(asked, 3);
}

TEST(HostsLife, ACloseWithACallInFlightIsALeaving)
{
    Network network(3, [](int rail, int, int call) {
        return rail == -1 && call == 1 ? Network::Fate::kLate : Network::Fate::kGood;
    });
    Sentences sentences;
    run_hosts({0, 1, 2}, network, [&](Group &group) {
        expect_sum(group, 3);
        std::thread closer([&] {
            while (network.calls() < 6)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            if (group.rank == 2)
                shc_hosts_close(group.hosts);
        });
        Sum sum(10);
        const shc_status st = group.run(sum.op);
        EXPECT_EQ(st, group.rank == 2 ? SHC_ERR_CLOSED : SHC_ERR_PEER_LEFT) << group.error;
        if (group.rank != 2)
            sentences.add(group.error);
        closer.join();
    });
    sentences.expect(2, R"(host 2 \(rank 2\) has left the group "0" after its call #1)");
}

// ---- the store ----

// While a call is under way, or with the next one; and never an idle group.
TEST(HostsLife, AStoreThatIsGoneFailsCalls)
{
    enum { kIdle, kInFlight, kNext };
    for (const int when : {kIdle, kInFlight, kNext}) {
        Network network(2);
        Watches watches;
        Sentences sentences;
        Step told(when == kInFlight ? 1 : 2);
        run_hosts(
            {0, 1}, network,
            [&](Group &group) {
                expect_sum(group, 2);
                Watch &watch = *watches.of[group.place.host];
                watch.gone = true;
                while (when != kInFlight && watch.said_gone == 0)
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                if (when == kIdle) {
                    EXPECT_EQ(shc_hosts_error(group.hosts), SHC_OK);
                    told.come();
                }
                if (when == kIdle || (when == kInFlight && group.rank == 1))
                    return told.await();
                shc_status st = SHC_OK;
                Sum sum(10);
                while (st == SHC_OK)
                    st = group.run(sum.op);
                EXPECT_EQ(st, SHC_ERR_STORE) << group.error;
                sentences.add(group.error);
                told.come();
            },
            watches.options());
        if (when != kIdle)
            sentences.expect(when == kNext ? 2 : 1,
                             R"(host [01] \(rank [01]\): the store of "0" is gone, by which hosts )"
                             R"(tell each other of failures: .*)");
        watches.expect_released();
    }
}

} // namespace
