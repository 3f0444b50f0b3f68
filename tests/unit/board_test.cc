// SPDX-License-Identifier: BSD-3-Clause
// The board of this process, as a tool outside reads it: through another mapping of its descriptor.
extern "C" {
#include "shm/proto/board.h"
#include "shm/proto/dump.h"
}

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

constexpr size_t kBytes = SHC_PAGE_BYTES + SHC_BOARD_GROUPS * sizeof(shc_board_group_shm);

class Board : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        shc_os_process self = {};
        ASSERT_EQ(shc_os_process_self(&self), 0);
        shc_board_process_make(&process_, &self);
        ASSERT_NE(process_.header, nullptr);
        fd_ = open(("/proc/self/fd/" + std::to_string(process_.fd)).c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_GE(fd_, 0);
        void *base = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd_, 0);
        ASSERT_NE(base, MAP_FAILED);
        seen_ = static_cast<char *>(base);
    }

    void TearDown() override
    {
        munmap(seen_, kBytes);
        close(fd_);
        shc_os_unmap(process_.header, kBytes, 0);
        close(process_.fd);
    }

    shc_board begin(const char *name, int rank = 0)
    {
        shc_board board = {};
        const shc_board_facts facts = {name, name, rank, 2, nullptr, 5 * SHC_NS_PER_S};
        shc_board_begin(&board, &process_, &facts);
        return board;
    }

    const shc_board_group_shm &part(int index) const
    {
        return reinterpret_cast<const shc_board_group_shm *>(seen_ + SHC_PAGE_BYTES)[index];
    }

    shc_board_process process_ = {};
    int fd_ = -1;
    char *seen_ = nullptr;
};

// With the signal's default action, which ends a process that makes a file too long.
TEST(BoardWithoutRoom, ALimitOfFileSizesLeavesTheProcessWithoutABoard)
{
    const pid_t child = fork();
    if (child == 0) {
        shc_os_process self = {};
        shc_board_process process = {};
        const struct rlimit limit = {1 << 20, RLIM_INFINITY};
        if (shc_os_process_self(&self) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(2);
        signal(SIGXFSZ, SIG_DFL);
        shc_board_process_make(&process, &self);
        _exit(process.header ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status)) << WTERMSIG(status);
    EXPECT_EQ(status, 0);
}

shc_call call(uint64_t count)
{
    shc_call call = {};
    call.kind = SHC_ALL_REDUCE;
    call.dtype = SHC_FLOAT64;
    call.redop = SHC_MAX;
    call.count = count;
    call.elem_bytes = 8;
    return call;
}

TEST_F(Board, IsReadOnlyForOthersAndGoesOnForItsWriter)
{
    const std::string path = "/proc/self/fd/" + std::to_string(process_.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(ftruncate(fd, 0), 0);
    close(fd);
    shc_board board = begin("later");
    EXPECT_STREQ(part(0).name, "later");
    shc_board_free(&board);
}

TEST_F(Board, SaysWhetherARankIsInACall)
{
    shc_board board = begin("dp");
    EXPECT_EQ(shc_a32_load_acquire(&part(0).state), (uint32_t)SHC_BOARD_MAKING);
    const shc_call first = call(100), second = call(7);
    shc_board_enter(&board, 1, &first);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).entered), 1u);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).left), 0u);
    shc_board_leave(&board, 1, &first, SHC_OK, false);
    shc_board_enter(&board, 2, &second);
    shc_board_leave(&board, 2, &second, SHC_ERR_TIMEOUT, false);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).left), 2u);
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).sums[SHC_ALL_REDUCE].ops), 2u);
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).sums[SHC_ALL_REDUCE].bytes), 107u * 8);
    if (board.level != SHC_BOARD_TIMES)
        GTEST_SKIP() << "this machine's counter is not steady: no records";
    const shc_board_record_shm &record = part(0).records[2];
    EXPECT_EQ(shc_a64_load_acquire(&record.number), 2u);
    EXPECT_EQ(shc_a64_load_relaxed(&record.count), 7u);
    EXPECT_EQ(shc_a64_load_relaxed(&record.what), shc_board_what(&second, SHC_ERR_TIMEOUT));
    EXPECT_GE(shc_a64_load_relaxed(&record.end), shc_a64_load_relaxed(&record.begin));
}

