/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FAREWELL_NS (80 * SHC_NS_PER_MS) /* for the last words of a rank that gives up */

/* ---- keys ---- */

/* The key of the record with such a head, of at most SHC_STORE_KEY_BYTES. Of a join record the rank is the
 * one in the job. */
static void key_of(const struct shc_record_head *head, char *key)
{
    const unsigned long long list = head->list;
    const long long generation = head->generation;
    if (head->kind == SHC_RECORD_JOIN)
        snprintf(key, SHC_STORE_KEY_BYTES, "h/%d", (int)head->rank);
    else if (head->kind == SHC_RECORD_OFFER)
        snprintf(key, SHC_STORE_KEY_BYTES, "%016llx/%lld/%d/o", list, generation,
                 (int)head->attempt);
    else if (head->attempt > 0)
        snprintf(key, SHC_STORE_KEY_BYTES, "%016llx/%lld/%d/v/%d", list, generation,
                 (int)head->attempt, (int)head->rank);
    else
        snprintf(key, SHC_STORE_KEY_BYTES, "%016llx/%lld/d", list, generation);
}

/* ---- calls of the store ---- */

/* A server that has died cannot be asked who it was: any rank that has died is named. */
static enum shc_status store_failed(const struct shc_rendezvous *m, int error, const char *call)
{
    char store[256], who[96], dead[128] = "";
    shc_rendezvous_store_text(m, store, sizeof store);
    if (shc_process_find_dead(who, sizeof who))
        snprintf(dead, sizeof dead, ", and %s has died or ended", who);
    return shc_fail_errno(SHC_ERR_STORE, error, "%s: the %s of the store%s failed%s",
                          shc_seat_member_name(m->seat, m->seat->rank).text, call, store, dead);
}

static struct shc_store_call *new_call(struct shc_rendezvous *m, enum shc_store_kind kind)
{
    struct shc_store_call *call = m->thread ? shc_store_thread_next(m->thread) : &m->own;
    if (call)
        call->kind = kind;
    return call;
}

static enum shc_status no_answer(const struct shc_rendezvous *m)
{
    char known[256];
    shc_rendezvous_store_text(m, known, sizeof known);
    return shc_fail(SHC_ERR_STORE, "%s: the store does not answer%s",
                    shc_seat_member_name(m->seat, m->seat->rank).text, known);
}

static enum shc_status make_call(struct shc_rendezvous *m, struct shc_store_call *call)
{
    if (!m->thread) {
        const uint64_t begun_ns = shc_clock_ns();
        shc_store_make_call(&m->config->store, call);
        m->watch.looked_ns += shc_clock_ns() - begun_ns; /* the time that the store takes counts */
        return SHC_OK;
    }
    shc_store_thread_ask(m->thread);
    enum shc_status st = shc_rendezvous_await_answer(m);
    m->silent = st != SHC_OK;
    return st;
}

/* Begins a call, unless the store is known to be silent. */
static enum shc_status begin_call(struct shc_rendezvous *m, enum shc_store_kind kind,
                                  struct shc_store_call **call)
{
    *call = m->silent ? NULL : new_call(m, kind);
    return *call ? SHC_OK : no_answer(m);
}

static enum shc_status add(struct shc_rendezvous *m, int rank, int64_t delta, int64_t *value)
{
    struct shc_store_call *call;
    SHC_TRY(begin_call(m, SHC_STORE_ADD, &call));
    snprintf(call->key, sizeof call->key, "%016llx/n/%d", (unsigned long long)m->list,
             (int)m->members[rank]);
    call->number = delta;
    SHC_TRY(make_call(m, call));
    *value = call->number;
    return call->error == 0 ? SHC_OK : store_failed(m, call->error, "add");
}

static enum shc_status put(struct shc_rendezvous *m, const struct shc_record_head *head,
                           const union shc_record *record)
{
    struct shc_store_call *call;
    SHC_TRY(begin_call(m, SHC_STORE_SET, &call));
    key_of(head, call->key);
    call->bytes = shc_record_bytes(record);
    memcpy(call->value, record, call->bytes);
    SHC_TRY(make_call(m, call));
    return call->error == 0 ? SHC_OK : store_failed(m, call->error, "set");
}

