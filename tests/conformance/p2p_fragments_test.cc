// SPDX-License-Identifier: BSD-3-Clause
// Messages in a long hand-off buffer between two ranks, in fragments that are read while the next ones are
// stored: for every order of looks, and every kind of receive.
#include "tests/support/messages.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kWhole = 100000, kPiece = 16384;

using Message = TaggedMessage;

// Rank 0's message in a long hand-off buffer, line by line: what shc_p2p_place() does at once.
struct ByHand {
    const Comms &comms;
    const int tag;
    std::vector<unsigned char> bytes;
    const shc_place place;
    uint32_t number;
    size_t moved = 0;

    ByHand(const Comms &both, int its_tag, size_t count = kWhole)
        : comms(both), tag(its_tag), bytes(Message::content(tag, count)),
          place(shc_long_lend(&comms[0]->p2p.pairs, 1)), number(comms[0]->p2p.peers[1].messages++)
    {
        EXPECT_EQ(place.memory, SHC_IN_LONG_HAND_OFF);
        std::fill_n(memory(), count, '\xdd');
    }

    char *memory() const { return shc_place_at(&comms[0]->p2p.pairs, 0, 1, place); }

    // The next bytes, up to that many of the message.
    void post(size_t count)
    {
        shc_pairs &pairs = comms[0]->p2p.pairs;
        ASSERT_NE(shc_pair_draft(&pairs, 1), nullptr);
        std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(moved),
                  bytes.begin() + static_cast<std::ptrdiff_t>(count), memory() + moved);
        shc_line_shm *line = shc_pair_line_for(&pairs, 1, place);
        line->head.kind = moved == 0 ? SHC_FRAME_FIRST : SHC_FRAME_MORE;
        line->head.dtype = SHC_UINT8;
        line->head.elem_bytes = 1;
        line->head.asks = 0;
        line->head.place = place;
        line->head.piece = static_cast<uint32_t>(count - moved);
        line->head.mode = SHC_COPY_LINES;
        line->head.tag = tag;
        line->head.dtype_tag = 0;
        line->head.message = number;
        line->head.bytes = moved == 0 ? bytes.size() : moved;
        comms[0]->p2p.peers[1].unasked_end = number + 1;
        moved = count;
        shc_pair_post(&pairs, 1, line, place);
    }
    void end() { post(bytes.size()); }

    // In the buffer alone: so bytes that a receive has of them then were there before.
    void forget(size_t count) const { std::fill_n(memory(), count, '\xcc'); }
};

uint8_t where_buffer_is(const Comms &comms)
{
    return comms[1]->p2p.pairs.pairs[0].long_hand_offs.where[SHC_THEIRS];
}

template <typename Body>
void with_long_buffers(Body body)
{
    by_one_thread([&](const Comms &comms) {
        if (!shc_pair_has_pool(&comms[0]->p2p.pairs, 1) ||
            !shc_pair_has_pool(&comms[1]->p2p.pairs, 0))
            return;
        body(comms);
        EXPECT_FALSE(comms[1]->p2p.peers[0].coming.comes);
        EXPECT_EQ(comms[1]->p2p.peers[0].unexpected, nullptr);
    });
}

// The lines that the next message takes, if it is sent at once.
uint64_t lines_of(const Comms &comms, int sender, size_t bytes)
{
    const shc_pair &pair = comms[sender]->p2p.pairs.pairs[1 - sender];
    const uint64_t before = pair.turns_out;
    Message out(SHC_SEND, 1 - sender, 1, bytes), in(SHC_RECV, sender, 1, bytes);
    out.start(comms[sender]);
    EXPECT_TRUE(out.done());
    const uint64_t lines = pair.turns_out - before;
    EXPECT_EQ(pair.long_named, pair.turns_out);
    in.start(comms[1 - sender]);
    in.expect_ended(SHC_OK);
    in.expect_content();
    return lines;
}

// Without a request. False: it must be submitted.
bool receive_at_once(shc_comm *comm, const Message &in)
{
    bool over = false;
    EXPECT_EQ(shc_p2p_receive_now(&comm->p2p, &in.op, &over), SHC_OK);
    return over;
}

// A posted receive has the bytes of a fragment when its line is read. The last one hands the buffer over.
TEST(Fragments, AreCopiedOnceWhileTheRestIsToCome)
{
    with_long_buffers([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        in.start(comms[1]);
        for (size_t count : {kPiece, 3 * kPiece}) {
            out.post(count);
            pass(comms[1]);
            in.expect_beginning(count);
            EXPECT_FALSE(in.done());
            EXPECT_EQ(in.request->message.state, SHC_MESSAGE_FILLING);
            EXPECT_EQ(where_buffer_is(comms), SHC_AWAY);
        }
        out.end();
        out.forget(3 * kPiece);
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
        EXPECT_EQ(where_buffer_is(comms), SHC_HERE);
    });
}

