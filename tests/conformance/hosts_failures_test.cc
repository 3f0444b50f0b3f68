// SPDX-License-Identifier: BSD-3-Clause
// How a group over several hosts fails and ends: what happens on one host is told to all others by the store, in one
// sentence. docs/internals/protocol/hosts.md.
#include "tests/support/hosts.h"
#include "tests/support/pattern.h"

extern "C" {
#include "shm/proto/member.h"
}

#include <array>
#include <atomic>
#include <condition_variable>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sys/wait.h>
#include <thread>
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

// Until another rank of this host is in its next call. (A death before that is found by a thread, which knows no call.)
void await_next_call(const Group &group)
{
    const shc_seat *seat = &shc_hosts_get_island(group.hosts)->seat;
    shc_call call;
    const uint64_t own = shc_call_latest(seat, group.place.local, &call);
    const auto is_ahead = [&](int rank) { return shc_call_latest(seat, rank, &call) > own; };
    while (!is_ahead((group.place.local + 1) % seat->world_size))
        shc_os_sleep_ns(SHC_NS_PER_MS);
}

// The texts of all ranks.
struct Sentences {
    std::mutex lock;
    std::set<std::string> all;
    std::atomic<int> count{0};

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
        EXPECT_TRUE(fits_pattern(*all.begin(), pattern)) << *all.begin();
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
    Step told(world - 1);
    run_hosts(
        death.labels, network,
        [&](Group &group) {
            expect_sum(group, death.labels.size());
            if (group.rank == death.victim) {
                await_next_call(group);
                die(group);
                told.await();
                return;
            }
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
TEST(HostsFailures, ADeathIsToldWhileItsHostCallsNothing)
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
    sentences.expect(2, R"(host 1 \(ranks 2-3\): rank 3 .*pid [0-9]+\) died; .*)");
}

TEST(HostsFailures, AnAbortIsToldWithItsReasonWhileItsHostCallsNothing)
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
TEST(HostsFailures, AnEnginesErrorIsOnlyAHint)
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

TEST(HostsFailures, AnEnginesErrorWithoutAReasonNamesTheRanksThatItJoins)
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

TEST(HostsFailures, ATimeOutNamesTheHostThatIsMissing)
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

TEST(HostsFailures, AHostThatHasLeftIsNamed)
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

// Counts how often rank 0 asks who has left.
struct Questions {
    shc_store inner = {};
    std::atomic<int> asked{0};

    HostsOptions options()
    {
        HostsOptions how;
        how.store = [this](int rank, const shc_store &run) {
            if (rank != 0)
                return run;
            inner = run;
            shc_store store = run;
            store.ctx = this;
            store.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
                return of(ctx).set(of(ctx).ctx, key, value, bytes);
            };
            store.get = [](void *ctx, const char *key, void *value, size_t capacity,
                           size_t *bytes) {
                return of(ctx).get(of(ctx).ctx, key, value, capacity, bytes);
            };
            store.check = [](void *ctx, const char *const *keys, size_t count) {
                return of(ctx).check(of(ctx).ctx, keys, count);
            };
            store.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
                const std::string name = key;
                static_cast<Questions *>(ctx)->asked +=
                    delta == 0 && name.substr(name.rfind('/')) == "/left";
                return of(ctx).add(of(ctx).ctx, key, delta, value);
            };
            store.put_first = [](void *ctx, const char *key, const void *value, size_t bytes,
                                 void *now, size_t capacity, size_t *now_bytes) {
                return of(ctx).put_first(of(ctx).ctx, key, value, bytes, now, capacity, now_bytes);
            };
            return store;
        };
        return how;
    }
    void await(int more) const
    {
        const int until = asked + more;
        while (asked < until)
            shc_os_sleep_ns(SHC_NS_PER_MS);
    }

  private:
    static const shc_store &of(void *ctx) { return static_cast<Questions *>(ctx)->inner; }
};

// It has done its part of the call that the others are still in.
TEST(HostsFailures, AHostThatLeavesAfterACallDoesNotFailIt)
{
    Network network(2, [](int rail, int host, int) {
        return rail == -1 && host == 0 ? Network::Fate::kLate : Network::Fate::kGood;
    });
    Questions questions;
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
                if (group.rank == 1)
                    return;
                questions.await(3); // the first ones have been answered
                network.release_late();
            });
            expect_sum(group, 4);
            ender.join();
        },
        questions.options());
}

TEST(HostsFailures, ACloseWithACallInFlightIsALeaving)
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

// ---- hosts that are lost ----

void prove(Group &group)
{
    ASSERT_EQ(shc_hosts_prove(group.hosts, group.error), SHC_OK) << group.error;
}

