/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How the C library grows with the ranks, where no MPI is there to start them and to compare with
 * (benchmarks/peers.py does that):
 *
 *   scaling [-o OP,OP] [-b MIN] [-e MAX] [-f FACTOR] [-t MS] [-c CPUS] RANKS
 *
 * The ranks are forked, rank r on CPUs r * CPUS to r * CPUS + CPUS - 1 of those that this process may
 * use (more than one is for SHMCOLL_THREADS). A round is MS milliseconds of one operation in a loop,
 * at the slowest rank. A line of JSON for each row: the median and the best of the rounds, and
 * whether the values were right.
 */
#define PROGRAM "scaling"
#define LIMIT_S 300
#include "forked.h"

#include <string.h>

#define ROUNDS 7

enum call {
    BARRIER,
    BROADCAST,
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    PING,     /* between ranks 0 and 1: a message there, and one back */
    SENDRECV, /* between ranks 0 and 1, both at once */
    STREAM,   /* from rank 0 to rank 1: STREAM_MESSAGES, and a short answer */
    CALLS
};
static const struct {
    const char *name;
    enum shc_op_kind kind;
    bool input_is_part, output_is_part; /* of the bytes: one rank's */
} calls[CALLS] = {
    {"barrier", SHC_BARRIER, false, false},
    {"broadcast", SHC_BROADCAST, false, false},
    {"all_reduce", SHC_ALL_REDUCE, false, false},
    {"reduce", SHC_REDUCE, false, false},
    {"reduce_scatter", SHC_REDUCE_SCATTER, false, true},
    {"all_gather", SHC_ALL_GATHER, true, false},
    {"all_to_all", SHC_ALL_TO_ALL, false, false},
    {"gather", SHC_GATHER, true, false},
    {"scatter", SHC_SCATTER, false, true},
    {"ping", SHC_SEND, false, false},
    {"sendrecv", SHC_SEND, false, false},
    {"stream", SHC_SEND, false, false},
};

enum { STREAM_MESSAGES = 16 };

struct options {
    const char *ops;
    size_t min, max, factor;
    double ms;
    int cpus, ranks;
};

struct rank {
    const struct options *options;
    struct forked at;
    float *input, *output;
};

static bool listed(const char *names, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return names == NULL;
}

static void pass(const struct rank *me, enum call call, size_t bytes)
{
    const int64_t all = (int64_t)(bytes / sizeof(float)), one = 1;
    struct shc_tensor given = {.data = me->input, .ndim = 1, .sizes = &all};
    struct shc_tensor got = {.data = me->output, .ndim = 1, .sizes = &all};
    struct shc_op send = {.kind = SHC_SEND, .dtype = SHC_FLOAT32, .peer = 1 - me->at.rank};
    struct shc_op receive = {.kind = SHC_RECV, .dtype = SHC_FLOAT32, .peer = 1 - me->at.rank};
    struct shc_request *sent;
    send.input = (struct shc_tensors){&given, 1};
    receive.output = (struct shc_tensors){&got, 1};
    if (call == STREAM) {
        for (int i = 0; i < STREAM_MESSAGES; i++)
            demand(shc_run(me->at.comm, me->at.rank == 0 ? &send : &receive));
        given.sizes = got.sizes = &one;
        demand(shc_run(me->at.comm, me->at.rank == 0 ? &receive : &send));
    } else if (call == PING) {
        demand(shc_run(me->at.comm, me->at.rank == 0 ? &send : &receive));
        demand(shc_run(me->at.comm, me->at.rank == 0 ? &receive : &send));
    } else {
        demand(shc_submit(me->at.comm, &send, NULL, &sent));
        demand(shc_run(me->at.comm, &receive));
        demand(shc_request_wait(sent, 0));
        shc_request_release(sent);
    }
}

