// SPDX-License-Identifier: BSD-3-Clause

// What point-to-point must do, whatever carries it: sizes, tags, any
// source, layouts, unexpected messages, messages to oneself, mismatches, time-outs, departures; ranks as
// threads and as processes.
#include "tests/support/ranks.h"
#include "tests/support/values.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <thread>

using namespace shmcoll::test;

namespace
{

// One send or receive with the memory it uses.
struct Message {
    std::vector<float> values;
    int64_t size = 0, stride = 1;
    shc_tensor tensor = {};
    shc_op op = {};
    shc_request *request = nullptr;

    Message() = default;
    Message(const Message &) = delete;
    ~Message()
    {
        if (request)
            shc_request_release(request);
    }
};
using Handle = std::unique_ptr<Message>;

const size_t kPeriod = 8191;

float value_of(int sender, int tag, size_t i)
{
    return static_cast<float>(
        (i * 7 + static_cast<size_t>(sender) * 131 + static_cast<size_t>(tag) * 17 + 1) % kPeriod);
}

std::vector<float> content(int sender, int tag, size_t count)
{
    return repeated(count, kPeriod, [=](size_t i) { return value_of(sender, tag, i); });
}

Handle describe(shc_op_kind kind, int peer, int tag, std::vector<float> values)
{
    Handle m = std::make_unique<Message>();
    m->values = std::move(values);
    m->size = static_cast<int64_t>(m->values.size());
    m->tensor = {m->values.data(), 1, &m->size, nullptr};
    m->op.kind = kind;
    m->op.dtype = SHC_FLOAT32;
    m->op.peer = peer;
    m->op.tag = tag;
    (kind == SHC_SEND ? m->op.input : m->op.output) = {&m->tensor, 1};
    return m;
}

Handle isend(Rank &rank, int peer, int tag, size_t count)
{
    Handle m = describe(SHC_SEND, peer, tag, content(rank.rank, tag, count));
    EXPECT_EQ(shc_submit(rank.comm, &m->op, nullptr, &m->request), SHC_OK) << error_text();
    return m;
}

Handle irecv(Rank &rank, int peer, int tag, size_t count)
{
    Handle m = describe(SHC_RECV, peer, tag, std::vector<float>(count, -1.f));
    EXPECT_EQ(shc_submit(rank.comm, &m->op, nullptr, &m->request), SHC_OK) << error_text();
    return m;
}

shc_status wait(const Handle &m, uint64_t timeout_ns = 0)
{
    return shc_request_wait(m->request, timeout_ns);
}

void expect_content(const Handle &m, int sender, int tag)
{
    ASSERT_EQ(wait(m), SHC_OK) << error_text();
    EXPECT_EQ(shc_request_source(m->request), sender);
    EXPECT_TRUE(same(m->values, content(sender, tag, m->values.size())))
        << "from rank " << sender << ", tag " << tag << ", " << m->values.size() << " elements";
}

void barrier(Rank &rank)
{
    shc_op op = {};
    op.kind = SHC_BARRIER;
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

struct Case {
    Mode mode;
    int world;
    bool buffers;
};

void PrintTo(const Case &c, std::ostream *out)
{
    *out << mode_name(c.mode) << ", " << c.world << " ranks" << (c.buffers ? "" : ", lines only");
}

class Messages : public testing::TestWithParam<Case>
{
  protected:
    void run(const Body &body, uint64_t timeout_ns = Options().timeout_ns, const char *tuning = "")
    {
        Options options;
        options.timeout_ns = timeout_ns;
        options.tuning = tuning;
        options.knobs.lines_only = !GetParam().buffers;
        run_ranks(GetParam().mode, GetParam().world, body, options);
    }
};

// A line holds 22 floats, a buffer 4096.
const size_t kCounts[] = {0, 1, 21, 22, 23, 1000, 4095, 4096, 4097, 40000, 200001};

TEST_P(Messages, OfEverySizeReachEveryRank)
{
    run([](Rank &rank) {
        for (size_t count : kCounts)
            for (int distance = 0; distance < rank.world; distance++) {
                int to = (rank.rank + distance) % rank.world;
                int from = (rank.rank - distance + rank.world) % rank.world;
                Handle in = irecv(rank, from, 3, count);
                Handle out = isend(rank, to, 3, count);
                expect_content(in, from, 3);
                EXPECT_EQ(wait(out), SHC_OK) << error_text();
            }
    });
}

TEST_P(Messages, FindTheReceiveOfTheirTagInAnyOrder)
{
    run([](Rank &rank) {
        const int to = (rank.rank + 1) % rank.world;
        const int from = (rank.rank + rank.world - 1) % rank.world;
        std::vector<Handle> out;
        for (int tag = 0; tag < 20; tag++)
            out.push_back(isend(rank, to, tag, kCounts[static_cast<size_t>(tag) % 10]));
        for (int tag = 19; tag >= 0; tag--)
            expect_content(irecv(rank, from, tag, kCounts[static_cast<size_t>(tag) % 10]), from,
                           tag);
        for (const Handle &m : out)
            EXPECT_EQ(wait(m), SHC_OK) << error_text();
    });
}

// The number of the message is its length, so that one that overtakes another does not match.
TEST_P(Messages, OfOneTagKeepTheirOrder)
{
    run([](Rank &rank) {
        const int to = (rank.rank + 1) % rank.world;
        const int from = (rank.rank + rank.world - 1) % rank.world;
        const size_t counts[] = {5000, 3, 4000, 90000, 1, 0, 23, 4096, 2, 4097};
        std::vector<Handle> out, in;
        for (int round = 0; round < 3; round++)
            for (size_t count : counts)
                out.push_back(isend(rank, to, 0, count));
        for (int round = 0; round < 3; round++)
            for (size_t count : counts)
                in.push_back(irecv(rank, from, 0, count));
        for (auto m = in.rbegin(); m != in.rend(); ++m)
            expect_content(*m, from, 0);
        for (const Handle &m : out)
            EXPECT_EQ(wait(m), SHC_OK) << error_text();
    });
}

// Synchronous calls need no request if nothing is before them.
void send_now(Rank &rank, int peer, int tag, size_t count)
{
    Handle m = describe(SHC_SEND, peer, tag, content(rank.rank, tag, count));
    ASSERT_EQ(shc_run(rank.comm, &m->op), SHC_OK) << error_text();
}

void expect_now(Rank &rank, int peer, int tag, size_t count)
{
    Handle m = describe(SHC_RECV, peer, tag, std::vector<float>(count, -1.f));
    ASSERT_EQ(shc_run(rank.comm, &m->op), SHC_OK) << error_text();
    EXPECT_TRUE(same(m->values, content(peer, tag, count)))
        << "from rank " << peer << ", tag " << tag;
}

TEST_P(Messages, AtOnceGoBackAndForth)
{
    run([](Rank &rank) {
        const int peer = rank.rank ^ 1;
        if (peer >= rank.world)
            return;
        for (int round = 0; round < 200; round++) {
            const size_t count = kCounts[static_cast<size_t>(round) % 8];
            if (rank.rank < peer) {
                send_now(rank, peer, round, count);
                expect_now(rank, peer, round, count);
            } else {
                if (round % 50 == 0) // longer than any wait spins
                    shc_os_sleep_ns(SHC_NS_PER_MS);
                expect_now(rank, peer, round, count);
                send_now(rank, peer, round, count);
            }
        }
    });
}

// All of one size, each with a number, so that one in the place of another is seen.
const size_t kNumbered = 3;

void send_number(Rank &rank, int peer, int tag, float number)
{
    Handle m = describe(SHC_SEND, peer, tag, std::vector<float>(kNumbered, number));
    ASSERT_EQ(shc_run(rank.comm, &m->op), SHC_OK) << error_text();
}

float receive_number(Rank &rank, int peer, int tag)
{
    Handle m = describe(SHC_RECV, peer, tag, std::vector<float>(kNumbered, -1.f));
    EXPECT_EQ(shc_run(rank.comm, &m->op), SHC_OK) << error_text();
    return m->values[0];
}

TEST_P(Messages, AtOnceOvertakeNothingOnTheWay)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            Handle large = isend(rank, 1, 0, 290000); // waits for its receive
            send_number(rank, 1, 0, 1);
            send_number(rank, 1, 7, 2); // put aside, as tag 0 is taken before
            send_number(rank, 1, 0, 3);
            barrier(rank);
            send_number(rank, 1, 7, 4);
            barrier(rank);
            EXPECT_EQ(wait(large), SHC_OK) << error_text();
            return;
        }
        if (rank.rank == 1) {
            expect_content(irecv(rank, 0, 0, 290000), 0, 0);
            EXPECT_EQ(receive_number(rank, 0, 0), 1);
            EXPECT_EQ(receive_number(rank, 0, 0), 3);
        }
        barrier(rank);
        barrier(rank);
        if (rank.rank == 1) {
            EXPECT_EQ(receive_number(rank, 0, 7), 2);
            EXPECT_EQ(receive_number(rank, 0, 7), 4);
        }
    });
}