// Nobody calls anything, and no rank of that host is left to tell. Host 1 has left before.
TEST(HostsFailures, AHostThatIsLostIsFoundByTheOneBeforeItThatHasNotLeft)
{
    Network network(3);
    Watches watches;
    Sentences sentences;
    Step all(4), moved(1), told(2);
    run_hosts(
        {0, 0, 1, 2}, network,
        [&](Group &group) {
            prove(group);
            all.meet();
            if (group.rank == 2) {
                shc_hosts_close(group.hosts);
                network.lose(1);
                while (!network.monitors(0, 2))
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                return moved.come();
            }
            if (group.rank == 3)
                return told.await();
            moved.await();
            EXPECT_EQ(shc_hosts_error(group.hosts), SHC_OK); // a host has left, as it may
            if (group.rank == 0)
                network.lose(2);
            while (shc_hosts_error(group.hosts) == SHC_OK)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            Sum sum(10);
            EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
            sentences.add(group.error);
            told.come();
        },
        watches.options());
    sentences.expect(2, R"(host 2 \(rank 3\): rank 3 has died, or its connection to rank 0 has )"
                        R"(broken: Connection closed by peer)");
    for (const int host : {0, 1, 2})
        EXPECT_FALSE(network.monitors(0, host) || network.monitors(2, host)) << "after the close";
}

void sum_until_the_store_is_gone(Group &group, Sentences &sentences)
{
    shc_status st = SHC_OK;
    Sum sum(10);
    while (st == SHC_OK)
        st = group.run(sum.op);
    EXPECT_EQ(st, SHC_ERR_STORE) << group.error;
    sentences.add(group.error);
}

// As if a host had died together with the store: nobody can be told, and the sentence names it anyway.
TEST(HostsFailures, AHostThatIsLostWithTheStoreIsNamedByTheOneBeforeIt)
{
    Network network(2);
    Watches watches;
    Sentences sentences;
    Step told(1);
    HostsOptions how = watches.options();
    how.store = [](int, const shc_store &store) {
        shc_store refusing = store;
        refusing.server = "TCPStore at 127.0.0.1:1";
        refusing.server_port = 1;
        return refusing;
    };
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            prove(group);
            expect_sum(group, 2);
            if (group.rank == 1)
                return told.await();
            network.lose(1);
            Watch &watch = *watches.of[0];
            watch.gone = true;
            while (watch.said_gone == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            sum_until_the_store_is_gone(group, sentences);
            told.come();
        },
        how);
    sentences.expect(
        1, R"(host 0 \(rank 0\): the store of "0" \(TCPStore at 127.0.0.1:1\) is gone, .*, or )"
           R"(its connection; host 1 \(rank 1\) has died, or the connection to it has broken.*)");
}

// An engine that begins no such call, or has none.
TEST(HostsFailures, AnEngineThatCannotMonitorLosesNoHost)
{
    for (const bool has : {false, true}) {
        Network network(2);
        network.refuse_monitors(has);
        run_hosts({0, 1}, network, [&](Group &group) {
            prove(group);
            network.lose(0);
            network.lose(1);
            expect_sum(group, 2);
        });
    }
}

// ---- late lines ----

// All lines about late calls of this process.
class LateLines
{
  public:
    LateLines()
    {
        EXPECT_EQ(pipe2(fds_, O_NONBLOCK | O_CLOEXEC), 0);
        shc_late_pipe(fds_[1]);
    }
    LateLines(const LateLines &) = delete;
    ~LateLines()
    {
        shc_late_pipe(-1);
        close(fds_[0]);
        close(fds_[1]);
    }
    // Until there is one that has these words.
    void await(const std::string &words)
    {
        std::lock_guard<std::mutex> guard(lock_);
        while (text_.find(words) == std::string::npos) {
            char more[4096];
            const ssize_t bytes = read(fds_[0], more, sizeof more);
            if (bytes > 0)
                text_.append(more, static_cast<size_t>(bytes));
            else
                shc_os_sleep_ns(SHC_NS_PER_MS);
        }
    }

  private:
    std::mutex lock_;
    std::string text_;
    int fds_[2] = {-1, -1};
};

