// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/comm/blocks.h"
#include "shm/comm/memory.h"
#include "shm/os/os.h"
#include "shm/proto/heap.h"
#include "shm/shmcoll_memory.h"
}
#include "tests/support/in_child.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using shmcoll::test::in_child;

namespace
{

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
const size_t kMiB = size_t{1} << 20;

shc_memory_counts usage()
{
    shc_memory_counts now;
    shc_memory_usage(&now);
    return now;
}

char *allocate(size_t bytes)
{
    void *memory = nullptr;
    EXPECT_EQ(shc_memory_alloc(bytes, &memory), SHC_OK) << shc_error_text();
    return static_cast<char *>(memory);
}

TEST(Memory, ABlockIsWholePagesOfItsOwnAndIsFoundByAddress)
{
    const auto before = usage();
    char *a = allocate(1), *b = allocate(3 * kPage + 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % kPage, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % kPage, 0u);
    memset(a, 1, kPage);
    memset(b, 2, 4 * kPage);
    EXPECT_EQ(a[kPage - 1], 1);
    EXPECT_EQ(usage().used_bytes, before.used_bytes + 5 * kPage);
    EXPECT_EQ(usage().block_count, before.block_count + 2);
    EXPECT_GE(usage().reserved_bytes, usage().used_bytes);
    EXPECT_TRUE(shc_memory_is_shared(b, 4 * kPage));
    EXPECT_TRUE(shc_memory_is_shared(b + 4 * kPage - 1, 1));
    EXPECT_TRUE(shc_memory_is_shared(b + 5, 0));
    EXPECT_FALSE(shc_memory_is_shared(b, 4 * kPage + 1));
    EXPECT_FALSE(shc_memory_is_shared(b + 1, SIZE_MAX));
    EXPECT_FALSE(shc_memory_is_shared(&before, 1));
    EXPECT_FALSE(shc_memory_is_shared(nullptr, 0));
    shc_memory_free(a);
    EXPECT_FALSE(shc_memory_is_shared(a, 1));
    shc_memory_free(b + kPage); // no block begins there: nothing happens
    EXPECT_TRUE(shc_memory_is_shared(b, 1));
    shc_memory_free(b);
    shc_memory_free(nullptr);
    EXPECT_EQ(usage().used_bytes, before.used_bytes);
    EXPECT_EQ(usage().block_count, before.block_count);
    void *none = nullptr;
    EXPECT_EQ(shc_memory_alloc(0, &none), SHC_ERR_INVALID);
}

TEST(Memory, AHandleLeadsToTheSameBytesInAnotherProcess)
{
    char *block = allocate(3 * kPage);
    memset(block, 1, 3 * kPage);
    shc_memory_handle handle;
    ASSERT_EQ(shc_memory_export(block + 5, 2 * kPage, &handle), SHC_OK) << shc_error_text();
    void *own = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(shc_memory_import(&handle, &own, &bytes), SHC_OK) << shc_error_text();
    EXPECT_EQ(own, block + 5);
    EXPECT_EQ(bytes, 2 * kPage);
    shc_memory_release(own);
    shc_memory_release(nullptr);
    EXPECT_EQ(block[5], 1);
    EXPECT_EQ(in_child([&] {
                  void *first = nullptr, *second = nullptr;
                  size_t there = 0;
                  if (shc_memory_import(&handle, &first, &there) != SHC_OK || there != 2 * kPage ||
                      shc_memory_import(&handle, &second, &there) != SHC_OK || first != second)
                      return 1;
                  if (first == block + 5 || usage().attached_count > 1)
                      return 2;
                  shc_memory_release(first);
                  memset(second, 2, there);
                  shc_memory_release(static_cast<char *>(second) + there - 1);
                  return 0;
              }),
              0);
    EXPECT_EQ(block[4], 1);
    EXPECT_EQ(block[5], 2);
    EXPECT_EQ(block[2 * kPage + 4], 2);
    EXPECT_EQ(block[2 * kPage + 5], 1);
    shc_memory_free(block);
}

TEST(Memory, AHandleThatIsWrongIsAnError)
{
    char *block = allocate(kPage), outside = 0;
    shc_memory_handle handle;
    EXPECT_EQ(shc_memory_export(block, 0, &handle), SHC_ERR_INVALID);
    EXPECT_EQ(shc_memory_export(block, kPage + 1, &handle), SHC_ERR_INVALID);
    EXPECT_EQ(shc_memory_export(&outside, 1, &handle), SHC_ERR_INVALID);
    ASSERT_EQ(shc_memory_export(block, kPage, &handle), SHC_OK);
    EXPECT_EQ(in_child([&] { // to which the heap is another process's
                  std::mt19937_64 random(7);
                  int wrong = 0;
                  for (size_t at = 0; at < sizeof handle.bytes; at++) {
                      shc_memory_handle damaged = handle;
                      damaged.bytes[at] ^= static_cast<unsigned char>(1 + random() % 255);
                      void *memory = nullptr;
                      size_t bytes = 0;
                      const shc_status status = shc_memory_import(&damaged, &memory, &bytes);
                      if (status == SHC_OK) { // a byte that says nothing, or another part
                          shc_memory_release(memory);
                          wrong += bytes > SHC_HEAP_RANGE;
                      } else if (status != SHC_ERR_INVALID && status != SHC_ERR_UNREACHABLE) {
                          wrong++;
                      }
                  }
                  return wrong;
              }),
              0);
    shc_memory_free(block);
}

// Otherwise a program that cores are piped to would be sent 64 GiB.
TEST(Memory, IsNotInACore)
{
    char *block = allocate(1);
    std::ifstream maps("/proc/self/smaps");
    std::string line, flags;
    bool inside = false;
    while (flags.empty() && std::getline(maps, line)) {
        if (line.find("/memfd:shmcoll-heap") != std::string::npos)
            inside = true;
        else if (inside && line.rfind("VmFlags:", 0) == 0)
            flags = line + " ";
    }
    EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
    shc_memory_free(block);
}

TEST(Memory, AFreedBlockIsUsedAgainWithItsPagesAndExcessIsGivenBack)
{
    char *a = allocate(64 * kMiB), *b = allocate(kMiB);
    a[0] = 7;
    shc_memory_free(a);
    const size_t kept = usage().reserved_bytes;
    char *again = allocate(64 * kMiB);
    EXPECT_EQ(again, a);
    EXPECT_EQ(again[0], 7);
    EXPECT_EQ(usage().reserved_bytes, kept);
    shc_memory_free(again);
    char *half = allocate(32 * kMiB); // a part of it; the rest stays for others
    EXPECT_EQ(half, a);
    EXPECT_EQ(usage().reserved_bytes, kept);
    char *large = allocate(300 * kMiB);
    large[0] = 8;
    shc_memory_free(large);
    EXPECT_LE(usage().reserved_bytes, usage().used_bytes + 256 * kMiB);
    EXPECT_GT(usage().reserved_bytes, usage().used_bytes + 200 * kMiB);
    shc_memory_free(half);
    shc_memory_free(b);
    EXPECT_LE(usage().reserved_bytes, 256 * kMiB);
}

TEST(Memory, WithoutRoomABlockIsRefusedAndSmallerOnesAreStillThere)
{
    const int code = in_child([] {
        void *memory = nullptr;
        struct rlimit limit = {8 * kMiB, RLIM_INFINITY};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            return 10;
        if (shc_memory_alloc(SHC_HEAP_RANGE + 1, &memory) != SHC_ERR_NOSPACE)
            return 1;
        if (shc_memory_alloc(16 * kMiB, &memory) != SHC_ERR_NOSPACE || memory)
            return 2;
        if (!strstr(shc_error_text(),
                    "`ulimit -f` leaves no room for 16777216 bytes: File too large"))
            return 3;
        if (usage().used_bytes != 0 || usage().reserved_bytes != 0)
            return 4;
        if (shc_memory_alloc(4 * kMiB, &memory) != SHC_OK)
            return 5;
        memset(memory, 1, 4 * kMiB);
        shc_memory_free(memory);
        return 0;
    });
    EXPECT_EQ(code, 0);
    EXPECT_EQ(in_child([] {
                  const size_t range = SHC_HEAP_RANGE, too_much = 2 * shc_os_memory_available();
                  void *memory = nullptr;
                  if (too_much > range)
                      return 0;
                  return shc_memory_alloc(too_much, &memory) == SHC_ERR_NOSPACE ? 0 : 1;
              }),
              0);
    EXPECT_EQ(in_child([] {
                  struct rlimit limit = {0, 0};
                  void *memory = nullptr;
                  setrlimit(RLIMIT_NOFILE, &limit);
                  return shc_memory_alloc(1, &memory) == SHC_ERR_NOSPACE ? 0 : 1;
              }),
              0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // they need addresses
    EXPECT_EQ(in_child([] {
                  struct rlimit limit = {64 * kMiB, 64 * kMiB}; // no range of addresses
                  void *memory = nullptr;
                  if (setrlimit(RLIMIT_AS, &limit) != 0)
                      return 2;
                  return shc_memory_alloc(1, &memory) == SHC_ERR_UNSUPPORTED ? 0 : 1;
              }),
              0);
#endif
}

TEST(Memory, AForkedChildOwnsNothingOfItsParentAndHasAHeapOfItsOwn)
{
    char *mine = allocate(kMiB);
    mine[0] = 1;
    const size_t blocks = usage().block_count;
    const int code = in_child([mine] {
        if (shc_memory_is_shared(mine, 1) || usage().block_count != 0)
            return 1;
        shc_memory_free(mine);
        mine[0] = 2;
        char *own = allocate(kMiB);
        if (own == mine || !shc_memory_is_shared(own, kMiB) || shc_memory_is_shared(mine, 1))
            return 2;
        own[0] = 3;
        if (mine[0] != 2 || usage().block_count != 1)
            return 3;
        shc_memory_free(mine);
        shc_memory_free(own);
        return usage().block_count == 0 ? 0 : 4;
    });
    EXPECT_EQ(code, 0);
    EXPECT_EQ(mine[0], 2);
    EXPECT_TRUE(shc_memory_is_shared(mine, kMiB));
    EXPECT_EQ(usage().block_count, blocks);
    shc_memory_free(mine);
}

// The fork comes while other threads hold and drop the lock.
TEST(Memory, AForkWhileThreadsAllocateLeavesTheChildWhole)
{
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&] {
            while (!stop)
                shc_memory_free(allocate(kPage));
        });
    for (int round = 0; round < 10; round++)
        EXPECT_EQ(in_child([] {
                      alarm(20);
                      char *own = allocate(kPage);
                      shc_memory_free(own);
                      return shc_memory_is_shared(own, 1) ? 1 : 0;
                  }),
                  0);
    stop = true;
    for (std::thread &thread : threads)
        thread.join();
}

