// SPDX-License-Identifier: BSD-3-Clause
// Groups over several hosts: ranks are threads, hosts are labels, and what is between hosts is an engine in this
// process. The results have the bits of the oracle: each host's ranks in order, then the hosts in order.
#include "tests/support/hosts_oracle.h"

extern "C" {
#include "shm/comm/record.h"
}

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

using namespace shmcoll::test;
using elements::Bytes;
using elements::Combination;
using Group = HostsGroup;

namespace
{

// ---- all_reduce ----

// One operation, its inputs, and what all ranks get.
struct Case {
    Combination what;
    size_t count;
    bool strided, in_place;
    std::vector<Bytes> inputs;
    std::vector<double> factors;
    Bytes expected;
};

Case case_of(const Combination &what, size_t count, const Labels &labels, size_t number)
{
    Case c = {what, count, number % 3 == 0, number % 2 == 0, {}, {}, {}};
    c.inputs = elements::random_sources(what.dtype, labels.size(), count);
    c.factors = elements::random_factors(labels.size());
    const size_t bytes = shc_dtype_bytes(what.dtype);
    c.expected.resize(count * bytes);
    for (size_t i = 0; i < count; i++)
        expected_element(what, labels, c.inputs, c.factors, i, c.expected.data() + i * bytes);
    return c;
}

void check_case(Group &group, const Case &c)
{
    const auto rank = static_cast<size_t>(group.rank);
    const size_t bytes = shc_dtype_bytes(c.what.dtype);
    Elements in(c.inputs[rank], bytes, c.strided);
    Elements out(Bytes(c.count * bytes, 0x11), bytes, c.strided && rank % 2 == 1);
    shc_op op = reduction_of(SHC_ALL_REDUCE, c.what, c.factors[rank]);
    op.input = {&in.tensor, 1};
    op.output = {c.in_place ? &in.tensor : &out.tensor, 1};
    ASSERT_EQ(group.run(op), SHC_OK) << group.error;
    const Elements &result = c.in_place ? in : out;
    EXPECT_TRUE(elements::all_same(c.what.dtype, result.values().data(), c.expected))
        << elements::name_of(c.what) << ", " << c.count << " elements, rank " << rank;
    EXPECT_TRUE(result.is_tidy()) << elements::name_of(c.what);
    if (!c.in_place) {
        EXPECT_EQ(in.values(), c.inputs[rank]);
    }
}

class Hosts : public testing::TestWithParam<Map>
{
};

TEST_P(Hosts, EveryReductionHasTheBitsOfTheOracle)
{
    const Labels &labels = GetParam().labels;
    std::vector<Case> cases;
    const std::vector<size_t> sizes = {1, 2999, 0, 7, 4099, 64, 1001, 2};
    size_t number = 0;
    for (const Combination &what : elements::combinations())
        for (int i = 0; i < 2; i++, number++)
            if (number % each_of(labels.size()) == 0)
                cases.push_back(
                    case_of(what, sizes[number % sizes.size()], labels, number + number / 2));
    Network network(host_count(labels));
    run_hosts(labels, network, [&](Group &group) {
        for (const Case &c : cases) {
            check_case(group, c);
            if (HasFatalFailure())
                return;
        }
    });
}

// Several chunks, of which the last one is short; as many rails as there are, and one.
TEST_P(Hosts, LongSumsGoInChunks)
{
    const Labels &labels = GetParam().labels;
    const std::vector<size_t> counts = {(3 << 18) + 1, kSlow ? 3 : (5 << 18) + 3};
    for (const int rails : {0, 1}) {
        HostsOptions how;
        how.rails = rails;
        Network network(host_count(labels));
        run_hosts(
            labels, network,
            [&](Group &group) {
                for (const size_t count : counts) {
                    std::vector<int32_t> x(count);
                    const auto size = static_cast<int64_t>(count);
                    for (size_t i = 0; i < count; i++)
                        x[i] = static_cast<int32_t>(i * 7 + static_cast<size_t>(group.rank));
                    const shc_tensor tensor = {x.data(), 1, &size, nullptr};
                    shc_op op = reduction_of(SHC_ALL_REDUCE, {SHC_INT32, SHC_SUM});
                    op.input = op.output = {&tensor, 1};
                    ASSERT_EQ(group.run(op), SHC_OK) << group.error;
                    const auto world = static_cast<int32_t>(labels.size());
                    size_t wrong = 0;
                    for (size_t i = 0; i < count; i++)
                        wrong +=
                            x[i] != static_cast<int32_t>(i * 7) * world + world * (world - 1) / 2;
                    EXPECT_EQ(wrong, 0u) << count;
                }
            },
            how);
    }
}

// ---- broadcast and barrier ----

TEST_P(Hosts, BroadcastReachesAllFromEveryRoot)
{
    const Labels &labels = GetParam().labels;
    const auto world = static_cast<int>(labels.size());
    const size_t counts[] = {0, 1, 800, 5000, kSlow ? 12001u : 120001u};
    Network network(host_count(labels));
    run_hosts(labels, network, [&](Group &group) {
        for (int root = 0; root<world; root += world> 16 ? 9 : 1)
            for (const size_t count : counts) { // of 12 bytes
                const bool strided = (root + group.rank) % 2 == 1;
                Bytes sent(count * 12);
                for (size_t i = 0; i < sent.size(); i++)
                    sent[i] = static_cast<uint8_t>(i * 31 + i / 255 + static_cast<size_t>(root));
                const bool gives = root == group.rank;
                Elements x(gives ? sent : Bytes(count * 12, 0xee), 12, strided);
                shc_op op = op_of(SHC_BROADCAST);
                op.dtype = SHC_OPAQUE;
                op.elem_bytes = 12;
                op.root = root;
                (gives ? op.input : op.output) = {&x.tensor, 1};
                ASSERT_EQ(group.run(op), SHC_OK) << group.error;
                EXPECT_TRUE(x.values() == sent) << "root " << root << ", " << count;
                EXPECT_TRUE(x.is_tidy());
            }
    });
}

TEST_P(Hosts, NoRankLeavesABarrierBeforeAllHaveCome)
{
    const Labels &labels = GetParam().labels;
    const auto world = static_cast<int>(labels.size());
    Network network(host_count(labels));
    std::atomic<int> come{0};
    run_hosts(labels, network, [&](Group &group) {
        for (int round = 1; round <= 20; round++) {
            if (group.rank == round % world)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            come++;
            ASSERT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
            EXPECT_GE(come, round * world);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Maps, Hosts, testing::ValuesIn(maps()),
                         [](const auto &test) { return test.param.name; });

// ---- who shares memory ----

// A rank's view of the store. It can be made blind to offers of memory, as on another machine, and to fail.
struct View {
    shc_store inner = {};
    enum { kSees, kBlindAtFirst, kBlind } sight = kSees;
    bool fails = false;
    std::string first_list; // that of the first offer: all who have said the same word at first

    static View *of(void *ctx) { return static_cast<View *>(ctx); }

    shc_store store()
    {
        shc_store store = inner;
        store.ctx = this;
        store.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
            const View *view = of(ctx);
            return view->fails ? EIO : view->inner.set(view->inner.ctx, key, value, bytes);
        };
        store.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
            View *view = of(ctx);
            const int error = view->inner.get(view->inner.ctx, key, value, capacity, bytes);
            const std::string name = key;
            if (error == 0 && name.size() > 2 && name.substr(name.size() - 2) == "/o")
                view->look_at_offer(name.substr(0, 16), static_cast<shc_invitation *>(value));
            return error;
        };
        store.check = [](void *ctx, const char *const *keys, size_t count) {
            return of(ctx)->inner.check(of(ctx)->inner.ctx, keys, count);
        };
        store.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
            return of(ctx)->inner.add(of(ctx)->inner.ctx, key, delta, value);
        };
        store.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                             size_t capacity, size_t *now_bytes) {
            return of(ctx)->inner.put_first(of(ctx)->inner.ctx, key, value, bytes, now, capacity,
                                            now_bytes);
        };
        return store;
    }

