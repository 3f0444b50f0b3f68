// SPDX-License-Identifier: BSD-3-Clause

// A peer that lies consistently: it runs the protocol, and changes
// what it says of a valid call, before or after the others have looked. Whatever it writes, no other rank
// stores outside its tensors, crashes, or takes a lie for a result. Races are the point, so this is no
// program for the thread sanitizer.
#include "tests/support/guarded.h"
#include "tests/support/lies.h"
#include "tests/support/ranks.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <thread>

extern "C" {
#include "shm/proto/member.h"
}

using namespace shmcoll::test;

namespace
{

using Random = std::mt19937_64;

size_t pick(Random &random, size_t count)
{
    return random() % count;
}

double seconds()
{
    const char *wish = getenv("SHMCOLL_LIES_SECONDS");
#if defined(__SANITIZE_ADDRESS__)
    const double usual = 5;
#else
    const double usual = 1;
#endif
    return wish ? atof(wish) / 2 : usual; // two tests share it
}

const uint64_t kTimeoutNs = 60 * SHC_NS_PER_MS;

// ---- calls ----

// One call, the same on all ranks: what each of them gives follows from that.
struct Plan {
    shc_op_kind kind;
    uint32_t elem; // bytes
    int root;
    std::vector<size_t> of; // elements of block (giver, taker), world * world
    uint64_t entries;       // sparse
};

Plan draw_plan(Random &random, int world)
{
    static const shc_op_kind kinds[] = {SHC_ALL_GATHER_UNEVEN,
                                        SHC_ALL_GATHER_UNEVEN,
                                        SHC_REDUCE_SCATTER_UNEVEN,
                                        SHC_REDUCE_SCATTER_UNEVEN,
                                        SHC_ALL_TO_ALL,
                                        SHC_ALL_TO_ALL,
                                        SHC_ALL_TO_ALL,
                                        SHC_ALL_TO_ALL,
                                        SHC_ALL_REDUCE_SPARSE,
                                        SHC_ALL_REDUCE_SPARSE,
                                        SHC_ALL_REDUCE_SPARSE,
                                        SHC_SCATTER,
                                        SHC_SCATTER,
                                        SHC_BROADCAST,
                                        SHC_ALL_REDUCE,
                                        SHC_REDUCE,
                                        SHC_ALL_GATHER,
                                        SHC_GATHER,
                                        SHC_REDUCE_SCATTER,
                                        SHC_BARRIER};
    static const size_t counts[] = {1, 2, 5, 40, 250, 700, 2000, 9000, 40000, 150000};
    Plan plan = {kinds[pick(random, std::size(kinds))],
                 random() % 2 ? 4u : 1u,
                 static_cast<int>(pick(random, static_cast<size_t>(world))),
                 {},
                 0};
    const size_t most = counts[pick(random, std::size(counts))];
    const bool even = plan.kind != SHC_ALL_TO_ALL || random() % 4 == 0;
    for (int i = 0; i < world * world; i++)
        plan.of.push_back(even ? most : random() % (most + 1));
    if (plan.kind == SHC_ALL_GATHER_UNEVEN || plan.kind == SHC_REDUCE_SCATTER_UNEVEN)
        for (int r = 0; r < world; r++)
            plan.of[static_cast<size_t>(r)] = random() % (most + 1);
    plan.entries = most % 5000;
    return plan;
}

bool reduces(shc_op_kind kind)
{
    return kind == SHC_ALL_REDUCE || kind == SHC_REDUCE || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_REDUCE_SCATTER_UNEVEN;
}

// A rank's memory for one call, each tensor between zones that nothing may touch.
class Play
{
  public:
    Play(const Plan &plan, int rank, int world) : plan_(plan), rank_(rank), world_(world)
    {
        op_.kind = plan.kind;
        op_.dtype = plan.elem == 4 ? SHC_FLOAT32 : SHC_UINT8;
        op_.redop = SHC_SUM;
        op_.root = plan.root;
        if (plan.kind == SHC_ALL_REDUCE_SPARSE)
            fill_sparse();
        else if (plan.kind != SHC_BARRIER)
            fill_tensors();
        op_.input = in_.view();
        op_.output = out_.view();
    }
    Play(const Play &) = delete;
    ~Play()
    {
        free(sparse_.sum_indices);
        free(sparse_.sum_values);
    }