TEST(Memory, ThreadsGetBlocksOfTheirOwn)
{
    const int kThreads = 4, kTurns = 200;
    const auto before = usage();
    std::vector<std::thread> threads;
    std::vector<char *> handed(kThreads);
    for (int i = 0; i < kThreads; i++)
        threads.emplace_back([&handed, i] {
            std::minstd_rand random(static_cast<unsigned>(i));
            std::vector<std::pair<char *, size_t>> held;
            for (int turn = 0; turn < kTurns; turn++) {
                const size_t bytes = kPage * (1 + random() % 16);
                char *block = allocate(bytes);
                memset(block, i, bytes);
                held.emplace_back(block, bytes);
                if (held.size() > 8) {
                    auto [old, length] = held[random() % held.size()];
                    for (size_t at = 0; at < length; at += 512)
                        EXPECT_EQ(old[at], i);
                    EXPECT_TRUE(shc_memory_is_shared(old, length));
                }
                while (held.size() > 12) {
                    shc_memory_free(held.front().first);
                    held.erase(held.begin());
                }
            }
            for (auto &[block, bytes] : held)
                shc_memory_free(block);
            handed[static_cast<size_t>(i)] = allocate(kPage);
        });
    for (std::thread &thread : threads)
        thread.join();
    for (char *block : handed)
        shc_memory_free(block);
    EXPECT_EQ(usage().used_bytes, before.used_bytes);
    EXPECT_EQ(usage().block_count, before.block_count);
}

