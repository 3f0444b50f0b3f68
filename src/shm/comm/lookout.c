/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Looking around at the rendezvous: what a rank sees of the others, the clock and the caller while
 * it polls a key or awaits an answer of the store. RDV-13 to RDV-21 of
 * docs/internals/protocol/rendezvous.md.
 */
#include "shm/base/log.h"
#include "shm/comm/rendezvous.h"

#include <stdio.h>
#include <string.h>

#define POLL_MAX_NS   (5 * SHC_NS_PER_MS)
#define LOOK_NS       (20 * SHC_NS_PER_MS)
#define GRACE_NS      (80 * SHC_NS_PER_MS) /* for the store, to name the rank that is late */
#define LOOKS_AT_ONCE 16
#define LIST_BYTES    160

/* ---- the others ---- */

/* A rank that has not joined: another group may have seen its process end, and why. */
static enum shc_status look_elsewhere(const struct shc_rendezvous *m, int rank)
{
    struct shc_end end;
    if (!m->config->global_ranks || !shc_process_knows_dead(m->members[rank], &end))
        return SHC_OK;
    if (end.why[0])
        return shc_fail(SHC_ERR_PEER_DEAD,
                        "%s; and rank %d (pid %d), which has died or ended, cannot come to the "
                        "group \"%s\"",
                        end.why, (int)m->members[rank], (int)end.pid, shc_seat_group(m->seat));
    return shc_fail(
        SHC_ERR_PEER_DEAD,
        "rank %d (pid %d) has died or ended, as the group \"%s\" knows, and cannot come to the "
        "group \"%s\"",
        (int)m->members[rank], (int)end.pid, end.group, shc_seat_group(m->seat));
}

static bool has_our_list(const struct shc_rendezvous *m, const struct shc_join *join)
{
    return join->head.list == m->list && join->world_size == m->seat->world_size &&
           memcmp(join->ranks, m->members, (size_t)join->world_size * sizeof m->members[0]) == 0;
}

static void lists_text(const struct shc_rendezvous *m, const struct shc_join *join, char *text,
                       size_t capacity)
{
    char ours[LIST_BYTES], theirs[LIST_BYTES];
    shc_member_list_text(m->members, m->seat->world_size, ours, sizeof ours);
    shc_member_list_text(join->ranks, join->world_size, theirs, sizeof theirs);
    snprintf(text, capacity, "rank %d of the job makes it of the ranks %s, rank %d of the ranks %s",
             (int)m->members[m->seat->rank], ours, (int)join->ranks[join->head.rank], theirs);
}

/* The rank waits in a group of this name, but of other members: neither group can be made. If its
 * generation is decided, it may have been in an earlier run of the job, on the same store. If that is this
 * run, it will not come to this group any more: a name is used once. */
static enum shc_status look_at_other_list(struct shc_rendezvous *m, const struct shc_join *join)
{
    struct shc_verdict decided, wish;
    char lists[2 * LIST_BYTES + 128], text[SHC_ERROR_TEXT_BYTES];
    bool there;
    SHC_TRY(
        shc_rendezvous_get_decision(m, join->head.list, join->head.generation, &decided, &there));
    if (there && (m->life == 0 || join->life != m->life))
        return SHC_OK;
    lists_text(m, join, lists, sizeof lists);
    snprintf(text, sizeof text, "the ranks differ about the members of the group \"%.64s\": %s",
             shc_seat_group(m->seat), lists);
    wish = shc_verdict_of(SHC_ERR_MISMATCH, text);
    if (!there)
        SHC_TRY(shc_rendezvous_decide(m, join->head.list, join->head.generation, &wish, &decided));
    return !there && decided.status == SHC_OK ? SHC_OK : shc_fail(SHC_ERR_MISMATCH, "%s", text);
}

/* The rank is in a later generation. Either it has decided this one before, or its process was another one. */
static enum shc_status look_at_later(struct shc_rendezvous *m, int rank,
                                     const struct shc_join *join)
{
    struct shc_verdict decided;
    bool there;
    SHC_TRY(shc_rendezvous_get_decision(m, m->list, m->generation, &decided, &there));
    if (there)
        return decided.status == SHC_OK ? SHC_OK : shc_rendezvous_failed(m, &decided);
    return shc_fail(SHC_ERR_ABORTED, "%s has begun again, as pid %d",
                    shc_seat_rank_name(m->seat, rank).text, (int)join->process.pid);
}