/* Copies what the call has brought, if it is of the kind asked for. */
static enum shc_status read_answer(struct shc_rendezvous *m, const struct shc_store_call *call,
                                   const struct shc_record_wish *wish, union shc_record *record)
{
    bool older = false;
    const char *why = call->error == EMSGSIZE
                          ? "it has another length"
                          : shc_record_read(wish, call->now, call->now_bytes, record, &older);
    if (!why)
        return SHC_OK;
    if (older)
        return shc_fail(SHC_ERR_VERSION,
                        "%s: another version of shmcoll wrote key %s of the store "
                        "(its layout is %u, this rank's %u): all ranks must run the same version",
                        shc_seat_member_name(m->seat, m->seat->rank).text, call->key,
                        record->head.layout_version, SHC_LAYOUT_VERSION);
    return shc_fail(SHC_ERR_STORE,
                    "%s: the store's value of key %s is not valid: %s. Only the "
                    "ranks of the group may write to its store",
                    shc_seat_member_name(m->seat, m->seat->rank).text, call->key, why);
}

static enum shc_status get(struct shc_rendezvous *m, const struct shc_record_wish *wish,
                           union shc_record *record, bool *there)
{
    struct shc_store_call *call;
    SHC_TRY(begin_call(m, SHC_STORE_GET, &call));
    key_of(&wish->head, call->key);
    SHC_TRY(make_call(m, call));
    *there = call->error == 0;
    if (call->error == ENOENT)
        return SHC_OK;
    if (call->error != 0 && call->error != EMSGSIZE)
        return store_failed(m, call->error, "get");
    return read_answer(m, call, wish, record);
}

/* ---- records ---- */

static struct shc_record_head head_of(const struct shc_rendezvous *m, enum shc_record_kind kind,
                                      int attempt)
{
    return (struct shc_record_head){
        .magic = SHC_LAYOUT_MAGIC,
        .layout_version = SHC_LAYOUT_VERSION,
        .kind = kind,
        .list = m->list,
        .generation = m->generation,
        .attempt = attempt,
        .rank = m->seat->rank,
    };
}

static struct shc_record_wish wish_for(const struct shc_rendezvous *m, enum shc_record_kind kind,
                                       int attempt, int rank)
{
    struct shc_record_wish wish = {
        .head = head_of(m, kind, attempt),
        .segment_bytes = m->segment_bytes,
    };
    wish.head.rank = rank;
    return wish;
}

enum shc_status shc_rendezvous_get_join(struct shc_rendezvous *m, int rank, struct shc_join *join,
                                        bool *there)
{
    union shc_record record;
    struct shc_record_wish wish = wish_for(m, SHC_RECORD_JOIN, 0, m->members[rank]);
    SHC_TRY(get(m, &wish, &record, there));
    if (*there)
        *join = record.join;
    return SHC_OK;
}

static enum shc_status put_join(struct shc_rendezvous *m)
{
    union shc_record record = {.join = {
                                   .head = head_of(m, SHC_RECORD_JOIN, 0),
                                   .process = m->seat->self,
                                   .life = m->life,
                                   .world_size = m->seat->world_size,
                               }};
    memcpy(record.join.ranks, m->members, sizeof record.join.ranks);
    const struct shc_record_wish own = wish_for(m, SHC_RECORD_JOIN, 0, m->members[m->seat->rank]);
    return put(m, &own.head, &record);
}

enum shc_status shc_rendezvous_get_offer(struct shc_rendezvous *m, int attempt,
                                         struct shc_segment_name *name, bool *there)
{
    union shc_record record;
    struct shc_record_wish wish = wish_for(m, SHC_RECORD_OFFER, attempt, 0);
    SHC_TRY(get(m, &wish, &record, there));
    if (*there)
        *name = record.invitation.name;
    return SHC_OK;
}

enum shc_status shc_rendezvous_put_offer(struct shc_rendezvous *m, int attempt,
                                         const struct shc_segment_name *name)
{
    union shc_record record = {
        .invitation = {.head = head_of(m, SHC_RECORD_OFFER, attempt), .name = *name}};
    return put(m, &record.head, &record);
}

