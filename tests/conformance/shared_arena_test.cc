// SPDX-License-Identifier: BSD-3-Clause
// Shout slots lie over exchange cells: what one operation stores must be read before the next one,
// of the other kind, stores there. docs/PROTOCOL.md, section 6.
#include "tests/conformance/world.h"

#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

// The root has given all of it, into its slots, long before the others have read any: without "stream"
// it does not wait for them.
const size_t kCount = (4 * 64 << 10) / sizeof(float);

void broadcast_and_sum(Rank &rank, int round)
{
    int64_t size;
    std::vector<float> values(kCount, static_cast<float>(rank.rank + round));
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_BROADCAST);
    op.root = round % rank.world;
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(values, std::vector<float>(kCount, static_cast<float>(op.root + round))) << round;
    std::vector<float> others(kCount, -1.f);
    tensor = vector_of(others, &size);
    op.kind = SHC_ALL_REDUCE;
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
    ASSERT_EQ(others, std::vector<float>(kCount, -static_cast<float>(rank.world))) << round;
}

TEST(SharedArena, NothingIsStoredOverAShoutThatIsStillRead)
{
    Options options;
    options.tuning = "stream=never";
    for (Mode mode : all_modes())
        for (int world : {2, 3, 4})
            run_ranks(
                mode, world,
                [](Rank &rank) {
                    for (int round = 0; round < 30; round++)
                        broadcast_and_sum(rank, round);
                },
                options);
}

} // namespace