/* A rank that has not joined: it may have made the group without this library. */
static enum shc_status look_outside(struct shc_rendezvous *m, int rank)
{
    if (!m->outsiders || !shc_rendezvous_is_outside(m, rank))
        return SHC_OK;
    return shc_fail(SHC_ERR_MISMATCH, "rank %d makes the group \"%.64s\" without shmcoll: %s",
                    (int)m->members[rank], shc_seat_group(m->seat), m->config->outsider_text);
}

static enum shc_status look_for_join(struct shc_rendezvous *m, int rank)
{
    struct shc_join join;
    bool there;
    SHC_TRY(shc_rendezvous_get_join(m, rank, &join, &there));
    const bool counts =
        there && (shc_os_process_life(&m->seat->self, &join.process) != SHC_OS_DEAD ||
                  (m->life != 0 && join.life == m->life));
    if (there && has_our_list(m, &join)) {
        if (join.head.generation > m->generation)
            return look_at_later(m, rank, &join);
        m->known[rank] = join.head.generation == m->generation;
        m->processes[rank] = join.process;
    } else if (counts) {
        SHC_TRY(look_at_other_list(m, &join));
    }
    if (m->known[rank])
        return SHC_OK;
    SHC_TRY(look_outside(m, rank));
    return look_elsewhere(m, rank);
}

void shc_rendezvous_two_text(const struct shc_rendezvous *m, int32_t pid, char *text,
                             size_t capacity)
{
    snprintf(text, capacity, "two processes came as %s: pid %d and pid %d",
             shc_seat_member_name(m->seat, m->seat->rank).text, (int)pid, (int)m->seat->self.pid);
}

enum shc_status shc_rendezvous_look_for_rival(struct shc_rendezvous *m)
{
    const struct shc_os_process *self = &m->seat->self;
    struct shc_join join;
    struct shc_verdict decided;
    bool there, over;
    SHC_TRY(shc_rendezvous_get_join(m, m->seat->rank, &join, &there));
    if (!there || !has_our_list(m, &join) ||
        (join.process.pid == self->pid && join.process.start_time == self->start_time) ||
        shc_os_process_life(self, &join.process) != SHC_OS_ALIVE)
        return SHC_OK;
    SHC_TRY(shc_rendezvous_get_decision(m, m->list, join.head.generation, &decided, &over));
    if (over)
        return SHC_OK;
    char text[SHC_RECORD_TEXT_BYTES];
    shc_rendezvous_two_text(m, join.process.pid, text, sizeof text);
    const struct shc_verdict wish = shc_verdict_of(SHC_ERR_MISMATCH, text);
    SHC_TRY(shc_rendezvous_decide(m, m->list, join.head.generation, &wish, &decided));
    return decided.status == SHC_OK ? SHC_OK : shc_fail(SHC_ERR_MISMATCH, "%s", text);
}

static enum shc_status look_at_ranks(struct shc_rendezvous *m)
{
    int world = m->seat->world_size;
    for (int i = 0; i < world && i < LOOKS_AT_ONCE; i++) {
        int rank = m->next_look++ % world;
        if (rank == m->seat->rank)
            SHC_TRY(shc_rendezvous_look_for_rival(m));
        else if (!m->known[rank])
            SHC_TRY(look_for_join(m, rank));
        if (m->known[rank] &&
            shc_os_process_life(&m->seat->self, &m->processes[rank]) == SHC_OS_DEAD)
            return shc_fail(
                SHC_ERR_PEER_DEAD, "rank %d (pid %d) died while the group \"%s\" was being made",
                (int)m->members[rank], (int)m->processes[rank].pid, shc_seat_group(m->seat));
    }
    return SHC_OK;
}

bool shc_rendezvous_is_seated(const struct shc_rendezvous *m, int rank)
{
    /* acquire member/state <- acq_rel in take_seat(): its block is reserved. */
    return shc_a32_load_acquire(&shc_seat_member(m->seat, rank)->state) != SHC_MEMBER_EMPTY;
}

bool shc_rendezvous_is_told(const struct shc_rendezvous *m)
{
    /* acquire decision/word <- release in tell(): the store holds the decision. */
    return m->seated && m->seat->rank != 0 &&
           shc_a32_load_acquire(&shc_seat_decision(m->seat)->word) == SHC_DECISION_OK;
}

/* ---- which ranks keep this rank waiting, in words ---- */

/* Has the rank given its verdict on the attempt? A rank without a seat cannot see that, and waits for rank
 * 0 in any case. */
