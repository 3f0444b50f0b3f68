// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/os/os.h"
}

#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

    std::string end() const
    {
        shc_os_process self;
        char text[64] = "not written";
        EXPECT_EQ(shc_os_process_self(&self), 0);
        shc_os_process_end_text(&self, &process_, text, sizeof text);
        return text;
    }

  private:
    pid_t pid_ = -1;
    shc_os_process process_ = {};
};

TEST(OsProcess, TellsTheSignalThatEndedAnother)
{
    Child child([] { raise(SIGKILL); });
    child.await(WEXITED);
    EXPECT_EQ(child.end(), "killed by signal 9");
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

} // namespace
