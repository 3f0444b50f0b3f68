// SPDX-License-Identifier: BSD-3-Clause

// Blocks that the kernel copies out of the root's memory: ranks that
// cannot take part, and a root that gives up while others copy. collectives_test checks that results are
// right.
#include "tests/conformance/world.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern "C" {
#include "shm/proto/cma.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kCount = 100001; // of floats, a block

Options pulling(const char *from = "1")
{
    Options options;
    options.tuning = std::string("scatter.single_copy_from=") + from;
    return options;
}

uint64_t pulled_of(const Rank &rank)
{
    return shc_a64_load_relaxed(&rank.comm->seat.single_copies);
}

// From rank 0, which gives `from`.
shc_status scatter(const Rank &rank, const shc_tensors &from, const shc_tensor &to,
                   uint64_t timeout_ns = 0)
{
    shc_op op = op_of(SHC_SCATTER);
    op.timeout_ns = timeout_ns;
    if (rank.rank == 0)
        op.input = from;
    op.output = {&to, 1};
    return shc_run(rank.comm, &op);
}

// With `gaps` this rank has its values in every second place.
void scatter_vectors(const Rank &rank, size_t count = kCount, bool gaps = false)
{
    const size_t step = gaps ? 2 : 1;
    const int64_t size = static_cast<int64_t>(count), stride = static_cast<int64_t>(step);
    std::vector<std::vector<float>> blocks;
    std::vector<shc_tensor> from;
    for (int r = 0; rank.rank == 0 && r < rank.world; r++) {
        const std::vector<float> values = input_of(r, count);
        blocks.emplace_back(count * step, -1.f);
        for (size_t i = 0; i < count; i++)
            blocks.back()[i * step] = values[i];
        from.push_back({blocks.back().data(), 1, &size, &stride});
    }
    std::vector<float> out(count * step, -1.f);
    const shc_tensor to = {out.data(), 1, &size, &stride};
    ASSERT_EQ(scatter(rank, {from.data(), static_cast<uint32_t>(from.size())}, to), SHC_OK)
        << error_text();
    const std::vector<float> wanted = input_of(rank.rank, count);
    size_t wrong = 0;
    for (size_t i = 0; i < out.size(); i++)
        wrong += out[i] != (i % step == 0 ? wanted[i / step] : -1.f);
    EXPECT_EQ(wrong, 0u);
}

TEST(Pulls, AreNotForMemoryWithGapsOnAnyRank)
{
    for (Mode mode : modes())
        run_ranks(
            mode, 3,
            [](Rank &rank) {
                scatter_vectors(rank);
                EXPECT_EQ(pulled_of(rank), 1u);
                scatter_vectors(rank, kCount, rank.rank == 0);
                scatter_vectors(rank, kCount, rank.rank == 2);
                EXPECT_EQ(pulled_of(rank), 1u);
                scatter_vectors(rank);
                EXPECT_EQ(pulled_of(rank), 2u);
            },
            pulling());
}

TEST(Pulls, BeginWhereTheTuningSaysSo)
{
    run_ranks(
        all_modes().front(), 3,
        [](Rank &rank) {
            for (size_t count : {12799u, 12800u, 12799u}) // two others
                scatter_vectors(rank, count);
            EXPECT_EQ(pulled_of(rank), 1u);
        },
        pulling("100k"));
}

TEST(Pulls, AreLeftAloneWhereTheyAreNotWanted)
{
    for (int why = 0; why < 3; why++) {
        Options options = pulling(why == 0 ? "never" : "1");
        options.knobs.no_cma = why == 1;
        run_ranks(
            all_modes().front(), why == 2 ? 2 : 3,
            [](Rank &rank) {
                scatter_vectors(rank);
                EXPECT_EQ(pulled_of(rank), 0u);
            },
            options);
    }
}

// One rank is told not to: all keep to staging memory.
TEST(Pulls, NeedEveryRankToBeAble)
{
    Options options = pulling();
    options.make_group = false;
    run_ranks(
        all_modes().front(), 3,
        [](Rank &rank) {
            rank.knobs.no_cma = rank.rank == 1;
            ASSERT_EQ(rank.make_group(&rank.comm), SHC_OK) << error_text();
            scatter_vectors(rank);
            EXPECT_EQ(pulled_of(rank), 0u);
        },
        options);
}

