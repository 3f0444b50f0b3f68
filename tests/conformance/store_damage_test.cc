// SPDX-License-Identifier: BSD-3-Clause
// A store that anybody may write to. Groups are made over one whose answers are damaged in every way that
// we could think of; a rank has a group in the end, or an error with a name, and never later than its
// time-out allows. SHMCOLL_STORE_FUZZ: how many (make fuzz-store: 20000). docs/internals/protocol.md, RDV-25.
#include "tests/support/ranks.h"

extern "C" {
#include "shm/comm/record.h"
}

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using namespace shmcoll::test;
using Clock = std::chrono::steady_clock;

namespace
{

const int kTimeoutMs = 150;
const int kSlackMs = 3000; // for a machine that is busy: a hang lasts for ever

// What a making left in its store, for later ones.
using Values = std::map<std::string, std::string>;

struct Tally {
    std::map<std::string, long> outcomes;
    long damaged = 0, worst_ms = 0;
};

// A store of one making, whose answers are damaged now and then.
class HostileStore
{
  public:
    HostileStore(uint64_t seed, const Values &old, bool kept)
        : random_(seed), old_(old), kept_(kept), odds_(std::array{0.02, 0.1, 0.4}[seed % 3])
    {
    }
    shc_store view();
    const Values &values() const { return values_; }
    long damaged() const { return damaged_; }
    int references() const { return references_.load(); }

  private:
    static HostileStore &of(void *ctx) { return *static_cast<HostileStore *>(ctx); }
    size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
    bool strikes() { return std::uniform_real_distribution<>(0, 1)(random_) < odds_; }
    std::string damage(const std::string &key, const std::string &value);
    std::string noise(size_t bytes);
    std::string lie(const std::string &key, const std::string &value);
    int answer(const std::string &key, const std::string &value, void *to, size_t capacity,
               size_t *bytes);
    int get(const std::string &key, void *to, size_t capacity, size_t *bytes);
    int putFirst(const std::string &key, std::string value, void *to, size_t capacity,
                 size_t *bytes);
    int add(const std::string &key, int64_t delta, int64_t *sum);