// A call that lasts as long as that, in ticks of the board.
uint64_t ticks_of(shc_board *board, uint64_t epoch, const shc_call &call, bool slow, bool waited)
{
    shc_board_enter(board, epoch, &call);
    if (slow)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    shc_board_leave(board, epoch, &call, SHC_OK, waited);
    const shc_board_record_shm &record = board->shm->records[epoch];
    return shc_a64_load_relaxed(&record.end) - shc_a64_load_relaxed(&record.begin);
}

TEST_F(Board, TakesAShortCallToLastAsLongAsTheOneLikeItBefore)
{
    shc_board board = begin("dp");
    if (board.level != SHC_BOARD_TIMES)
        GTEST_SKIP() << "this machine's counter is not steady: no records";
    shc_call small = call(4), other = call(5), large = call(4096);
    small.hash = 1, other.hash = 2, large.hash = 3;
    uint64_t epoch = 1;
    // No other call of this test lasts exactly as long as this one.
    const uint64_t slow = ticks_of(&board, epoch++, small, true, false);
    uint64_t sum = slow;
    for (int i = 0; i < SHC_BOARD_SHORT_CALLS; i++, sum += slow)
        EXPECT_EQ(ticks_of(&board, epoch++, small, false, false), slow) << "call " << i;
    sum += ticks_of(&board, epoch, small, true, false);
    const uint64_t fresh = sum - slow * (SHC_BOARD_SHORT_CALLS + 1);
    EXPECT_NE(fresh, slow) << "no more than that in a row";
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).sums[SHC_ALL_REDUCE].ticks), sum);
    EXPECT_EQ(ticks_of(&board, ++epoch, small, false, false), fresh);
    EXPECT_NE(ticks_of(&board, ++epoch, other, true, false), fresh) << "another call";
    EXPECT_NE(ticks_of(&board, ++epoch, small, true, false), fresh) << "and back";
    const uint64_t waited = ticks_of(&board, ++epoch, small, true, true);
    EXPECT_NE(ticks_of(&board, ++epoch, small, true, false), waited) << "a wait is no measure";
    const uint64_t long_one = ticks_of(&board, ++epoch, large, true, false);
    EXPECT_NE(ticks_of(&board, ++epoch, large, true, false), long_one) << "8 KiB at most";
    shc_board_free(&board);
}

const shc_board_end RANK_1_DIED = {.finder = 2,
                                   .rank = 1,
                                   .pid = 77,
                                   .died = true,
                                   .how = {SHC_OS_END_SIGNAL, 9},
                                   .last_call = 12,
                                   .why = "KeyError"};
const shc_board_end NOBODYS = {0, -1, 0, false, {SHC_OS_END_UNKNOWN, 0}, 0, nullptr};

TEST_F(Board, KeepsTheFirstReason)
{
    const shc_board board = begin("dp");
    shc_board_fail(&board, SHC_ERR_PEER_DEAD, "rank 1 died", &RANK_1_DIED);
    shc_board_fail(&board, SHC_ERR_TIMEOUT, "something else", &NOBODYS);
    EXPECT_EQ(shc_a32_load_acquire(&part(0).status), (uint32_t)SHC_ERR_PEER_DEAD);
    EXPECT_STREQ(part(0).reason, "rank 1 died");
    EXPECT_EQ(part(0).end.finder, 3u);
    EXPECT_EQ(part(0).end.rank, 2u);
    EXPECT_EQ(part(0).end.pid, 77);
    EXPECT_EQ(part(0).end.died, 1u);
    EXPECT_EQ(part(0).end.kind, (uint32_t)SHC_OS_END_SIGNAL);
    EXPECT_EQ(part(0).end.code, 9);
    EXPECT_EQ(part(0).end.last_call, 12u);
    EXPECT_STREQ(part(0).end.why, "KeyError");
}

