// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/ranks.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace shmcoll::test
{

namespace
{

// A store for ranks that are threads.
struct MemoryStore {
    std::mutex lock;
    std::map<std::string, std::string> values;
};

int memory_set(void *ctx, const char *key, const void *value, size_t bytes)
{
    auto *store = static_cast<MemoryStore *>(ctx);
    std::lock_guard<std::mutex> guard(store->lock);
    store->values[key] = std::string(static_cast<const char *>(value), bytes);
    return 0;
}

int copy_out(const std::string &from, void *value, size_t capacity, size_t *bytes)
{
    if (from.size() > capacity)
        return EMSGSIZE;
    memcpy(value, from.data(), from.size());
    *bytes = from.size();
    return 0;
}

int memory_get(void *ctx, const char *key, void *value, size_t capacity, size_t *bytes)
{
    auto *store = static_cast<MemoryStore *>(ctx);
    std::lock_guard<std::mutex> guard(store->lock);
    auto found = store->values.find(key);
    return found == store->values.end() ? ENOENT : copy_out(found->second, value, capacity, bytes);
}

int memory_check(void *ctx, const char *const *keys, size_t count)
{
    auto *store = static_cast<MemoryStore *>(ctx);
    std::lock_guard<std::mutex> guard(store->lock);
    for (size_t i = 0; i < count; i++)
        if (store->values.count(keys[i]) == 0)
            return ENOENT;
    return 0;
}

int memory_add(void *ctx, const char *key, int64_t delta, int64_t *value)
{
    auto *store = static_cast<MemoryStore *>(ctx);
    std::lock_guard<std::mutex> guard(store->lock);
    std::string &text = store->values[key];
    int64_t now = text.empty() ? 0 : std::stoll(text);
    now += delta;
    text = std::to_string(now);
    *value = now;
    return 0;
}

int memory_put_first(void *ctx, const char *key, const void *value, size_t bytes, void *now,
                     size_t capacity, size_t *now_bytes)
{
    auto *store = static_cast<MemoryStore *>(ctx);
    std::lock_guard<std::mutex> guard(store->lock);
    auto stored =
        store->values.emplace(key, std::string(static_cast<const char *>(value), bytes)).first;
    return copy_out(stored->second, now, capacity, now_bytes);
}

// Prints the stacks of a process, with a debugger if there is one.
void print_stacks(pid_t pid)
{
    std::string command = "gdb -p " + std::to_string(pid) +
                          " -batch -ex 'thread apply all backtrace 12' 2>/dev/null | "
                          "grep -v '^\\[New\\|^warning' >&2";
    fprintf(stderr, "---- stacks of pid %d ----\n", pid);
    if (system(command.c_str()) != 0)
        fprintf(stderr, "(no debugger)\n");
}

// How many times its limit a run may take: more than one under an emulator.
#ifndef SHMCOLL_TEST_PATIENCE
#define SHMCOLL_TEST_PATIENCE 1
#endif

// Fails loudly when a run takes too long.
class Watchdog
{
  public:
    Watchdog(int limit_s, std::function<void()> on_hang)
        : thread_([this, limit_s, on_hang] {
              std::unique_lock<std::mutex> lock(lock_);
              if (!ended_.wait_for(lock, std::chrono::seconds(SHMCOLL_TEST_PATIENCE * limit_s),
                                   [this] { return end_; }))
                  on_hang();
          })
    {
    }
    ~Watchdog()
    {
        {
            std::lock_guard<std::mutex> lock(lock_);
            end_ = true;
        }
        ended_.notify_all();
        thread_.join();
    }
    Watchdog(const Watchdog &) = delete;
    Watchdog &operator=(const Watchdog &) = delete;

  private:
    std::mutex lock_;
    std::condition_variable ended_;
    bool end_ = false;
    std::thread thread_;
};

// Maps each file once, for all ranks of one process.
struct SharedMappings : shc_mapping_cache {
    SharedMappings() : shc_mapping_cache{share, leave} {}

  private:
    struct Mapping {
        void *base;
        int users;
    };
    Mapping &of(const shc_segment *segment)
    {
        return mappings_[{segment->name.file.device, segment->name.file.inode}];
    }
    static int share(shc_mapping_cache *cache, const shc_segment *segment, void **base)
    {
        auto *self = static_cast<SharedMappings *>(cache);
        std::lock_guard<std::mutex> guard(self->lock_);
        Mapping &mapping = self->of(segment);
        int error = 0;
        if (mapping.users == 0)
            error = shc_os_map(segment->fd, segment->bytes, segment->guard_bytes, &mapping.base);
        mapping.users += error == 0;
        *base = mapping.base;
        return error;
    }
    static void leave(shc_mapping_cache *cache, const shc_segment *segment)
    {
        auto *self = static_cast<SharedMappings *>(cache);
        std::lock_guard<std::mutex> guard(self->lock_);
        if (--self->of(segment).users == 0)
            shc_os_unmap(segment->base, segment->bytes, segment->guard_bytes);
    }
    std::mutex lock_;
    std::map<std::pair<uint64_t, uint64_t>, Mapping> mappings_;
};

void run_body(const Body &body, Rank &rank, const Options &options)
{
    if (options.before)
        options.before(rank.rank);
    if (options.make_group) {
        shc_status status = rank.make_group(&rank.comm);
        ASSERT_EQ(status, SHC_OK) << "rank " << rank.rank << ": " << shc_error_text();
    }
    body(rank);
    if (rank.comm)
        shc_comm_free(rank.comm);
}

void run_threads(Mode mode, int world, const Body &body, const Options &options)
{
    MemoryStore memory;
    shc_store store = {};
    store.ctx = &memory;
    store.set = memory_set;
    store.get = memory_get;
    store.check = memory_check;
    store.add = memory_add;
    store.put_first = memory_put_first;
    SharedMappings mappings;
    shc_knobs knobs = options.knobs;
    if (mode == Mode::kOneMapping)
        knobs.cache = &mappings;
    {
        Watchdog watchdog(options.limit_s, [] {
            print_stacks(getpid());
            fprintf(stderr, "a run of ranks as threads hangs\n");
            abort();
        });
        std::vector<std::thread> threads;
        for (int r = 0; r < world; r++)
            threads.emplace_back([&, r] {
                Rank rank = {
                    r, world, mode, nullptr, store, knobs, options.timeout_ns, options.tuning};
                run_body(body, rank, options);
            });
        for (std::thread &thread : threads)
            thread.join();
    }
}

[[noreturn]] void be_rank(int r, int world, const std::string &directory, const Body &body,
                          const Options &options)
{
    Rank rank = {r,  world,         Mode::kProcesses,   nullptr,
                 {}, options.knobs, options.timeout_ns, options.tuning};
    EXPECT_EQ(shc_store_dir_open(directory.c_str(), &rank.store), SHC_OK) << shc_error_text();
    run_body(body, rank, options);
    shc_store_dir_close(&rank.store);
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
}

void run_processes(int world, const Body &body, const Options &options)
{
    char pattern[] = "/tmp/shmcoll-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    std::string directory = pattern;
    std::vector<pid_t> pids;
    fflush(nullptr);
    for (int r = 0; r < world; r++) {
        pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid == 0)
            be_rank(r, world, directory, body, options);
        pids.push_back(pid);
    }
    {
        Watchdog watchdog(options.limit_s, [&] {
            for (pid_t pid : pids)
                print_stacks(pid);
            for (pid_t pid : pids)
                kill(pid, SIGKILL);
        });
        for (int r = 0; r < world; r++) {
            int status = 0;
            ASSERT_EQ(waitpid(pids[r], &status, 0), pids[r]);
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
                << "rank " << r
                << (WIFSIGNALED(status) ? " was ended by signal " : " ended with status ")
                << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
    }
    std::filesystem::remove_all(directory);
}

} // namespace

std::vector<Mode> all_modes()
{
#if defined(__SANITIZE_THREAD__)
    return {Mode::kOneMapping}; // it sees nothing through two mappings, and does not follow fork
#elif defined(__SANITIZE_ADDRESS__)
    return {Mode::kProcesses, Mode::kOneMapping}; // another mapping shows it nothing new
#else
    // Processes first: a test with all modes then forks before it has threads, which qemu wants.
    return {Mode::kProcesses, Mode::kOneMapping, Mode::kOwnMapping};
#endif
}

static bool is_whole() // make sanitizers, make test-long
{
    return getenv("SHMCOLL_TEST_FULL") != nullptr;
}

std::vector<Mode> modes()
{
    std::vector<Mode> all = all_modes();
    if (!is_whole() && all.size() > 1)
        all.erase(std::find(all.begin(), all.end(), Mode::kOneMapping));
    return all;
}

std::string mode_name(Mode mode)
{
    switch (mode) {
    case Mode::kOneMapping:
        return "OneMapping";
    case Mode::kOwnMapping:
        return "OwnMapping";
    default:
        return "Processes";
    }
}

shc_status Rank::make_group(shc_comm **out, const char *name) const
{
    shc_comm_config config = {};
    config.rank = rank;
    config.world_size = world;
    config.name = name;
    config.timeout_ns = timeout_ns;
    config.store = store;
    config.tuning = tuning.empty() ? nullptr : tuning.c_str();
    std::vector<int32_t> everybody(static_cast<size_t>(world));
    std::iota(everybody.begin(), everybody.end(), 0);
    config.global_ranks = everybody.data();
    return shc_comm_create_with(&config, &knobs, out);
}

void run_ranks(Mode mode, int world, const Body &body, const Options &options)
{
    if (mode == Mode::kProcesses)
        run_processes(world, body, options);
    else
        run_threads(mode, world, body, options);
    EXPECT_EQ(leftovers(), std::vector<std::string>());
}

int rounds(int full)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    if (!is_whole())
        return (full + 3) / 4;
#endif
    return full;
}

shc_op op_of(shc_op_kind kind)
{
    shc_op op = {};
    op.kind = kind;
    op.dtype = SHC_FLOAT32;
    op.redop = SHC_SUM;
    return op;
}

std::string error_text()
{
    return shc_error_text();
}

static std::set<std::string> names_in_dev_shm()
{
    std::set<std::string> names;
    DIR *directory = opendir("/dev/shm");
    while (directory) {
        dirent *entry = readdir(directory);
        if (!entry)
            break;
        if (strncmp(entry->d_name, "shmcoll-", 8) == 0)
            names.insert(entry->d_name);
    }
    if (directory)
        closedir(directory);
    return names;
}

std::vector<std::string> leftovers()
{
    std::set<std::string> left = names_in_dev_shm();
    for (int look = 0; look < 1000 && !left.empty(); look++) {
        shc_os_sleep_ns(10 * SHC_NS_PER_MS);
        const std::set<std::string> now = names_in_dev_shm();
        for (auto name = left.begin(); name != left.end();)
            name = now.count(*name) ? std::next(name) : left.erase(name);
    }
    return {left.begin(), left.end()};
}

} // namespace shmcoll::test