static bool has_answered(struct shc_rendezvous *m, int rank)
{
    return rank == 0 || !m->seated || shc_rendezvous_is_seated(m, rank) || m->asked_ns != 0 ||
           shc_rendezvous_has_verdict(m, m->attempt, rank);
}

/* Is the rank in this generation? If not, *elsewhere names the members with which it has come, if these
 * differ. */
static bool has_come(struct shc_rendezvous *m, int rank, char *elsewhere, size_t capacity)
{
    struct shc_join join;
    bool there = false;
    elsewhere[0] = '\0';
    if (m->known[rank] || m->asked_ns != 0) /* one call of the store at a time */
        return m->known[rank];
    if (shc_rendezvous_get_join(m, rank, &join, &there) != SHC_OK || !there)
        return false;
    if (has_our_list(m, &join))
        return join.head.generation >= m->generation;
    char theirs[LIST_BYTES];
    shc_member_list_text(join.ranks, join.world_size, theirs, sizeof theirs);
    snprintf(elsewhere, capacity, ", but to a group of the ranks %s", theirs);
    return false;
}

static size_t append_rank(struct shc_rendezvous *m, int rank, char *text, size_t capacity)
{
    const struct shc_os_process *process = &m->processes[rank];
    char elsewhere[LIST_BYTES + 32];
    bool dumping;
    if (!has_come(m, rank, elsewhere, sizeof elsewhere))
        return (size_t)snprintf(text, capacity, "%s (has not come%s), ",
                                shc_seat_rank_name(m->seat, rank).text, elsewhere);
    if (!m->known[rank] || shc_os_process_life(&m->seat->self, process) == SHC_OS_UNKNOWN)
        return (size_t)snprintf(text, capacity, "%s (has come, does not go on), ",
                                shc_seat_rank_name(m->seat, rank).text);
    return (size_t)snprintf(
        text, capacity, "%s (pid %d, %s, does not go on), ", shc_seat_rank_name(m->seat, rank).text,
        (int)process->pid,
        shc_os_state_word(shc_os_process_state(&m->seat->self, process, &dumping)));
}

/* Ranks that have not joined; else ranks that have not given their verdict on the attempt; else rank 0,
 * which decides. */
static void absent_text(struct shc_rendezvous *m, char *text, size_t capacity)
{
    char elsewhere[LIST_BYTES + 32];
    bool come = true;
    size_t used = 0;
    for (int rank = 0; rank < m->seat->world_size; rank++)
        come = come && (rank == m->seat->rank || has_come(m, rank, elsewhere, sizeof elsewhere));
    for (int rank = 0; rank < m->seat->world_size && used < capacity && !m->silent; rank++) {
        bool done = come ? has_answered(m, rank) : has_come(m, rank, elsewhere, sizeof elsewhere);
        if (rank != m->seat->rank && !done)
            used += append_rank(m, rank, text + used, capacity - used);
    }
    if (used == 0 && m->seat->rank != 0)
        used = append_rank(m, 0, text, capacity);
    if (used >= 2 && used < capacity)
        text[used - 2] = '\0'; /* the last comma */
}

void shc_rendezvous_store_text(const struct shc_rendezvous *m, char *text, size_t capacity)
{
    const struct shc_store *store = &m->config->store;
    char served[112] = "", who[96];
    text[0] = '\0';
    if (store->server_port > 0 && shc_process_find_server(store->server_port, who, sizeof who))
        snprintf(served, sizeof served, ", served by %s", who);
    if (store->server)
        snprintf(text, capacity, " (%.80s%s)", store->server, served);
}

/* ---- the clock ---- */

/* Is it the store that keeps this rank waiting? On a busy machine each answer takes a while. */
static bool is_store_silent(const struct shc_rendezvous *m, uint64_t now_ns)
{
    const uint64_t silent_ns = now_ns - m->asked_ns;
    return m->asked_ns != 0 &&
           (silent_ns >= SHC_NS_PER_S || 2 * silent_ns >= now_ns - m->lateness.begun_ns);
}

