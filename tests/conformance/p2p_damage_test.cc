// SPDX-License-Identifier: BSD-3-Clause

// Lines that no rank writes: a rank that finds one says that the
// memory is damaged and fails the group. It reads and stores nothing outside of what is there, whatever the
// line says.
#include "tests/support/ranks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <initializer_list>
#include <vector>

using namespace shmcoll::test;

namespace
{

const uint32_t kBytes = 64;

struct Damage {
    const char *name;
    void (*harm)(shc_line_head &line);
    bool by_hand_off = false; // its line is that of a hand-off buffer
};

void PrintTo(const Damage &damage, std::ostream *out)
{
    *out << damage.name;
}

void in_place(shc_line_head &line, shc_memory memory, unsigned index, uint32_t bytes)
{
    line.place = {static_cast<uint8_t>(memory), static_cast<uint8_t>(index)};
    line.piece = bytes;
    line.bytes = bytes;
}

void of_kind(shc_line_head &line, shc_frame kind)
{
    line.kind = static_cast<uint8_t>(kind);
}

// The first half of a message whose rest follows unasked, or (asks) after CTS.
void half_in(shc_line_head &line, shc_memory memory, bool asks)
{
    in_place(line, memory, 0, kBytes);
    of_kind(line, SHC_FRAME_FIRST);
    line.bytes = 2 * kBytes;
    line.asks = asks;
}

const Damage kDamages[] = {
    {"NoKind", [](shc_line_head &line) { line.kind = 99; }},
    {"PartOfAWhole", [](shc_line_head &line) { line.piece = kBytes - 1; }},
    {"MoreThanALine",
     [](shc_line_head &line) { in_place(line, SHC_IN_LINE, 0, SHC_LINE_DATA_BYTES + 1); }},
    {"MoreThanAnEagerBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_EAGER, 0, SHC_EAGER_BYTES + 1); }},
    {"NoEagerBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_EAGER, SHC_EAGER_BUFFERS, kBytes); }},
    {"MoreThanAPoolBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_POOL, 0, SHC_POOL_BYTES + 1); }},
    {"NotThePoolBufferThatIsNext",
     [](shc_line_head &line) { in_place(line, SHC_IN_POOL, 1, kBytes); }},
    {"NoPoolBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_POOL, SHC_POOL_BUFFERS, kBytes); }},
    {"NoMemory", [](shc_line_head &line) { in_place(line, SHC_MEMORIES, 0, kBytes); }},
    {"AHandOffBufferThatTheReaderHolds",
     [](shc_line_head &line) { in_place(line, SHC_IN_HAND_OFF, SHC_THEIRS, kBytes); }},
    {"AHandOffBufferWhoseLineItIsNot",
     [](shc_line_head &line) { in_place(line, SHC_IN_HAND_OFF, SHC_OURS, kBytes); }},
    {"NotTheHandOffBufferWhoseLineItIs",
     [](shc_line_head &line) { in_place(line, SHC_IN_HAND_OFF, SHC_THEIRS, kBytes); }, true},
    {"AnEagerBufferInAHandOffBuffersLine",
     [](shc_line_head &line) { in_place(line, SHC_IN_EAGER, 0, kBytes); }, true},
    {"NothingInAHandOffBuffersLine",
     [](shc_line_head &line) { in_place(line, SHC_IN_LINE, 0, kBytes); }, true},
    {"MoreThanAHandOffBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_HAND_OFF, SHC_OURS, SHC_EAGER_BYTES + 1); },
     true},
    {"PartOfAWholeByHandOff", [](shc_line_head &line) { line.piece = kBytes - 1; }, true},
    {"LittleOfAWholeByHandOff", [](shc_line_head &line) { line.piece = 8; }, true},
    {"APrefixByHandOffThatIsAll",
     [](shc_line_head &line) {
         of_kind(line, SHC_FRAME_FIRST);
         line.asks = 1;
     },
     true},
    {"AnAnswerForNoMessageByHandOff", [](shc_line_head &line) { of_kind(line, SHC_FRAME_CTS); },
     true},
    {"ALongHandOffBufferThatTheReaderHolds",
     [](shc_line_head &line) { in_place(line, SHC_IN_LONG_HAND_OFF, SHC_THEIRS, kBytes); }},
    {"NoLongHandOffBuffer",
     [](shc_line_head &line) { in_place(line, SHC_IN_LONG_HAND_OFF, 2, kBytes); }},
    {"MoreThanALongHandOffBuffer",
     [](shc_line_head &line) {
         in_place(line, SHC_IN_LONG_HAND_OFF, SHC_OURS, SHC_LONG_HAND_OFF_BYTES + 1);
     }},
    {"APrefixThatIsAll",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_EAGER, true);
         line.bytes = kBytes;
     }},
    {"APrefixOfPartsOfElements",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_LINE, true);
         line.elem_bytes = 7;
     }},
    {"ElementsOfNoBytes",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_LINE, true);
         line.elem_bytes = 0;
     }},
    {"AnAnnouncementOfNothing",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_LINE, true);
         line.piece = 0;
         line.bytes = 0;
     }},
    {"APrefixInThePool", [](shc_line_head &line) { half_in(line, SHC_IN_POOL, true); }},
    {"AFirstFragmentThatIsAll",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_POOL, false);
         line.bytes = kBytes;
     }},
    {"AFirstFragmentInItsLine", [](shc_line_head &line) { half_in(line, SHC_IN_LINE, false); }},
    {"AFirstFragmentInAnEagerBuffer",
     [](shc_line_head &line) { half_in(line, SHC_IN_EAGER, false); }},
    {"AFirstFragmentByHandOff", [](shc_line_head &line) { half_in(line, SHC_IN_HAND_OFF, false); },
     true},
    {"FragmentsOfTooLongAMessage",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_POOL, false);
         line.bytes = SHC_UNASKED_BYTES + 1;
     }},
    {"FragmentsOfMoreThanALongHandOffBuffer",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_LONG_HAND_OFF, false);
         line.bytes = SHC_LONG_HAND_OFF_BYTES + 1;
     }},
    {"FragmentsInALongHandOffBufferThatTheReaderHolds",
     [](shc_line_head &line) {
         half_in(line, SHC_IN_LONG_HAND_OFF, false);
         line.place.index = SHC_THEIRS;
     }},
    {"AnAnswerForNoMessage", [](shc_line_head &line) { of_kind(line, SHC_FRAME_CTS); }},
    {"ARefusalOfNoMessage", [](shc_line_head &line) { of_kind(line, SHC_FRAME_NACK); }},
    {"MoreOfNoMessage", [](shc_line_head &line) { of_kind(line, SHC_FRAME_MORE); }},
};

