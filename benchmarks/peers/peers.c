/* SPDX-License-Identifier: BSD-3-Clause */
/*
 *   mpirun -n 2 peers DIRECTORY [-o OP,OP] [-b MIN] [-e MAX] [-f FACTOR] [-r ROUNDS] [-t MS]
 *                               [-a LIBRARY] [-s NAME=VALUE] [-d DTYPE,DTYPE] [-i] [-k] [-l BYTES] [-c] [-p US]
 *                               [-w] [-u] [-j FILE]
 *
 * DIRECTORY: an empty one, where the ranks meet. LIBRARY: another libshmcoll.so, in the place of MPI,
 * with that variable in its environment. -d (or all): all_reduce of these dtypes with each reduction
 * that they have; the second side is our own sum of as many bytes of float32. -i: also the sizes half
 * way to the next one. -k: the root is always rank 0, which may run ahead of the others where it gives.
 * -l: buffers begin that many bytes after a page, not with it. -c: each turn has buffers that no cache holds.
 * -p: before each operation every rank computes for a time of its own, between 0 and twice as many
 * microseconds, in the measured time.
 * -w: before each operation a rank that gives data stores to all of it, in the measured time. -u: after
 * each operation a rank that got data reads all of it, in the measured time. -j: a line of JSON per row,
 * with every round.
 * benchmarks/peers.py compiles and starts this.
 *
 * In each round both sides run the same operation for MS milliseconds in one loop, the first side
 * being another one each time. The time of an operation is that of the loop over its turns, at the
 * slowest rank. Without -k roots move, so that a turn cannot begin before the last one has reached its next
 * root. Printed are medians over rounds, and the median of the rounds' ratios.
 */
#include "peers.h"
#include "oneccl.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGN ((size_t)4096)

/* More than caches hold. */
#define COLD_BYTES ((size_t)192 << 20)

struct options {
    const char *directory, *ops, *against, *dtypes;
    char *setting;
    size_t min, max;
    double factor, ms;
    int rounds;
    bool between; /* also the sizes half way to the next one */
    bool root_stays;
    size_t shift;       /* buffers begin that many bytes after a page */
    bool cold;          /* each turn has other buffers: */
    float *given, *got; /* where they begin */
    double pause_us;
    bool rewrite; /* what is given, each time */
    bool use;     /* what was got, each time */
    FILE *json;   /* rank 0's */
};

static void fail(const char *why)
{
    fprintf(stderr, "peers: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static size_t size_of(const char *text)
{
    char *end;
    double number = strtod(text, &end);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == text || (shift == 0 && *end != '\0') || (shift && end[1] != '\0') || number < 0)
        fail("a size is a number, with K, M or G after it");
    return (size_t)(number * (double)((size_t)1 << shift));
}

static FILE *open_json(const char *path)
{
    FILE *json = fopen(path, "w");
    if (!json)
        fail("the file of -j cannot be written");
    return json;
}

static struct options options_of(int argc, char **argv, int rank)
{
    struct options o = {.min = 8, .max = 32 << 20, .factor = 4, .ms = 20, .rounds = 7};
    for (int c; (c = getopt(argc, argv, "o:b:e:f:r:t:a:s:d:ikl:cp:wuj:")) != -1;) {
        if (c == 'o')
            o.ops = optarg;
        else if (c == 'b')
            o.min = size_of(optarg);
        else if (c == 'e')
            o.max = size_of(optarg);
        else if (c == 'f')
            o.factor = atof(optarg);
        else if (c == 'r')
            o.rounds = atoi(optarg);
        else if (c == 't')
            o.ms = atof(optarg);
        else if (c == 'a')
            o.against = optarg;
        else if (c == 's')
            o.setting = optarg;
        else if (c == 'd')
            o.dtypes = optarg;
        else if (c == 'i')
            o.between = true;
        else if (c == 'k')
            o.root_stays = true;
        else if (c == 'l')
            o.shift = size_of(optarg);
        else if (c == 'c')
            o.cold = true;
        else if (c == 'p')
            o.pause_us = atof(optarg);
        else if (c == 'w')
            o.rewrite = true;
        else if (c == 'u')
            o.use = true;
        else if (c == 'j')
            o.json = rank == 0 ? open_json(optarg) : NULL;
        else
            fail("options: -o -b -e -f -r -t -a -s -d -i -k -l -c -p -w -u -j; see the source");
    }
    o.directory = argv[optind];
    if (!o.directory || o.min < 1 || o.max < o.min || o.factor <= 1 || o.rounds < 1 ||
        o.rounds > MAX_ROUNDS || o.ms <= 0 || o.shift % sizeof(float) != 0)
        fail("a directory is missing, or an option makes no sense");
    return o;
}

bool listed(const char *names, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return !names;
}

static void meet(struct world *world, struct build *build, const char *name, const char *directory)
{
    struct shc_comm_config config = {
        .rank = world->rank,
        .world_size = world->size,
        .name = name,
        .timeout_ns = 60ULL * 1000 * 1000 * 1000,
    };
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (shc_store_dir_open(path, &config.store) != SHC_OK)
        fail(shc_error_text());
    if (build->create(&config, &build->comm) != SHC_OK)
        fail(build->error());
    shc_store_dir_close(&config.store);
}

/* NULL: the library that this program is linked with. Another one's symbols stay its own. */
static struct build load(const char *path)
{
    struct build build = {.comm = NULL};
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library)
        fail(dlerror());
    *(void **)&build.create = dlsym(library, "shc_comm_create");
    *(void **)&build.run = dlsym(library, "shc_run");
    *(void **)&build.submit = dlsym(library, "shc_submit");
    *(void **)&build.wait = dlsym(library, "shc_request_wait");
    *(void **)&build.release = dlsym(library, "shc_request_release");
    *(void **)&build.free = dlsym(library, "shc_comm_free");
    *(void **)&build.error = dlsym(library, "shc_error_text");
    if (!build.create || !build.run || !build.submit || !build.wait || !build.release ||
        !build.free || !build.error)
        fail("that is no libshmcoll");
    return build;
}

