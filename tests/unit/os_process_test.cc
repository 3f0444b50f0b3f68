// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/os/os.h"
#include "shm/shmcoll.h"
}

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <gtest/gtest.h>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static int opened; // how often this process has asked that all may trace it

// In the place of libc's: a kernel without Yama shows no other sign of that.
extern "C" int prctl(int option, ...)
{
    va_list args;
    va_start(args, option);
    const unsigned long argument = va_arg(args, unsigned long);
    va_end(args);
    if (option == PR_SET_PTRACER && argument == PR_SET_PTRACER_ANY)
        opened++;
    return static_cast<int>(syscall(SYS_prctl, option, argument, 0, 0, 0));
}

namespace
{

// A child that ends in some way, and what /proc says of it before anybody waits for it.
class Child
{
  public:
    explicit Child(void (*life)())
    {
        int fds[2];
        EXPECT_EQ(pipe(fds), 0);
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            shc_os_process self;
            const bool told =
                shc_os_process_self(&self) == 0 && write(fds[1], &self, sizeof self) == sizeof self;
            if (told)
                life();
            _exit(99);
        }
        EXPECT_EQ(read(fds[0], &process_, sizeof process_), sizeof process_);
        close(fds[0]);
        close(fds[1]);
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;
    ~Child()
    {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }

    // Until it has ended, or, with WSTOPPED, has stopped.
    void await(int what)
    {
        siginfo_t info;
        ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, what | WNOWAIT), 0);
    }

    std::string end(bool dies = false) const
    {
        shc_os_process self;
        EXPECT_EQ(shc_os_process_self(&self), 0);
        const shc_os_end end = shc_os_process_end(&self, &process_, dies);
        const char *kinds[] = {"unknown", "exit code", "signal"};
        return end.kind == SHC_OS_END_UNKNOWN ? ""
                                              : kinds[end.kind] + (" " + std::to_string(end.code));
    }

  private:
    pid_t pid_ = -1;
    shc_os_process process_ = {};
};

// Two threads on one CPU: each waits for it while the other one runs.
TEST(OsProcess, TellsHowLongItWaitsForACpu)
{
    char text[96];
    if (shc_os_read_text("/proc/self/schedstat", text, sizeof text) != 0)
        GTEST_SKIP() << "this kernel keeps no such account";
    cpu_set_t one, all;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(shc_os_cpu_current()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const uint64_t before_ns = shc_os_cpu_awaited_ns();
    std::atomic<bool> ends{false};
    std::thread other([&ends] { // inherits the CPU
        while (!ends)
            continue;
    });
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (shc_os_cpu_awaited_ns() - before_ns < 20 * 1000 * 1000 &&
           std::chrono::steady_clock::now() < until)
        continue;
    ends = true;
    other.join();
    ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
    EXPECT_GE(shc_os_cpu_awaited_ns() - before_ns, 20U * 1000 * 1000);
}

TEST(OsProcess, TellsTheSignalThatEndedAnother)
{
    Child child([] { raise(SIGKILL); });
    child.await(WEXITED);
    EXPECT_EQ(child.end(), "signal 9");
}

TEST(OsProcess, TellsTheExitCodeOfAnother)
{
    Child child([] { _exit(3); });
    child.await(WEXITED);
    EXPECT_EQ(child.end(), "exit code 3");
}

TEST(OsProcess, TellsNothingOfOneThatEndedWell)
{
    Child child([] { _exit(0); });
    child.await(WEXITED);
    EXPECT_EQ(child.end(), "");
}

// The kernel has the signal in the same place.
TEST(OsProcess, TellsNothingOfOneThatIsStopped)
{
    Child child([] {
        raise(SIGSTOP);
        pause();
    });
    child.await(WSTOPPED);
    EXPECT_EQ(child.end(), "");
}

// Its first thread is late: it has no other state than before.
TEST(OsProcess, TellsTheSignalOfOneThatIsKnownToDie)
{
    Child child([] {
        raise(SIGSTOP);
        pause();
    });
    child.await(WSTOPPED);
    EXPECT_EQ(child.end(true), "signal " + std::to_string(SIGSTOP));
}

// Makes a group, and says how often this process has asked.
int asked_in_a_child(const char *value)
{
    const pid_t pid = fork();
    if (pid == 0) {
        shc_comm_config config = {};
        shc_comm *comm = nullptr;
        config.world_size = 1;
        setenv("SHMCOLL_TRACEABLE", value, 1);
        for (int i = 0; i < 2; i++)
            if (shc_comm_create(&config, &comm) != SHC_OK)
                _exit(99);
        _exit(opened);
    }
    int status;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

TEST(OsProcess, LetsOthersTraceItOnceAndOnlyIfItIsTold)
{
    EXPECT_EQ(asked_in_a_child("1"), 1);
    EXPECT_EQ(asked_in_a_child("0"), 0);
    EXPECT_EQ(asked_in_a_child("yes"), 0);
}

} // namespace