    void look_at_offer(const std::string &list, shc_invitation *offer)
    {
        if (first_list.empty())
            first_list = list;
        if (sight == kBlind || (sight == kBlindAtFirst && list == first_list))
            offer->name.file.inode ^= 1;
    }
};

struct Arrival {
    std::vector<std::string> words;
    decltype(View::sight) sight = View::kSees;
    bool fails = false;
};

// What shc_hosts_create() says on each rank; `body` runs where it makes a group.
void arrive(int world, const std::function<Arrival(int rank)> &how,
            const std::function<void(int rank, shc_status, const Group &)> &body)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kOwnMapping, world,
        [&](Rank &rank) {
            const Arrival arrival = how(rank.rank);
            View view;
            view.inner = rank.store;
            view.sight = arrival.sight;
            view.fails = arrival.fails;
            std::vector<const char *> words;
            for (const std::string &word : arrival.words)
                words.push_back(word.c_str());
            shc_comm_config config = {};
            config.rank = rank.rank;
            config.world_size = rank.world;
            config.name = "0";
            config.timeout_ns = 20 * SHC_NS_PER_S;
            config.store = view.store();
            const shc_hosts_wish wish = {words.data(),
                                         static_cast<int>(words.size()),
                                         0,
                                         0,
                                         false,
                                         false,
                                         false,
                                         nullptr,
                                         false,
                                         0};
            for (int again = 0; again < 2; again++) { // the keys of the first one are still there
                Group group;
                const shc_status st = shc_hosts_create(&config, &wish, &group.hosts, group.error);
                if (st == SHC_OK)
                    shc_hosts_get_place(group.hosts, &group.place);
                body(rank.rank, st, group);
                if (st != SHC_OK)
                    return;
                shc_hosts_free(group.hosts);
            }
        },
        options);
}

