// SPDX-License-Identifier: BSD-3-Clause
// The gate: each cause that shuts it, each that does not, and what is reported of it.
#include "tests/cuda/launcher.h"

extern "C" {
#include "cuda_ipc/timeline.h"
}

#include <vector>

namespace shmcoll::test
{
namespace
{

constexpr uint64_t kSequence = 41, kRound = 7;

struct Outcome {
    uint64_t gate, verdict;
    bool operator==(const Outcome &other) const
    {
        return gate == other.gate && verdict == other.verdict;
    }
};

std::ostream &operator<<(std::ostream &out, const Outcome &o)
{
    return out << "gate " << o.gate << ", sequence " << SHC_VERDICT_SEQUENCE(o.verdict) << ", rank "
               << SHC_VERDICT_RANK(o.verdict) << ", state " << SHC_VERDICT_STATE(o.verdict);
}

const Outcome kOpen = {SHC_GATE_OPEN, 0};

Outcome shut(shc_gate_state state, int rank)
{
    return {static_cast<uint64_t>(state),
            SHC_VERDICT(kSequence, rank, static_cast<uint64_t>(state))};
}

// A group whose ranks have all arrived and made the same call.
struct Group {
    explicit Group(int world, int rank = 0) : arrived(world * kArrivedWords, 99), records(world)
    {
        for (int r = 0; r < world; r++) {
            word(r) = kRound;
            records[r].sequence = kSequence;
            for (uint64_t w = 0; w < SHC_RECORD_CALL_WORDS; w++)
                records[r].call[w] = 1000 + w;
            records[r].factor = r; // ranks may differ in these
            records[r].own[0] = records[r].own[1] = 50 + r;
        }
        args.gate = &gate;
        args.verdict = &verdict;
        args.aborted = &aborted;
        args.arrived = reinterpret_cast<const char *>(arrived.data());
        args.arrived_stride = kArrivedWords * sizeof(uint64_t);
        args.round = kRound;
        args.poison = SHC_TIMELINE_POISON;
        args.records = reinterpret_cast<const char *>(records.data());
        args.record_stride = sizeof records[0];
        args.sequence = kSequence;
        args.rank = rank;
        args.world = world;
    }
    uint64_t &word(int rank) { return arrived[rank * kArrivedWords]; }
    Outcome run(Launcher &l)
    {
        l.gate(args);
        return {gate, verdict};
    }
    void later_round(uint32_t found)
    {
        args.records = nullptr;
        gate = found;
    }

    static constexpr int kArrivedWords = 3;
    uint32_t gate = SHC_GATE_UNSET;
    uint64_t verdict = 0, aborted = 0;
    std::vector<uint64_t> arrived;
    std::vector<shc_cuda_record> records;
    shc_gate_args args = {};
};

TEST(Gate, OpensWhenAllHaveArrivedWithTheSameCall)
{
    Launcher l;
    for (int world : {1, 2, 3, 8, 100, SHC_MAX_WORLD})
        for (int rank : {0, world - 1})
            EXPECT_EQ(Group(world, rank).run(l), kOpen) << world;
}

TEST(Gate, WordsMayBeAheadOfTheRound)
{
    Launcher l;
    Group g(3);
    g.word(1) = kRound + 5;
    g.word(2) = SHC_TIMELINE_LAST;
    EXPECT_EQ(g.run(l), kOpen);
}

TEST(Gate, ShutsWhereAnyRankHasNotArrived)
{
    Launcher l;
    for (int late = 0; late < 8; late++)
        for (uint64_t value : {uint64_t{0}, kRound - 1}) {
            Group g(8);
            g.word(late) = value;
            EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, late));
        }
}

TEST(Gate, PoisonIsNoArrival)
{
    Launcher l;
    Group g(3);
    g.word(2) = SHC_TIMELINE_POISON;
    EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, 2));
}

TEST(Gate, TheLowestOfThoseThatHaveNotArrivedIsNamed)
{
    Launcher l;
    for (int world : {3, 8, 100, SHC_MAX_WORLD})
        for (int lowest : {0, 1, world / 2}) {
            Group g(world, world - 1);
            for (int r = lowest; r < world; r++)
                g.word(r) = r % 2 ? SHC_TIMELINE_POISON : kRound - 1;
            EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, lowest)) << world;
        }
}

TEST(Gate, ShutsWhenTheGroupHasFailed)
{
    Launcher l;
    for (uint64_t word : {uint64_t{1}, uint64_t{1} << 63}) {
        Group g(3, 1);
        g.aborted = word;
        EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, 1));
    }
}

TEST(Gate, ShutsForEveryWordOfACallThatDiffers)
{
    Launcher l;
    for (int other = 1; other < 4; other++)
        for (int w = 0; w < SHC_RECORD_CALL_WORDS; w++) {
            Group g(4, 2);
            g.records[other].call[w] ^= uint64_t{1} << (5 * w);
            EXPECT_EQ(g.run(l), shut(SHC_GATE_MISMATCH, other)) << w;
        }
}

