// SPDX-License-Identifier: BSD-3-Clause

// Life and death of ranks: what the survivors are told, and when.
// Ranks are processes.
#include "tests/support/calm_clock.h"
#include "tests/support/ranks.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern "C" {
#include "shm/proto/liveness.h"
#include "shm/proto/member.h"
}

using namespace shmcoll::test;

namespace
{

// Memory that all ranks of a test share, for times and pids: made before the fork.
struct Shared {
    std::atomic<uint64_t> died_ns{0};
    std::atomic<int> ready{0};
    std::atomic<int> done{0};
    std::atomic<int> pids[8] = {};
};

Shared *shared()
{
    void *memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) Shared();
}

void print_delay(const char *what, int rank, uint64_t ns)
{
    printf("    %s: rank %d told after %.2f ms\n", what, rank,
           static_cast<double>(ns) / static_cast<double>(SHC_NS_PER_MS));
}

const uint64_t kPromiseNs = 100 * SHC_NS_PER_MS;

// Prepares, calls `now`, and ends the process.
using Die = std::function<void(const std::function<void()> &now)>;

// Rank `victim` ends by `die` while the others are inside a barrier it never enters.
void survivors_are_told(const char *what, int world, int victim, const Die &die,
                        shc_status expected = SHC_ERR_PEER_DEAD, uint64_t promise_ns = kPromiseNs)
{
    Shared *memory = shared();
    std::vector<pid_t> pids;
    char pattern[] = "/tmp/shmcoll-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    for (int r = 0; r < world; r++) {
        pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid != 0) {
            pids.push_back(pid);
            continue;
        }
        Rank rank = {r, world, Mode::kProcesses, nullptr, {}, {}, 20 * SHC_NS_PER_S};
        if (shc_store_dir_open(pattern, &rank.store) != SHC_OK ||
            rank.make_group(&rank.comm, "death") != SHC_OK)
            _exit(2);
        shc_op barrier = op_of(SHC_BARRIER);
        if (shc_run(rank.comm, &barrier) != SHC_OK)
            _exit(3);
        if (r == victim) {
            shc_os_sleep_ns(50 * SHC_NS_PER_MS);
            die([memory] { memory->died_ns = shc_clock_ns(); });
            _exit(4);
        }
        shc_status status = shc_run(rank.comm, &barrier);
        uint64_t told_ns = shc_clock_ns() - memory->died_ns;
        std::string text = error_text();
        print_delay(what, r, told_ns);
        bool good = status == expected && told_ns < promise_ns &&
                    text.find("rank " + std::to_string(victim)) != std::string::npos &&
                    text.find("barrier #2") != std::string::npos;
        if (!good)
            fprintf(stderr, "rank %d: %s: %s\n", r, shc_status_name(status), text.c_str());
        // The next call fails at once, and leaving needs no other rank.
        uint64_t begun_ns = shc_clock_ns();
        good = good && shc_run(rank.comm, &barrier) == expected;
        // A new group does not wait for a rank that died in this one.
        shc_comm *next = nullptr;
        if (expected == SHC_ERR_PEER_DEAD) {
            good = good && rank.make_group(&next, "next") == SHC_ERR_PEER_DEAD &&
                   error_text().find("rank " + std::to_string(victim)) != std::string::npos &&
                   shc_clock_ns() - begun_ns < promise_ns;
        }
        shc_comm_free(rank.comm);
        good = good && shc_clock_ns() - begun_ns < 10 * promise_ns;
        fflush(nullptr);
        _exit(good ? 0 : 1);
    }
    for (int r = 0; r < world; r++) {
        int status = 0;
        ASSERT_EQ(waitpid(pids[static_cast<size_t>(r)], &status, 0), pids[static_cast<size_t>(r)]);
        if (r != victim) {
            EXPECT_EQ(status, 0) << what << ", rank " << r;
        }
    }
    std::string remove = std::string("rm -r ") + pattern;
    EXPECT_EQ(system(remove.c_str()), 0);
    EXPECT_EQ(leftovers(), std::vector<std::string>());
    munmap(memory, sizeof(Shared));
}

