/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writing to files, pipes and standard error. No write ends the process by a signal.
 */
#include "shm/base/clock.h"
#include "shm/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STDERR_WAIT_NS (100 * SHC_NS_PER_MS)

/* write(), but a pipe that nobody reads and a limit of file sizes are errors alone: EPIPE, EFBIG. The kernel sends
 * their signals to the thread that writes. */
static ssize_t write_unharmed(int fd, const void *bytes, size_t count)
{
    sigset_t both, before, earlier;
    sigemptyset(&both);
    sigaddset(&both, SIGPIPE);
    sigaddset(&both, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &both, &before);
    sigpending(&earlier);
    const ssize_t done = write(fd, bytes, count);
    const int error = done < 0 ? errno : 0;
    const int number = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
    if (number != 0 && sigismember(&earlier, number) == 0) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, number);
        const struct timespec at_once = {0};
        (void)!sigtimedwait(&one, NULL, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return done;
}

/* A standard stream passes through exec, so it is not closed there. A descriptor that is so belongs to a file that was
 * opened after the stream had been closed: its number was free. */
static bool is_stream(int fd)
{
    const int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

void shc_os_tell_stderr(const char *bytes, size_t count)
{
    const uint64_t until_ns = shc_clock_ns() + STDERR_WAIT_NS;
    struct pollfd stream = {.fd = fileno(stderr), .events = POLLOUT};
    while (count > 0 && is_stream(stream.fd)) {
        const uint64_t now_ns = shc_clock_ns();
        if (now_ns >= until_ns)
            return;
        const int ready = poll(&stream, 1, (int)((until_ns - now_ns) / SHC_NS_PER_MS + 1));
        const ssize_t done = ready > 0 ? write_unharmed(stream.fd, bytes, count) : 0;
        if ((ready < 0 || done < 0) && errno != EINTR)
            return;
        bytes += done > 0 ? done : 0;
        count -= done > 0 ? (size_t)done : 0;
    }
}

int shc_os_append(const char *path, const void *bytes, size_t count)
{
    /* A pipe that nobody reads must hold up no rank. */
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return errno;
    const int error = write_unharmed(fd, bytes, count) < 0 ? errno : 0;
    close(fd);
    return error;
}

void shc_os_file_tell_own(int fd, const struct shc_os_file_id *id, const void *bytes, size_t count)
{
    if (shc_os_file_is(fd, id))
        (void)!write_unharmed(fd, bytes, count);
}

int shc_os_file_begin(struct shc_os_new_file *file, const char *path)
{
    if (snprintf(file->temporary, sizeof file->temporary, "%s.%d.tmp", path,
                 (int)shc_os_thread_id()) >= (int)sizeof file->temporary)
        return ENAMETOOLONG;
    file->fd = open(file->temporary, O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC,
                    S_IRUSR | S_IWUSR);
    return file->fd >= 0 ? 0 : errno;
}

int shc_os_file_add(const struct shc_os_new_file *file, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t now = write_unharmed(file->fd, (const char *)bytes + done, count - done);
        if (now < 0 && errno != EINTR)
            return errno;
        if (now > 0)
            done += (size_t)now;
    }
    return 0;
}

int shc_os_file_end(struct shc_os_new_file *file, const char *path, int error)
{
    /* A network file system tells only then that there was no room. */
    if (close(file->fd) != 0 && error == 0 && errno != EINTR)
        error = errno;
    if (error == 0 && rename(file->temporary, path) != 0)
        error = errno;
    if (error != 0)
        unlink(file->temporary);
    return error;
}

int shc_os_file_put(const char *path, const void *bytes, size_t count)
{
    struct shc_os_new_file file;
    int error = shc_os_file_begin(&file, path);
    if (error != 0)
        return error;
    error = shc_os_file_add(&file, bytes, count);
    return shc_os_file_end(&file, path, error);
}