    shc_status run(shc_comm *comm) { return shc_run(comm, &op_); }

    // Nothing around the tensors, and nothing of the input, has changed.
    void expect_untouched() const
    {
        in_.expect_zones();
        out_.expect_zones();
    }

    // After a success, only results that a liar cannot have changed: it wrote to its own memory alone.
    void expect_true(int liar) const
    {
        if (plan_.kind == SHC_ALL_REDUCE_SPARSE)
            expect_sorted();
        for (int giver = 0; giver < world_; giver++)
            if (giver != liar && !reduces(plan_.kind))
                expect_block(giver);
    }

  private:
    void fill_tensors()
    {
        const bool is_root = rank_ == plan_.root;
        switch (plan_.kind) {
        case SHC_BROADCAST:
            is_root ? give(0) : take(0);
            break;
        case SHC_ALL_REDUCE:
        case SHC_REDUCE:
            give(0);
            if (is_root || plan_.kind == SHC_ALL_REDUCE)
                take(0);
            break;
        case SHC_ALL_GATHER:
        case SHC_GATHER:
            give(0);
            for (int r = 0; r < world_ && (is_root || plan_.kind == SHC_ALL_GATHER); r++)
                take(0);
            break;
        case SHC_SCATTER:
            for (int r = 0; r < world_ && is_root; r++)
                give(0, r);
            take(0);
            break;
        case SHC_REDUCE_SCATTER:
            for (int r = 0; r < world_; r++)
                give(0);
            take(0);
            break;
        case SHC_ALL_GATHER_UNEVEN:
            give(rank_);
            for (int r = 0; r < world_; r++)
                take(r);
            break;
        case SHC_REDUCE_SCATTER_UNEVEN:
            for (int r = 0; r < world_; r++)
                give(r);
            take(rank_);
            break;
        default:
            for (int r = 0; r < world_; r++) {
                give(rank_ * world_ + r);
                take(r * world_ + rank_);
            }
        }
    }

    void give(int of, int salt = 0)
    {
        const size_t count = plan_.of[static_cast<size_t>(of)];
        in_.add(count, plan_.elem, rank_ * 37 + salt * 11 + 1);
    }
    void take(int of) { out_.add(plan_.of[static_cast<size_t>(of)], plan_.elem, -1); }

    void fill_sparse()
    {
        rows_ = 50000;
        sizes_[0] = rows_;
        sizes_[1] = 2;
        indices_.resize(plan_.entries + 1);
        values_.resize(2 * plan_.entries + 2, 1.f);
        for (size_t i = 0; i < plan_.entries; i++)
            indices_[i] = static_cast<int64_t>(i * 9 + static_cast<size_t>(rank_)) % rows_;
        index_sizes_[0] = 1;
        index_sizes_[1] = value_sizes_[0] = static_cast<int64_t>(plan_.entries);
        value_sizes_[1] = 2;
        sparse_.ndim = 2;
        sparse_.sparse_ndim = 1;
        sparse_.sizes = sizes_;
        sparse_.count = plan_.entries;
        sparse_.indices = {indices_.data(), 2, index_sizes_, nullptr};
        sparse_.values = {values_.data(), 2, value_sizes_, nullptr};
        op_.dtype = SHC_FLOAT32;
        op_.sparse = &sparse_;
    }

    // Each place once, in order, and inside the tensor.
    void expect_sorted() const
    {
        for (uint64_t i = 0; i < sparse_.sum_count; i++) {
            ASSERT_GE(sparse_.sum_indices[i], i ? sparse_.sum_indices[i - 1] + 1 : 0);
            ASSERT_LT(sparse_.sum_indices[i], rows_);
        }
    }

    void expect_block(int giver) const
    {
        const bool is_root = rank_ == plan_.root;
        switch (plan_.kind) {
        case SHC_BROADCAST:
            if (!is_root && giver == plan_.root)
                out_.expect(0, giver * 37 + 1);
            break;
        case SHC_SCATTER:
            if (giver == plan_.root)
                out_.expect(0, giver * 37 + rank_ * 11 + 1);
            break;
        case SHC_GATHER:
            if (!is_root)
                break;
            out_.expect(static_cast<size_t>(giver), giver * 37 + 1);
            break;
        case SHC_ALL_GATHER:
        case SHC_ALL_GATHER_UNEVEN:
        case SHC_ALL_TO_ALL:
            out_.expect(static_cast<size_t>(giver), giver * 37 + 1);
            break;
        default:
            break;
        }
    }

