// SPDX-License-Identifier: BSD-3-Clause
// A test's body in a process of its own: what it closes, limits or is killed by is not the test program's.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shmcoll::test
{

// Runs the body in a forked child; what it returns is the exit code.
template <typename Body>
int in_child(Body body)
{
    const pid_t child = fork();
    if (child == 0)
        _exit(body());
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

} // namespace shmcoll::test
