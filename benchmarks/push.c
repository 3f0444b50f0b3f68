/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A step with tensors in private memory, and in shared memory, in turns:
 *
 *   push [-b MIN] [-e MAX] [-r ROUNDS] RANKS
 *
 * A step stores the whole input anew, sums it over the ranks in place, and reads the whole output: a loop of the bare
 * call would flatter sums of shared tensors, because each rank's cache then keeps what it touched last. The ranks are
 * forked, rank r on CPU r if there are so many. A turn is some steps of one kind, about 0.6 ms at the slowest
 * rank; a round is a turn of each kind. A line of JSON for each size: medians and bests of the rounds in microseconds,
 * and their ratios, private over shared. Every sum is checked.
 */
#define PROGRAM "push"
#define LIMIT_S 600
#include "forked.h"

#include "shm/shmcoll_memory.h"

#include <string.h>

#define MOST_ROUNDS 999
#define TURN_NS     (600 * SHC_NS_PER_US) /* so short that some turns stay undisturbed */

enum kind { PRIVATE, SHARED, KINDS };

struct options {
    size_t min, max;
    int rounds, ranks;
};

struct rank {
    const struct options *options;
    struct forked at;
    float *tensor[KINDS];
    uint32_t steps;
};

/* Several sums at once, so that reading is no chain of additions. */
static float sum_of(const float *values, size_t count)
{
    float sums[64] = {0}, all = 0;
    for (size_t i = 0; i + 64 <= count; i += 64)
        for (size_t k = 0; k < 64; k++)
            sums[k] += values[i + k];
    for (size_t k = 0; k < 64; k++)
        all += sums[k];
    return all;
}

static void step(struct rank *me, enum kind kind, size_t bytes)
{
    float *values = me->tensor[kind];
    const size_t count = bytes / sizeof(float);
    const int64_t size = (int64_t)count;
    const int ranks = me->at.ranks;
    const struct shc_tensor tensor = {.data = values, .ndim = 1, .sizes = &size};
    const struct shc_op op = {
        .kind = SHC_ALL_REDUCE,
        .dtype = SHC_FLOAT32,
        .redop = SHC_SUM,
        .input = {&tensor, 1},
        .output = {&tensor, 1},
    };
    const float mine = (float)(me->at.rank + (int)(++me->steps % 4));
    for (size_t i = 0; i < count; i++)
        values[i] = mine;
    demand(shc_run(me->at.comm, &op));
    const float one = (float)(ranks * (ranks - 1) / 2 + ranks * (int)(me->steps % 4));
    float sum = sum_of(values, count) / (float)count;
    if (sum < one * 0.999f || sum > one * 1.001f || values[0] != one || values[count - 1] != one)
        fail("a sum is wrong");
}

/* Of one step, at the slowest rank. */
static double turn(struct rank *me, enum kind kind, size_t bytes, int steps)
{
    meet(&me->at);
    const uint64_t begun_ns = shc_clock_ns();
    for (int i = 0; i < steps; i++)
        step(me, kind, bytes);
    return slowest_since(&me->at, begun_ns) / steps;
}

static void measure(struct rank *me, size_t bytes)
{
    double seconds[KINDS][MOST_ROUNDS], guess = 0;
    const int rounds = me->options->rounds;
    for (int kind = 0; kind < KINDS; kind++)
        guess = turn(me, (enum kind)kind, bytes, 4);
    const double wanted = (double)TURN_NS / 1e9 / guess;
    const int steps = wanted < 1 ? 1 : wanted > 1e4 ? 10000 : (int)wanted;
    for (int round = 0; round < rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            seconds[kind][round] = turn(me, (enum kind)kind, bytes, steps);
    for (int kind = 0; kind < KINDS; kind++)
        qsort(seconds[kind], (size_t)rounds, sizeof seconds[0][0], by_size);
    if (me->at.rank == 0) {
        const double *apart = seconds[PRIVATE], *shared = seconds[SHARED];
        printf("{\"ranks\": %d, \"bytes\": %zu, \"private_us\": %.2f, \"shared_us\": %.2f, "
               "\"ratio\": %.3f, \"private_best_us\": %.2f, \"shared_best_us\": %.2f, "
               "\"ratio_of_bests\": %.3f}\n",
               me->at.ranks, bytes, apart[rounds / 2] * 1e6, shared[rounds / 2] * 1e6,
               apart[rounds / 2] / shared[rounds / 2], apart[0] * 1e6, shared[0] * 1e6,
               apart[0] / shared[0]);
        fflush(stdout);
    }
    meet(&me->at);
}

static void be_rank(struct forked *at, const void *context)
{
    const struct options *options = context;
    struct rank me = {.options = options, .at = *at};
    void *block;
    pin(at->rank, 1);
    me.tensor[PRIVATE] = aligned_alloc(SHC_PAGE_BYTES, options->max + SHC_PAGE_BYTES);
    demand(shc_memory_alloc(options->max, &block));
    me.tensor[SHARED] = block;
    if (me.tensor[PRIVATE] == NULL)
        fail("no memory");
    make_group(&me.at);
    for (size_t bytes = options->min; bytes <= options->max; bytes *= 2)
        measure(&me, bytes);
    shc_comm_free(me.at.comm);
    free(me.tensor[PRIVATE]);
    shc_memory_free(block);
}

static struct options options_of(int argc, char **argv)
{
    struct options o = {.min = 64 << 10, .max = 32 << 20, .rounds = 61};
    for (int c; (c = getopt(argc, argv, "b:e:r:")) != -1;) {
        if (c == 'b')
            o.min = size_of(optarg) / 64 * 64;
        else if (c == 'e')
            o.max = size_of(optarg) / 64 * 64;
        else if (c == 'r')
            o.rounds = atoi(optarg);
        else
            fail("[-b MIN] [-e MAX] [-r ROUNDS] RANKS");
    }
    if (optind + 1 != argc)
        fail("how many ranks?");
    o.ranks = atoi(argv[optind]);
    if (o.ranks < 1 || o.ranks > MOST_RANKS || o.rounds < 1 || o.rounds > MOST_ROUNDS ||
        o.min < 64 || o.max < o.min)
        fail("1 to 64 ranks, 1 to 999 rounds, sizes from 64 on");
    return o;
}

int main(int argc, char **argv)
{
    const struct options options = options_of(argc, argv);
    return run_ranks(options.ranks, be_rank, &options);
}
