// SPDX-License-Identifier: BSD-3-Clause Lines that no rank writes: a rank that finds one says that the
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
    bool by_shuttle = false; // it is a shuttle's line
};

void PrintTo(const Damage &damage, std::ostream *out)
{
    *out << damage.name;
}

void in_window(shc_line_head &line, unsigned window, uint32_t bytes)
{
    line.window = static_cast<uint8_t>(window);
    line.piece = bytes;
    line.bytes = bytes;
}

void of_kind(shc_line_head &line, shc_line_kind kind)
{
    line.kind = static_cast<uint8_t>(kind);
}

const Damage kDamages[] = {
    {"NoKind", [](shc_line_head &line) { line.kind = 99; }},
    {"PartOfAWhole", [](shc_line_head &line) { line.piece = kBytes - 1; }},
    {"MoreThanALine",
     [](shc_line_head &line) { in_window(line, SHC_NO_WINDOW, SHC_LINE_DATA_BYTES + 1); }},
    {"MoreThanAWindow", [](shc_line_head &line) { in_window(line, 0, SHC_WINDOW_BYTES + 1); }},
    {"BehindTheLastBulkWindow",
     [](shc_line_head &line) { in_window(line, SHC_WINDOW_NAMES - 1, SHC_BULK_BYTES + 1); }},
    {"NoWindow", [](shc_line_head &line) { in_window(line, SHC_WINDOW_NAMES, kBytes); }},
    {"AShuttleThatTheReaderHolds",
     [](shc_line_head &line) { in_window(line, SHC_SHUTTLE_THEIRS, kBytes); }},
    {"AShuttleWhoseLineItIsNot",
     [](shc_line_head &line) { in_window(line, SHC_SHUTTLE_OURS, kBytes); }},
    {"NotTheShuttleWhoseLineItIs",
     [](shc_line_head &line) { in_window(line, SHC_SHUTTLE_THEIRS, kBytes); }, true},
    {"AWindowInAShuttlesLine", [](shc_line_head &line) { in_window(line, 0, kBytes); }, true},
    {"NothingInAShuttlesLine", [](shc_line_head &line) { in_window(line, SHC_NO_WINDOW, kBytes); },
     true},
    {"MoreThanAShuttle",
     [](shc_line_head &line) { in_window(line, SHC_SHUTTLE_OURS, SHC_WINDOW_BYTES + 1); }, true},
    {"PartOfAWholeByShuttle", [](shc_line_head &line) { line.piece = kBytes - 1; }, true},
    {"LittleOfAWholeByShuttle", [](shc_line_head &line) { line.piece = 8; }, true},
    {"AHeadByShuttleThatIsAll", [](shc_line_head &line) { of_kind(line, SHC_LINE_RTS); }, true},
    {"AWordForNoMessageByShuttle", [](shc_line_head &line) { of_kind(line, SHC_LINE_CTS); }, true},
    {"AFerryThatTheReaderHolds",
     [](shc_line_head &line) { in_window(line, SHC_FERRY_THEIRS, kBytes); }},
    {"MoreThanAFerry",
     [](shc_line_head &line) { in_window(line, SHC_FERRY_OURS, SHC_FERRY_BYTES + 1); }},
    {"AHeadThatIsAll",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_RTS);
         in_window(line, 0, kBytes);
     }},
    {"AHeadOfPartsOfElements",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_RTS);
         line.elem_bytes = 7;
         line.piece = 8;
     }},
    {"ElementsOfNoBytes",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_RTS);
         line.elem_bytes = 0;
         line.piece = 8;
     }},
    {"AnAnnouncementOfNothing",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_RTS);
         line.piece = 0;
         line.bytes = 0;
     }},
    {"AnOpenOneThatIsAll", [](shc_line_head &line) { of_kind(line, SHC_LINE_OPEN); }},
    {"AnOpenOneThatIsTooLong",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_OPEN);
         line.bytes = SHC_OPEN_BYTES + 1;
     }},
    {"AnOpenOneInAWindow",
     [](shc_line_head &line) {
         in_window(line, 0, kBytes);
         of_kind(line, SHC_LINE_OPEN);
         line.bytes = 2 * kBytes;
     }},
    {"AnOpenOneByShuttle",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_OPEN);
         line.bytes = 2 * kBytes;
     },
     true},
    {"AheadInItsLine",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_AHEAD);
         line.piece = kBytes / 2;
     }},
    {"AheadInAWindow",
     [](shc_line_head &line) {
         in_window(line, 0, kBytes / 2);
         of_kind(line, SHC_LINE_AHEAD);
         line.bytes = kBytes;
     }},
    {"AheadThatIsAll",
     [](shc_line_head &line) {
         in_window(line, SHC_FERRY_OURS, kBytes);
         of_kind(line, SHC_LINE_AHEAD);
     }},
    {"AheadOfPartsOfElements",
     [](shc_line_head &line) {
         in_window(line, SHC_FERRY_OURS, kBytes / 2 + 1);
         of_kind(line, SHC_LINE_AHEAD);
         line.elem_bytes = 2;
         line.bytes = kBytes;
     }},
    {"AheadInAFerryThatTheReaderHolds",
     [](shc_line_head &line) {
         in_window(line, SHC_FERRY_THEIRS, kBytes / 2);
         of_kind(line, SHC_LINE_AHEAD);
         line.bytes = kBytes;
     }},
    {"MoreAheadThanAFerry",
     [](shc_line_head &line) {
         in_window(line, SHC_FERRY_OURS, SHC_FERRY_BYTES + 1);
         of_kind(line, SHC_LINE_AHEAD);
         line.bytes = SHC_FERRY_BYTES + 2;
     }},
    {"AheadByShuttle",
     [](shc_line_head &line) {
         of_kind(line, SHC_LINE_AHEAD);
         line.piece = kBytes / 2;
     },
     true},
    {"AWordForNoMessage", [](shc_line_head &line) { of_kind(line, SHC_LINE_CTS); }},
    {"ARefusalOfNoMessage", [](shc_line_head &line) { of_kind(line, SHC_LINE_REFUSE); }},
    {"AChunkOfNoMessage", [](shc_line_head &line) { of_kind(line, SHC_LINE_CHUNK); }},
};

