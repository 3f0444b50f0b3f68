/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the library and a group say about themselves: lines of key=value.
 */
#include "shm/base/log.h"
#include "shm/base/num.h"
#include "shm/coll/paths.h"
#include "shm/comm/comm.h"
#include "shm/p2p/protocols.h"
#include "shm/proto/board.h"
#include "shm/proto/late.h"
#include "shm/proto/member.h"

#include <stdio.h>

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define MINOR      STRING(SHC_VERSION_MINOR) "." STRING(SHC_VERSION_PATCH)
#define VERSION    STRING(SHC_VERSION_MAJOR) "." MINOR SHC_VERSION_PRE

const char *shc_version(void)
{
    return VERSION;
}

#ifdef SHC_HAVE_NUMA
#define BUILT_NUMA "yes"
#else
#define BUILT_NUMA "no"
#endif
#ifdef SHC_HAVE_URING
#define BUILT_URING "yes"
#else
#define BUILT_URING "no"
#endif

#ifdef SHC_HAVE_SDT
#define BUILT_PROBES "yes"
#else
#define BUILT_PROBES "no"
#endif

static char build_info[800];
static pthread_once_t build_info_once = PTHREAD_ONCE_INIT;

/* liburing is only asked whether it would work: threads sleep by futex_waitv, and none waits for descriptors too. */
static void fill_build_info(void)
{
    const bool numa = shc_os_has_numa();
    int used = snprintf(
        build_info, sizeof build_info,
        "version=%s\nlayout=%u\nmax_world=%d\ncompiler=%s\nbuilt_with_numa=%s\n"
        "built_with_uring=%s\nbuilt_with_probes=%s\nnuma=%s\nnuma_use=%s\nuring=%s\n"
        "uring_use=none\nfutex_waitv=%s\nisa=%s\nisa_usable=",
        VERSION, SHC_LAYOUT_VERSION, SHC_MAX_WORLD, __VERSION__, BUILT_NUMA, BUILT_URING,
        BUILT_PROBES, numa ? "yes" : "no", numa ? "nodes of CPUs, distances, memory" : "none",
        shc_os_has_uring() ? "yes" : "no", shc_os_futex_waits_for_any() ? "yes" : "no",
        shc_isa_name(shc_isa_chosen()));
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++)
        if (shc_isa_usable((enum shc_isa)isa))
            used += snprintf(build_info + used, sizeof build_info - (size_t)used, "%s%s",
                             isa ? "," : "", shc_isa_name((enum shc_isa)isa));
    snprintf(build_info + used, sizeof build_info - (size_t)used, "\n");
}

const char *shc_build_info(void)
{
    pthread_once(&build_info_once, fill_build_info);
    return build_info;
}

struct shc_rank_name shc_comm_rank_name(const struct shc_comm *comm, int rank)
{
    return shc_seat_rank_name(&comm->seat, rank);
}

const char *shc_comm_group_name(const struct shc_comm *comm)
{
    return shc_seat_group(&comm->seat);
}

/* ---- which path each operation and size takes ---- */

static const struct {
    size_t bytes;
    const char *name;
} sizes[] = {{8, "8"},          {1 << 10, "1k"},     {8 << 10, "8k"},
             {32 << 10, "32k"}, {200 << 10, "200k"}, {1 << 20, "1m"},
             {16 << 20, "16m"}};

enum { SIZES = sizeof sizes / sizeof sizes[0], PATH_BYTES = 96 };

/* False: there is nothing to choose. */
static bool path_text(const struct shc_comm *comm, enum shc_op_kind kind, size_t bytes, char *text)
{
    const int world = comm->seat.world_size;
    if (kind == SHC_SEND) {
        shc_protocols_text(&comm->seat.mail, bytes, text, PATH_BYTES);
        return true;
    }
    const char *path = shc_coll_path(&comm->tuning, kind, bytes, world, comm->cma);
    snprintf(text, PATH_BYTES, "%s", path ? path : "");
    return path != NULL;
}

/* "path.send.8=hand-off, line": as snprintf(). */
static size_t print_paths(const struct shc_comm *comm, char *text, size_t capacity)
{
    size_t used = 0;
    for (int kind = 0; kind < SHC_OP_KIND_COUNT && comm->seat.world_size > 1; kind++)
        for (int i = 0; i < SIZES; i++) {
            char path[PATH_BYTES];
            const size_t at = shc_min_size(used, capacity);
            if (path_text(comm, (enum shc_op_kind)kind, sizes[i].bytes, path))
                used +=
                    (size_t)snprintf(text + at, capacity - at, "path.%s.%s=%s\n",
                                     shc_op_kind_name((enum shc_op_kind)kind), sizes[i].name, path);
        }
    return used;
}