// They stay in the buffer until a receive takes the message: before its end, or after it.
TEST(Fragments, StayInTheirBufferWithoutAReceive)
{
    with_long_buffers([](const Comms &comms) {
        for (int source : {0, SHC_ANY_SOURCE})
            for (bool early : {true, false}) {
                Message pends(SHC_RECV, 0, 9, 10), in(SHC_RECV, source, 1, kWhole);
                ByHand out(comms, 1);
                pends.start(comms[1]);
                out.post(kPiece);
                pass(comms[1]);
                out.post(3 * kPiece);
                pass(comms[1]);
                const shc_unexpected *kept = comms[1]->p2p.peers[0].unexpected;
                ASSERT_NE(kept, nullptr);
                EXPECT_FALSE(kept->aside) << "no copy of it";
                EXPECT_EQ(kept->line.piece, 3 * kPiece);
                if (early) {
                    in.start(comms[1]);
                    in.expect_beginning(3 * kPiece);
                    out.forget(3 * kPiece);
                }
                out.end();
                pass(comms[1]);
                EXPECT_EQ(where_buffer_is(comms), early ? SHC_HERE : SHC_AWAY);
                if (!early)
                    in.start(comms[1]);
                in.expect_ended(SHC_OK);
                in.expect_content();
                EXPECT_EQ(where_buffer_is(comms), SHC_HERE);
                Message last(SHC_SEND, 1, 9, 10);
                last.start(comms[0]);
                pass(comms[1]);
                pends.expect_ended(SHC_OK);
                EXPECT_EQ(lines_of(comms, 1, kWhole), 7u) << "the buffer comes back";
            }
    });
}

// The receive has another size: nothing is written, no line answers, and the buffer is the reader's at the
// end.
TEST(Fragments, AreDroppedWhereTheReceiveIsAnother)
{
    with_long_buffers([](const Comms &comms) {
        for (bool early : {true, false}) {
            Message in(SHC_RECV, 0, 1, kWhole + 1), pends(SHC_RECV, 0, 9, 10);
            ByHand out(comms, 1);
            const uint64_t answers = comms[1]->p2p.pairs.pairs[0].sent;
            pends.start(comms[1]);
            if (early)
                in.start(comms[1]);
            out.post(kPiece);
            pass(comms[1]);
            if (!early)
                in.start(comms[1]);
            pass(comms[1]);
            in.expect_ended(SHC_ERR_MISMATCH);
            EXPECT_TRUE(comms[1]->p2p.peers[0].coming.comes);
            out.post(3 * kPiece);
            pass(comms[1]);
            EXPECT_EQ(where_buffer_is(comms), SHC_AWAY);
            out.end();
            pass(comms[1]);
            in.expect_beginning(0);
            EXPECT_EQ(where_buffer_is(comms), SHC_HERE);
            EXPECT_EQ(comms[1]->p2p.pairs.pairs[0].sent, answers);
            Message last(SHC_SEND, 1, 9, 10);
            last.start(comms[0]);
            pass(comms[1]);
            pends.expect_ended(SHC_OK);
            EXPECT_EQ(lines_of(comms, 1, kWhole), 7u);
        }
    });
}