    std::mutex lock_;
    std::mt19937_64 random_;
    const Values &old_;
    const bool kept_; // on a thread of the library
    const double odds_;
    Values values_;
    std::map<std::string, int64_t> sums_;
    long damaged_ = 0;
    std::atomic<int> references_{0};
};

std::string HostileStore::noise(size_t bytes)
{
    std::string text(bytes, '\0');
    for (char &byte : text)
        byte = static_cast<char>(random_());
    return text;
}

template <class Record>
std::string packed(const Record &record)
{
    union shc_record all = {};
    memcpy(&all, &record, sizeof record);
    return {reinterpret_cast<const char *>(&all), shc_record_bytes(&all)};
}

// A record that another rank could have written, and did not. An absent key gets one, too.
std::string HostileStore::lie(const std::string &key, const std::string &value)
{
    union shc_record record = {};
    memcpy(&record, value.data(), std::min(value.size(), sizeof record));
    if (value.empty()) {
        record.head.magic = SHC_LAYOUT_MAGIC;
        record.head.layout_version = SHC_LAYOUT_VERSION;
        record.head.list = strtoull(key.c_str(), nullptr, 16);
        const size_t slash = key.find('/');
        record.head.generation = slash == std::string::npos ? 1 : atoll(key.c_str() + slash + 1);
        record.head.attempt = key.back() == 'd' ? 0 : 1;
        record.head.kind = key[0] == 'h'       ? SHC_RECORD_JOIN
                           : key.back() == 'o' ? SHC_RECORD_OFFER
                                               : SHC_RECORD_VERDICT;
        if (record.head.kind == SHC_RECORD_JOIN) {
            record.join.world_size = 2;
            record.join.ranks[1] = 1;
            record.head.rank = atoi(key.c_str() + 2) & 1;
            record.head.list = shc_member_list_hash(record.join.ranks, 2);
        }
        if (shc_os_process_self(&record.join.process) != 0)
            return value;
    }
    const shc_os_process self = record.join.process;
    switch (record.head.kind) {
    case SHC_RECORD_JOIN:
        if (record.join.world_size < 1 || record.join.world_size > SHC_MAX_WORLD)
            record.join.world_size = 2; // damaged before
        switch (below(4)) {
        case 0:
            record.join.process.pid = static_cast<int32_t>(below(1u << 22)) + 1;
            break;
        case 1:
            record.join.process.start_time++;
            break;
        case 2:
            record.head.generation += static_cast<int64_t>(below(3)) - 1;
            break;
        default:
            if (record.join.world_size > 1)
                std::swap(record.join.ranks[0], record.join.ranks[1]);
            record.head.rank ^= 1;
            record.head.list = shc_member_list_hash(record.join.ranks, record.join.world_size);
        }
        return packed(record.join);
    case SHC_RECORD_OFFER: {
        shc_segment_name &name = record.invitation.name;
        if (value.empty()) {
            name.creator = self;
            name.form = 1 + static_cast<uint32_t>(below(3));
        }
        switch (below(5)) {
        case 0:
            name.creator_fd = static_cast<int32_t>(below(64));
            break;
        case 1: { // a file that is here
            struct stat st = {};
            name.creator_fd = static_cast<int32_t>(below(16));
            // By path: other threads open and close these descriptors, which TSan would call a race.
            const std::string link = "/proc/self/fd/" + std::to_string(name.creator_fd);
            if (stat(link.c_str(), &st) == 0)
                name.file = {st.st_dev, st.st_ino};
            break;
        }
        case 2:
            name.bytes += static_cast<uint64_t>(below(3)) * 4096 - 4096;
            break;
        case 3:
            name.nonce[0] ^= 1;
            break;
        default:
            name.form = static_cast<uint32_t>(below(6));
            snprintf(name.path, sizeof name.path, "/dev/shm/shmcoll-%016llx",
                     static_cast<unsigned long long>(random_()));
        }
        return packed(record.invitation);
    }
    default:
        record.verdict.status = below(2) ? 0 : static_cast<uint32_t>(below(SHC_STATUS_COUNT + 2));
        record.head.rank = below(2) ? 0 : record.head.rank;
        memset(record.verdict.text, below(2) ? 'x' : 0, sizeof record.verdict.text - below(2));
        return packed(record.verdict);
    }
}

std::string HostileStore::damage(const std::string &key, const std::string &value)
{
    damaged_++;
    std::string text = value;
    const Values &others = below(2) && !old_.empty() ? old_ : values_;
    switch (below(8)) {
    case 0:
        return noise(below(2500));
    case 1:
        return text.substr(0, text.empty() ? 0 : below(text.size()));
    case 2:
        return text + noise(1 + below(2500));
    case 3: // a value of another key
        return others.empty() ? text : std::next(others.begin(), below(others.size()))->second;
    case 4: { // of this key, in another making
        auto found = old_.find(key);
        return found == old_.end() ? text : found->second;
    }
    case 5:
        for (size_t flips = 1 + below(3); flips > 0 && !text.empty(); flips--)
            text[below(text.size())] ^= static_cast<char>(1u << below(8));
        return text;
    default:
        return lie(key, value);
    }
}

int HostileStore::answer(const std::string &key, const std::string &value, void *to,
                         size_t capacity, size_t *bytes)
{
    const std::string told = strikes() ? damage(key, value) : value;
    if (told.empty() && value.empty())
        return ENOENT;
    if (strikes() && strikes())
        return below(2) ? EIO : ENOENT;
    if (told.size() > capacity)
        return EMSGSIZE;
    memcpy(to, told.data(), told.size());
    *bytes = told.size();
    return 0;
}

int HostileStore::get(const std::string &key, void *to, size_t capacity, size_t *bytes)
{
    std::lock_guard<std::mutex> guard(lock_);
    auto found = values_.find(key);
    return answer(key, found == values_.end() ? "" : found->second, to, capacity, bytes);
}

int HostileStore::putFirst(const std::string &key, std::string value, void *to, size_t capacity,
                           size_t *bytes)
{
    std::lock_guard<std::mutex> guard(lock_);
    auto stored = values_.emplace(key, std::move(value)).first;
    return answer(key, stored->second, to, capacity, bytes);
}

int HostileStore::add(const std::string &key, int64_t delta, int64_t *sum)
{
    std::lock_guard<std::mutex> guard(lock_);
    *sum = sums_[key] += delta;
    if (strikes()) {
        damaged_++;
        *sum = std::array<int64_t, 5>{0, -1, INT64_MAX, *sum + 1,
                                      static_cast<int64_t>(random_())}[below(5)];
    }
    return 0;
}

shc_store HostileStore::view()
{
    shc_store view = {};
    view.ctx = this;
    view.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        HostileStore &self = of(ctx);
        std::lock_guard<std::mutex> guard(self.lock_);
        std::string text(static_cast<const char *>(value), bytes);
        self.values_[key] = self.strikes() ? self.damage(key, text) : text; // for all, and for good
        return 0;
    };
    view.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        return of(ctx).get(key, value, capacity, bytes);
    };
    view.check = [](void *ctx, const char *const *keys, size_t count) {
        HostileStore &self = of(ctx);
        std::lock_guard<std::mutex> guard(self.lock_);
        for (size_t i = 0; i < count; i++)
            if ((self.values_.count(keys[i]) == 0) != self.strikes())
                return ENOENT;
        return 0;
    };
    view.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        return of(ctx).add(key, delta, value);
    };
    view.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                        size_t capacity, size_t *now_bytes) {
        return of(ctx).putFirst(key, std::string(static_cast<const char *>(value), bytes), now,
                                capacity, now_bytes);
    };
    if (kept_) {
        view.retain = [](void *ctx) { of(ctx).references_++; };
        view.release = [](void *ctx) { of(ctx).references_--; };
    }
    return view;
}

