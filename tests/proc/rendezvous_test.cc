// SPDX-License-Identifier: BSD-3-Clause
// What goes through the store at the rendezvous, and what does not. docs/PROTOCOL.md, section 7.
#include "tests/support/ranks.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

using namespace shmcoll::test;

namespace
{

// The run's store, with what a test does to it.
struct Watched {
    shc_store inner;
    bool hides_decisions = false; // nobody finds one by looking
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

// Rank 0 stops when the store has its decision, before it can tell anybody: the others find it.
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

} // namespace