TEST(Gate, ShutsForARecordOfAnotherOperation)
{
    Launcher l;
    for (int other = 0; other < 4; other++)
        for (uint64_t sequence : {kSequence - 1, kSequence + 1, uint64_t{0}}) {
            Group g(4, 2);
            g.records[other].sequence = sequence;
            EXPECT_EQ(g.run(l), shut(SHC_GATE_MISMATCH, other));
        }
}

// All ranks compare with rank 0, so all name the same rank, also the rank that differs.
TEST(Gate, AllRanksNameTheSameRank)
{
    Launcher l;
    for (int rank = 0; rank < 5; rank++) {
        Group g(5, rank);
        g.records[2].call[3]++;
        g.records[4].call[0]++;
        EXPECT_EQ(g.run(l), shut(SHC_GATE_MISMATCH, 2)) << rank;
        Group lone(5, rank); // rank 0 differs from all others, of which 1 is the first
        lone.records[0].call[11]++;
        EXPECT_EQ(lone.run(l), shut(SHC_GATE_MISMATCH, 1)) << rank;
    }
}

TEST(Gate, TheLastOfManyRanksIsComparedToo)
{
    Launcher l;
    Group late(SHC_MAX_WORLD), other(SHC_MAX_WORLD);
    late.word(SHC_MAX_WORLD - 1) = kRound - 1;
    EXPECT_EQ(late.run(l), shut(SHC_GATE_ABORTED, SHC_MAX_WORLD - 1));
    other.records[SHC_MAX_WORLD - 1].call[SHC_RECORD_CALL_WORDS - 1] = 0;
    EXPECT_EQ(other.run(l), shut(SHC_GATE_MISMATCH, SHC_MAX_WORLD - 1));
}

// A record is read only after its rank has arrived: before that it belongs to another operation.
TEST(Gate, WhoHasNotArrivedHasMadeNoOtherCall)
{
    Launcher l;
    Group g(4);
    g.records[1].call[0] = 0;
    g.word(3) = kRound - 1;
    EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, 3));
}

// So a rank names the mismatch although another rank has seen it first, and has failed.
TEST(Gate, AMismatchComesBeforeTheFailedGroup)
{
    Launcher l;
    Group g(3, 2);
    g.records[1].call[4] = 0;
    g.aborted = 1;
    EXPECT_EQ(g.run(l), shut(SHC_GATE_MISMATCH, 1));
}

TEST(Gate, TheFirstRoundOfAnOperationSetsIt)
{
    Launcher l;
    for (uint32_t before : {SHC_GATE_UNSET, SHC_GATE_OPEN}) {
        Group g(2);
        g.gate = before;
        EXPECT_EQ(g.run(l), kOpen);
        Group bad(2);
        bad.gate = before;
        bad.records[1].call[0] = 0;
        EXPECT_EQ(bad.run(l), shut(SHC_GATE_MISMATCH, 1));
    }
}

// What was enqueued after a failed operation may look right: rounds of ranks that disagree meet.
TEST(Gate, OnceShutItStaysShut)
{
    Launcher l;
    for (uint32_t before : {SHC_GATE_MISMATCH, SHC_GATE_ABORTED}) {
        Group g(2);
        g.gate = before;
        g.run(l);
        EXPECT_EQ(g.gate, before);
    }
}

TEST(Gate, LaterRoundsLeaveItOpen)
{
    Launcher l;
    Group g(3);
    g.later_round(SHC_GATE_OPEN);
    g.records[1].sequence = 0; // no rank looks
    EXPECT_EQ(g.run(l), kOpen);
}

TEST(Gate, LaterRoundsShutIt)
{
    Launcher l;
    Group late(3), failed(3, 2);
    late.later_round(SHC_GATE_OPEN);
    late.word(1) = SHC_TIMELINE_POISON;
    EXPECT_EQ(late.run(l), shut(SHC_GATE_ABORTED, 1));
    failed.later_round(SHC_GATE_OPEN);
    failed.aborted = 3;
    EXPECT_EQ(failed.run(l), shut(SHC_GATE_ABORTED, 2));
}

TEST(Gate, LaterRoundsNeverOpenItNorChangeWhyItIsShut)
{
    Launcher l;
    for (uint32_t before : {SHC_GATE_UNSET, SHC_GATE_MISMATCH, SHC_GATE_ABORTED})
        for (bool good : {true, false}) {
            Group g(3);
            g.later_round(before);
            g.word(1) = good ? kRound : kRound - 1;
            const Outcome unchanged = {before, 0};
            EXPECT_EQ(g.run(l), unchanged);
        }
}

