// SPDX-License-Identifier: BSD-3-Clause
// The control socket between ranks that are threads: rounds, strangers, silence, death.
#include "tests/cuda/descriptors.h"
#include "tests/support/in_child.h"

extern "C" {
#include "cuda_ipc/control.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/clock.h"
}

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace shmcoll::test
{
namespace
{

constexpr uint64_t kPatience = 20 * SHC_NS_PER_S;

uint64_t in(uint64_t ns)
{
    return shc_deadline_after(shc_clock_ns(), ns);
}

// Every rank's socket, and the addresses, which all ranks know.
struct Group {
    explicit Group(int world) : controls(static_cast<size_t>(world))
    {
        for (int r = 0; r < world; r++) {
            EXPECT_EQ(shc_control_open(r, world, &controls[static_cast<size_t>(r)]), SHC_OK)
                << shc_cuda_failure();
            all.push_back(controls[static_cast<size_t>(r)].self);
        }
    }
    ~Group()
    {
        for (auto &control : controls)
            shc_control_close(&control);
    }
    // Runs each body in a thread of its own; an empty body is a rank that never comes.
    void run(const std::vector<std::function<void(shc_control &)>> &bodies)
    {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < bodies.size(); r++)
            if (bodies[r])
                threads.emplace_back(bodies[r], std::ref(controls[r]));
        for (auto &thread : threads)
            thread.join();
    }
    void run(const std::function<void(shc_control &)> &body)
    {
        run(std::vector<std::function<void(shc_control &)>>(controls.size(), body));
    }

    std::vector<shc_control> controls;
    std::vector<shc_control_address> all;
};

// A file with a byte in it.
int file_with(char byte)
{
    const int fd = memfd_create("control_test", MFD_CLOEXEC);
    EXPECT_EQ(write(fd, &byte, 1), 1);
    return fd;
}

char byte_in(int fd)
{
    char byte = 0;
    EXPECT_EQ(pread(fd, &byte, 1, 0), 1);
    return byte;
}

using Messages = std::vector<shc_control_message>;

void three_rounds(Group &group, shc_control &control)
{
    ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK)
        << shc_cuda_failure();
    Messages theirs(group.all.size());
    for (int round = 0; round < 3; round++) {
        shc_control_message mine = {};
        mine.count = static_cast<uint32_t>(1 + round);
        mine.bytes[round] = static_cast<unsigned char>(control.rank);
        // Some rounds carry a descriptor, from some ranks.
        const char byte = static_cast<char>('a' + control.rank);
        mine.fd = round != 1 && control.rank % 2 == 0 ? file_with(byte) : -1;
        ASSERT_EQ(shc_control_swap(&control, &mine, in(kPatience), theirs.data()), SHC_OK)
            << shc_cuda_failure();
        shc_sys_close(mine.fd);
        for (int r = 0; r < control.world; r++) {
            const auto &message = theirs[static_cast<size_t>(r)];
            EXPECT_EQ(message.count, mine.count);
            EXPECT_EQ(message.bytes[round], r);
            const bool sent = round != 1 && r % 2 == 0 && r != control.rank;
            ASSERT_EQ(message.fd >= 0, sent) << "rank " << r;
            EXPECT_EQ(sent ? byte_in(message.fd) : 0, sent ? 'a' + r : 0);
            shc_sys_close(message.fd);
        }
    }
}

TEST(Control, EveryRankGetsEveryMessageAndItsDescriptor)
{
    for (int world : {1, 2, 3, 9}) {
        const int before = open_descriptors();
        {
            Group group(world);
            group.run([&](shc_control &control) { three_rounds(group, control); });
            for (auto &control : group.controls)
                EXPECT_EQ(control.strangers, 0U);
        }
        EXPECT_EQ(open_descriptors(), before);
    }
}

// A stranger's connection to this rank's socket, with these words.
int stranger(const shc_control_address &to, const void *bytes, size_t count, int passed = -1)
{
    int fd = -1;
    EXPECT_EQ(shc_sys_connect(to.name, &fd), 0);
    if (count > 0) {
        EXPECT_EQ(shc_sys_send(fd, bytes, count, passed), 0);
    }
    return fd;
}

struct Hello { // as control.c has it
    uint64_t secret[2];
    uint32_t from, world;
};

