// SPDX-License-Identifier: BSD-3-Clause

// Sums of tensors in shared memory, which each rank stores into the tensors of all: the bits are those of staged sums,
// and nobody's memory changes once its operation has failed.
#include "tests/conformance/world.h"
#include "tests/support/elements.h"
#include "tests/support/lies.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

extern "C" {
#include "shm/comm/memory.h"
#include "shm/proto/cma.h"
#include "shm/proto/member.h"
#include "shm/proto/peer_heaps.h"
#include "shm/shmcoll_memory.h"
}

using namespace shmcoll::test;
using elements::Bytes;

namespace
{

// Every size that moves is pushed where it can be.
const char *const kAll =
    "all_reduce.push_from=1,all_reduce.direct_exchange=0,inline=0,small=0,small_of_two=0";

Options pushing(int limit_s = 60)
{
    Options options;
    options.tuning = kAll;
    options.limit_s = limit_s;
    return options;
}

uint64_t pushed_of(const Rank &rank)
{
    return shc_a64_load_relaxed(&rank.comm->heaps.pushed);
}

// A block of the heap.
class Block
{
  public:
    explicit Block(size_t bytes)
    {
        EXPECT_EQ(shc_memory_alloc(bytes, &memory_), SHC_OK) << error_text();
        memset(memory_, 0x5a, bytes);
    }
    Block(const Block &) = delete;
    ~Block() { shc_memory_free(memory_); }
    uint8_t *at(size_t offset = 0) const { return static_cast<uint8_t *>(memory_) + offset; }

  private:
    void *memory_ = nullptr;
};

struct Sum {
    elements::Combination what;
    size_t bytes;
    double factor = 1;

