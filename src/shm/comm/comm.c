/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/comm.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/base/utf8.h"
#include "shm/comm/memory.h"
#include "shm/comm/request.h"
#include "shm/os/numa.h"
#include "shm/proto/board.h"
#include "shm/proto/cma.h"
#include "shm/proto/member.h"
#include "shm/proto/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS (30 * 60 * SHC_NS_PER_S)
#define CLOSE_NS           SHC_NS_PER_S
#define PASS_NS            (20 * SHC_NS_PER_MS) /* waiting for the lock of messages */

/* ---- making ---- */

static const struct shc_leaving leaving; /* below */

/* A seat's `attend`. */
static bool attend(struct shc_seat *seat)
{
    struct shc_comm *comm =
        (struct shc_comm *)(void *)((char *)seat - offsetof(struct shc_comm, seat));
    return shc_p2p_attend(&comm->p2p);
}

static enum shc_status check_members(const struct shc_comm_config *config)
{
    for (int i = 0; config->global_ranks && i < config->world_size; i++) {
        if (config->global_ranks[i] < 0)
            return shc_fail(SHC_ERR_INVALID, "rank %d of the group is rank %d of the job", i,
                            (int)config->global_ranks[i]);
        for (int j = 0; j < i; j++)
            if (config->global_ranks[i] == config->global_ranks[j])
                return shc_fail(SHC_ERR_INVALID,
                                "ranks %d and %d of the group are both rank %d of the job", j, i,
                                (int)config->global_ranks[i]);
    }
    return SHC_OK;
}

static enum shc_status check_config(const struct shc_comm_config *config)
{
    const struct shc_store *store = &config->store;
    if (config->world_size < 1 || config->world_size > SHC_MAX_WORLD)
        return shc_fail(SHC_ERR_INVALID,
                        "a group of %d ranks: this layout has room for 1 to %d in one group",
                        config->world_size, SHC_MAX_WORLD);
    if (config->rank < 0 || config->rank >= config->world_size)
        return shc_fail(SHC_ERR_INVALID, "rank %d of a group of %d", config->rank,
                        config->world_size);
    if (config->world_size > 1 &&
        (!store->set || !store->get || !store->check || !store->add || !store->put_first))
        return shc_fail(SHC_ERR_INVALID, "the store lacks a callback");
    for (size_t i = 0; i < sizeof config->reserved / sizeof *config->reserved; i++)
        if (config->reserved[i] != 0)
            return shc_fail(SHC_ERR_INVALID, "the config's reserved[%zu] is not 0", i);
    return check_members(config);
}

static bool is_queue_unattended(void *comm)
{
    return shc_engine_is_unattended(comm);
}

static enum shc_status run_queue(void *comm)
{
    return shc_engine_run_unattended(comm, NULL, true);
}

static enum shc_status init_p2p(struct shc_comm *comm)
{
    const struct shc_p2p_env env = {
        .seat = &comm->seat,
        .tuning = &comm->tuning,
        .timeout_ns = &comm->timeout_ns,
        .done = shc_request_finish_message,
        .queue_unattended = &comm->engine.unattended,
        .is_queue_unattended = is_queue_unattended,
        .run_queue = run_queue,
        .queue = comm,
    };
    return shc_p2p_init(&comm->p2p, &env);
}

