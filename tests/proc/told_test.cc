// SPDX-License-Identifier: BSD-3-Clause

// One rank dies, another is told of it, leaves and ends. A third that
// sees both is told of the death, not of the rank that has ended because of it. Ranks are processes.
#include "tests/support/ranks.h"

#include <atomic>
#include <csignal>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

extern "C" {
#include "shm/proto/liveness.h"
#include "shm/proto/member.h"
}

using namespace shmcoll::test;

namespace
{

const int kWorld = 3;

shc_status barrier(shc_comm *comm)
{
    shc_op op = op_of(SHC_BARRIER);
    return shc_run(comm, &op);
}

// On one element; a receive from `peer`.
shc_status run_on_one(shc_comm *comm, shc_op_kind kind, int peer = 0)
{
    float value = 0;
    const int64_t size = 1;
    shc_tensor tensor = {&value, 1, &size, nullptr};
    shc_op op = op_of(kind);
    op.input = op.output = {&tensor, 1};
    op.peer = peer;
    return shc_run(comm, &op);
}

void until(const std::function<bool()> &true_at_last)
{
    while (!true_at_last())
        usleep(500); // a rank that hangs here is ended by the run's limit
}

void until_gone(const shc_comm *comm, int rank)
{
    until([=] { return shc_member_process_gone(&comm->seat, rank); });
}

void until_left(const shc_comm *comm, int rank)
{
    until([=] { return shc_member_look(&comm->seat, rank) == SHC_MEMBER_LEFT; });
}

char state_of(const shc_comm *comm, int rank)
{
    bool dumping;
    return shc_os_process_state(&comm->seat.self,
                                &shc_seat_identity_shm(&comm->seat, rank)->said.process, &dumping);
}

std::string name_of(const shc_comm *comm, int rank)
{
    int pid = shc_seat_pid(&comm->seat, rank);
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ") ";
}

// Without a goodbye; run_ranks() wants no rank to end by a signal.
[[noreturn]] void die()
{
    _exit(0);
}

// A rank that is told leaves everything and ends.
[[noreturn]] void end(Rank &rank, shc_comm *other)
{
    shc_comm_free(other);
    shc_comm_free(rank.comm);
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
}

void expect_death(shc_status status, const std::string &who)
{
    EXPECT_EQ(status, SHC_ERR_PEER_DEAD) << error_text();
    EXPECT_NE(error_text().find(who + "died"), std::string::npos) << error_text();
}

// Rank `told` hears of the death in another group, whose failure no other rank learns: it just leaves.
void is_told_elsewhere(Rank &rank, shc_comm *other, int victim)
{
    expect_death(barrier(other), name_of(other, victim));
    end(rank, other);
}

class Told : public ::testing::TestWithParam<int>
{
};

// All six assignments of roles, because a waiting rank looks at the others in the order of ranks.
TEST_P(Told, ElsewhereInTheCallThatMissesWhoHasLeft)
{
    const int victim = GetParam() % 3, told = (victim + 1 + GetParam() / 3) % 3;
    run_ranks(Mode::kProcesses, kWorld, [=](Rank &rank) {
        shc_comm *other = nullptr;
        ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
        if (rank.rank == victim)
            die();
        if (rank.rank == told)
            is_told_elsewhere(rank, other, victim);
        const std::string who = name_of(other, victim);
        until_left(rank.comm, told);
        shc_comm_free(other); // this rank has not looked whether it failed
        expect_death(barrier(rank.comm), who);
    });
}

// The same if the life word says nothing: the process writes a core dump, or has no robust list.
TEST_P(Told, ElsewhereWhileTheLifeWordIsSilent)
{
    const int victim = GetParam() % 3, told = (victim + 1 + GetParam() / 3) % 3;
    run_ranks(Mode::kProcesses, kWorld, [=](Rank &rank) {
        shc_comm *other = nullptr;
        ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
        if (rank.rank == victim) {
            shc_liveness_unlink(rank.comm->liveness,
                                &shc_seat_member(&rank.comm->seat, victim)->life);
            die();
        }
        if (rank.rank == told) {
            until_gone(other, victim);
            is_told_elsewhere(rank, other, victim);
        }
        const std::string who = name_of(other, victim);
        until_left(rank.comm, told);
        shc_comm_free(other);
        expect_death(barrier(rank.comm), who);
    });
}

INSTANTIATE_TEST_SUITE_P(Casts, Told, ::testing::Range(0, 6));

// A survivor whose last call went well makes the next group, to which neither of the two will come.
TEST(ToldAtTheRendezvous, InTheGroupThatHasFailed)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        const std::string who = name_of(rank.comm, 2);
        if (rank.rank == 2)
            die();
        if (rank.rank == 0) { // looked at first
            expect_death(barrier(rank.comm), who);
            end(rank, nullptr);
        }
        until_gone(rank.comm, 0);
        shc_comm *next = nullptr;
        expect_death(rank.make_group(&next, "next"), who);
    });
}

