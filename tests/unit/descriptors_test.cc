// SPDX-License-Identifier: BSD-3-Clause
// A program may close descriptors of the library, and open files that get their numbers. Those files stay as they are.
extern "C" {
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/comm/memory.h"
#include "shm/comm/process.h"
#include "shm/os/os.h"
#include "shm/proto/board.h"
#include "shm/proto/heap.h"
#include "shm/shmcoll_memory.h"
}
#include "tests/support/in_child.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

using shmcoll::test::in_child;

namespace
{

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
const size_t kMiB = size_t{1} << 20;

char *allocate(size_t bytes)
{
    void *memory = nullptr;
    EXPECT_EQ(shc_memory_alloc(bytes, &memory), SHC_OK) << shc_error_text();
    return static_cast<char *>(memory);
}

// A file of the program's, which now has the number that the library's descriptor had.
class Taken
{
  public:
    explicit Taken(int fd) : fd_(fd)
    {
        const int file = memfd_create("log", 0);
        if (file < 0 || ftruncate(file, kBytes) != 0 || dup2(file, fd) != fd || close(file) != 0)
            _exit(90);
        std::string bytes(kBytes, 'x');
        if (pwrite(fd, bytes.data(), kBytes, 0) != static_cast<ssize_t>(kBytes))
            _exit(91);
    }
    bool as_it_was() const
    {
        std::string bytes(kBytes + 1, '\0');
        return pread(fd_, bytes.data(), kBytes + 1, 0) == static_cast<ssize_t>(kBytes) &&
               bytes.find_first_not_of('x') == kBytes;
    }