static enum shc_status fill(struct shc_comm *comm, const struct shc_comm_config *config)
{
    struct shc_seat *seat = &comm->seat;
    shc_utf8_copy_name(comm->name, sizeof comm->name, config->name ? config->name : "");
    seat->rank = config->rank;
    seat->world_size = config->world_size;
    seat->mail = shc_mail_plan(config->world_size);
    seat->name = comm->name;
    seat->segment.fd = -1;
    seat->elsewhere = shc_process_elsewhere;
    seat->attend = attend;
    comm->heaps.hooks = &shc_memory_hooks;
    seat->heaps = &comm->heaps;
    seat->interrupted = config->interrupted;
    seat->interrupted_ctx = config->interrupted_ctx;
    seat->late_ns = (uint64_t)shc_config_get()->late_ms * SHC_NS_PER_MS;
    comm->arena.segment.fd = -1;
    /* relaxed: no other thread knows the group yet. */
    shc_a64_store_relaxed(&comm->timeout_ns,
                          config->timeout_ns ? config->timeout_ns : DEFAULT_TIMEOUT_NS);
    comm->scratch = aligned_alloc(SHC_LINE_BYTES, SHC_SCRATCH_BYTES);
    if (config->global_ranks) {
        size_t bytes = (size_t)config->world_size * sizeof *comm->global_ranks;
        comm->global_ranks = malloc(bytes);
        if (comm->global_ranks)
            memcpy(comm->global_ranks, config->global_ranks, bytes);
        for (int rank = 0; comm->global_ranks && rank < config->world_size; rank++)
            if (comm->global_ranks[rank] != rank)
                seat->global_ranks = comm->global_ranks;
    }
    shc_log_set_rank(config->global_ranks ? config->global_ranks[config->rank] : config->rank);
    if (config->description)
        shc_seat_describe(seat, config->description);
    bool complete = comm->scratch && (comm->global_ranks || !config->global_ranks);
    if (!complete)
        return shc_fail(SHC_ERR_NOMEM, "no memory for a group");
    /* The others are told of an error: within the time-out, and by whose it is. */
    SHC_TRY(shc_tuning_read(config->tuning ? SHC_TUNING_OPTION : "SHMCOLL_TUNING",
                            config->tuning ? config->tuning : shc_config_get()->tuning,
                            shc_process_tuning(), &comm->tuning));
    for (int kind = 0; kind < SHC_OP_KIND_COUNT; kind++)
        shc_copy_trials_init(comm->trials[kind], SHC_COPY_NON_TEMPORAL + 1, SHC_COPY_NON_TEMPORAL);
    return init_p2p(comm);
}

static void free_memory(struct shc_comm *comm)
{
    free(comm->global_ranks);
    free(comm->scratch);
    free(comm);
}

static void init_arena(struct shc_comm *comm)
{
    const struct shc_seat *seat = &comm->seat;
    const size_t limit = (size_t)SHC_READ_ONCE(shc_seat_header(seat)->arena_limit);
    shc_arena_init(&comm->arena, seat->world_size, limit, &comm->tuning.arena);
    for (int rank = 0; rank < seat->world_size; rank++) {
        const struct shc_os_cpus cpus = shc_seat_identity(seat, rank).cpus;
        comm->arena.node_of[rank] = (int8_t)shc_numa_node_of(shc_numa_get(), &cpus);
    }
    if (shc_arena_refused(&comm->arena) && limit > 0 && seat->rank == 0)
        shc_log(
            SHC_LOG_WARN,
            "the group \"%s\" of %d ranks has no staging memory, and large messages take many "
            "times as long: SHMCOLL_ARENA_KIB is %zu, and they need %zu or more; better leave it "
            "unset",
            shc_seat_group(seat), seat->world_size, limit >> 10,
            shc_arena_least_limit(seat->world_size) >> 10);
}

enum shc_status shc_comm_create_with(const struct shc_comm_config *config,
                                     const struct shc_knobs *knobs, struct shc_comm **out)
{
    SHC_TRY(check_config(config));
    struct shc_comm *comm =
        aligned_alloc(SHC_LINE_BYTES, shc_align_up(sizeof(struct shc_comm), SHC_LINE_BYTES));
    if (!comm)
        return shc_fail(SHC_ERR_NOMEM, "no memory for a group");
    memset(comm, 0, sizeof *comm);
    comm->budget.wish = knobs->threads ? knobs->threads : shc_config_get()->threads;
    enum shc_status st = shc_engine_init(&comm->engine);
    if (st != SHC_OK)
        goto err_free;
    st = fill(comm, config);
    if (st == SHC_OK)
        st = shc_process_enter(&comm->liveness, &comm->mark, &comm->seat.self);
    if (st == SHC_OK)
        shc_process_board_begin(comm);
    /* If deaths are not marked at once, a rank that copies could not tell a dead rank from a stranger. */
    comm->cma = st == SHC_OK && shc_config_get()->cma && !knobs->no_cma &&
                shc_liveness_marks(comm->liveness);
    if (st == SHC_OK)
        st = shc_bootstrap(comm, config, knobs);
    else if (config->world_size > 1)
        st = shc_bootstrap_refuse(comm, config, st);
    if (st != SHC_OK)
        goto err_fini;
    shc_thread_budget_muster(&comm->budget, &comm->seat);
    shc_select_settle(&comm->tuning, config->world_size, comm->budget.agreed,
                      !knobs->roomy && config->world_size > shc_usable_cpus(&comm->seat));
    init_arena(comm);
    shc_patience_set(&comm->seat);
    comm->p2p.pairs.tried = comm->p2p.pairs.pool_tried = knobs->lines_only;
    if (knobs->bias_pay)
        comm->engine.runner.bias.pay = comm->p2p.lock.bias.pay = knobs->bias_pay;
    pthread_mutex_init(&comm->mapped_lock, NULL);
    comm->mapped = true;
    shc_board_made(&comm->seat.board, &comm->seat);
    shc_board_use(&comm->seat.board, shc_thread_number());
    shc_process_list(comm, &leaving);
    comm->traces = shc_log_goes(SHC_LOG_TRACE);
    if (comm->seat.rank == 0 && shc_log_goes(SHC_LOG_INFO))
        shc_comm_log_facts(comm);
    *out = comm;
    return SHC_OK;

err_fini:
    if (comm->p2p.peers)
        shc_p2p_fini(&comm->p2p);
    shc_engine_fini(&comm->engine);
    shc_board_free(&comm->seat.board);
err_free:
    free_memory(comm);
    return st;
}