struct shc_verdict shc_verdict_of(enum shc_status status, const char *text)
{
    struct shc_verdict verdict = {.status = (uint32_t)status};
    shc_record_text(verdict.text, sizeof verdict.text, text);
    return verdict;
}

/* A value out of the store: its text may hold anything. */
static struct shc_verdict readable(const struct shc_verdict *verdict)
{
    struct shc_verdict copy = *verdict;
    shc_record_text(copy.text, sizeof copy.text, verdict->text);
    return copy;
}

static enum shc_status get_verdict(struct shc_rendezvous *m, const struct shc_record_wish *wish,
                                   struct shc_verdict *verdict, bool *there)
{
    union shc_record record;
    SHC_TRY(get(m, wish, &record, there));
    if (*there)
        *verdict = readable(&record.verdict);
    return SHC_OK;
}

enum shc_status shc_rendezvous_get_verdict(struct shc_rendezvous *m, int attempt, int rank,
                                           struct shc_verdict *verdict, bool *there)
{
    const struct shc_record_wish wish = wish_for(m, SHC_RECORD_VERDICT, attempt, rank);
    return get_verdict(m, &wish, verdict, there);
}

enum shc_status shc_rendezvous_put_verdict(struct shc_rendezvous *m, int attempt,
                                           enum shc_status status, const char *text)
{
    union shc_record record = {.verdict = shc_verdict_of(status, text)};
    record.head = head_of(m, SHC_RECORD_VERDICT, attempt);
    record.verdict.pid = m->seat->self.pid;
    return put(m, &record.head, &record);
}

static bool is_there(struct shc_rendezvous *m, const char *key)
{
    struct shc_store_call *call = m->silent ? NULL : new_call(m, SHC_STORE_CHECK);
    if (!call)
        return false;
    snprintf(call->key, sizeof call->key, "%s", key);
    return make_call(m, call) == SHC_OK && call->error == 0;
}

bool shc_rendezvous_has_verdict(struct shc_rendezvous *m, int attempt, int rank)
{
    const struct shc_record_wish wish = wish_for(m, SHC_RECORD_VERDICT, attempt, rank);
    char key[SHC_STORE_KEY_BYTES];
    key_of(&wish.head, key);
    return is_there(m, key);
}

bool shc_rendezvous_is_outside(struct shc_rendezvous *m, int rank)
{
    char key[SHC_STORE_KEY_BYTES];
    snprintf(key, sizeof key, "%s%d", m->config->outsider_prefix, rank);
    return is_there(m, key);
}

/* ---- the decision ---- */

static struct shc_record_wish wish_for_decision(const struct shc_rendezvous *m, uint64_t list,
                                                int64_t generation)
{
    struct shc_record_wish wish = wish_for(m, SHC_RECORD_VERDICT, 0, -1);
    wish.head.list = list;
    wish.head.generation = generation;
    return wish;
}

enum shc_status shc_rendezvous_get_decision(struct shc_rendezvous *m, uint64_t list,
                                            int64_t generation, struct shc_verdict *decided,
                                            bool *there)
{
    const struct shc_record_wish wish = wish_for_decision(m, list, generation);
    return get_verdict(m, &wish, decided, there);
}

static void fill_decision(const struct shc_rendezvous *m, uint64_t list, int64_t generation,
                          const struct shc_verdict *wish, struct shc_store_call *call)
{
    union shc_record record = {.verdict = *wish};
    record.head = head_of(m, SHC_RECORD_VERDICT, 0);
    record.head.list = list;
    record.head.generation = generation;
    record.verdict.pid = m->seat->self.pid;
    key_of(&record.head, call->key);
    call->bytes = shc_record_bytes(&record);
    memcpy(call->value, &record, call->bytes);
}

enum shc_status shc_rendezvous_decide(struct shc_rendezvous *m, uint64_t list, int64_t generation,
                                      const struct shc_verdict *wish, struct shc_verdict *decided)
{
    struct shc_store_call *call;
    union shc_record record;
    struct shc_record_wish wanted = wish_for_decision(m, list, generation);
    SHC_TRY(begin_call(m, SHC_STORE_PUT_FIRST, &call));
    fill_decision(m, list, generation, wish, call);
    SHC_TRY(make_call(m, call));
    if (call->error != 0 && call->error != EMSGSIZE)
        return store_failed(m, call->error, "put_first");
    SHC_TRY(read_answer(m, call, &wanted, &record));
    *decided = readable(&record.verdict);
    return SHC_OK;
}

