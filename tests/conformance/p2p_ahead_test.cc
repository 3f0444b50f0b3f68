// SPDX-License-Identifier: BSD-3-Clause Messages by ferry (long ping-pong buffer) between two ranks, for
// which lines say how much is there before the header does: for every order of looks, and every kind of
// receive.
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

struct Message : ByteMessage {
    Message(shc_op_kind kind, int peer, int tag, size_t count)
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

// Rank 0's message that goes by ferry, line by line: what shc_p2p_place() does at once.
struct ByHand {
    const Comms &comms;
    const int tag;
    std::vector<unsigned char> bytes;
    const int window;
    uint32_t number;

    ByHand(const Comms &both, int its_tag, size_t count = kWhole)
        : comms(both), tag(its_tag), bytes(Message::content(tag, count)),
          window(shc_ferry_lend(&comms[0]->p2p.pairs, 1)), number(comms[0]->p2p.peers[1].messages++)
    {
        EXPECT_GE(window, 0);
        std::fill_n(memory(), count, '\xdd');
    }

    char *memory() const
    {
        return shc_window(&comms[0]->p2p.pairs, 0, 1, static_cast<uint32_t>(window));
    }

    void post(shc_line_kind kind, size_t count)
    {
        shc_pairs &pairs = comms[0]->p2p.pairs;
        ASSERT_NE(shc_pair_draft(&pairs, 1), nullptr);
        std::copy_n(bytes.begin(), count, memory());
        shc_line_shm *line = shc_pair_line_for(&pairs, 1, window);
        line->head.kind = static_cast<uint8_t>(kind);
        line->head.dtype = SHC_UINT8;
        line->head.elem_bytes = 1;
        line->head.window = static_cast<uint8_t>(window);
        line->head.piece = static_cast<uint32_t>(count);
        line->head.mode = SHC_COPY_LINES;
        line->head.tag = tag;
        line->head.dtype_tag = 0;
        line->head.message = number;
        line->head.bytes = bytes.size();
        shc_pair_post(&pairs, 1, line, window);
        shc_ferry_name_again(&pairs, 1);
    }
    void ahead(size_t count) { post(SHC_LINE_AHEAD, count); }
    void end() { post(SHC_LINE_EAGER, bytes.size()); }

