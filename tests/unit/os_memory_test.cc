// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/os/numa.h"
#include "shm/proto/segment.h"
#include "shm/shmcoll.h"
}

#include "tests/support/in_child.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using shmcoll::test::in_child;

namespace
{

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// A few pages of a file, mapped; none is backed by memory.
class OsMemory : public ::testing::Test
{
  protected:
    static constexpr size_t kPages = 4;

    void SetUp() override
    {
        ASSERT_EQ(shc_os_memfd_create("shmcoll", &fd_), 0);
        ASSERT_EQ(shc_os_file_grow(fd_, kPages * kPage), 0);
        void *base = nullptr;
        ASSERT_EQ(shc_os_map(fd_, kPages * kPage, SHC_OS_ROBUST_DISTANCE, &base), 0);
        base_ = static_cast<char *>(base);
    }

    void TearDown() override
    {
        if (base_)
            shc_os_unmap(base_, kPages * kPage, SHC_OS_ROBUST_DISTANCE);
        if (fd_ >= 0)
            shc_os_file_close(fd_);
    }

    size_t backed_bytes() const
    {
        struct stat st = {};
        EXPECT_EQ(fstat(fd_, &st), 0);
        return static_cast<size_t>(st.st_blocks) * 512;
    }

    int policy_of(const char *address) const
    {
        int mode = -1;
        syscall(SYS_get_mempolicy, &mode, nullptr, 0, address, MPOL_F_ADDR);
        return mode;
    }

