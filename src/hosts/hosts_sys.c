/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_sys.h"

#include <pthread.h>
#include <signal.h>

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