TEST_F(Board, AFreedPartBeginsAnew)
{
    shc_board one = begin("one"), two = begin("two");
    const shc_call some = call(3);
    shc_board_enter(&one, 5, &some);
    shc_board_fail(&one, SHC_ERR_PEER_DEAD, "over", &RANK_1_DIED);
    shc_board_close(&one);
    shc_board_free(&one);
    const shc_board three = begin("three", 1);
    EXPECT_EQ(three.shm, one.shm);
    EXPECT_STREQ(part(0).name, "three");
    EXPECT_EQ(part(0).rank, 1);
    EXPECT_STREQ(part(1).name, "two");
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).entered), 0u);
    EXPECT_EQ(shc_a32_load_relaxed(&part(0).status), 0u);
    EXPECT_STREQ(part(0).reason, "");
    EXPECT_EQ(part(0).end.finder, 0u);
    EXPECT_EQ(part(0).end.rank, 0u);
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).records[5].number), 0u);
    shc_board_free(&two);
}

// BOARD-23
TEST_F(Board, AGroupOverHostsShowsOneGroupsCallsAndTheOthersWaits)
{
    shc_board island = begin("on host 1", 1), sequencer = begin("dp");
    const int32_t ranks[] = {2, 5};
    const shc_board_over over = {2, 1, 6, ranks, 99};
    shc_board_share(&island, &sequencer, &over);
    EXPECT_EQ(shc_a32_load_acquire(&part(1).state), (uint32_t)SHC_BOARD_FREE);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).over.id), 99u);
    EXPECT_EQ(part(0).over.world, 6u);
    EXPECT_EQ(part(0).over.ranks[1], 5u);
    const shc_call users = call(7), inner = call(100);
    const uint64_t me = 17;
    shc_board_use(&island, me);
    shc_board_use_call(&sequencer, 18); // the call that carries the user's
    shc_board_submit(&sequencer);
    shc_board_submit(&island);
    EXPECT_EQ(shc_a32_load_relaxed(&part(0).submitted), 1u);
    shc_board_enter(&sequencer, 3, &inner);
    shc_board shown = sequencer; // as shc_function_run()
    shown.calls = shown.level;
    shc_board_enter(&shown, 3, &users);
    shc_board_use_call(&island, 18);
    shc_board_enter(&island, 12, &inner);
    shc_board_wait(&island, 12, 0, 50, 60);
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).user), me);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).entered), 3u);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).waits_epoch), 3u);
    EXPECT_FALSE(shc_board_block(&island, 18, nullptr, 60)); // not the user's thread
    EXPECT_TRUE(shc_board_block(&island, me, nullptr, 60));
    shc_board_unblock(&island);
    const shc_board_awaited message = {SHC_RECV, 0, 1};
    EXPECT_TRUE(shc_board_block(&island, 18, &message, 60));
    shc_board_unblock(&island);
    shc_board_leave(&island, 12, &inner, SHC_OK, true);
    shc_board_await(&island, 3, 70);
    shc_board_missing(&island, 3, "host 0 (ranks 0-1, 3-4)");
    EXPECT_EQ(shc_a64_load_acquire(&part(0).over.awaits_epoch), 3u);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).over.awaits_since_ns), 70u);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).over.number), 2u);
    EXPECT_STREQ(reinterpret_cast<const char *>(part(0).over.whom), "host 0 (ranks 0-1, 3-4)");
    shc_board_await(&island, 3, 0);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).over.awaits_epoch), 0u);
    shc_board_leave(&shown, 3, &users, SHC_OK, true);
    shc_board_leave(&sequencer, 3, &inner, SHC_OK, true);
    EXPECT_EQ(shc_a64_load_acquire(&part(0).left), 3u);
    EXPECT_EQ(shc_a64_load_relaxed(&part(0).sums[SHC_ALL_REDUCE].ops), 1u);
    shc_board_close(&sequencer); // the part is the island's
    shc_board_free(&sequencer);
    EXPECT_EQ(shc_a32_load_acquire(&part(0).state), (uint32_t)SHC_BOARD_MAKING);
    shc_board_free(&island);
    EXPECT_EQ(shc_a32_load_acquire(&part(0).state), (uint32_t)SHC_BOARD_FREE);
}