enum shc_status shc_comm_create(const struct shc_comm_config *config, struct shc_comm **comm)
{
    static const struct shc_knobs no_knobs;
    return shc_comm_create_with(config, &no_knobs, comm);
}

/* ---- running ---- */

enum shc_status shc_comm_fail_unusable(const struct shc_comm *comm)
{
    const struct shc_seat *seat = &comm->seat;
    if (!shc_process_is(&comm->mark))
        return shc_fail(SHC_ERR_FORKED,
                        "the group \"%s\" belongs to the parent process; a forked child makes its "
                        "own groups",
                        shc_seat_group(seat));
    return shc_fail(SHC_ERR_CLOSED, "rank %d: the group \"%s\" is closed",
                    shc_seat_global_rank(seat, seat->rank), shc_seat_group(seat));
}

/* pre: the group has failed. */
static enum shc_status fail_with_group(const struct shc_comm *comm, enum shc_op_kind kind)
{
    char what[256];
    shc_seat_doing_text(&comm->seat, shc_op_kind_name(kind), what, sizeof what);
    return shc_group_reason(&comm->seat, what);
}

/* Why an operation cannot even begin. */
static enum shc_status check_begin(struct shc_comm *comm, const struct shc_task *task)
{
    /* After taking the runner: a goodbye may have taken it, stored LEFT and released it again. */
    SHC_TRY(shc_comm_usable(comm));
    if (SHC_UNLIKELY(comm->broken != SHC_OK))
        return shc_fail(comm->broken, "%s", comm->broken_text);
    if (SHC_UNLIKELY(shc_group_failed(&comm->seat)))
        return fail_with_group(comm, task->call.kind);
    return SHC_OK;
}

enum shc_status shc_comm_check_failed(struct shc_comm *comm, enum shc_op_kind kind)
{
    enum shc_status st = SHC_OK;
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped && shc_group_failed(&comm->seat))
        st = fail_with_group(comm, kind);
    pthread_mutex_unlock(&comm->mapped_lock);
    return st;
}

static SHC_COLD void trace(const struct shc_task *task, uint64_t ns, const char *end)
{
    char call[160], what[320];
    shc_call_text(task->seat, &task->call, task->wait.epoch, call, sizeof call);
    shc_seat_doing_text(task->seat, call, what, sizeof what);
    shc_log(SHC_LOG_TRACE, "%s took %.1f us: %s", what, (double)ns / SHC_NS_PER_US, end);
}

enum shc_status shc_comm_execute(struct shc_comm *comm, struct shc_task *task)
{
    const uint64_t begun_ns = SHC_UNLIKELY(comm->traces) ? shc_clock_ns() : 0;
    SHC_TRY(check_begin(comm, task));
    task->wait.epoch = comm->epoch + 1;
    task->wait.call = &task->call;
    shc_board_enter(&comm->seat.board, task->wait.epoch, &task->call);
    shc_usdt_op_begin(&comm->seat, task->wait.epoch, &task->call);
    enum shc_status st = shc_coll_run(task);
    shc_usdt_op_end(&comm->seat, task->wait.epoch, st);
    shc_board_leave(&comm->seat.board, task->wait.epoch, &task->call, st, task->wait.waited);
    if (SHC_UNLIKELY(begun_ns != 0))
        trace(task, shc_clock_ns() - begun_ns, st == SHC_OK ? "ok" : shc_error_text());
    if (!task->wait.published)
        return st;
    comm->epoch = task->wait.epoch;
    if (SHC_LIKELY(st == SHC_OK)) {
        shc_progress_renew(&comm->seat, comm->epoch);
        shc_member_finish(&comm->seat, comm->epoch);
        return SHC_OK;
    }
    /* A rank that has given up in the middle cannot go on: another may still be reading its line. */
    shc_cma_withdraw(&comm->seat, comm->epoch); /* and others may be copying its blocks */
    comm->broken = st;
    snprintf(comm->broken_text, sizeof comm->broken_text, "%s", shc_error_text());
    return st;
}