TEST(HostsLate, ALineSaysWhichHostACallWaitsForAndWhatThatIsAt)
{
    Network network(3);
    Watches watches;
    LateLines lines;
    HostsOptions how = watches.options();
    how.late_ns = 100 * SHC_NS_PER_MS;
    Step idle(1), waiting(1);
    run_hosts(
        {0, 1, 1, 2}, network,
        [&](Group &group) {
            expect_sum(group, 4);
            const std::string late =
                "rank 0: all_reduce #2 (float32[10], sum) on \"0\" has waited ";
            if (group.rank == 0) {
                std::thread reader([&] {
                    lines.await(" s for host 1 (ranks 1-2): it is in no call, after call #1");
                    idle.come();
                    lines.await(" s for host 1 (ranks 1-2): it is in all_reduce #2 (float32[10], "
                                "sum), waiting for ranks of its own");
                    watches.of[1]->stuck = true;
                    lines.await(" s for host 1 (ranks 1-2): it does not answer");
                    lines.await(late);
                    watches.of[1]->stuck = false;
                    waiting.come();
                });
                expect_sum(group, 4);
                return reader.join();
            }
            if (group.rank == 1)
                idle.await();
            if (group.rank == 2)
                waiting.await();
            expect_sum(group, 4);
        },
        how);
    watches.expect_released();
}

// Of three hosts, one of which waits as well, and has said so.
TEST(HostsLate, ATimeOutNamesTheOneHostThatIsMissing)
{
    Network network(3);
    Watches watches;
    LateLines lines;
    HostsOptions how = watches.options();
    how.late_ns = 20 * SHC_NS_PER_MS;
    Step told(2);
    Sentences sentences;
    run_hosts(
        {0, 1, 2}, network,
        [&](Group &group) {
            expect_sum(group, 3);
            if (group.rank == 1)
                return told.await();
            Sum sum(10);
            sum.op.timeout_ns = (group.rank == 0 ? 2 : 60) * SHC_NS_PER_S;
            EXPECT_EQ(group.run(sum.op), SHC_ERR_TIMEOUT) << group.error;
            sentences.add(group.error);
            told.meet();
        },
        how);
    sentences.expect(2,
                     R"(host 0 \(rank 0\): Timed out after 2.000 s waiting for host 1 \(rank 1\); )"
                     R"(in all_reduce #2 \(float32\[10\], sum\) on "0")");
}

// ---- the store ----

// While a call is under way, or with the next one; and never an idle group.
TEST(HostsFailures, AStoreThatIsGoneFailsCalls)
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
                sum_until_the_store_is_gone(group, sentences);
                told.come();
            },
            watches.options());
        EXPECT_EQ(sentences.count, when == kIdle ? 0 : when == kNext ? 2 : 1);
        for (const std::string &text : sentences.all) // the hosts may say it each by itself
            EXPECT_TRUE(fits_pattern(text, R"(host [01] \(rank [01]\): the store of )"
                                           R"("0" is gone, by which hosts tell )"
                                           R"(each other of failures: .*)"))
                << text;
        watches.expect_released();
    }
}

// The run's store, of which one rank's connection may end. Counts the reasons that are put, and looked for.
class Connection
{
  public:
    std::atomic<bool> ended{false};
    std::atomic<int> puts{0}, looks{0}, adds{0};

    shc_store store(const shc_store &inner, bool refuses)
    {
        inner_ = inner;
        shc_store store = inner;
        store.ctx = this;
        store.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
            return of(ctx).ended ? EIO : in(ctx).set(in(ctx).ctx, key, value, bytes);
        };
        store.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
            of(ctx).looks += is_reason(key);
            return of(ctx).ended ? EIO : in(ctx).get(in(ctx).ctx, key, value, capacity, bytes);
        };
        store.check = [](void *ctx, const char *const *keys, size_t count) {
            return in(ctx).check(in(ctx).ctx, keys, count);
        };
        store.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
            of(ctx).adds++;
            return of(ctx).ended ? EIO : in(ctx).add(in(ctx).ctx, key, delta, value);
        };
        store.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                             size_t capacity, size_t *now_bytes) {
            of(ctx).puts += is_reason(key);
            return of(ctx).ended ? EIO
                                 : in(ctx).put_first(in(ctx).ctx, key, value, bytes, now, capacity,
                                                     now_bytes);
        };
        if (refuses) { // nobody listens there
            store.server = "TCPStore at 127.0.0.1:1";
            store.server_port = 1;
        }
        return store;
    }

  private:
    static bool is_reason(const std::string &key) { return key.find("/dead") != std::string::npos; }
    static Connection &of(void *ctx) { return *static_cast<Connection *>(ctx); }
    static const shc_store &in(void *ctx) { return of(ctx).inner_; }

    shc_store inner_ = {};
};

// A group without watches, so leaders ask. `refuses`: nobody listens at the store's port.
struct Connections {
    std::array<Connection, 4> of;