TEST(ToldAtTheRendezvous, InAnotherGroup)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        const std::string who = name_of(rank.comm, 2);
        shc_comm *other = nullptr;
        ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
        if (rank.rank == 2)
            die();
        if (rank.rank == 0)
            is_told_elsewhere(rank, other, 2);
        until_gone(rank.comm, 0);
        shc_comm_free(other);
        shc_comm *next = nullptr;
        EXPECT_EQ(rank.make_group(&next, "next"), SHC_ERR_PEER_DEAD) << error_text();
        EXPECT_EQ(error_text().find(who + "has died"), 0u) << error_text();
    });
}

// No rank died before the one that ended: it is the one to name, with what it did.
TEST(ToldAtTheRendezvous, OfNobodyNamesWhoEnded)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        if (rank.rank == 0)
            end(rank, nullptr);
        until_gone(rank.comm, 0);
        shc_comm *next = nullptr;
        EXPECT_EQ(rank.make_group(&next, "next"), SHC_ERR_PEER_DEAD) << error_text();
        EXPECT_NE(error_text().find(name_of(rank.comm, 0) + "has died or ended, as"),
                  std::string::npos)
            << error_text();
    });
}

// A rank that was stopped meanwhile sees at once that its peer has left, and that the group has failed.
TEST(ToldMessages, OfTheGroupsFailureBeforeThePeersDeparture)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        const std::string who = name_of(rank.comm, 2);
        const int witness = 1;
        if (rank.rank == witness) {
            float value = 0;
            int64_t size = 1;
            shc_tensor tensor = {&value, 1, &size, nullptr};
            shc_op recv = op_of(SHC_RECV);
            recv.output = {&tensor, 1};
            recv.peer = 0;
            shc_request *request = nullptr;
            ASSERT_EQ(shc_submit(rank.comm, &recv, nullptr, &request), SHC_OK) << error_text();
            raise(SIGSTOP);
            expect_death(shc_request_wait(request, 0), who);
            shc_request_release(request);
            return;
        }
        until([&] { return state_of(rank.comm, witness) == 'T'; });
        if (rank.rank == 2)
            die();
        expect_death(barrier(rank.comm), who);
        pid_t pid = shc_seat_pid(&rank.comm->seat, witness);
        shc_comm_free(rank.comm);
        rank.comm = nullptr;
        usleep(50000); // the witness's next look at the members is due
        kill(pid, SIGCONT);
    });
}

// The one takes another path because it was told; the other must not take that for the fault.
TEST(ToldCalls, ThatDifferAreNotTheFaultWhereSomebodyDied)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        const std::string who = name_of(rank.comm, 0);
        const shc_seat *seat = &rank.comm->seat;
        if (rank.rank == 2) {
            expect_death(barrier(rank.comm), who);
            return;
        }
        struct shc_call call;
        if (rank.rank == 0) {
            until([&] { return state_of(rank.comm, 2) == 'T'; });
            die();
        }
        until([&] { return shc_call_latest(seat, 2, &call) == 1; });
        pid_t pid = shc_seat_pid(seat, 2);
        kill(pid, SIGSTOP); // it waits for rank 0, and cannot find it dead
        until_gone(rank.comm, 0);
        expect_death(run_on_one(rank.comm, SHC_ALL_REDUCE), who);
        kill(pid, SIGCONT);
    });
}