// What a rank has in the end. Its group, if it has one, must end a barrier in time, too.
std::string make_and_use(int rank, int world, const shc_store &store)
{
    shc_comm_config config = {};
    config.rank = rank;
    config.world_size = world;
    config.name = "damaged";
    config.timeout_ns = static_cast<uint64_t>(kTimeoutMs) * SHC_NS_PER_MS;
    config.store = store;
    shc_comm *comm = nullptr;
    shc_status status = shc_comm_create(&config, &comm);
    if (status != SHC_OK)
        return shc_status_name(status);
    const shc_op op = op_of(SHC_BARRIER);
    status = shc_run(comm, &op);
    shc_comm_free(comm);
    return std::string("made, then ") + shc_status_name(status);
}

void make_one(uint64_t seed, Values &old, Tally &tally)
{
    const int world = 2 + static_cast<int>(seed % 3);
    HostileStore hostile(seed, old, seed % 4 != 0);
    std::vector<std::string> outcomes(static_cast<size_t>(world));
    const auto begin = Clock::now();
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; r++)
        ranks.emplace_back(
            [&, r] { outcomes[static_cast<size_t>(r)] = make_and_use(r, world, hostile.view()); });
    for (std::thread &rank : ranks)
        rank.join();
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
    EXPECT_LT(ms, 2 * kTimeoutMs + kSlackMs) << "seed " << seed;
    tally.worst_ms = std::max<long>(tally.worst_ms, ms);
    for (const std::string &outcome : outcomes)
        tally.outcomes[outcome]++;
    while (hostile.references() != 0) // its threads have their last answers
        usleep(20);
    tally.damaged += hostile.damaged();
    old = hostile.values();
}

long number_from(const char *variable, long otherwise)
{
    const char *text = getenv(variable);
    return text ? atol(text) : otherwise;
}

TEST(StoreDamage, GivesAGroupOrAnErrorWithAName)
{
    const long makings = number_from("SHMCOLL_STORE_FUZZ", rounds(300));
    const long seed = number_from("SHMCOLL_STORE_FUZZ_SEED", 1);
    Values old;
    Tally tally;
    for (long i = 0; i < makings && !::testing::Test::HasFailure(); i++)
        make_one(static_cast<uint64_t>(seed + i), old, tally);
    std::string text;
    for (const auto &outcome : tally.outcomes)
        text += "\n  " + outcome.first + ": " + std::to_string(outcome.second);
    printf(
        "%ld makings from seed %ld, %ld damaged answers, the longest %ld ms; ranks ended with%s\n",
        makings, seed, tally.damaged, tally.worst_ms, text.c_str());
    EXPECT_GT(tally.damaged, makings);
    EXPECT_GT(tally.outcomes["made, then ok"], 0);
    EXPECT_GT(tally.outcomes[shc_status_name(SHC_ERR_STORE)], 0);
    EXPECT_EQ(leftovers(), std::vector<std::string>());
}

} // namespace
