// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What the conformance tests share: values that tell rank and index, descriptors, and the worlds in which
// every operation must be right.
#include "tests/support/ranks.h"
#include "tests/support/values.h"

#include <gtest/gtest.h>
#include <ostream>

namespace shmcoll::test
{

// Small integers, exact in float, different for every rank and index; those of an index repeat.
const size_t kPeriod = 251;

inline float value_of(int rank, size_t i)
{
    return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13 + 1) % kPeriod);
}

inline std::vector<float> input_of(int rank, size_t count)
{
    return repeated(count, kPeriod, [rank](size_t i) { return value_of(rank, i); });
}

inline std::vector<float> sum_of(int world, size_t count)
{
    return repeated(count, kPeriod, [world](size_t i) {
        float sum = 0.f;
        for (int r = 0; r < world; r++)
            sum += value_of(r, i);
        return sum;
    });
}

inline shc_tensor vector_of(std::vector<float> &values, int64_t *size)
{
    *size = static_cast<int64_t>(values.size());
    return {values.data(), 1, size, nullptr};
}

struct Case {
    Mode mode;
    int world;
    bool arena;
};

inline void PrintTo(const Case &c, std::ostream *out)
{
    *out << mode_name(c.mode) << ", " << c.world << " ranks"
         << (c.arena ? "" : ", small slots only");
}

inline std::vector<Case> cases()
{
#if defined(__SANITIZE_THREAD__)
    const std::vector<int> worlds = {2, 3, 4}; // 7 shows it no other code, and takes minutes
#elif defined(__SANITIZE_ADDRESS__)
    const std::vector<int> worlds = {1, 2, 3};
#else
    const std::vector<int> worlds = {1, 2, 3, 4, 7};
#endif
    std::vector<Case> all;
    for (Mode mode : all_modes())
        for (int world : worlds)
            for (bool arena : {true, false})
                all.push_back({mode, world, arena});
    return all;
}

// `near_wrap`: the epoch and the progress word wrap in the middle.
inline Options options_of(const Case &c, bool near_wrap = false)
{
    Options options;
    options.knobs.no_arena = !c.arena;
    options.knobs.first_epoch = near_wrap ? (1ULL << (64 - SHC_STEP_BITS)) - 20 : 0;
    return options;
}

inline std::string case_name(const ::testing::TestParamInfo<Case> &info)
{
    return mode_name(info.param.mode) + std::to_string(info.param.world) +
           (info.param.arena ? "Arena" : "SmallSlots");
}

} // namespace shmcoll::test