// A whole message of kBytes in its line, except for the damage.
void post_line(Rank &rank, bool by_shuttle, const Damage *damage)
{
    shc_p2p &p2p = rank.comm->p2p;
    shc_p2p_lock(&p2p);
    const int window = by_shuttle ? shc_shuttle_lend(&p2p.pairs, 1, kBytes) : -1;
    ASSERT_EQ(window, by_shuttle ? SHC_SHUTTLE_OURS : -1);
    shc_line_shm *line = shc_pair_line_for(&p2p.pairs, 1, window);
    line->head.kind = SHC_LINE_EAGER;
    line->head.dtype = SHC_UINT8;
    line->head.elem_bytes = 1;
    line->head.window = by_shuttle ? SHC_SHUTTLE_OURS : SHC_NO_WINDOW;
    line->head.piece = kBytes;
    line->head.mode = SHC_COPY_PLAIN;
    line->head.tag = 0;
    line->head.dtype_tag = 0;
    line->head.message = 0;
    line->head.bytes = kBytes;
    std::fill(std::begin(line->data), std::end(line->data), static_cast<uint8_t>(7));
    if (by_shuttle)
        std::fill_n(shc_window(&p2p.pairs, 0, 1, SHC_SHUTTLE_OURS), kBytes, char{7});
    if (damage)
        damage->harm(line->head);
    shc_pair_post(&p2p.pairs, 1, line, window);
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
    for (Mode mode : all_modes())
        run_ranks(mode, world, [&](Rank &rank) {
            if (rank.rank == 1) {
                receive_line(rank, SHC_ERR_ABORTED, 0xee);
                return;
            }
            for (const Damage *damage : lines)
                if (rank.rank == 0)
                    post_line(rank, damage && damage->by_shuttle, damage);
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

TEST(DamagedLines, OfShortShuttlesFailTheGroupAndTouchNothing)
{
    const Damage damage = {
        "", [](shc_line_head &line) { in_window(line, SHC_SHUTTLE_OURS, 2048 + 1); }, true};
    expect_found({&damage}, 8); // ranks, whose shuttles are 2 KiB
}

// Lines after a message for which there is no receive, and whose rest is still to come.
void post_open_line(shc_line_head &line)
{
    of_kind(line, SHC_LINE_OPEN);
    line.tag = 1;
    line.elem_bytes = 2;
    line.bytes = 2 * kBytes;
}

void of_its_rest(shc_line_head &line)
{
    of_kind(line, SHC_LINE_CHUNK);
    line.bytes = kBytes;
}

const Damage kOpenOne = {"", post_open_line};
const Damage kItsRest = {"", of_its_rest};

const Damage kDamagedRests[] = {
    {"AnotherOpenOne", post_open_line},
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
    expect_found({&kOpenOne, &GetParam(), nullptr});
}

INSTANTIATE_TEST_SUITE_P(All, DamagedRests, testing::ValuesIn(kDamagedRests),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST(UndamagedRests, AreKept)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 2, [](Rank &rank) {
            if (rank.rank == 0) {
                post_line(rank, false, &kOpenOne);
                post_line(rank, false, &kItsRest);
                post_line(rank, false, nullptr);
            } else {
                receive_line(rank, SHC_OK, 7);
                EXPECT_FALSE(rank.comm->p2p.peers[0].open.comes);
                ASSERT_NE(rank.comm->p2p.peers[0].strays, nullptr);
                const uint8_t *piece = rank.comm->p2p.peers[0].strays->piece;
                EXPECT_TRUE(std::all_of(piece, piece + 2 * kBytes, [](int b) { return b == 7; }));
            }
            shc_op op = op_of(SHC_BARRIER);
            EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        });
}

// So that the damage is what is found.
TEST(UndamagedLines, AreReceived)
{
    for (Mode mode : all_modes())
        for (bool by_shuttle : {false, true})
            run_ranks(mode, 2, [&](Rank &rank) {
                if (rank.rank == 1)
                    receive_line(rank, SHC_OK, 7);
                else
                    post_line(rank, by_shuttle, nullptr);
                shc_op op = op_of(SHC_BARRIER);
                EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            });
}

} // namespace
