// SPDX-License-Identifier: BSD-3-Clause

// Messages of bytes; and two ranks whose passes one thread makes, so
// that the state at each step is known.
#pragma once

#include "tests/support/ranks.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
#include "shm/comm/request.h"
#include "shm/p2p/internal.h"
}

namespace shmcoll::test
{

// One send or receive of bytes, with its memory.
struct ByteMessage {
    std::vector<unsigned char> bytes;
    int64_t size;
    shc_tensor tensor;
    shc_op op = {};
    shc_request *request = nullptr;

    ByteMessage(shc_op_kind kind, int peer, int tag, std::vector<unsigned char> content)
        : bytes(std::move(content)),
          size(static_cast<int64_t>(bytes.size())), tensor{bytes.data(), 1, &size, nullptr}
    {
        op.kind = kind;
        op.dtype = SHC_UINT8;
        op.peer = peer;
        op.tag = tag;
        op.input = op.output = {&tensor, 1};
    }
    ByteMessage(const ByteMessage &) = delete;
    ~ByteMessage()
    {
        if (request)
            shc_request_release(request);
    }

    void start(shc_comm *comm)
    {
        ASSERT_EQ(shc_submit(comm, &op, nullptr, &request), SHC_OK) << error_text();
    }
    void start(Rank &rank) { start(rank.comm); }
    bool done() const
    {
        shc_status status;
        return shc_request_done(request, &status);
    }
};

using Comms = shc_comm *[2];

// A message whose bytes tell its tag, and where in it they are.
struct TaggedMessage : ByteMessage {
    TaggedMessage(shc_op_kind kind, int peer, int tag, size_t count)
        : ByteMessage(kind, peer, tag,
                      kind == SHC_SEND ? content(tag, count)
                                       : std::vector<unsigned char>(count, 0xee))
    {
    }

    static std::vector<unsigned char> content(int tag, size_t count)
    {
        std::vector<unsigned char> bytes(count);
        for (size_t i = 0; i < count; i++)
            bytes[i] = static_cast<unsigned char>(i / 8192 * 13 + i / 64 + i * 7 +
                                                  static_cast<size_t>(tag) * 31);
        return bytes;
    }
    void expect_ended(shc_status want) const
    {
        shc_status status = SHC_OK;
        ASSERT_TRUE(shc_request_done(request, &status));
        EXPECT_EQ(status, want);
    }
    // That many bytes of it are here, and the memory after them has not changed.
    void expect_beginning(size_t count) const
    {
        std::vector<unsigned char> want = content(op.tag, bytes.size());
        std::fill(want.begin() + static_cast<std::ptrdiff_t>(count), want.end(),
                  static_cast<unsigned char>(0xee));
        EXPECT_TRUE(bytes == want) << "message " << op.tag;
    }
    void expect_content() const { expect_beginning(bytes.size()); }
};

// As if all copy modes had been tried.
inline void settle_trials(shc_p2p &p2p)
{
    for (int peer = 0; peer < p2p.env.seat->world_size; peer++) {
        for (shc_copy_trial &trial : p2p.trials[peer]) {
            trial.bytes = 3 * SHC_COPY_ROUND;
            trial.best = 1;
            for (double &took : trial.took)
                took = 2;
        }
    }
}

inline void pass(shc_comm *comm)
{
    shc_p2p_lock(&comm->p2p);
    shc_p2p_pass(&comm->p2p, true);
    shc_p2p_unlock(&comm->p2p);
}

inline void pass_in_turns(const Comms &comms, int passes)
{
    for (int i = 0; i < passes; i++)
        pass(comms[i % 2]);
}

// The body has the groups of ranks 0 and 1, which have no progress threads: these might make passes, too.
// Other ranks do nothing.
template <typename Body>
void by_one_thread(Body body, int world = 2)
{
    static Comms comms;
    static std::atomic<int> there, over;
    there = over = 0;
    run_ranks(Mode::kOwnMapping, world, [&](Rank &rank) {
        if (rank.rank < 2)
            comms[rank.rank] = rank.comm;
        rank.comm->p2p.progress_thread_started = true; // as if it ran, so that it is not started
        for (there++; there < world;)
            std::this_thread::yield();
        if (rank.rank == 0)
            body(comms);
        for (over++; over < world;)
            std::this_thread::yield();
        rank.comm->p2p.progress_thread_started = false;
    });
}

} // namespace shmcoll::test
