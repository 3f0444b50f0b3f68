/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/member.h"

#include "shm/base/lateness.h"
#include "shm/proto/bell.h"
#include "shm/proto/board.h"
#include "shm/proto/call.h"

#include <stdio.h>
#include <string.h>

#define MISSING_LISTED 4
#define FOLLOWERS      7            /* if all ranks wait, each of them is looked at by others */
#define ENDING_NS      SHC_NS_PER_S /* the time that the kernel may take to tear down a process */

/* A process has taken longer to end than a kernel takes. Several threads may note that here at the
 * same time, and each of them is right. Of several ranks the first one counts. */
static bool ends_late(void)
{
    static shc_a64 ending_ns;
    const uint64_t now_ns = shc_clock_ns();
    /* relaxed: a time, of this process alone. */
    const uint64_t since_ns = shc_a64_load_relaxed(&ending_ns);
    if (since_ns == 0) {
        /* relaxed: a time, of this process alone. */
        shc_a64_store_relaxed(&ending_ns, now_ns);
    }
    return since_ns != 0 && now_ns - since_ns > ENDING_NS;
}

void shc_group_wake(const struct shc_seat *seat)
{
    for (int rank = 0; rank < seat->world_size; rank++) {
        /* acquire member/state <- acq_rel in take_seat(): its block is reserved. Before that nobody sleeps there, and
         * in a group that could not be made its pages may not exist. */
        if (shc_a32_load_acquire(&shc_seat_member(seat, rank)->state) == SHC_MEMBER_EMPTY)
            continue;
        shc_bell_ring(shc_seat_bell(seat, rank), true);
        shc_bell_ring(shc_seat_mail_bell(seat, rank), true);
    }
}

enum shc_member_state shc_member_look(const struct shc_seat *seat, int rank)
{
    struct shc_member_shm *member = shc_seat_member(seat, rank);
    /* acquire member/state <- acq_rel in shc_member_leave(): all the member published before. */
    uint32_t state = shc_a32_load_acquire(&member->state);
    if (state == SHC_MEMBER_EMPTY || state == SHC_MEMBER_LEFT || state == SHC_MEMBER_DEAD)
        return (enum shc_member_state)state;
    /* acquire life/own <- release in shc_os_robust_link(): the kernel may have marked it. */
    if ((shc_a32_load_acquire(&member->life) & SHC_OS_OWNER_DIED) == 0)
        return state == SHC_MEMBER_LEAVING ? SHC_MEMBER_LEAVING : SHC_MEMBER_ALIVE;
    /* The mark comes before the memory goes, and the process can be waited for only after that. */
    const struct shc_os_process process = shc_seat_process(seat, rank);
    if (state == SHC_MEMBER_LEAVING && shc_os_process_life(&seat->self, &process) == SHC_OS_ALIVE &&
        !ends_late())
        return SHC_MEMBER_LEAVING;
    shc_member_declare_dead(seat, rank);
    /* acquire member/state <- acq_rel in shc_member_leave(): LEFT may have come first. An invalid
     * state counts as ALIVE: then the life word decides. */
    state = shc_a32_load_acquire(&member->state);
    return state == SHC_MEMBER_LEFT ? SHC_MEMBER_LEFT : SHC_MEMBER_DEAD;
}

bool shc_member_has_memory(const struct shc_seat *seat, int rank)
{
    struct shc_member_shm *member = shc_seat_member(seat, rank);
    /* acquire member/state <- acq_rel in shc_member_leave(): all the member published before. */
    const uint32_t state = shc_a32_load_acquire(&member->state);
    /* acquire life/own <- release in shc_os_robust_link(): the kernel may have marked it. */
    const bool marked = (shc_a32_load_acquire(&member->life) & SHC_OS_OWNER_DIED) != 0;
    return (state == SHC_MEMBER_ALIVE || state == SHC_MEMBER_LEAVING) && !marked;
}