    // In the ferry alone: so bytes that a receive has of them then were there before.
    void forget(size_t count) const { std::fill_n(memory(), count, '\xcc'); }
};

uint8_t where_ferry_is(const Comms &comms)
{
    return comms[1]->p2p.pairs.pairs[0].ferries.where[SHC_THEIRS];
}

template <typename Body>
void with_ferries(Body body)
{
    by_one_thread([&](const Comms &comms) {
        if (!shc_window_has_bulk(&comms[0]->p2p.pairs, 1) ||
            !shc_window_has_bulk(&comms[1]->p2p.pairs, 0))
            return;
        body(comms);
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
    EXPECT_EQ(pair.ferried, pair.turns_out);
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

// A posted receive has the bytes when their line is read, and then copies only the others.
TEST(Ahead, IsCopiedOnceWhileTheRestIsToCome)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        in.start(comms[1]);
        for (size_t count : {kPiece, 3 * kPiece}) {
            out.ahead(count);
            pass(comms[1]);
            in.expect_beginning(count);
            EXPECT_FALSE(in.done());
            EXPECT_EQ(where_ferry_is(comms), SHC_AWAY);
        }
        out.end();
        out.forget(3 * kPiece);
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
        EXPECT_EQ(where_ferry_is(comms), SHC_HERE);
    });
}

// It belongs to no receive yet: another one may take the message.
TEST(Ahead, IsNothingToAReceiveThatComesLater)
{
    with_ferries([](const Comms &comms) {
        Message gone(SHC_RECV, 0, 1, kWhole), in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        gone.start(comms[1]);
        out.ahead(2 * kPiece);
        pass(comms[1]);
        gone.expect_beginning(2 * kPiece);
        shc_p2p_cancel(&comms[1]->p2p, &gone.request->message, true);
        gone.expect_ended(SHC_ERR_INTERRUPTED);
        in.start(comms[1]);
        out.ahead(3 * kPiece);
        pass(comms[1]);
        in.expect_beginning(3 * kPiece);
        out.end();
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

TEST(Ahead, IsNothingToAReceiveThatComesBehindIt)
{
    with_ferries([](const Comms &comms) {
        Message gone(SHC_RECV, 0, 1, kWhole), in(SHC_RECV, SHC_ANY_SOURCE, 1, kWhole);
        ByHand out(comms, 1);
        gone.start(comms[1]);
        out.ahead(2 * kPiece);
        pass(comms[1]);
        shc_p2p_cancel(&comms[1]->p2p, &gone.request->message, true);
        in.start(comms[1]);
        in.expect_beginning(0);
        out.end();
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

// As a damaged line might claim it: what is here stays.
TEST(Ahead, DoesNotGoBack)
{
    with_ferries([](const Comms &comms) {
        for (bool at_once : {false, true}) {
            Message in(SHC_RECV, 0, 1, kWhole);
            ByHand out(comms, 1);
            if (!at_once)
                in.start(comms[1]);
            out.ahead(3 * kPiece);
            out.ahead(kPiece);
            if (at_once) {
                EXPECT_FALSE(receive_at_once(comms[1], in));
                in.start(comms[1]);
            }
            pass(comms[1]);
            in.expect_beginning(3 * kPiece);
            out.end();
            pass(comms[1]);
            in.expect_ended(SHC_OK);
            in.expect_content();
            lines_of(comms, 1, kWhole); // the ferry comes back
        }
    });
}

// The message that then comes whole in a shuttle is all there, and that shuttle's line was the one that was
// read. No rank writes that.
TEST(Ahead, MayBeFollowedByAShuttle)
{
    with_ferries([](const Comms &comms) {
        const size_t count = 12000;
        Message in(SHC_RECV, 0, 1, count);
        ByHand out(comms, 1, count);
        shc_pairs &mine = comms[0]->p2p.pairs, &theirs = comms[1]->p2p.pairs;
        out.ahead(5000);
        out.forget(count);
        const int shuttle = shc_shuttle_lend(&mine, 1, count);
        ASSERT_GE(shuttle, 0);
        std::copy_n(out.bytes.begin(), count,
                    shc_window(&mine, 0, 1, static_cast<uint32_t>(shuttle)));
        const shc_line_shm *ahead = shc_pair_line(&mine, mine.pairs[1].out, 0);
        shc_line_shm *line = shc_pair_line_for(&mine, 1, shuttle);
        const shc_a64 number = line->number;
        *line = *ahead;
        line->number = number;
        line->head.kind = SHC_LINE_EAGER;
        line->head.window = static_cast<uint8_t>(shuttle);
        line->head.piece = static_cast<uint32_t>(count);
        shc_pair_post(&mine, 1, line, shuttle);
        EXPECT_TRUE(receive_at_once(comms[1], in));
        in.expect_content();
        EXPECT_EQ(theirs.pairs[0].turns_in, 1u);
        EXPECT_EQ(theirs.pairs[0].taken, 2u);
    });
}

// The line that says so belongs to a message that never came: no rank writes that.
TEST(Ahead, IsNothingToAnotherMessage)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, 50);
        ByHand out(comms, 1, 50);
        in.start(comms[1]);
        out.ahead(40);
        pass(comms[1]);
        in.expect_beginning(40);
        Message other(SHC_SEND, 1, 1, 50);
        std::fill(other.bytes.begin(), other.bytes.end(), static_cast<unsigned char>(0x55));
        other.start(comms[0]);
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        EXPECT_TRUE(in.bytes == other.bytes);
    });
}

// A receive from any rank has some bytes of the other rank's message, and then takes one of its own with
// the same number.
TEST(Ahead, IsNothingToAMessageToOneself)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, SHC_ANY_SOURCE, 1, 50), last(SHC_RECV, 0, 1, 50);
        ByHand out(comms, 1, 50);
        in.start(comms[1]);
        out.ahead(40);
        pass(comms[1]);
        in.expect_beginning(40);
        comms[1]->p2p.peers[1].messages = out.number;
        Message own(SHC_SEND, 1, 1, 50);
        std::fill(own.bytes.begin(), own.bytes.end(), static_cast<unsigned char>(0x55));
        own.start(comms[1]);
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        EXPECT_TRUE(in.bytes == own.bytes);
        out.end();
        last.start(comms[1]);
        last.expect_ended(SHC_OK);
        last.expect_content();
    });
}