static void run(const struct rank *me, enum call call, size_t bytes)
{
    if (call == PING || call == SENDRECV || call == STREAM) {
        if (me->at.rank < 2)
            pass(me, call, bytes);
        return;
    }
    const int64_t all = (int64_t)(bytes / sizeof(float)), part = all / me->at.ranks;
    struct shc_tensor inputs[MOST_RANKS], outputs[MOST_RANKS];
    const uint32_t ranks = (uint32_t)me->at.ranks;
    const bool lists_inputs = call == ALL_TO_ALL || call == SCATTER;
    const bool lists_outputs = call == ALL_TO_ALL || call == GATHER;
    const bool in_place = call == BROADCAST || call == ALL_REDUCE;
    const bool gives = call != SCATTER || me->at.rank == 0;
    const bool gets = (call != REDUCE && call != GATHER) || me->at.rank == 0;
    for (uint32_t i = 0; i < ranks; i++) {
        inputs[i] = outputs[i] = (struct shc_tensor){.ndim = 1};
        inputs[i].data = me->input + i * (size_t)part;
        outputs[i].data = me->output + i * (size_t)part;
        inputs[i].sizes = lists_inputs || calls[call].input_is_part ? &part : &all;
        outputs[i].sizes = lists_outputs || calls[call].output_is_part ? &part : &all;
    }
    struct shc_op op = {.kind = calls[call].kind, .dtype = SHC_FLOAT32, .redop = SHC_SUM};
    if (call != BARRIER) {
        op.input = (struct shc_tensors){in_place ? outputs : inputs, !gives         ? 0
                                                                     : lists_inputs ? ranks
                                                                                    : 1};
        op.output = (struct shc_tensors){outputs, !gets ? 0 : lists_outputs ? ranks : 1};
    }
    demand(shc_run(me->at.comm, &op));
}

/* Rank r's element i is r + i % 5; a sum or a rank's own value comes out. */
static int is_wrong(struct rank *me, enum call call, size_t bytes)
{
    const int n = me->at.ranks;
    const size_t all = bytes / sizeof(float), part = all / (size_t)n;
    const size_t ends[] = {0, (calls[call].output_is_part ? part : all) - 1};
    for (size_t i = 0; i < all; i++)
        me->input[i] = me->output[i] = (float)(me->at.rank + (int)(i % 5));
    meet(&me->at);
    run(me, call, bytes);
    if (call == STREAM && me->at.rank == 0)
        return 0; /* it gets the answer alone */
    const int knowing = call == REDUCE || call == GATHER                     ? 1
                        : call == PING || call == SENDRECV || call == STREAM ? 2
                                                                             : n;
    for (int e = 0; e < 2 && call != BARRIER && me->at.rank < knowing; e++) {
        const size_t at = ends[e], from = at / part;
        float want = (float)(n * (n - 1) / 2 + n * (int)(at % 5));
        if (call == REDUCE_SCATTER)
            want = (float)(n * (n - 1) / 2 + n * (int)((at + (size_t)me->at.rank * part) % 5));
        else if (call == PING || call == SENDRECV || call == STREAM)
            want = (float)(1 - me->at.rank + (int)(at % 5));
        else if (call == BROADCAST)
            want = (float)(at % 5);
        else if (call == SCATTER)
            want = (float)((at + (size_t)me->at.rank * part) % 5);
        else if (call == ALL_GATHER || call == GATHER)
            want = (float)((int)from + (int)(at % part % 5));
        else if (call == ALL_TO_ALL)
            want = (float)((int)from + (int)((at % part + (size_t)me->at.rank * part) % 5));
        if (me->output[at] != want)
            return 1;
    }
    return 0;
}

/* Of one turn, at the slowest rank. */
static double time_turns(struct rank *me, enum call call, size_t bytes, int turns)
{
    memset(me->output, 0, bytes); /* sums of sums would end in infinities */
    meet(&me->at);
    const uint64_t begun_ns = shc_clock_ns();
    for (int i = 0; i < turns; i++)
        run(me, call, bytes);
    return slowest_since(&me->at, begun_ns) / turns;
}