// The pages of the kernel's clock, which it maps into every process and copies for no process.
std::pair<uintptr_t, size_t> memory_of_the_kernel()
{
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("[vvar]") == std::string::npos)
            continue;
        std::istringstream fields(line);
        uintptr_t begin, end;
        char dash;
        fields >> std::hex >> begin >> dash >> end;
        return {begin, end - begin};
    }
    return {0, 0};
}

// Only its own process can read memory that a driver has mapped (pinned for a GPU, say).
TEST(Pulls, AreNotForMemoryThatTheKernelDoesNotCopy)
{
    char byte;
    const auto [address, bytes] = memory_of_the_kernel();
    ASSERT_NE(bytes, 0u) << "no such memory here";
    ASSERT_EQ(shc_os_process_read(shc_os_thread_id(), address, &byte, 1), EFAULT);
    Options options = pulling();
    options.tuning += ",inline=0,small=0";
    run_ranks(
        Mode::kOwnMapping, 3,
        [](Rank &rank) {
            const int64_t size = 8;
            float values[3][8] = {}, out[8];
            std::vector<shc_tensor> from;
            for (float *block : values)
                from.push_back({block, 1, &size, nullptr});
            const shc_tensor to = {out, 1, &size, nullptr};
            from[1].data = reinterpret_cast<void *>(memory_of_the_kernel().first); // NOLINT
            ASSERT_EQ(scatter(rank, {from.data(), 3}, to), SHC_OK) << error_text();
            EXPECT_EQ(pulled_of(rank), 0u);
            from[1].data = values[1];
            ASSERT_EQ(scatter(rank, {from.data(), 3}, to), SHC_OK) << error_text();
            EXPECT_EQ(pulled_of(rank), 1u);
        },
        options);
}

// As in containers, and where a process may not look into its siblings.
void forbid_reading_others()
{
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {sizeof program / sizeof program[0], program};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(Pulls, NeedEveryRankToReachTheRoot)
{
    Options options = pulling();
    options.before = [](int rank) {
        if (rank == 2)
            forbid_reading_others();
    };
    for (Mode mode : modes()) {
        if (mode != Mode::kProcesses)
            continue;
        run_ranks(
            mode, 3,
            [](Rank &rank) {
                scatter_vectors(rank);
                scatter_vectors(rank);
                EXPECT_EQ(pulled_of(rank), 0u);
            },
            options);
    }
}

// In another pid namespace a thread's number belongs to a stranger, whose memory does not contain what the
// rank says.
TEST(Pulls, AreNotOutOfAStrangersMemory)
{
    run_ranks(
        Mode::kOwnMapping, 3,
        [](Rank &rank) {
            shc_op barrier = op_of(SHC_BARRIER);
            if (rank.rank == 0)
                shc_seat_identity_shm(&rank.comm->seat, 0)->said.key ^= 1;
            ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
            scatter_vectors(rank);
            EXPECT_EQ(pulled_of(rank), 0u);
        },
        pulling());
}

// ---- ranks that give up ----

const size_t kLong = size_t{2} << 20; // a block takes milliseconds

// The root gives up at some time, and has its memory back at once: no rank may take what it reads then for
// the result.
void give_and_give_up(Rank &rank, uint64_t after_ns, bool close)
{
    const size_t world = static_cast<size_t>(rank.world);
    std::vector<float> blocks(rank.rank == 0 ? world * kLong : 0, 1.f), out(kLong, 0.f);
    int64_t all, size;
    const shc_tensor from = vector_of(blocks, &all), to = vector_of(out, &size);
    std::thread quitter;
    if (rank.rank == 0)
        quitter = std::thread([&] {
            shc_os_sleep_ns(after_ns);
            if (close)
                shc_comm_close(rank.comm);
            else
                shc_comm_abort(rank.comm, "enough");
        });
    const shc_status status = scatter(rank, {&from, 1}, to);
    if (rank.rank == 0) {
        std::fill(blocks.begin(), blocks.end(), 2.f);
        quitter.join();
    } else if (status == SHC_OK) {
        EXPECT_TRUE(same(out, std::vector<float>(kLong, 1.f)));
    } else {
        EXPECT_TRUE(status == SHC_ERR_ABORTED || status == SHC_ERR_PEER_LEFT) << error_text();
    }
}

TEST(Pulls, OfARootThatGivesUpAreRightOrFail)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const uint64_t rounds = 8;
#else
    const uint64_t rounds = 50;
#endif
    for (Mode mode : modes()) {
        if (mode == Mode::kOneMapping)
            continue; // a thread that closes its group unmaps it for all
        for (uint64_t round = 0; round < rounds; round++)
            run_ranks(
                mode, 3,
                [round](Rank &rank) {
                    scatter_vectors(rank); // the kernel has been asked, and threads are awake
                    give_and_give_up(rank, round * 40 * SHC_NS_PER_US, round % 4 != 0);
                },
                pulling());
    }
}

