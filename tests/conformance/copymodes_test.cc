// SPDX-License-Identifier: BSD-3-Clause
// One-way operations may store past the caches or into them, whichever is faster: a rank that stores must
// go on noting the time of each message. src/shm/exec/copymode.h has the choice itself.
#include "tests/conformance/world.h"

#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

const int kRoot = 0;

// All that this rank has noted of the operation, and its present copy mode.
std::vector<double> noted(const Rank &rank, shc_op_kind kind)
{
    std::vector<double> all;
    for (const shc_copy_trial &trial : rank.comm->trials[kind]) {
        all.push_back(trial.mode);
        all.push_back(static_cast<double>(trial.bytes));
    }
    return all;
}

bool goes_to_root(shc_op_kind kind)
{
    return kind == SHC_REDUCE || kind == SHC_GATHER;
}

bool stores(const Rank &rank, shc_op_kind kind)
{
    return (rank.rank == kRoot) != goes_to_root(kind);
}

// A block is what each rank gives to the root, or gets.
void run_one(Rank &rank, shc_op_kind kind, size_t block)
{
    const size_t all =
        kind == SHC_GATHER || kind == SHC_SCATTER ? block * static_cast<size_t>(rank.world) : block;
    std::vector<float> of_root(all, 1.f), of_each(block, 1.f);
    int64_t root_size, each_size;
    shc_tensor at_root = vector_of(of_root, &root_size), each = vector_of(of_each, &each_size);
    shc_op op = op_of(kind);
    op.root = kRoot;
    const bool to_root = goes_to_root(kind);
    shc_tensors &there = to_root ? op.output : op.input, &here = to_root ? op.input : op.output;
    if (rank.rank == kRoot)
        there = {&at_root, 1};
    here = {&each, 1};
    if (kind == SHC_BROADCAST)
        op.input = op.output = {&each, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// handed_over: the first one goes through slots that the other rank of two gave in, by ordinary stores.
void note_every_message(Rank &rank, shc_op_kind kind, size_t bytes, int messages,
                        bool handed_over = false)
{
    for (int i = 0; i < messages; i++) {
        const std::vector<double> before = noted(rank, kind);
        run_one(rank, kind, bytes / sizeof(float));
        EXPECT_EQ(noted(rank, kind) != before, stores(rank, kind) && !(handed_over && i == 0))
            << "message " << i << " of " << bytes << " bytes, operation " << kind << ", rank "
            << rank.rank << " of " << rank.world;
    }
}

// The thread sanitizer takes minutes for more of them, and they show it no other code.
#if defined(__SANITIZE_THREAD__)
const std::vector<int> kWorlds = {2};
#else
const std::vector<int> kWorlds = {2, 3, 5};
#endif

TEST(CopyTrials, AreNotedWithEveryMessage)
{
    Options options;
    options.knobs.no_cma = true; // a root does not store what others copy out of its memory
    options.tuning = "reduce.scatter_gather_from=never"; // nor do cells use streaming stores
    for (int world : kWorlds)
        run_ranks(
            all_modes().front(), world,
            [](Rank &rank) {
                for (shc_op_kind kind : {SHC_BROADCAST, SHC_REDUCE, SHC_GATHER, SHC_SCATTER}) {
                    const bool gives_next = kind == SHC_REDUCE || kind == SHC_SCATTER;
                    // A trial of each mode, and more: short ones are no longer timed after it.
                    note_every_message(rank, kind, 32 << 10, 320, gives_next && rank.world == 2);
                    note_every_message(rank, kind, 256 << 10, 40);
                    note_every_message(rank, kind, 2 << 20, 2);
                    note_every_message(rank, kind, 6 << 20, 1); // fills the slots again and again
                }
            },
            options);
}

} // namespace
