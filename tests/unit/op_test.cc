// SPDX-License-Identifier: BSD-3-Clause
// What is checked of an operation and of a config: by shc_check_for() for a world that is no group, and by a
// group of one rank.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

using namespace shmcoll::test;

namespace
{

struct Check {
    uint64_t count = 77;
    uint32_t elem_bytes = 77;

    shc_status of(int rank, int world, const shc_op &op)
    {
        return shc_check_for(rank, world, &op, &count, &elem_bytes);
    }
};

// Room for anything that is checked and never touched.
float memory[64];

struct Vector {
    explicit Vector(int64_t elements, float *data = memory)
        : size(elements), tensor{data, 1, &size, nullptr}
    {
    }
    Vector(const Vector &) = delete;
    shc_tensors list() const { return {&tensor, 1}; }
    int64_t size;
    shc_tensor tensor;
};

TEST(CheckFor, GivesTheNumberOfElementsAndTheirSize)
{
    Check check;
    const Vector in(5), out(5, memory + 5), all(20, memory + 10);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = in.list();
    op.output = out.list();
    EXPECT_EQ(check.of(1000, 4096, op), SHC_OK) << error_text(); // more than a group has
    EXPECT_EQ(check.count, 5u);
    EXPECT_EQ(check.elem_bytes, 4u);
    op.kind = SHC_ALL_GATHER;
    op.output = all.list();
    EXPECT_EQ(check.of(3, 4, op), SHC_OK) << error_text();
    EXPECT_EQ(check.count, 5u);
    op = op_of(SHC_BROADCAST);
    op.root = 300;
    op.input = in.list();
    op.output = all.list();
    EXPECT_EQ(check.of(300, 400, op), SHC_OK) << error_text();
    EXPECT_EQ(check.count, 5u); // the root's input
    EXPECT_EQ(check.of(299, 400, op), SHC_OK) << error_text();
    EXPECT_EQ(check.count, 20u); // another rank's output
    EXPECT_EQ(check.of(0, 400, op_of(SHC_BARRIER)), SHC_OK);
    EXPECT_EQ(check.count, 0u);
}

TEST(CheckFor, SaysWhatIsWrong)
{
    Check check;
    const Vector in(5), out(6, memory + 5), over(5, memory + 2);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = in.list();
    op.output = out.list();
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_INVALID);
    EXPECT_EQ(error_text(), "all_reduce: 5 elements in, but room for 6 out");
    op.output = over.list();
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_INVALID);
    op = op_of(SHC_BROADCAST);
    op.root = 400;
    op.output = out.list();
    EXPECT_EQ(check.of(0, 400, op), SHC_ERR_INVALID);
    EXPECT_EQ(error_text(), "broadcast: root 400 is not a rank (0 to 399)");
    op = op_of(SHC_ALL_REDUCE);
    op.redop = SHC_BAND;
    op.input = op.output = in.list();
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_UNSUPPORTED);
    op = op_of(SHC_SEND);
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(error_text(), "send: no collective");
    op.kind = static_cast<shc_op_kind>(99);
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(check.of(2, 2, op_of(SHC_BARRIER)), SHC_ERR_INVALID);
    EXPECT_EQ(check.of(-1, 2, op_of(SHC_BARRIER)), SHC_ERR_INVALID);
    EXPECT_EQ(check.count, 77u); // set on success only
    EXPECT_EQ(check.elem_bytes, 77u);
}

// A program that was built with a later header sets them, and must not be misunderstood.
TEST(ReservedFields, AreZero)
{
    Check check;
    const Vector in(5);
    shc_comm_config config = {};
    config.world_size = 1;
    shc_comm *comm = nullptr;
    for (uint64_t &field : config.reserved) {
        field = 1;
        EXPECT_EQ(shc_comm_create(&config, &comm), SHC_ERR_INVALID);
        field = 0;
    }
    EXPECT_EQ(error_text(), "the config's reserved[3] is not 0");
    ASSERT_EQ(shc_comm_create(&config, &comm), SHC_OK) << error_text();
    for (const shc_op_kind kind : {SHC_ALL_REDUCE, SHC_BARRIER, SHC_SEND, SHC_RECV}) {
        shc_op op = op_of(kind);
        op.input = op.output = in.list();
        if (kind == SHC_ALL_REDUCE || kind == SHC_BARRIER) { // the next call is like a kept one
            EXPECT_EQ(shc_run(comm, &op), SHC_OK) << error_text();
        }
        op.reserved = 1;
        EXPECT_EQ(shc_run(comm, &op), SHC_ERR_INVALID) << kind;
        EXPECT_EQ(shc_check(comm, &op), SHC_ERR_INVALID) << kind;
        shc_request *request = nullptr;
        EXPECT_EQ(shc_submit(comm, &op, nullptr, &request), SHC_ERR_INVALID) << kind;
    }
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = op.output = in.list();
    op.reserved = 1;
    EXPECT_EQ(check.of(0, 2, op), SHC_ERR_INVALID);
    EXPECT_EQ(error_text(), "all_reduce: the operation's reserved field is not 0");
    shc_comm_free(comm);
}

} // namespace
