/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Every system call of this library, under one contract (the core's own is not visible from
 * here). Functions return 0 or a positive errno and set outputs only on 0. Any thread; no state.
 *
 * Sockets are of the local machine, keep message boundaries, never block, and are closed on exec.
 */

#include "shm/base/attrs.h"
#include <poll.h>
#include <stdbool.h>
#include <time.h>

#define SHC_SYS_NAME_BYTES 48

SHC_NODISCARD int shc_sys_random(void *bytes, size_t count);
int32_t shc_sys_pid(void);
uint32_t shc_sys_uid(void);
int shc_sys_cpus(void); /* that this process may use */

/* post: *fd listens under a random name of the abstract kind, which leaves nothing to remove. */
SHC_NODISCARD int shc_sys_listen(int backlog, int *fd, char name[SHC_SYS_NAME_BYTES]);

/* EAGAIN when the listener's queue is full. EINVAL: not a name that shc_sys_listen makes. */
SHC_NODISCARD int shc_sys_connect(const char *name, int *fd);

/* EAGAIN when no process connects. */
SHC_NODISCARD int shc_sys_accept(int listener, int *fd);

/* The process at the other end, as the kernel saw it when the connection (or the listener) was made. */
SHC_NODISCARD int shc_sys_peer(int fd, int32_t *pid, uint32_t *uid);

/* Sends one message, and a descriptor with it unless `passed` is -1. */
SHC_NODISCARD int shc_sys_send(int fd, const void *bytes, size_t count, int passed);

/*
 * Receives one message. post: *count is its length, 0 at the end of the connection; *passed is the
 * descriptor that came with it, or -1. EAGAIN when there is none; EBADMSG when it is longer than
 * `capacity` or carries more than one descriptor: then none is kept.
 */
SHC_NODISCARD int shc_sys_receive(int fd, void *bytes, size_t capacity, size_t *count, int *passed);

/* Waits until one is ready, at most timeout_ns. 0 also when the time is over or a signal came. */
SHC_NODISCARD int shc_sys_poll(struct pollfd *fds, size_t count, uint64_t timeout_ns);

void shc_sys_close(int fd); /* -1: nothing */

void shc_sys_sleep_ns(uint64_t ns);
void shc_sys_yield(void);

/* That long from now, by the clock of shc_clock_ns(), as a condition variable takes it. */
struct timespec shc_sys_after(uint64_t ns);

/* Between two looks at something that is not announced: 20 us, then twice as long with every call, up
 * to 1 ms. *pause_ns: 0 before the first. */
void shc_sys_nap(uint64_t *pause_ns);

/* ---- memory that processes share ---- */

/* post: *fd is memory of that size, without a name, which can no longer be resized. EFBIG: RLIMIT_FSIZE forbids
 * it (no signal comes). */
SHC_NODISCARD int shc_sys_memory_make(size_t bytes, int *fd);

/* EBADMSG: not memory of that size, or it can still be resized. */
SHC_NODISCARD int shc_sys_memory_check(int fd, size_t bytes);

/* Takes the pages of a range now, where this thread runs. ENOSPC, ENOMEM: there are not so many. */
SHC_NODISCARD int shc_sys_memory_reserve(int fd, size_t offset, size_t bytes);

SHC_NODISCARD int shc_sys_memory_map(int fd, size_t bytes, void **base);
void shc_sys_memory_unmap(void *base, size_t bytes);

/* ---- threads of our own: they block all signals ---- */

struct shc_sys_thread {
    uint64_t handle;
};

SHC_NODISCARD int shc_sys_thread_start(struct shc_sys_thread *thread, const char *name,
                                       void *(*entry)(void *), void *arg);
void shc_sys_thread_join(const struct shc_sys_thread *thread);
