// SPDX-License-Identifier: BSD-3-Clause

// Many messages between all ranks at once: sizes from nothing to
// SHMCOLL_STRESS_BYTES (log-uniform), tags, receives from any source. No message is lost, none overtakes,
// all end. The number of messages is SHMCOLL_STRESS_MESSAGES, over all ranks; the seed SHMCOLL_STRESS_SEED.
#include "tests/support/ranks.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <thread>

using namespace shmcoll::test;

namespace
{

constexpr int kTags = 3;         // of messages whose receiver names the sender
constexpr int kAnyTag = kTags;   // of those received from any source
constexpr size_t kAnyBytes = 24; // sender, number, and a check
constexpr size_t kSendsAtOnce = 24;
constexpr size_t kReceivesAtOnce = 2; // posted per sender and tag

uint64_t setting(const char *name, uint64_t preset)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : preset;
}

struct Plan {
    uint64_t seed, messages, most_bytes;
};

// What one rank sends to all others: the same on every rank that asks.
class Sends
{
  public:
    struct Item {
        int to, tag;
        size_t bytes;
        uint64_t number; // of this receiver and tag
    };

    Sends(const Plan &plan, int sender, int world)
        : random_(plan.seed * 1000003 + static_cast<uint64_t>(sender)), world_(world),
          most_(static_cast<double>(plan.most_bytes)),
          numbers_(static_cast<size_t>(world * (kTags + 1)))
    {
    }

    Item next()
    {
        Item item;
        item.to = static_cast<int>(random_() % static_cast<uint64_t>(world_));
        item.tag = static_cast<int>(random_() % (kTags + 1));
        double exponent = static_cast<double>(random_() % 100000) / 100000.0;
        item.bytes = static_cast<size_t>(std::pow(most_ + 1, exponent)) - 1;
        if (item.tag == kAnyTag)
            item.bytes = kAnyBytes;
        item.number = numbers_[static_cast<size_t>(item.to * (kTags + 1) + item.tag)]++;
        return item;
    }

  private:
    std::mt19937_64 random_;
    int world_;
    double most_;
    std::vector<uint64_t> numbers_;
};

unsigned char byte_of(int sender, int tag, uint64_t number, size_t i)
{
    uint64_t x = (static_cast<uint64_t>(sender) * 31 + static_cast<uint64_t>(tag)) * 1000003 +
                 number * 8191 + i * 2654435761u;
    return static_cast<unsigned char>(x >> 13);
}

// All bytes of small messages; of large ones the edges, and one in 509.
template <typename Do>
void each_checked(size_t bytes, const Do &what)
{
    for (size_t i = 0; i < bytes; i += (bytes < 4096 || i < 64 || i + 64 >= bytes) ? 1 : 509)
        what(i);
    for (size_t i = bytes > 4096 ? bytes - 64 : bytes; i < bytes; i++)
        what(i);
}

struct Transfer {
    std::vector<unsigned char> memory;
    shc_request *request = nullptr;
    int peer = 0, tag = 0;
    uint64_t number = 0;
};

bool start(Rank &rank, shc_op_kind kind, Transfer &t)
{
    int64_t size = static_cast<int64_t>(t.memory.size());
    shc_tensor tensor = {t.memory.data(), 1, &size, nullptr};
    shc_op op = {};
    op.kind = kind;
    op.dtype = SHC_UINT8;
    op.peer = t.peer;
    op.tag = t.tag;
    op.input = op.output = {&tensor, 1};
    shc_status status = shc_submit(rank.comm, &op, nullptr, &t.request);
    EXPECT_EQ(status, SHC_OK) << error_text();
    return status == SHC_OK;
}

// One rank's part.
class Talker
{
  public:
    Talker(Rank &rank, const Plan &plan)
        : rank_(rank), plan_(plan), mine_(plan, rank.rank, rank.world),
          each_(plan.messages / static_cast<uint64_t>(rank.world)),
          random_(plan.seed + 77 * static_cast<uint64_t>(rank.rank))
    {
        const auto lanes = static_cast<size_t>(rank.world) * kTags;
        expected_.resize(lanes);
        posted_.resize(lanes);
        numbers_.resize(static_cast<size_t>(rank.world));
        for (int sender = 0; sender < rank.world; sender++) {
            Sends theirs(plan, sender, rank.world);
            for (uint64_t i = 0; i < each_; i++) {
                Sends::Item item = theirs.next();
                if (item.to != rank.rank)
                    continue;
                if (item.tag == kAnyTag)
                    any_left_++;
                else
                    expected_[lane(sender, item.tag)].push_back(item.bytes);
            }
        }
    }

