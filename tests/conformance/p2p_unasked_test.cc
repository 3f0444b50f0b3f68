// SPDX-License-Identifier: BSD-3-Clause

// Messages of more than 128 KiB one way between two ranks, whose
// fragments follow the header unasked (messages without CTS): for every time at which the receive comes, and every
// kind of receive.
#include "tests/support/messages.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <thread>
#include <vector>

extern "C" {
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kLong = SHC_UNASKED_BYTES - 1001; // more chunks than there are lines
const int kGo = 1000;                          // a tag of no message

using Message = TaggedMessage;

// As if no message had been put aside for long.
void forget_aside(const Comms &comms)
{
    shc_pair &pair = comms[0]->p2p.pairs.pairs[1];
    pair.aside_seen = comms[1]->p2p.pairs.pairs[0].aside_told;
    pair.announces = 0;
}

// The long buffer of rank 0 goes to rank 1, and stays there.
void give_long_buffer_away(const Comms &comms)
{
    Message in(SHC_RECV, 0, kGo, SHC_LONG_HAND_OFF_BYTES),
        out(SHC_SEND, 1, kGo, SHC_LONG_HAND_OFF_BYTES);
    in.start(comms[1]);
    out.start(comms[0]);
    pass_in_turns(comms, 40);
    in.expect_ended(SHC_OK);
    in.expect_content();
}

// Rank 0 has no long buffer, and has chosen its copy mode: so messages go unasked. All sends must have ended at the
// end.
template <typename Body>
void where_messages_go_unasked(Body body)
{
    by_one_thread([&](const Comms &comms) {
        shc_p2p &p2p = comms[0]->p2p;
        settle_trials(p2p);
        ASSERT_TRUE(shc_pair_has_pool(&p2p.pairs, 1));
        give_long_buffer_away(comms);
        body(comms);
        EXPECT_EQ(p2p.pairs.pairs[1].credit_used, comms[1]->p2p.pairs.pairs[0].credit_back);
        EXPECT_TRUE(shc_pool_has(&p2p.pairs, 1, SHC_POOL_BUFFERS));
        EXPECT_FALSE(comms[1]->p2p.peers[0].coming.comes);
    });
}

// A message of rank 0, another one after it, and a receive of rank 1 that wants only the second one. So the
// first one is put aside, as far as the lines hold it.
struct Aside {
    const Comms &comms;
    Message out, second, in_second;

    explicit Aside(const Comms &both)
        : comms(both), out(SHC_SEND, 1, 1, kLong), second(SHC_SEND, 1, 2, 100),
          in_second(SHC_RECV, 0, 2, 100)
    {
        out.start(comms[0]);
        const shc_message &m = out.request->message;
        EXPECT_EQ(m.state, SHC_MESSAGE_STREAMING);
        EXPECT_TRUE(m.unasked);
        EXPECT_GT(m.moved, SHC_UNASKED_BYTES / 4);
        in_second.start(comms[1]);
        EXPECT_EQ(comms[1]->p2p.peers[0].coming.line.piece, m.moved);
    }

    void end()
    {
        second.start(comms[0]);
        pass_in_turns(comms, 40);
        out.expect_ended(SHC_OK);
        in_second.expect_ended(SHC_OK);
        in_second.expect_content();
    }
};

TEST(Unasked, AreReceivedWhenTheirReceiveIsPosted)
{
    where_messages_go_unasked([](const Comms &comms) {
        Message in(SHC_RECV, 0, 1, kLong), out(SHC_SEND, 1, 1, kLong);
        in.start(comms[1]);
        out.start(comms[0]);
        EXPECT_TRUE(out.request->message.unasked);
        pass(comms[1]);
        EXPECT_EQ(in.request->message.state, SHC_MESSAGE_FILLING);
        pass_in_turns(comms, 40);
        out.expect_ended(SHC_OK);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

TEST(Unasked, AreReceivedWhenAPartIsHere)
{
    where_messages_go_unasked([](const Comms &comms) {
        Aside aside(comms);
        Message in(SHC_RECV, 0, 1, kLong);
        in.start(comms[1]);
        EXPECT_EQ(in.request->message.state, SHC_MESSAGE_FILLING);
        EXPECT_GT(in.request->message.moved, SHC_UNASKED_BYTES / 4);
        aside.end();
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

TEST(Unasked, AreReceivedWhenAllIsHere)
{
    where_messages_go_unasked([](const Comms &comms) {
        Aside aside(comms);
        aside.end();
        Message in(SHC_RECV, SHC_ANY_SOURCE, 1, kLong);
        in.start(comms[1]);
        in.expect_ended(SHC_OK);
        in.expect_content();
    });
}

// Both sides are told, and the next one is another message.
TEST(Unasked, AreRefusedWhenTheirReceiveIsAnother)
{
    where_messages_go_unasked([](const Comms &comms) {
        for (bool early : {true, false}) {
            Message in(SHC_RECV, 0, 1, kLong + 1);
            if (early)
                in.start(comms[1]);
            Message out(SHC_SEND, 1, 1, kLong), next(SHC_SEND, 1, 3, kLong);
            Message in_next(SHC_RECV, 0, 3, kLong);
            out.start(comms[0]);
            next.start(comms[0]);
            in_next.start(comms[1]);
            if (!early) { // a part is put aside
                EXPECT_TRUE(comms[1]->p2p.peers[0].coming.comes);
                in.start(comms[1]);
            }
            forget_aside(comms);
            in.expect_ended(SHC_ERR_MISMATCH);
            EXPECT_FALSE(out.done());
            EXPECT_TRUE(comms[1]->p2p.peers[0].coming.comes);
            pass_in_turns(comms, 40);
            out.expect_ended(SHC_ERR_MISMATCH);
            next.expect_ended(SHC_OK);
            in_next.expect_ended(SHC_OK);
            in_next.expect_content();
            EXPECT_TRUE(next.request->message.unasked);
        }
    });
}

// It has left before it is refused: only the receive is told, and the refusal finds no request.
TEST(Unasked, AreDroppedWhenAllHasLeft)
{
    where_messages_go_unasked([](const Comms &comms) {
        Message out(SHC_SEND, 1, 1, 300000), in(SHC_RECV, 0, 1, 299999);
        out.start(comms[0]);
        out.expect_ended(SHC_OK);
        EXPECT_TRUE(out.request->message.unasked);
        in.start(comms[1]);
        in.expect_ended(SHC_ERR_MISMATCH);
        for (int tag : {2, 3}) {
            Message next(SHC_SEND, 1, tag, 300000), in_next(SHC_RECV, 0, tag, 300000);
            in_next.start(comms[1]);
            next.start(comms[0]);
            pass_in_turns(comms, 40);
            next.expect_ended(SHC_OK);
            in_next.expect_ended(SHC_OK);
            in_next.expect_content();
        }
    });
}

// Fills the lines from `rank` to the other, so that later sends stay in its queue until these are read.
struct Filled {
    const int peer;
    std::vector<std::unique_ptr<Message>> out, in;

    Filled(shc_comm *comm, int rank) : peer(1 - rank)
    {
        while (shc_pair_draft(&comm->p2p.pairs, peer)) {
            out.push_back(std::make_unique<Message>(SHC_SEND, peer, 50, 8));
            out.back()->start(comm);
        }
    }
    void receive(shc_comm *comm)
    {
        for (size_t i = 0; i < out.size(); i++) {
            in.push_back(std::make_unique<Message>(SHC_RECV, 1 - peer, 50, 8));
            in.back()->start(comm);
        }
        for (const auto &message : in)
            message->expect_ended(SHC_OK);
    }
};

// There is no line for the refusal, and its sender, which has nothing pending, reads none.
TEST(Unasked, AreDroppedWhenNobodyReadsThatTheyAreRefused)
{
    where_messages_go_unasked([](const Comms &comms) {
        Message out(SHC_SEND, 1, 1, 300000), in(SHC_RECV, 0, 1, 299999);
        out.start(comms[0]);
        out.expect_ended(SHC_OK);
        Filled filled(comms[1], 1);
        in.start(comms[1]);
        for (int passes = 0; passes < 3; passes++)
            pass(comms[1]);
        in.expect_ended(SHC_ERR_MISMATCH);
        EXPECT_FALSE(comms[1]->p2p.peers[0].coming.comes);
        filled.receive(comms[0]);
    });
}

// One that is put aside whole, and then matched by another kind of receive.
TEST(Unasked, AreDroppedWhenAllIsHere)
{
    where_messages_go_unasked([](const Comms &comms) {
        Aside aside(comms);
        aside.end();
        Message in(SHC_RECV, 0, 1, kLong - 1);
        in.start(comms[1]);
        in.expect_ended(SHC_ERR_MISMATCH);
    });
}

// The receiver remembers one that is in flight: the next one uses a rendezvous, though there is room for
// it.
TEST(Unasked, GoOneAtATime)
{
    where_messages_go_unasked([](const Comms &comms) {
        shc_p2p *p2p = &comms[0]->p2p;
        Message out(SHC_SEND, 1, 1, kLong / 2), next(SHC_SEND, 1, 2, kLong / 4);
        Message in(SHC_RECV, 0, 1, kLong / 2), in_next(SHC_RECV, 0, 2, kLong / 4);
        Filled filled(comms[0], 0);
        out.start(comms[0]);
        next.start(comms[0]);
        EXPECT_EQ(next.request->message.state, SHC_MESSAGE_QUEUED);
        filled.receive(comms[1]);
        shc_p2p_lock(p2p);
        std::thread other(
            [&] { // wants the lock, so that a pass sends no more of the first one than it must
                shc_p2p_lock(p2p);
                shc_p2p_unlock(p2p);
            });
        while (!shc_biased_lock_is_awaited(&p2p->lock))
            shc_os_thread_yield();
        shc_p2p_pass(p2p, true);
        EXPECT_TRUE(out.request->message.unasked);
        EXPECT_EQ(out.request->message.state, SHC_MESSAGE_STREAMING);
        EXPECT_FALSE(next.request->message.unasked);
        EXPECT_EQ(next.request->message.state, SHC_MESSAGE_ANNOUNCED);
        shc_p2p_unlock(p2p);
        other.join();
        in_next.start(comms[1]);
        in.start(comms[1]);
        pass_in_turns(comms, 40);
        for (Message *message : {&out, &next, &in, &in_next})
            message->expect_ended(SHC_OK);
        in.expect_content();
        in_next.expect_content();
    });
}

// 1 MiB at most: the next one uses a rendezvous, until that has been received.
TEST(Unasked, ArePutAsideWithinBounds)
{
    where_messages_go_unasked([](const Comms &comms) {
        std::vector<std::unique_ptr<Message>> out, in;
        Message in_last(SHC_RECV, 0, 99, 100), last(SHC_SEND, 1, 99, 100);
        in_last.start(comms[1]);
        for (int tag = 0; tag < 7; tag++) {
            forget_aside(comms);
            out.push_back(std::make_unique<Message>(SHC_SEND, 1, tag, 200000));
            out.back()->start(comms[0]);
            pass_in_turns(comms, 40);
            EXPECT_EQ(out.back()->done(), tag < 4) << tag; // 7 buffers each
        }
        for (int tag = 6; tag >= 0; tag--) {
            in.push_back(std::make_unique<Message>(SHC_RECV, 0, tag, 200000));
            in.back()->start(comms[1]);
            pass_in_turns(comms, 40);
            in.back()->expect_ended(SHC_OK);
            in.back()->expect_content();
        }
        forget_aside(comms);
        Message again(SHC_SEND, 1, 7, 200000), in_again(SHC_RECV, 0, 7, 200000);
        again.start(comms[0]);
        EXPECT_TRUE(again.done() && again.request->message.unasked);
        in_again.start(comms[1]);
        in_again.expect_ended(SHC_OK);
        in_again.expect_content();
        last.start(comms[0]);
        pass_in_turns(comms, 40);
        in_last.expect_ended(SHC_OK);
    });
}

// Putting a message aside costs more than a rendezvous: after one that found no receive, messages use a
// rendezvous for a while.
TEST(Unasked, AreAnnouncedBehindOneThatWasPutAside)
{
    where_messages_go_unasked([](const Comms &comms) {
        Aside(comms).end();
        Message in_aside(SHC_RECV, 0, 1, kLong);
        in_aside.start(comms[1]);
        in_aside.expect_ended(SHC_OK);
        shc_copy_trial *const trials = comms[0]->p2p.trials[1];
        const std::vector<shc_copy_trial> settled(trials, trials + SHC_COPY_TRIALS);
        for (int i = 0; i <= SHC_ASIDE_PAUSE && !testing::Test::HasFatalFailure(); i++) {
            Message in(SHC_RECV, 0, 3, 200000), out(SHC_SEND, 1, 3, 200000);
            std::copy(settled.begin(), settled.end(), trials); // those before were timed
            in.start(comms[1]);
            out.start(comms[0]);
            EXPECT_EQ(out.request->message.unasked, i == SHC_ASIDE_PAUSE) << i;
            // A send that is timed ends in one more pass, when its bytes have been read.
            for (int passes = 0; passes < 80 && !(in.done() && out.done()); passes++)
                pass(comms[1 - passes % 2]);
            out.expect_ended(SHC_OK);
            in.expect_ended(SHC_OK);
        }
    });
}

// Messages that pass one another go by long buffer, if they use a rendezvous.
TEST(Unasked, AreNoneWhereSomethingIsExpectedFromThere)
{
    where_messages_go_unasked([](const Comms &comms) {
        Message from(SHC_RECV, 1, 1, kLong), to(SHC_SEND, 0, 1, kLong);
        Message in(SHC_RECV, 0, 2, kLong), out(SHC_SEND, 1, 2, kLong);
        from.start(comms[0]);
        in.start(comms[1]);
        out.start(comms[0]);
        EXPECT_FALSE(out.request->message.unasked);
        to.start(comms[1]);
        pass_in_turns(comms, 40);
        for (Message *message : {&from, &to, &in, &out})
            message->expect_ended(SHC_OK);
        from.expect_content();
        in.expect_content();
    });
}

// By rank 1.
void post_refusal(const Comms &comms, uint32_t number)
{
    shc_pairs &pairs = comms[1]->p2p.pairs;
    shc_line_shm *line = shc_pair_draft(&pairs, 0);
    ASSERT_NE(line, nullptr);
    line->head.kind = SHC_FRAME_NACK;
    line->head.place = {SHC_IN_LINE, 0};
    line->head.piece = 0;
    line->head.message = number;
    shc_pair_post(&pairs, 0, line, {SHC_IN_LINE, 0});
}

// The refusal stays in its line while its sender only sends at once.
TEST(Unasked, AreRefusedHoweverMuchHasBeenSentBehindThem)
{
    where_messages_go_unasked([](const Comms &comms) {
        Message out(SHC_SEND, 1, 1, 300000), in(SHC_RECV, 0, 1, 299999);
        out.start(comms[0]);
        out.expect_ended(SHC_OK);
        in.start(comms[1]);
        in.expect_ended(SHC_ERR_MISMATCH);
        post_refusal(comms, out.request->message.number);
        comms[0]->p2p.peers[1].messages += UINT32_C(1) << 31;
        Message back(SHC_SEND, 0, 2, 10), in_back(SHC_RECV, 1, 2, 10);
        back.start(comms[1]);
        in_back.start(comms[0]);
        in_back.expect_ended(SHC_OK);
        in_back.expect_content();
    });
}

// A line that no rank writes: messages that were asked for and are in flight are not refused, nor those
// that went at once.
TEST(Unasked, AreNotWhatIsRefusedOtherwise)
{
    for (size_t bytes : {size_t{4} << 20, size_t{100}})
        by_one_thread([&](const Comms &comms) {
            Message in(SHC_RECV, 0, 1, bytes), out(SHC_SEND, 1, 1, bytes);
            Message pends(SHC_RECV, 1, 2, 1);
            in.start(comms[1]);
            out.start(comms[0]);
            pass(comms[1]);
            pass(comms[0]);
            post_refusal(comms, out.request->message.number);
            pends.start(comms[0]);
            pends.expect_ended(SHC_ERR_ABORTED);
            pass(comms[1]);
            EXPECT_TRUE(in.done() && out.done());
        });
}

// Sizes on both sides of every limit, received in any order, now and then with another size.
TEST(Unasked, ArriveInWhateverOrderTheyAreAskedFor)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            std::mt19937 random(7); // the same on both ranks
            settle_trials(rank.comm->p2p);
            for (int turn = 0, end = rounds(16); turn < end && !testing::Test::HasFatalFailure();
                 turn++) {
                const int messages = 6, sender = turn / 2 % 2;
                std::vector<size_t> sizes;
                std::vector<int> order;
                for (int tag = 0; tag < messages; tag++) {
                    sizes.push_back(100000 + random() % 1100000);
                    order.push_back(tag);
                }
                std::shuffle(order.begin(), order.end(), random);
                const int other =
                    static_cast<int>(random() % 12); // wanted otherwise, if there is one
                std::vector<std::unique_ptr<Message>> all;
                for (int i = 0; i < messages; i++) {
                    const int tag = rank.rank == sender ? i : order[static_cast<size_t>(i)];
                    const bool odd = rank.rank != sender && tag == other;
                    all.push_back(
                        std::make_unique<Message>(rank.rank == sender ? SHC_SEND : SHC_RECV, peer,
                                                  tag, sizes[static_cast<size_t>(tag)] + odd));
                    all.back()->start(rank.comm);
                    if (i == messages / 2 && rank.rank != sender) // the others come meanwhile
                        shc_request_wait(all.front()->request, 0);
                }
                for (const auto &m : all) {
                    const shc_status status = shc_request_wait(m->request, 0);
                    const bool odd = m->op.tag == other;
                    if (odd && rank.rank == sender) {
                        EXPECT_TRUE(status == SHC_OK || status == SHC_ERR_MISMATCH);
                    } else {
                        EXPECT_EQ(status, odd ? SHC_ERR_MISMATCH : SHC_OK) << error_text();
                    }
                    if (!odd)
                        m->expect_content();
                }
            }
        });
}

} // namespace