// No receive wants it: it waits in its ferry.
TEST(Ahead, StaysInItsFerryWhereNobodyWantsIt)
{
    with_ferries([](const Comms &comms) {
        Message pends(SHC_RECV, 0, 9, 10), in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        pends.start(comms[1]);
        out.ahead(kPiece);
        pass(comms[1]);
        EXPECT_EQ(comms[1]->p2p.peers[0].strays, nullptr);
        out.end();
        pass(comms[1]);
        EXPECT_NE(comms[1]->p2p.peers[0].strays, nullptr);
        EXPECT_EQ(where_ferry_is(comms), SHC_AWAY);
        in.start(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
        EXPECT_EQ(where_ferry_is(comms), SHC_HERE);
        Message last(SHC_SEND, 1, 9, 10);
        last.start(comms[0]);
        pass(comms[1]);
        pends.expect_ended(SHC_OK);
    });
}

TEST(Ahead, IsNotWrittenWhereTheReceiveIsAnother)
{
    with_ferries([](const Comms &comms) {
        for (bool at_once : {false, true}) {
            Message in(SHC_RECV, 0, 1, kWhole + 1);
            ByHand out(comms, 1);
            if (!at_once)
                in.start(comms[1]);
            out.ahead(kPiece);
            if (at_once) {
                EXPECT_FALSE(receive_at_once(comms[1], in));
                in.start(comms[1]);
            }
            pass(comms[1]);
            in.expect_beginning(0);
            out.end();
            pass(comms[1]);
            in.expect_ended(SHC_ERR_MISMATCH);
            in.expect_beginning(0);
            EXPECT_EQ(where_ferry_is(comms), SHC_HERE);
            Message back(SHC_SEND, 0, 2, kWhole), in_back(SHC_RECV, 1, 2, kWhole);
            back.start(comms[1]);
            in_back.start(comms[0]);
            in_back.expect_ended(SHC_OK);
            in_back.expect_content();
        }
    });
}

// A receive without a request has what is there. The rest does not come, so it is submitted.
TEST(Ahead, IsCopiedAgainByWhoDoesNotWaitForTheRest)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        out.ahead(kPiece);
        out.ahead(2 * kPiece);
        EXPECT_FALSE(receive_at_once(comms[1], in));
        in.expect_beginning(2 * kPiece);
        in.start(comms[1]);
        out.ahead(3 * kPiece);
        pass(comms[1]);
        in.expect_beginning(3 * kPiece);
        out.end();
        pass(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

TEST(Ahead, IsReceivedAtOnce)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kWhole);
        ByHand out(comms, 1);
        out.ahead(kPiece);
        out.ahead(2 * kPiece);
        out.end();
        EXPECT_TRUE(receive_at_once(comms[1], in));
        in.expect_content();
        EXPECT_EQ(where_ferry_is(comms), SHC_HERE);
    });
}

// The same for a message that never came.
TEST(Ahead, IsNothingToAnotherMessageAtOnce)
{
    with_ferries([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, 50);
        ByHand out(comms, 1, 50);
        out.ahead(40);
        Message other(SHC_SEND, 1, 1, 50);
        std::fill(other.bytes.begin(), other.bytes.end(), static_cast<unsigned char>(0x55));
        other.start(comms[0]);
        EXPECT_TRUE(receive_at_once(comms[1], in));
        EXPECT_TRUE(in.bytes == other.bytes);
    });
}

// In pieces of 8 KiB and 16 KiB; the last one goes with the header.
TEST(Ahead, IsAFewLines)
{
    with_ferries([](const Comms &comms) {
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
TEST(Ahead, LeavesHalfOfTheLines)
{
    with_ferries([](const Comms &comms) {
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
            Message large(SHC_SEND, 1, 1, SHC_FERRY_BYTES),
                in_large(SHC_RECV, 0, 1, SHC_FERRY_BYTES);
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
            EXPECT_EQ(lines_of(comms, 1, kWhole), 7u); // the ferry comes back
        }
    });
}

TEST(Ahead, IsNoneWhereMessagesPassOneAnother)
{
    with_ferries([](const Comms &comms) {
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
            EXPECT_TRUE(receive_at_once(comms[1], to_1));
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
        EXPECT_EQ(lines_of(comms, 1, kWhole), 7u) << "its ferry came back with an answer";
        EXPECT_EQ(lines_of(comms, 0, kWhole), 7u);
    });
}

// A whole message cannot be interrupted: a long one uses a rendezvous if the lock is wanted.
TEST(Ahead, IsNotLongWhereTheLockIsWanted)
{
    with_ferries([](const Comms &comms) {
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
TEST(Ahead, LeavesNobodyWaitingWhenItsSenderIsGone)
{
    for (Mode mode : all_modes())
        for (bool dies : {false, true})
            for (bool at_once : {false, true}) {
                if (dies && mode != Mode::kProcesses)
                    continue;
                run_ranks(mode, 2, [&](Rank &rank) {
                    if (!shc_window_has_bulk(&rank.comm->p2p.pairs, 1 - rank.rank))
                        return;
                    if (rank.rank == 0) {
                        const Comms comms = {rank.comm, nullptr};
                        shc_p2p_lock(&rank.comm->p2p);
                        ByHand out(comms, 1);
                        out.ahead(kPiece);
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
TEST(Ahead, ArrivesInAnswers)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            std::mt19937 random(5); // the same on both ranks
            for (int turn = 0, end = rounds(400); turn < end && !testing::Test::HasFatalFailure();
                 turn++) {
                const size_t most = turn % 4 ? 150000 : SHC_FERRY_BYTES + 50000;
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