TEST(ToldCalls, ThatDifferAreNotTheFaultWhereNoLifeWordShowsTheDeath)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        shc_comm *other = nullptr;
        ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
        const std::string who = name_of(rank.comm, 0);
        if (rank.rank == 0) {
            shc_liveness_unlink(rank.comm->liveness, &shc_seat_member(&rank.comm->seat, 0)->life);
            die();
        }
        if (rank.rank == 2) { // told by the other group, it takes another path
            until_gone(other, 0);
            expect_death(barrier(other), who);
            expect_death(run_on_one(rank.comm, SHC_ALL_REDUCE), who);
        } else {
            struct shc_call call;
            until([&] { return shc_call_latest(&rank.comm->seat, 2, &call) != 0; });
            expect_death(barrier(rank.comm), who);
        }
        shc_comm_free(other);
    });
}

TEST(ToldMessages, OfWhoWasToldElsewhereAndLeft)
{
    for (int peer : {2, SHC_ANY_SOURCE})
        run_ranks(Mode::kProcesses, kWorld, [peer](Rank &rank) {
            shc_comm *other = nullptr;
            ASSERT_EQ(rank.make_group(&other, "other"), SHC_OK) << error_text();
            const std::string who = name_of(rank.comm, 0);
            if (rank.rank == 0)
                die();
            if (rank.rank == 2)
                is_told_elsewhere(rank, other, 0);
            until_left(rank.comm, 2);
            expect_death(run_on_one(rank.comm, SHC_RECV, peer), who);
            shc_comm_free(other);
        });
}

// Two deaths, and no rank knows which was first: the rank that cannot come is named, not the other one.
TEST(ToldAtTheRendezvous, OfTwoDeathsTheOneThatIsMissed)
{
    run_ranks(Mode::kProcesses, kWorld, [](Rank &rank) {
        const std::string who = name_of(rank.comm, 0);
        if (rank.rank == 0)
            die();
        if (rank.rank == 2) { // as when a launcher ends what is left
            until_gone(rank.comm, 0);
            die();
        }
        until_gone(rank.comm, 2);
        shc_comm *next = nullptr;
        EXPECT_EQ(rank.make_group(&next, "next"), SHC_ERR_PEER_DEAD) << error_text();
        EXPECT_EQ(error_text().find(who), 0u) << error_text();
    });
}

TEST(Leaving, NothingIsPublishedBehindIt)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        shc_call call;
        if (rank.rank == 1) {
            ASSERT_EQ(barrier(rank.comm), SHC_OK) << error_text();
            until_left(rank.comm, 0);
            EXPECT_EQ(barrier(rank.comm), SHC_ERR_PEER_LEFT) << error_text();
            EXPECT_EQ(shc_call_latest(&rank.comm->seat, 0, &call), 1u);
            return;
        }
        ASSERT_EQ(barrier(rank.comm), SHC_OK) << error_text();
        // What exit() does in another thread while this one is between its look at the group and the runner.
        std::thread(shc_process_leave).join();
        const shc_op op = op_of(SHC_BARRIER);
        shc_inside inside;
        shc_task task = {};
        ASSERT_TRUE(shc_engine_enter(&rank.comm->engine, &inside));
        ASSERT_EQ(shc_task_prepare(&task, rank.comm, &op), SHC_OK) << error_text();
        EXPECT_EQ(shc_comm_execute(rank.comm, &task), SHC_ERR_CLOSED) << error_text();
        shc_engine_leave(&inside);
        fflush(nullptr);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    });
}

} // namespace