TEST(HostsMap, RanksThatCannotShareMemoryTryTheirNextWord)
{
    arrive(
        5,
        [](int rank) {
            // All say the same boot id. Ranks 2 and 3 are in a container, and say so in their second word; rank 4
            // was believed at first, and shares memory with ranks 0 and 1.
            Arrival arrival;
            arrival.words = {"boot", rank == 2 || rank == 3 ? "container" : "machine"};
            if (rank == 2 || rank == 3)
                arrival.sight = View::kBlindAtFirst;
            return arrival;
        },
        [](int rank, shc_status st, const Group &group) {
            ASSERT_EQ(st, SHC_OK) << group.error;
            const bool inside = rank == 2 || rank == 3;
            EXPECT_EQ(group.place.hosts, 2);
            EXPECT_EQ(group.place.host, inside ? 1 : 0);
            EXPECT_EQ(group.place.ranks, inside ? 2 : 3);
            EXPECT_EQ(group.place.local, inside ? rank - 2 : rank == 4 ? 2 : rank);
            EXPECT_EQ(group.place.rails, 2);
            EXPECT_STREQ(shc_hosts_word(group.hosts, 0), rank == 0 ? "machine" : "");
            EXPECT_STREQ(shc_hosts_word(group.hosts, 1), rank == 0 ? "container" : "");
        });
}

TEST(HostsMap, AnIslandThatIsProvedStaysWhileOthersTryOn)
{
    arrive(
        4,
        [](int rank) {
            Arrival arrival;
            arrival.words = {rank < 2 ? "a" : "b"};
            arrival.sight = rank == 3 ? View::kBlind : View::kSees;
            return arrival;
        },
        [](int rank, shc_status st, const Group &group) {
            ASSERT_EQ(st, SHC_OK) << group.error;
            EXPECT_EQ(group.place.hosts, 3);
            EXPECT_EQ(group.place.host, rank < 2 ? 0 : rank - 1);
            EXPECT_EQ(group.place.ranks, rank < 2 ? 2 : 1);
            EXPECT_EQ(group.place.rails, 1);
            const char *const words[] = {"a", "", ""}; // of ranks 2 and 3 each is alone
            for (int host = 0; host < 3 && rank == 0; host++)
                EXPECT_STREQ(shc_hosts_word(group.hosts, host), words[host]);
        });
}