    HostsOptions options(bool refuses)
    {
        HostsOptions how;
        how.store = [this, refuses](int rank, const shc_store &run) {
            return of[static_cast<size_t>(rank)].store(run, refuses);
        };
        return how;
    }
    int puts() const
    {
        int sum = 0;
        for (const Connection &one : of)
            sum += one.puts;
        return sum;
    }
};

// The second rank of a host waits for a reason in case that its leader dies: every 200 ms. Both hosts call all the time.
TEST(HostsFailures, ALeaderAsksMoreOftenThanTheSecondRankOfItsHost)
{
    Network network(2);
    Connections connections;
    Step asked(4);
    const uint64_t begun_ns = shc_clock_ns();
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            std::vector<float> over = {0};
            while (over[0] == 0) {
                Sum sum(1, group.rank == 0 && connections.of[0].looks >= 20 ? 1 : 0);
                ASSERT_EQ(group.run(sum.op), SHC_OK) << group.error;
                over = sum.x;
                shc_os_sleep_ns(SHC_NS_PER_MS);
            }
            asked.meet();
        },
        connections.options(false));
    // A busy machine makes a pause longer, never shorter.
    const uint64_t lasted_ns = shc_clock_ns() - begun_ns;
    EXPECT_LE(static_cast<uint64_t>(connections.of[1].looks), 1 + lasted_ns / (200 * SHC_NS_PER_MS))
        << connections.of[0].looks;
}

// It asks for late calls after each sleep here, which lasts 200 ms while nobody calls. What a thread does that begins
// with the call tells what this machine is at.
TEST(HostsFailures, ACallWakesAnIdleLeader)
{
    Network network(2);
    Connections connections;
    HostsOptions how = connections.options(false);
    how.late_ns = 1000;
    const int tries = 20;
    std::atomic<int> hits{0};
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            for (int i = 0; i < tries; i++) {
                shc_os_sleep_ns(static_cast<uint64_t>(290 + 7 * i) * SHC_NS_PER_MS);
                const int adds = connections.of[0].adds;
                std::thread bystander([&] {
                    shc_os_sleep_ns(20 * SHC_NS_PER_MS);
                    hits += group.rank == 0 && connections.of[0].adds > adds;
                });
                expect_sum(group, 2);
                bystander.join();
            }
        },
        how);
    EXPECT_GE(hits, tries / 2);
}

// So does the first one of a group.
TEST(HostsFailures, TheFirstCallWakesALeader)
{
    const int tries = 6;
    std::atomic<int> hits{0};
    for (int i = 0; i < tries; i++) {
        Network network(2);
        Connections connections;
        HostsOptions how = connections.options(false);
        how.late_ns = 1000;
        run_hosts(
            {0, 1}, network,
            [&](Group &group) {
                shc_os_sleep_ns(20 * SHC_NS_PER_MS); // its thread runs
                const int adds = connections.of[0].adds;
                expect_sum(group, 2);
                shc_os_sleep_ns(20 * SHC_NS_PER_MS);
                hits += group.rank == 0 && connections.of[0].adds > adds;
            },
            how);
    }
    EXPECT_GE(hits, tries / 2);
}

// Its thread asks for late calls, too, and where that fails it looks whether the store is there.
TEST(HostsFailures, AnIdleLeaderWhoseOtherRequestFailsKnowsThatTheStoreIsGone)
{
    Network network(2);
    Connections connections;
    Step told(1);
    HostsOptions how = connections.options(true);
    how.late_ns = 20 * SHC_NS_PER_MS;
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            expect_sum(group, 2);
            if (group.rank == 1)
                return told.await();
            shc_os_sleep_ns(500 * SHC_NS_PER_MS); // now it is idle, and looks no more
            connections.of[0].ended = true;
            const int looks = connections.of[0].looks;
            for (int i = 0; i < 10000 && connections.of[0].looks == looks; i++)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            EXPECT_GT(connections.of[0].looks, looks);
            told.come();
        },
        how);
}

// Host 1 cannot find it out: its connections to the store are there.
TEST(HostsFailures, ALeaderWithoutAStoreTellsTheOthersByItsRecord)
{
    Network network(2);
    Connections connections;
    Sentences sentences;
    Step told(4);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            if (group.rank == 0)
                connections.of[0].ended = true;
            shc_status st = SHC_OK;
            Sum sum(10);
            sum.op.timeout_ns = 20 * SHC_NS_PER_S;
            while (st == SHC_OK)
                st = group.run(sum.op);
            EXPECT_TRUE(st == SHC_ERR_STORE || (st == SHC_ERR_ABORTED && group.place.local == 1))
                << shc_status_name(st) << group.error;
            sentences.add(group.error);
            told.meet();
        },
        connections.options(true));
    sentences.expect(
        4,
        R"(host 0 \(ranks 0-1\): the store of "0" \(TCPStore at 127.0.0.1:1\) is )"
        R"(gone, by which .*, or its connection; in all_reduce #[0-9]+ \(float32\[10\], sum\) on "0")");
    EXPECT_EQ(connections.puts(), 0) << "nobody is there to take a reason";
}

