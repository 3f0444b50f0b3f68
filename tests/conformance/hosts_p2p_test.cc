// SPDX-License-Identifier: BSD-3-Clause
// Messages of a group over several hosts: docs/internals/protocol/remote.md.
#include "tests/support/hosts.h"
#include "tests/support/pattern.h"

extern "C" {
#include "shm/p2p/p2p.h"
}

#include <algorithm>
#include <deque>
#include <gtest/gtest.h>

using namespace shmcoll::test;
using Group = HostsGroup;

namespace
{

constexpr int kAnyTag = 3;

// Bytes that sender, number and length determine.
Bytes bytes_of(int from, int number, size_t length)
{
    Bytes bytes(length);
    for (size_t i = 0; i < length; i++)
        bytes[i] = static_cast<uint8_t>(17 * from + 31 * number + 7 * static_cast<int>(i % 251));
    return bytes;
}

// A message under way.
class Message
{
  public:
    Message(Group &group, shc_op_kind kind, int peer, int tag, const Bytes &bytes,
            bool strided = false, uint64_t timeout_ns = 0)
        : group_(group), data(bytes, 1, strided)
    {
        char error[SHC_HOSTS_ERROR_BYTES];
        shc_op op = op_of(kind);
        op.dtype = SHC_UINT8;
        op.peer = peer;
        op.tag = tag;
        op.timeout_ns = timeout_ns;
        (kind == SHC_SEND ? op.input : op.output) = {&data.tensor, 1};
        begun = shc_hosts_find_peer(group.hosts, kind, &op.peer, error);
        if (begun != SHC_OK)
            text = error;
        else if ((begun = shc_submit(shc_hosts_get_island(group.hosts), &op, nullptr, &request)) !=
                 SHC_OK)
            text = shc_error_text();
    }
    Message(const Message &) = delete;
    ~Message()
    {
        if (request)
            shc_request_release(request);
    }

    shc_status wait()
    {
        if (!request)
            return begun;
        const shc_status st = shc_request_wait(request, 0);
        text = shc_request_error(request);
        return st;
    }
    int source() { return shc_hosts_peer_rank(group_.hosts, shc_request_source(request)); }

  private:
    Group &group_;

  public:
    Elements data;
    shc_status begun = SHC_OK;
    shc_request *request = nullptr;
    std::string text;
};

shc_status send(Group &group, int to, int tag, const Bytes &bytes, std::string *text = nullptr)
{
    Message message(group, SHC_SEND, to, tag, bytes);
    const shc_status st = message.wait();
    if (text)
        *text = message.text;
    return st;
}

HostsOptions over(Mesh &mesh)
{
    HostsOptions how;
    how.mesh = &mesh;
    return how;
}

void barrier(Group &group)
{
    ASSERT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
}

// Runs a group over several hosts, whose messages may be spoiled.
void run_messages(const Labels &labels, const std::function<void(Group &)> &body,
                  Mesh::Spoiler spoils = nullptr)
{
    Network network(host_count(labels));
    Mesh mesh(std::move(spoils));
    run_hosts(labels, network, body, over(mesh));
}

const size_t kLengths[] = {0, 1, 8, SHC_REMOTE_EAGER_BYTES, SHC_REMOTE_EAGER_BYTES + 1, 4096};
constexpr size_t kLong = 520 * 1024; // more than a chunk;

} // namespace

class EveryMap : public testing::TestWithParam<Map>
{
};

// Each rank sends to each, all at once, short and long messages, with and without gaps.
TEST_P(EveryMap, EachPairOfRanks)
{
    const int world = static_cast<int>(GetParam().labels.size());
    run_messages(GetParam().labels, [&](Group &group) {
        std::deque<Message> sent, received;
        const auto exchange = [&](int to, int from, size_t length) {
            const int tag = static_cast<int>(length % 1000);
            received.emplace_back(group, SHC_RECV, from, tag, Bytes(length, 0), from % 2 == 0);
            sent.emplace_back(group, SHC_SEND, to, tag, bytes_of(group.rank, to, length),
                              group.rank % 2 == 0);
        };
        for (const size_t length : kLengths)
            for (int peer = 0; peer < world; peer++)
                exchange(peer, peer, length);
        exchange((group.rank + 1) % world, (group.rank + world - 1) % world, kLong);
        for (Message &message : sent)
            EXPECT_EQ(message.wait(), SHC_OK) << message.text;
        for (Message &message : received) {
            EXPECT_EQ(message.wait(), SHC_OK) << message.text;
            EXPECT_EQ(message.data.values(), bytes_of(message.source(), group.rank,
                                                      static_cast<size_t>(message.data.size)));
            EXPECT_TRUE(message.data.is_tidy());
        }
    });
}