/* ---- leaving ---- */

static void say_left(struct shc_comm *comm)
{
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped)
        shc_member_leave(&comm->seat);
    pthread_mutex_unlock(&comm->mapped_lock);
}

/* A rank that is dead is the likely reason. */
static void abort_group(struct shc_seat *seat, const char *text)
{
    struct shc_member_end end;
    const int dead = shc_member_find_dead(seat, -1);
    if (dead >= 0)
        end = shc_member_get_end(seat, dead);
    (void)!shc_group_fail(seat, SHC_ERR_ABORTED, text, dead >= 0 ? &end : NULL);
}

void shc_comm_abort(struct shc_comm *comm, const char *reason)
{
    if (!shc_process_is(&comm->mark))
        return;
    char text[SHC_REASON_BYTES];
    snprintf(text, sizeof text, "%s aborted the group: %s",
             shc_seat_rank_name(&comm->seat, comm->seat.rank).text, reason);
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped) {
        abort_group(&comm->seat, text);
        shc_bell_ring(&comm->engine.bell, false);
    }
    pthread_mutex_unlock(&comm->mapped_lock);
}

/* Takes the runner for good: a thread that is inside an operation ends it, because the group is closed. */
static bool take_runner(struct shc_engine *engine, struct shc_inside *inside, uint64_t patience_ns)
{
    uint64_t deadline_ns = shc_clock_ns() + patience_ns;
    while (!shc_engine_take(engine, inside, 0) &&
           !shc_engine_take(engine, inside, SHC_RUNNER_QUEUED)) {
        if (shc_clock_ns() > deadline_ns)
            return false;
        shc_os_sleep_ns(50 * SHC_NS_PER_US);
    }
    return true;
}

static void finish_unattended(struct shc_comm *comm, uint64_t until_ns)
{
    (void)shc_p2p_attend(&comm->p2p);
    if (!shc_engine_is_unattended(comm))
        return;
    /* relaxed: a thread that sees it late looks again a slice later. */
    shc_a64_store_relaxed(&comm->seat.leaves_ns, until_ns);
    shc_group_wake(&comm->seat);
    shc_bell_ring(&comm->engine.bell, false);
    (void)!shc_engine_run_unattended(comm, NULL, false);
}

static void say_leaving(struct shc_comm *comm)
{
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped)
        shc_member_begin_to_leave(&comm->seat);
    pthread_mutex_unlock(&comm->mapped_lock);
}

void shc_comm_begin_to_leave(struct shc_comm *comm, uint64_t patience_ns)
{
    struct shc_inside inside;
    bool alone = take_runner(&comm->engine, &inside, patience_ns);
    shc_p2p_silence(&comm->p2p, patience_ns > PASS_NS ? patience_ns : PASS_NS);
    say_leaving(comm);
    if (alone)
        shc_engine_leave(&inside);
}

static const struct shc_leaving leaving = {finish_unattended, shc_comm_begin_to_leave, say_left};

static void unmap(struct shc_comm *comm)
{
    struct shc_member_shm *member = shc_seat_member(&comm->seat, comm->seat.rank);
    pthread_mutex_lock(&comm->mapped_lock);
    comm->mapped = false;
    shc_liveness_unlink(comm->liveness, &member->life);
    shc_arena_fini(&comm->arena);
    shc_peer_heaps_fini(&comm->seat);
    shc_segment_detach(&comm->seat.segment);
    pthread_mutex_unlock(&comm->mapped_lock);
}

