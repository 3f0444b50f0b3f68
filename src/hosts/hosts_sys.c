/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_sys.h"

#include "shm/base/clock.h"

#include <signal.h>

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
