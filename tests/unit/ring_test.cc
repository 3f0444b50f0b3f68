// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/proto/ring.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

struct Memory {
    explicit Memory(uint32_t slot_count, uint32_t slot_words, uint64_t first = 0)
        : bytes(shc_ring_bytes(slot_count, slot_words)),
          base(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
          slots(slot_count), words(slot_words)
    {
        auto *shm = static_cast<shc_ring_shm *>(base);
        shc_a64_store_relaxed(&shm->head, first);
        shc_a64_store_relaxed(&shm->tail, first);
    }
    ~Memory() { munmap(base, bytes); }
    shc_ring view() const { return shc_ring_view(base, slots, words); }
    size_t bytes;
    void *base;
    uint32_t slots, words;
};

const uint64_t kNearTheEnd = UINT64_MAX - 3;

TEST(Ring, EmptyRingGivesNothing)
{
    Memory memory(4, 2, kNearTheEnd);
    shc_ring consumer = memory.view();
    uint64_t words[2];
    EXPECT_TRUE(shc_ring_empty(&consumer));
    EXPECT_FALSE(shc_ring_pop(&consumer, words));
}

TEST(Ring, FullRingRefusesPush)
{
    Memory memory(4, 1, kNearTheEnd);
    shc_ring producer = memory.view(), consumer = memory.view();
    uint64_t word;
    for (word = 0; word < 4; word++)
        ASSERT_TRUE(shc_ring_push(&producer, &word));
    EXPECT_FALSE(shc_ring_push(&producer, &word));
    uint64_t out;
    ASSERT_TRUE(shc_ring_pop(&consumer, &out));
    EXPECT_EQ(out, 0u);
    EXPECT_TRUE(shc_ring_push(&producer, &word));
}

TEST(Ring, GivesWhatWasPushedInOrderAcrossTheWrapOfItsCounters)
{
    Memory memory(8, 3, kNearTheEnd);
    shc_ring producer = memory.view(), consumer = memory.view();
    uint64_t next_in = 0, next_out = 0;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 1 + round % 8; i++) {
            uint64_t words[3] = {next_in, next_in * 3, ~next_in};
            if (shc_ring_push(&producer, words))
                next_in++;
        }
        uint64_t words[3];
        while (shc_ring_pop(&consumer, words)) {
            ASSERT_EQ(words[0], next_out);
            ASSERT_EQ(words[1], next_out * 3);
            ASSERT_EQ(words[2], ~next_out);
            next_out++;
        }
        ASSERT_EQ(next_in, next_out);
    }
}

void produce(shc_ring ring, uint64_t count)
{
    for (uint64_t i = 0; i < count;) {
        uint64_t words[3] = {i, i * 7, i ^ 0x5555};
        if (shc_ring_push(&ring, words))
            i++;
        else
            std::this_thread::yield();
    }
}

uint64_t consume(shc_ring ring, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t words[3];
        if (!shc_ring_pop(&ring, words)) {
            std::this_thread::yield();
            continue;
        }
        wrong += words[0] != i || words[1] != i * 7 || words[2] != (i ^ 0x5555);
        i++;
    }
    return wrong;
}

const uint64_t kCount = 50000;

TEST(Ring, CarriesEverythingBetweenThreads)
{
    Memory memory(16, 3, kNearTheEnd);
    std::thread producer(produce, memory.view(), kCount);
    EXPECT_EQ(consume(memory.view(), kCount), 0u);
    producer.join();
}

#if !defined(__SANITIZE_THREAD__)
TEST(Ring, CarriesEverythingBetweenProcesses)
{
    Memory memory(16, 3, kNearTheEnd);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        produce(memory.view(), kCount);
        _exit(0);
    }
    EXPECT_EQ(consume(memory.view(), kCount), 0u);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// A producer that dies at any instruction has published whole slots or nothing.
TEST(Ring, AProducerKilledAnywhereLeavesOnlyWholeSlots)
{
    for (int round = 0; round < 20; round++) {
        Memory memory(64, 3);
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0)
            produce(memory.view(), UINT64_MAX);
        shc_ring ring = memory.view();
        uint64_t wrong = consume(ring, 1000 + static_cast<uint64_t>(round) * 37);
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        EXPECT_EQ(wrong, 0u);
    }
}
#endif

} // namespace