TEST(Control, StrangersAreTurnedAwayAndChangeNothing)
{
    const int before = open_descriptors();
    {
        Group group(2);
        const shc_control_address &zero = group.all[0];
        const Hello wrong = {{1, 2}, 1, 2};
        const Hello other_world = {{zero.secret[0], zero.secret[1]}, 1, 3};
        const Hello no_rank = {{zero.secret[0], zero.secret[1]}, 7, 8};
        const Hello too_low = {{zero.secret[0], zero.secret[1]}, 0, 2};
        const Hello with_file = {{zero.secret[0], zero.secret[1]}, 1, 2};
        const int file = file_with('x');
        const std::vector<int> strangers = {
            stranger(zero, &wrong, sizeof wrong),
            stranger(zero, "short", 5),
            stranger(zero, &other_world, sizeof other_world),
            stranger(zero, &no_rank, sizeof no_rank),
            stranger(zero, &too_low, sizeof too_low),
            stranger(zero, &with_file, sizeof with_file, file),
            stranger(zero, nullptr, 0), // says nothing
        };
        group.run([&](shc_control &control) { three_rounds(group, control); });
        EXPECT_EQ(group.controls[0].strangers, strangers.size());
        for (int fd : strangers)
            close(fd);
        close(file);
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST(Control, ManySilentStrangersDoNotKeepTheRanksApart)
{
    Group group(2);
    std::vector<int> strangers;
    for (int i = 0; i < 200; i++)
        strangers.push_back(stranger(group.all[0], nullptr, 0));
    group.run([&](shc_control &control) { three_rounds(group, control); });
    EXPECT_EQ(group.controls[0].strangers, strangers.size());
    for (int fd : strangers)
        close(fd);
}

// Only the kernel is believed: the connecting process must be the announced one.
TEST(Control, AnotherProcessThanTheAnnouncedOneIsNoRank)
{
    Group group(2);
    group.all[1].pid++; // as if rank 1 had announced itself from another process
    group.run({[&](shc_control &control) {
                   EXPECT_EQ(shc_control_meet(&control, group.all.data(), in(200 * SHC_NS_PER_MS)),
                             SHC_ERR_TIMEOUT);
                   EXPECT_EQ(control.strangers, 1U);
               },
               [&](shc_control &control) {
                   EXPECT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
               }});
}

TEST(Control, ANameThatAnotherProcessAnswersIsNamed)
{
    Group group(2);
    group.all[0].pid++;
    group.run({{}, [&](shc_control &control) {
                   EXPECT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)),
                             SHC_ERR_UNREACHABLE);
                   EXPECT_NE(strstr(shc_cuda_failure(), "another process than rank 0"), nullptr)
                       << shc_cuda_failure();
               }});
}

TEST(Control, ASocketThatIsGoneIsNamed)
{
    Group group(2);
    shc_control_close(&group.controls[0]);
    group.run({{}, [&](shc_control &control) {
                   EXPECT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)),
                             SHC_ERR_UNREACHABLE);
                   EXPECT_NE(strstr(shc_cuda_failure(), "rank 0"), nullptr) << shc_cuda_failure();
               }});
}

// In a program that has closed these numbers, what it prints would go to another rank.
TEST(Sys, NoDescriptorHasTheNumberOfAStandardStream)
{
    EXPECT_EQ(in_child([] {
                  for (int fd = 0; fd <= STDERR_FILENO; fd++)
                      close(fd);
                  int listener = -1, connected = -1, accepted = -1, memory = -1;
                  char name[SHC_SYS_NAME_BYTES];
                  if (shc_sys_listen(1, &listener, name) || shc_sys_connect(name, &connected) ||
                      shc_sys_accept(listener, &accepted) || shc_sys_memory_make(4096, &memory))
                      return 1;
                  for (int fd : {listener, connected, accepted, memory}) {
                      if (fd <= STDERR_FILENO || fcntl(fd, F_GETFD) != FD_CLOEXEC)
                          return 10 + fd;
                  }
                  return 0;
              }),
              0);
}

TEST(Control, ANameOfAnotherFormIsNeverConnectedTo)
{
    int fd;
    EXPECT_EQ(shc_sys_connect("", &fd), EINVAL);
    EXPECT_EQ(shc_sys_connect("dbus-0123456789abcdef0123456789abcdef01234567", &fd), EINVAL);
    EXPECT_EQ(shc_sys_connect("shmcoll-cuda-0123456789abcdef0123456789abcde", &fd), EINVAL);
}

TEST(Control, RanksThatDoNotComeAreNamed)
{
    Group group(4);
    const auto meet = [&](shc_control &control) {
        EXPECT_EQ(shc_control_meet(&control, group.all.data(), in(300 * SHC_NS_PER_MS)),
                  SHC_ERR_TIMEOUT);
        EXPECT_NE(strstr(shc_cuda_failure(), "rank 2, rank 3 "), nullptr) << shc_cuda_failure();
    };
    group.run({meet, meet, {}, {}});
}

// Rank 0 learns of it first, and leaves: rank 1 must not take rank 0 for the dead one.
TEST(Control, ARankThatLeavesInARoundIsNamedByAll)
{
    const int before = open_descriptors();
    for (int repeat = 0; repeat < 20; repeat++) {
        Group group(4);
        const auto swap = [&](shc_control &control) {
            Messages theirs(4);
            shc_control_message mine = {};
            mine.count = 1;
            mine.fd = file_with('m');
            ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
            EXPECT_EQ(shc_control_swap(&control, &mine, in(kPatience), theirs.data()),
                      SHC_ERR_PEER_DEAD);
            EXPECT_STREQ(shc_cuda_failure(), "rank 3 closed its control socket");
            close(mine.fd);
            shc_control_close(&control);
        };
        const auto leave = [&](shc_control &control) {
            ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
            shc_control_close(&control);
        };
        group.run({swap, swap, swap, leave});
    }
    EXPECT_EQ(open_descriptors(), before);
}