// A whole message of kBytes in its line, except for the damage.
void post_line(Rank &rank, bool by_hand_off, const Damage *damage)
{
    shc_p2p &p2p = rank.comm->p2p;
    shc_p2p_lock(&p2p);
    const shc_place place =
        by_hand_off ? shc_hand_off_lend(&p2p.pairs, 1, kBytes) : shc_place{SHC_IN_LINE, 0};
    ASSERT_EQ(place.memory, by_hand_off ? SHC_IN_HAND_OFF : SHC_IN_LINE);
    shc_line_shm *line = shc_pair_line_for(&p2p.pairs, 1, place);
    line->head.kind = SHC_FRAME_EAGER;
    line->head.dtype = SHC_UINT8;
    line->head.elem_bytes = 1;
    line->head.asks = 0;
    line->head.place = place;
    line->head.piece = kBytes;
    line->head.mode = SHC_COPY_PLAIN;
    line->head.tag = 0;
    line->head.dtype_tag = 0;
    line->head.message = 0;
    line->head.bytes = kBytes;
    std::fill(std::begin(line->data), std::end(line->data), static_cast<uint8_t>(7));
    if (by_hand_off)
        std::fill_n(shc_place_at(&p2p.pairs, 0, 1, place), kBytes, char{7});
    if (damage)
        damage->harm(line->head);
    if (line->head.place.memory == SHC_IN_POOL)
        std::fill_n(shc_place_at(&p2p.pairs, 0, 1, line->head.place), kBytes, char{7});
    shc_pair_post(&p2p.pairs, 1, line, place);
    shc_pair_ring(&p2p.pairs, 1);
    shc_p2p_unlock(&p2p);
}

// The status of the receive, and the content of its memory.
void receive_line(Rank &rank, shc_status want, unsigned char byte)
{
    std::vector<unsigned char> bytes(kBytes, 0xee);
    int64_t size = kBytes;
    const shc_tensor tensor = {bytes.data(), 1, &size, nullptr};
    shc_op op = {};
    op.kind = SHC_RECV;
    op.dtype = SHC_UINT8;
    op.output = {&tensor, 1};
    EXPECT_EQ(shc_run(rank.comm, &op), want) << error_text();
    if (want != SHC_OK) {
        EXPECT_NE(error_text().find("no message explains"), std::string::npos) << error_text();
    }
    EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, byte));
}