TEST(Death, ByKillIsToldWithin100Milliseconds)
{
    for (int world : {2, 4, 8})
        survivors_are_told("SIGKILL", world, world / 2, [](auto now) {
            now();
            kill(getpid(), SIGKILL);
        });
}

// A thread can sleep on 128 words at once, so most of these ranks do not sleep on the life word of the one that dies.
TEST(Death, IsToldToMoreRanksThanAThreadCanSleepOn)
{
    survivors_are_told(
        "SIGKILL", 140, 7,
        [](auto now) {
            shc_os_sleep_ns(SHC_NS_PER_S); // most of the others are parked by then
            now();
            kill(getpid(), SIGKILL);
        },
        SHC_ERR_PEER_DEAD, 10 * SHC_NS_PER_S);
}

TEST(Death, ByExitWithoutGoodbyeIsADeath)
{
    survivors_are_told("_exit", 3, 0, [](auto now) {
        now();
        _exit(0);
    });
}

TEST(Death, ByExecIsADeath)
{
    survivors_are_told("exec", 3, 1, [](auto now) {
        now();
        execl("/bin/sleep", "sleep", "0.5", nullptr);
    });
}

TEST(Death, BySegmentationFaultIsTold)
{
    survivors_are_told("SIGSEGV", 3, 2, [](auto now) {
        rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        now();
        kill(getpid(), SIGSEGV);
        pause();
    });
}