    const Plan &plan_;
    const int rank_, world_;
    shc_op op_ = {};
    GuardedList in_, out_;
    int64_t rows_ = 0, sizes_[2] = {}, index_sizes_[2] = {}, value_sizes_[2] = {};
    std::vector<int64_t> indices_;
    std::vector<float> values_;
    shc_sparse sparse_ = {};
};

struct Tally {
    std::atomic<int> right{0}, failed{0};
};

// A slow machine runs until some lies have been told in vain, and some found.
bool goes_on(const Tally &tally, uint64_t until_ns)
{
    return shc_clock_ns() < until_ns || tally.right == 0 || tally.failed == 0;
}

// ---- collectives ----

struct Round {
    int world, liar;
    bool everywhere; // it writes to the others' memory, too
    bool arena;
    std::vector<Plan> plans;
};

Round draw_round(Random &random)
{
    Round round;
    round.world = 2 + static_cast<int>(pick(random, 3));
    round.liar = static_cast<int>(pick(random, static_cast<size_t>(round.world)));
    round.everywhere = random() % 2;
    round.arena = random() % 4;
    const size_t calls = 1 + pick(random, 6);
    const Plan one = draw_plan(random, round.world);
    const bool same = random() % 2;
    for (size_t i = 0; i < calls; i++)
        round.plans.push_back(same ? one : draw_plan(random, round.world));
    return round;
}

void play(Rank &rank, const Round &round, Tally &tally)
{
    for (const Plan &plan : round.plans) {
        Play play(plan, rank.rank, round.world);
        const shc_status status = play.run(rank.comm);
        play.expect_untouched();
        (status == SHC_OK ? tally.right : tally.failed)++;
        if (status != SHC_OK)
            return;
        if (!round.everywhere && rank.rank != round.liar && round.world > 2)
            play.expect_true(
                round.liar); // two ranks' slots change hands: none belongs to one of them
    }
}

// The group is made without lies; then the liar's second thread tells them as long as any rank plays.
void body_of(Rank &rank, const Round &round, uint64_t seed, std::atomic<int> &there, Tally &tally)
{
    ASSERT_EQ(rank.make_group(&rank.comm), SHC_OK) << error_text();
    shc_comm_set_timeout(rank.comm, kTimeoutNs);
    SCOPED_TRACE("SHMCOLL_LIES_SEED=" + std::to_string(seed));
    std::atomic<bool> over{false};
    std::thread liar;
    for (there++; there < round.world;)
        std::this_thread::yield();
    if (rank.rank == round.liar)
        liar = std::thread(
            [&] { tell_lies(rank.comm, Lies::kOfCalls, round.everywhere, seed, over); });
    play(rank, round, tally);
    for (there++; there < 2 * round.world;)
        std::this_thread::yield();
    over = true;
    if (liar.joinable())
        liar.join();
}

Options patient()
{
    Options options;
    options.make_group = false;
    options.tuning = "scatter.single_copy_from=1";
    return options;
}

TEST(PeerLies, InCollectivesHarmNobody)
{
    const uint64_t until_ns = shc_clock_ns() + static_cast<uint64_t>(seconds() * 1e9);
    Tally tally;
    uint64_t seed = first_seed();
    int rounds = 0;
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    for (; goes_on(tally, until_ns) && !HasFailure(); seed++, rounds++) {
        Random random(seed);
        const Round round = draw_round(random);
        std::atomic<int> there{0};
        Options options = patient();
        options.knobs.no_arena = !round.arena;
        note_seed(seed);
        run_ranks(
            Mode::kOwnMapping, round.world,
            [&](Rank &rank) { body_of(rank, round, seed, there, tally); }, options);
    }
    printf("%d rounds: %d calls right, %d failed\n", rounds, tally.right.load(),
           tally.failed.load());
}

// ---- messages ----

// Lines of a peer that sends what no rank would, one after the other, each released as the protocol has it.
// Their fields are those of possible messages: types and sizes for which receives wait, numbers that are
// expected.
class Forger
{
  public:
    Forger(Rank &rank, int victim, uint64_t seed)
        : p2p_(rank.comm->p2p), victim_(victim), random_(seed)
    {
    }