// Receives from any rank, of this host and of others: each sender's messages come in its order.
TEST_P(EveryMap, AnySource)
{
    const int world = static_cast<int>(GetParam().labels.size()), each = 20;
    run_messages(GetParam().labels, [&](Group &group) {
        if (group.rank > 0) {
            for (int i = 0; i < each; i++) {
                const bool fits = i % 5 != 0; // a message that finds room ends well all the same
                const shc_status st =
                    send(group, 0, kAnyTag, bytes_of(group.rank, i, fits ? 50 : 5000));
                ASSERT_TRUE(st == SHC_OK || (!fits && st == SHC_ERR_MISMATCH)) << st;
            }
            return;
        }
        std::map<int, int> seen;
        for (int i = 0; i < each * (world - 1); i++) {
            // Each fifth message of a rank is too long.
            Message received(group, SHC_RECV, SHC_ANY_SOURCE, kAnyTag, Bytes(50, 0));
            const shc_status st = received.wait();
            const int from = received.source(), number = seen[from]++;
            if (number % 5 == 0) {
                EXPECT_EQ(st, SHC_ERR_MISMATCH);
                EXPECT_NE(received.text.find("uint8[5000]"), std::string::npos) << received.text;
            } else {
                EXPECT_EQ(st, SHC_OK) << received.text;
                EXPECT_EQ(received.data.values(), bytes_of(from, number, 50));
            }
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(world - 1));
    });
}

INSTANTIATE_TEST_SUITE_P(Messages, EveryMap,
                         testing::Values(Map{"TwoOfOne", {0, 1}}, Map{"TwoOfTwo", {0, 0, 1, 1}},
                                         Map{"Cyclic", {0, 1, 0, 1}},
                                         Map{"TwoAndOneAndThree", {0, 1, 2, 0, 2, 2}}),
                         [](const auto &test) { return std::string(test.param.name); });

// As if 2^32 messages had gone between all ranks so far, all but a few. pre: none has.
void begin_near_wrap(Group &group)
{
    const uint32_t near = UINT32_MAX - 20;
    shc_p2p *p2p = shc_comm_messages(shc_hosts_get_island(group.hosts));
    const int members = p2p->env.seat->world_size;
    for (int remote = 0; remote < p2p->env.remote.count; remote++) {
        p2p->peers[members + remote].messages = near;
        p2p->remotes[remote] = {near, near, near, near};
    }
    barrier(group);
}

TEST(HostsMessages, GoOnWhenCountersWrap)
{
    constexpr int kMany = 100;
    run_messages({0, 1}, [&](Group &group) {
        const int other = 1 - group.rank;
        begin_near_wrap(group);
        const auto length_of = [](int i) {
            return kLengths[static_cast<size_t>(i) % std::size(kLengths)];
        };
        std::deque<Message> sent, received;
        for (int i = 0; i < kMany; i++)
            sent.emplace_back(group, SHC_SEND, other, 1, bytes_of(group.rank, i, length_of(i)));
        barrier(group); // by then a sender is ahead of what receives have taken
        for (int i = 0; i < kMany; i++)
            received.emplace_back(group, SHC_RECV, other, 1, Bytes(length_of(i), 0));
        for (int i = 0; i < kMany; i++) {
            Message &came = received[static_cast<size_t>(i)];
            EXPECT_EQ(sent[static_cast<size_t>(i)].wait(), SHC_OK) << i;
            EXPECT_EQ(came.wait(), SHC_OK) << came.text;
            EXPECT_EQ(came.data.values(), bytes_of(other, i, static_cast<size_t>(came.data.size)));
        }
    });
}