    void talk()
    {
        while (!testing::Test::HasFailure()) {
            bool moved = post_receives() | post_sends() | reap();
            if (sent_ == each_ && sending_.empty() && all_received())
                return;
            if (!moved)
                linger();
        }
    }

  private:
    size_t lane(int sender, int tag) const { return static_cast<size_t>(sender * kTags + tag); }

    bool post_receives()
    {
        bool moved = false;
        for (int sender = 0; sender < rank_.world; sender++)
            for (int tag = 0; tag < kTags; tag++) {
                size_t l = lane(sender, tag);
                while (posted_[l].size() < kReceivesAtOnce && !expected_[l].empty()) {
                    posted_[l].emplace_back();
                    Transfer &t = posted_[l].back();
                    t.memory.assign(expected_[l].front(), 0xee);
                    expected_[l].pop_front();
                    t.peer = sender;
                    t.tag = tag;
                    t.number = received_[{sender, tag}]++;
                    moved = start(rank_, SHC_RECV, t);
                }
            }
        while (any_.size() < 4 && any_left_ > 0) {
            any_left_--;
            any_.emplace_back();
            any_.back().memory.assign(kAnyBytes, 0xee);
            any_.back().peer = SHC_ANY_SOURCE;
            any_.back().tag = kAnyTag;
            moved = start(rank_, SHC_RECV, any_.back());
        }
        return moved;
    }

    bool post_sends()
    {
        bool moved = false;
        while (sending_.size() < kSendsAtOnce && sent_ < each_) {
            Sends::Item item = mine_.next();
            sent_++;
            sending_.emplace_back();
            Transfer &t = sending_.back();
            t.memory.resize(item.bytes);
            t.peer = item.to;
            t.tag = item.tag;
            if (item.tag == kAnyTag) {
                uint64_t words[3] = {static_cast<uint64_t>(rank_.rank), item.number, ~item.number};
                memcpy(t.memory.data(), words, sizeof words);
            } else {
                each_checked(item.bytes, [&](size_t i) {
                    t.memory[i] = byte_of(rank_.rank, item.tag, item.number, i);
                });
            }
            moved = start(rank_, SHC_SEND, t);
        }
        return moved;
    }

    bool is_over(Transfer &t)
    {
        shc_status status;
        if (!t.request || !shc_request_done(t.request, &status))
            return false;
        EXPECT_EQ(status, SHC_OK) << shc_request_error(t.request);
        return true;
    }

    void check(const Transfer &t)
    {
        each_checked(t.memory.size(), [&](size_t i) {
            ASSERT_EQ(t.memory[i], byte_of(t.peer, t.tag, t.number, i))
                << "byte " << i << " of " << t.memory.size() << ", from rank " << t.peer << ", tag "
                << t.tag << ", number " << t.number << ", seed " << plan_.seed;
        });
    }

    void check_any(const Transfer &t)
    {
        uint64_t words[3];
        memcpy(words, t.memory.data(), sizeof words);
        const int source = shc_request_source(t.request);
        ASSERT_EQ(words[0], static_cast<uint64_t>(source)) << "seed " << plan_.seed;
        ASSERT_EQ(words[2], ~words[1]) << "seed " << plan_.seed;
        uint64_t &number = numbers_[static_cast<size_t>(source)];
        ASSERT_EQ(words[1], number) << "out of order, seed " << plan_.seed;
        number++;
    }

    bool reap()
    {
        bool moved = false;
        for (auto &row : posted_)
            while (!row.empty() && is_over(row.front())) {
                check(row.front());
                drop(row);
                moved = true;
            }
        while (!any_.empty() && is_over(any_.front())) {
            check_any(any_.front());
            drop(any_);
            moved = true;
        }
        for (auto t = sending_.begin(); t != sending_.end();) {
            bool over = is_over(*t);
            if (over)
                shc_request_release(t->request);
            t = over ? sending_.erase(t) : t + 1;
            moved |= over;
        }
        return moved;
    }