void shc_member_leave(const struct shc_seat *seat)
{
    shc_a32 *state = &shc_seat_member(seat, seat->rank)->state;
    /* acq_rel member/state: what this rank published before is visible with LEFT. */
    if (!shc_a32_cas_acq_rel(state, SHC_MEMBER_ALIVE, SHC_MEMBER_LEFT)) {
        /* acq_rel member/state: what this rank published before is visible with LEFT. */
        shc_a32_cas_acq_rel(state, SHC_MEMBER_LEAVING, SHC_MEMBER_LEFT);
    }
    shc_group_wake(seat);
}

void shc_member_begin_to_leave(const struct shc_seat *seat)
{
    /* acq_rel member/state: what this rank published before is visible with LEAVING. */
    shc_a32_cas_acq_rel(&shc_seat_member(seat, seat->rank)->state, SHC_MEMBER_ALIVE,
                        SHC_MEMBER_LEAVING);
}

void shc_member_declare_dead(const struct shc_seat *seat, int rank)
{
    shc_a32 *state = &shc_seat_member(seat, rank)->state;
    /* acq_rel member/state: from ALIVE only, so that LEFT is never overwritten. */
    bool changed = shc_a32_cas_acq_rel(state, SHC_MEMBER_ALIVE, SHC_MEMBER_DEAD);
    if (!changed) {
        /* acq_rel member/state: it ended by itself. */
        changed = shc_a32_cas_acq_rel(state, SHC_MEMBER_LEAVING, SHC_MEMBER_LEFT);
    }
    if (changed)
        shc_group_wake(seat);
}

bool shc_member_process_gone(const struct shc_seat *seat, int rank)
{
    const struct shc_os_process process = shc_seat_process(seat, rank);
    enum shc_os_life life = shc_os_process_life(&seat->self, &process);
    if (life != SHC_OS_ALIVE)
        return life == SHC_OS_DEAD;
    bool dumping_core;
    shc_os_process_state(&seat->self, &process, &dumping_core);
    return dumping_core;
}

/* The process has been killed, but the thread that has the life word has not got a CPU to end yet; or the process
 * writes a core dump. A process with many groups has several such threads, and other ranks may have seen another
 * one's end. */
static bool is_about_to_die(const struct shc_seat *seat, int rank)
{
    struct shc_member_shm *member = shc_seat_member(seat, rank);
    const struct shc_os_process process = shc_seat_process(seat, rank);
    /* acquire life/own <- release in shc_os_robust_link(): the thread. */
    const uint32_t life = shc_a32_load_acquire(&member->life);
    /* acquire member/state <- acq_rel in shc_member_leave(): no other data. */
    return shc_a32_load_acquire(&member->state) == SHC_MEMBER_ALIVE &&
           shc_os_thread_is_ending(&seat->self, &process, (int32_t)(life & SHC_OS_OWNER_MASK));
}

void shc_member_look_at_processes(const struct shc_seat *seat, int first, int count)
{
    for (int i = 0; i < seat->world_size && i < count; i++) {
        int rank = (first + i) % seat->world_size;
        if (rank != seat->rank &&
            (shc_member_process_gone(seat, rank) || is_about_to_die(seat, rank)))
            shc_member_declare_dead(seat, rank);
    }
}

void shc_member_look_at_threads(const struct shc_seat *seat, int peer)
{
    if (peer >= 0 && peer != seat->rank && is_about_to_die(seat, peer))
        shc_member_declare_dead(seat, peer);
    for (int turn = 1; turn < seat->world_size && turn <= FOLLOWERS; turn++) {
        const int rank = shc_seat_peer(seat, turn);
        if (rank != peer && is_about_to_die(seat, rank))
            shc_member_declare_dead(seat, rank);
    }
}

int shc_member_find_dead(const struct shc_seat *seat, int other)
{
    for (int rank = 0; rank < seat->world_size; rank++)
        if (rank != seat->rank && rank != other && shc_member_look(seat, rank) == SHC_MEMBER_DEAD)
            return rank;
    return -1;
}

void shc_member_tell_why(const struct shc_seat *seat, const char *why)
{
    struct shc_leaving_shm *leaving = shc_seat_leaving(seat, seat->rank);
    /* relaxed: this rank alone stores it, and only its first reason counts. */
    if (shc_a32_load_relaxed(&leaving->told) != 0)
        return;
    snprintf(leaving->text, sizeof leaving->text, "%s", why);
    /* release leaving/told -> acquire in why_text(): the text. */
    shc_a32_store_release(&leaving->told, 1);
}

