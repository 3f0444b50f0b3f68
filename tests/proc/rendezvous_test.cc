// SPDX-License-Identifier: BSD-3-Clause
// What goes through the store at the rendezvous, and what does not. docs/internals/protocol/rendezvous.md.
#include "tests/support/calm_clock.h"
#include "tests/support/ranks.h"

extern "C" {
#include "shm/comm/record.h"
}

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace shmcoll::test;

namespace
{

// The run's store, with what a test does to it.
struct Watched {
    shc_store inner;
    bool hides_decisions = false; // no rank finds one by looking
    bool stops_who_decides = false;
    int verdicts = 0;  // given by this rank
    int decisions = 0; // asked for by this rank

    shc_store view();
};

bool ends_in(const char *key, const std::string &end)
{
    std::string text = key;
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

shc_store Watched::view()
{
    shc_store view = {};
    view.ctx = this;
    view.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        auto *self = static_cast<Watched *>(ctx);
        self->verdicts += strstr(key, "/v/") != nullptr;
        return self->inner.set(self->inner.ctx, key, value, bytes);
    };
    view.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        auto *self = static_cast<Watched *>(ctx);
        if (self->hides_decisions && ends_in(key, "/d"))
            return ENOENT;
        return self->inner.get(self->inner.ctx, key, value, capacity, bytes);
    };
    view.check = [](void *ctx, const char *const *keys, size_t count) {
        auto *self = static_cast<Watched *>(ctx);
        return self->inner.check(self->inner.ctx, keys, count);
    };
    view.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        auto *self = static_cast<Watched *>(ctx);
        return self->inner.add(self->inner.ctx, key, delta, value);
    };
    view.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                        size_t capacity, size_t *now_bytes) {
        auto *self = static_cast<Watched *>(ctx);
        int error =
            self->inner.put_first(self->inner.ctx, key, value, bytes, now, capacity, now_bytes);
        self->decisions++;
        if (self->stops_who_decides)
            raise(SIGSTOP);
        return error;
    };
    return view;
}

class Rendezvous : public ::testing::TestWithParam<Mode>
{
};

TEST_P(Rendezvous, GoodNewsGoThroughTheSegment)
{
    Options options;
    options.make_group = false;
    run_ranks(
        GetParam(), 4,
        [](Rank &rank) {
            Watched watched = {rank.store};
            watched.hides_decisions = true;
            rank.store = watched.view();
            shc_comm *comm = nullptr;
            ASSERT_EQ(rank.make_group(&comm, "news"), SHC_OK) << error_text();
            EXPECT_EQ(watched.verdicts, 0);
            EXPECT_EQ(watched.decisions, rank.rank == 0 ? 1 : 0) << "nobody has given up";
            shc_comm_free(comm);
            rank.store = watched.inner;
        },
        options);
}

INSTANTIATE_TEST_SUITE_P(All, Rendezvous, ::testing::ValuesIn(all_modes()),
                         [](const auto &one) { return mode_name(one.param); });

// Rank 0 stops when the store has its decision, before it can tell any rank: the others find it.
TEST(RendezvousStop, OfWhoHasDecidedHoldsNobodyUp)
{
    const int world = 3;
    char pattern[] = "/tmp/shmcoll-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    pid_t pids[world];
    for (int r = 0; r < world; r++) {
        pids[r] = fork();
        ASSERT_GE(pids[r], 0);
        if (pids[r] != 0)
            continue;
        Rank rank = {r, world, Mode::kProcesses, nullptr, {}, {}, 10 * SHC_NS_PER_S};
        if (shc_store_dir_open(pattern, &rank.store) != SHC_OK)
            _exit(2);
        Watched watched = {rank.store};
        watched.stops_who_decides = r == 0;
        rank.store = watched.view();
        shc_status status = rank.make_group(&rank.comm, "decided");
        bool good = status == SHC_OK && watched.decisions == (r == 0 ? 1 : 0);
        if (!good)
            fprintf(stderr, "rank %d: %d decisions, %s\n", r, watched.decisions,
                    error_text().c_str());
        fflush(nullptr);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pids[0], &status, WUNTRACED), pids[0]);
    ASSERT_TRUE(WIFSTOPPED(status));
    for (int r = world - 1; r >= 0; r--) { // rank 0 goes on when the others have ended
        if (r == 0)
            kill(pids[0], SIGCONT);
        ASSERT_EQ(waitpid(pids[r], &status, 0), pids[r]);
        EXPECT_EQ(status, 0) << "rank " << r;
    }
    EXPECT_EQ(system((std::string("rm -r ") + pattern).c_str()), 0);
}