static void measure(struct rank *me, enum call call, size_t bytes)
{
    double seconds[ROUNDS];
    int wrong = 0;
    me->at.board->wrong[me->at.rank] = is_wrong(me, call, bytes);
    const double guess = time_turns(me, call, bytes, 3);
    const double wanted = me->options->ms / 1e3 / guess;
    const int turns = wanted < 1 ? 1 : wanted > 1e6 ? 1000000 : (int)wanted;
    for (int i = 0; i < ROUNDS; i++)
        seconds[i] = time_turns(me, call, bytes, turns);
    qsort(seconds, ROUNDS, sizeof seconds[0], by_size);
    for (int r = 0; r < me->at.ranks; r++)
        wrong += me->at.board->wrong[r];
    if (me->at.rank == 0) {
        const char *threads = getenv("SHMCOLL_THREADS");
        printf("{\"op\": \"%s\", \"ranks\": %d, \"threads\": \"%s\", \"bytes\": %zu, "
               "\"median_us\": %.3f, \"best_us\": %.3f, \"gb_s\": %.3f, \"wrong\": %d}\n",
               calls[call].name, me->at.ranks, threads ? threads : "0", bytes,
               seconds[ROUNDS / 2] * 1e6, seconds[0] * 1e6,
               (double)bytes / seconds[ROUNDS / 2] / 1e9, wrong);
        fflush(stdout);
    }
    meet(&me->at);
}

static void be_rank(struct forked *at, const void *context)
{
    const struct options *options = context;
    struct rank me = {.options = options, .at = *at};
    pin(at->rank, options->cpus);
    me.input = aligned_alloc(SHC_PAGE_BYTES, options->max + SHC_PAGE_BYTES);
    me.output = aligned_alloc(SHC_PAGE_BYTES, options->max + SHC_PAGE_BYTES);
    if (me.input == NULL || me.output == NULL)
        fail("no memory");
    make_group(&me.at);
    const size_t least = (size_t)options->ranks * sizeof(float);
    for (int call = 0; call < CALLS; call++)
        for (size_t bytes = options->min; bytes <= options->max; bytes *= options->factor)
            if (listed(options->ops, calls[call].name) &&
                (call != BARRIER || bytes == options->min))
                measure(&me, (enum call)call, (bytes < least ? least : bytes) / least * least);
    shc_comm_free(me.at.comm);
    free(me.input);
    free(me.output);
}

static struct options options_of(int argc, char **argv)
{
    struct options o = {.min = 8, .max = 64 << 20, .factor = 8, .ms = 10, .cpus = 1};
    for (int c; (c = getopt(argc, argv, "o:b:e:f:t:c:")) != -1;) {
        if (c == 'o')
            o.ops = optarg;
        else if (c == 'b')
            o.min = size_of(optarg);
        else if (c == 'e')
            o.max = size_of(optarg);
        else if (c == 'f')
            o.factor = size_of(optarg);
        else if (c == 't')
            o.ms = atof(optarg);
        else if (c == 'c')
            o.cpus = atoi(optarg);
        else
            fail("options: -o -b -e -f -t -c; see the source");
    }
    o.ranks = optind + 1 == argc ? atoi(argv[optind]) : 0;
    if (o.ranks < 1 || o.ranks > MOST_RANKS || o.min < 8 || o.max < o.min || o.factor < 2 ||
        o.ms <= 0 || o.cpus < 1)
        fail("the number of ranks is missing, or an option makes no sense");
    if (o.max < (size_t)o.ranks * sizeof(float))
        o.max = (size_t)o.ranks * sizeof(float);
    return o;
}

int main(int argc, char **argv)
{
    const struct options options = options_of(argc, argv);
    return run_ranks(options.ranks, be_rank, &options);
}
