/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/seat.h"

#include "shm/base/log.h"
#include "shm/base/utf8.h"

#include <stdio.h>
#include <string.h>

void shc_seat_lacks_thread(const struct shc_seat *seat, int error)
{
    static shc_a32 said;
    /* acq_rel seat/said: only the first thread says it; no other data. */
    if (shc_a32_exchange_acq_rel(&said, 1) != 0)
        return;
    char why[SHC_STRERROR_BYTES];
    shc_log(SHC_LOG_WARN,
            "%s: cannot start another thread (%s). Asynchronous operations go on "
            "only while a thread waits for one, or calls the group; callbacks wait for the threads "
            "there are. Is there a limit of processes (ulimit -u, pids of a container) or of "
            "memory (ulimit -v)? (Said once.)",
            shc_seat_member_name(seat, seat->rank).text, strerror_r(error, why, sizeof why));
}

void shc_seat_describe(struct shc_seat *seat, const char *description)
{
    /* acq_rel seat/described: only the first thread writes the text. */
    if (!shc_a32_cas_acq_rel(&seat->described, SHC_NOT_DESCRIBED, SHC_BEING_DESCRIBED))
        return;
    shc_utf8_copy_name(seat->description, sizeof seat->description, description);
    /* release seat/described -> acquire in shc_seat_group(): the text. */
    shc_a32_store_release(&seat->described, SHC_DESCRIBED);
}

/* "rank 5 (rank 2 of group "tp"", or "rank 2"; true: a parenthesis is open. */
static bool begin_name(const struct shc_seat *seat, int rank, struct shc_rank_name *name)
{
    const int global_rank = shc_seat_global_rank(seat, rank);
    const bool both = global_rank != rank && !seat->plain_names;
    if (both)
        snprintf(name->text, sizeof name->text, "rank %d (rank %d of group \"%s\"", global_rank,
                 rank, shc_seat_group(seat));
    else
        snprintf(name->text, sizeof name->text, "rank %d", global_rank);
    return both;
}

static void append(struct shc_rank_name *name, const char *text)
{
    const size_t used = strlen(name->text);
    snprintf(name->text + used, sizeof name->text - used, "%s", text);
}

struct shc_rank_name shc_seat_rank_name(const struct shc_seat *seat, int rank)
{
    struct shc_rank_name name;
    if (begin_name(seat, rank, &name))
        append(&name, ")");
    return name;
}

struct shc_rank_name shc_seat_member_name(const struct shc_seat *seat, int rank)
{
    struct shc_rank_name name;
    char group[SHC_GROUP_NAME_BYTES + 8];
    snprintf(group, sizeof group, " of \"%s\"", shc_seat_group(seat));
    append(&name, begin_name(seat, rank, &name) ? ")" : group);
    return name;
}

struct shc_rank_name shc_seat_process_begin(const struct shc_seat *seat, int rank)
{
    struct shc_rank_name name;
    const struct shc_os_process process = shc_seat_process(seat, rank);
    char pid[64];
    snprintf(pid, sizeof pid, "pid %d%s", (int)process.pid,
             process.pid_namespace == seat->self.pid_namespace ? "" : " of another pid namespace");
    append(&name, begin_name(seat, rank, &name) ? ", " : " (");
    append(&name, pid);
    return name;
}

struct shc_rank_name shc_seat_process_name(const struct shc_seat *seat, int rank)
{
    struct shc_rank_name name = shc_seat_process_begin(seat, rank);
    append(&name, ")");
    return name;
}

void shc_seat_doing_text(const struct shc_seat *seat, const char *call, char *text, size_t capacity)
{
    struct shc_rank_name name;
    if (begin_name(seat, seat->rank, &name))
        snprintf(text, capacity, "%s): %s", name.text, call);
    else
        snprintf(text, capacity, "%s: %s on group \"%s\"", name.text, call, shc_seat_group(seat));
}

void shc_seat_group_text(const struct shc_seat *seat, char *text, size_t capacity)
{
    struct shc_rank_name name;
    if (begin_name(seat, seat->rank, &name))
        snprintf(text, capacity, "%s): the group", name.text);
    else
        snprintf(text, capacity, "%s: group \"%s\"", name.text, shc_seat_group(seat));
}