TEST_P(Messages, AtOnceOvertakeNoReceive)
{
    run([](Rank &rank) {
        for (int sender : {SHC_ANY_SOURCE, 0}) {
            if (rank.rank == 1) {
                Handle first = irecv(rank, sender, 2, kNumbered);
                barrier(rank);
                barrier(rank);
                EXPECT_EQ(receive_number(rank, 0, 2), 2);
                EXPECT_EQ(wait(first), SHC_OK) << error_text();
                EXPECT_EQ(first->values[0], 1);
                continue;
            }
            barrier(rank);
            if (rank.rank == 0) {
                send_number(rank, 1, 2, 1);
                send_number(rank, 1, 2, 2);
            }
            barrier(rank);
        }
    });
}

TEST_P(Messages, AtOnceOfAnotherSizeIsAMismatch)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            send_now(rank, 1, 0, 3);
            send_now(rank, 1, 0, 4);
        } else if (rank.rank == 1) {
            Handle m = describe(SHC_RECV, 0, 0, std::vector<float>(2, -1.f));
            EXPECT_EQ(shc_run(rank.comm, &m->op), SHC_ERR_MISMATCH);
            EXPECT_EQ(m->values, std::vector<float>(2, -1.f));
            expect_now(rank, 0, 0, 4);
        }
        barrier(rank);
    });
}

