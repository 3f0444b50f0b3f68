// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/status.h"
}

#include <cerrno>
#include <gtest/gtest.h>
#include <string>
#include <thread>

TEST(Status, EveryStatusDtypeAndOpHasAName)
{
    for (int i = 0; i < SHC_STATUS_COUNT; i++)
        EXPECT_NE(shc_status_name((shc_status)i), nullptr) << i;
    for (int i = 0; i < SHC_DTYPE_COUNT; i++)
        EXPECT_NE(shc_dtype_name((shc_dtype)i), nullptr) << i;
    for (int i = 0; i < SHC_REDOP_COUNT; i++)
        EXPECT_NE(shc_redop_name((shc_redop)i), nullptr) << i;
    for (int i = 0; i < SHC_OP_KIND_COUNT; i++)
        EXPECT_NE(shc_op_kind_name((shc_op_kind)i), nullptr) << i;
}

TEST(Status, AWildValueFromSharedMemoryHasANameToo)
{
    EXPECT_STREQ(shc_dtype_name((shc_dtype)250), "unknown");
    EXPECT_STREQ(shc_op_kind_name((shc_op_kind)-1), "unknown");
    EXPECT_EQ(shc_dtype_bytes((shc_dtype)250), 0u);
}

TEST(Status, TheRecordBelongsToTheThread)
{
    ASSERT_EQ(shc_fail(SHC_ERR_INVALID, "count is %d", -1), SHC_ERR_INVALID);
    std::thread([] {
        EXPECT_STREQ(shc_error_text(), "");
        EXPECT_EQ(shc_fail_errno(SHC_ERR_SYSTEM, ENOSPC, "no %s", "room"), SHC_ERR_SYSTEM);
        EXPECT_EQ(std::string(shc_error_text()), "no room: No space left on device");
    }).join();
    EXPECT_STREQ(shc_error_text(), "count is -1");
}