/* "2,5,7": the numbers of the ranks in the job. */
static void members_text(const struct shc_seat *seat, char *text, size_t capacity)
{
    size_t used = 0;
    for (int rank = 0; rank < seat->world_size && used < capacity; rank++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%d", rank ? "," : "",
                                 shc_seat_global_rank(seat, rank));
}

/* "1,3": the ranks of the group that have died or left. pre: mapped_lock is held. */
static void gone_text(const struct shc_comm *comm, char *text, size_t capacity)
{
    const struct shc_seat *seat = &comm->seat;
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; comm->mapped && rank < seat->world_size && used < capacity; rank++) {
        const enum shc_member_state state = shc_member_look(seat, rank);
        if (state == SHC_MEMBER_DEAD || state == SHC_MEMBER_LEFT ||
            (rank != seat->rank && shc_member_process_gone(seat, rank)))
            used +=
                (size_t)snprintf(text + used, capacity - used, "%s%d", used > 0 ? "," : "", rank);
    }
}

/* The same on all ranks of a group, and of no other group. */
static void id_text(const struct shc_seat *seat, char text[2 * SHC_NONCE_BYTES + 1])
{
    for (int i = 0; i < SHC_NONCE_BYTES; i++)
        snprintf(text + (size_t)2 * (size_t)i, 3, "%02x", seat->segment.name.nonce[i]);
}

static void log_paths(const struct shc_comm *comm)
{
    for (int kind = 0; kind < SHC_OP_KIND_COUNT && comm->seat.world_size > 1; kind++) {
        char line[SIZES * (PATH_BYTES + 8)] = "", path[PATH_BYTES];
        size_t used = 0;
        for (int i = 0; i < SIZES && used < sizeof line; i++)
            if (path_text(comm, (enum shc_op_kind)kind, sizes[i].bytes, path))
                used += (size_t)snprintf(line + used, sizeof line - used, "%s %s: %s",
                                         i > 0 ? ";" : "", sizes[i].name, path);
        if (used > 0)
            shc_log(SHC_LOG_INFO, "group \"%s\": %s by bytes:%s", shc_seat_group(&comm->seat),
                    shc_op_kind_name((enum shc_op_kind)kind), line);
    }
}

void shc_comm_log_facts(const struct shc_comm *comm)
{
    const struct shc_seat *seat = &comm->seat;
    char members[SHC_MAX_WORLD * 8];
    members_text(seat, members, sizeof members);
    const char *group = shc_seat_group(seat);
    shc_log(SHC_LOG_INFO, "group \"%s\": shmcoll " VERSION ", ranks %s of the job", group, members);
    shc_log(SHC_LOG_INFO, "group \"%s\": a %s of %zu bytes; large operations make more", group,
            shc_segment_form_name(seat->segment.name.form), seat->segment.bytes);
    shc_log(SHC_LOG_INFO, "group \"%s\": kernels %s, %d reduction threads (%s), NUMA node %d",
            group, shc_isa_name(shc_isa_chosen()), shc_pool_size(comm->budget.pool),
            comm->budget.from, comm->arena.node_of[seat->rank]);
    log_paths(comm);
}