    shc_status run(const Rank &rank, const void *in, void *out, uint64_t timeout_ns = 0) const
    {
        const int64_t count = static_cast<int64_t>(bytes / shc_dtype_bytes(what.dtype));
        const shc_tensor from = {const_cast<void *>(in), 1, &count, nullptr};
        const shc_tensor to = {out, 1, &count, nullptr};
        shc_op op = op_of(SHC_ALL_REDUCE);
        op.dtype = what.dtype;
        op.redop = what.redop;
        op.premul = factor;
        op.input = {&from, 1};
        op.output = {&to, 1};
        op.timeout_ns = timeout_ns;
        return shc_run(rank.comm, &op);
    }
};

Sum floats(size_t bytes)
{
    return {{SHC_FLOAT32, SHC_SUM}, bytes};
}

// The first operation tells where the heaps are, so that the next one is pushed.
void meet_heaps(const Rank &rank)
{
    const size_t bytes =
        SHC_SMALL_SLOT_BYTES + 4; // without staging memory, less goes through small slots
    Block block(bytes);
    const uint64_t before = pushed_of(rank);
    memset(block.at(), 0, bytes);
    ASSERT_EQ(floats(bytes).run(rank, block.at(), block.at()), SHC_OK) << error_text();
    ASSERT_EQ(floats(bytes).run(rank, block.at(), block.at()), SHC_OK) << error_text();
    ASSERT_GT(pushed_of(rank), before);
}

// Different on each rank, the same in each run.
Bytes input_bytes(const elements::Combination &what, int rank, size_t bytes)
{
    static std::mutex lock; // ranks may be threads
    std::lock_guard<std::mutex> guard(lock);
    elements::seed(bytes * 131 + static_cast<size_t>(what.dtype) * 17 +
                   static_cast<size_t>(what.redop) + static_cast<size_t>(rank) * 7919);
    return elements::random_sources(what.dtype, 1, bytes / shc_dtype_bytes(what.dtype))[0];
}

// Staged in private memory, then pushed, in place and not: the same bits.
void expect_same_bits(const Rank &rank, const Sum &sum, size_t misaligned)
{
    const Bytes input = input_bytes(sum.what, rank.rank, sum.bytes);
    const uint64_t before = pushed_of(rank);
    Bytes staged(sum.bytes);
    ASSERT_EQ(sum.run(rank, input.data(), staged.data()), SHC_OK) << error_text();
    EXPECT_EQ(pushed_of(rank), before);
    // One block for input and output, with room around them.
    const size_t gap = misaligned + 192, whole = 2 * sum.bytes + 3 * gap;
    Block block(whole);
    uint8_t *in = block.at(gap), *out = in + sum.bytes + gap;
    memcpy(in, input.data(), sum.bytes);
    ASSERT_EQ(sum.run(rank, in, out), SHC_OK) << error_text();
    EXPECT_EQ(memcmp(in, input.data(), sum.bytes), 0);
    EXPECT_EQ(memcmp(out, staged.data(), sum.bytes), 0) << elements::name_of(sum.what);
    ASSERT_EQ(sum.run(rank, in, in), SHC_OK) << error_text();
    EXPECT_EQ(memcmp(in, staged.data(), sum.bytes), 0) << elements::name_of(sum.what);
    EXPECT_EQ(pushed_of(rank), before + 2);
    for (size_t gap_at : {size_t{0}, gap + sum.bytes, 2 * (gap + sum.bytes)})
        for (size_t i = gap_at; i < gap_at + gap; i++)
            ASSERT_EQ(*block.at(i), 0x5a) << i;
}

TEST(Push, HasTheBitsOfStagedSumsOfEveryTypeAndReduction)
{
    for (int world : {2, 3, 4})
        run_ranks(
            all_modes().back(), world,
            [](Rank &rank) {
                meet_heaps(rank);
                size_t turn = 0;
                for (const elements::Combination &what : elements::combinations())
                    for (size_t length : {1, 67, 1500}) {
                        Sum sum = {what, length * shc_dtype_bytes(what.dtype)};
                        sum.factor = 0.5 + rank.rank;
                        // Places differ between ranks.
                        const size_t element = shc_dtype_bytes(what.dtype);
                        expect_same_bits(rank, sum,
                                         element * ((turn++ + static_cast<size_t>(rank.rank)) % 5));
                    }
            },
            pushing(180));
}

TEST(Push, HasTheBitsOfStagedSumsOfEverySizeInEveryModeAndWithThreads)
{
    for (Mode mode : modes())
        for (int world : {2, 3})
            for (int threads : {0, 3}) {
                Options options = pushing();
                options.knobs.threads = threads;
                options.knobs.no_arena = world == 3 && threads == 3;
                run_ranks(
                    mode, world,
                    [](Rank &rank) {
                        meet_heaps(rank);
                        for (size_t bytes :
                             {size_t{4}, size_t{8188}, size_t{200000}, (size_t{1} << 21) + 12})
                            if (!rank.knobs.no_arena || bytes > SHC_SMALL_SLOT_BYTES)
                                expect_same_bits(rank, floats(bytes), 1 + bytes % 7);
                    },
                    options);
            }
}

// A rank whose input, or output, or both are elsewhere: all ranks stage.
TEST(Push, IsForOperationsWhoseTensorsAllLieInHeaps)
{
    const size_t bytes = 300000;
    for (Mode mode : modes())
        run_ranks(
            mode, 3,
            [](Rank &rank) {
                meet_heaps(rank);
                for (int where = 0; where < 4; where++) {
                    const bool odd = rank.rank == where % 3;
                    const Bytes input = input_bytes(floats(1).what, rank.rank, bytes);
                    Bytes in = input, out(bytes), wanted(bytes);
                    Block block(2 * bytes);
                    memcpy(block.at(), input.data(), bytes);
                    ASSERT_EQ(floats(bytes).run(rank, input.data(), wanted.data()), SHC_OK);
                    const uint64_t before = pushed_of(rank);
                    const void *from = odd && where != 1 ? in.data() : block.at();
                    void *to = odd && where != 2 ? out.data() : block.at(bytes);
                    ASSERT_EQ(floats(bytes).run(rank, from, to), SHC_OK) << error_text();
                    EXPECT_EQ(memcmp(to, wanted.data(), bytes), 0) << where;
                    EXPECT_EQ(pushed_of(rank), before);
                }
                // Views that overlap those of the operation before, and a block that has another tensor's memory.
                for (int turn = 0; turn < 3; turn++) {
                    Block block(bytes + 4000);
                    auto *values = reinterpret_cast<float *>(block.at());
                    for (size_t i = 0; i < (bytes + 4000) / 4; i++)
                        values[i] = 1;
                    const uint64_t before = pushed_of(rank);
                    ASSERT_EQ(floats(bytes).run(rank, values, values), SHC_OK) << error_text();
                    ASSERT_EQ(floats(bytes).run(rank, values + 1000, values + 1000), SHC_OK);
                    EXPECT_EQ(pushed_of(rank), before + 2);
                    EXPECT_EQ(values[999], 3);
                    EXPECT_EQ(values[1000], 9);
                    EXPECT_EQ(values[bytes / 4 + 999], 3);
                }
            },
            pushing());
}

size_t attached()
{
    shc_memory_counts counts;
    shc_memory_usage(&counts);
    return counts.attached_count;
}

// Lines of this process's maps that are heaps.
int heaps_mapped()
{
    std::ifstream maps("/proc/self/maps");
    std::string line;
    int count = 0;
    while (std::getline(maps, line))
        count += line.find("/memfd:shmcoll-heap") != std::string::npos;
    return count;
}

TEST(Push, MapsAHeapOnceForAllGroupsAndNotInChildren)
{
#if !defined(__SANITIZE_THREAD__)
    run_ranks(
        Mode::kProcesses, 3,
        [](Rank &rank) {
            shc_comm *second = nullptr;
            EXPECT_EQ(attached(), 0u);
            const int inherited = heaps_mapped(); // of a test before this one
            meet_heaps(rank);
            EXPECT_EQ(attached(), 2u);
            ASSERT_EQ(rank.make_group(&second, "second"), SHC_OK) << error_text();
            Rank other = rank;
            other.comm = second;
            meet_heaps(other);
            EXPECT_EQ(attached(), 2u);
            EXPECT_EQ(heaps_mapped(), inherited + 3);
            const pid_t child = fork();
            if (child == 0)
                _exit(heaps_mapped() == inherited + 1 && attached() == 0 ? 0 : 1);
            int status = -1;
            EXPECT_EQ(waitpid(child, &status, 0), child);
            EXPECT_EQ(status, 0);
            shc_comm_free(second);
            EXPECT_EQ(attached(), 2u);
            meet_heaps(rank);
            shc_comm_free(rank.comm);
            rank.comm = nullptr;
            EXPECT_EQ(attached(), 0u);
        },
        pushing());
#endif
}

// ---- ranks that do as a test says ----

struct Place { // as in coll/push.c
    uint64_t in, out, said;
};
const uint64_t kOffered = 3;

// An operation that this rank has entered, and goes no further by itself.
struct Half {
    shc_task task;
    int64_t count;
    shc_tensor tensor;
    shc_op op;