// A send that is submitted while nothing is pending is over when shc_submit() returns. Nothing completes
// it, and the owner of its memory learns of its end from the release.
TEST_P(Messages, SubmittedAtOnceAreOverFromTheBeginning)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            int retired = 0, completed = 0;
            int *counts[] = {&retired, &completed};
            shc_request_hooks hooks = {};
            hooks.ctx = counts;
            hooks.retire = [](void *ctx) { ++*static_cast<int **>(ctx)[0]; };
            hooks.complete = [](void *ctx, shc_status, const char *) {
                ++*static_cast<int **>(ctx)[1];
            };
            for (int i = 0; i < 3; i++) {
                Handle m = describe(SHC_SEND, 1, i, content(0, i, 22));
                shc_status status = SHC_ERR_INVALID;
                ASSERT_EQ(shc_submit(rank.comm, &m->op, &hooks, &m->request), SHC_OK);
                EXPECT_TRUE(shc_request_done(m->request, &status));
                EXPECT_EQ(status, SHC_OK);
                EXPECT_STREQ(shc_request_error(m->request), "");
                EXPECT_FALSE(shc_request_notify(m->request));
                EXPECT_EQ(wait(m), SHC_OK);
                EXPECT_EQ(retired, i);
                shc_request_release(m->request);
                m->request = nullptr;
                EXPECT_EQ(retired, i + 1);
            }
            EXPECT_EQ(completed, 0);
        }
        barrier(rank);
        for (int i = 2; i >= 0 && rank.rank == 1; i--)
            expect_content(irecv(rank, 0, i, 22), 0, i);
    });
}

// If something is pending it takes its turn, and its pass moves what is there.
TEST_P(Messages, SubmittedBesideAReceiveMoveItOn)
{
    run([](Rank &rank) {
        if (rank.rank > 1) {
            barrier(rank);
            return;
        }
        const int peer = 1 - rank.rank;
        Handle in = irecv(rank, peer, 0, 22);
        Handle out = isend(rank, peer, 0, 22), more = isend(rank, peer, 1, 22);
        expect_content(in, peer, 0);
        expect_content(irecv(rank, peer, 1, 22), peer, 1);
        EXPECT_EQ(wait(out), SHC_OK) << error_text();
        EXPECT_EQ(wait(more), SHC_OK) << error_text();
        barrier(rank);
    });
}

TEST_P(Messages, FromAnySourceComeFromEverybodyInOrder)
{
    run([](Rank &rank) {
        const int each = 30;
        if (rank.rank != 0) {
            for (int i = 0; i < each; i++)
                EXPECT_EQ(wait(isend(rank, 0, 5, static_cast<size_t>(10))), SHC_OK) << error_text();
            return;
        }
        std::vector<int> seen(static_cast<size_t>(rank.world), 0);
        for (int i = 0; i < each * (rank.world - 1); i++) {
            Handle in = irecv(rank, SHC_ANY_SOURCE, 5, 10);
            ASSERT_EQ(wait(in), SHC_OK) << error_text();
            int from = shc_request_source(in->request);
            ASSERT_TRUE(from > 0 && from < rank.world) << from;
            EXPECT_EQ(in->values, content(from, 5, 10));
            seen[static_cast<size_t>(from)]++;
        }
        for (int r = 1; r < rank.world; r++)
            EXPECT_EQ(seen[static_cast<size_t>(r)], each);
    });
}