    void drop(std::deque<Transfer> &row)
    {
        shc_request_release(row.front().request);
        row.pop_front();
    }

    bool all_received() const
    {
        for (const auto &row : posted_)
            if (!row.empty())
                return false;
        for (const auto &row : expected_)
            if (!row.empty())
                return false;
        return any_.empty() && any_left_ == 0;
    }

    // Waits a little for something, or leaves it to the progress thread.
    void linger()
    {
        Transfer *t = !sending_.empty() ? &sending_.front() : nullptr;
        for (auto &row : posted_)
            if (!row.empty() && (!t || random_() % 2))
                t = &row.front();
        if (!t || random_() % 3 == 0) {
            std::this_thread::yield();
            return;
        }
        shc_status status = shc_request_wait(t->request, 1000000);
        EXPECT_TRUE(status == SHC_OK || status == SHC_ERR_TIMEOUT) << error_text();
    }

    Rank &rank_;
    Plan plan_;
    Sends mine_;
    uint64_t each_, sent_ = 0, any_left_ = 0;
    std::mt19937_64 random_;
    std::vector<std::deque<size_t>> expected_;
    std::vector<std::deque<Transfer>> posted_;
    std::deque<Transfer> any_, sending_;
    std::vector<uint64_t> numbers_;
    std::map<std::pair<int, int>, uint64_t> received_;
};

void barrier(Rank &rank)
{
    shc_op op = {};
    op.kind = SHC_BARRIER;
    EXPECT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

// As if 2^32 messages had been sent, and buffers returned, so far, all but a few. pre: none has been.
void begin_near_wrap(Rank &rank)
{
    const uint32_t near = UINT32_MAX - 20;
    shc_p2p &p2p = rank.comm->p2p;
    p2p.pairs.chunks = near;
    for (int peer = 0; peer < rank.world; peer++) {
        shc_pair &pair = p2p.pairs.pairs[peer];
        shc_ack_shm *ack = shc_pair_ack(&p2p.pairs, pair.told);
        p2p.peers[peer].messages = p2p.peers[peer].unasked_end = near;
        pair.credit_used = pair.credit_back = pair.aside_seen = pair.aside_told = near;
        shc_a32_store_release(&ack->credit, near);
        shc_a32_store_release(&ack->aside, near);
        for (shc_a32 &count : ack->eager)
            shc_a32_store_release(&count, near);
    }
    barrier(rank);
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

class Stress : public testing::TestWithParam<Case>
{
};

void talk(const Case &c, void (*begin)(Rank &rank))
{
    const Plan plan = {setting("SHMCOLL_STRESS_SEED", 1),
                       setting("SHMCOLL_STRESS_MESSAGES", c.world == 8 ? 10000 : 3000),
                       setting("SHMCOLL_STRESS_BYTES", c.buffers ? 256 << 10 : 8 << 10)};
    Options options;
    options.knobs.lines_only = !c.buffers;
    options.limit_s = static_cast<int>(setting("SHMCOLL_STRESS_LIMIT_S", 100));
    options.timeout_ns = static_cast<uint64_t>(options.limit_s) * SHC_NS_PER_S;
    run_ranks(
        c.mode, c.world,
        [&](Rank &rank) {
            if (begin)
                begin(rank);
            Talker talker(rank, plan);
            talker.talk();
            barrier(rank);
        },
        options);
}

TEST_P(Stress, LosesNothingAndKeepsOrder)
{
    talk(GetParam(), nullptr);
}

TEST_P(Stress, LosesNothingWhenCountersWrap)
{
    talk(GetParam(), begin_near_wrap);
}

std::vector<Case> cases()
{
    std::vector<Case> all;
    for (Mode mode : all_modes())
        for (int world : {2, 4, 8})
            all.push_back({mode, world, true});
    for (Mode mode : all_modes())
        all.push_back({mode, 4, false});
    if (all_modes().front() == Mode::kProcesses)     // under no sanitizer
        all.push_back({Mode::kProcesses, 64, true}); // one line per pair
    return all;
}

std::string name_of(const testing::TestParamInfo<Case> &info)
{
    return mode_name(info.param.mode) + std::to_string(info.param.world) +
           (info.param.buffers ? "" : "LinesOnly");
}

INSTANTIATE_TEST_SUITE_P(All, Stress, testing::ValuesIn(cases()), name_of);

} // namespace