// Two processes that take turns by pipes.
class Turns
{
  public:
    Turns()
    {
        EXPECT_EQ(pipe(to_), 0);
        EXPECT_EQ(pipe(from_), 0);
    }
    ~Turns()
    {
        for (int fd : {to_[0], to_[1], from_[0], from_[1]})
            close(fd);
    }
    char ask(char what) // in the parent: the child's answer
    {
        char answer = 0;
        EXPECT_EQ(write(to_[1], &what, 1), 1);
        EXPECT_EQ(read(from_[0], &answer, 1), 1);
        return answer;
    }
    char next() // in the child
    {
        char what = 0;
        return read(to_[0], &what, 1) == 1 ? what : '\0';
    }
    void answer(char what)
    {
        if (write(from_[1], &what, 1) != 1)
            _exit(99);
    }

  private:
    int to_[2], from_[2];
};

TEST(Heap, AnotherProcessMapsItByNameSeesItGrowAndStoresUntilTheDivorce)
{
    shc_os_process owner;
    ASSERT_EQ(shc_os_process_self(&owner), 0);
    char *block = allocate(4 * kPage);
    memset(block, 1, 4 * kPage);
    shc_heap_name name;
    uint64_t place = 0;
    ASSERT_TRUE(shc_memory_heap_name(&name));
    ASSERT_TRUE(shc_memory_place(block + 5, kPage, &place));
    Turns turns;
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        shc_heap_view view = {};
        if (shc_heap_attach(&view, &owner, &name) != 0)
            _exit(1);
        char *there = shc_heap_at(&view, place, 3 * kPage);
        if (!there || there[0] != 1 || shc_heap_at(&view, SIZE_MAX, 2) ||
            shc_heap_at(&view, 2, SIZE_MAX) || shc_heap_at(&view, SHC_HEAP_RANGE - 1, 1))
            _exit(2);
        for (char what = turns.next(); what != 'q'; what = turns.next()) {
            there[0] = what;
            char *grown = shc_heap_at(&view, 600 * kMiB, 1);
            turns.answer(grown ? *grown : '-');
        }
        shc_heap_detach(&view);
        turns.answer('q');
        _exit(0);
    }
    EXPECT_EQ(turns.ask('a'), '-');
    EXPECT_EQ(block[5], 'a');
    char *large = allocate(700 * kMiB);
    const ptrdiff_t at = large - (block - (place - 5));
    ASSERT_LE(at, static_cast<ptrdiff_t>(600 * kMiB));
    large[static_cast<ptrdiff_t>(600 * kMiB) - at] = '+';
    EXPECT_EQ(turns.ask('b'), '+');
    EXPECT_EQ(block[5], 'b');

    ASSERT_EQ(shc_memory_divorce(block + 5, kPage), 0);
    EXPECT_EQ(block[5], 'b');
    EXPECT_EQ(block[2 * kPage], 1);
    block[6] = 'o';
    turns.ask('c');
    EXPECT_EQ(block[5], 'b');
    EXPECT_EQ(block[6], 'o');
    EXPECT_FALSE(shc_memory_is_shared(block, 1));
    EXPECT_FALSE(shc_memory_place(block + 5, 1, &place));
    const size_t used = usage().used_bytes;
    shc_memory_free(block);
    EXPECT_EQ(usage().used_bytes, used - 4 * kPage);
    std::vector<char *> others;
    for (int i = 0; i < 64; i++) {
        others.push_back(allocate(kPage));
        EXPECT_TRUE(others.back() < block || others.back() >= block + 4 * kPage);
    }
    for (char *other : others)
        shc_memory_free(other);
    shc_memory_free(large);
    turns.ask('d');
    turns.ask('q');
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(Heap, AFileThatIsNoHeapIsRefused)
{
    shc_os_process owner;
    ASSERT_EQ(shc_os_process_self(&owner), 0);
    shc_memory_free(allocate(1));
    shc_heap_name right, name;
    ASSERT_TRUE(shc_memory_heap_name(&right));
    shc_heap_view view = {};
    name = right;
    name.file.inode++;
    EXPECT_EQ(shc_heap_attach(&view, &owner, &name), ESTALE);
    name = right;
    name.owner_fd = -1;
    EXPECT_EQ(shc_heap_attach(&view, &owner, &name), ENOENT);
    size_t bytes = 0;
    name = right;
    ASSERT_EQ(shc_os_memfd_create("unsealed", &name.owner_fd), 0); // it could be made shorter
    ASSERT_EQ(shc_os_file_stat(name.owner_fd, &name.file, &bytes), 0);
    EXPECT_EQ(shc_heap_attach(&view, &owner, &name), EPERM);
    shc_os_file_close(name.owner_fd);
    ASSERT_EQ(shc_os_shm_create_unnamed(&name.owner_fd), 0);
    ASSERT_EQ(shc_os_file_stat(name.owner_fd, &name.file, &bytes), 0);
    EXPECT_EQ(shc_heap_attach(&view, &owner, &name), EPERM);
    shc_os_file_close(name.owner_fd);
    name.owner_fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (name.owner_fd >= 0) { // a huge page that is missing is a SIGBUS
        EXPECT_EQ(shc_os_memfd_seal_against_shrinking(name.owner_fd), 0);
        ASSERT_EQ(shc_os_file_stat(name.owner_fd, &name.file, &bytes), 0);
        EXPECT_EQ(shc_heap_attach(&view, &owner, &name), EPERM);
        shc_os_file_close(name.owner_fd);
    }
    EXPECT_EQ(view.base, nullptr);
    ASSERT_EQ(shc_heap_attach(&view, &owner, &right), 0);
    shc_heap_detach(&view);
}