/* Lives as long as the process. */
static float *make_buffer(size_t bytes, size_t shift)
{
    bytes += shift;
    char *memory = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
    if (!memory)
        fail("no memory");
    memset(memory, 0, bytes);
    return (float *)(void *)(memory + shift);
}

/* The same in each run, and another one for each rank and turn. */
static uint32_t draw(int rank, int turn)
{
    uint32_t number = (uint32_t)turn * 2654435761u + (uint32_t)rank * 40503u;
    for (int i = 0; i < 3; i++) {
        number ^= number >> 15;
        number *= 0x2c1b3c6du;
    }
    return number;
}

static void pause_before(int rank, int turn, double mean_us)
{
    const double until = MPI_Wtime() + 2e-6 * mean_us * draw(rank, turn) / UINT32_MAX;
    while (MPI_Wtime() < until)
        continue;
}

/* Pages drawn from more than caches hold. With pages in a row the processor would guess the next ones. */
static void move_on(struct world *world, struct call *call, const struct options *o, int turn)
{
    const size_t page = ALIGN / sizeof(float), pages = COLD_BYTES / ALIGN;
    const size_t at = draw(world->rank, turn) % pages * page;
    world->given = o->given + at;
    world->got = o->got + at;
    call_describe(call);
}

/* Seconds for each turn, at the slowest rank. */
static double time_turns(struct world *world, struct call *call, enum side side, int turns,
                         const struct options *o)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int i = 0; i < turns; i++) {
        if (o->pause_us > 0)
            pause_before(world->rank, i, o->pause_us);
        if (o->cold)
            move_on(world, call, o, i);
        if (o->rewrite)
            call_rewrite(call, i);
        call_run(call, side, i);
        if (o->use)
            (void)call_use(call, i);
    }
    double seconds = (MPI_Wtime() - begun) / turns;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

