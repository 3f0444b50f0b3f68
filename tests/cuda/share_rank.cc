// SPDX-License-Identifier: BSD-3-Clause
// One rank that shares slabs with others, as a process: share_rank <folder> <rank> <world> <how>.
// Its stand-in's knobs are in FAKE_CUDA. The program prints its observations as `key=value` lines.
//   how: share        share, fill one's own slab, read all others
//        soon         as share, with a time-out of one second
//        die-before   share nothing: end when all addresses are known
//        die-in-round end when its slab has been sent and not yet imported
//        die-after    as share, and end before the others read
//        hand-over    as share, and then wait for one another on streams, round after round
//        die-handing  as hand-over, and end in the middle of the rounds
#include "tests/cuda/descriptors.h"

extern "C" {
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/share.h"
#include "cuda_ipc/timeline.h"
#include "shm/base/clock.h"
}

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{

constexpr size_t kBytes = 3 << 20; // no whole number of granules

[[noreturn]] void die(const char *what)
{
    printf("failed=%s: %s\n", what, shc_cuda_failure());
    fflush(stdout);
    _exit(1);
}

void vanish()
{
    fflush(stdout);
    raise(SIGKILL);
}

// The rendezvous: a file per rank in a folder.
std::vector<shc_control_address> rendezvous(const std::string &folder, const shc_control &control)
{
    const std::string own = folder + "/" + std::to_string(control.rank);
    std::ofstream(own + ".new", std::ios::binary)
        .write(reinterpret_cast<const char *>(&control.self), sizeof control.self);
    rename((own + ".new").c_str(), own.c_str());
    std::vector<shc_control_address> all(static_cast<size_t>(control.world));
    for (size_t r = 0; r < all.size(); r++) {
        const std::string path = folder + "/" + std::to_string(r);
        for (int tries = 0; access(path.c_str(), R_OK) != 0; tries++) {
            if (tries > 20000)
                die("rendezvous");
            usleep(1000);
        }
        std::ifstream(path, std::ios::binary)
            .read(reinterpret_cast<char *>(&all[r]), sizeof all[r]);
    }
    return all;
}

struct Rank {
    shc_driver driver;
    shc_gpu gpu;
    shc_control control;
    std::unique_ptr<shc_share> share = std::make_unique<shc_share>();
    shc_cu_stream *stream;
};

// Waits until all ranks are here. False: one has ended. That is no reason to stop: the test is about the
// other ranks.
bool barrier(Rank &rank)
{
    shc_control_message mine = {};
    mine.count = 1;
    mine.fd = -1;
    std::vector<shc_control_message> theirs(static_cast<size_t>(rank.control.world));
    return shc_control_swap(&rank.control, &mine, shc_clock_ns() + 10 * SHC_NS_PER_S,
                            theirs.data()) == SHC_OK;
}

// Checks both ends of a slab.
constexpr size_t kPart = 16 << 10;
constexpr size_t kOffsets[] = {0, kBytes - kPart};

std::vector<char> pattern(int rank, size_t offset)
{
    std::vector<char> bytes(kPart);
    for (size_t i = 0; i < bytes.size(); i++)
        bytes[i] = static_cast<char>((offset + i) * 7 + static_cast<size_t>(rank) * 31);
    return bytes;
}

void copy(Rank &rank, shc_cu_address to, shc_cu_address from)
{
    if (rank.driver.cuMemcpyAsync(to, from, kPart, rank.stream) != SHC_CU_SUCCESS ||
        rank.driver.cuStreamSynchronize(rank.stream) != SHC_CU_SUCCESS)
        die("a copy");
}

void fill_own(Rank &rank)
{
    for (size_t offset : kOffsets) {
        std::vector<char> bytes = pattern(rank.control.rank, offset);
        copy(rank, rank.share->slabs[rank.control.rank].address + offset,
             reinterpret_cast<shc_cu_address>(bytes.data()));
    }
}

// The number of slabs that hold what their ranks have written.
int read_others(Rank &rank)
{
    int right = 0;
    for (int r = 0; r < rank.control.world; r++) {
        bool same = true;
        for (size_t offset : kOffsets) {
            std::vector<char> bytes(kPart);
            copy(rank, reinterpret_cast<shc_cu_address>(bytes.data()),
                 rank.share->slabs[r].address + offset);
            same = same && bytes == pattern(r, offset);
        }
        right += same;
    }
    return right;
}

constexpr uint64_t kRounds = 20;

// One round on the stream: tell all others, then wait for all.
void enqueue_round(Rank &rank, shc_timeline &timeline, uint64_t round)
{
    for (int r = 0; r < rank.control.world; r++) {
        const shc_cu_address word =
            rank.share->slabs[r].address + static_cast<size_t>(rank.control.rank) * 8;
        if (r != rank.control.rank &&
            shc_timeline_signal(&rank.gpu, rank.stream, word, round) != SHC_OK)
            die("signal");
    }
    for (int r = 0; r < rank.control.world; r++)
        if (r != rank.control.rank &&
            shc_timeline_wait(&timeline, rank.stream, static_cast<uint32_t>(r), round) != SHC_OK)
            die("wait");
}

// After a rank has died, each other rank waits on its stream for that rank: poison must end the wait.
void rescue(Rank &rank, shc_timeline &timeline)
{
    printf("before=%s\n",
           rank.driver.cuStreamQuery(rank.stream) == SHC_CU_NOT_READY ? "waiting" : "idle");
    const uint64_t begun = shc_clock_ns();
    if (shc_timeline_drain(&timeline, &rank.stream, 1, begun + 10 * SHC_NS_PER_S) != SHC_OK)
        die("drain");
    printf("drained_ms=%d\n", static_cast<int>((shc_clock_ns() - begun) / SHC_NS_PER_MS));
    const shc_status st = shc_timeline_wait(&timeline, rank.stream, 0, kRounds);
    printf("refused=%d\n", st == SHC_ERR_ABORTED);
}

void hand_over(Rank &rank, bool die_in_the_middle)
{
    shc_timeline timeline;
    const shc_slab &own = rank.share->slabs[rank.control.rank];
    rank.driver.cuMemsetD8Async(own.address, 0, 4096, rank.stream);
    rank.driver.cuStreamSynchronize(rank.stream);
    if (shc_timeline_init(&rank.gpu, own.address, nullptr,
                          static_cast<uint32_t>(rank.control.world), 1, &timeline) != SHC_OK)
        die("timeline");
    barrier(rank);
    for (uint64_t round = 1; round <= kRounds; round++) {
        if (round == kRounds / 2 && die_in_the_middle)
            vanish();
        enqueue_round(rank, timeline, round);
    }
    if (!barrier(rank))
        rescue(rank, timeline);
    else if (rank.driver.cuStreamSynchronize(rank.stream) == SHC_CU_SUCCESS)
        printf("rounds=%d\n", static_cast<int>(kRounds));
    barrier(rank);
    shc_timeline_fini(&timeline);
}

// Opens everything that is opened once and stays open.
void start(Rank &rank, int number)
{
    if (shc_driver_open(FAKE_CUDA_LIBRARY, &rank.driver) != SHC_OK)
        die("driver");
    const int ordinal = rank.driver.device_count > 1 ? number % rank.driver.device_count : 0;
    if (shc_gpu_open(&rank.driver, ordinal, &rank.gpu) != SHC_OK ||
        shc_gpu_enter(&rank.gpu) != SHC_OK)
        die("gpu");
    rank.driver.cuStreamCreateWithPriority(&rank.stream, SHC_CU_STREAM_NON_BLOCKING, 0);
}

void run(Rank &rank, const std::string &folder, const std::string &how)
{
    const auto all = rendezvous(folder, rank.control);
    if (how == "die-before")
        vanish();
    const uint64_t deadline = shc_clock_ns() + (how == "soon" ? 1 : 20) * SHC_NS_PER_S;
    if (shc_control_meet(&rank.control, all.data(), deadline) != SHC_OK)
        die("meet");
    if (how == "die-in-round") { // the others have its slab, and get no verdict
        shc_slab slab;
        shc_control_message message;
        std::vector<shc_control_message> theirs(all.size());
        if (shc_slab_create(&rank.gpu, SHC_SLAB_FD, kBytes, &slab) != SHC_OK ||
            shc_slab_show(&slab, &message) != SHC_OK ||
            shc_control_swap(&rank.control, &message, deadline, theirs.data()) != SHC_OK)
            die("round");
        vanish();
    }
    const size_t bytes = how == "short" ? 1 : kBytes; // a granule, where two are needed
    if (shc_share_make(&rank.control, &rank.gpu, bytes, deadline, nullptr, rank.share.get()) !=
        SHC_OK) {
        printf("status=%s\n", shc_cuda_failure());
        return;
    }
    printf("kind=%s\n", shc_slab_kind_name(rank.share->kind));
    printf("fd=%s\nlegacy=%s\n", rank.share->reasons[SHC_SLAB_FD],
           rank.share->reasons[SHC_SLAB_LEGACY]);
    printf("strangers=%d\n", static_cast<int>(rank.control.strangers));
    if (rank.share->kind == SHC_SLAB_NONE)
        return;
    fill_own(rank);
    barrier(rank);
    if (how == "die-after")
        vanish();
    barrier(rank);
    printf("right=%d\n", read_others(rank));
    barrier(rank);
    if (how == "hand-over" || how == "die-handing")
        hand_over(rank, how == "die-handing");
    shc_share_undo(rank.share.get());
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    Rank rank;
    start(rank, atoi(argv[2]));
    const int before = shmcoll::test::open_descriptors();
    if (shc_control_open(atoi(argv[2]), atoi(argv[3]), &rank.control) != SHC_OK)
        die("control");
    run(rank, argv[1], argv[4]);
    shc_control_close(&rank.control);
    rank.driver.cuStreamDestroy(rank.stream);
    shc_gpu_leave(&rank.gpu);
    shc_gpu_close(&rank.gpu);
    printf("leaked=%d\n", shmcoll::test::open_descriptors() - before);
    return 0;
}
