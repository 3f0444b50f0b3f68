/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What bells and rings cost: ringing a bell that nobody sleeps on, waking a sleeper, passing a word
 * through a ring.
 *
 *   build/bench/benchmarks/wakeups [ROUNDS]
 *
 * The sleeper is a thread of this process, or a child (as ranks are: the futex is shared then).
 * Printed are medians over rounds, and the quickest and slowest round.
 */
#include "shm/base/clock.h"
#include "shm/proto/bell.h"
#include "shm/proto/ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RINGS      1000000 /* of a round, with nobody asleep */
#define WAKES      2000
#define WORDS      1000000
#define SLOTS      64
#define MAX_ROUNDS 99
#define SETTLE_NS  20000 /* for a sleeper to be asleep */

/* Two who wake one another: each has a bell and a word that says how often it was rung. */
struct shared {
    struct side {
        _Alignas(128) struct shc_bell_shm bell;
        _Alignas(128) shc_a64 word;
        _Alignas(128) shc_a64 woken_ns; /* when its sleeper saw the last word */
    } side[2];
    bool between_processes;
};

static struct shared *shared;

/* Sleeps until the word is that many. */
static void sleep_until(struct side *side, uint64_t want)
{
    for (;;) {
        /* acquire wakeups/word <- release in wake(): nothing but the number. */
        if (shc_a64_load_acquire(&side->word) >= want)
            return;
        uint32_t heard = shc_bell_listen(&side->bell);
        /* acquire wakeups/word <- release in wake(): the look after the hinge. */
        if (shc_a64_load_acquire(&side->word) >= want)
            return;
        shc_bell_sleep(&side->bell, heard, 1000000000, shared->between_processes);
    }
}

static void wake(struct side *side, uint64_t word)
{
    /* release wakeups/word -> acquire in sleep_until(): nothing but the number. */
    shc_a64_store_release(&side->word, word);
    shc_bell_ring(&side->bell, shared->between_processes);
}

static void *sleeper(void *unused)
{
    for (uint64_t i = 1; i <= WAKES; i++) {
        sleep_until(&shared->side[0], i);
        /* release wakeups/woken -> acquire in time_wakes(): the time itself. */
        shc_a64_store_release(&shared->side[0].woken_ns, shc_clock_ns());
        wake(&shared->side[1], i);
    }
    return unused;
}

struct costs {
    double ring_ns, ringing_ns, waking_ns, word_ns;
};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static double time_rings(void)
{
    struct side *side = &shared->side[0];
    uint64_t begun = shc_clock_ns();
    for (int i = 0; i < RINGS; i++)
        shc_bell_ring(&side->bell, shared->between_processes);
    return (double)(shc_clock_ns() - begun) / RINGS;
}

/* How long the ringer is busy with it, and how long until the sleeper runs. */
static void time_wakes(struct costs *costs)
{
    static double ringing[WAKES], waking[WAKES];
    for (uint64_t i = 1; i <= WAKES; i++) {
        uint64_t settled = shc_clock_ns() + SETTLE_NS;
        while (shc_clock_ns() < settled)
            ;
        uint64_t begun = shc_clock_ns();
        wake(&shared->side[0], i);
        uint64_t rung = shc_clock_ns();
        sleep_until(&shared->side[1], i);
        /* acquire wakeups/woken <- release in sleeper(): the time itself. */
        uint64_t woken = shc_a64_load_acquire(&shared->side[0].woken_ns);
        ringing[i - 1] = (double)(rung - begun);
        waking[i - 1] = (double)(woken - begun);
    }
    costs->ringing_ns = median(ringing, WAKES);
    costs->waking_ns = median(waking, WAKES);
}

static double time_ring(void)
{
    static _Alignas(128) char memory[sizeof(struct shc_ring_shm) + SLOTS * sizeof(shc_word)];
    struct shc_ring in = shc_ring_view(memory, SLOTS, 1), out = in;
    uint64_t begun = shc_clock_ns(), sum = 0;
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t got = 0;
        if (!shc_ring_push(&in, &i) || !shc_ring_pop(&out, &got))
            abort();
        sum += got;
    }
    if (sum != (uint64_t)WORDS * (WORDS - 1) / 2)
        abort();
    return (double)(shc_clock_ns() - begun) / WORDS;
}

static struct costs one_round(bool between_processes)
{
    memset(shared, 0, sizeof *shared);
    shared->between_processes = between_processes;
    struct costs costs = {.ring_ns = time_rings(), .word_ns = time_ring()};
    pthread_t thread = 0;
    pid_t child = between_processes ? fork() : 0;
    if (between_processes && child == 0) {
        sleeper(NULL);
        _exit(0);
    }
    if (child < 0 || (!between_processes && pthread_create(&thread, NULL, sleeper, NULL) != 0))
        abort();
    time_wakes(&costs);
    if (between_processes)
        waitpid(child, NULL, 0);
    else
        pthread_join(thread, NULL);
    return costs;
}

static void print(const char *what, double *values, int rounds)
{
    double middle = median(values, rounds);
    printf("%-58s %9.1f ns   (%.1f to %.1f)\n", what, middle, values[0], values[rounds - 1]);
}

static void measure(bool between_processes, int rounds)
{
    double ring[MAX_ROUNDS], ringing[MAX_ROUNDS], waking[MAX_ROUNDS], word[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        struct costs costs = one_round(between_processes);
        ring[r] = costs.ring_ns;
        ringing[r] = costs.ringing_ns;
        waking[r] = costs.waking_ns;
        word[r] = costs.word_ns;
    }
    printf("# between %s\n", between_processes ? "processes" : "threads");
    print("ringing a bell that nobody sleeps on", ring, rounds);
    print("ringing a bell with a sleeper: the ringer's time", ringing, rounds);
    print("from ringing until the sleeper runs", waking, rounds);
    if (!between_processes)
        print("a word into a ring and out of it, by one thread", word, rounds);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (argc > 2 || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "wakeups: a number of rounds, up to %d\n", MAX_ROUNDS);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    measure(false, rounds);
    measure(true, rounds);
    return 0;
}
