/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a wait for descriptors costs: poll, and a ring of io_uring that waits for descriptors and a futex word.
 *
 *   build/bench/benchmarks/descriptor_waits [DESCRIPTORS] [ROUNDS]
 *
 * Another thread writes a byte to a socket, or wakes the word, 200 us after the wait began. Printed are medians and
 * the quickest and slowest round, in microseconds: from that write until the sleeper runs, and what it takes to
 * make a ring, to hand it the waits, and to close it.
 */
#include "shm/base/atomic.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_RING
#include <liburing.h>
#endif

#define MOST_DESCRIPTORS 256
#define MOST_ROUNDS      1000
#define SETTLE_NS        200000
#define OP_FUTEX_WAIT    51 /* Linux 6.7; older headers lack it */
#define FUTEX2_U32       2
#define FUTEX2_OWN       128 /* FUTEX2_PRIVATE */

static int ends[MOST_DESCRIPTORS][2];
static int descriptors = 2, rounds = 200;
static shc_a32 word;
static shc_a64 rung_ns; /* when the other thread wrote */
static pthread_barrier_t begin;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void *ring_bells(void *by_word)
{
    const struct timespec settle = {.tv_nsec = SETTLE_NS};
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&begin);
        nanosleep(&settle, NULL);
        /* release descriptor_waits/rung -> acquire in since_rung(): nothing but the time. */
        shc_a64_store_release(&rung_ns, (uint64_t)now_ns());
        if (by_word) {
            /* acq_rel descriptor_waits/word: the kernel reads it. */
            shc_a32_add_acq_rel(&word, 1);
            syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
        } else if (write(ends[round % descriptors][1], "x", 1) != 1) {
            abort();
        }
    }
    return NULL;
}

static int64_t since_rung(void)
{
    /* acquire descriptor_waits/rung <- release in ring_bells(): nothing but the time. */
    return now_ns() - (int64_t)shc_a64_load_acquire(&rung_ns);
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, int64_t *ns)
{
    qsort(ns, (size_t)rounds, sizeof *ns, compare);
    printf("%-44s %8.1f  (%.1f to %.1f)\n", what, (double)ns[rounds / 2] / 1e3, (double)ns[0] / 1e3,
           (double)ns[rounds - 1] / 1e3);
}

static void drain(void)
{
    char byte;
    for (int i = 0; i < descriptors; i++)
        while (recv(ends[i][0], &byte, 1, MSG_DONTWAIT) == 1)
            ;
}

static void by_poll(void)
{
    static int64_t woke[MOST_ROUNDS];
    struct pollfd fds[MOST_DESCRIPTORS];
    for (int i = 0; i < descriptors; i++)
        fds[i] = (struct pollfd){.fd = ends[i][0], .events = POLLIN};
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&begin);
        while (poll(fds, (nfds_t)descriptors, 10) <= 0)
            ;
        woke[round] = since_rung();
        drain();
    }
    print("poll: socket", woke);
}

#ifdef HAVE_RING
static int64_t made[MOST_ROUNDS], handed[MOST_ROUNDS], woke[MOST_ROUNDS], closed[MOST_ROUNDS];

/* False: this kernel has no such wait, or a filter refuses rings. */
static bool wait_once(int round, uint32_t heard)
{
    struct io_uring ring;
    struct io_uring_cqe *done;
    const int64_t a = now_ns();
    if (io_uring_queue_init(MOST_DESCRIPTORS + 1, &ring, 0) != 0)
        return false;
    const int64_t b = now_ns();
    for (int i = 0; i < descriptors; i++)
        io_uring_prep_poll_add(io_uring_get_sqe(&ring), ends[i][0], POLLIN);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_rw(OP_FUTEX_WAIT, sqe, FUTEX2_U32 | FUTEX2_OWN, &word, 0, heard);
    sqe->addr3 = FUTEX_BITSET_MATCH_ANY;
    io_uring_submit(&ring);
    const int64_t c = now_ns();
    pthread_barrier_wait(&begin);
    int error;
    do {
        error = io_uring_wait_cqe(&ring, &done);
    } while (error == -EINTR);
    woke[round] = since_rung();
    const int64_t d = now_ns();
    const bool works = error == 0 && done->res != -EINVAL;
    io_uring_queue_exit(&ring);
    made[round] = b - a;
    handed[round] = c - b;
    closed[round] = now_ns() - d;
    drain();
    return works;
}

static bool by_ring(const char *what, bool tell_costs)
{
    for (int round = 0; round < rounds; round++) {
        /* relaxed: no other thread writes until this one waits. */
        if (!wait_once(round, shc_a32_load_relaxed(&word)))
            return false;
    }
    print(what, woke);
    if (tell_costs) {
        print("  making a ring", made);
        print("  handing it the waits", handed);
        print("  closing it", closed);
    }
    return true;
}
#endif

static void with_ringer(void *by_word, const char *what, bool tell_costs)
{
    pthread_t ringer;
    pthread_create(&ringer, NULL, ring_bells, by_word);
    if (what == NULL)
        by_poll();
#ifdef HAVE_RING
    else if (!by_ring(what, tell_costs)) {
        printf("no ring that waits for a word here\n");
        exit(0);
    }
#endif
    pthread_join(ringer, NULL);
    (void)tell_costs;
}

int main(int argc, char **argv)
{
    descriptors = argc > 1 ? atoi(argv[1]) : descriptors;
    rounds = argc > 2 ? atoi(argv[2]) : rounds;
    if (descriptors < 1 || descriptors > MOST_DESCRIPTORS || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "1 to %d descriptors, 1 to %d rounds\n", MOST_DESCRIPTORS, MOST_ROUNDS);
        return 2;
    }
    for (int i = 0; i < descriptors; i++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]) != 0) {
            perror("socketpair");
            return 1;
        }
    pthread_barrier_init(&begin, NULL, 2);
    printf("%d descriptors, %d rounds, us\n", descriptors, rounds);
    with_ringer(NULL, NULL, false);
#ifdef HAVE_RING
    with_ringer(NULL, "ring: socket", true);
    with_ringer(&word, "ring: word", false);
#endif
    return 0;
}
