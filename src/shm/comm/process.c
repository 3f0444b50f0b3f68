/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/process.h"

#include "shm/base/clock.h"
#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/comm/comm.h"
#include "shm/comm/memory.h"
#include "shm/exec/topo.h"
#include "shm/kernel/cpu.h"
#include "shm/os/os.h"
#include "shm/proto/board.h"
#include "shm/proto/dump.h"
#include "shm/proto/member.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define REBUILDING   UINT64_MAX
#define CALLBACKS_NS (5 * SHC_NS_PER_S)
#define LEAVE_NS     (50 * SHC_NS_PER_MS) /* for all groups: for operations that have just begun */
#define END_NS       SHC_NS_PER_S         /* a process whose end takes longer has left before it, */
#define STARVED_NS   (30 * SHC_NS_PER_S)  /* not counting this long without a CPU */
#define LOOK_NS      (50 * SHC_NS_PER_MS) /* between two looks at that */

static struct {
    pthread_once_t page_once;
    shc_a64 *word; /* on the page that is wiped in a child; else the generation, or REBUILDING */
    pthread_mutex_t lock;
    uint64_t generation;
    struct shc_liveness *liveness; /* with it, `self` is known */
    struct shc_os_process self;    /* five files of /proc, read once */
    struct shc_board_process board;
    struct shc_pool *pool;
    bool counted; /* the CPUs, to decide how large the pool is */
    struct shc_comm *comms;
    const struct shc_leaving *leaving; /* of all of them */
    int callbacks;                     /* callbacks that are running */
    bool exit_registered;
} process = {.page_once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER, .generation = 1};

shc_a32 shc_process_left;

static void make_page(void)
{
    void *page;
    if (shc_os_wipe_on_fork_page(&page) != 0)
        return;
    process.word = page;
    /* release process/generation -> acquire in be_this_process(): the state it stands for. */
    shc_a64_store_release(process.word, process.generation);
}

/* In a forked child: the inherited state is the parent's, and its lock may be held by a thread that does
 * not exist here. One thread resets it all. */
static void forget_parent(void)
{
    pthread_mutex_init(&process.lock, NULL);
    process.liveness = NULL;
    if (process.board.header) /* its memory stays: a group of the parent's names it */
        shc_os_file_close_own(process.board.fd, &process.board.file);
    process.board.header = NULL;
    process.pool = NULL;
    process.counted = false;
    process.comms = NULL;
    process.callbacks = 0;
    process.generation++;
    shc_bias_forget_parent();
    shc_memory_forget_parent();
    /* release process/generation -> acquire in be_this_process(): the state it stands for. */
    shc_a64_store_release(process.word, process.generation);
}

static enum shc_status be_this_process(void)
{
    pthread_once(&process.page_once, make_page);
    if (!process.word)
        return shc_fail(SHC_ERR_SYSTEM, "cannot map the page that tells of a fork");
    for (;;) {
        /* acquire process/generation <- release in forget_parent() and make_page(). */
        uint64_t word = shc_a64_load_acquire(process.word);
        if (word != 0 && word != REBUILDING)
            return SHC_OK;
        /* acq_rel process/generation: the first thread of a child rebuilds, others wait. */
        if (word == 0 && shc_a64_cas_acq_rel(process.word, 0, REBUILDING))
            forget_parent();
        else
            shc_os_thread_yield();
    }
}

enum shc_status shc_process_be(struct shc_process_mark *mark)
{
    SHC_TRY(be_this_process());
    pthread_mutex_lock(&process.lock);
    *mark = (struct shc_process_mark){.word = process.word, .generation = process.generation};
    pthread_mutex_unlock(&process.lock);
    return SHC_OK;
}

/* The lock is held. */
static enum shc_status enter_locked(void)
{
    if (!process.liveness) {
        int error = shc_os_process_self(&process.self);
        if (error != 0)
            return shc_fail_errno(SHC_ERR_SYSTEM, error, "cannot read /proc/self");
        SHC_TRY(shc_liveness_start(&process.liveness));
        shc_board_process_make(&process.board, &process.self);
        if (shc_config_get()->traceable)
            (void)!shc_os_process_allow_tracing(); /* without Yama there is nothing to allow */
    }
    if (!process.exit_registered) {
        if (shc_os_at_exit(shc_process_leave) != 0)
            return shc_fail(SHC_ERR_NOMEM, "cannot register the goodbye at exit");
        process.exit_registered = true;
    }
    return SHC_OK;
}