/* Turns that take about that long; the same on all ranks, whole rounds of roots and streams. */
static int turns_for(struct world *world, struct call *call, enum side side,
                     const struct options *o, int step)
{
    time_turns(world, call, side, step, o);
    double turns = o->ms / 1e3 / time_turns(world, call, side, step, o);
    return turns < step ? step : turns > 1e6 ? 1000000 / step * step : (int)turns / step * step;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(const double *values, int count)
{
    double sorted[MEDIAN_ROOM];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* In each round of the same row: how fast lines change hands, and what the bounds are then. */
static void bound_round(const struct world *world, const struct call *call, struct row *row, int r)
{
    row->exchange[r] = bound_exchange(world);
    if (row->scaled)
        row->scale[r] = bound_scale(world, row->bytes);
    row->bare[r] = call_bare(call);
    row->hop[r] = bound_hop(world);
}

static void measure(struct world *world, const struct options *o, struct call *call,
                    struct row *row)
{
    const int step = strcmp(row->op, "stream") == 0 ? 16 : 2 * world->size;
    int right = call_right(call, OURS, 0) && call_right(call, THEIRS, 0) &&
                (step == 16 || (call_right(call, OURS, 1) && call_right(call, THEIRS, 1)));
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    row->right = right;
    row->rounds = o->rounds;
    int turns[2];
    for (int side = OURS; side <= THEIRS; side++)
        turns[side] = turns_for(world, call, (enum side)side, o, step);
    for (int r = 0; r < o->rounds; r++) {
        for (int turn = 0; turn < 2; turn++) {
            enum side side = (turn + r) % 2 ? THEIRS : OURS;
            row->seconds[side][r] = time_turns(world, call, side, turns[side], o);
        }
        bound_round(world, call, row, r);
    }
}

static void measure_size(struct world *world, const struct options *o, const char *name,
                         size_t bytes)
{
    struct call *call = call_make(world, name, bytes);
    if (!call)
        return;
    struct row row = {.op = name, .numbers = world->numbers[OURS], .bytes = bytes};
    row.scaled = strcmp(name, "all_reduce") == 0 && bytes >= (64u << 10) && !world->renumbered;
    row.hopped = strcmp(name, "barrier") == 0 && world->size == 2;
    measure(world, o, call, &row);
    if (world->rank == 0)
        rows_add(&row, o->json);
    call_free(call);
    if (!row.right)
        fail("a result is wrong");
}

static size_t whole_floats(double bytes)
{
    return (size_t)bytes / sizeof(float) * sizeof(float);
}

static void measure_sizes(struct world *world, const struct options *o, const char *name)
{
    for (double bytes = (double)o->min; bytes <= (double)o->max; bytes *= o->factor) {
        measure_size(world, o, name, whole_floats(bytes));
        double between = bytes * (1 + o->factor) / 2;
        if (o->between && between <= (double)o->max)
            measure_size(world, o, name, whole_floats(between));
    }
}

static void measure_all(struct world *world, const struct options *o)
{
    for (size_t k = 0; call_name(k); k++) {
        const char *name = call_name(k);
        if (!listed(o->ops, name) || !call_has_other(world, k))
            continue;
        if (strcmp(name, "barrier") == 0)
            measure_size(world, o, name, 0);
        else
            measure_sizes(world, o, name);
    }
}

/* all_reduce of each of these compared with that of float sums, both by us. */
static void measure_numbers(struct world *world, const struct options *o)
{
    world->renumbered = true;
    for (size_t k = 0; numbers_choose(o->dtypes, k, &world->numbers[OURS]); k++)
        measure_sizes(world, o, "all_reduce");
}

static void make_groups(struct world *world, const struct options *o)
{
    world->builds[OURS] = load(NULL);
    meet(world, &world->builds[OURS], "ours", o->directory);
    if (!o->against && !o->dtypes)
        return;
    if (o->setting) /* each build reads its environment when it makes its first group */
        putenv(o->setting);
    world->builds[THEIRS] = load(o->against);
    meet(world, &world->builds[THEIRS], "theirs", o->directory);
}

static struct head measure_head(const struct world *world, const struct options *o)
{
    return (struct head){
        .other = o->against  ? "other"
                 : o->dtypes ? "float32"
                 : ONECCL    ? "oneCCL"
                             : "MPI",
        .hop = bound_hop(world),
        .exchange = bound_exchange(world),
        .rewrite = bound_rewrite(world),
    };
}

int main(int argc, char **argv)
{
    struct world world = {.numbers = {FLOAT_SUM, FLOAT_SUM}};
    int level; /* oneCCL wants MPI with threads */
    MPI_Init_thread(&argc, &argv, ONECCL ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    struct options o = options_of(argc, argv, world.rank);
    world.root_stays = o.root_stays;
    if (o.dtypes && world.size != 2)
        fail("-d is for two ranks");
    const size_t room = o.max + (o.cold ? COLD_BYTES : 0);
    world.given = o.given = make_buffer(room, o.shift);
    world.got = o.got = make_buffer(room, o.shift);
    make_groups(&world, &o);
    oneccl_begin(world.rank, world.size);
    struct head head = measure_head(&world, &o);
    if (world.rank == 0)
        rows_begin(&world, &head, o.json);
    if (o.dtypes)
        measure_numbers(&world, &o);
    else
        measure_all(&world, &o);
    for (int side = OURS; side <= THEIRS; side++)
        if (world.builds[side].comm)
            world.builds[side].free(world.builds[side].comm);
    oneccl_end();
    MPI_Finalize();
    return 0;
}