TEST(HostsMap, RanksWithoutAWordAreAlone)
{
    arrive(
        3, [](int) { return Arrival{}; },
        [](int rank, shc_status st, const Group &group) {
            ASSERT_EQ(st, SHC_OK) << group.error;
            EXPECT_EQ(group.place.hosts, 3);
            EXPECT_EQ(group.place.host, rank);
        });
}

TEST(HostsMap, ARankThatDoesNotComeIsNamedOnAllOthers)
{
    std::atomic<int> told{0};
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kOwnMapping, 3,
        [&](Rank &rank) {
            if (rank.rank == 2)
                return;
            shc_comm_config config = config_of(rank);
            config.timeout_ns = 1500 * SHC_NS_PER_MS; // in which rank 1 comes on a busy machine
            const shc_hosts_wish wish = {};
            shc_hosts *hosts;
            char error[SHC_HOSTS_ERROR_BYTES];
            EXPECT_EQ(shc_hosts_create(&config, &wish, &hosts, error), SHC_ERR_TIMEOUT);
            EXPECT_STREQ(error, "rank 0: Timed out after 1.500 s while the hosts of \"0\" meet, "
                                "waiting for rank 2");
            told++;
        },
        options);
    EXPECT_EQ(told, 2);
}

TEST(HostsMap, AStoreThatFailsOnOneRankFailsAll)
{
    arrive(
        3,
        [](int rank) {
            Arrival arrival;
            arrival.words = {"a"};
            arrival.fails = rank == 1;
            return arrival;
        },
        [](int, shc_status st, const Group &group) {
            EXPECT_EQ(st, SHC_ERR_STORE);
            EXPECT_STREQ(group.error, "rank 1: the set of the store failed: Input/output error");
        });
}

// ---- what goes wrong ----

TEST(HostsFail, CallsThatDifferBetweenHostsAreToldOnAllRanks)
{
    for (const int64_t count : {10, 100000}) {
        Network network(2);
        run_hosts(kTwoOfTwo, network, [&](Group &group) {
            Sum good(10);
            ASSERT_EQ(group.run(good.op), SHC_OK) << group.error;
            Sum sum(group.place.host == 0 ? count : count + 1);
            EXPECT_EQ(group.run(sum.op), SHC_ERR_MISMATCH);
            const std::string n = std::to_string(count), m = std::to_string(count + 1);
            EXPECT_EQ(std::string(group.error), "calls of \"0\" differ: all_reduce #2 (float32[" +
                                                    n +
                                                    "], sum) on host 0 (ranks 0-1), all_reduce #2 "
                                                    "(float32[" +
                                                    m + "], sum) on host 1 (ranks 2-3)");
            EXPECT_EQ(sum.x, std::vector<float>(sum.x.size(), 1)); // no output has changed
            EXPECT_EQ(group.run(good.op), SHC_ERR_MISMATCH);       // and the group is of no use
        });
    }
}

// They would otherwise wait for each other, or read each other's records wrongly. Host 1 does not know what it says.
TEST(HostsFail, AHostWithAnotherVersionIsNamed)
{
    constexpr size_t kPlaceOfVersion = 48; // in struct shc_hosts_said
    Network network(2);
    network.change(1, kPlaceOfVersion, 1);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        Sum sum(10);
        const shc_status st = group.run(sum.op);
        if (group.place.host == 1)
            return;
        EXPECT_EQ(st, SHC_ERR_MISMATCH);
        EXPECT_STREQ(group.error,
                     "host 1 (ranks 2-3) has another version of shmcoll than host 0 (ranks 0-1)");
    });
}

