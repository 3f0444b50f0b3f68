// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Memory that scenarios of messages send and receive.

#include "tests/cuda/cuda_comm_rank.h"

#include <algorithm>
#include <memory>

namespace shmcoll::test
{

inline constexpr uint8_t kGuard = 0x5a;
inline constexpr size_t kMargin = 64;

// The content of one rank's n-th message to another rank: no two pieces are equal.
inline Bytes content(int from, int to, uint64_t number, size_t bytes)
{
    const uint64_t seed = static_cast<uint64_t>(from) * 31 + static_cast<uint64_t>(to) * 17;
    Bytes all(bytes);
    for (size_t i = 0; i < bytes; i++)
        all[i] = static_cast<uint8_t>(i * 7 + i / 251 + seed + number * 13);
    return all;
}

struct Type {
    shc_dtype dtype;
    uint32_t elem_bytes;
};

// Memory on the GPU with a margin on both sides, and a stream of its own.
class Box
{
  public:
    Box(Rank &rank, size_t capacity) : rank_(rank), at_(rank.allocate(capacity + 2 * kMargin))
    {
        rank.driver.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0);
    }
    ~Box() { rank_.driver.cuStreamDestroy(stream); }
    Box(const Box &) = delete;
    Box &operator=(const Box &) = delete;

    void put(const Bytes &bytes)
    {
        if (!bytes.empty())
            rank_.put(at_ + kMargin, bytes);
    }
    void clear(size_t bytes) { rank_.put(at_, Bytes(bytes + 2 * kMargin, kGuard)); }
    bool holds(const Bytes &bytes)
    {
        Bytes want(bytes.size() + 2 * kMargin, kGuard);
        std::copy(bytes.begin(), bytes.end(), want.begin() + kMargin);
        return rank_.get(at_, want.size()) == want;
    }
    Bytes get(size_t bytes) { return rank_.get(at_ + kMargin, bytes); }
    bool sync() { return rank_.driver.cuStreamSynchronize(stream) == SHC_CU_SUCCESS; }

    // As two tensors in a row.
    Call call(shc_op_kind kind, int peer, const Type &type, uint64_t count, int tag = 0) const
    {
        Call call;
        call.op.kind = kind;
        call.op.dtype = type.dtype;
        call.op.elem_bytes = type.elem_bytes;
        call.op.peer = peer;
        call.op.tag = tag;
        const std::vector<uint64_t> counts = {count / 3, count - count / 3};
        auto &sizes = kind == SHC_SEND ? call.in_sizes : call.out_sizes;
        add_tensors(kind == SHC_SEND ? call.in : call.out, sizes, at_ + kMargin, counts,
                    type.elem_bytes);
        return call;
    }
    shc_status enqueue(Call call)
    {
        return shc_cuda_comm_enqueue(rank_.cuda, call.ready(), stream);
    }

    shc_cu_stream *stream = nullptr;

  private:
    Rank &rank_;
    shc_cu_address at_;
};

using Boxes = std::vector<std::unique_ptr<Box>>;

inline Boxes boxes(Rank &rank, size_t count, size_t capacity)
{
    Boxes made;
    while (made.size() < count)
        made.push_back(std::make_unique<Box>(rank, capacity));
    return made;
}

inline const Type kByte = {SHC_UINT8, 1}, kLong = {SHC_INT64, 8}, kOpaque = {SHC_OPAQUE, 12};

} // namespace shmcoll::test