/* The exception that the rank has told of, or "". */
static void why_text(const struct shc_seat *seat, int rank, char text[SHC_WHY_BYTES])
{
    struct shc_leaving_shm *leaving = shc_seat_leaving(seat, rank);
    text[0] = '\0';
    /* acquire leaving/told <- release in shc_member_tell_why(): the text. */
    if (shc_a32_load_acquire(&leaving->told) != 0)
        shc_copy_text_once(text, leaving->text, sizeof leaving->text);
}

struct shc_member_end shc_member_get_end(const struct shc_seat *seat, int rank)
{
    const struct shc_os_process process = shc_seat_process(seat, rank);
    const bool died = shc_member_look(seat, rank) == SHC_MEMBER_DEAD;
    return (struct shc_member_end){
        .rank = rank, .died = died, .how = shc_os_process_end(&seat->self, &process, died)};
}

void shc_member_end_text(const struct shc_seat *seat, const struct shc_member_end *end, char *text,
                         size_t capacity)
{
    char why[SHC_WHY_BYTES];
    why_text(seat, end->rank, why);
    text[0] = '\0';
    if (why[0])
        snprintf(text, capacity, " because of %s", why);
    else if (end->how.kind == SHC_OS_END_SIGNAL)
        snprintf(text, capacity, ", killed by signal %d", end->how.code);
    else if (end->how.kind == SHC_OS_END_EXIT)
        snprintf(text, capacity, ", exit code %d", end->how.code);
}

void shc_member_death_text(const struct shc_seat *seat, const struct shc_member_end *end,
                           char *text, size_t capacity)
{
    char call[160], how[160];
    shc_call_last_clause(seat, end->rank, call, sizeof call);
    shc_member_end_text(seat, end, how, sizeof how);
    snprintf(text, capacity, "%s died%s; %s", shc_seat_process_name(seat, end->rank).text, how,
             call);
}

void shc_member_left_text(const struct shc_seat *seat, const struct shc_member_end *end, char *text,
                          size_t capacity)
{
    char how[128];
    shc_member_end_text(seat, end, how, sizeof how);
    snprintf(text, capacity, "has left the group%s",
             how[0] ? how : " (closed it, or its process ended)");
}

void shc_member_text(const struct shc_seat *seat, int rank, char *text, size_t capacity)
{
    const struct shc_os_process process = shc_seat_process(seat, rank);
    const char *word = "state not visible";
    bool dumping_core = false;
    enum shc_member_state member = shc_member_look(seat, rank);
    if (member == SHC_MEMBER_LEFT)
        word = "has left the group";
    else if (member == SHC_MEMBER_LEAVING)
        word = "its process is ending";
    else if (member == SHC_MEMBER_DEAD)
        word = "dead";
    else if (shc_os_process_life(&seat->self, &process) != SHC_OS_UNKNOWN)
        word = shc_os_state_word(shc_os_process_state(&seat->self, &process, &dumping_core));
    char call[128], last[160] = "no call yet", other[256] = "", end[160] = "";
    if (shc_call_latest_text(seat, rank, call, sizeof call))
        snprintf(last, sizeof last, "last call: %s", call);
    if (seat->elsewhere && rank != seat->rank)
        seat->elsewhere(seat, rank, other, sizeof other);
    if (rank != seat->rank && member != SHC_MEMBER_ALIVE) {
        const struct shc_member_end how = shc_member_get_end(seat, rank);
        shc_member_end_text(seat, &how, end, sizeof end);
    }
    snprintf(text, capacity, "%s, %s%s%s, %s%s)", shc_seat_process_begin(seat, rank).text, word,
             end, dumping_core ? ", writing a core dump" : "", last, other);
}

/* Another rank that has not made the call of that epoch. */
static bool is_missing(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    struct shc_call call;
    const uint64_t latest = shc_call_latest(seat, rank, &call);
    return rank != seat->rank && (latest == 0 || !shc_reached(latest, epoch));
}