// More than there is credit for: nothing is lost, and the order holds.
TEST(HostsMessages, ManyBeforeTheReceives)
{
    constexpr int kMany = 200;
    run_messages({0, 1}, [&](Group &group) {
        std::deque<Message> all;
        if (group.rank == 0) {
            for (int i = 0; i < kMany; i++)
                all.emplace_back(group, SHC_SEND, 1, i % 2, bytes_of(0, i, 100));
            barrier(group);
            for (Message &sent : all)
                EXPECT_EQ(sent.wait(), SHC_OK) << sent.text;
            return;
        }
        // A receive makes frames come; the messages wait here.
        Message last(group, SHC_RECV, 0, 1, Bytes(100, 0));
        barrier(group);
        for (const int tag : {0, 1})
            for (int i = tag; i < kMany - (tag == 1 ? 2 : 0); i += 2) {
                Message received(group, SHC_RECV, 0, tag, Bytes(100, 0));
                EXPECT_EQ(received.wait(), SHC_OK) << received.text;
                EXPECT_EQ(received.data.values(), bytes_of(0, tag == 1 ? i + 2 : i, 100));
            }
        EXPECT_EQ(last.wait(), SHC_OK);
        EXPECT_EQ(last.data.values(), bytes_of(0, 1, 100));
    });
}

// Both ranks raise, and the group goes on.
TEST(HostsMessages, Mismatches)
{
    const std::string told = "the recv of rank 3 \\(host 1\\) that matches it .*uint8\\[7\\]";
    run_messages(kTwoOfTwo, [&](Group &group) {
        for (const size_t length : {size_t{40}, size_t{70000}}) {
            if (group.rank == 0) {
                std::string text;
                const shc_status st = send(group, 3, 1, Bytes(length, 1), &text);
                if (length > 1000) {
                    EXPECT_EQ(st, SHC_ERR_MISMATCH);
                    EXPECT_TRUE(has_pattern(text, told)) << text;
                }
            }
            if (group.rank == 3) {
                Message received(group, SHC_RECV, 0, 1, Bytes(7, 9));
                EXPECT_EQ(received.wait(), SHC_ERR_MISMATCH);
                EXPECT_NE(received.text.find("the send of rank 0 (host 0) that matches it"),
                          std::string::npos)
                    << received.text;
                EXPECT_EQ(received.data.values(), Bytes(7, 9));
            }
        }
        if (group.rank == 0) {
            EXPECT_EQ(send(group, 3, 2, Bytes(5000, 2)), SHC_OK);
        }
        if (group.rank == 3) {
            Message received(group, SHC_RECV, 0, 2, Bytes(5000, 0));
            EXPECT_EQ(received.wait(), SHC_OK) << received.text;
        }
        barrier(group);
    });
}

TEST(HostsMessages, TimeOutsNameTheRank)
{
    run_messages(kTwoOfTwo, [&](Group &group) {
        if (group.rank == 1) {
            Message received(group, SHC_RECV, 2, 1, Bytes(7, 9), false, 200 * SHC_NS_PER_MS);
            EXPECT_EQ(received.wait(), SHC_ERR_TIMEOUT);
            EXPECT_NE(received.text.find("waiting for the matching send of rank 2 (host 1)"),
                      std::string::npos)
                << received.text;
        }
        barrier(group);
        if (group.rank == 2) {
            EXPECT_EQ(send(group, 1, 1, Bytes(7, 3)), SHC_OK);
        }
        if (group.rank == 1) {
            Message received(group, SHC_RECV, 2, 1, Bytes(7, 9));
            EXPECT_EQ(received.wait(), SHC_OK) << received.text;
        }
    });
}

TEST(HostsMessages, WrongPeers)
{
    run_messages({0, 1}, [](Group &group) {
        char error[SHC_HOSTS_ERROR_BYTES];
        for (int peer : {2, -2, SHC_ANY_SOURCE}) {
            EXPECT_EQ(shc_hosts_find_peer(group.hosts, SHC_SEND, &peer, error), SHC_ERR_INVALID);
            EXPECT_NE(std::string(error).find("is not a rank (0 to 1)"), std::string::npos)
                << error;
        }
    });
    Network network(2);
    run_hosts({0, 1}, network, [](Group &group) {
        char error[SHC_HOSTS_ERROR_BYTES];
        int peer = 1 - group.rank;
        EXPECT_EQ(shc_hosts_find_peer(group.hosts, SHC_SEND, &peer, error), SHC_ERR_UNSUPPORTED);
        EXPECT_NE(std::string(error).find("no engine for messages"), std::string::npos) << error;
    });
}