// Data that go along with the record reach nobody: hosts differ in the size, in the root, or in the operation.
TEST(HostsFail, EagerBroadcastsThatDifferChangeNothing)
{
    struct Difference {
        int64_t count;
        int root;
        bool sums;
    };
    for (const Difference other : {Difference{5001, 1, false}, Difference{5000, 2, false},
                                   Difference{9, 1, false}, Difference{5000, 1, true}}) {
        Network network(2);
        run_hosts(kTwoOfTwo, network, [&](Group &group) {
            const bool is_other = group.place.host == 1;
            const int root = is_other ? other.root : 1;
            Sum data(is_other ? other.count : 5000);
            shc_op op = op_of(SHC_BROADCAST);
            op.root = root;
            (group.rank == root ? op.input : op.output) = data.op.input;
            ASSERT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
            EXPECT_EQ(group.run(is_other && other.sums ? data.op : op), SHC_ERR_MISMATCH);
            EXPECT_NE(std::string(group.error).find("broadcast #2 (float32[5000], root 1) on host"),
                      std::string::npos)
                << group.error;
            EXPECT_EQ(data.x, std::vector<float>(data.x.size(), 1));
        });
    }
}

// All hosts have met, but the root's message does not come.
TEST(HostsFail, AnEagerBroadcastWhoseMessageIsLostTimesOut)
{
    Network network(2);
    network.lose_messages();
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        Sum data(5000);
        shc_op op = op_of(SHC_BROADCAST);
        (group.rank == 0 ? op.input : op.output) = data.op.input;
        op.timeout_ns = 300 * SHC_NS_PER_MS;
        ASSERT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error; // what lines can is known
        const shc_status st = group.run(op);
        EXPECT_EQ(st, group.place.host == 0 ? SHC_OK : SHC_ERR_TIMEOUT) << group.error;
        if (st != SHC_OK) {
            EXPECT_NE(std::string(group.error).find("waiting for host 0"), std::string::npos)
                << group.error;
        }
        EXPECT_EQ(data.x, std::vector<float>(5000, 1));
    });
}

// Also what no island would find by itself: an average is added in it like a sum.
TEST(HostsFail, CallsThatDifferOnOneHostAreToldOnAllHosts)
{
    Network network(2);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        Sum sum(10);
        sum.op.redop = group.rank == 3 ? SHC_AVG : SHC_SUM;
        EXPECT_EQ(group.run(sum.op), SHC_ERR_MISMATCH);
        const std::string sum_of_2 = "all_reduce #1 (float32[10], sum) on rank 2",
                          avg_of_3 = "all_reduce #1 (float32[10], avg) on rank 3",
                          who = "host 1 (ranks 2-3): calls of \"0\" differ: ";
        const std::string words[] = {who + sum_of_2 + ", " + avg_of_3,
                                     who + avg_of_3 + ", " + sum_of_2};
        EXPECT_TRUE(group.error == words[0] || group.error == words[1]) << group.error;
        EXPECT_EQ(sum.x, std::vector<float>(10, 1));
    });
}

TEST(HostsFail, WhatIsWrongOnOneRankIsToldBeforeAnythingHappens)
{
    Network network(2);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        Sum sum(10);
        shc_op wrong = op_of(SHC_BROADCAST);
        wrong.root = 4;
        EXPECT_EQ(group.run(wrong), SHC_ERR_INVALID);
        EXPECT_STREQ(group.error, "broadcast: root 4 is not a rank (0 to 3)");
        wrong.kind = SHC_SEND;
        EXPECT_EQ(group.run(wrong), SHC_ERR_UNSUPPORTED);
        EXPECT_EQ(std::string(group.error), std::string(shc_op_kind_name(SHC_SEND)) +
                                                ": a group over several hosts does not have it");
        EXPECT_EQ(group.run(sum.op), SHC_OK) << group.error; // the group goes on
        EXPECT_EQ(sum.x[0], 4.f);
    });
}

TEST(HostsFail, AGroupNeedsItsEngines)
{
    run_ranks(Mode::kOneMapping, 1, [](Rank &rank) {
        const shc_hosts_wish wish = {};
        char error[SHC_HOSTS_ERROR_BYTES];
        shc_comm_config config = {};
        config.world_size = rank.world;
        config.store = rank.store;
        shc_hosts *hosts;
        ASSERT_EQ(shc_hosts_create(&config, &wish, &hosts, error), SHC_OK) << error;
        const shc_op barrier = op_of(SHC_BARRIER);
        EXPECT_EQ(shc_hosts_run(hosts, &barrier, error), SHC_ERR_INVALID);
        EXPECT_STREQ(error, "the group has no engines yet");
        EXPECT_EQ(shc_hosts_connect(hosts, nullptr, nullptr, nullptr, error), SHC_ERR_INVALID);
        shc_hosts_free(hosts);
        config.world_size = 70000;
        EXPECT_EQ(shc_hosts_create(&config, &wish, &hosts, error), SHC_ERR_INVALID);
        EXPECT_STREQ(error, "rank 0 of a group of 70000 ranks: 1 to 65536 are possible");
    });
}