// ---- a store that does not answer ----

// The run's store, whose calls with this in their key stand still until they are let go.
struct Silent {
    shc_store inner;
    std::string key_part;
    uint64_t for_ns = UINT64_MAX; // or for so long each
    std::atomic<bool> silent{true};
    std::atomic<int> standing{0}, references{0};

    shc_store view(bool kept);
    void stand(const char *key)
    {
        if (!silent || strstr(key, key_part.c_str()) == nullptr)
            return;
        standing++;
        const uint64_t begun_ns = shc_clock_ns();
        while (silent && shc_clock_ns() - begun_ns < for_ns)
            usleep(200);
        standing--;
    }
    void end() // until no thread uses it any more
    {
        silent = false;
        while (references != 0)
            usleep(200);
    }
};

shc_store Silent::view(bool kept)
{
    shc_store view = {};
    view.ctx = this;
    view.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        auto *self = static_cast<Silent *>(ctx);
        self->stand(key);
        return self->inner.set(self->inner.ctx, key, value, bytes);
    };
    view.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        auto *self = static_cast<Silent *>(ctx);
        self->stand(key);
        return self->inner.get(self->inner.ctx, key, value, capacity, bytes);
    };
    view.check = [](void *ctx, const char *const *keys, size_t count) {
        auto *self = static_cast<Silent *>(ctx);
        self->stand(keys[0]);
        return self->inner.check(self->inner.ctx, keys, count);
    };
    view.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        auto *self = static_cast<Silent *>(ctx);
        self->stand(key);
        return self->inner.add(self->inner.ctx, key, delta, value);
    };
    view.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                        size_t capacity, size_t *now_bytes) {
        auto *self = static_cast<Silent *>(ctx);
        self->stand(key);
        return self->inner.put_first(self->inner.ctx, key, value, bytes, now, capacity, now_bytes);
    };
    view.server = "test store";
    if (kept) {
        view.retain = [](void *ctx) { static_cast<Silent *>(ctx)->references++; };
        view.release = [](void *ctx) { static_cast<Silent *>(ctx)->references--; };
    }
    return view;
}

struct Made {
    shc_comm *comm = nullptr;
    shc_status status;
    std::string text;
    uint64_t took_ns, calm_ns; // calm: without what other processes took of the machine
};

Made make(const shc_comm_config &config)
{
    Made made;
    const uint64_t calm_ns = calm_clock_ns();
    const uint64_t begin_ns = shc_clock_ns();
    made.status = shc_comm_create(&config, &made.comm);
    made.calm_ns = calm_ns_since(calm_ns);
    made.took_ns = shc_clock_ns() - begin_ns;
    made.text = made.status == SHC_OK ? "" : error_text();
    return made;
}

shc_comm_config config_of(int rank, int world, const shc_store &store, uint64_t timeout_ns)
{
    shc_comm_config config = {};
    config.rank = rank;
    config.world_size = world;
    config.name = "mine";
    config.timeout_ns = timeout_ns;
    config.store = store;
    return config;
}

Options without_group()
{
    Options options;
    options.make_group = false;
    return options;
}