enum shc_status shc_comm_info(struct shc_comm *comm, char *text, size_t capacity)
{
    SHC_TRY(shc_comm_usable(comm));
    const struct shc_arena_geometry *g = &comm->arena.geometry;
    /* relaxed: a number for people. */
    const uint32_t migrations = shc_a32_load_relaxed(&comm->seat.cpu_sharing.migrations);
    /* relaxed: a number for people. */
    const uint64_t single_copies = shc_a64_load_relaxed(&comm->seat.single_copies);
    /* relaxed: a number for people. */
    const uint64_t pushed = shc_a64_load_relaxed(&comm->heaps.pushed);
    /* relaxed: a number for people. */
    const uint64_t timeout_ns = shc_a64_load_relaxed(&comm->timeout_ns);
    /* relaxed: a number for people. */
    const bool biased = shc_a64_load_relaxed(&comm->engine.runner.bias.whose) != 0;
    /* relaxed: a number for people. */
    const bool lock_biased = shc_a64_load_relaxed(&comm->p2p.lock.bias.whose) != 0;
    const struct shc_seat *seat = &comm->seat;
    char members[SHC_MAX_WORLD * 8], gone[SHC_MAX_WORLD * 4], id[2 * SHC_NONCE_BYTES + 1];
    id_text(seat, id);
    members_text(seat, members, sizeof members);
    pthread_mutex_lock(&comm->mapped_lock);
    gone_text(comm, gone, sizeof gone);
    pthread_mutex_unlock(&comm->mapped_lock);
    int used = snprintf(
        text, capacity,
        "name=%s\nid=%s\ndesc=%s\nrank=%d\nglobal_rank=%d\nmembers=%s\ngone=%s\nworld_size=%d\n"
        "timeout_s=%.3f\nsegment=%s\nsegment_bytes=%zu\n"
        "arena=%s\narena_bytes=%zu\ncell_bytes=%zu\ndepth=%u\nbcast_slot_bytes=%zu\n"
        "spins=%u\nspins_engine=%u\nmigrations=%u\nthreads=%d\nthreads_jobs=%llu\n"
        "threads_of_all=%d\nthreads_from=%s\nlife_words=%s\nisa=%s\n"
        "cma=%s\nsingle_copies=%llu\npushed=%llu\nbiased=%s\nbiased_messages=%s\n",
        comm->name, id, shc_seat_group(seat), seat->rank, shc_seat_global_rank(seat, seat->rank),
        members, gone, seat->world_size, (double)timeout_ns / SHC_NS_PER_S,
        shc_segment_form_name(comm->seat.segment.name.form), comm->seat.segment.bytes,
        comm->arena.made    ? shc_segment_form_name(comm->arena.segment.name.form)
        : comm->arena.tried ? "none"
                            : "not yet",
        comm->arena.made ? comm->arena.segment.bytes : (size_t)0, g->cell_bytes, g->depth,
        g->bcast_slot_bytes, comm->seat.patience.spins, comm->seat.patience_engine.spins,
        migrations, shc_pool_size(comm->budget.pool),
        (unsigned long long)shc_pool_jobs(comm->budget.pool), comm->budget.agreed,
        comm->budget.from, shc_liveness_marks(comm->liveness) ? "yes" : "no",
        shc_isa_name(shc_isa_chosen()), comm->cma ? "on" : "off", (unsigned long long)single_copies,
        (unsigned long long)pushed, biased ? "yes" : "no", lock_biased ? "yes" : "no");
    size_t at = shc_min_size((size_t)used, capacity);
    size_t needed = (size_t)used + print_paths(comm, text + at, capacity - at);
    at = shc_min_size(needed, capacity);
    needed += shc_tuning_print(&comm->tuning, text + at, capacity - at) + 1;
    if (needed > capacity)
        return shc_fail(SHC_ERR_INVALID, "the text needs %zu bytes", needed);
    return SHC_OK;
}

void shc_comm_show_device(struct shc_comm *comm, const struct shc_device_work *work)
{
    if (shc_process_is(&comm->mark))
        shc_board_device(&comm->seat.board, work);
}

void shc_comm_keep_device(struct shc_comm *comm, const struct shc_op *op, uint64_t number,
                          uint64_t count, uint64_t begun_ns)
{
    if (shc_process_is(&comm->mark))
        shc_board_keep_device(&comm->seat.board, op, number, count, begun_ns);
}

/* ---- lines of libraries over this one ---- */

static bool is_said(struct shc_comm *comm, uint64_t number, uint32_t missing, uint64_t waited_ns)
{
    bool said = false;
    pthread_mutex_lock(&comm->mapped_lock);
    if (comm->mapped && number != 0)
        said = shc_late_is_said(&comm->seat, number, missing, waited_ns);
    else if (comm->mapped)
        said = shc_late_was_said(&comm->seat, missing, shc_clock_ns());
    pthread_mutex_unlock(&comm->mapped_lock);
    return said;
}

void shc_comm_log_late(struct shc_comm *comm, uint64_t number, uint32_t missing, uint64_t waited_ns,
                       const char *text)
{
    const bool quiet = missing != 0 && comm->seat.world_size > 2 && shc_log_goes(SHC_LOG_WARN) &&
                       is_said(comm, number, missing, waited_ns);
    shc_log_late(!quiet, "%s", text);
}