// The kernel marks the life word only after the dump, which takes seconds. Parked ranks look for dumps.
TEST(Death, WhileWritingAGigabyteOfCoreIsTold)
{
    survivors_are_told(
        "SIGSEGV with a 1 GiB core", 3, 1,
        [](auto now) {
            ASSERT_EQ(chdir("/tmp"), 0);
            char directory[] = "/tmp/shmcoll-core-XXXXXX";
            ASSERT_NE(mkdtemp(directory), nullptr);
            ASSERT_EQ(chdir(directory), 0);
            // Removed by a child that outlives the test, as soon as the dump is over.
            if (fork() == 0) {
                pid_t parent = getppid();
                while (kill(parent, 0) == 0)
                    usleep(20000);
                std::string remove = std::string("rm -r ") + directory;
                _exit(system(remove.c_str()) == 0 ? 0 : 1);
            }
            size_t bytes = size_t{1} << 30;
            char *memory = static_cast<char *>(
                mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            memset(memory, 1, bytes);
            rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
            setrlimit(RLIMIT_CORE, &all);
            signal(SIGSEGV, SIG_DFL);
            now();
            raise(SIGSEGV);
        },
        SHC_ERR_PEER_DEAD, SHC_NS_PER_S);
}

// A big process takes long to tear down; its life word is marked before that.
TEST(Death, OfAFourGigabyteProcessIsToldAsFast)
{
    survivors_are_told("SIGKILL of 4 GiB", 2, 1, [](auto now) {
        size_t bytes = size_t{4} << 30;
        char *memory = static_cast<char *>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        for (size_t i = 0; i < bytes; i += 4096)
            memory[i] = 1;
        now();
        kill(getpid(), SIGKILL);
    });
}

TEST(Death, IsToldAlthoughAForkedChildOfTheDeadLives)
{
    survivors_are_told("SIGKILL with a living child", 3, 1, [](auto now) {
        if (fork() == 0) {
            usleep(500000);
            _exit(0);
        }
        now();
        kill(getpid(), SIGKILL);
    });
}

// ---- leaving ----

// Words that a process shares, each with private memory at the right distance before it.
std::vector<shc_a32 *> make_words(size_t count)
{
    const size_t each = 8, page = SHC_OS_ROBUST_DISTANCE;
    std::vector<shc_a32 *> words;
    while (words.size() < count) {
        char *memory = static_cast<char *>(
            mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_EQ(mmap(memory + page, page, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                  memory + page);
        for (size_t at = 0; at < page && words.size() < count; at += each)
            words.push_back(reinterpret_cast<shc_a32 *>(memory + page + at));
    }
    return words;
}

// One word for each group. The kernel's walk over a thread's words ends after 2048.
TEST(Death, MarksTheWordOfEachOfFiveThousandGroups)
{
    const std::vector<shc_a32 *> words = make_words(5000);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
        shc_liveness *first;
        std::vector<shc_liveness *> livenesss;
        if (shc_liveness_start(&first) != SHC_OK || !shc_liveness_marks(first))
            _exit(1);
        for (shc_a32 *word : words)
            livenesss.push_back(shc_liveness_link(first, word));
        for (size_t i = 0; i < words.size(); i += 2)
            shc_liveness_unlink(livenesss[i], words[i]);
        for (size_t i = 0; i < words.size(); i += 2)
            shc_liveness_link(livenesss[i], words[i]);
        shc_liveness_unlink(livenesss[1], words[1]);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the kernel marks no words here";
    size_t marked = 0;
    for (const shc_a32 *word : words)
        marked += (shc_a32_load_acquire(word) & SHC_OS_OWNER_DIED) != 0;
    EXPECT_EQ(marked, words.size() - 1);
    EXPECT_EQ(shc_a32_load_acquire(words[1]), 0u);
}

TEST(Leaving, PoisonsNobodyAndIsNamedToWhoNeedsTheRank)
{
    run_ranks(Mode::kProcesses, 3, [](Rank &rank) {
        shc_op barrier = op_of(SHC_BARRIER);
        ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        if (rank.rank == 2)
            return; // closes the group on its way out
        for (int i = 0; i < 2; i++) {
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_PEER_LEFT);
            EXPECT_NE(error_text().find("rank 2"), std::string::npos) << error_text();
            EXPECT_NE(error_text().find("has left"), std::string::npos) << error_text();
        }
        EXPECT_EQ(shc_comm_error(rank.comm), SHC_OK) << "nobody is poisoned";
    });
}

// The last operation of a rank that leaves at once reaches the others all the same.
TEST(Leaving, RightAfterAnOperationLosesNothing)
{
    for (int round = 0; round < 50; round++) {
        run_ranks(Mode::kProcesses, 3, [](Rank &rank) {
            std::vector<float> values(100000, 1.f);
            int64_t size = 100000;
            shc_tensor tensor = {values.data(), 1, &size, nullptr};
            shc_op op = op_of(SHC_ALL_REDUCE);
            op.input = op.output = {&tensor, 1};
            if (rank.rank == 1)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            EXPECT_EQ(values, std::vector<float>(100000, 3.f));
        });
        if (HasFailure())
            return;
    }
}

// A rank that has all it needs from the one that ended gets the right result, also while it still waits
// for another one.
TEST(Leaving, WithoutAGoodbyeRightAfterACallLosesNothingEither)
{
    const int64_t size = 4 << 20;
    for (int round = 0; round < 20; round++)
        run_ranks(Mode::kProcesses, 3, [=](Rank &rank) {
            std::vector<float> values(static_cast<size_t>(size), static_cast<float>(rank.rank + 1));
            shc_tensor tensor = {values.data(), 1, &size, nullptr};
            shc_op reduce = op_of(SHC_REDUCE);
            reduce.input = reduce.output = {&tensor, 1};
            reduce.root = round % 3;
            const int ends = (reduce.root + 1 + round % 2) % 3;
            ASSERT_EQ(shc_run(rank.comm, &reduce), SHC_OK) << error_text();
            if (rank.rank == ends)
                _exit(0);
            if (rank.rank == reduce.root) {
                EXPECT_EQ(values[0], 6);
                EXPECT_EQ(values.back(), 6);
            }
            shc_op barrier = op_of(SHC_BARRIER);
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_PEER_DEAD) << error_text();
            EXPECT_NE(error_text().find("rank " + std::to_string(ends) + " (pid"),
                      std::string::npos)
                << error_text();
        });
}

TEST(Leaving, ByTheEndOfMainIsAGoodbye)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        shc_op barrier = op_of(SHC_BARRIER);
        ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        if (rank.rank == 1)
            exit(HasFailure() ? 1 : 0); // runs the exit handlers, frees no group
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_PEER_LEFT) << error_text();
    });
}