enum shc_status shc_process_enter(struct shc_liveness **liveness, struct shc_process_mark *mark,
                                  struct shc_os_process *self)
{
    static pthread_once_t file_once = PTHREAD_ONCE_INIT;
    SHC_TRY(be_this_process());
    pthread_once(&file_once, shc_log_file_use);
    if (shc_process_leaving())
        return shc_fail(SHC_ERR_CLOSED, "the process is ending: no new groups");
    pthread_mutex_lock(&process.lock);
    enum shc_status st = enter_locked();
    if (st == SHC_OK) {
        *liveness = process.liveness;
        *self = process.self;
        *mark = (struct shc_process_mark){.word = process.word, .generation = process.generation};
    }
    pthread_mutex_unlock(&process.lock);
    return st;
}

static struct shc_tuning tuning;

static void look_at_machine(void)
{
    tuning = shc_tuning_default(shc_cpu_amd_family(), shc_os_shared_cache_bytes());
}

const struct shc_tuning *shc_process_tuning(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_machine); /* 20 us */
    return &tuning;
}

enum shc_status shc_tuning_check(const char *text)
{
    struct shc_tuning unused;
    return shc_tuning_read(SHC_TUNING_OPTION, text, shc_process_tuning(), &unused);
}

int shc_process_threads(int wish)
{
    pthread_mutex_lock(&process.lock);
    int threads = wish;
    if (process.pool && wish != 0)
        threads = shc_pool_size(process.pool);
    else if (wish == SHC_THREADS_AUTO && process.counted)
        threads = 0;
    pthread_mutex_unlock(&process.lock);
    return threads;
}

struct shc_pool *shc_process_pool(int threads, bool counted)
{
    struct shc_os_cpus cpus;
    bool near = threads > 0 && shc_topo_near_cpus(&cpus);
    pthread_mutex_lock(&process.lock);
    if (!process.pool && threads > 0 &&
        shc_pool_create(&process.pool, threads, near ? &cpus : NULL) != SHC_OK)
        process.pool = NULL; /* the callers do the work themselves */
    process.counted = process.counted || counted;
    struct shc_pool *pool = threads > 0 ? process.pool : NULL;
    pthread_mutex_unlock(&process.lock);
    return pool;
}

void shc_process_board_begin(struct shc_comm *comm)
{
    const struct shc_board_facts facts = {
        .name = comm->name,
        .description = shc_seat_group(&comm->seat),
        .rank = comm->seat.rank,
        .world_size = comm->seat.world_size,
        .global_ranks = comm->global_ranks,
        /* relaxed: no other thread knows the group yet. */
        .timeout_ns = shc_a64_load_relaxed(&comm->timeout_ns),
    };
    shc_board_begin(&comm->seat.board, &process.board, &facts);
}

void shc_process_list(struct shc_comm *comm, const struct shc_leaving *leaving)
{
    pthread_mutex_lock(&process.lock);
    process.leaving = leaving;
    comm->next = process.comms;
    process.comms = comm;
    pthread_mutex_unlock(&process.lock);
}