// Unexpected messages keep the order in which they came, over all senders: none waits for ever.
TEST_P(Messages, FromAnySourceAreTakenInTheOrderOfArrival)
{
    run([](Rank &rank) {
        const int last = rank.world - 1;
        Handle never;
        if (rank.rank == 0)
            never = irecv(rank, 0, 50, 1);
        for (int sender : {last, 1, last}) {
            if (rank.rank == sender) {
                EXPECT_EQ(wait(isend(rank, 0, 6, 8)), SHC_OK) << error_text();
            }
            barrier(rank);
            if (rank.rank == 0) {
                EXPECT_EQ(wait(never, 2 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT); // it looks, and keeps
            }
            barrier(rank);
        }
        if (rank.rank != 0)
            return;
        for (int sender : {last, 1, last})
            expect_content(irecv(rank, SHC_ANY_SOURCE, 6, 8), sender, 6);
    });
}

TEST_P(Messages, TakeTheReceiveThatWasPostedFirst)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            Handle any = irecv(rank, SHC_ANY_SOURCE, 1, 4), named = irecv(rank, 1, 1, 7);
            barrier(rank);
            expect_content(any, 1, 1);
            expect_content(named, 1, 1);
            Handle first = irecv(rank, 1, 1, 7), second = irecv(rank, SHC_ANY_SOURCE, 1, 4);
            barrier(rank);
            expect_content(first, 1, 1);
            expect_content(second, 1, 1);
            return;
        }
        const size_t counts[][2] = {{4, 7}, {7, 4}};
        for (const auto &pair : counts) {
            barrier(rank);
            for (size_t count : pair)
                if (rank.rank == 1) {
                    EXPECT_EQ(wait(isend(rank, 0, 1, count)), SHC_OK) << error_text();
                }
        }
    });
}

TEST_P(Messages, OfAnotherSizeOrTypeAreDroppedAndTheGroupGoesOn)
{
    run([](Rank &rank) {
        if (rank.rank > 1)
            return;
        for (size_t count : {10, 3000, 300000}) { // in a line, in a buffer, by rendezvous
            if (rank.rank == 0) {
                Handle out = isend(rank, 1, 2, count);
                shc_status status = wait(out);
                EXPECT_TRUE(status == SHC_OK || status == SHC_ERR_MISMATCH) << error_text();
                if (count == 300000) {
                    EXPECT_EQ(status, SHC_ERR_MISMATCH);
                    EXPECT_NE(error_text().find("type or size: recv (float32[300001])"),
                              std::string::npos)
                        << error_text();
                }
                EXPECT_EQ(wait(isend(rank, 1, 2, count)), SHC_OK) << error_text();
            } else {
                Handle in = irecv(rank, 0, 2, count + 1);
                EXPECT_EQ(wait(in), SHC_ERR_MISMATCH);
                std::string text = error_text();
                EXPECT_NE(text.find("float32[" + std::to_string(count + 1) + "]"),
                          std::string::npos)
                    << text;
                EXPECT_NE(text.find("float32[" + std::to_string(count) + "]"), std::string::npos)
                    << text;
                EXPECT_EQ(in->values, std::vector<float>(count + 1, -1.f)) << "memory has changed";
                expect_content(irecv(rank, 0, 2, count), 0, 2);
            }
        }
        if (rank.rank == 0) {
            EXPECT_EQ(wait(isend(rank, 1, 0, 4)), SHC_OK);
        } else {
            Handle in = describe(SHC_RECV, 0, 0, std::vector<float>(4, -1.f));
            in->op.dtype = SHC_INT32;
            EXPECT_EQ(shc_run(rank.comm, &in->op), SHC_ERR_MISMATCH);
            EXPECT_NE(error_text().find("int32[4]"), std::string::npos) << error_text();
        }
    });
}