// Rank 1 ends by exit(), and comes to its end that much later. Returns when rank 0 was told, and whether
// rank 1's process had ended by then.
void end_late(unsigned late_ms, uint64_t *told_ns, bool *ended)
{
    static unsigned exit_takes_ms;
    static Shared *memory;
    memory = shared();
    exit_takes_ms = late_ms;
    Options options;
    options.before = [](int rank) {
        if (rank == 1) // before the library's own handler is there, so it runs after that one
            atexit([] { shc_os_sleep_ns(exit_takes_ms * SHC_NS_PER_MS); });
    };
    run_ranks(
        Mode::kProcesses, 2,
        [](Rank &rank) {
            shc_op barrier = op_of(SHC_BARRIER);
            ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
            if (rank.rank == 1) {
                memory->died_ns = shc_clock_ns();
                exit(::testing::Test::HasFailure() ? 1 : 0);
            }
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_PEER_LEFT) << error_text();
            EXPECT_NE(error_text().find("rank 1 (pid"), std::string::npos) << error_text();
            memory->done = shc_member_process_gone(&rank.comm->seat, 1) ? 2 : 1;
            memory->died_ns = shc_clock_ns() - memory->died_ns;
        },
        options);
    *told_ns = memory->died_ns;
    *ended = memory->done == 2;
}

// So a launcher finds that process first, and not one that ended because it was told.
TEST(Leaving, AtTheEndOfAProcessIsToldWhenThatHasEnded)
{
    uint64_t told_ns;
    bool ended;
    end_late(400, &told_ns, &ended);
    EXPECT_TRUE(ended) << "told after " << told_ns << " ns";
    EXPECT_GE(told_ns, 400 * SHC_NS_PER_MS);
}

TEST(Leaving, OfAProcessThatHangsAtItsEndIsToldAfterASecond)
{
    uint64_t told_ns;
    bool ended;
    end_late(4000, &told_ns, &ended);
    EXPECT_FALSE(ended) << "told after " << told_ns << " ns";
    EXPECT_GE(told_ns, SHC_NS_PER_S);
}

// ---- time ----

std::string captured_log(const std::function<void()> &body)
{
    char path[] = "/tmp/shmcoll-log-XXXXXX";
    int file = mkstemp(path), saved = dup(2);
    dup2(file, 2);
    body();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    close(file);
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    unlink(path);
    return text.str();
}

TEST(Late, AStoppedRankIsNamedAsStoppedAndTheCallEndsWhenItGoesOn)
{
    Shared *memory = shared();
    Options options;
    options.before = [](int) { setenv("SHMCOLL_LATE_MS", "200", 1); };
    run_ranks(
        Mode::kProcesses, 2,
        [memory](Rank &rank) {
            memory->pids[rank.rank] = getpid();
            shc_op barrier = op_of(SHC_BARRIER);
            ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
            if (rank.rank == 1) {
                raise(SIGSTOP); // rank 0 sends SIGCONT
                EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
                return;
            }
            std::thread waker([memory] {
                usleep(1000000);
                kill(memory->pids[1], SIGCONT);
            });
            std::string log = captured_log(
                [&] { EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text(); });
            waker.join();
            EXPECT_NE(log.find("rank 0: barrier #2"), std::string::npos) << log;
            EXPECT_NE(log.find("rank 1 (pid " + std::to_string(memory->pids[1])), std::string::npos)
                << log;
            EXPECT_NE(log.find("stopped"), std::string::npos) << log;
            EXPECT_NE(log.find("last call: barrier #1"), std::string::npos) << log;
            // 200 ms, then 400 ms: two lines within a second.
            EXPECT_GE(std::count(log.begin(), log.end(), '\n'), 2) << log;
        },
        options);
    munmap(memory, sizeof(Shared));
}