// Only the connection of one leader has ended. Host 1 calls nothing, so no record tells it.
TEST(HostsFailures, AStoreThatOneLeaderAloneLacksTellsTheOthers)
{
    Network network(2);
    Connections connections;
    Sentences sentences;
    Step told(2);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            if (group.rank == 0)
                connections.of[0].ended = true;
            if (group.place.host == 1)
                told.await();
            shc_status st = SHC_OK;
            Sum sum(10);
            while (st == SHC_OK)
                st = group.run(sum.op);
            sentences.add(group.error);
            if (group.place.host == 0)
                told.come();
        },
        connections.options(false));
    sentences.expect(4, R"(host 0 \(ranks 0-1\): the store of "0" is gone, by which .*)");
    EXPECT_EQ(connections.of[0].puts, 0) << "it knows better";
    EXPECT_GE(connections.of[1].puts, 1);
}

// What host 0 says, whose connection to host 1 has ended, too. `late`: its call of the line that does not end: 2 is that
// of records, 3 that of answers. `says`: host 1 knows of the store, and its record says so.
std::string words_without_a_store(int late, bool says)
{
    Network network(2, [late](int rail, int host, int call) {
        return rail == -1 && host == 0 && call == late ? Network::Fate::kLate
                                                       : Network::Fate::kGood;
    });
    Connections connections;
    Watches watches;
    Sentences sentences;
    Step summed(2), told(1);
    std::atomic<bool> over{false};
    HostsOptions how = watches.options();
    how.store = connections.options(true).store;
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            prove(group);
            expect_sum(group, 2);
            Watch &watch = *watches.of[group.place.host];
            while ((group.rank == 0 || says) && watch.said_gone == 0) {
                watch.gone = true;
                shc_os_sleep_ns(SHC_NS_PER_MS);
            }
            const int calls = network.calls();
            summed.meet();
            Sum sum(10);
            if (group.rank == 1) {
                network.lose(1);
                (void)!group.run(sum.op);
                over = true;
                return told.await();
            }
            while (network.calls() == calls && !over) // host 1 gives its record
                shc_os_sleep_ns(SHC_NS_PER_MS);
            sum_until_the_store_is_gone(group, sentences);
            told.come();
            network.release_late();
        },
        how);
    return *sentences.all.begin();
}

const std::string kHost1 = "; host 1 (rank 1) has died, or the connection to it has broken";

TEST(HostsFailures, AHostThatDiesWithTheStoreAfterItsRecordIsNamed)
{
    EXPECT_EQ(words_without_a_store(3, false),
              R"(host 0 (rank 0): the store of "0" (TCPStore at 127.0.0.1:1) is gone, by which )"
              "hosts tell each other of failures: the process that serves it has ended, or its "
              "connection" +
                  kHost1 + R"(; in all_reduce #3 (float32[10], sum) on "0")");
}

// On a busy machine the records may not come in time. Then it is named, and that is no error.
bool is_left_out(int late, bool says)
{
    for (int i = 0; i < 30; i++)
        if (words_without_a_store(late, says).find(kHost1) == std::string::npos)
            return true;
    return false;
}

// It has failed as it should, and then its connections have ended.
TEST(HostsFailures, AHostThatHasSaidThatTheStoreIsGoneIsNotNamed)
{
    EXPECT_TRUE(is_left_out(3, true));
}

TEST(HostsFailures, AHostThatAnswersIsNotNamedWhateverItsMonitorSays)
{
    EXPECT_TRUE(is_left_out(-1, false));
}