TEST(HostsMake, AnEngineIsTriedBeforeTheGroupIsUsed)
{
    for (const bool good : {true, false}) {
        // The third call of a rail is its broadcast.
        Network network(2, [&](int rail, int host, int call) {
            return !good && rail == 1 && host == 1 && call == 2 ? Network::Fate::kFails
                                                                : Network::Fate::kGood;
        });
        run_hosts(kTwoOfTwo, network, [&](Group &group) {
            const shc_status st = shc_hosts_prove(group.hosts, group.error);
            EXPECT_EQ(st == SHC_OK, good) << group.error;
            if (!good) {
                EXPECT_EQ(std::string(group.error),
                          "host 1 (ranks 2-3): rank 3: the engine gloo cannot broadcast bytes "
                          "between hosts: the engine between the hosts of \"0\" failed: Connection "
                          "closed by peer; it joins rank 1 (host 0), rank 3 "
                          "(host 1)");
            }
        });
        EXPECT_GE(network.calls(), 2 * 3 * 2); // both rails of both hosts, three calls each
        network.release_late();
    }
}

// An operation may be submitted with a description that goes at once, and its hooks come once.
TEST(HostsAsync, SubmittedOperationsRunInOrder)
{
    constexpr int kCount = 8;
    Network network(2);
    run_hosts(kTwoOfTwo, network, [&](Group &group) {
        struct Hooked {
            std::atomic<int> completed{0}, retired{0};
        } hooked;
        const shc_request_hooks hooks = {&hooked,
                                         [](void *ctx, shc_status status, const char *) {
                                             static_cast<Hooked *>(ctx)->completed +=
                                                 status == SHC_OK;
                                         },
                                         [](void *ctx) { static_cast<Hooked *>(ctx)->retired++; }};
        std::vector<float> x(kCount * 2000, 1); // longer than a record's room, every second one
        std::vector<shc_request *> requests;
        for (int i = 0; i < kCount; i++) {
            auto sizes = std::make_unique<std::array<int64_t, 2>>();
            auto strides = std::make_unique<std::array<int64_t, 2>>();
            *sizes = {2, i % 2 ? 10 : 1000};
            *strides = {1000, 1};
            auto tensor = std::make_unique<shc_tensor>(
                shc_tensor{&x[static_cast<size_t>(i) * 2000], 2, sizes->data(), strides->data()});
            shc_op op = op_of(SHC_ALL_REDUCE);
            op.dtype = SHC_FLOAT32;
            op.redop = SHC_SUM;
            op.input = op.output = {tensor.get(), 1};
            shc_request *request;
            ASSERT_EQ(shc_hosts_submit(group.hosts, &op, &hooks, &request, group.error), SHC_OK)
                << group.error;
            EXPECT_TRUE(shc_request_notify(request) || shc_request_done(request, nullptr));
            requests.push_back(request);
        }
        EXPECT_EQ(shc_comm_sequence(shc_hosts_get_sequencer(group.hosts)), kCount);
        for (shc_request *request : requests) {
            EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << shc_error_text();
            shc_request_release(request);
        }
        for (size_t i = 0; i < x.size(); i++) {
            const size_t of = i / 2000, row = i % 2000 / 1000, column = i % 1000;
            ASSERT_EQ(x[i], column < (of % 2 ? 10u : 1000u) ? 4.f : 1.f) << of << row << column;
        }
        const shc_op wrong = op_of(SHC_OP_KIND_COUNT);
        shc_request *none;
        EXPECT_NE(shc_hosts_submit(group.hosts, &wrong, &hooks, &none, group.error), SHC_OK);
        EXPECT_NE(std::string(group.error), "");
        shc_hosts_free(group.hosts); // at the latest: a thread of the library may have been last
        group.hosts = nullptr;
        EXPECT_EQ(hooked.retired, kCount);
    });
}