void shc_process_unlist(struct shc_comm *comm)
{
    pthread_mutex_lock(&process.lock);
    for (struct shc_comm **slot = &process.comms; *slot; slot = &(*slot)->next) {
        if (*slot == comm) {
            *slot = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&process.lock);
}

/* Another rank of the group, by its number in the whole job; or -1. pre: mapped_lock is held. */
static int find_member(const struct shc_comm *comm, int32_t global_rank)
{
    for (int rank = 0; comm->mapped && comm->global_ranks && rank < comm->seat.world_size; rank++)
        if (rank != comm->seat.rank && comm->global_ranks[rank] == global_rank)
            return rank;
    return -1;
}

/* Is the process that is this rank of the job, a member of the group, gone? */
static bool knows_dead(struct shc_comm *comm, int32_t global_rank, int32_t *pid)
{
    bool dead = false;
    pthread_mutex_lock(&comm->mapped_lock);
    int rank = find_member(comm, global_rank);
    if (rank >= 0) {
        enum shc_member_state state = shc_member_look(&comm->seat, rank);
        dead = state == SHC_MEMBER_DEAD ||
               (state != SHC_MEMBER_EMPTY && shc_member_process_gone(&comm->seat, rank));
        *pid = shc_seat_pid(&comm->seat, rank);
    }
    pthread_mutex_unlock(&comm->mapped_lock);
    return dead;
}

/* What may have ended that rank, after it has been found gone: the group's failure, of which it was told,
 * or another member's death. False: the group knows nothing. */
static bool knows_why(struct shc_comm *comm, int32_t global_rank, char *text, size_t capacity)
{
    bool known = false;
    char reason[SHC_REASON_BYTES + 32];
    pthread_mutex_lock(&comm->mapped_lock);
    const struct shc_seat *seat = &comm->seat;
    int rank = find_member(comm, global_rank);
    if (rank >= 0 && shc_group_failed(seat)) {
        shc_group_reason_text(seat, reason, sizeof reason);
        /* Cut to what fits. */
        known = snprintf(text, capacity, "the group \"%s\" has failed: %s", shc_seat_group(seat),
                         reason) > 0;
    } else if (rank >= 0 && shc_member_look(seat, rank) != SHC_MEMBER_DEAD) {
        /* (Of two that died, it is not known which was first.) */
        shc_member_look_at_processes(seat, 0, seat->world_size);
        int dead = shc_member_find_dead(seat, rank);
        known = dead >= 0;
        if (known)
            snprintf(text, capacity, "%s has died, as the group \"%s\" knows",
                     shc_seat_process_name(seat, dead).text, shc_seat_group(seat));
    }
    pthread_mutex_unlock(&comm->mapped_lock);
    return known;
}

bool shc_process_knows_dead(int32_t global_rank, struct shc_end *end)
{
    bool dead = false, known = false;
    pthread_mutex_lock(&process.lock);
    for (struct shc_comm *comm = process.comms; comm && !dead; comm = comm->next) {
        dead = knows_dead(comm, global_rank, &end->pid);
        if (dead)
            snprintf(end->group, sizeof end->group, "%s", shc_seat_group(&comm->seat));
    }
    /* After that look: the reason for a rank's end was there before the rank ended. */
    end->why[0] = '\0';
    for (struct shc_comm *comm = process.comms; comm && dead && !known; comm = comm->next)
        known = knows_why(comm, global_rank, end->why, sizeof end->why);
    pthread_mutex_unlock(&process.lock);
    return dead;
}

uint64_t shc_process_life(void)
{
    uint64_t life = 0;
    pthread_mutex_lock(&process.lock);
    for (struct shc_comm *comm = process.comms; comm; comm = comm->next)
        memcpy(&life, comm->seat.segment.name.nonce, sizeof life);
    pthread_mutex_unlock(&process.lock);
    return life;
}

bool shc_process_find_dead(char *text, size_t capacity)
{
    struct shc_end end;
    for (int32_t rank = 0; rank < SHC_MAX_WORLD; rank++) {
        if (!shc_process_knows_dead(rank, &end))
            continue;
        snprintf(text, capacity, "rank %d (pid %d)", (int)rank, (int)end.pid);
        return true;
    }
    return false;
}

/* pre: mapped_lock is held. */
static bool serves(const struct shc_comm *comm, int port, char *text, size_t capacity)
{
    for (int rank = 0; comm->mapped && rank < comm->seat.world_size; rank++) {
        const struct shc_os_process member = shc_seat_process(&comm->seat, rank);
        bool dumping;
        if (member.pid <= 0 || !shc_os_process_listens(&member, port))
            continue;
        snprintf(text, capacity, "rank %d (pid %d, %s)",
                 comm->global_ranks ? (int)comm->global_ranks[rank] : rank, (int)member.pid,
                 shc_os_state_word(shc_os_process_state(&comm->seat.self, &member, &dumping)));
        return true;
    }
    return false;
}

bool shc_process_find_server(int port, char *text, size_t capacity)
{
    bool found = false;
    if (pthread_mutex_trylock(&process.lock) != 0)
        return false;
    for (struct shc_comm *comm = process.comms; comm && !found; comm = comm->next) {
        if (pthread_mutex_trylock(&comm->mapped_lock) != 0)
            continue;
        found = serves(comm, port, text, capacity);
        pthread_mutex_unlock(&comm->mapped_lock);
    }
    pthread_mutex_unlock(&process.lock);
    return found;
}

/* The rank of that process in the group, or -1. */
static int find_process(const struct shc_seat *seat, const struct shc_os_process *wanted)
{
    for (int rank = 0; rank < seat->world_size; rank++) {
        const struct shc_os_process member = shc_seat_process(seat, rank);
        if (rank != seat->rank && member.pid == wanted->pid &&
            member.start_time == wanted->start_time)
            return rank;
    }
    return -1;
}

/* Is that process in a call on the group that this rank has not entered? Or, if the group has
 * failed: was it in such a call? (It has been told of the failure, and may have gone on.) */
static bool ahead_text(const struct shc_comm *comm, bool failed, const struct shc_os_process *them,
                       char *text, size_t capacity)
{
    const struct shc_seat *seat = &comm->seat;
    struct shc_call theirs, ours;
    int rank = find_process(seat, them);
    if (rank < 0 || shc_group_failed(seat) != failed)
        return false;
    uint64_t entered = shc_call_latest(seat, seat->rank, &ours);
    uint64_t epoch = shc_call_latest(seat, rank, &theirs);
    if (epoch == 0 || (entered != 0 && shc_reached(entered, epoch)))
        return false;
    char call[128];
    shc_call_text(seat, &theirs, epoch, call, sizeof call);
    snprintf(text, capacity, ", in group \"%s\"%s %s, which this rank has not called",
             shc_seat_group(seat), failed ? ", which has failed, its last call was" : " it is in",
             call);
    return true;
}

void shc_process_elsewhere(const struct shc_seat *seat, int rank, char *text, size_t capacity)
{
    const struct shc_os_process them = shc_seat_process(seat, rank);
    bool found = false;
    text[0] = '\0';
    if (pthread_mutex_trylock(&process.lock) != 0)
        return;
    for (int failed = 0; failed < 2; failed++) { /* a call that is still running says more */
        for (struct shc_comm *comm = process.comms; comm && !found; comm = comm->next) {
            if (&comm->seat == seat || pthread_mutex_trylock(&comm->mapped_lock) != 0)
                continue;
            found = comm->mapped && ahead_text(comm, failed, &them, text, capacity);
            pthread_mutex_unlock(&comm->mapped_lock);
        }
    }
    pthread_mutex_unlock(&process.lock);
}

bool shc_process_callback_begin(void)
{
    pthread_mutex_lock(&process.lock);
    bool allowed = !shc_process_leaving();
    process.callbacks += allowed;
    pthread_mutex_unlock(&process.lock);
    return allowed;
}

void shc_process_callback_end(void)
{
    pthread_mutex_lock(&process.lock);
    process.callbacks--;
    pthread_mutex_unlock(&process.lock);
}

enum shc_status shc_process_dump(const char *path)
{
    if (shc_config_get()->board == SHC_BOARD_OFF)
        return shc_fail(
            SHC_ERR_UNSUPPORTED,
            "dump: SHMCOLL_BOARD=off, so this process keeps nothing that a dump could show");
    /* relaxed: as in shc_process_leave(). */
    if (!process.word || shc_a64_load_relaxed(process.word) != process.generation)
        return shc_fail(SHC_ERR_INVALID,
                        "dump: this process has made no group, so there is nothing "
                        "to show");
    pthread_mutex_lock(&process.lock);
    const bool entered = process.liveness != NULL;
    const struct shc_board_header_shm *header = process.board.header;
    pthread_mutex_unlock(&process.lock);
    if (!entered)
        return shc_fail(SHC_ERR_INVALID,
                        "dump: this process has made no group, so there is nothing "
                        "to show");
    if (!header)
        return shc_fail(SHC_ERR_UNSUPPORTED,
                        "dump: this process has no board: the system refused a memfd");
    const int error = shc_dump_write(header, NULL, true, path);
    return error == 0 ? SHC_OK
                      : shc_fail_errno(SHC_ERR_SYSTEM, error, "dump: cannot write %s", path);
}

/* Callbacks that have begun may need what is about to go: they get a moment to end. */
static void wait_for_callbacks(void)
{
    for (uint64_t until_ns = shc_clock_ns() + CALLBACKS_NS; shc_clock_ns() < until_ns;) {
        pthread_mutex_lock(&process.lock);
        int callbacks = process.callbacks;
        pthread_mutex_unlock(&process.lock);
        if (callbacks == 0)
            return;
        shc_os_sleep_ns(SHC_NS_PER_MS);
    }
}

static void say_left(void)
{
    pthread_mutex_lock(&process.lock);
    for (struct shc_comm *comm = process.comms; comm; comm = comm->next)
        process.leaving->say_left(comm);
    pthread_mutex_unlock(&process.lock);
}

/* LIFE-4: for a process that hangs at its end: nothing waits for that for ever. On a busy machine a process that
 * does not hang takes longer, too. */
static void leaver_thread(void *arg)
{
    (void)arg;
    const uint64_t begun_ns = shc_clock_ns(), before_ns = shc_os_cpu_awaited_ns();
    uint64_t starved_ns = 0;
    while (shc_clock_ns() - begun_ns < END_NS + starved_ns) {
        shc_os_sleep_ns(LOOK_NS);
        const uint64_t now_ns = shc_os_cpu_awaited_ns();
        if (now_ns > before_ns)
            starved_ns = now_ns - before_ns < STARVED_NS ? now_ns - before_ns : STARVED_NS;
    }
    say_left();
}

/* Tells the other ranks why this process is about to end. */
static void explain_end(struct shc_comm *comm, const char *why)
{
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped)
        shc_member_tell_why(&comm->seat, why);
    pthread_mutex_unlock(&comm->mapped_lock);
}