// Host 2 has no store, and the calls of hosts 0 and 1 differ. False: host 2 was too early, or the records too late.
bool all_say_that_calls_differ()
{
    Network network(3);
    Watches watches;
    Sentences sentences;
    Step gone(3), told(3);
    run_hosts(
        {0, 1, 2}, network,
        [&](Group &group) {
            expect_sum(group, 3);
            Watch &watch = *watches.of[group.place.host];
            watch.gone = group.rank == 2;
            while (watch.gone && watch.said_gone == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            shc_os_sleep_ns(10 * SHC_NS_PER_MS);
            gone.meet();
            Sum sum(group.rank == 1 ? 20 : 10);
            EXPECT_NE(group.run(sum.op), SHC_OK);
            sentences.add(group.error);
            told.meet();
        },
        watches.options());
    return sentences.all.size() == 1 && sentences.all.begin()->rfind("calls of ", 0) == 0;
}

TEST(HostsFailures, AHostWithoutAStoreSeesThatTheCallsOfOthersDiffer)
{
    bool differ = false;
    for (int i = 0; i < 30 && !differ; i++)
        differ = all_say_that_calls_differ();
    EXPECT_TRUE(differ);
}

// The threads would fail a call that has run for so long, each with a sentence of its own.
TEST(HostsFailures, RanksThatHaveLongLackedTheStoreSayOneSentence)
{
    Network network(2);
    Connections connections;
    Sentences sentences;
    Step gone(4), told(4);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            connections.of[static_cast<size_t>(group.rank)].ended = true;
            shc_os_sleep_ns(2500 * SHC_NS_PER_MS); // all have asked, and a call that ran has failed
            const int calls = network.calls();
            gone.meet();
            while (group.place.host == 1 && network.calls() == calls && sentences.count == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS); // host 0 gives its record
            Sum sum(10);
            EXPECT_NE(group.run(sum.op), SHC_OK);
            sentences.add(group.error);
            told.meet();
        },
        connections.options(true));
    sentences.expect(
        4,
        R"(host 0 \(ranks 0-1\): the store of "0" \(TCPStore at 127.0.0.1:1\) is )"
        R"(gone, by which .*, or its connection; in all_reduce #2 \(float32\[10\], sum\) on "0")");
}

// A value of <g>/dead that a rank could have written: number 2, a death of rank 3 on host 1.
std::string reason_of(const std::string &text)
{
    const uint64_t magic = 0x31646165642d6873, number = 2;
    const uint32_t status = SHC_ERR_PEER_DEAD;
    const int32_t host = 1, rank = 3;
    std::string value(SHC_HOSTS_ERROR_BYTES, '\0');
    memcpy(&value[0], &magic, 8);
    memcpy(&value[8], &number, 8);
    memcpy(&value[16], &status, 4);
    memcpy(&value[20], &host, 4);
    memcpy(&value[24], &rank, 4);
    memcpy(&value[32], text.data(), text.size());
    return value;
}

std::string with(std::string value, size_t at, char byte)
{
    value[at] = byte;
    return value;
}

struct Lie {
    const char *name;
    std::string value;
    bool believed;
};

TEST(HostsFailures, AValueThatNoRankWroteIsNamedAndNotUsed)
{
    const std::string good = reason_of("host 1 (ranks 2-3): rank 3 \x01 died");
    std::string endless = good;
    std::fill(endless.begin() + 32, endless.end(), 'x');
    const Lie lies[] = {
        {"good", good, true},
        {"empty", "", false},
        {"short", good.substr(0, good.size() - 1), false},
        {"long", good + "x", false},
        {"far too long", std::string(100000, 'x'), false},
        {"magic", with(good, 0, 'x'), false},
        {"number 0", with(good, 8, 0), false},
        {"status ok", with(good, 16, 0), false},
        {"status unknown", with(good, 17, 1), false},
        {"host that is not the rank's", with(good, 20, 0), false},
        {"rank too large", with(good, 24, 4), false},
        {"rank negative", with(good, 27, '\x80'), false},
        {"no end", endless, false},
    };
    for (const Lie &lie : lies) {
        Network network(2);
        Watches watches;
        Sentences sentences;
        Step all(4), told(2);
        run_hosts(
            kTwoOfTwo, network,
            [&](Group &group) {
                expect_sum(group, 4);
                all.meet();
                const std::string key = std::string(group.place.prefix) + "/dead";
                if (group.rank == 3)
                    group.store.set(group.store.ctx, key.c_str(), lie.value.data(),
                                    lie.value.size());
                if (group.place.host == 1)
                    return told.await();
                Sum sum(10);
                const shc_status st = group.run(sum.op);
                // A follower knows only that its leader has aborted the island.
                EXPECT_EQ(st, lie.believed      ? SHC_ERR_PEER_DEAD
                              : group.rank == 0 ? SHC_ERR_STORE
                                                : SHC_ERR_ABORTED)
                    << lie.name << group.error;
                sentences.add(group.error);
                told.meet();
            },
            watches.options());
        sentences.expect(2, lie.believed ? R"(host 1 \(ranks 2-3\): rank 3 \? died)"
                                         : R"(host 0 \(ranks 0-1\): the store's key )"
                                           R"("hosts/.*/dead" has a value that no rank wrote)");
    }
}