TEST_P(Messages, MoveBesideCollectives)
{
    run([](Rank &rank) {
        const size_t count = GetParam().buffers ? 500000 : 100000;
        std::vector<float> sum(1000, 1.f);
        int64_t size = 1000;
        shc_tensor tensor = {sum.data(), 1, &size, nullptr};
        shc_op reduce = {};
        reduce.kind = SHC_ALL_REDUCE;
        reduce.dtype = SHC_FLOAT32;
        reduce.input = reduce.output = {&tensor, 1};
        if (rank.rank == 0) {
            shc_request *request = nullptr;
            ASSERT_EQ(shc_submit(rank.comm, &reduce, nullptr, &request), SHC_OK);
            for (int r = 1; r < rank.world; r++)
                expect_content(irecv(rank, r, 0, count), r, 0);
            EXPECT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
            shc_request_release(request);
        } else {
            EXPECT_EQ(wait(isend(rank, 0, 0, count)), SHC_OK) << error_text();
            EXPECT_EQ(shc_run(rank.comm, &reduce), SHC_OK) << error_text();
        }
        EXPECT_EQ(sum[999], static_cast<float>(rank.world));
    });
}

// Rank 1 does not look for a while. Its messages fill the lines, and the buffers that such messages may
// have. The one for another rank (with two ranks: for the sender itself) gets through.
TEST_P(Messages, ThatNobodyTakesKeepNobodyElseWaiting)
{
    run([](Rank &rank) {
        const int other = rank.world > 2 ? 2 : 0;
        std::vector<Handle> out;
        Handle in;
        if (rank.rank == other)
            in = irecv(rank, 0, 99, 100000);
        if (rank.rank == 0) {
            for (int i = 0; i < 30; i++)
                out.push_back(isend(rank, 1, i, i % 2 ? 3000 : 10));
            out.push_back(isend(rank, other, 99, 100000));
            EXPECT_EQ(wait(out.back()), SHC_OK) << error_text();
        }
        if (in)
            expect_content(in, 0, 99);
        barrier(rank);
        if (rank.rank == 1) {
            for (int i = 29; i >= 0; i--)
                expect_content(irecv(rank, 0, i, i % 2 ? 3000 : 10), 0, i);
        }
        for (const Handle &m : out)
            EXPECT_EQ(wait(m), SHC_OK) << error_text();
    });
}

// A buffer that holds an eager prefix is lent until a receive has taken it, or refused it. If one of the
// few were lost, a message of its size would wait for its receiver in the end.
TEST_P(Messages, GiveTheBuffersOfTheirPrefixesBack)
{
    run([](Rank &rank) {
        const size_t whole = 3000, longer = GetParam().buffers ? 300000 : 30000;
        for (int round = 0, end = rounds(24); round < end && rank.rank < 2; round++) {
            const bool fits = round % 3 > 0;
            const size_t headed =
                round % 2 ? 5000 : longer; // the first goes whole between two ranks
            std::vector<Handle> messages;
            for (int i = 0; i < 6; i++) {
                const int tag = rank.rank == 0 ? i : 5 - i;
                messages.push_back(rank.rank == 0 ? isend(rank, 1, tag, headed)
                                                  : irecv(rank, 0, tag, headed + !fits));
            }
            for (const Handle &m : messages) {
                const shc_status status = wait(m);
                const bool over = fits || (rank.rank == 0 && headed == 5000 && status == SHC_OK);
                EXPECT_EQ(status, over ? SHC_OK : SHC_ERR_MISMATCH) << error_text();
            }
            for (int i = 0; i < 6 && fits && rank.rank == 1; i++)
                expect_content(messages[static_cast<size_t>(i)], 0, 5 - i);
        }
        Handle sent;
        if (rank.rank == 0 && GetParam().buffers) {
            sent = isend(rank, 1, 7, whole);
            EXPECT_EQ(wait(sent), SHC_OK) << error_text();
        }
        barrier(rank);
        if (rank.rank == 1 && GetParam().buffers)
            expect_content(irecv(rank, 0, 7, whole), 0, 7);
    });
}

// Between two ranks, the eager prefix of an unexpected message may lie in the pool, for which others
// are waiting.
TEST_P(Messages, LetOthersPassThatWereAskedForFirst)
{
    run([](Rank &rank) {
        // The second one is wanted last.
        const size_t part = GetParam().buffers ? 1 : 10;
        const size_t counts[] = {300000 / part, 30001, 270000 / part};
        for (int round = 0, end = rounds(40); round < end && rank.rank < 2; round++) {
            std::vector<Handle> messages;
            if (rank.rank == 0) {
                for (int tag : {0, 1, 2})
                    messages.push_back(isend(rank, 1, tag, counts[tag]));
                for (const Handle &m : messages)
                    EXPECT_EQ(wait(m), SHC_OK) << error_text();
            } else {
                for (int tag : {0, 2})
                    messages.push_back(irecv(rank, 0, tag, counts[tag]));
                expect_content(messages[0], 0, 0);
                expect_content(messages[1], 0, 2);
                expect_content(irecv(rank, 0, 1, counts[1]), 0, 1);
            }
        }
    });
}