// Another message with the same tag is not part of it, and neither is one of the rank to itself.
TEST(Fragments, AreOfOneMessage)
{
    with_long_buffers([](const Comms &comms) {
        Message in(SHC_RECV, SHC_ANY_SOURCE, 1, kWhole), own(SHC_SEND, 1, 1, 50);
        Message in_own(SHC_RECV, 1, 1, 50), other(SHC_SEND, 1, 1, 70), in_other(SHC_RECV, 0, 1, 70);
        ByHand out(comms, 1);
        in.start(comms[1]);
        out.post(kPiece);
        pass(comms[1]);
        in_own.start(comms[1]);
        comms[1]->p2p.peers[1].messages = out.number;
        own.start(comms[1]);
        pass(comms[1]);
        in_own.expect_ended(SHC_OK);
        in_own.expect_content();
        in_other.start(comms[1]);
        other.start(comms[0]);
        pass(comms[1]);
        in_other.expect_ended(SHC_OK);
        in_other.expect_content();
        in.expect_beginning(kPiece);
        out.end();
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

// Its time is over, but more of it has come since the last look: it ends well. If nothing more comes, the
// group fails.
TEST(Fragments, MayComeALittleLate)
{
    with_long_buffers([](const Comms &comms) {
        for (bool comes : {true, false}) {
            Message in(SHC_RECV, 0, 1, kWhole);
            ByHand out(comms, 1);
            in.op.timeout_ns = SHC_NS_PER_MS;
            in.start(comms[1]);
            for (size_t count : {kPiece, 2 * kPiece}) {
                shc_os_sleep_ns(2 * SHC_LOOK_NS);
                out.post(count);
                pass(comms[1]);
                EXPECT_FALSE(in.done());
            }
            if (comes)
                out.end();
            shc_os_sleep_ns(2 * SHC_LOOK_NS);
            pass(comms[1]);
            in.expect_ended(comes ? SHC_OK : SHC_ERR_TIMEOUT);
            if (comes)
                lines_of(comms, 1, kWhole); // the buffer comes back
        }
    });
}

// A receive without a request leaves them where they are, and is submitted.
TEST(Fragments, AreNotReceivedAtOnce)
{
    with_long_buffers([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        out.post(kPiece);
        out.end();
        EXPECT_FALSE(receive_at_once(comms[1], in));
        in.expect_beginning(0);
        in.start(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

// While one comes through the pool, the next one is no fragment, so that MORE frames belong to one message.
TEST(Fragments, ComeOfOneMessageAtATime)
{
    with_long_buffers([](const Comms &comms) {
        settle_trials(comms[0]->p2p);
        shc_hand_off &mine = comms[0]->p2p.pairs.pairs[1].long_hand_offs;
        Message first(SHC_SEND, 1, 1, SHC_UNASKED_BYTES),
            in_first(SHC_RECV, 0, 1, SHC_UNASKED_BYTES);
        Message next(SHC_SEND, 1, 2, kWhole), in_next(SHC_RECV, 0, 2, kWhole);
        mine.where[SHC_OURS] = SHC_AWAY;
        first.start(comms[0]);
        EXPECT_TRUE(first.request->message.unasked && !first.done());
        mine.where[SHC_OURS] = SHC_HERE;
        in_next.start(comms[1]); // takes the lines of the first one
        next.start(comms[0]);
        EXPECT_FALSE(next.request->message.unasked && !first.done());
        in_first.start(comms[1]);
        pass_in_turns(comms, 40);
        for (Message *message : {&in_first, &in_next}) {
            message->expect_ended(SHC_OK);
            message->expect_content();
        }
    });
}

// Of 8 KiB, or of 16 KiB if the message has more than 64 KiB.
TEST(Fragments, AreAFewLines)
{
    with_long_buffers([](const Comms &comms) {
        const struct {
            size_t bytes;
            uint64_t lines;
        } cases[] = {{16385, 3}, {32768, 4}, {65536, 8}, {65537, 5}, {131072, 8}, {200000, 9}};
        for (const auto &each : cases)
            for (int sender : {0, 1})
                EXPECT_EQ(lines_of(comms, sender, each.bytes), each.lines) << each.bytes;
    });
}

// With however few free lines it goes at once, and leaves half of them to what follows.
TEST(Fragments, LeaveHalfOfTheLines)
{
    with_long_buffers([](const Comms &comms) {
        shc_pairs &pairs = comms[0]->p2p.pairs;
        const shc_pair &pair = pairs.pairs[1];
        const uint64_t lines = pairs.seat->mail.lines, half = lines / 2;
        for (uint64_t used : {lines - 1, lines - 2, half + 1, half, half - 1, half - 3}) {
            std::vector<std::unique_ptr<Message>> out;
            const uint64_t begun = pair.turns_out;
            while (pair.turns_out - begun < used) {
                out.push_back(std::make_unique<Message>(SHC_SEND, 1, 7, 8));
                out.back()->start(comms[0]);
            }
            Message large(SHC_SEND, 1, 1, SHC_LONG_HAND_OFF_BYTES),
                in_large(SHC_RECV, 0, 1, SHC_LONG_HAND_OFF_BYTES);
            large.start(comms[0]);
            EXPECT_TRUE(large.done());
            EXPECT_EQ(pair.turns_out - begun, std::max(used, half) + 1);
            in_large.start(comms[1]);
            in_large.expect_ended(SHC_OK);
            in_large.expect_content();
            for (size_t i = 0; i < out.size(); i++) {
                Message in(SHC_RECV, 0, 7, 8);
                in.start(comms[1]);
                in.expect_ended(SHC_OK);
            }
            EXPECT_EQ(lines_of(comms, 1, kWhole), 7u); // the buffer comes back
        }
    });
}

TEST(Fragments, AreNoneWhereMessagesPassOneAnother)
{
    with_long_buffers([](const Comms &comms) {
        EXPECT_EQ(lines_of(comms, 0, kWhole), 7u);
        EXPECT_EQ(lines_of(comms, 1, kWhole), 7u);
        for (int turn = 0; turn < 3; turn++) {
            Message from_0(SHC_SEND, 1, 1, kWhole), from_1(SHC_SEND, 0, 1, kWhole);
            Message to_0(SHC_RECV, 1, 1, kWhole), to_1(SHC_RECV, 0, 1, kWhole);
            const uint64_t before = comms[1]->p2p.pairs.pairs[0].turns_out;
            from_0.start(comms[0]);
            from_1.start(comms[1]);
            EXPECT_EQ(comms[1]->p2p.pairs.pairs[0].turns_out - before, turn > 0 ? 1u : 7u);
            to_0.start(comms[0]);
            to_1.start(comms[1]);
            to_1.expect_ended(SHC_OK);
            to_0.expect_content();
            to_1.expect_content();
        }
        // A long one then uses a rendezvous, so that it can go chunk by chunk, both ways.
        Message out(SHC_SEND, 1, 2, 300000), in(SHC_RECV, 0, 2, 300000);
        out.start(comms[0]);
        EXPECT_EQ(out.request->message.state, SHC_MESSAGE_ANNOUNCED);
        in.start(comms[1]);
        pass_in_turns(comms, 20);
        in.expect_ended(SHC_OK);
        in.expect_content();
        EXPECT_EQ(lines_of(comms, 1, kWhole), 7u) << "its buffer came back with an answer";
        EXPECT_EQ(lines_of(comms, 0, kWhole), 7u);
    });
}

// A whole message cannot be interrupted: a long one uses a rendezvous if the lock is wanted.
TEST(Fragments, AreNotOfLongMessagesWhereTheLockIsWanted)
{
    with_long_buffers([](const Comms &comms) {
        shc_p2p *p2p = &comms[0]->p2p;
        Message out(SHC_SEND, 1, 1, 300000), in(SHC_RECV, 0, 1, 300000);
        shc_p2p_lock(p2p);
        std::thread other([&] {
            shc_p2p_lock(p2p);
            shc_p2p_unlock(p2p);
        });
        while (!shc_biased_lock_is_awaited(&p2p->lock))
            shc_os_thread_yield();
        shc_message message;
        ASSERT_EQ(shc_message_prepare(&message, &comms[0]->p2p.env, &out.op), SHC_OK);
        EXPECT_FALSE(shc_p2p_place(p2p, &message));
        shc_p2p_unlock(p2p);
        other.join();
        in.start(comms[1]);
        out.start(comms[0]);
        EXPECT_TRUE(out.done());
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

// In the middle of it: its receiver waits for the rest, with a request and without, and is told.
TEST(Fragments, LeaveNobodyWaitingWhenTheirSenderIsGone)
{
    for (Mode mode : modes())
        for (bool dies : {false, true})
            for (bool at_once : {false, true}) {
                if (dies && mode != Mode::kProcesses)
                    continue;
                run_ranks(mode, 2, [&](Rank &rank) {
                    if (!shc_pair_has_pool(&rank.comm->p2p.pairs, 1 - rank.rank))
                        return;
                    if (rank.rank == 0) {
                        const Comms comms = {rank.comm, nullptr};
                        shc_p2p_lock(&rank.comm->p2p);
                        ByHand out(comms, 1);
                        out.post(kPiece);
                        shc_pairs_ring(&rank.comm->p2p.pairs);
                        shc_p2p_unlock(&rank.comm->p2p);
                        shc_os_sleep_ns(20 * SHC_NS_PER_MS);
                        if (dies)
                            _exit(0);
                        return;
                    }
                    Message in(SHC_RECV, 0, 1, kWhole);
                    const shc_status want = dies ? SHC_ERR_PEER_DEAD : SHC_ERR_PEER_LEFT;
                    if (at_once) {
                        EXPECT_EQ(shc_run(rank.comm, &in.op), want) << error_text();
                    } else {
                        in.start(rank);
                        EXPECT_EQ(shc_request_wait(in.request, 0), want) << error_text();
                    }
                });
            }
}

// There and back, with and without requests, sometimes with a receive that does not match.
TEST(Fragments, ArriveInAnswers)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            std::mt19937 random(5); // the same on both ranks
            for (int turn = 0, end = rounds(400); turn < end && !testing::Test::HasFatalFailure();
                 turn++) {
                const size_t most = turn % 4 ? 150000 : SHC_LONG_HAND_OFF_BYTES + 50000;
                const size_t size = 16385 + random() % most;
                const bool requests = random() % 2, odd = random() % 16 == 0;
                const bool sends = (turn % 2 == 0) == (rank.rank == 0);
                Message m(sends ? SHC_SEND : SHC_RECV, peer, turn, size + (odd && !sends));
                shc_status status;
                if (requests) {
                    m.start(rank);
                    status = shc_request_wait(m.request, 0);
                } else {
                    status = shc_run(rank.comm, &m.op);
                }
                if (odd && sends) {
                    EXPECT_TRUE(status == SHC_OK || status == SHC_ERR_MISMATCH);
                } else {
                    ASSERT_EQ(status, odd ? SHC_ERR_MISMATCH : SHC_OK) << error_text();
                }
                if (!odd)
                    m.expect_content();
            }
        });
}

} // namespace