void shc_process_explain_end(const char *why)
{
    /* relaxed: as in shc_process_leave(). */
    if (!process.word || shc_a64_load_relaxed(process.word) != process.generation)
        return;
    pthread_mutex_lock(&process.lock);
    for (struct shc_comm *comm = process.comms; comm; comm = comm->next)
        explain_end(comm, why);
    pthread_mutex_unlock(&process.lock);
}

void shc_process_leave(void)
{
    /* relaxed: a forked child that made no groups has no goodbye to say. */
    if (!process.word || shc_a64_load_relaxed(process.word) != process.generation)
        return;
    pthread_mutex_lock(&process.lock);
    const bool again = shc_process_leaving(); /* at the interpreter's end, then at the process's */
    const uint64_t until_ns = shc_clock_ns() + LEAVE_NS;
    for (struct shc_comm *comm = process.comms; comm && !again; comm = comm->next)
        process.leaving->finish(comm, until_ns);
    /* release process/leaving -> acquire in shc_process_leaving(): no other data. */
    shc_a32_store_release(&shc_process_left, 1);
    for (struct shc_comm *comm = process.comms; comm && !again; comm = comm->next)
        shc_bell_ring(&comm->engine.bell, false); /* no callback is waited for any more */
    for (struct shc_comm *comm = process.comms; comm && !again; comm = comm->next) {
        uint64_t now_ns = shc_clock_ns();
        process.leaving->begin(comm, now_ns < until_ns ? until_ns - now_ns : 0);
    }
    const bool member = process.comms && !again;
    pthread_mutex_unlock(&process.lock);
    struct shc_os_thread leaver;
    if (member && shc_os_thread_start(&leaver, "shc-leaver", leaver_thread, NULL) == 0)
        shc_os_thread_detach(&leaver);
    else if (member)
        say_left();
    wait_for_callbacks();
}