// Between two ranks, a message that is sent whole through the pool and is unexpected is put aside by
// its receiver: 1 MiB at most, and as much again when that has been received.
// Of 60 messages that nobody has asked for, `whole` end at once; of short ones another one may, in a hand-off
// buffer.
void put_aside(Rank &rank, size_t count, int whole)
{
    const int messages = 60;
    const int more = count * sizeof(float) <= SHC_EAGER_BYTES ? 1 : 0;
    if (rank.rank == 0 && rank.world == 2) { // takes the long buffer along, which stays there
        EXPECT_EQ(wait(isend(rank, 1, 98, count)), SHC_OK) << error_text();
    }
    if (rank.rank == 1 && rank.world == 2)
        expect_content(irecv(rank, 0, 98, count), 0, 98);
    for (int round = 0; round < 3; round++) {
        std::vector<Handle> sent;
        if (rank.rank == 1)
            expect_content(irecv(rank, 0, 99, 1), 0, 99);
        for (int tag = 0; tag < messages && rank.rank == 0; tag++)
            sent.push_back(isend(rank, 1, tag, count));
        if (rank.rank == 0) {
            EXPECT_EQ(wait(isend(rank, 1, 99, 1)), SHC_OK) << error_text();
        }
        barrier(rank);
        int over = 0;
        for (const Handle &m : sent) {
            shc_status status = SHC_OK;
            over += shc_request_done(m->request, &status);
        }
        if (rank.rank == 0) {
            EXPECT_GE(over, whole) << "round " << round;
            EXPECT_LE(over, whole + more) << "round " << round;
        }
        barrier(rank);
        for (int tag = messages - 1; tag >= 0 && rank.rank == 1; tag--)
            expect_content(irecv(rank, 0, tag, count), 0, tag);
        for (const Handle &m : sent)
            EXPECT_EQ(wait(m), SHC_OK) << error_text();
    }
}

// Without trials of copy modes, in which a message waits for CTS.
TEST_P(Messages, ArePutAsideWithinBounds)
{
    const auto body = [](Rank &rank) {
        const bool pool = rank.world == 2 && GetParam().buffers;
        put_aside(rank, 5000, pool ? SHC_CREDIT_BUFFERS : 0); // 20 KB: a buffer of the pool each
    };
    run(body, Options().timeout_ns, "staging.non_temporal_from=never");
}

// 16 KB: eager buffers take a few more than the pool.
TEST_P(Messages, OfAnEagerBuffersSizeArePutAsideWithinBounds)
{
    run([](Rank &rank) {
        const bool buffers = GetParam().buffers, pool = rank.world == 2 && buffers;
        put_aside(rank, 4000, (pool ? SHC_CREDIT_BUFFERS : 0) + (buffers ? SHC_EAGER_UNASKED : 0));
    });
}

TEST_P(Messages, AreReceivedIntoAnyLayout)
{
    run([](Rank &rank) {
        if (rank.rank > 1)
            return;
        for (size_t count : {5, 2000, 60000}) {
            if (rank.rank == 0) {
                EXPECT_EQ(wait(isend(rank, 1, 0, count)), SHC_OK) << error_text();
                continue;
            }
            std::vector<float> gaps(count * 3, -1.f);
            int64_t size = static_cast<int64_t>(count), stride = 3;
            shc_tensor tensor = {gaps.data(), 1, &size, &stride};
            shc_op op = {};
            op.kind = SHC_RECV;
            op.dtype = SHC_FLOAT32;
            op.peer = 0;
            op.output = {&tensor, 1};
            ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
            for (size_t i = 0; i < gaps.size(); i++)
                ASSERT_EQ(gaps[i], i % 3 == 0 ? value_of(0, 0, i / 3) : -1.f) << i;
        }
    });
}