/* A silent store gets the decision when it goes on; this rank does not wait for that. */
static void leave_decision(struct shc_rendezvous *m, const struct shc_verdict *wish)
{
    struct shc_store_call *call = m->thread ? new_call(m, SHC_STORE_PUT_FIRST) : NULL;
    if (!call)
        return;
    fill_decision(m, m->list, m->generation, wish, call);
    shc_store_thread_ask(m->thread);
}

enum shc_status shc_rendezvous_give_up(struct shc_rendezvous *m, enum shc_status status)
{
    char text[SHC_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", shc_error_text());
    struct shc_verdict wish = shc_verdict_of(status, text), decided;
    if (shc_rendezvous_is_told(m) && status != SHC_ERR_INTERRUPTED)
        return SHC_OK;
    if (m->silent) {
        leave_decision(m, &wish);
        return shc_fail(status, "%s", text);
    }
    m->grace_ns = shc_clock_ns() + FAREWELL_NS;
    if (shc_rendezvous_decide(m, m->list, m->generation, &wish, &decided) != SHC_OK)
        return shc_fail(status, "%s", text); /* the store is gone: no rank can be told */
    if (decided.status == SHC_OK && m->seated && status != SHC_ERR_INTERRUPTED)
        return SHC_OK;
    /* A rank that is dead now may have given up before it ended: then the decision says why. */
    if (decided.status != SHC_OK && status == SHC_ERR_PEER_DEAD &&
        strcmp(decided.text, wish.text) != 0)
        return shc_rendezvous_failed(m, &decided);
    return shc_fail(status, "%s", text);
}

/* Another process is rank 0 and has ended this process's generation, to begin a later one. Ends
 * that later one, too. */
static enum shc_status fail_as_two(struct shc_rendezvous *m, const struct shc_verdict *decided)
{
    struct shc_verdict wish, stands;
    char text[SHC_RECORD_TEXT_BYTES];
    int64_t latest = 0;
    shc_rendezvous_two_text(m, decided->pid, text, sizeof text);
    wish = shc_verdict_of(SHC_ERR_MISMATCH, text);
    SHC_TRY(add(m, 0, 0, &latest));
    if (latest > m->generation)
        SHC_TRY(shc_rendezvous_decide(m, m->list, latest, &wish, &stands));
    return shc_fail(SHC_ERR_MISMATCH, "%s", text);
}

enum shc_status shc_rendezvous_failed(struct shc_rendezvous *m, const struct shc_verdict *decided)
{
    /* The decision is as end_generation_before() writes it, but another process wrote it. */
    if (m->seat->rank == 0 && m->greeted && decided->status == SHC_ERR_ABORTED &&
        decided->head.rank == 0 && decided->pid != m->seat->self.pid)
        return fail_as_two(m, decided);
    return shc_fail((enum shc_status)decided->status, "%s: the group could not be made: %s",
                    shc_seat_member_name(m->seat, m->seat->rank).text, decided->text);
}

enum shc_status shc_rendezvous_lied_to(const struct shc_rendezvous *m, const char *what)
{
    return shc_fail(SHC_ERR_STORE,
                    "%s: the store says that the group is made, but %s: its decision "
                    "is not valid. Only the ranks of the group may write to its store",
                    shc_seat_member_name(m->seat, m->seat->rank).text, what);
}

/* ---- generations ---- */

/* Has another rank begun a generation after this one? */
static enum shc_status look_for_later(struct shc_rendezvous *m, bool *later)
{
    *later = false;
    for (int rank = 0; rank < m->seat->world_size && !*later; rank++) {
        int64_t begun = 0;
        SHC_TRY(add(m, rank, 0, &begun));
        *later = begun > m->generation;
    }
    return SHC_OK;
}

static enum shc_status count_up(struct shc_rendezvous *m)
{
    int64_t next = 0;
    SHC_TRY(add(m, m->seat->rank, 1, &next));
    if (next <= m->generation || next > m->generation + SHC_RECORD_GENERATIONS)
        return shc_fail(SHC_ERR_STORE,
                        "%s: the store counts this rank's generations to %lld after "
                        "%lld. Only the ranks of the group may write to its store",
                        shc_seat_member_name(m->seat, m->seat->rank).text, (long long)next,
                        (long long)m->generation);
    m->generation = next;
    return SHC_OK;
}

/* The n-th call of a rank belongs to the n-th generation. If that generation has failed without
 * this rank, so has this call. Exception: if other ranks are further on, that generation is of an
 * earlier life. */
static enum shc_status take_generation(struct shc_rendezvous *m)
{
    for (;;) {
        struct shc_verdict decided;
        bool there, later;
        SHC_TRY(count_up(m));
        SHC_TRY(shc_rendezvous_get_decision(m, m->list, m->generation, &decided, &there));
        if (!there)
            return SHC_OK;
        SHC_TRY(look_for_later(m, &later));
        if (decided.status != SHC_OK && !later)
            return shc_rendezvous_failed(m, &decided);
        SHC_TRY(shc_rendezvous_look_at_clock(m));
    }
}

/* Rank 0: ranks that still sit in the generation before would wait for a rank 0 that has gone on. */
static enum shc_status end_generation_before(struct shc_rendezvous *m)
{
    char text[64];
    snprintf(text, sizeof text, "rank 0 (pid %d) has begun again", (int)m->seat->self.pid);
    struct shc_verdict decided, wish = shc_verdict_of(SHC_ERR_ABORTED, text);
    return shc_rendezvous_decide(m, m->list, m->generation - 1, &wish, &decided);
}

enum shc_status shc_rendezvous_begin(struct shc_rendezvous *m)
{
    SHC_TRY(take_generation(m));
    if (m->generation > 1) {
        SHC_TRY(shc_rendezvous_look_for_rival(m));
        if (m->seat->rank == 0)
            SHC_TRY(end_generation_before(m));
    }
    /* This rank's own key is of an earlier group, and so are the others' then. */
    m->outsiders = m->config->outsider_prefix && !shc_rendezvous_is_outside(m, m->seat->rank);
    m->greeted = true;
    return put_join(m);
}

enum shc_status shc_rendezvous_refuse(struct shc_rendezvous *m, enum shc_status status)
{
    char text[SHC_RECORD_TEXT_BYTES];
    snprintf(text, sizeof text, "%s: %.380s", shc_seat_rank_name(m->seat, m->seat->rank).text,
             shc_error_text());
    const struct shc_verdict wish = shc_verdict_of(status, text);
    struct shc_verdict decided;
    /* RDV-33: this rank is in time, so the store may take as long as for any other call. If the process ended before the
     * answer, the others would not get the reason. */
    if (take_generation(m) == SHC_OK &&
        shc_rendezvous_decide(m, m->list, m->generation, &wish, &decided) != SHC_OK && m->silent)
        leave_decision(m, &wish);
    return shc_fail(status, "%s", text);
}

void shc_rendezvous_init(struct shc_rendezvous *m, struct shc_seat *seat,
                         const struct shc_comm_config *config, uint64_t timeout_ns)
{
    uint64_t now_ns = shc_clock_ns();
    *m = (struct shc_rendezvous){
        .seat = seat,
        .config = config,
        .looked_ns = now_ns,
        .watch = {.looked_ns = now_ns},
    };
    shc_lateness_begin(&m->lateness, now_ns, timeout_ns, seat->late_ns);
    for (int rank = 0; rank < seat->world_size; rank++)
        m->members[rank] = config->global_ranks ? config->global_ranks[rank] : rank;
    m->list = shc_member_list_hash(m->members, seat->world_size);
    if (seat->world_size > 1) {
        m->life = shc_process_life();
        m->thread = shc_store_thread_start(&config->store);
    }
}

void shc_rendezvous_fini(struct shc_rendezvous *m)
{
    shc_store_thread_end(m->thread);
    m->thread = NULL;
}