TEST_F(Board, AGroupWithoutAPartStoresNothing)
{
    for (int i = 0; i < SHC_BOARD_GROUPS; i++)
        EXPECT_NE(begin("full").shm, nullptr);
    shc_board none = begin("one more");
    EXPECT_EQ(none.level, SHC_BOARD_OFF);
    const shc_call some = call(3);
    shc_board_enter(&none, 1, &some);
    shc_board_leave(&none, 1, &some, SHC_OK, false);
    shc_board_wait(&none, 1, 1, 5, 6);
    shc_board_waited(&none, 1, 1);
    shc_board_fail(&none, SHC_ERR_ABORTED, "x", &NOBODYS);
    shc_board_close(&none);
    shc_board_free(&none);
}

// A reader takes the number, the rest, and the number again.
TEST_F(Board, NoReaderTakesATornRecordForAWholeOne)
{
    shc_board board = begin("dp");
    if (board.level != SHC_BOARD_TIMES)
        GTEST_SKIP() << "this machine's counter is not steady: no records";
    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (uint64_t epoch = 1; !done; epoch++) {
            const shc_call each = call(epoch);
            shc_board_enter(&board, epoch, &each);
            shc_board_leave(&board, epoch, &each, SHC_OK, false);
        }
    });
    int whole = 0;
    for (int look = 0; look < 200000 || (whole < 100 && look < 20000000); look++) {
        const uint64_t epoch = shc_a64_load_acquire(&part(0).entered);
        const shc_board_record_shm &record = part(0).records[epoch & (SHC_BOARD_RECORDS - 1)];
        const uint64_t before = shc_a64_load_acquire(&record.number);
        const uint64_t count = shc_a64_load_acquire(&record.count);
        const uint64_t bytes = shc_a64_load_acquire(&record.bytes);
        const uint64_t after = shc_a64_load_acquire(&record.number);
        if (before == 0 || before != after)
            continue;
        whole++;
        ASSERT_EQ(count, before);
        ASSERT_EQ(bytes, before * 8);
    }
    done = true;
    writer.join();
    EXPECT_GE(whole, 100);
}

// ---- dumps ----

// A dump of a process's board in a file.
class Dump
{
  public:
    explicit Dump(const std::string &path)
    {
        std::ifstream file(path, std::ios::binary);
        bytes_.assign(std::istreambuf_iterator<char>(file), {});
    }

    const shc_board_header_shm &header() const
    {
        return *reinterpret_cast<const shc_board_header_shm *>(bytes_.data());
    }

    const shc_board_group_shm &part(int index) const
    {
        return reinterpret_cast<const shc_board_group_shm *>(bytes_.data() + SHC_PAGE_BYTES)[index];
    }

    size_t bytes() const { return bytes_.size(); }

  private:
    std::vector<char> bytes_;
};

std::string file_of(const char *name)
{
    return testing::TempDir() + "shmcoll_" + name + std::to_string(getpid());
}