    Half(const Rank &rank, size_t bytes, const Place &place)
        : count(static_cast<int64_t>(bytes / 4)), op(op_of(SHC_ALL_REDUCE))
    {
        static float nothing[1 << 20];
        tensor = {nothing, 1, &count, nullptr};
        op.input = op.output = {&tensor, 1};
        EXPECT_EQ(shc_task_prepare(&task, rank.comm, &op), SHC_OK) << error_text();
        task.wait.epoch = rank.comm->epoch + 1;
        task.wait.call = &task.call;
        memcpy(shc_task_payload(&task, rank.rank) + 8, &place, sizeof place);
        shc_task_enter(&task);
    }
    void meet() { EXPECT_EQ(shc_task_meet(&task), SHC_OK) << error_text(); }
    void show_step() { shc_progress_publish(task.seat, task.wait.epoch, 1); }
    void await_step(int other)
    {
        EXPECT_EQ(shc_progress_wait(&task.wait, other, 1), SHC_OK) << error_text();
    }
    // Where that rank has said that its output is, as this rank would store there.
    float *out_of(int other)
    {
        Place place;
        memcpy(&place, shc_task_payload(&task, other) + 8, sizeof place);
        EXPECT_EQ(place.said, kOffered);
        return reinterpret_cast<float *>(
            shc_peer_heaps_at(task.seat, other, place.out, op.input.list->sizes[0] * 4));
    }
};

Place place_of(const Block &block, size_t bytes)
{
    Place place = {0, 0, kOffered};
    EXPECT_TRUE(shc_memory_place(block.at(), bytes, &place.in));
    place.out = place.in;
    return place;
}

// Steps of a test that ranks take in turn.
class Order
{
  public:
    Order()
        : at_(new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                  std::atomic<int>(0))
    {
    }
    ~Order() { munmap(at_, 4096); }
    void done(int step) { at_->store(step); }
    void add() { at_->fetch_add(1); }
    void await(int step)
    {
        while (at_->load() < step)
            shc_os_sleep_ns(100 * 1000);
    }