// A wait for an operation that never was, in which rank 0 offers that memory to rank 1.
struct shc_wait offer_memory(Rank &rank, uint64_t address)
{
    struct shc_wait wait;
    shc_wait_init(&wait, &rank.comm->seat, 20 * SHC_NS_PER_S);
    wait.epoch = 100;
    if (rank.rank == 0)
        shc_seat_cma(&rank.comm->seat, 0, wait.epoch)->address[1] = address;
    return wait;
}

void meet(const Rank &rank)
{
    shc_op barrier = op_of(SHC_BARRIER);
    ASSERT_EQ(shc_run(rank.comm, &barrier), SHC_OK) << error_text();
}

// Memory that does not exist is the caller's fault, unless its rank has given up.
TEST(Pulls, SayWhatBecameOfTheMemory)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        struct shc_wait wait = offer_memory(rank, 64); // never mapped
        char byte;
        meet(rank);
        if (rank.rank == 1) {
            EXPECT_EQ(shc_cma_copy(&wait, 0, &byte, 1), SHC_ERR_SYSTEM);
            EXPECT_NE(error_text().find("could not copy its block from the memory of rank 0"),
                      std::string::npos)
                << error_text();
        }
        meet(rank);
        if (rank.rank == 0)
            shc_cma_withdraw(&rank.comm->seat, wait.epoch);
        meet(rank);
        if (rank.rank == 0) {
            shc_os_sleep_ns(50 * SHC_NS_PER_MS); // it is not the abort that rank 1 finds first
            shc_comm_abort(rank.comm, "enough");
        } else {
            EXPECT_EQ(shc_cma_copy(&wait, 0, &byte, 1), SHC_ERR_ABORTED) << error_text();
        }
    });
}

// After a death the thread's number may belong to a stranger, whose memory can be copied as well.
TEST(Pulls, OutOfTheMemoryOfADeadRankAreNoResult)
{
    std::atomic<bool> over{false};
    run_ranks(Mode::kOwnMapping, 2, [&](Rank &rank) {
        static const char given = 'g';
        struct shc_wait wait = offer_memory(rank, reinterpret_cast<uint64_t>(&given));
        char byte = 0;
        meet(rank);
        if (rank.rank == 1) {
            EXPECT_EQ(shc_cma_copy(&wait, 0, &byte, 1), SHC_OK) << error_text();
            EXPECT_EQ(byte, 'g');
            shc_a32_or_acq_rel(&shc_seat_member(&rank.comm->seat, 0)->life, SHC_OS_OWNER_DIED);
            EXPECT_EQ(shc_cma_copy(&wait, 0, &byte, 1), SHC_ERR_PEER_DEAD);
            over = true;
        }
        while (!over) // else it would have left
            shc_os_sleep_ns(SHC_NS_PER_MS);
    });
}

// Stands for a rank that stops after its call line: others see the call, and nothing more of it.
void only_enter(Rank &rank)
{
    shc_comm *comm = rank.comm;
    struct shc_call call = {};
    call.kind = SHC_SCATTER;
    call.dtype = SHC_FLOAT32;
    call.elem_bytes = sizeof(float);
    call.count = kCount;
    shc_call_settle(&call);
    shc_seat_cma(&comm->seat, rank.rank, comm->epoch + 1)->able = 1;
    shc_call_publish(&comm->seat, comm->epoch + 1, &call);
    shc_bell_ring(shc_seat_bell(&comm->seat, rank.rank), true);
}