// The table against a plain model: no two blocks overlap, what is ready has its pages, sums agree.
TEST(Blocks, ManyRandomOnesNeverOverlapAndPagesAreNeverLostOrAssumed)
{
    const size_t kLimit = 4000;
    std::minstd_rand random(12);
    shc_blocks blocks = {};
    std::map<size_t, size_t> used;
    std::vector<bool> backed(kLimit, false);
    size_t refused = 0;
    for (int turn = 0; turn < 6000; turn++) {
        if (random() % 2 == 0 || used.empty()) {
            shc_part taken, rest;
            bool ready;
            const size_t bytes = 1 + random() % (turn % 50 == 0 ? 1000 : 40);
            if (!shc_blocks_take(&blocks, bytes, kLimit, &taken, &ready, &rest)) {
                refused++;
                continue;
            }
            ASSERT_EQ(taken.bytes, bytes);
            ASSERT_LE(taken.offset + bytes, blocks.end);
            ASSERT_LE(blocks.end, kLimit);
            for (size_t page = taken.offset; page < taken.offset + bytes; page++) {
                ASSERT_TRUE(!ready || backed[page]);
                backed[page] = true;
            }
            for (size_t page = rest.offset; page < rest.offset + rest.bytes; page++)
                backed[page] = false;
            auto after = used.lower_bound(taken.offset);
            ASSERT_TRUE(after == used.end() || after->first >= taken.offset + bytes);
            ASSERT_TRUE(after == used.begin() ||
                        std::prev(after)->first + std::prev(after)->second <= taken.offset);
            used[taken.offset] = bytes;
        } else {
            auto one = std::next(used.begin(), static_cast<long>(random() % used.size()));
            if (one->second > 1) {
                ASSERT_FALSE(shc_blocks_give(&blocks, one->first + 1));
                ASSERT_EQ(shc_blocks_find(&blocks, one->first + 1)->offset, one->first);
            }
            ASSERT_TRUE(shc_blocks_give(&blocks, one->first));
            ASSERT_EQ(shc_blocks_find(&blocks, one->first), nullptr);
            used.erase(one);
            shc_part part;
            while (shc_blocks_trim(&blocks, 300, &part))
                for (size_t page = part.offset; page < part.offset + part.bytes; page++) {
                    ASSERT_TRUE(backed[page]);
                    backed[page] = false;
                }
            ASSERT_LE(blocks.ready_bytes, 300u);
        }
        size_t sum = 0;
        for (auto &[offset, bytes] : used)
            sum += bytes;
        ASSERT_EQ(sum, blocks.used_bytes);
        ASSERT_EQ(used.size(), blocks.used_count);
        if (turn % 8 != 0)
            continue;
        size_t there = 0;
        for (bool page : backed)
            there += page;
        ASSERT_EQ(there, blocks.used_bytes + blocks.ready_bytes);
    }
    EXPECT_GT(refused, 0u);
    free(blocks.entry);
}

} // namespace