TEST_F(Board, ADumpHasThePartsThatGroupsHaveAndSaysWhichFailed)
{
    EXPECT_NE(begin("one").shm, nullptr);
    shc_board two = begin("two"), three = begin("three");
    const shc_call some = call(11);
    shc_board_enter(&three, 300, &some);
    shc_board_free(&two);
    shc_board_fail(&three, SHC_ERR_PEER_DEAD, "rank 1 died", &RANK_1_DIED);
    const std::string path = file_of("dump");
    ASSERT_EQ(shc_dump_write(three.header, three.shm, true, path.c_str()), 0);
    const Dump dump(path);
    ASSERT_EQ(dump.bytes(), SHC_PAGE_BYTES + 2 * sizeof(shc_board_group_shm));
    EXPECT_EQ(shc_a64_load_relaxed(&dump.header().magic), SHC_BOARD_MAGIC);
    EXPECT_EQ(dump.header().pid, getpid());
    EXPECT_EQ(dump.header().group_count, 2u);
    EXPECT_EQ(dump.header().failed, 2u);
    EXPECT_GE(dump.header().dumped_ns, dump.header().ns);
    EXPECT_GT(dump.header().dumped_unix_ns, UINT64_C(1700000000) * SHC_NS_PER_S);
    EXPECT_STREQ(dump.part(0).name, "one");
    EXPECT_STREQ(dump.part(1).name, "three");
    EXPECT_STREQ(dump.part(1).reason, "rank 1 died");
    EXPECT_EQ(dump.part(1).end.code, 9);
    EXPECT_EQ(shc_a64_load_relaxed(&dump.part(1).entered), 300u);
    if (three.level == SHC_BOARD_TIMES) {
        const shc_board_record_shm &record = dump.part(1).records[300 & (SHC_BOARD_RECORDS - 1)];
        EXPECT_EQ(shc_a64_load_relaxed(&record.number), 300u);
        EXPECT_EQ(shc_a64_load_relaxed(&record.count), 11u);
    }
    ASSERT_EQ(shc_dump_write(three.header, three.shm, false, path.c_str()), 0);
    const Dump alone(path);
    EXPECT_EQ(alone.bytes(), SHC_PAGE_BYTES + sizeof(shc_board_group_shm));
    EXPECT_EQ(alone.header().failed, 1u);
    EXPECT_STREQ(alone.part(0).name, "three");
    unlink(path.c_str());
}

TEST_F(Board, ADumpThatCannotBeWrittenLeavesTheFileThatWasThere)
{
    const shc_board one = begin("one");
    EXPECT_EQ(shc_dump_write(one.header, nullptr, true, "/nowhere/at/all"), ENOENT);
    const std::string path = file_of("folder");
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    EXPECT_NE(shc_dump_write(one.header, nullptr, true, path.c_str()),
              0); // a folder stays a folder
    EXPECT_EQ(rmdir(path.c_str()), 0);
    EXPECT_EQ(shc_os_directory_check("/nowhere/at/all"), ENOENT);
    EXPECT_EQ(shc_os_directory_check("/proc/self/exe"), ENOTDIR);
    EXPECT_EQ(shc_os_directory_check(testing::TempDir().c_str()), 0);
}

TEST_F(Board, ADumpHasNoTornRecord)
{
    shc_board board = begin("dp");
    if (board.level != SHC_BOARD_TIMES)
        GTEST_SKIP() << "this machine's counter is not steady: no records";
    std::atomic<bool> done{false};
    std::atomic<uint64_t> made{0};
    std::thread writer([&] {
        for (uint64_t epoch = 1; !done; epoch++) {
            const shc_call each = call(epoch);
            shc_board_enter(&board, epoch, &each);
            shc_board_leave(&board, epoch, &each, SHC_OK, false);
            made = epoch;
        }
    });
    const std::string path = file_of("torn");
    int whole = 0;
    for (int look = 0; look < 30 || made < 10 * SHC_BOARD_RECORDS; look++) {
        ASSERT_EQ(shc_dump_write(board.header, nullptr, true, path.c_str()), 0);
        const Dump dump(path);
        for (const shc_board_record_shm &record : dump.part(0).records) {
            const uint64_t number = shc_a64_load_relaxed(&record.number);
            if (number == 0)
                continue;
            whole++;
            ASSERT_EQ(shc_a64_load_relaxed(&record.count), number);
            ASSERT_EQ(shc_a64_load_relaxed(&record.bytes), number * 8);
        }
    }
    done = true;
    writer.join();
    EXPECT_GE(whole, SHC_BOARD_RECORDS);
    unlink(path.c_str());
}

} // namespace