// A rank whose connections have ended: messages with it end, those with others go on.
TEST(HostsMessages, AConnectionEnds)
{
    Network network(2);
    Mesh mesh;
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            if (group.rank == 0) {
                Message received(group, SHC_RECV, 2, 1, Bytes(7, 9));
                EXPECT_EQ(send(group, 3, 1, Bytes(8, 9)), SHC_OK);
                Message sent(group, SHC_SEND, 2, 1, Bytes(100000, 9));
                mesh.cut(2);
                for (Message *message : {&received, &sent}) {
                    EXPECT_EQ(message->wait(), SHC_ERR_PEER_LEFT);
                    EXPECT_NE(message->text.find(
                                  "the connection to rank 2 (host 1) has ended, so it has left the "
                                  "group, or died: Connection closed by peer"),
                              std::string::npos)
                        << message->text;
                }
            }
            if (group.rank == 3) {
                Message received(group, SHC_RECV, 0, 1, Bytes(8, 9));
                EXPECT_EQ(received.wait(), SHC_OK) << received.text;
            }
            barrier(group);
        },
        over(mesh));
}

// A failure elsewhere ends a message that waits, on each rank, with the sentence that stands.
TEST(HostsMessages, AFailureElsewhereIsTold)
{
    const std::string told = "rank 3( \\(.*\\))? aborted the group: enough";
    run_messages(kTwoOfTwo, [&](Group &group) {
        if (group.rank == 3) {
            shc_os_sleep_ns(50 * SHC_NS_PER_MS);
            shc_hosts_abort(group.hosts, "enough");
            return;
        }
        Message received(group, SHC_RECV, group.rank == 2 ? 0 : 2, 1, Bytes(7, 9));
        EXPECT_EQ(received.wait(), SHC_ERR_ABORTED);
        EXPECT_TRUE(has_pattern(received.text, told)) << received.text;
    });
}

TEST(HostsMessages, ACloseEndsThem)
{
    run_messages({0, 1}, [&](Group &group) {
        Message received(group, SHC_RECV, 1 - group.rank, 1, Bytes(7, 9));
        Message sent(group, SHC_SEND, 1 - group.rank, 2, Bytes(100000, 9));
        shc_hosts_close(group.hosts);
        EXPECT_EQ(received.wait(), SHC_ERR_CLOSED);
        EXPECT_EQ(sent.wait(), SHC_ERR_CLOSED);
    });
}

// Frames that no rank sends: the group fails with a sentence, and nothing else happens.
TEST(HostsMessages, FramesThatLie)
{
    using Lie = std::function<void(shc_remote_frame & frame, int32_t & from, uint32_t & magic)>;
    const std::vector<Lie> lies = {
        [](shc_remote_frame &, int32_t &, uint32_t &magic) { magic++; },
        [](shc_remote_frame &, int32_t &from, uint32_t &) { from = 77; },
        [](shc_remote_frame &, int32_t &from, uint32_t &) { from = 1; }, // of the receiver's host
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.kind = 0; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.kind = SHC_REMOTE_KINDS; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.kind = SHC_REMOTE_CTS; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.kind = SHC_REMOTE_NACK; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) {
            frame.kind = SHC_REMOTE_CREDIT;
            frame.number = 5;
        },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.dtype = 1000; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.elem_bytes = 0; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.elem_bytes = 2; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.bytes = 961; },
        [](shc_remote_frame &frame, int32_t &, uint32_t &) { frame.bytes = UINT64_MAX; },
    };
    for (size_t i = 0; i < lies.size(); i++) {
        SCOPED_TRACE(i);
        run_messages(
            {0, 1},
            [&](Group &group) {
                if (group.rank == 0) {
                    (void)send(group, 1, 1, Bytes(8, 1));
                    return;
                }
                Message received(group, SHC_RECV, 0, 1, Bytes(8, 9));
                EXPECT_EQ(received.wait(), SHC_ERR_ABORTED);
                EXPECT_NE(received.text.find("got a frame that no rank sends now"),
                          std::string::npos)
                    << received.text;
                EXPECT_EQ(received.data.values(), Bytes(8, 9));
            },
            [&](int from, int, uint32_t slot, std::vector<char> &bytes) {
                uint32_t magic;
                int32_t sender;
                shc_remote_frame frame;
                if (slot != 0 || from != 0)
                    return;
                memcpy(&magic, bytes.data(), sizeof magic);
                memcpy(&sender, bytes.data() + 4, sizeof sender);
                memcpy(&frame, bytes.data() + 8, sizeof frame);
                lies[i](frame, sender, magic);
                memcpy(bytes.data(), &magic, sizeof magic);
                memcpy(bytes.data() + 4, &sender, sizeof sender);
                memcpy(bytes.data() + 8, &frame, sizeof frame);
            });
    }
}