static enum shc_status time_is_up(struct shc_rendezvous *m, uint64_t now_ns)
{
    const double waited_s = shc_lateness_seconds(&m->lateness, now_ns);
    char text[512] = "";
    if (is_store_silent(m, now_ns)) {
        shc_rendezvous_store_text(m, text, sizeof text);
        return shc_fail(SHC_ERR_TIMEOUT,
                        "%s: " SHC_TIMED_OUT "%.1f s at the rendezvous: the store%s "
                        "does not answer",
                        shc_seat_member_name(m->seat, m->seat->rank).text, waited_s, text);
    }
    m->grace_ns = now_ns + GRACE_NS;
    absent_text(m, text, sizeof text);
    m->grace_ns = 0;
    return shc_fail(SHC_ERR_TIMEOUT,
                    "%s: " SHC_TIMED_OUT "%.1f s at the rendezvous, waiting for "
                    "%s (generation %lld). Do all ranks make the same groups in the same "
                    "order? With use_local_synchronization the name counts each member's "
                    "groups",
                    shc_seat_member_name(m->seat, m->seat->rank).text, waited_s,
                    text[0] ? text : "the others", (long long)m->generation);
}

static void say_late(struct shc_rendezvous *m, uint64_t now_ns)
{
    const double waited_s = shc_lateness_seconds(&m->lateness, now_ns);
    char text[512] = "";
    if (is_store_silent(m, now_ns)) {
        shc_rendezvous_store_text(m, text, sizeof text);
        shc_log_late(true,
                     "%s " SHC_HAS_WAITED " at the rendezvous, and the store%s does not answer",
                     shc_seat_member_name(m->seat, m->seat->rank).text, waited_s, text);
        return;
    }
    absent_text(m, text, sizeof text);
    if (!m->silent)
        shc_log_late(true, "%s " SHC_HAS_WAITED " at the rendezvous for %s",
                     shc_seat_member_name(m->seat, m->seat->rank).text, waited_s, text);
}

enum shc_status shc_rendezvous_look_at_clock(struct shc_rendezvous *m)
{
    const uint64_t now_ns = shc_clock_ns();
    if (m->config->interrupted && m->config->interrupted(m->config->interrupted_ctx))
        return shc_fail(SHC_ERR_INTERRUPTED, "%s: interrupted at the rendezvous",
                        shc_seat_member_name(m->seat, m->seat->rank).text);
    shc_lateness_add_lost(&m->lateness, now_ns, shc_clock_watch_lost(&m->watch, now_ns));
    const enum shc_lateness_state state = shc_lateness_look(&m->lateness, now_ns);
    if (state == SHC_TIME_OVER)
        return time_is_up(m, now_ns);
    if (state == SHC_LATE)
        say_late(m, now_ns);
    return SHC_OK;
}

/* ---- waiting ---- */

enum shc_status shc_rendezvous_await_answer(struct shc_rendezvous *m)
{
    const uint64_t asked_ns = shc_clock_ns();
    while (!shc_store_thread_await(m->thread, LOOK_NS)) {
        if (m->grace_ns != 0) {
            if (shc_clock_ns() < m->grace_ns)
                continue;
            return shc_fail(SHC_ERR_STORE, "%s: the store does not answer",
                            shc_seat_member_name(m->seat, m->seat->rank).text);
        }
        if (shc_rendezvous_is_told(m)) /* shc_rendezvous_give_up() makes a success of it */
            return shc_fail(SHC_ERR_STORE, "%s: made without the store's answer",
                            shc_seat_member_name(m->seat, m->seat->rank).text);
        m->asked_ns = asked_ns;
        enum shc_status st = shc_rendezvous_look_at_clock(m);
        m->asked_ns = 0;
        SHC_TRY(st);
    }
    return SHC_OK;
}

enum shc_status shc_rendezvous_pause(struct shc_rendezvous *m, uint64_t *pause_ns, shc_a32 *word,
                                     uint32_t value)
{
    if (word)
        shc_os_futex_wait(word, value, *pause_ns, true);
    else
        shc_os_sleep_ns(*pause_ns);
    *pause_ns += *pause_ns / 2;
    if (*pause_ns > POLL_MAX_NS)
        *pause_ns = POLL_MAX_NS;
    uint64_t now_ns = shc_clock_ns();
    if (now_ns - m->looked_ns < LOOK_NS)
        return SHC_OK;
    m->looked_ns = now_ns;
    struct shc_verdict decided;
    bool there;
    SHC_TRY(shc_rendezvous_get_decision(m, m->list, m->generation, &decided, &there));
    if (there && decided.status != SHC_OK)
        return shc_rendezvous_failed(m, &decided);
    if (there && m->seat->rank == 0)
        return shc_rendezvous_lied_to(m, "rank 0 has not made it");
    if (there)
        return SHC_OK; /* the poll finds it; the others may have ended since */
    SHC_TRY(look_at_ranks(m));
    return shc_rendezvous_look_at_clock(m);
}