int shc_member_missing(const struct shc_seat *seat, uint64_t epoch, uint32_t *which)
{
    int missing = 0;
    *which = SHC_LATE_HASH;
    for (int rank = 0; rank < seat->world_size; rank++) {
        if (!is_missing(seat, rank, epoch))
            continue;
        *which = shc_late_hash(*which, (uint32_t)rank);
        missing++;
    }
    return missing;
}

int shc_member_missing_text(const struct shc_seat *seat, uint64_t epoch, char *text,
                            size_t capacity)
{
    int missing = 0;
    size_t used = strlen(text);
    for (int rank = 0; rank < seat->world_size; rank++) {
        if (!is_missing(seat, rank, epoch))
            continue;
        if (missing < MISSING_LISTED && used < capacity) {
            used += (size_t)snprintf(text + used, capacity - used, "%s", missing ? ", " : "");
            if (used < capacity)
                shc_member_text(seat, rank, text + used, capacity - used);
            used = strlen(text);
        }
        missing++;
    }
    if (missing > MISSING_LISTED && used < capacity)
        snprintf(text + used, capacity - used, " and %d more", missing - MISSING_LISTED);
    return missing;
}

/* Also as another rank found it. */
static void show_failure(const struct shc_seat *seat, enum shc_status status, const char *text,
                         int finder, const struct shc_member_end *end)
{
    char why[SHC_WHY_BYTES];
    struct shc_board_end shown = {.finder = finder, .rank = -1};
    if (end) {
        struct shc_call call;
        why_text(seat, end->rank, why);
        shown.rank = end->rank;
        shown.pid = shc_seat_process(seat, end->rank).pid;
        shown.died = end->died;
        shown.how = end->how;
        shown.why = why;
        shown.last_call = shc_call_latest(seat, end->rank, &call);
    }
    shc_board_fail(&seat->board, status, text, &shown);
    shc_usdt_failed(status, text);
}

void shc_member_show_failure(const struct shc_seat *seat, enum shc_status status, const char *text,
                             const struct shc_member_end *end)
{
    show_failure(seat, status, text, seat->rank, end);
}

static void store_end(struct shc_reason_shm *reason, const struct shc_member_end *end)
{
    reason->ended = (uint32_t)end->rank + 1;
    reason->died = end->died;
    reason->end_kind = (uint32_t)end->how.kind;
    reason->end_code = end->how.code;
}

/* False: nobody's end is the reason. */
static bool load_end(const struct shc_seat *seat, const struct shc_reason_shm *reason,
                     struct shc_member_end *end)
{
    const uint32_t ended = SHC_READ_ONCE(reason->ended), kind = SHC_READ_ONCE(reason->end_kind);
    *end = (struct shc_member_end){.rank = (int)(ended - 1), /* perhaps any number */
                                   .died = SHC_READ_ONCE(reason->died) != 0,
                                   .how = {.code = SHC_READ_ONCE(reason->end_code)}};
    if (kind == SHC_OS_END_EXIT || kind == SHC_OS_END_SIGNAL)
        end->how.kind = (enum shc_os_end_kind)kind;
    return ended > 0 && ended <= (uint32_t)seat->world_size;
}

static enum shc_status fail_group(struct shc_seat *seat, enum shc_status status, const char *text,
                                  bool whole, uint64_t epoch, const struct shc_member_end *end)
{
    struct shc_reason_shm *reason = shc_seat_reason(seat, seat->rank);
    const bool known = whole ? shc_group_failed(seat) : shc_group_failed_at(seat, epoch);
    /* acq_rel reason/once: two threads of this rank must not write the one reason line. */
    if (!known && shc_a32_exchange_acq_rel(&seat->reason_used, 1) == 0) {
        reason->whole = whole;
        reason->epoch = epoch;
        snprintf(reason->text, sizeof reason->text, "%s", text);
        if (end)
            store_end(reason, end);
        /* release reason/told -> acquire in covers(): what has just been written. */
        shc_a32_store_release(&reason->status, (uint32_t)status);
        /* acq_rel abort/set: the reason before the word. Only the first finder's stands there. */
        shc_a32_cas_acq_rel(&shc_seat_abort(seat)->finder, 0, (uint32_t)seat->rank + 1);
        shc_group_wake(seat);
    }
    /* Also if another rank has found the same just before. */
    show_failure(seat, status, text, seat->rank, end);
    return shc_fail(status, "%s", text);
}

