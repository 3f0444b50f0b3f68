/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/meeting.h"

#include "shm/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define POLL_MAX_NS   (5 * SHC_NS_PER_MS)
#define LOOK_NS       (20 * SHC_NS_PER_MS)
#define LOOKS_AT_ONCE 16

struct hello {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t world_size;
    struct shc_os_process process;
};

/* ---- keys ---- */

void shc_meeting_key(char key[SHC_MEETING_KEY_BYTES], int64_t generation, int attempt,
                     const char *what, int rank)
{
    int used = snprintf(key, SHC_MEETING_KEY_BYTES, "%lld", (long long)generation);
    if (attempt > 0)
        used += snprintf(key + used, SHC_MEETING_KEY_BYTES - (size_t)used, "/%d", attempt);
    used += snprintf(key + used, SHC_MEETING_KEY_BYTES - (size_t)used, "/%s", what);
    if (rank >= 0)
        snprintf(key + used, SHC_MEETING_KEY_BYTES - (size_t)used, "/%d", rank);
}

static enum shc_status store_failed(const struct shc_meeting *m, int error, const char *call)
{
    return shc_fail_errno(SHC_ERR_STORE, error, "rank %d of \"%s\": the store's %s failed",
                          m->seat->rank, m->seat->group, call);
}

enum shc_status shc_meeting_put(const struct shc_meeting *m, const char *key, const void *value,
                                size_t bytes)
{
    int error = m->store->set(m->store->ctx, key, value, bytes);
    return error == 0 ? SHC_OK : store_failed(m, error, "set");
}

enum shc_status shc_meeting_get(const struct shc_meeting *m, const char *key, void *value,
                                size_t bytes, bool *there)
{
    size_t got = 0;
    int error = m->store->get(m->store->ctx, key, value, bytes, &got);
    *there = error == 0;
    if (error == ENOENT)
        return SHC_OK;
    if (error != 0 && error != EMSGSIZE)
        return store_failed(m, error, "get");
    if (error == EMSGSIZE || got != bytes)
        return shc_fail(SHC_ERR_VERSION,
                        "rank %d of \"%s\": key %s of the store has another size than this version "
                        "writes: all ranks must run the same version of shmcoll",
                        m->seat->rank, m->seat->group, key);
    return SHC_OK;
}

/* ---- the decision ---- */

enum shc_status shc_meeting_decide(const struct shc_meeting *m, const struct shc_verdict *wish,
                                   struct shc_verdict *decided)
{
    char key[SHC_MEETING_KEY_BYTES];
    size_t got = 0;
    shc_meeting_key(key, m->generation, 0, "d", -1);
    int error =
        m->store->put_first(m->store->ctx, key, wish, sizeof *wish, decided, sizeof *decided, &got);
    if (error != 0 || got != sizeof *decided)
        return store_failed(m, error ? error : EPROTO, "put_first");
    decided->text[SHC_MEETING_TEXT_BYTES - 1] = '\0';
    return SHC_OK;
}

struct shc_verdict shc_verdict_of(enum shc_status status, const char *text)
{
    struct shc_verdict verdict = {.status = (uint32_t)status};
    snprintf(verdict.text, sizeof verdict.text, "%s", text);
    return verdict;
}