TEST(HostsFailures, ALeavingThatNoLeaderWroteIsNone)
{
    Network network(2);
    Questions questions;
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            const std::string key = std::string(group.place.prefix) + "/left";
            for (const std::string value : {"", "short", "of the right length 24 b",
                                            "very long, "
                                            "longer than what a leader writes"}) {
                if (group.rank != 3)
                    break;
                int64_t count;
                group.store.set(group.store.ctx, (key + "/1").c_str(), value.data(), value.size());
                group.store.add(group.store.ctx, key.c_str(), 1, &count);
                questions.await(1);
            }
            expect_sum(group, 4);
        },
        questions.options());
}

// Host 1 gives nothing in a call before that of the reason: it has failed, too.
TEST(HostsFailures, AReasonOfALaterCallEndsAnEarlierOneAfterSomeTime)
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
                if (group.place.host == 1)
                    return told.await();
                std::string later = reason_of("host 1 (ranks 2-3): rank 3 died");
                later[8] = 4;
                const std::string key = std::string(group.place.prefix) + "/dead";
                if (group.rank == 0)
                    group.store.set(group.store.ctx, key.c_str(), later.data(), later.size());
                const uint64_t begun_ns = shc_clock_ns();
                Sum sum(10);
                EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
                EXPECT_GE(shc_clock_ns() - begun_ns, SHC_NS_PER_S / 2);
                sentences.add(group.error);
                told.meet();
            },
            watched ? watches.options() : HostsOptions());
        sentences.expect(2, R"(host 1 \(ranks 2-3\): rank 3 died)");
    }
}

// A store whose calls all go to the one that T::of(ctx) gives.
template <class T>
shc_store forwarding(T *to)
{
    shc_store store = to->inner;
    store.ctx = to;
    store.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        return T::of(ctx).set(T::of(ctx).ctx, key, value, bytes);
    };
    store.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        return T::of(ctx).get(T::of(ctx).ctx, key, value, capacity, bytes);
    };
    store.check = [](void *ctx, const char *const *keys, size_t count) {
        return T::of(ctx).check(T::of(ctx).ctx, keys, count);
    };
    store.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        return T::of(ctx).add(T::of(ctx).ctx, key, delta, value);
    };
    store.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                         size_t capacity, size_t *now_bytes) {
        return T::of(ctx).put_first(T::of(ctx).ctx, key, value, bytes, now, capacity, now_bytes);
    };
    return store;
}

// A store and a watch of which a call may not return.
struct Stuck {
    std::mutex lock;
    std::condition_variable freed;
    bool is_stuck = false;
    int retained = 0, released = 0;
    std::atomic<int> asked{0}; // for a reason
    shc_store inner = {};

    shc_store store()
    {
        shc_store store = forwarding(this);
        store.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
            static_cast<Stuck *>(ctx)->asked += std::string(key).find("/dead") != std::string::npos;
            return of(ctx).get(of(ctx).ctx, key, value, capacity, bytes);
        };
        store.retain = [](void *ctx) { static_cast<Stuck *>(ctx)->count(1, 0); };
        store.release = [](void *ctx) { static_cast<Stuck *>(ctx)->count(0, 1); };
        return store;
    }
    void count(int more_retained, int more_released)
    {
        std::lock_guard<std::mutex> guard(lock);
        retained += more_retained;
        released += more_released;
        freed.notify_all();
    }
    void set_stuck(bool stuck)
    {
        std::lock_guard<std::mutex> guard(lock);
        is_stuck = stuck;
        freed.notify_all();
    }
    void await_end()
    {
        std::unique_lock<std::mutex> guard(lock);
        freed.wait(guard, [&] { return retained == released; });
    }

    // Where a call may stay for long.
    static const shc_store &of(void *ctx)
    {
        auto *stuck = static_cast<Stuck *>(ctx);
        std::unique_lock<std::mutex> guard(stuck->lock);
        stuck->freed.wait(guard, [&] { return !stuck->is_stuck; });
        return stuck->inner;
    }
};

// Without a watch a leader asks while calls are made, also if none runs at the moment of its look.
TEST(HostsFailures, AGroupThatMakesShortCallsAsksForAReason)
{
    static std::array<Stuck, 2> counted;
    Network network(2);
    HostsOptions how;
    how.store = [&](int rank, const shc_store &run) {
        counted[static_cast<size_t>(rank)].inner = run;
        return counted[static_cast<size_t>(rank)].store();
    };
    Step asked(2), closed(2);
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            Stuck &own = counted[static_cast<size_t>(group.rank)];
            for (int call = 0; call < 150; call++) {
                expect_sum(group, 2);
                shc_os_sleep_ns(10 * SHC_NS_PER_MS);
            }
            EXPECT_GE(own.asked, 8);
            asked.meet();
            shc_hosts_free(group.hosts);
            group.hosts = nullptr;
            closed.meet();
            own.await_end();
        },
        how);
}