    int fd_ = -1;
    char *base_ = nullptr;
};

TEST_F(OsMemory, ARobustEntryHasRoomInFrontOfTheMapping)
{
    char *entry = base_ - SHC_OS_ROBUST_DISTANCE;
    for (size_t i = 0; i < SHC_OS_ROBUST_DISTANCE; i++)
        EXPECT_EQ(entry[i], 0);
    entry[0] = 1;
    EXPECT_EQ(base_[0], 0);
}

TEST_F(OsMemory, NothingIsLeftMappedInFrontOfTheMapping)
{
    char *guard_page = base_ - kPage;
    unsigned char resident = 0;
    EXPECT_EQ(mincore(guard_page, kPage, &resident), 0);
    shc_os_unmap(base_, kPages * kPage, SHC_OS_ROBUST_DISTANCE);
    base_ = nullptr;
    EXPECT_NE(mincore(guard_page, kPage, &resident), 0);
    EXPECT_EQ(errno, ENOMEM);
}

// The beginning of a page on one kernel lies inside a page of another.
TEST_F(OsMemory, APartThatBeginsInsideAPageIsPopulated)
{
    if (!shc_os_can_populate()) {
        EXPECT_EQ(shc_os_populate(base_ + kPage + 1024, kPage), EINVAL);
        return;
    }
    EXPECT_EQ(backed_bytes(), 0u);
    EXPECT_EQ(shc_os_populate(base_ + kPage + 1024, kPage), 0);
    EXPECT_GE(backed_bytes(), 2 * kPage);
}

// If a filter allows no policy, neither part has one.
TEST_F(OsMemory, APartThatBeginsInsideAPagePrefersItsNode)
{
    shc_os_place(base_, kPage, 1);
    shc_os_place(base_ + 2 * kPage + 1024, kPage - 1024, 1);
    EXPECT_EQ(policy_of(base_ + kPage), MPOL_DEFAULT);
    EXPECT_EQ(policy_of(base_ + 2 * kPage), policy_of(base_));
}

// In a program that has closed these numbers, what it or a library prints would go into the memory of the ranks.
TEST(OsMemoryFiles, NoFileHasTheNumberOfAStandardStream)
{
    EXPECT_EQ(in_child([] {
                  for (int fd = 0; fd <= STDERR_FILENO; fd++)
                      close(fd);
                  int unnamed = -1, named = -1, again = -1, memory = -1, of_peer = -1;
                  char name[SHC_OS_NAME_BYTES];
                  shc_os_process self = {};
                  shc_os_file_id id = {};
                  size_t bytes = 0;
                  if (shc_os_shm_create_unnamed(&unnamed) || shc_os_shm_create_named(&named, name))
                      return 1;
                  const int error = shc_os_shm_open(name, &again);
                  shc_os_shm_unlink(name);
                  if (error || shc_os_memfd_create("shmcoll", &memory))
                      return 2;
                  if (shc_os_process_self(&self) || shc_os_file_stat(memory, &id, &bytes) ||
                      shc_os_process_open_fd(&self, memory, &id, &of_peer))
                      return 3;
                  for (int fd : {unnamed, named, again, memory, of_peer}) {
                      if (fd <= STDERR_FILENO || fcntl(fd, F_GETFD) != FD_CLOEXEC)
                          return 10 + fd;
                  }
                  for (int fd = 0; fd <= STDERR_FILENO; fd++) {
                      if (fcntl(fd, F_GETFD) != -1)
                          return 20 + fd;
                  }
                  return 0;
              }),
              0);
}

// What the kernel does beyond the limit by default: it ends the process.
TEST(OsLimit, ASegmentBeyondTheLimitOfFileSizesIsAnErrorAndNoSignal)
{
    for (uint32_t form : {SHC_FORM_UNNAMED, SHC_FORM_MEMFD}) {
        const pid_t child = fork();
        if (child == 0) {
            shc_os_process self = {};
            shc_segment segment;
            const struct rlimit limit = {kPage, RLIM_INFINITY};
            if (shc_os_process_self(&self) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0)
                _exit(1);
            signal(SIGXFSZ, SIG_DFL);
            if (shc_segment_create(&segment, form, 2 * kPage, 0, &self, nullptr) != SHC_ERR_SYSTEM)
                _exit(2);
            const std::string text = shc_error_text(), kib = std::to_string(2 * kPage >> 10);
            if (text.find("File too large") == text.npos || text.find("ulimit -f") == text.npos ||
                text.find(" " + kib + " KiB") == text.npos)
                _exit(3);
            if (shc_segment_create(&segment, form, kPage, 0, &self, nullptr) != SHC_OK)
                _exit(4);
            shc_segment_detach(&segment);
            _exit(0);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_FALSE(WIFSIGNALED(status)) << WTERMSIG(status);
        EXPECT_EQ(status, 0) << form;
    }
}

// Runs a second time without the library (tests/CMakeLists.txt).
TEST_F(OsMemory, LibnumaIsUsedWhereItIsInstalledAndNotMissedElsewhere)
{
    void *library = dlopen("libnuma.so.1", RTLD_NOW);
    auto available =
        library ? reinterpret_cast<int (*)()>(dlsym(library, "numa_available")) : nullptr;
    const bool used =
        strstr(shc_build_info(), "built_with_numa=yes") && available && available() >= 0;
    ASSERT_TRUE(!getenv("SHMCOLL_TEST_NO_NUMA") || !library);
    EXPECT_EQ(shc_os_has_numa(), used);
    EXPECT_NE(strstr(shc_build_info(), used ? "\nnuma=yes\n" : "\nnuma=no\n"), nullptr);
    shc_os_place(base_, kPage, 1);
    EXPECT_EQ(policy_of(base_), used ? MPOL_PREFERRED : MPOL_DEFAULT);
    shc_os_place(base_ + kPage, kPage, 0);
    EXPECT_EQ(policy_of(base_ + kPage), MPOL_DEFAULT);
    auto node_of =
        library ? reinterpret_cast<int (*)(int)>(dlsym(library, "numa_node_of_cpu")) : nullptr;
    auto last = library ? reinterpret_cast<int (*)()>(dlsym(library, "numa_max_node")) : nullptr;
    for (int cpu = 0; cpu < 64; cpu++)
        EXPECT_EQ(shc_numa_get()->node_of[cpu], used && last() > 0 ? node_of(cpu) : -1) << cpu;
}

} // namespace