// The operation itself says nothing any more.
TEST(Late, ACallbackThatDoesNotReturnIsNamed)
{
    Options options;
    options.before = [](int) { setenv("SHMCOLL_LATE_MS", "100", 1); };
    run_ranks(
        Mode::kProcesses, 2,
        [](Rank &rank) {
            const shc_request_hooks slow = {
                nullptr, [](void *, shc_status, const char *) { usleep(500000); }, nullptr};
            shc_op barrier = op_of(SHC_BARRIER);
            if (rank.rank == 1)
                usleep(50000); // until the other one has asked for its callback
            shc_request *request;
            ASSERT_EQ(shc_submit(rank.comm, &barrier, rank.rank == 0 ? &slow : nullptr, &request),
                      SHC_OK);
            EXPECT_TRUE(rank.rank == 1 || shc_request_notify(request));
            const std::string log = captured_log(
                [&] { EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text(); });
            EXPECT_EQ(log.find("the callback of barrier, which has ended") != std::string::npos,
                      rank.rank == 0)
                << log;
            shc_request_release(request);
        },
        options);
}

TEST(Late, TheTimeOutNamesWhoIsMissingAndPoisonsTheGroup)
{
    static Shared *memory;
    memory = shared();
    Options options;
    options.timeout_ns = 300 * SHC_NS_PER_MS;
    run_ranks(
        Mode::kProcesses, 3,
        [](Rank &rank) {
            shc_op barrier = op_of(SHC_BARRIER);
            if (rank.rank == 2) {
                while (memory->done < 2)
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_TIMEOUT);
                EXPECT_NE(error_text().find("found by rank"), std::string::npos) << error_text();
                return;
            }
            const uint64_t begun_ns = shc_clock_ns(), calm_ns = calm_clock_ns();
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_TIMEOUT);
            EXPECT_LE(calm_ns_since(calm_ns), 400 * SHC_NS_PER_MS);
            const bool told = error_text().find("found by rank") != std::string::npos;
            if (!told) { // else it may have begun later
                EXPECT_GE(shc_clock_ns() - begun_ns, 295 * SHC_NS_PER_MS);
            }
            memory->done++;
            EXPECT_NE(error_text().find("rank 2 (pid"), std::string::npos) << error_text();
            EXPECT_NE(error_text().find("no call yet"), std::string::npos) << error_text();
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_TIMEOUT);
        },
        options);
}

// ---- new groups after a broken one, and forks ----

TEST(Recovery, ANewGroupWorksAtOnceBehindAFailedOne)
{
    run_ranks(Mode::kProcesses, 3, [](Rank &rank) {
        shc_op barrier = op_of(SHC_BARRIER);
        for (int round = 0; round < 10; round++) {
            if (rank.rank == round % 3) {
                shc_os_sleep_ns(20 * SHC_NS_PER_MS); // the others' last call is over
                shc_comm_abort(rank.comm, "for the test");
            }
            shc_status status = shc_run(rank.comm, &barrier);
            EXPECT_EQ(status, SHC_ERR_ABORTED) << shc_status_name(status);
            shc_comm_free(rank.comm);
            rank.comm = nullptr;
            ASSERT_EQ(rank.make_group(&rank.comm, "again"), SHC_OK) << error_text();
            ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        }
    });
}

TEST(Fork, AChildCannotUseTheGroupAndMayMakeItsOwn)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        shc_op barrier = op_of(SHC_BARRIER);
        ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            bool good = shc_run(rank.comm, &barrier) == SHC_ERR_FORKED;
            shc_request *request;
            good = good && shc_submit(rank.comm, &barrier, nullptr, &request) == SHC_ERR_FORKED;
            good = good && shc_comm_error(rank.comm) == SHC_ERR_FORKED;
            shc_comm_close(rank.comm);
            shc_comm_free(rank.comm);
            shc_comm *own = nullptr;
            shc_comm_config config = {};
            config.world_size = 1;
            good = good && shc_comm_create(&config, &own) == SHC_OK;
            good = good && own != nullptr && shc_run(own, &barrier) == SHC_OK;
            shc_comm_free(own);
            exit(good ? 0 : 1); // with its exit handlers
        }
        int status;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << "the parent's group is as it was";
    });
}