// Rank 0 posts lines of which one is damaged (none at all: nullptr), and rank 1 finds that.
void expect_found(std::initializer_list<const Damage *> lines, int world = 2)
{
    for (Mode mode : modes())
        run_ranks(mode, world, [&](Rank &rank) {
            if (rank.rank == 1) {
                receive_line(rank, SHC_ERR_ABORTED, 0xee);
                return;
            }
            for (const Damage *damage : lines)
                if (rank.rank == 0)
                    post_line(rank, damage && damage->by_hand_off, damage);
            shc_op op = op_of(SHC_BARRIER);
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_ABORTED) << error_text();
        });
}

class DamagedLines : public testing::TestWithParam<Damage>
{
};

TEST_P(DamagedLines, FailTheGroupAndTouchNothing)
{
    expect_found({&GetParam()});
}

INSTANTIATE_TEST_SUITE_P(All, DamagedLines, testing::ValuesIn(kDamages),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(DamagedLines, OfShortHandOffBuffersFailTheGroupAndTouchNothing)
{
    const Damage damage = {
        "", [](shc_line_head &line) { in_place(line, SHC_IN_HAND_OFF, SHC_OURS, 2048 + 1); }, true};
    expect_found({&damage}, 8); // ranks, whose hand-off buffers are 2 KiB
}

// Lines after a message for which there is no receive, and whose rest is still to come.
void post_first(shc_line_head &line)
{
    half_in(line, SHC_IN_POOL, false);
    line.tag = 1;
    line.elem_bytes = 2;
}

void of_its_rest(shc_line_head &line)
{
    in_place(line, SHC_IN_POOL, 1, kBytes);
    of_kind(line, SHC_FRAME_MORE);
}

const Damage kFirst = {"", post_first};
const Damage kItsRest = {"", of_its_rest};

const Damage kDamagedRests[] = {
    {"AnotherFirst",
     [](shc_line_head &line) {
         post_first(line);
         line.place.index = 1;
     }},
    {"InItsLine",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.place = {SHC_IN_LINE, 0};
     }},
    {"InALongHandOffBuffer",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.place = {SHC_IN_LONG_HAND_OFF, SHC_OURS};
     }},
    {"OfAnotherMessage",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.message = 1;
     }},
    {"NotWhereItEnds",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.bytes = kBytes - 1;
     }},
    {"APartOfAnElement",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.piece = kBytes - 1;
     }},
    {"MoreThanItsRest",
     [](shc_line_head &line) {
         of_its_rest(line);
         line.piece = kBytes + 1;
     }},
};

class DamagedRests : public testing::TestWithParam<Damage>
{
};

TEST_P(DamagedRests, FailTheGroupAndTouchNothing)
{
    expect_found({&kFirst, &GetParam(), nullptr});
}

INSTANTIATE_TEST_SUITE_P(All, DamagedRests, testing::ValuesIn(kDamagedRests),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(UndamagedRests, AreKept)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            if (rank.rank == 0) {
                post_line(rank, false, &kFirst);
                post_line(rank, false, &kItsRest);
                post_line(rank, false, nullptr);
            } else {
                receive_line(rank, SHC_OK, 7);
                EXPECT_FALSE(rank.comm->p2p.peers[0].coming.comes);
                ASSERT_NE(rank.comm->p2p.peers[0].unexpected, nullptr);
                const uint8_t *piece = rank.comm->p2p.peers[0].unexpected->data;
                EXPECT_TRUE(std::all_of(piece, piece + 2 * kBytes, [](int b) { return b == 7; }));
            }
            shc_op op = op_of(SHC_BARRIER);
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        });
}

// So that the damage is what is found.
TEST(UndamagedLines, AreReceived)
{
    for (Mode mode : modes())
        for (bool by_hand_off : {false, true})
            run_ranks(mode, 2, [&](Rank &rank) {
                if (rank.rank == 1)
                    receive_line(rank, SHC_OK, 7);
                else
                    post_line(rank, by_hand_off, nullptr);
                shc_op op = op_of(SHC_BARRIER);
                EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            });
}

} // namespace