TEST(Gate, TheFirstVerdictStays)
{
    Launcher l;
    Group g(3);
    g.verdict = SHC_VERDICT(uint64_t{7}, 2, SHC_GATE_MISMATCH);
    g.word(1) = 0;
    g.run(l);
    EXPECT_EQ(g.gate, SHC_GATE_ABORTED);
    EXPECT_EQ(g.verdict, SHC_VERDICT(uint64_t{7}, 2, SHC_GATE_MISMATCH));
}

// ---- captured operations ----

constexpr uint64_t kTag = 0x1234567;

// A captured round: each other rank has said the same, and no rank writes this rank's own word.
struct Captured : Group {
    explicit Captured(int world, int rank = 0) : Group(world, rank)
    {
        for (int r = 0; r < world; r++)
            word(r) = r == rank ? 0 : kTag;
        args.records = nullptr;
        args.verdict = verdicts;
        args.round = kTag;
        args.passed = &passed;
        gate = SHC_GATE_OPEN;
    }
    Outcome run(Launcher &l)
    {
        before = arrived;
        l.gate(args);
        return {gate, verdicts[0]};
    }
    bool untouched() const { return arrived == before && passed == 5 && busy == 77; }

    uint64_t passed = 5, busy = 77, verdicts[2] = {};
    std::vector<uint64_t> before;
};

TEST(CapturedGate, SeesARoundThroughAndSetsTheOthersWordsBack)
{
    Launcher l;
    for (int world : {1, 2, 3, 8, SHC_MAX_WORLD})
        for (int rank : {0, world - 1})
            for (bool last : {false, true}) {
                Captured g(world, rank);
                g.args.busy = last ? &g.busy : nullptr;
                g.args.busy_value = 9;
                g.word(rank) = 11; // its own word, which poison fills: neither read nor written
                EXPECT_EQ(g.run(l), kOpen) << world;
                for (int r = 0; r < world; r++) {
                    EXPECT_EQ(g.word(r), r == rank ? 11u : 0u);
                    EXPECT_EQ(g.arrived[r * g.kArrivedWords + 1], 99u); // the word next to it
                }
                EXPECT_EQ(g.passed, 6u);
                EXPECT_EQ(g.busy, last ? 9u : 77u);
            }
}

TEST(CapturedGate, ShutsForPoisonAndKeepsTheWords)
{
    Launcher l;
    for (int late = 1; late < 4; late++)
        for (uint64_t value : {uint64_t{0}, SHC_TIMELINE_POISON}) {
            Captured g(4);
            g.word(late) = value;
            g.word(3) = late == 3 ? value : kTag + 1; // no rank is reported as different then
            g.args.busy = &g.busy;
            EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, late));
            EXPECT_TRUE(g.untouched());
        }
}

TEST(CapturedGate, ShutsForAnArrivalThatSaysSomethingElse)
{
    Launcher l;
    for (int other = 1; other < 4; other++)
        for (uint64_t value : {uint64_t{1}, kTag - 1, SHC_TIMELINE_LAST}) {
            Captured g(4);
            g.word(other) = value;
            EXPECT_EQ(g.run(l), shut(SHC_GATE_MISMATCH, other));
            EXPECT_EQ(g.verdicts[1], value);
            EXPECT_TRUE(g.untouched());
        }
}

// After a failure a peer's stream goes on, and says what comes later.
TEST(CapturedGate, AFailedGroupIsNoMismatch)
{
    Launcher l;
    Captured g(3, 2), late(3, 2);
    g.aborted = late.aborted = 1;
    g.word(0) = kTag + 1;
    EXPECT_EQ(g.run(l), shut(SHC_GATE_ABORTED, 2));
    EXPECT_TRUE(g.untouched());
    late.word(1) = 0;
    EXPECT_EQ(late.run(l), shut(SHC_GATE_ABORTED, 1));
}

TEST(CapturedGate, OnceShutItStaysShutAndSetsNothingBack)
{
    Launcher l;
    for (uint32_t found : {SHC_GATE_UNSET, SHC_GATE_MISMATCH, SHC_GATE_ABORTED}) {
        Captured g(3);
        g.gate = found;
        const Outcome unchanged = {found, 0};
        EXPECT_EQ(g.run(l), unchanged);
        EXPECT_TRUE(g.untouched());
    }
}

TEST(Gate, AVerdictHoldsTheLargestNumbers)
{
    const uint64_t sequence = (uint64_t{1} << 48) - 1;
    const uint64_t v = SHC_VERDICT(sequence, SHC_MAX_WORLD - 1, SHC_GATE_ABORTED);
    EXPECT_EQ(SHC_VERDICT_SEQUENCE(v), sequence);
    EXPECT_EQ(SHC_VERDICT_RANK(v), SHC_MAX_WORLD - 1);
    EXPECT_EQ(SHC_VERDICT_STATE(v), SHC_GATE_ABORTED);
}

} // namespace
} // namespace shmcoll::test