// Into memory with gaps: there a piece that ends inside an element shows.
TEST_P(Messages, OfOddElementsArriveWhole)
{
    run([](Rank &rank) {
        for (uint32_t elem : {1u, 3u, 16u, 48u})
            for (size_t count : {1u, 29u, 400u, 9000u}) {
                const bool sends = rank.rank == 0;
                const size_t step = sends ? 1 : 2; // of elements
                std::vector<unsigned char> bytes(elem * count * step, 0xee);
                auto value = [&](size_t i) { return static_cast<unsigned char>(i * 31 + elem); };
                for (size_t i = 0; sends && i < bytes.size(); i++)
                    bytes[i] = value(i);
                int64_t size = static_cast<int64_t>(count), stride = static_cast<int64_t>(step);
                shc_tensor tensor = {bytes.data(), 1, &size, &stride};
                shc_op op = {};
                op.kind = sends ? SHC_SEND : SHC_RECV;
                op.dtype = SHC_OPAQUE;
                op.elem_bytes = elem;
                op.input = op.output = {&tensor, 1};
                for (int r = 1; r < rank.world; r++) {
                    op.peer = sends ? r : 0;
                    if (sends || rank.rank == r) {
                        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
                    }
                }
                for (size_t i = 0; i < bytes.size(); i++) {
                    size_t element = i / elem;
                    unsigned char want =
                        element % step ? 0xee : value(element / step * elem + i % elem);
                    ASSERT_EQ(bytes[i], want) << elem << "-byte elements, " << count << ", " << i;
                }
            }
    });
}

TEST_P(Messages, WaitedForFromTwoThreadsAllEnd)
{
    run([](Rank &rank) {
        const int to = (rank.rank + 1) % rank.world;
        const int from = (rank.rank + rank.world - 1) % rank.world;
        auto talk = [&](int tag) {
            for (size_t count : {10, 3000, 30000, 1, 100000}) {
                Handle in = irecv(rank, from, tag, count), out = isend(rank, to, tag, count);
                expect_content(in, from, tag);
                EXPECT_EQ(wait(out), SHC_OK) << error_text();
            }
        };
        std::thread other([&] { talk(1); });
        talk(2);
        other.join();
    });
}

// The receive is taken back: the message that comes later is another receive's.
TEST_P(Messages, AReceiveThatTimesOutIsWithdrawn)
{
    run([](Rank &rank) {
        if (rank.rank == 1) {
            Handle in = describe(SHC_RECV, 0, 4, std::vector<float>(3, -1.f));
            in->op.timeout_ns = 30 * SHC_NS_PER_MS;
            EXPECT_EQ(shc_run(rank.comm, &in->op), SHC_ERR_TIMEOUT);
            std::string text = error_text();
            EXPECT_NE(text.find("Timed out"), std::string::npos) << text;
            EXPECT_NE(text.find("the matching send of rank 0"), std::string::npos) << text;
        }
        barrier(rank);
        if (rank.rank == 0) {
            EXPECT_EQ(wait(isend(rank, 1, 4, 3)), SHC_OK) << error_text();
        }
        if (rank.rank == 1)
            expect_content(irecv(rank, 0, 4, 3), 0, 4);
    });
}

TEST_P(Messages, ASendThatTimesOutNamesTheReceiveAndFailsTheGroup)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            Handle out = describe(SHC_SEND, 1, 9, content(0, 9, 300000));
            out->op.timeout_ns = 50 * SHC_NS_PER_MS;
            EXPECT_EQ(shc_run(rank.comm, &out->op), SHC_ERR_TIMEOUT);
            std::string text = error_text();
            EXPECT_NE(text.find("the matching recv of rank 1"), std::string::npos) << text;
            return;
        }
        shc_op op = {};
        op.kind = SHC_BARRIER;
        EXPECT_EQ(shc_run(rank.comm, &op), SHC_ERR_TIMEOUT);
        EXPECT_NE(error_text().find("tag 9"), std::string::npos) << error_text();
    });
}

TEST_P(Messages, SayHowMuchOfThemIsToFollow)
{
    run([](Rank &rank) {
        const auto said = [&rank](shc_message_state state, size_t moved) {
            shc_message message = {};
            message.peer = message.source = (rank.rank + 1) % rank.world;
            message.shape.bytes = 1000;
            message.state = state;
            message.moved = moved;
            char text[512];
            shc_p2p_whom_text(&rank.comm->p2p, &message, text, sizeof text);
            return std::string(text).substr(0, std::string(text).find(" rank "));
        };
        EXPECT_EQ(said(SHC_MESSAGE_FILLING, 0), "the rest (100 %) from");
        EXPECT_EQ(said(SHC_MESSAGE_FILLING, 370), "the rest (63 %) from");
        EXPECT_EQ(said(SHC_MESSAGE_STREAMING, 370), "the rest (63 %) to be received by");
        EXPECT_EQ(said(SHC_MESSAGE_STREAMING, 991), "the last bytes to be received by");
        EXPECT_EQ(said(SHC_MESSAGE_STREAMING, 1000), "the last bytes to be received by");
        EXPECT_EQ(said(SHC_MESSAGE_ANNOUNCED, 370), "the matching recv of");
    });
}