// What an engine does in its n-th call on one host.
struct Fault {
    const char *name;
    int rail, call;
    Network::Fate fate;
    const char *words; // on that host
};

void PrintTo(const Fault &fault, std::ostream *out)
{
    *out << fault.name;
}

class Faults : public testing::TestWithParam<Fault>
{
};

// Every rank gets an error in time, and what the engine does later touches no memory of the caller's, which is gone
// by then.
TEST_P(Faults, EndInAnErrorOnAllRanks)
{
    const Fault &fault = GetParam();
    // Sums of two chunks: the line has a call for each, and the fault is in the first one's rails.
    const int bad = fault.rail < 0 ? fault.call : 0;
    for (const Labels &labels : {kTwoOfTwo, Labels{0, 0, 1, 1, 2, 2}}) {
        if (kSlow && labels == kTwoOfTwo)
            continue;
        Network network(host_count(labels), [&](int rail, int host, int call) {
            return rail == fault.rail && host == 1 && call == fault.call ? fault.fate
                                                                         : Network::Fate::kGood;
        });
        run_hosts(labels, network, [&](Group &group) {
            shc_status st = SHC_OK;
            std::string first;
            for (int i = 0; i < 4 && st == SHC_OK; i++) {
                Sum sum(300000);
                // Long enough for an engine's error, and short to wait for. The other host may learn of it only
                // in its next sum.
                if (i >= bad)
                    sum.op.timeout_ns = (kSlow ? 5 : 1) * SHC_NS_PER_S;
                st = group.run(sum.op);
            }
            first = group.error;
            EXPECT_NE(st, SHC_OK);
            EXPECT_FALSE(first.empty());
            EXPECT_NE(first.find(fault.words), std::string::npos) << first;
            EXPECT_EQ(first.find("host "), 0u) << first;
            Sum again(3);
            EXPECT_EQ(group.run(again.op), st) << group.error; // for good
            EXPECT_EQ(again.x[0], 1.f);
        });
        network.release_late(); // the groups are gone
    }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, Faults,
    testing::Values(Fault{"LineFails", -1, 1, Network::Fate::kFails, "Connection closed by peer"},
                    Fault{"LineRefuses", -1, 0, Network::Fate::kRefused, "began no call"},
                    Fault{"LineNeverEnds", -1, 1, Network::Fate::kLate, "Timed out after "},
                    Fault{"RailFails", 1, 1, Network::Fate::kFails, "Connection closed by peer"},
                    Fault{"RailRefuses", 0, 1, Network::Fate::kRefused, "began no call"},
                    Fault{"RailNeverEnds", 1, 1, Network::Fate::kLate, "Timed out after "}),
    [](const auto &test) { return test.param.name; });

TEST(HostsEnd, AnAbortOrACloseEndsAWaitForAnotherHost)
{
    for (const bool abort : {true, false}) {
        Network network(2, [](int rail, int, int) {
            return rail == -1 ? Network::Fate::kLate : Network::Fate::kGood;
        });
        run_hosts(kTwoOfTwo, network, [&](Group &group) {
            std::thread ender([&] {
                while (network.calls() < 2) // both leaders wait
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                if (abort && group.place.local == 1) // one is enough for its island
                    shc_hosts_abort(group.hosts, "enough");
                else if (!abort)
                    shc_hosts_close(group.hosts);
            });
            Sum sum(10);
            const shc_status st = group.run(sum.op);
            EXPECT_TRUE(st == SHC_ERR_ABORTED ||
                        (!abort && (st == SHC_ERR_CLOSED || st == SHC_ERR_PEER_LEFT)))
                << st << group.error;
            if (abort) {
                EXPECT_NE(std::string(group.error).find("enough"), std::string::npos)
                    << group.error;
            }
            EXPECT_EQ(sum.x, std::vector<float>(10, 1));
            ender.join();
        });
    }
}

} // namespace
