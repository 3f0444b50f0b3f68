// SPDX-License-Identifier: BSD-3-Clause

// In which copy mode messages go through the eager buffers of more than
// two ranks, which have no pool.
#include "tests/support/messages.h"

#include <gtest/gtest.h>
#include <vector>

extern "C" {
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kBytes = 64 << 10; // through a part of the buffers
const size_t kClass = 1;        // of trials

std::vector<unsigned char> content(int tag)
{
    std::vector<unsigned char> bytes(kBytes);
    for (size_t i = 0; i < kBytes; i++)
        bytes[i] = static_cast<unsigned char>(i / 1000 + i * 3 + static_cast<size_t>(tag) * 31);
    return bytes;
}

// Is the message over for its sender although its rest has not been read?
bool ends_unread(const Comms &comms, int tag)
{
    ByteMessage sent(SHC_SEND, 1, tag, content(tag));
    ByteMessage got(SHC_RECV, 0, tag, std::vector<unsigned char>(kBytes, 0xee));
    sent.start(comms[0]); // the header goes out,
    got.start(comms[1]);  // and the CTS that asks for the rest
    for (int i = 0; i < 5; i++)
        pass(comms[0]);
    const bool ended = sent.done();
    EXPECT_FALSE(got.done());
    for (int i = 0; i < 4; i++)
        pass_in_turns(comms, 2);
    EXPECT_TRUE(sent.done());
    EXPECT_TRUE(got.done());
    EXPECT_TRUE(got.bytes == content(tag));
    return ended;
}

TEST(Ways, AreTriedWithMessagesThatEndWhenTheyHaveBeenRead)
{
    by_one_thread(
        [](const Comms &comms) {
            const shc_copy_trial &trial = comms[0]->p2p.trials[1][kClass];
            EXPECT_FALSE(ends_unread(comms, 1));
            EXPECT_GT(trial.bytes, kBytes / 2);
            EXPECT_EQ(trial.notes, 1u);
            settle_trials(comms[0]->p2p);
            EXPECT_TRUE(ends_unread(comms, 2));
        },
        3);
}

// It does not matter whether those of messages after it, or to others, have been read.
TEST(Ways, LetAMessageEndWhenItsOwnWindowsHaveBeenRead)
{
    by_one_thread(
        [](const Comms &comms) {
            shc_pairs &mine = comms[0]->p2p.pairs, &theirs = comms[1]->p2p.pairs;
            const shc_place other = shc_chunk_lend(&mine, 2);
            const shc_place first = shc_chunk_lend(&mine, 1);
            const uint32_t after_first = mine.chunks;
            const shc_place second = shc_chunk_lend(&mine, 1);
            const uint32_t after_second = mine.chunks;
            for (const shc_place &place : {other, first, second})
                ASSERT_EQ(place.memory, SHC_IN_EAGER);
            EXPECT_FALSE(shc_chunks_were_read(&mine, 1, 0, after_first));
            shc_place_return(&theirs, 0, first);
            EXPECT_TRUE(shc_chunks_were_read(&mine, 1, 0, after_first));
            EXPECT_FALSE(shc_chunks_were_read(&mine, 1, 0, after_second));
            shc_place_return(&theirs, 0, second);
            EXPECT_TRUE(shc_chunks_were_read(&mine, 1, 0, after_second));
        },
        3);
}

// Some ranks may share a cache, and others not.
TEST(Ways, AreChosenForEachPeer)
{
    by_one_thread(
        [](const Comms &comms) {
            ends_unread(comms, 1);
            EXPECT_GT(comms[0]->p2p.trials[1][kClass].bytes, 0u);
            EXPECT_EQ(comms[0]->p2p.trials[2][kClass].bytes, 0u);
            EXPECT_EQ(comms[1]->p2p.trials[0][kClass].bytes, 0u);
        },
        3);
}

// A rank that reads a message meanwhile is slow to store another one, in any copy mode.
TEST(Ways, AreNotTriedWithMessagesThatPassOneAnother)
{
    by_one_thread(
        [](const Comms &comms) {
            ByteMessage other(SHC_RECV, 1, 7, std::vector<unsigned char>(kBytes, 0xee));
            other.start(comms[0]);
            const shc_copy_trial &trial = comms[0]->p2p.trials[1][kClass];
            EXPECT_TRUE(ends_unread(comms, 1));
            EXPECT_EQ(trial.notes, 0u);
            ByteMessage back(SHC_SEND, 0, 7, content(7));
            back.start(comms[1]);
            pass_in_turns(comms, 6);
            EXPECT_TRUE(other.done());
            EXPECT_TRUE(other.bytes == content(7));
            EXPECT_EQ(comms[1]->p2p.trials[0][kClass].notes, 1u);
        },
        3);
}

// Each of them brings what was sent.
TEST(Ways, AllBringTheBytes)
{
    by_one_thread(
        [](const Comms &comms) {
            shc_copy_trial &trial = comms[0]->p2p.trials[1][kClass];
            settle_trials(comms[0]->p2p);
            for (int way = 0; way < SHC_COPY_MODES; way++) {
                trial.mode = static_cast<shc_copy_mode>(way);
                EXPECT_TRUE(ends_unread(comms, way));
                EXPECT_EQ(trial.mode, static_cast<shc_copy_mode>(way));
            }
        },
        3);
}

} // namespace