enum shc_status shc_group_fail(struct shc_seat *seat, enum shc_status status, const char *text,
                               const struct shc_member_end *end)
{
    return fail_group(seat, status, text, true, 0, end);
}

enum shc_status shc_group_fail_from(struct shc_seat *seat, uint64_t epoch, enum shc_status status,
                                    const char *text, const struct shc_member_end *end)
{
    return fail_group(seat, status, text, false, epoch, end);
}

/* Has that rank a reason for which the operation of this epoch fails? */
static bool covers(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    const struct shc_reason_shm *reason = shc_seat_reason(seat, rank);
    /* acquire reason/told <- release in fail_group(): the rest of it. */
    return shc_a32_load_acquire(&reason->status) != 0 &&
           (SHC_READ_ONCE(reason->whole) != 0 || shc_reached(epoch, SHC_READ_ONCE(reason->epoch)));
}

/* The rank that set the abort word; -1: none; world_size: the word is invalid. */
static int finder_of(const struct shc_seat *seat)
{
    /* acquire abort/set <- acq_rel in fail_group(): the finder's reason. */
    const uint32_t finder = shc_a32_load_acquire(&shc_seat_abort(seat)->finder);
    return finder <= (uint32_t)seat->world_size ? (int)finder - 1 : seat->world_size;
}

/* The rank whose reason makes this operation fail, the first finder if possible; -1: it does not
 * fail; world_size: the abort word is invalid. */
static int find_reason(const struct shc_seat *seat, uint64_t epoch)
{
    const int finder = finder_of(seat);
    if (finder < 0 || finder == seat->world_size || covers(seat, finder, epoch))
        return finder;
    for (int rank = 0; rank < seat->world_size; rank++)
        if (covers(seat, rank, epoch))
            return rank;
    return -1;
}

bool shc_group_failed_at(const struct shc_seat *seat, uint64_t epoch)
{
    return SHC_UNLIKELY(shc_group_failed(seat)) && find_reason(seat, epoch) >= 0;
}

static enum shc_status reason_text(const struct shc_seat *seat, int finder, char *text,
                                   size_t capacity)
{
    if (finder < 0 || finder == seat->world_size) {
        snprintf(text, capacity, "the group is broken");
        return SHC_ERR_ABORTED;
    }
    const struct shc_reason_shm *shm = shc_seat_reason(seat, finder);
    char reason[sizeof shm->text];
    /* acquire reason/told <- release in fail_group(): the text. */
    const uint32_t word = shc_a32_load_acquire(&shm->status);
    const enum shc_status status =
        word > SHC_OK && word < SHC_STATUS_COUNT ? (enum shc_status)word : SHC_ERR_ABORTED;
    shc_copy_text_once(reason, shm->text, sizeof reason);
    snprintf(text, capacity, "%s (found by rank %d)", reason, shc_seat_global_rank(seat, finder));
    struct shc_member_end end;
    const bool ended = load_end(seat, shm, &end);
    show_failure(seat, status, text, finder, ended ? &end : NULL);
    return status;
}

enum shc_status shc_group_reason_text(const struct shc_seat *seat, char *text, size_t capacity)
{
    return reason_text(seat, finder_of(seat), text, capacity);
}

enum shc_status shc_group_reason(const struct shc_seat *seat, const char *what)
{
    char text[SHC_REASON_BYTES + 32];
    enum shc_status status = shc_group_reason_text(seat, text, sizeof text);
    return shc_fail(status, "%s failed: %s", what, text);
}

enum shc_status shc_group_reason_at(const struct shc_seat *seat, uint64_t epoch, const char *what,
                                    const char *called)
{
    char text[SHC_REASON_BYTES + 32], group[256];
    enum shc_status status = reason_text(seat, find_reason(seat, epoch), text, sizeof text);
    if (strstr(text, called)) {
        shc_seat_group_text(seat, group, sizeof group);
        what = group;
    }
    return shc_fail(status, "%s failed: %s", what, text);
}