TEST_P(Messages, AWaitWithATimeOutOfItsOwnLeavesTheReceiveInFlight)
{
    run([](Rank &rank) {
        if (rank.rank == 1) {
            Handle in = irecv(rank, 0, 4, 3);
            EXPECT_EQ(wait(in, 20 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT);
            barrier(rank);
            expect_content(in, 0, 4);
            return;
        }
        barrier(rank);
        if (rank.rank == 0) {
            EXPECT_EQ(wait(isend(rank, 1, 4, 3)), SHC_OK) << error_text();
        }
    });
}

TEST_P(Messages, OfARankThatLeftAreStillThere)
{
    run([](Rank &rank) {
        if (rank.rank == 0) {
            EXPECT_EQ(wait(isend(rank, 1, 0, 10)), SHC_OK) << error_text();
            if (GetParam().buffers) {
                EXPECT_EQ(wait(isend(rank, 1, 1, 4000)), SHC_OK) << error_text();
            }
            shc_comm_close(rank.comm);
            return;
        }
        if (rank.rank != 1)
            return;
        Handle never = irecv(rank, 0, 7, 10);
        EXPECT_EQ(wait(never), SHC_ERR_PEER_LEFT);
        EXPECT_NE(error_text().find("rank 0"), std::string::npos) << error_text();
        if (GetParam().buffers)
            expect_content(irecv(rank, 0, 1, 4000), 0, 1);
        expect_content(irecv(rank, 0, 0, 10), 0, 0);
        Handle late = describe(SHC_SEND, 0, 0, content(1, 0, 3));
        EXPECT_EQ(shc_run(rank.comm, &late->op), SHC_ERR_PEER_LEFT);
    });
}

TEST_P(Messages, FromAnySourceEndWhenAllOthersHaveLeft)
{
    run([](Rank &rank) {
        if (rank.rank != 0) {
            shc_comm_close(rank.comm);
            return;
        }
        EXPECT_EQ(wait(irecv(rank, SHC_ANY_SOURCE, 0, 1)), SHC_ERR_PEER_LEFT);
    });
}

TEST_P(Messages, PendingAtTheCloseFail)
{
    run([](Rank &rank) {
        Handle in = irecv(rank, (rank.rank + 1) % rank.world, 77, 5);
        std::thread waiter([&] {
            shc_status status = wait(in);
            EXPECT_TRUE(status == SHC_ERR_CLOSED || status == SHC_ERR_PEER_LEFT) << error_text();
        });
        barrier(rank);
        shc_comm_close(rank.comm);
        waiter.join();
    });
}

TEST_P(Messages, WrongOnesAreRefused)
{
    run([](Rank &rank) {
        Handle m = describe(SHC_SEND, rank.world, 0, content(0, 0, 3));
        EXPECT_EQ(shc_run(rank.comm, &m->op), SHC_ERR_INVALID);
        m->op.peer = SHC_ANY_SOURCE;
        EXPECT_EQ(shc_run(rank.comm, &m->op), SHC_ERR_INVALID);
        m->op.peer = 0;
        m->op.dtype = SHC_DTYPE_COUNT;
        EXPECT_EQ(shc_run(rank.comm, &m->op), SHC_ERR_INVALID);
        barrier(rank);
    });
}

std::vector<Case> cases()
{
    std::vector<Case> all;
    for (Mode mode : all_modes())
        for (int world : {2, 3, 5})
            all.push_back({mode, world, true});
    for (Mode mode : all_modes())
        all.push_back({mode, 3, false});
    return all;
}

std::string name_of(const testing::TestParamInfo<Case> &info)
{
    return mode_name(info.param.mode) + std::to_string(info.param.world) +
           (info.param.buffers ? "" : "LinesOnly");
}

INSTANTIATE_TEST_SUITE_P(All, Messages, testing::ValuesIn(cases()), name_of);

} // namespace
