/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/sys.h"
#include "shm/base/clock.h"
#include "shm/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAP_SHORTEST_NS (20 * SHC_NS_PER_US)
#define NAP_LONGEST_NS  SHC_NS_PER_MS

#define NAME_PREFIX "shmcoll-cuda-"
#define NAME_BYTES  (sizeof NAME_PREFIX - 1 + 32) /* and 128 random bits */

int shc_sys_random(void *bytes, size_t count)
{
    return getrandom(bytes, count, 0) == (ssize_t)count ? 0 : EIO;
}

int32_t shc_sys_pid(void)
{
    return (int32_t)getpid();
}

int shc_sys_cpus(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

uint32_t shc_sys_uid(void)
{
    return (uint32_t)geteuid();
}

/* An abstract name begins with a 0 byte and has no other end than its length. */
static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, NAME_BYTES);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES);
}

/* As shc_os_off_standard(): a descriptor that has not the number of a standard stream. */
static int off_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close(fd);
    errno = error;
    return higher;
}

static int local_socket(void)
{
    return off_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int shc_sys_listen(int backlog, int *fd, char name[SHC_SYS_NAME_BYTES])
{
    uint64_t random[2];
    struct sockaddr_un address;
    char made[SHC_SYS_NAME_BYTES];
    int error = shc_sys_random(random, sizeof random);
    if (error)
        return error;
    snprintf(made, sizeof made, NAME_PREFIX "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    const socklen_t bytes = address_of(made, &address);
    const int opened = local_socket();
    if (opened < 0)
        return errno;
    if (bind(opened, (const struct sockaddr *)&address, bytes) != 0 ||
        listen(opened, backlog) != 0) {
        error = errno;
        close(opened);
        return error;
    }
    memcpy(name, made, sizeof made);
    *fd = opened;
    return 0;
}

int shc_sys_connect(const char *name, int *fd)
{
    struct sockaddr_un address;
    if (strnlen(name, SHC_SYS_NAME_BYTES) != NAME_BYTES ||
        strncmp(name, NAME_PREFIX, sizeof NAME_PREFIX - 1) != 0)
        return EINVAL;
    const socklen_t bytes = address_of(name, &address);
    const int opened = local_socket();
    if (opened < 0)
        return errno;
    if (connect(opened, (const struct sockaddr *)&address, bytes) != 0) {
        const int error = errno;
        close(opened);
        return error;
    }
    *fd = opened;
    return 0;
}

int shc_sys_accept(int listener, int *fd)
{
    const int accepted = off_standard(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted < 0)
        return errno == EINTR || errno == ECONNABORTED ? EAGAIN : errno;
    *fd = accepted;
    return 0;
}

int shc_sys_peer(int fd, int32_t *pid, uint32_t *uid)
{
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
        return errno;
    *pid = (int32_t)credentials.pid;
    *uid = (uint32_t)credentials.uid;
    return 0;
}

/* Room for one descriptor, aligned as the kernel writes it. */
union passing {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

int shc_sys_send(int fd, const void *bytes, size_t count, int passed)
{
    union passing passing;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        memset(&passing, 0, sizeof passing);
        passing.header.cmsg_level = SOL_SOCKET;
        passing.header.cmsg_type = SCM_RIGHTS;
        passing.header.cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(&passing.header), &passed, sizeof passed);
        message.msg_control = passing.bytes;
        message.msg_controllen = sizeof passing.bytes;
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? errno : 0;
}

int shc_sys_receive(int fd, void *bytes, size_t capacity, size_t *count, int *passed)
{
    union passing passing;
    struct iovec part = {.iov_base = bytes, .iov_len = capacity};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = passing.bytes,
                             /* not its padding, in which a second descriptor would fit */
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t received;
    bool reset = false;
    do {
        received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        /* A process that closes with something unread resets the other end: that is reported once,
         * before what was sent earlier. */
        if (received < 0 && errno == ECONNRESET && !reset) {
            reset = true;
            errno = EINTR;
        }
    } while (received < 0 && errno == EINTR);
    if (received < 0)
        return errno;
    int came = -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof came))
        memcpy(&came, CMSG_DATA(header), sizeof came);
    if (message.msg_flags &
        (MSG_TRUNC | MSG_CTRUNC)) { /* the kernel has dropped what had no room */
        shc_sys_close(came);
        return EBADMSG;
    }
    *count = (size_t)received;
    *passed = came;
    return 0;
}

int shc_sys_poll(struct pollfd *fds, size_t count, uint64_t timeout_ns)
{
    const uint64_t ms = timeout_ns / SHC_NS_PER_MS + 1;
    if (poll(fds, (nfds_t)count, ms > INT_MAX ? INT_MAX : (int)ms) < 0 && errno != EINTR)
        return errno;
    return 0;
}

void shc_sys_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

void shc_sys_sleep_ns(uint64_t ns)
{
    const struct timespec time = {.tv_sec = (time_t)(ns / SHC_NS_PER_S),
                                  .tv_nsec = (long)(ns % SHC_NS_PER_S)};
    (void)nanosleep(&time, NULL); /* a signal may end it early */
}

void shc_sys_yield(void)
{
    sched_yield();
}

struct timespec shc_sys_after(uint64_t ns)
{
    const uint64_t then = shc_clock_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(then / SHC_NS_PER_S),
                             .tv_nsec = (long)(then % SHC_NS_PER_S)};
}

void shc_sys_nap(uint64_t *pause_ns)
{
    *pause_ns = *pause_ns == 0 ? NAP_SHORTEST_NS : shc_min_size(2 * *pause_ns, NAP_LONGEST_NS);
    shc_sys_sleep_ns(*pause_ns);
}

/* ---- memory that processes share ---- */

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* May a file be so long? Where it may not, the kernel would send SIGXFSZ, which ends the process. */
static bool may_be_so_long(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= bytes;
}

int shc_sys_memory_make(size_t bytes, int *fd)
{
    if (!may_be_so_long(bytes))
        return EFBIG;
    const int made = off_standard(memfd_create("shmcoll-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (made < 0)
        return errno;
    if (ftruncate(made, (off_t)bytes) != 0 || fcntl(made, F_ADD_SEALS, SEALS) != 0) {
        const int error = errno;
        close(made);
        return error;
    }
    *fd = made;
    return 0;
}

int shc_sys_memory_check(int fd, size_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return errno;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes || seals < 0 ||
        (seals & SEALS) != SEALS)
        return EBADMSG;
    return 0;
}

int shc_sys_memory_reserve(int fd, size_t offset, size_t bytes)
{
    int error;
    do {
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    } while (error == EINTR);
    return error;
}

int shc_sys_memory_map(int fd, size_t bytes, void **base)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return errno;
    *base = mapped;
    return 0;
}

void shc_sys_memory_unmap(void *base, size_t bytes)
{
    (void)munmap(base, bytes);
}

/* ---- threads ---- */

int shc_sys_thread_start(struct shc_sys_thread *thread, const char *name, void *(*entry)(void *),
                         void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t handle;
    const int error = pthread_create(&handle, NULL, entry, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return error;
    pthread_setname_np(handle, name);
    thread->handle = (uint64_t)handle;
    return 0;
}

void shc_sys_thread_join(const struct shc_sys_thread *thread)
{
    (void)pthread_join((pthread_t)thread->handle, NULL);
}
