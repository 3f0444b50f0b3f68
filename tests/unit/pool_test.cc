// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/pool.h"
}

#include <atomic>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>
#include <vector>

namespace
{

struct Job {
    explicit Job(uint32_t count) : hits(count) {}
    std::vector<std::atomic<int>> hits;
    static void task(void *arg, uint32_t index) { static_cast<Job *>(arg)->hits[index]++; }
    void run(shc_pool *pool) { shc_pool_run(pool, task, this, static_cast<uint32_t>(hits.size())); }
    void expect_each_once() const
    {
        for (size_t i = 0; i < hits.size(); i++)
            ASSERT_EQ(hits[i], 1) << "task " << i << " of " << hits.size();
    }
};

TEST(Pool, EveryTaskRunsOnceWhateverTheNumberOfThreads)
{
    for (int threads : {0, 1, 3, 8}) {
        shc_pool *pool = nullptr;
        ASSERT_EQ(shc_pool_create(&pool, threads, nullptr), SHC_OK);
        EXPECT_EQ(shc_pool_size(pool), threads);
        for (uint32_t count : {0u, 1u, 2u, 7u, 100u, 1000u}) {
            for (int round = 0; round < 20; round++) {
                Job job(count);
                job.run(pool);
                job.expect_each_once();
            }
        }
    }
}

TEST(Pool, NoPoolAtAllIsAPoolOfSizeZero)
{
    Job job(10);
    job.run(nullptr);
    job.expect_each_once();
    EXPECT_EQ(shc_pool_size(nullptr), 0);
}

TEST(Pool, SeveralCallersAtOnceDoNotWaitForOneAnother)
{
    shc_pool *pool = nullptr;
    ASSERT_EQ(shc_pool_create(&pool, 2, nullptr), SHC_OK);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; c++)
        callers.emplace_back([pool] {
            for (int round = 0; round < 200; round++) {
                Job job(5 + static_cast<uint32_t>(round) % 7);
                job.run(pool);
                job.expect_each_once();
            }
        });
    for (std::thread &caller : callers)
        caller.join();
}

TEST(Pool, WhatTheTasksWroteIsThereWhenTheRunReturns)
{
    shc_pool *pool = nullptr;
    ASSERT_EQ(shc_pool_create(&pool, 3, nullptr), SHC_OK);
    for (int round = 0; round < 300; round++) {
        std::vector<int> plain(64, 0); // plain memory: a thread sanitizer sees a missing edge
        shc_pool_run(
            pool, [](void *arg, uint32_t i) { static_cast<int *>(arg)[i] = static_cast<int>(i); },
            plain.data(), 64);
        EXPECT_EQ(std::accumulate(plain.begin(), plain.end(), 0), 63 * 64 / 2);
    }
}

TEST(Pool, PinningThatIsRefusedIsNoError)
{
    shc_os_cpus nowhere = {};
    shc_pool *pool = nullptr;
    ASSERT_EQ(shc_pool_create(&pool, 2, &nowhere), SHC_OK);
    Job job(50);
    job.run(pool);
    job.expect_each_once();
}

} // namespace