  private:
    static constexpr size_t kBytes = 100000;
    int fd_;
};

TEST(Heap, WhoseDescriptorTheProgramTookForItsFileLeavesThatFileAlone)
{
    const int code = in_child([] {
        shc_heap_name name;
        char *small = allocate(kPage), *large = allocate(400 * kMiB);
        large[0] = 1;
        if (!shc_memory_heap_name(&name))
            return 1;
        Taken file(name.owner_fd);
        void *more = nullptr;
        if (shc_memory_alloc(500 * kMiB, &more) != SHC_ERR_NOSPACE || more)
            return 2;
        if (!strstr(shc_error_text(), "closed its descriptor"))
            return 3;
        shc_memory_free(large); // more than is kept
        if (!file.as_it_was())
            return 4;
        // What has its pages is a block again; what would have to be reserved is not.
        if (shc_memory_alloc(400 * kMiB, &more) == SHC_OK || !file.as_it_was())
            return 5;
        small[0] = 1;
        shc_memory_free(small);
        return small == allocate(kPage) && file.as_it_was() ? 0 : 6;
    });
    EXPECT_EQ(code, 0);
}

TEST(Heap, AForkedChildClosesNoFileThatTookTheNumberOfADescriptor)
{
    shc_heap_name name;
    char *block = allocate(kPage);
    ASSERT_TRUE(shc_memory_heap_name(&name));
    const int code = in_child([&name] {
        Taken file(name.owner_fd);
        shc_memory_free(allocate(kPage)); // now it forgets its parent
        return file.as_it_was() ? 0 : 1;
    });
    EXPECT_EQ(code, 0);
    shc_memory_free(block);
}

// The descriptor of this process's board; -1: it has none.
int board_fd()
{
    for (int fd = 0; fd < 256; fd++) {
        char link[64] = "";
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        if (readlink(path.c_str(), link, sizeof link - 1) > 0 && strstr(link, SHC_BOARD_NAME))
            return fd;
    }
    return -1;
}

TEST(Heap, AForkedChildClosesNoFileThatTookTheNumberOfTheBoardsDescriptor)
{
    const int code = in_child([] { // a process with a board
        shc_liveness *liveness = nullptr;
        shc_process_mark mark;
        shc_os_process self;
        if (shc_process_enter(&liveness, &mark, &self) != SHC_OK || board_fd() < 0)
            return 10;
        return in_child([] {
            Taken file(board_fd());
            shc_memory_free(allocate(kPage)); // now it forgets its parent
            return file.as_it_was() ? 0 : 1;
        });
    });
    EXPECT_EQ(code, 0);
}

TEST(Heap, OfAnotherProcessIsNotMeasuredByAFileThatTookTheNumberOfItsDescriptor)
{
    shc_os_process owner;
    ASSERT_EQ(shc_os_process_self(&owner), 0);
    char *block = allocate(kPage);
    shc_heap_name name;
    ASSERT_TRUE(shc_memory_heap_name(&name));
    const int code = in_child([&] {
        shc_heap_view view = {};
        if (shc_heap_attach(&view, &owner, &name) != 0)
            return 1;
        Taken file(view.fd);
        if (ftruncate(view.fd, static_cast<off_t>(view.bytes + 2 * kPage)) != 0)
            return 2;
        if (shc_heap_at(&view, view.bytes, kPage)) // a SIGBUS
            return 3;
        const int fd = view.fd;
        shc_heap_detach(&view);
        return fcntl(fd, F_GETFD) >= 0 ? 0 : 4;
    });
    EXPECT_EQ(code, 0);
    shc_memory_free(block);
}

TEST(LatePipe, WhoseNumberIsThatOfAFileGetsNoLine)
{
    const int code = in_child([] {
        int ends[2];
        char line[64] = "";
        if (pipe(ends) != 0)
            return 1;
        shc_log_file_use();
        shc_late_pipe(ends[1]);
        shc_log_late(false, "one is %d", 1);
        if (read(ends[0], line, sizeof line) != 9 || strncmp(line, "one is 1\n", 9) != 0)
            return 2;
        Taken file(ends[1]);
        shc_log_late(false, "two");
        return file.as_it_was() ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
}

void warn()
{
    shc_log_file_use();
    shc_log_warning("a line");
}

TEST(StandardError, WhoseNumberIsThatOfAFileGetsNoLine)
{
    const int code = in_child([] {
        Taken file(STDERR_FILENO);
        if (fcntl(STDERR_FILENO, F_SETFD, FD_CLOEXEC) != 0) // as programs open files
            return 1;
        warn();
        return file.as_it_was() ? 0 : 2;
    });
    EXPECT_EQ(code, 0);
}

TEST(StandardError, OfANewFileGetsTheLine)
{
    const int code = in_child([] {
        Taken file(STDERR_FILENO);
        warn();
        return file.as_it_was() ? 1 : 0;
    });
    EXPECT_EQ(code, 0);
}

TEST(StandardError, GetsOneLineThatSteersNoTerminal)
{
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const int code = in_child([&] {
        if (dup2(ends[1], STDERR_FILENO) < 0)
            return 1;
        shc_log_file_use();
        shc_log_warning("one\n\x1b[2Jtwo\x7f");
        return 0;
    });
    EXPECT_EQ(code, 0);
    char line[256] = "";
    EXPECT_GT(read(ends[0], line, sizeof line - 1), 0);
    EXPECT_STREQ(strstr(line, "warn: "), "warn: one??[2Jtwo?\n");
    close(ends[0]);
    close(ends[1]);
}

TEST(StandardError, ThatNobodyReadsHoldsNobodyUp)
{
    const int code = in_child([] {
        int ends[2];
        if (pipe2(ends, O_NONBLOCK) != 0 || dup2(ends[1], STDERR_FILENO) < 0)
            return 1;
        while (write(ends[1], "x", 1) == 1) {
        }
        if (fcntl(ends[1], F_SETFL, 0) != 0) // as a pipe of a shell
            return 2;
        alarm(20);
        const uint64_t begun_ns = shc_clock_ns();
        warn();
        return shc_clock_ns() - begun_ns < 10 * SHC_NS_PER_S ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
}

TEST(StandardError, ThatCannotBeWrittenEndsNobody)
{
    const int code = in_child([] {
        int ends[2];
        sigset_t pending;
        if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0 || close(ends[0]) != 0)
            return 1;
        signal(SIGPIPE, SIG_DFL);
        warn();
        const struct rlimit none = {0, 0};
        Taken file(STDERR_FILENO);
        if (lseek(STDERR_FILENO, 0, SEEK_END) < 0 || setrlimit(RLIMIT_FSIZE, &none) != 0)
            return 2;
        signal(SIGXFSZ, SIG_DFL);
        warn();
        if (!file.as_it_was() || sigpending(&pending) != 0)
            return 3;
        return sigismember(&pending, SIGPIPE) || sigismember(&pending, SIGXFSZ) ? 4 : 0;
    });
    EXPECT_EQ(code, 0);
}

TEST(Files, BeyondTheLimitOfFileSizesEndNobody)
{
    const int code = in_child([] {
        const struct rlimit none = {0, 0};
        char path[] = "/tmp/shmcoll-descriptors-XXXXXX";
        if (close(mkstemp(path)) != 0 || setrlimit(RLIMIT_FSIZE, &none) != 0)
            return 1;
        signal(SIGXFSZ, SIG_DFL);
        const int put = shc_os_file_put(path, "x", 1), appended = shc_os_append(path, "x", 1);
        unlink(path);
        return put == EFBIG && appended == EFBIG ? 0 : 2;
    });
    EXPECT_EQ(code, 0);
}

} // namespace