    void post()
    {
        shc_p2p_lock(&p2p_);
        if (!shc_group_failed(p2p_.env.seat))
            post_locked();
        shc_pairs_ring(&p2p_.pairs);
        shc_p2p_unlock(&p2p_);
    }

  private:
    void post_locked()
    {
        static const size_t sizes[] = {0,     1,     24,    64,     88,     4096,
                                       16384, 20000, 65536, 131072, 300000, 1u << 20};
        shc_place place = {SHC_IN_LINE, 0};
        if (random_() % 4 == 0)
            place = shc_hand_off_lend(&p2p_.pairs, victim_, 64);
        if (place.memory == SHC_IN_LINE && !shc_pair_draft(&p2p_.pairs, victim_))
            return;
        shc_line_shm *line = shc_pair_line_for(&p2p_.pairs, victim_, place);
        if (random_() % 3 == 0)
            bytes_ = sizes[random_() % std::size(sizes)];
        line->head.kind = static_cast<uint8_t>(kind());
        line->head.dtype = static_cast<uint8_t>(SHC_UINT8 + (random_() % 16 ? 0 : random_()));
        line->head.elem_bytes = random_() % 16 ? 1 : static_cast<uint8_t>(random_() % 9);
        line->head.tag = static_cast<int32_t>(random_() % 2);
        line->head.dtype_tag = 0;
        line->head.mode = static_cast<uint8_t>(random_() % 4);
        line->head.asks = random_() % 2;
        const bool chunk = line->head.kind == SHC_FRAME_MORE;
        if (!chunk || random_() % 8 == 0)
            last_ = some_place(place);
        else if (last_.memory == SHC_IN_POOL)
            last_.index = next_of_pool();
        line->head.place = last_;
        if (!chunk)
            moved_ = 0;
        line->head.message = random_() % 8 ? message_ : static_cast<uint32_t>(random_() % 4);
        line->head.piece = static_cast<uint32_t>(piece(line->head.kind));
        line->head.bytes = chunk ? (random_() % 8 ? moved_ : random_() % (bytes_ + 2)) : bytes_;
        moved_ += line->head.piece;
        if (line->head.kind == SHC_FRAME_EAGER || moved_ >= bytes_)
            message_++;
        shc_pair_post(&p2p_.pairs, victim_, line, place);
    }
    shc_frame kind()
    {
        // The beginning of a message is mostly followed by its continuation.
        static const shc_frame all[] = {SHC_FRAME_EAGER, SHC_FRAME_FIRST, SHC_FRAME_FIRST,
                                        SHC_FRAME_CTS,   SHC_FRAME_NACK,  SHC_FRAME_MORE,
                                        SHC_FRAME_MORE,  SHC_FRAME_MORE,  SHC_FRAME_EAGER};
        return all[random_() % std::size(all)];
    }
    // The one that the victim would read next, if it has read all.
    uint8_t next_of_pool()
    {
        return static_cast<uint8_t>(p2p_.pairs.pairs[victim_].pool_lent++ % SHC_POOL_BUFFERS);
    }
    shc_place some_place(shc_place lent)
    {
        if (lent.memory == SHC_IN_HAND_OFF && random_() % 16)
            return lent;
        const auto index = static_cast<uint8_t>(random_() % 2);
        switch (random_() % 6) {
        case 0:
        case 1:
            return {SHC_IN_LINE, 0};
        case 2:
            return {SHC_IN_EAGER, static_cast<uint8_t>(random_() % SHC_EAGER_BUFFERS)};
        case 3:
            return {SHC_IN_LONG_HAND_OFF, index};
        case 4:
            return {SHC_IN_POOL, next_of_pool()};
        default:
            return {static_cast<uint8_t>(random_() % (SHC_MEMORIES + 1)),
                    static_cast<uint8_t>(random_())};
        }
    }
    size_t piece(uint8_t kind)
    {
        if (kind == SHC_FRAME_EAGER && random_() % 8)
            return bytes_;
        switch (random_() % 6) {
        case 0:
            return 0;
        case 1:
            return bytes_ - moved_;
        case 2:
            return bytes_ / 2;
        case 3:
            return random_() % 89;
        case 4:
            return random_() % 65537;
        default:
            return random_() % (bytes_ + 1);
        }
    }