/* quietly: the others are told when the process has ended. */
static void close_comm(struct shc_comm *comm, bool quietly)
{
    if (!shc_process_is(&comm->mark))
        return;
    if (shc_comm_usable(comm) == SHC_OK)
        finish_unattended(comm, shc_clock_ns() + CLOSE_NS);
    /* acq_rel seat/closed: the first closer goes on, and every wait of this process ends. */
    if (shc_a32_exchange_acq_rel(&comm->seat.closed, 1) != 0)
        return;
    shc_group_wake(&comm->seat);
    shc_board_close(&comm->seat.board);
    if (!quietly)
        shc_process_unlist(comm);
    shc_engine_reject(&comm->engine);
    /* Wakes threads that wait for a request of this rank: each looks at `closed` within a slice anyway. */
    shc_bell_ring(&comm->engine.bell, false);
    const bool silent = shc_p2p_silence(&comm->p2p, CLOSE_NS);
    const bool left = silent && shc_p2p_close(&comm->p2p, CLOSE_NS);
    struct shc_inside inside;
    bool alone = !shc_process_leaving() && take_runner(&comm->engine, &inside, CLOSE_NS);
    /* Only now, because after LEFT nothing may be published. Otherwise a rank that saw LEFT and no call,
     * and one that saw the call, would decide differently. */
    if (!quietly)
        say_left(comm);
    if (!alone)
        return;              /* a thread is inside for ever: leave it the memory */
    shc_inside_end(&inside); /* the runner is kept for good */
    shc_engine_drain(comm, SHC_ERR_CLOSED, "this rank has closed the group");
    if (silent) /* if not, a thread has yet to end what is pending, and callbacks need a thread */
        shc_engine_stop(&comm->engine);
    if (left) /* else a thread sleeps on the mailbox's bell */
        unmap(comm);
}

void shc_comm_close(struct shc_comm *comm)
{
    close_comm(comm, false);
}

void shc_comm_free(struct shc_comm *comm)
{
    if (!comm || !shc_process_is(&comm->mark))
        return;
    close_comm(comm, shc_process_leaving()); /* then it goes with the process */
    shc_engine_retire(&comm->engine);
    if (shc_process_leaving() || comm->mapped || comm->engine.straying)
        return; /* the library's threads may still be there: the process's end frees it */
    shc_p2p_fini(&comm->p2p);
    shc_engine_fini(&comm->engine);
    pthread_mutex_destroy(&comm->mapped_lock);
    shc_board_free(&comm->seat.board);
    free_memory(comm);
}

/* ---- questions ---- */

int shc_comm_rank(const struct shc_comm *comm)
{
    return comm->seat.rank;
}

int shc_comm_world_size(const struct shc_comm *comm)
{
    return comm->seat.world_size;
}

uint64_t shc_comm_sequence(struct shc_comm *comm)
{
    /* relaxed: counters. */
    return shc_a64_load_relaxed(&comm->ran) + shc_a64_load_relaxed(&comm->submitted);
}

void shc_comm_describe(struct shc_comm *comm, const char *description)
{
    if (!shc_process_is(&comm->mark))
        return;
    shc_seat_describe(&comm->seat, description);
    shc_board_describe(&comm->seat.board, shc_seat_group(&comm->seat));
}

void shc_comm_set_timeout(struct shc_comm *comm, uint64_t timeout_ns)
{
    if (timeout_ns == 0)
        timeout_ns = DEFAULT_TIMEOUT_NS;
    /* relaxed: concerns only operations that start after it. */
    shc_a64_store_relaxed(&comm->timeout_ns, timeout_ns);
    if (shc_process_is(&comm->mark))
        shc_board_set_timeout(&comm->seat.board, timeout_ns);
}

enum shc_status shc_comm_error(struct shc_comm *comm)
{
    SHC_TRY(shc_comm_usable(comm));
    enum shc_status st = SHC_OK;
    char why[512];
    pthread_mutex_lock(&comm->mapped_lock);
    const int dead = comm->mapped ? shc_member_find_dead(&comm->seat, -1) : -1;
    /* After the states: a rank that is dead may have been told, and have ended. */
    if (comm->mapped && shc_group_failed(&comm->seat))
        st = shc_group_reason(&comm->seat, "the group");
    else if (dead >= 0) {
        const struct shc_member_end end = shc_member_get_end(&comm->seat, dead);
        shc_member_death_text(&comm->seat, &end, why, sizeof why);
        st = shc_fail(SHC_ERR_PEER_DEAD, "%s", why);
    }
    pthread_mutex_unlock(&comm->mapped_lock);
    return st;
}

int shc_comm_is_ending(struct shc_comm *comm, int rank)
{
    if (rank < 0 || rank >= comm->seat.world_size || !shc_process_is(&comm->mark))
        return 0;
    pthread_mutex_lock(&comm->mapped_lock);
    const bool ending = comm->mapped && shc_member_look(&comm->seat, rank) == SHC_MEMBER_LEAVING;
    pthread_mutex_unlock(&comm->mapped_lock);
    return ending;
}