  private:
    std::atomic<int> *at_;
};

const size_t kBytes = 100000;

// A rank whose peer stops in the middle has private memory when its call has failed; whatever that peer stores then,
// whether the block is freed by then, and wherever the next tensors lie.
void expect_own_memory(const Rank &rank, Order &order, bool frees)
{
    auto block = std::make_unique<Block>(kBytes);
    uint8_t *const begin = block->at();
    auto *values = reinterpret_cast<float *>(begin);
    std::fill_n(values, kBytes / 4, 5.f);
    EXPECT_EQ(floats(kBytes).run(rank, values, values, 200 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT)
        << error_text();
    EXPECT_FALSE(shc_memory_is_shared(values, kBytes));
    std::fill_n(values, kBytes / 4, 6.f);
    if (frees)
        block.reset();
    std::vector<std::unique_ptr<Block>> others;
    for (int turn = 0; turn < 4; turn++) { // nobody gets the range again
        others.push_back(std::make_unique<Block>(kBytes));
        const uint8_t *at = others.back()->at();
        EXPECT_TRUE(at + kBytes <= begin || at >= begin + kBytes);
    }
    order.done(1);
    order.await(2);
    for (size_t i = 0; !frees && i < kBytes / 4; i++)
        ASSERT_EQ(values[i], 6.f) << i;
    for (const auto &other : others)
        for (size_t i = 0; i < kBytes; i += 61)
            ASSERT_EQ(*other->at(i), 0x5a) << i;
    order.done(3);
}

// The peer: it has met that rank, or calls after that rank has failed.
void store_late(const Rank &rank, Order &order, bool meets)
{
    Block block(kBytes);
    const Place place = place_of(block, kBytes);
    if (!meets)
        order.await(1);
    Half half(rank, kBytes, place);
    if (meets)
        half.meet();
    float *theirs = half.out_of(0);
    ASSERT_NE(theirs, nullptr);
    order.await(1);
    for (size_t i = 0; i < kBytes / 4; i++)
        theirs[i] = 77;
    order.done(2);
    order.await(3);
}

TEST(Push, AFailedCallLeavesTheHeapBeforeItReturns)
{
    for (auto [meets, frees] : {std::pair(true, false), {true, true}, {false, false}})
        for (Mode mode : modes()) {
            Order order;
            run_ranks(
                mode, 2,
                [&, meets = meets, frees = frees](Rank &rank) {
                    meet_heaps(rank);
                    if (rank.rank == 0)
                        expect_own_memory(rank, order, frees);
                    else
                        store_late(rank, order, meets);
                },
                pushing());
        }
}

// Rank 1 has shown that it is done, and closes the group while it waits for rank 2. Its caller changes the input that
// rank 2 has yet to read.
TEST(Push, ARankThatGivesUpAfterItsPartMakesTheSumFail)
{
    for (Mode mode : modes()) {
        Order order;
        run_ranks(
            mode, 3,
            [&](Rank &rank) {
                meet_heaps(rank);
                Block block(kBytes);
                auto *values = reinterpret_cast<float *>(block.at());
                std::fill_n(values, kBytes / 4, 1.f);
                if (rank.rank == 2) {
                    Half half(rank, kBytes, place_of(block, kBytes));
                    half.meet();
                    half.await_step(0);
                    half.await_step(1);
                    order.done(1);
                    order.await(2);
                    half.show_step();
                    order.await(3);
                } else if (rank.rank == 1) {
                    std::thread closer([&] {
                        order.await(1);
                        shc_comm_close(rank.comm);
                    });
                    EXPECT_EQ(floats(kBytes).run(rank, values, values), SHC_ERR_CLOSED);
                    order.done(2);
                    closer.join();
                    order.await(3);
                } else {
                    EXPECT_EQ(floats(kBytes).run(rank, values, values), SHC_ERR_PEER_LEFT)
                        << error_text();
                    EXPECT_FALSE(shc_memory_is_shared(values, kBytes));
                    order.done(3);
                }
            },
            pushing());
    }
}

// Its pages are no longer those that rank 1 has stored to.
TEST(Push, FailsIfTheBlockLeavesTheHeapMeanwhile)
{
    Order order;
    run_ranks(
        all_modes().back(), 2,
        [&](Rank &rank) {
            meet_heaps(rank);
            Block block(kBytes);
            auto *values = reinterpret_cast<float *>(block.at());
            std::fill_n(values, kBytes / 4, 1.f);
            if (rank.rank == 1) {
                Half half(rank, kBytes, place_of(block, kBytes));
                half.meet();
                half.await_step(0);
                order.done(1);
                order.await(2);
                half.show_step();
                order.await(3);
                return;
            }
            std::thread other([&] {
                order.await(1);
                EXPECT_EQ(shc_memory_divorce(block.at(4096), 10), 0);
                order.done(2);
            });
            EXPECT_EQ(floats(kBytes).run(rank, values, values), SHC_ERR_ABORTED);
            EXPECT_NE(error_text().find("another group"), std::string::npos) << error_text();
            other.join();
            order.done(3);
        },
        pushing());
}

// ---- lies ----

// What rank 1 says of its place. True: rank 0 finds the lie.
struct Lie {
    const char *what;
    Place place;
    bool found;
};

TEST(Push, APlaceOutsideOfAHeapIsDamageAndAPlaceInsideIsTheLiarsOwn)
{
    const uint64_t end = SHC_HEAP_RANGE;
    const std::vector<Lie> lies = {
        {"after the end of the file", {end - kBytes, end - kBytes, kOffered}, true},
        {"an input after the end", {1ULL << 35, 0, kOffered}, true},
        {"after the range", {0, end - kBytes + 1, kOffered}, true},
        {"a sum that overflows", {0, UINT64_MAX - 5, kOffered}, true},
        {"nothing", {0, 0, 0}, false},
        {"bits that do not exist", {0, 0, ~kOffered | 1}, false},
        {"an odd place", {1, 3, kOffered}, false},
        {"two places that overlap", {64, 128, kOffered}, false},
    };
    for (const Lie &lie : lies)
        for (Mode mode : modes()) {
            Order order;
            run_ranks(
                mode, 2,
                [&](Rank &rank) {
                    meet_heaps(rank);
                    if (rank.rank == 1) {
                        Block block(2 * kBytes); // the file is that long at least
                        Half half(rank, kBytes, lie.place);
                        order.await(1);
                        return;
                    }
                    Block before(4096), block(kBytes), after(4096);
                    const shc_status st =
                        floats(kBytes).run(rank, block.at(), block.at(), 200 * SHC_NS_PER_MS);
                    EXPECT_EQ(st, lie.found ? SHC_ERR_ABORTED : SHC_ERR_TIMEOUT)
                        << lie.what << ": " << error_text();
                    // (Threads have one heap.)
                    for (size_t i = 0; mode == Mode::kProcesses && i < 4096; i++)
                        ASSERT_TRUE(*before.at(i) == 0x5a && *after.at(i) == 0x5a) << lie.what;
                    order.done(1);
                },
                pushing());
        }
}

// A heap that is not one: this rank does not map it, and all stage for ever.
TEST(Push, AHeapThatCannotBeMappedIsLeftAlone)
{
    for (int why = 0; why < 2; why++)
        run_ranks(
            all_modes().front(), 2,
            [why](Rank &rank) {
                Block block(kBytes);
                if (rank.rank == 1) {
                    ASSERT_TRUE(shc_peer_heaps_say_own(&rank.comm->seat));
                    shc_heap_shm *mine = shc_seat_heap(&rank.comm->seat, 1);
                    if (why == 0)
                        mine->name.file.inode++;
                    else
                        mine->name.owner_fd = -1;
                }
                for (int turn = 0; turn < 4; turn++) {
                    auto *values = reinterpret_cast<float *>(block.at());
                    std::fill_n(values, kBytes / 4, 1.f);
                    ASSERT_EQ(floats(kBytes).run(rank, values, values), SHC_OK) << error_text();
                    EXPECT_EQ(values[0] + values[kBytes / 4 - 1], 4);
                }
                EXPECT_EQ(pushed_of(rank), 0u);
                if (rank.mode == Mode::kProcesses) {
                    EXPECT_EQ(attached(), rank.rank == 0 ? 0u : 1u);
                }
            },
            pushing());
}

// ---- random lies ----

#if !defined(__SANITIZE_THREAD__) // it would report each of them
bool holds(const Block &block, uint8_t value, size_t bytes)
{
    return std::all_of(block.at(), block.at() + bytes,
                       [value](uint8_t byte) { return byte == value; });
}

// Sums until one fails, with blocks around the tensor that are nobody's to store to. Once it has failed, nobody stores to
// the tensor either.
void sum_with_a_liar(Rank &rank, Order &order)
{
    Block before(4096), block(kBytes), after(4096);
    auto *values = reinterpret_cast<float *>(block.at());
    shc_status st = SHC_OK;
    for (int turn = 0; turn < 30 && st == SHC_OK; turn++) {
        std::fill_n(values, kBytes / 4, 1.f);
        st = floats(kBytes).run(rank, values, values, 60 * SHC_NS_PER_MS);
    }
    memset(block.at(), 0x77, kBytes);
    order.add();
    order.await(2 * rank.world);
    const bool lies = rank.rank == 1; // and has itself to blame
    EXPECT_TRUE(lies || (holds(before, 0x5a, 4096) && holds(after, 0x5a, 4096)));
    EXPECT_TRUE(lies || st == SHC_OK || holds(block, 0x77, kBytes)) << shc_status_name(st);
    order.add();
    order.await(3 * rank.world); // until then all ranks live
}

TEST(Push, ALiarHarmsNobodysTensors)
{
    const uint64_t first = first_seed();
    for (int round = 0; round < rounds(40); round++) {
        const uint64_t seed = first + static_cast<uint64_t>(round);
        Order order;
        SCOPED_TRACE("SHMCOLL_LIES_SEED=" + std::to_string(seed));
        run_ranks(
            Mode::kProcesses, 3,
            [&](Rank &rank) {
                if (seed % 4 != 0) // else the heap's name, too, is told while there are lies
                    meet_heaps(rank);
                order.add();
                order.await(rank.world); // a rank that is done earlier does not lie to others there
                std::atomic<bool> over(false);
                std::thread liar;
                if (rank.rank == 1)
                    liar = std::thread(
                        [&] { tell_lies(rank.comm, Lies::kOfHeaps, false, seed, over); });
                sum_with_a_liar(rank, order);
                over = true;
                if (rank.rank == 1)
                    liar.join();
            },
            pushing());
    }
}
#endif

// ---- death ----

#if !defined(__SANITIZE_THREAD__)
const size_t kLong = 8 << 20;
#if defined(__SANITIZE_ADDRESS__)
const uint64_t kDeathTimeoutNs = 2 * SHC_NS_PER_S;
#else
const uint64_t kDeathTimeoutNs = SHC_NS_PER_S / 2;
#endif

// Sums until one fails, which none of the first two does. What is returned as right is right.
shc_status sum_until_failure(const Rank &rank, float *values, const std::function<void()> &third)
{
    shc_status st = SHC_OK;
    for (int turn = 0; st == SHC_OK; turn++) {
        std::fill_n(values, kLong / 4, static_cast<float>(turn));
        if (turn == 2)
            third();
        // On a busy machine the first of all may take a second.
        const uint64_t timeout_ns = turn < 2 ? 20 * SHC_NS_PER_S : kDeathTimeoutNs;
        st = floats(kLong).run(rank, values, values, timeout_ns);
        for (size_t i = 0; st == SHC_OK && i < kLong / 4; i += 509)
            EXPECT_EQ(values[i], static_cast<float>(3 * turn)) << i;
    }
    return st;
}

// The signal comes somewhere in a sum of rank 1. The others fail, and when rank 1 goes on nothing of their memory
// changes.
void expect_safe_after(int signal, int round)
{
    char pattern[] = "/tmp/shmcoll-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    Order order, divorced;
    std::vector<pid_t> pids;
    for (int r : {1, 0, 2}) {
        const pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid != 0) {
            pids.push_back(pid);
            continue;
        }
        alarm(60);
        Rank rank = {r, 3, Mode::kProcesses, nullptr, {}, {}, 20 * SHC_NS_PER_S, kAll};
        if (shc_store_dir_open(pattern, &rank.store) != SHC_OK ||
            rank.make_group(&rank.comm, "death") != SHC_OK)
            _exit(2);
        meet_heaps(rank);
        Block block(kLong);
        auto *values = reinterpret_cast<float *>(block.at());
        std::thread thread;
        const shc_status st = sum_until_failure(rank, values, [&] {
            if (r == 0)
                thread = std::thread([&] {
                    shc_os_sleep_ns(static_cast<uint64_t>(round) * 1100 * 1000);
                    kill(pids[0], signal);
                });
        });
        EXPECT_TRUE(st == SHC_ERR_TIMEOUT || st == SHC_ERR_PEER_DEAD) << error_text();
        if (!shc_memory_is_shared(values, kLong))
            divorced.done(1);
        if (r == 1)
            _exit(0); // it was stopped, and has been told
        std::fill_n(values, kLong / 4, -1.f);
        if (r == 0) {
            thread.join();
            order.await(1);
            kill(pids[0], SIGCONT);
        }
        order.done(r == 2 ? 1 : 2);
        order.await(2);
        shc_os_sleep_ns(100 * SHC_NS_PER_MS);
        for (size_t i = 0; i < kLong / 4; i++)
            if (values[i] != -1.f)
                _exit(3);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    for (pid_t pid : pids) {
        int status = -1;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, pid == pids[0] && signal == SIGKILL ? SIGKILL : 0) << round;
    }
    divorced.await(1); // a rank that found it out had begun
    std::filesystem::remove_all(pattern);
}

TEST(Push, WhoIsStoppedOrKilledInTheMiddleChangesNothingAfterwards)
{
    for (int round = 0; round < rounds(4); round++)
        for (int signal : {SIGSTOP, SIGKILL})
            expect_safe_after(signal, round);
}
#endif

} // namespace