enum shc_status shc_meeting_give_up(const struct shc_meeting *m, enum shc_status status)
{
    char text[SHC_MEETING_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", shc_error_text());
    struct shc_verdict wish = shc_verdict_of(status, text), decided;
    if (shc_meeting_decide(m, &wish, &decided) !=
        SHC_OK) /* a store that is gone: nobody can be told */
        return shc_fail(status, "%s", text);
    if (decided.status == SHC_OK && status != SHC_ERR_INTERRUPTED)
        return SHC_OK;
    /* Who is dead now may have ended because it gave up first: the decision says why. */
    if (status == SHC_ERR_PEER_DEAD && strcmp(decided.text, wish.text) != 0)
        return shc_meeting_failed(m, &decided);
    return shc_fail(status, "%s", text);
}

enum shc_status shc_meeting_failed(const struct shc_meeting *m, const struct shc_verdict *decided)
{
    enum shc_status status = (enum shc_status)decided->status;
    if (status <= SHC_OK || status >= SHC_STATUS_COUNT)
        status = SHC_ERR_ABORTED;
    return shc_fail(status, "rank %d of \"%s\": the group could not be made: %s", m->seat->rank,
                    m->seat->group, decided->text);
}

enum shc_status shc_meeting_get_verdict(const struct shc_meeting *m, const char *key,
                                        struct shc_verdict *verdict, bool *there)
{
    SHC_TRY(shc_meeting_get(m, key, verdict, sizeof *verdict, there));
    verdict->text[SHC_MEETING_TEXT_BYTES - 1] = '\0';
    return SHC_OK;
}

/* ---- looking around while polling ---- */

/* A rank that has not said hello: another group may have seen its process end, and why. */
static enum shc_status look_elsewhere(const struct shc_meeting *m, int rank)
{
    struct shc_end end;
    const int32_t *global_ranks = m->config->global_ranks;
    if (!global_ranks || !shc_process_knows_dead(global_ranks[rank], &end))
        return SHC_OK;
    if (end.why[0])
        return shc_fail(SHC_ERR_PEER_DEAD,
                        "%s; and rank %d (pid %d), which has died or ended, cannot come to the "
                        "group \"%s\"",
                        end.why, rank, (int)end.pid, m->seat->group);
    return shc_fail(
        SHC_ERR_PEER_DEAD,
        "rank %d (pid %d) has died or ended, as the group \"%s\" knows, and cannot come to the "
        "group \"%s\"",
        rank, (int)end.pid, end.group, m->seat->group);
}

static enum shc_status look_at_ranks(struct shc_meeting *m)
{
    int world = m->seat->world_size;
    for (int i = 0; i < world && i < LOOKS_AT_ONCE; i++) {
        int rank = m->next_look++ % world;
        struct hello hello;
        char key[SHC_MEETING_KEY_BYTES];
        if (rank == m->seat->rank)
            continue;
        if (!m->known[rank]) {
            bool there;
            shc_meeting_key(key, m->generation, 0, "h", rank);
            SHC_TRY(shc_meeting_get(m, key, &hello, sizeof hello, &there));
            if (!there) {
                SHC_TRY(look_elsewhere(m, rank));
                continue;
            }
            m->processes[rank] = hello.process;
            m->known[rank] = true;
        }
        if (shc_os_process_life(&m->seat->self, &m->processes[rank]) == SHC_OS_DEAD)
            return shc_fail(SHC_ERR_PEER_DEAD,
                            "rank %d (pid %d) died while the group \"%s\" was being made", rank,
                            (int)m->processes[rank].pid, m->seat->group);
    }
    return SHC_OK;
}

/* Is this key of the rank there? An answer the store does not give counts as no. */
static bool has_key(const struct shc_meeting *m, int attempt, const char *what, int rank)
{
    char key[SHC_MEETING_KEY_BYTES];
    const char *keys[1] = {key};
    shc_meeting_key(key, m->generation, attempt, what, rank);
    return m->store->check(m->store->ctx, keys, 1) == 0;
}

bool shc_meeting_is_seated(const struct shc_meeting *m, int rank)
{
    /* acquire member/state <- acq_rel in take_seat(): its block is reserved. */
    return shc_a32_load_acquire(&shc_seat_member(m->seat, rank)->state) != SHC_MEMBER_EMPTY;
}

/* Has the rank given its verdict on the attempt? Who has no seat cannot tell, and waits for rank 0
 * in any case. */
static bool has_judged(const struct shc_meeting *m, int rank)
{
    return rank == 0 || !m->seated || shc_meeting_is_seated(m, rank) ||
           has_key(m, m->attempt, "v", rank);
}

static size_t append_rank(const struct shc_meeting *m, int rank, bool here, char *text,
                          size_t capacity)
{
    const struct shc_os_process *process = &m->processes[rank];
    bool dumping;
    if (!here)
        return (size_t)snprintf(text, capacity, "rank %d (has not come), ", rank);
    if (!m->known[rank] || shc_os_process_life(&m->seat->self, process) == SHC_OS_UNKNOWN)
        return (size_t)snprintf(text, capacity, "rank %d (has come, does not go on), ", rank);
    return (size_t)snprintf(text, capacity, "rank %d (pid %d, %s, does not go on), ", rank,
                            (int)process->pid,
                            shc_os_state_word(shc_os_process_state(process, &dumping)));
}

/* Who keeps this rank waiting: ranks that have not said hello; else ranks that have not given their
 * verdict on the attempt; else rank 0, who decides. */
static void absent_text(const struct shc_meeting *m, char *text, size_t capacity)
{
    bool come = true;
    size_t used = 0;
    for (int rank = 0; rank < m->seat->world_size; rank++)
        come = come && (rank == m->seat->rank || has_key(m, 0, "h", rank));
    for (int rank = 0; rank < m->seat->world_size && used < capacity; rank++) {
        bool here = has_key(m, 0, "h", rank);
        bool done = come ? has_judged(m, rank) : here;
        if (rank != m->seat->rank && !done)
            used += append_rank(m, rank, here, text + used, capacity - used);
    }
    if (used == 0 && m->seat->rank != 0)
        used = append_rank(m, 0, true, text, capacity);
    if (used >= 2 && used < capacity)
        text[used - 2] = '\0'; /* the last comma */
}

static enum shc_status look_at_clock(struct shc_meeting *m, uint64_t now_ns)
{
    char absent[512] = "";
    if (now_ns >= m->deadline_ns) {
        absent_text(m, absent, sizeof absent);
        return shc_fail(SHC_ERR_TIMEOUT,
                        "rank %d of \"%s\": Timed out after %.1f s at the rendezvous, waiting for "
                        "%s (generation %lld). Do all ranks make the same groups in the same "
                        "order? With use_local_synchronization the name counts each member's "
                        "groups",
                        m->seat->rank, m->seat->group,
                        (double)(now_ns - m->begun_ns) / (double)SHC_NS_PER_S, absent,
                        (long long)m->generation);
    }
    if (now_ns >= m->late_ns) {
        absent_text(m, absent, sizeof absent);
        shc_log(SHC_LOG_WARN, "rank %d of \"%s\" has waited %.1f s at the rendezvous for %s",
                m->seat->rank, m->seat->group,
                (double)(now_ns - m->begun_ns) / (double)SHC_NS_PER_S, absent);
        m->late_ns += m->late_step_ns;
        m->late_step_ns *= 2;
    }
    return SHC_OK;
}

enum shc_status shc_meeting_pause(struct shc_meeting *m, uint64_t *pause_ns, shc_a32 *word,
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
    if (m->config->interrupted && m->config->interrupted(m->config->interrupted_ctx))
        return shc_fail(SHC_ERR_INTERRUPTED, "rank %d of \"%s\": interrupted at the rendezvous",
                        m->seat->rank, m->seat->group);
    struct shc_verdict decided;
    char key[SHC_MEETING_KEY_BYTES];
    bool there;
    shc_meeting_key(key, m->generation, 0, "d", -1);
    SHC_TRY(shc_meeting_get_verdict(m, key, &decided, &there));
    if (there && decided.status != SHC_OK)
        return shc_meeting_failed(m, &decided);
    SHC_TRY(look_at_ranks(m));
    return look_at_clock(m, now_ns);
}

/* ---- generations ---- */

/* Has another rank begun a generation behind this one? */
static enum shc_status look_for_later(const struct shc_meeting *m, bool *later)
{
    *later = false;
    for (int rank = 0; rank < m->seat->world_size && !*later; rank++) {
        char key[SHC_MEETING_KEY_BYTES];
        int64_t begun = 0;
        snprintf(key, sizeof key, "n/%d", rank);
        int error = m->store->add(m->store->ctx, key, 0, &begun);
        if (error != 0)
            return store_failed(m, error, "add");
        *later = begun > m->generation;
    }
    return SHC_OK;
}

/* The n-th call of a rank belongs to the n-th generation. If that one has failed without this rank,
 * so has its call; unless others are further on, because the call is one of another life. */
static enum shc_status take_generation(struct shc_meeting *m)
{
    char key[SHC_MEETING_KEY_BYTES], decision_key[SHC_MEETING_KEY_BYTES];
    snprintf(key, sizeof key, "n/%d", m->seat->rank);
    for (;;) {
        struct shc_verdict decided;
        bool there, later;
        int error = m->store->add(m->store->ctx, key, 1, &m->generation);
        if (error != 0)
            return store_failed(m, error, "add");
        shc_meeting_key(decision_key, m->generation, 0, "d", -1);
        SHC_TRY(shc_meeting_get_verdict(m, decision_key, &decided, &there));
        if (!there)
            break;
        SHC_TRY(look_for_later(m, &later));
        if (decided.status != SHC_OK && !later)
            return shc_meeting_failed(m, &decided);
    }
    /* Ranks that still sit in the generation before would wait for a rank 0 that has gone on. */
    if (m->seat->rank == 0 && m->generation > 1) {
        struct shc_meeting before = *m;
        struct shc_verdict decided,
            wish = shc_verdict_of(SHC_ERR_ABORTED, "rank 0 has begun again");
        before.generation--;
        SHC_TRY(shc_meeting_decide(&before, &wish, &decided));
    }
    return SHC_OK;
}

static enum shc_status say_hello(const struct shc_meeting *m)
{
    char key[SHC_MEETING_KEY_BYTES];
    struct hello hello = {
        .magic = SHC_LAYOUT_MAGIC,
        .layout_version = SHC_LAYOUT_VERSION,
        .world_size = (uint32_t)m->seat->world_size,
        .process = m->seat->self,
    };
    shc_meeting_key(key, m->generation, 0, "h", m->seat->rank);
    return shc_meeting_put(m, key, &hello, sizeof hello);
}

enum shc_status shc_meeting_begin(struct shc_meeting *m)
{
    SHC_TRY(take_generation(m));
    return say_hello(m);
}

enum shc_status shc_meeting_refuse(struct shc_meeting *m, enum shc_status status)
{
    char text[SHC_MEETING_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d: %.480s", m->seat->rank, shc_error_text());
    bool begun = take_generation(m) == SHC_OK;
    enum shc_status recorded = shc_fail(status, "%s", text);
    return begun ? shc_meeting_give_up(m, recorded) : recorded;
}

void shc_meeting_init(struct shc_meeting *m, struct shc_seat *seat,
                      const struct shc_comm_config *config, uint64_t timeout_ns)
{
    uint64_t now_ns = shc_clock_ns();
    *m = (struct shc_meeting){
        .seat = seat,
        .config = config,
        .store = &config->store,
        .begun_ns = now_ns,
        .looked_ns = now_ns,
        .deadline_ns = shc_deadline_after(now_ns, timeout_ns),
        .late_ns = now_ns + seat->late_ns,
        .late_step_ns = seat->late_ns,
    };
}