// The root keeps its memory until all have taken, and reports which rank it waits for.
TEST(Pulls, WaitForWhoDoesNotTakeItsBlock)
{
    std::atomic<bool> over{false};
    run_ranks(
        Mode::kOwnMapping, 3,
        [&](Rank &rank) {
            scatter_vectors(rank);
            if (rank.rank == 1)
                scatter_vectors(rank);
            if (rank.rank == 2) {
                only_enter(rank);
                while (!over) // else it would have left
                    shc_os_sleep_ns(SHC_NS_PER_MS);
            }
            if (rank.rank != 0)
                return;
            std::vector<float> blocks(3 * kCount), out(kCount);
            for (int r = 0; r < 3; r++) {
                const std::vector<float> block = input_of(r, kCount);
                std::copy(block.begin(), block.end(),
                          blocks.begin() + r * static_cast<std::ptrdiff_t>(kCount));
            }
            int64_t all, size;
            const shc_tensor from = vector_of(blocks, &all), to = vector_of(out, &size);
            // Time for rank 1, which must be done before the root gives up.
            EXPECT_EQ(scatter(rank, {&from, 1}, to, 2 * SHC_NS_PER_S), SHC_ERR_TIMEOUT);
            EXPECT_NE(error_text().find("waiting for rank 2"), std::string::npos) << error_text();
            over = true;
        },
        pulling());
}

#ifndef __SANITIZE_THREAD__ // which sees no race between processes
// Takes its block of a root that is killed at some time: 0 if what it is told is true.
int take_from_the_killed(const char *directory, int r, useconds_t after_us)
{
    Rank rank = {r,  3,  Mode::kProcesses,  nullptr,
                 {}, {}, 20 * SHC_NS_PER_S, "scatter.single_copy_from=1"};
    if (shc_store_dir_open(directory, &rank.store) != SHC_OK ||
        rank.make_group(&rank.comm, "killed") != SHC_OK)
        return 2;
    const std::vector<float> right(kLong, 1.f);
    std::vector<float> blocks(r == 0 ? 3 * kLong : 0, 1.f), out(kLong, 0.f);
    int64_t all, size;
    const shc_tensor from = vector_of(blocks, &all), to = vector_of(out, &size);
    scatter_vectors(rank);
    std::thread killer;
    if (r == 0)
        killer = std::thread([after_us] {
            usleep(after_us);
            kill(getpid(), SIGKILL);
        });
    shc_status status = SHC_OK;
    for (int i = 0; i < 1000 && status == SHC_OK; i++) {
        std::fill(out.begin(), out.end(), 0.f);
        status = scatter(rank, {&from, 1}, to);
        if (status == SHC_OK && out != right)
            return 3;
    }
    if (status != SHC_ERR_PEER_DEAD)
        fprintf(stderr, "rank %d: %s: %s\n", r, shc_status_name(status), shc_error_text());
    return status == SHC_ERR_PEER_DEAD ? 0 : 4;
}

TEST(Pulls, OfAKilledRootAreRightOrFail)
{
    for (useconds_t round = 0; round < 20; round++) {
        char directory[] = "/tmp/shmcoll-test-XXXXXX";
        ASSERT_NE(mkdtemp(directory), nullptr);
        std::vector<pid_t> pids;
        for (int r = 0; r < 3; r++) {
            const pid_t pid = fork();
            ASSERT_GE(pid, 0);
            if (pid == 0)
                _exit(take_from_the_killed(directory, r, 5000 + round * 731));
            pids.push_back(pid);
        }
        for (int r = 0; r < 3; r++) {
            int status = 0;
            ASSERT_EQ(waitpid(pids[static_cast<size_t>(r)], &status, 0),
                      pids[static_cast<size_t>(r)]);
            if (r > 0) {
                EXPECT_EQ(status, 0) << "rank " << r << ", round " << round;
            }
        }
        EXPECT_EQ(system((std::string("rm -r ") + directory).c_str()), 0);
    }
    EXPECT_EQ(leftovers(), std::vector<std::string>());
}
#endif

} // namespace
