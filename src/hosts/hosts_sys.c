/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_sys.h"

#include "shm/base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 200

void shc_hosts_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool shc_hosts_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    const struct timespec until = {
        .tv_sec = (time_t)(deadline_ns / SHC_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % SHC_NS_PER_S),
    };
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

uint64_t shc_hosts_random(void)
{
    uint64_t number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
        number = shc_clock_ns() << 22 ^ (uint64_t)getpid();
    return number;
}

int shc_hosts_start_thread(const char *name, void *(*entry)(void *), void *arg)
{
    sigset_t all, before;
    pthread_t handle;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&handle, NULL, entry, arg);
    if (error == 0) {
        pthread_setname_np(handle, name);
        pthread_detach(handle);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static bool refuses(const struct addrinfo *address)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    const int fd =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0)
        error = errno;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (error == EINPROGRESS && (poll(&ready, 1, ANSWER_MS) != 1 ||
                                 getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0))
        error = 0;
    close(fd);
    return error == ECONNREFUSED;
}

bool shc_hosts_refuses(const char *host, int port)
{
    char service[16];
    const struct addrinfo wish = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &wish, &found) != 0)
        return false;
    bool all = true;
    for (const struct addrinfo *one = found; one && all; one = one->ai_next)
        all = refuses(one);
    freeaddrinfo(found);
    return all;
}