// The process's state in /proc is that of its first thread: here a zombie next to a living one.
TEST(Death, IsNotTheEndOfTheFirstThread)
{
    char pattern[] = "/tmp/shmcoll-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    pid_t pids[2];
    for (int r = 0; r < 2; r++) {
        pids[r] = fork();
        ASSERT_GE(pids[r], 0);
        if (pids[r] != 0)
            continue;
        static Rank rank;
        rank = {r, 2, Mode::kProcesses, nullptr, {}, {}, 10 * SHC_NS_PER_S};
        if (shc_store_dir_open(pattern, &rank.store) != SHC_OK ||
            rank.make_group(&rank.comm, "zombie") != SHC_OK)
            _exit(2);
        std::thread worker([] {
            if (rank.rank == 1)
                usleep(400000); // the other one looks into /proc meanwhile
            shc_op barrier = op_of(SHC_BARRIER);
            shc_status status = shc_run(rank.comm, &barrier);
            if (status != SHC_OK)
                fprintf(stderr, "rank %d: %s\n", rank.rank, error_text().c_str());
            shc_comm_close(rank.comm);
            _exit(status == SHC_OK ? 0 : 1);
        });
        worker.detach();
        if (r == 1)
            syscall(SYS_exit, 0); // as pthread_exit does, without unwinding GoogleTest
        pause();
    }
    for (pid_t pid : pids) {
        int status = 0;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(system((std::string("rm -r ") + pattern).c_str()), 0);
}

// What a signal handler does inside a wait of the same thread on the same group.
struct Handler {
    shc_comm *comm = nullptr;
    int calls = 0;
    shc_status submitted = SHC_OK, waited = SHC_OK, ran = SHC_OK;
};

bool handle(void *ctx)
{
    Handler *handler = static_cast<Handler *>(ctx);
    if (handler->comm == nullptr || handler->calls++ > 0)
        return false;
    shc_op barrier = op_of(SHC_BARRIER);
    shc_request *request = nullptr;
    handler->ran = shc_run(handler->comm, &barrier);
    handler->submitted = shc_submit(handler->comm, &barrier, nullptr, &request);
    handler->waited = shc_request_wait(request, 0);
    shc_request_release(request);
    return false;
}

TEST(Interrupts, AHandlerThatCallsTheGroupItInterruptedIsToldSo)
{
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        Handler handler;
        rank.comm->seat.interrupted = handle;
        rank.comm->seat.interrupted_ctx = &handler;
        shc_op barrier = op_of(SHC_BARRIER);
        if (rank.rank == 0) {
            handler.comm = rank.comm;
        } else {
            usleep(300000);
        }
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
        if (rank.rank == 0) {
            EXPECT_EQ(handler.ran, SHC_ERR_INVALID);
            EXPECT_EQ(handler.submitted, SHC_OK); // it runs when the interrupted call has ended
            EXPECT_EQ(handler.waited, SHC_ERR_INVALID);
        } else {
            EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << "the handler's barrier";
        }
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
    });
}

TEST(Closing, WhileAnotherThreadIsBlockedEndsThatCall)
{
    static Shared *memory;
    memory = shared();
    run_ranks(Mode::kProcesses, 2, [](Rank &rank) {
        if (rank.rank == 1) {
            while (memory->done == 0)
                shc_os_sleep_ns(SHC_NS_PER_MS);
            return;
        }
        std::atomic<uint64_t> closed_ns{0};
        std::thread closer([&] {
            usleep(50000);
            closed_ns = calm_clock_ns();
            shc_comm_close(rank.comm);
        });
        shc_op barrier = op_of(SHC_BARRIER);
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_CLOSED) << error_text();
        EXPECT_LE(calm_ns_since(closed_ns), 100 * SHC_NS_PER_MS);
        memory->done = 1;
        closer.join();
    });
}

TEST(Aborting, FromAnotherThreadEndsBlockedCallsOnAllRanks)
{
    run_ranks(Mode::kProcesses, 3, [](Rank &rank) {
        if (rank.rank == 2) {
            usleep(100000);
            shc_comm_abort(rank.comm, "enough");
            return;
        }
        shc_op barrier = op_of(SHC_BARRIER);
        EXPECT_EQ(shc_run(rank.comm, &barrier), SHC_ERR_ABORTED);
        EXPECT_NE(error_text().find("enough"), std::string::npos) << error_text();
    });
}

} // namespace