void expect_has(const std::string &text, const std::string &part)
{
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

// In each of its calls the rank gets away; late answers meet no freed memory.
TEST(SilentStore, HoldsNobodyUpBeyondTheTimeOut)
{
    for (const char *key_part : {"/n/", "/1/d", "h/", "/1/1/o"})
        run_ranks(
            Mode::kOneMapping, 1,
            [key_part](Rank &rank) {
                Silent silent = {rank.store, key_part};
                const uint64_t timeout_ns = 150 * SHC_NS_PER_MS;
                Made made = make(config_of(0, 2, silent.view(true), timeout_ns));
                EXPECT_EQ(made.status, SHC_ERR_TIMEOUT) << made.text;
                expect_has(made.text, "the store (test store) does not answer");
                EXPECT_GE(made.took_ns, timeout_ns);
                EXPECT_LT(made.calm_ns, timeout_ns + SHC_NS_PER_S) << "promised: 100 ms more";
                EXPECT_EQ(silent.standing, 1);
                silent.end();
            },
            without_group());
}

TEST(SilentStore, DoesNotKeepAnInterruptWaiting)
{
    run_ranks(
        Mode::kOneMapping, 1,
        [](Rank &rank) {
            Silent silent = {rank.store, "/n/"};
            std::atomic<bool> pressed{false};
            uint64_t pressed_ns = 0;
            shc_comm_config config = config_of(1, 2, silent.view(true), 60 * SHC_NS_PER_S);
            config.interrupted = [](void *ctx) {
                return static_cast<std::atomic<bool> *>(ctx)->load();
            };
            config.interrupted_ctx = &pressed;
            std::thread press([&] {
                while (silent.standing == 0)
                    usleep(200);
                pressed_ns = calm_clock_ns();
                pressed = true;
            });
            Made made = make(config);
            const uint64_t now_ns = calm_clock_ns();
            press.join();
            const uint64_t took_ns = now_ns > pressed_ns ? now_ns - pressed_ns : 0;
            EXPECT_EQ(made.status, SHC_ERR_INTERRUPTED) << made.text;
            EXPECT_LT(took_ns, SHC_NS_PER_S) << "promised: 200 ms";
            silent.end();
        },
        without_group());
}

// On a busy machine, say. The time-out comes while an answer is awaited.
TEST(SlowStore, IsNotBlamedForARankThatDoesNotCome)
{
    run_ranks(
        Mode::kOneMapping, 1,
        [](Rank &rank) {
            Silent slow = {rank.store, "h/1", 500 * SHC_NS_PER_MS};
            Made made = make(config_of(0, 2, slow.view(true), 800 * SHC_NS_PER_MS));
            EXPECT_EQ(made.status, SHC_ERR_TIMEOUT) << made.text;
            EXPECT_EQ(slow.standing, 1);
            expect_has(made.text, "waiting for rank 1 (has not come)");
            slow.end();
        },
        without_group());
}

// If its process ends then, the others are told all the same.
TEST(SlowStore, HasTheReasonWhenARankThatIsRefusedReturns)
{
    run_ranks(
        Mode::kOneMapping, 1,
        [](Rank &rank) {
            Silent slow = {rank.store, "/1/d", 500 * SHC_NS_PER_MS};
            shc_comm_config config = config_of(0, 2, slow.view(true), 20 * SHC_NS_PER_S);
            const int32_t of_the_job[] = {5, 7};
            config.global_ranks = of_the_job;
            config.tuning = "depth=9";
            Made made = make(config);
            EXPECT_EQ(made.status, SHC_ERR_INVALID) << made.text;
            EXPECT_EQ(slow.standing, 0);
            EXPECT_GE(made.took_ns, 500 * SHC_NS_PER_MS);
            config = config_of(1, 2, rank.store, 20 * SHC_NS_PER_S);
            config.global_ranks = of_the_job;
            made = make(config);
            EXPECT_EQ(made.status, SHC_ERR_INVALID) << made.text;
            expect_has(made.text, "could not be made: rank 5 ");
            expect_has(made.text, "\"depth=9\" is not a number from 2 to 4");
            slow.end();
        },
        without_group());
}

// The decision that a rank leaves in a silent store is there when the store goes on.
TEST(SilentStore, HearsWhyTheRankHasGone)
{
    run_ranks(
        Mode::kOneMapping, 1,
        [](Rank &rank) {
            Silent silent = {rank.store, "h/0"};
            Made made = make(config_of(0, 2, silent.view(true), 100 * SHC_NS_PER_MS));
            EXPECT_EQ(made.status, SHC_ERR_TIMEOUT) << made.text;
            silent.end();
            made = make(config_of(1, 2, rank.store, 20 * SHC_NS_PER_S));
            EXPECT_EQ(made.status, SHC_ERR_TIMEOUT) << made.text;
            expect_has(made.text, "the group could not be made: rank 0 of");
            expect_has(made.text, "does not answer");
            EXPECT_LT(made.took_ns, 10 * SHC_NS_PER_S);
        },
        without_group());
}

// The last answer for which this rank waits does not come; rank 0's word in the segment does.
TEST(SilentStore, IsNotNeededByARankThatIsTold)
{
    std::atomic<bool> stands{false};
    run_ranks(
        Mode::kOneMapping, 3,
        [&](Rank &rank) {
            Silent silent = {rank.store, rank.rank == 1 ? "/1/d" : "no key"};
            silent.silent = rank.rank != 1;
            std::thread late;
            if (rank.rank == 2)
                while (!stands)
                    usleep(200);
            if (rank.rank == 1)
                late = std::thread([&] {
                    usleep(100000); // it has its seat by now, or found the store silent before
                    silent.silent = true;
                    while (silent.standing == 0)
                        usleep(200);
                    stands = true;
                });
            Made made = make(config_of(rank.rank, 3, silent.view(true), 20 * SHC_NS_PER_S));
            EXPECT_EQ(made.status, SHC_OK) << made.text;
            EXPECT_LT(made.took_ns, 10 * SHC_NS_PER_S);
            shc_comm_free(made.comm);
            if (late.joinable())
                late.join();
            silent.end();
        },
        without_group());
}

TEST(SilentStore, ThatCannotBeKeptIsCalledInPlace)
{
    run_ranks(
        Mode::kOneMapping, 2,
        [](Rank &rank) {
            Silent silent = {rank.store, "no key"};
            Made made =
                make(config_of(rank.rank, 2, silent.view(rank.rank == 0), 20 * SHC_NS_PER_S));
            EXPECT_EQ(made.status, SHC_OK) << made.text;
            shc_comm_free(made.comm);
            silent.end();
        },
        without_group());
}

// ---- values that no rank wrote (all kinds: conformance/store_damage_test.cc) ----

std::string verdict_bytes(const shc_record_head &head, shc_status status)
{
    union shc_record record = {};
    record.verdict.head = head;
    record.verdict.status = status;
    return {reinterpret_cast<const char *>(&record), shc_record_bytes(&record)};
}

shc_record_head head_for(shc_record_kind kind, uint64_t list)
{
    shc_record_head head = {};
    head.magic = SHC_LAYOUT_MAGIC;
    head.layout_version = SHC_LAYOUT_VERSION;
    head.kind = kind;
    head.list = list;
    head.generation = 1;
    return head;
}

uint64_t list_of(std::vector<int32_t> ranks)
{
    return shc_member_list_hash(ranks.data(), static_cast<int>(ranks.size()));
}

std::string key_for(uint64_t list, const char *rest)
{
    char key[64];
    snprintf(key, sizeof key, "%016llx/%s", static_cast<unsigned long long>(list), rest);
    return key;
}

// A rank that waits for the offer or gives up, and rank 0, which has nothing to decide.
TEST(AlienValues, OkWithoutASeatIsAnError)
{
    for (int attacked : {0, 1})
        run_ranks(
            Mode::kOneMapping, 1,
            [attacked](Rank &rank) {
                const uint64_t list = list_of({0, 1});
                std::thread attacker([&] {
                    union shc_record join;
                    size_t bytes = 0;
                    const std::string key = "h/" + std::to_string(attacked);
                    while (rank.store.get(rank.store.ctx, key.c_str(), &join, sizeof join,
                                          &bytes) != 0)
                        usleep(200);
                    const std::string value =
                        verdict_bytes(head_for(SHC_RECORD_VERDICT, list), SHC_OK);
                    rank.store.set(rank.store.ctx, key_for(list, "1/d").c_str(), value.data(),
                                   value.size());
                });
                Made made = make(config_of(attacked, 2, rank.store, 300 * SHC_NS_PER_MS));
                attacker.join();
                EXPECT_EQ(made.status, SHC_ERR_STORE) << made.text;
                expect_has(made.text, "its decision is not valid");
            },
            without_group());
}

// Another file of this user's, with its right name and size: nothing is written into it.
TEST(AlienValues, AnOfferOfAnotherFileIsNotTouched)
{
    run_ranks(
        Mode::kOneMapping, 1,
        [](Rank &rank) {
            const uint64_t list = list_of({0, 1});
            size_t bytes = 0;
            { // how large a segment of two ranks is
                std::thread other([&] {
                    Made made = make(config_of(1, 2, rank.store, 20 * SHC_NS_PER_S));
                    ASSERT_EQ(made.status, SHC_OK) << made.text;
                    shc_comm_free(made.comm);
                });
                Made made = make(config_of(0, 2, rank.store, 20 * SHC_NS_PER_S));
                other.join();
                ASSERT_EQ(made.status, SHC_OK) << made.text;
                bytes = made.comm->seat.segment.bytes;
                shc_comm_free(made.comm);
            }
            const int fd = memfd_create("not-ours-to-write", MFD_CLOEXEC);
            ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
            union shc_record record = {};
            record.head = head_for(SHC_RECORD_OFFER, list);
            record.head.generation = 2;
            record.head.attempt = 1;
            shc_segment_name &name = record.invitation.name;
            size_t found = 0;
            ASSERT_EQ(shc_os_process_self(&name.creator), 0);
            ASSERT_EQ(shc_os_file_stat(fd, &name.file, &found), 0);
            name.bytes = bytes;
            name.creator_fd = fd;
            name.form = SHC_FORM_MEMFD;
            rank.store.set(rank.store.ctx, key_for(list, "2/1/o").c_str(), &record,
                           shc_record_bytes(&record));
            Made made = make(config_of(1, 2, rank.store, 200 * SHC_NS_PER_MS));
            EXPECT_NE(made.status, SHC_OK);
            std::string content(bytes, '\1');
            ASSERT_EQ(pread(fd, content.data(), bytes, 0), static_cast<ssize_t>(bytes));
            EXPECT_EQ(content.find_first_not_of('\0'), std::string::npos);
            close(fd);
        },
        without_group());
}

// ---- which ranks belong together ----

Made make_of(const Rank &rank, const std::vector<int32_t> &ranks, uint64_t timeout_ns)
{
    const auto place = std::find(ranks.begin(), ranks.end(), rank.rank);
    shc_comm_config config = config_of(static_cast<int>(place - ranks.begin()),
                                       static_cast<int>(ranks.size()), rank.store, timeout_ns);
    config.global_ranks = ranks.data();
    return make(config);
}

void until_made(const Rank &rank, uint64_t list, const char *rest)
{
    const std::string key = key_for(list, rest);
    const char *keys[] = {key.c_str()};
    while (rank.store.check(rank.store.ctx, keys, 1) != 0)
        usleep(200);
}

class Lists : public ::testing::TestWithParam<Mode>
{
};

TEST_P(Lists, DisjointOnesMakeGroupsUnderOneName)
{
    run_ranks(
        GetParam(), 4,
        [](Rank &rank) {
            const std::vector<std::vector<int32_t>> both = {{0, 2}, {3, 1}};
            const std::vector<int32_t> &mine = both[static_cast<size_t>(rank.rank % 2)];
            for (int i = 0; i < 3; i++) { // in later generations, too
                Made made = make_of(rank, mine, 20 * SHC_NS_PER_S);
                ASSERT_EQ(made.status, SHC_OK) << made.text;
                const shc_op op = op_of(SHC_BARRIER);
                EXPECT_EQ(shc_run(made.comm, &op), SHC_OK) << error_text();
                shc_comm_free(made.comm);
            }
        },
        without_group());
}

TEST_P(Lists, ThatOverlapAreToldToAllRanks)
{
    const std::vector<std::vector<std::vector<int32_t>>> cases = {
        {{0, 1, 2}, {1, 0, 2}, {1, 0, 2}}, // another order
        {{0, 1, 2}, {0, 1}, {0, 1, 2}},
        {{0, 1}, {1, 2}, {0, 2}},
        {{0, 1, 2}, {2, 1}, {2, 1}}, // which two of them have, before the third comes
    };
    for (const auto &lists : cases)
        run_ranks(GetParam(), 3, [&lists](Rank &rank) {
            const bool pair = lists[1] == lists[2] && lists[1].size() == 2 && rank.rank != 0;
            if (lists[1].size() == 2 && rank.rank == 0)
                usleep(20000);
            Made made = make_of(rank, lists[static_cast<size_t>(rank.rank)], 20 * SHC_NS_PER_S);
            if (made.status == SHC_OK && pair) {
                shc_comm_free(made.comm);
                return;
            }
            ASSERT_EQ(made.status, SHC_ERR_MISMATCH) << made.text;
            expect_has(made.text, "the ranks differ about the members of the group \"mine\"");
            expect_has(made.text, " of the job makes it of the ranks ");
            EXPECT_LT(made.took_ns, 10 * SHC_NS_PER_S);
        });
}

// What a rank did in an earlier process, or in a group that has been made, is no sign of anything.
TEST_P(Lists, OfAnEarlierLifeAreForgotten)
{
    run_ranks(
        GetParam(), 3,
        [](Rank &rank) {
            for (const std::vector<int32_t> &ranks :
                 {std::vector<int32_t>{0, 1, 2}, {1, 2}, {2, 1}, {2, 1, 0}, {0, 1, 2}}) {
                if (ranks[2 % ranks.size()] == 0 && rank.rank == 0)
                    until_made(rank, list_of({2, 1}), "1/d"); // it would come first
                if (std::find(ranks.begin(), ranks.end(), rank.rank) == ranks.end())
                    continue;
                Made made = make_of(rank, ranks, 20 * SHC_NS_PER_S);
                ASSERT_EQ(made.status, SHC_OK) << made.text;
                shc_comm_free(made.comm);
            }
        },
        without_group());
}

INSTANTIATE_TEST_SUITE_P(All, Lists, ::testing::ValuesIn(all_modes()),
                         [](const auto &one) { return mode_name(one.param); });

// Each as rank 0, the other one waiting already, or at the same time.
TEST(TwoProcesses, AsOneRankAreToldToBoth)
{
    for (int wait_ms : {100, 100, 0, 0, 0, 0})
        run_ranks(
            Mode::kProcesses, 2,
            [wait_ms](Rank &rank) {
                usleep(static_cast<useconds_t>(rank.rank * wait_ms * 1000));
                Made made = make(config_of(0, 2, rank.store, 20 * SHC_NS_PER_S));
                EXPECT_EQ(made.status, SHC_ERR_MISMATCH) << made.text;
                expect_has(made.text, "two processes came as rank 0 of \"mine\": pid ");
                expect_has(made.text, std::to_string(getpid()));
                EXPECT_LT(made.took_ns, 10 * SHC_NS_PER_S);
            },
            without_group());
}

} // namespace