// A FileStore that takes its time with what a rank says when it leaves.
struct SlowFile {
    shc_store inner = {};
    std::atomic<int> written{0};

    static const shc_store &of(void *ctx) { return static_cast<SlowFile *>(ctx)->inner; }

    shc_store store()
    {
        shc_store slow = forwarding(this);
        slow.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
            const bool leaves = strstr(key, "/gone/") != nullptr;
            if (leaves)
                shc_os_sleep_ns(400 * SHC_NS_PER_MS);
            const int error = of(ctx).set(of(ctx).ctx, key, value, bytes);
            static_cast<SlowFile *>(ctx)->written += leaves;
            return error;
        };
        slow.retain = slow.release = [](void *) {}; // a thread of the library may use it
        return slow;
    }
};

// A process that ended in the middle of that would leave others a file in which torch reads for ever.
TEST(HostsFailures, AFarewellInAFileIsWrittenBeforeTheCloseReturns)
{
    std::array<SlowFile, 2> files;
    Network network(2);
    HostsOptions how;
    how.in_file = true;
    how.store = [&](int rank, const shc_store &run) {
        files[static_cast<size_t>(rank)].inner = run;
        return files[static_cast<size_t>(rank)].store();
    };
    Step closed(2);
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            expect_sum(group, 2);
            shc_hosts_free(group.hosts);
            group.hosts = nullptr;
            EXPECT_EQ(files[static_cast<size_t>(group.rank)].written, 1);
            shc_os_sleep_ns(SHC_NS_PER_S); // if not, the thread ends before the files go
            closed.meet();
        },
        how);
}

// The group ends with its errors and its close in time, and what is stuck lets go of all later.
TEST(HostsFailures, AStoreThatDoesNotAnswerHoldsUpNothing)
{
    static std::array<Stuck, 4> stuck;
    static Watches watches;
    Network network(2);
    HostsOptions how = watches.options();
    how.store = [&](int rank, const shc_store &run) {
        stuck[static_cast<size_t>(rank)].inner = run;
        return stuck[static_cast<size_t>(rank)].store();
    };
    Step all(4), failed(4), closed(4);
    Sentences sentences;
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            expect_sum(group, 4);
            Stuck &own = stuck[static_cast<size_t>(group.rank)];
            own.set_stuck(true);
            if (group.place.local == 0)
                watches.of[group.place.host]->stuck = true;
            all.meet();
            if (group.rank == 3) {
                die(group);
            } else if (group.place.host == 1) {
                Sum sum(10);
                EXPECT_EQ(group.run(sum.op), SHC_ERR_PEER_DEAD) << group.error;
                sentences.add(group.error);
            }
            failed.meet();
            shc_hosts_free(group.hosts);
            group.hosts = nullptr;
            closed.meet();
            own.set_stuck(false);
            if (group.place.local == 0)
                watches.of[group.place.host]->stuck = false;
            own.await_end(); // while the run's own store is still there
            while (group.place.local == 0 && watches.of[group.place.host]->released == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
        },
        how);
    sentences.expect(1, R"(host 1 \(ranks 2-3\): rank 3 .* died; .*; in all_reduce #2 .*)");
    for (const Stuck &own : stuck)
        EXPECT_GE(own.retained, 1);
    watches.expect_released();
}

// ---- fork ----

TEST(HostsFailures, AForkedChildCanOnlyLeaveTheGroup)
{
    Network network(2);
    Watches watches;
    Step done(2);
    run_hosts(
        {0, 1}, network,
        [&](Group &group) {
            expect_sum(group, 2);
            if (group.rank == 0) {
                const pid_t child = fork();
                if (child == 0) {
                    Sum sum(10);
                    const bool told = group.run(sum.op) == SHC_ERR_FORKED;
                    shc_hosts_abort(group.hosts, "by a child");
                    shc_hosts_close(group.hosts);
                    shc_hosts_free(group.hosts);
                    _exit(told ? 0 : 1);
                }
                int status = -1;
                EXPECT_EQ(waitpid(child, &status, 0), child);
                EXPECT_EQ(status, 0);
            }
            done.meet();
            expect_sum(group, 2);
        },
        watches.options());
    watches.expect_released();
}

} // namespace