// Rank 2 takes rank 1 for a stranger, and leaves; rank 0 has met both.
TEST(Control, ARankThatFailsToMeetTellsThoseItHasMet)
{
    Group group(3);
    const shc_control_address &zero = group.all[0];
    const Hello one = {{zero.secret[0], zero.secret[1]}, 1, 3};
    const int rank_1 = stranger(zero, &one, sizeof one); // does no more than that
    group.run({[&](shc_control &control) {
                   Messages theirs(3);
                   shc_control_message mine = {};
                   mine.count = 1;
                   mine.fd = -1;
                   ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
                   EXPECT_EQ(shc_control_swap(&control, &mine, in(kPatience), theirs.data()),
                             SHC_ERR_PEER_DEAD);
                   EXPECT_NE(strstr(shc_cuda_failure(), "another process than rank 1"), nullptr)
                       << shc_cuda_failure();
               },
               {},
               [&](shc_control &control) {
                   auto wrong = group.all;
                   wrong[1].pid++;
                   EXPECT_EQ(shc_control_meet(&control, wrong.data(), in(kPatience)),
                             SHC_ERR_UNREACHABLE);
                   shc_control_close(&control);
               }});
    close(rank_1);
}

TEST(Control, ASilentRankIsNamed)
{
    Group group(3);
    const auto speak = [&](shc_control &control) {
        Messages theirs(3);
        shc_control_message mine = {};
        mine.count = 1;
        mine.fd = -1;
        ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
        EXPECT_EQ(shc_control_swap(&control, &mine, in(100 * SHC_NS_PER_MS), theirs.data()),
                  SHC_ERR_TIMEOUT);
        EXPECT_NE(strstr(shc_cuda_failure(), "rank 1 said nothing"), nullptr) << shc_cuda_failure();
    };
    group.run({speak,
               [&](shc_control &control) {
                   ASSERT_EQ(shc_control_meet(&control, group.all.data(), in(kPatience)), SHC_OK);
               },
               speak});
}

// Two descriptors in one message, or a message that is too long: nothing of it is kept.
TEST(Control, AMessageOfAnotherFormLeavesNoDescriptor)
{
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    const int before = open_descriptors();
    char bytes[16], space[CMSG_SPACE(2 * sizeof(int))] = {};
    iovec part = {bytes, sizeof bytes};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = {CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), pair, sizeof pair);
    size_t count;
    int passed;
    ASSERT_EQ(sendmsg(pair[0], &message, 0), 16);
    EXPECT_EQ(shc_sys_receive(pair[1], bytes, sizeof bytes, &count, &passed), EBADMSG);
    EXPECT_EQ(open_descriptors(), before);
    ASSERT_EQ(shc_sys_send(pair[0], bytes, sizeof bytes, pair[0]), 0);
    EXPECT_EQ(shc_sys_receive(pair[1], bytes, 8, &count, &passed), EBADMSG);
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_EQ(shc_sys_receive(pair[1], bytes, 8, &count, &passed), EAGAIN);
    close(pair[0]);
    close(pair[1]);
}

// What the kernel does beyond the limit by default: it ends the process.
TEST(Control, MemoryBeyondTheLimitOfFileSizesIsAnErrorAndNoSignal)
{
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {1 << 20, RLIM_INFINITY};
        int fd = -1;
        signal(SIGXFSZ, SIG_DFL);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(1);
        if (shc_sys_memory_make(2 << 20, &fd) != EFBIG || fd != -1)
            _exit(2);
        _exit(shc_sys_memory_make(1 << 20, &fd) == 0 ? 0 : 3);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status)) << WTERMSIG(status);
    EXPECT_EQ(status, 0);
}

// A rank that knows that another one has died need not wait for it.
TEST(Control, WhoLooksEndsAMeeting)
{
    shc_control control;
    ASSERT_EQ(shc_control_open(0, 2, &control), SHC_OK);
    control.look = [](void *ctx) {
        ++*static_cast<int *>(ctx);
        return shc_cuda_fail(SHC_ERR_PEER_DEAD, "rank 1 is dead");
    };
    int looks = 0;
    control.look_ctx = &looks;
    const shc_control_address all[2] = {control.self, control.self};
    EXPECT_EQ(shc_control_meet(&control, all, shc_clock_ns() + 60 * SHC_NS_PER_S),
              SHC_ERR_PEER_DEAD);
    EXPECT_EQ(looks, 1);
    shc_control_close(&control);
}

} // namespace
} // namespace shmcoll::test