    shc_p2p &p2p_;
    const int victim_;
    Random random_;
    shc_place last_ = {SHC_IN_LINE, 0};
    size_t bytes_ = 64, moved_ = 0;
    uint32_t message_ = 0;
};

// Sends and receives of the others, some at once, some submitted.
void pass_messages(Rank &rank, int liar, uint64_t seed, Tally &tally)
{
    static const size_t sizes[] = {0,     1,     24,    64,     88,     4096,
                                   16384, 20000, 65536, 131072, 300000, 1u << 20};
    Random random(seed * 31 + static_cast<unsigned>(rank.rank));
    std::vector<std::unique_ptr<GuardedList>> memory;
    std::vector<shc_request *> requests;
    for (size_t calls = 1 + pick(random, 6); calls > 0; calls--) {
        memory.push_back(std::make_unique<GuardedList>());
        const bool sends = random() % 3 == 0;
        memory.back()->add(sizes[pick(random, std::size(sizes))], 1, sends ? 3 : -1);
        shc_op op = {};
        op.kind = sends ? SHC_SEND : SHC_RECV;
        op.dtype = SHC_UINT8;
        op.peer = sends || random() % 4 ? liar : SHC_ANY_SOURCE;
        op.tag = static_cast<int32_t>(random() % 2);
        op.input = op.output = memory.back()->view();
        if (random() % 2) {
            shc_request *request = nullptr;
            if (shc_submit(rank.comm, &op, nullptr, &request) == SHC_OK)
                requests.push_back(request);
        } else {
            (shc_run(rank.comm, &op) == SHC_OK ? tally.right : tally.failed)++;
        }
    }
    for (shc_request *request : requests) {
        (shc_request_wait(request, UINT64_MAX) == SHC_OK ? tally.right : tally.failed)++;
        shc_request_release(request);
    }
    for (const auto &one : memory)
        one->expect_zones();
}

// The liar forges lines, or sends as a rank does while its second thread changes what it says.
void be_peer(Rank &rank, int world, int liar, uint64_t seed, std::atomic<int> &there, Tally &tally)
{
    SCOPED_TRACE("SHMCOLL_LIES_SEED=" + std::to_string(seed));
    ASSERT_EQ(rank.make_group(&rank.comm), SHC_OK) << error_text();
    shc_comm_set_timeout(rank.comm, kTimeoutNs);
    for (there++; there < world;)
        std::this_thread::yield();
    std::atomic<bool> over{false};
    if (rank.rank != liar) {
        pass_messages(rank, liar, seed, tally);
    } else {
        const bool forges = seed % 3 != 0;
        std::thread second([&] { tell_lies(rank.comm, Lies::kOfMessages, seed % 2, seed, over); });
        Forger forger(rank, (liar + 1) % world, seed);
        for (int lines = 0; forges && there < 2 * world - 1; lines++) {
            if (lines < 200)
                forger.post();
            else
                std::this_thread::yield();
        }
        while (!forges && there < 2 * world - 1 && !shc_group_failed(&rank.comm->seat))
            pass_messages(rank, (liar + 1) % world, seed + 7, tally);
        over = true;
        second.join();
    }
    for (there++; there < 2 * world;)
        std::this_thread::yield();
}

TEST(PeerLies, InMessagesHarmNobody)
{
    const uint64_t until_ns = shc_clock_ns() + static_cast<uint64_t>(seconds() * 1e9);
    Tally tally;
    uint64_t seed = first_seed();
    int rounds = 0;
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    for (; goes_on(tally, until_ns) && !HasFailure(); seed++, rounds++) {
        const int world = seed % 4 == 0 ? 3 : 2, liar = static_cast<int>(seed / 4 % 2);
        std::atomic<int> there{0};
        note_seed(seed);
        run_ranks(
            Mode::kOwnMapping, world,
            [&](Rank &rank) { be_peer(rank, world, liar, seed, there, tally); }, patient());
    }
    printf("%d rounds: %d messages right, %d failed\n", rounds, tally.right.load(),
           tally.failed.load());
}

} // namespace
