/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rendezvous over the store. Keys carry a generation g, because prefixes meet again: destroy
 * and init on one store, every job under torchrun, re-made groups.
 *
 *   n/<rank>            counter: how many generations this rank has begun
 *   <g>/h/<rank>        hello: who the rank is, so that others can look whether it lives
 *   <g>/<a>/o           offer of attempt a, by rank 0: the segment's name
 *   <g>/<a>/v/<rank>    verdict of the rank: attached and reserved, or why not
 *   <g>/d               decision, the first put wins: ok (rank 0 only) or why not (anyone)
 *
 * No key is waited for inside the store: a blocking wait would hold the store client's lock against
 * another thread that makes another group. Keys are polled, and between polls the others' processes
 * and the deadline are looked at.
 */
#include "shm/comm/bootstrap.h"

#include "shm/base/log.h"
#include "shm/proto/member.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define POLL_MIN_NS   (50 * SHC_NS_PER_US)
#define POLL_MAX_NS   (5 * SHC_NS_PER_MS)
#define LOOK_NS       (20 * SHC_NS_PER_MS)
#define KEY_BYTES     64
#define TEXT_BYTES    512
#define LOOKS_AT_ONCE 16
#define MAX_ATTEMPTS  3

struct hello {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t world_size;
    struct shc_os_process process;
};

struct verdict { /* also the decision */
    uint32_t status;
    char text[TEXT_BYTES];
};

struct meeting {
    struct shc_comm *comm;
    struct shc_seat *seat;
    const struct shc_comm_config *config;
    const struct shc_store *store;
    const struct shc_knobs *knobs;
    int64_t generation;
    uint64_t begun_ns, deadline_ns, looked_ns, late_ns, late_step_ns;
    int next_look;
    bool linked;
    bool known[SHC_MAX_WORLD];
    struct shc_os_process processes[SHC_MAX_WORLD];
};

/* ---- keys ---- */

static void key_of(char key[KEY_BYTES], int64_t generation, int attempt, const char *what, int rank)
{
    int used = snprintf(key, KEY_BYTES, "%lld", (long long)generation);
    if (attempt > 0)
        used += snprintf(key + used, KEY_BYTES - (size_t)used, "/%d", attempt);
    used += snprintf(key + used, KEY_BYTES - (size_t)used, "/%s", what);
    if (rank >= 0)
        snprintf(key + used, KEY_BYTES - (size_t)used, "/%d", rank);
}

static enum shc_status store_failed(const struct meeting *m, int error, const char *call)
{
    return shc_fail_errno(SHC_ERR_STORE, error, "rank %d of \"%s\": the store's %s failed",
                          m->seat->rank, m->seat->group, call);
}

static enum shc_status put(const struct meeting *m, const char *key, const void *value,
                           size_t bytes)
{
    int error = m->store->set(m->store->ctx, key, value, bytes);
    return error == 0 ? SHC_OK : store_failed(m, error, "set");
}

/* *there: the key exists, and `value` holds it. A value of another size is an old or alien one. */
static enum shc_status try_get(const struct meeting *m, const char *key, void *value, size_t bytes,
                               bool *there)
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

/* Puts a decision if there is none; *decided is what then stands. */
static enum shc_status decide(const struct meeting *m, const struct verdict *wish,
                              struct verdict *decided)
{
    char key[KEY_BYTES];
    size_t got = 0;
    key_of(key, m->generation, 0, "d", -1);
    int error =
        m->store->put_first(m->store->ctx, key, wish, sizeof *wish, decided, sizeof *decided, &got);
    if (error != 0 || got != sizeof *decided)
        return store_failed(m, error ? error : EPROTO, "put_first");
    decided->text[TEXT_BYTES - 1] = '\0';
    return SHC_OK;
}

static struct verdict verdict_of(enum shc_status status, const char *text)
{
    struct verdict verdict = {.status = (uint32_t)status};
    snprintf(verdict.text, sizeof verdict.text, "%s", text);
    return verdict;
}

/* This rank gives up. If the group has been decided to be fine meanwhile, it is, for all. */
static enum shc_status give_up(const struct meeting *m, enum shc_status status)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", shc_error_text());
    struct verdict wish = verdict_of(status, text), decided;
    if (status == SHC_ERR_STORE || decide(m, &wish, &decided) != SHC_OK)
        return shc_fail(status, "%s", text);
    if (decided.status == SHC_OK && status != SHC_ERR_INTERRUPTED)
        return SHC_OK;
    return shc_fail(status, "%s", text);
}

static enum shc_status failed_by_others(const struct meeting *m, const struct verdict *decided)
{
    enum shc_status status = (enum shc_status)decided->status;
    if (status <= SHC_OK || status >= SHC_STATUS_COUNT)
        status = SHC_ERR_ABORTED;
    return shc_fail(status, "rank %d of \"%s\": the group could not be made: %s", m->seat->rank,
                    m->seat->group, decided->text);
}

/* ---- looking around while polling ---- */

static enum shc_status look_at_ranks(struct meeting *m)
{
    int world = m->seat->world_size;
    for (int i = 0; i < world && i < LOOKS_AT_ONCE; i++) {
        int rank = m->next_look++ % world;
        struct hello hello;
        char key[KEY_BYTES];
        if (rank == m->seat->rank)
            continue;
        if (!m->known[rank]) {
            bool there;
            key_of(key, m->generation, 0, "h", rank);
            SHC_TRY(try_get(m, key, &hello, sizeof hello, &there));
            if (!there)
                continue;
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

/* The ranks that have not said hello in this generation. */
static void absent_text(const struct meeting *m, char *text, size_t capacity)
{
    int absent = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < m->seat->world_size && used < capacity; rank++) {
        char key[KEY_BYTES];
        const char *keys[1] = {key};
        key_of(key, m->generation, 0, "h", rank);
        if (rank == m->seat->rank || m->store->check(m->store->ctx, keys, 1) == 0)
            continue;
        used += (size_t)snprintf(text + used, capacity - used, absent++ ? ", %d" : "rank %d", rank);
    }
    if (absent == 0)
        snprintf(text, capacity, "ranks that have come but do not go on");
}

static enum shc_status look_at_clock(struct meeting *m, uint64_t now_ns)
{
    char absent[256];
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

/* One pause of a poll, growing; now and then a look at everything else. */
static enum shc_status pause_and_look(struct meeting *m, uint64_t *pause_ns)
{
    shc_os_sleep_ns(*pause_ns);
    if (*pause_ns < POLL_MAX_NS)
        *pause_ns += *pause_ns / 2;
    uint64_t now_ns = shc_clock_ns();
    if (now_ns - m->looked_ns < LOOK_NS)
        return SHC_OK;
    m->looked_ns = now_ns;
    if (m->config->interrupted && m->config->interrupted(m->config->interrupted_ctx))
        return shc_fail(SHC_ERR_INTERRUPTED, "rank %d of \"%s\": interrupted at the rendezvous",
                        m->seat->rank, m->seat->group);
    struct verdict decided;
    char key[KEY_BYTES];
    bool there;
    key_of(key, m->generation, 0, "d", -1);
    SHC_TRY(try_get(m, key, &decided, sizeof decided, &there));
    decided.text[TEXT_BYTES - 1] = '\0';
    if (there && decided.status != SHC_OK)
        return failed_by_others(m, &decided);
    SHC_TRY(look_at_ranks(m));
    return look_at_clock(m, now_ns);
}

/* ---- the segment ---- */

static size_t segment_bytes(int world_size)
{
    return SHC_BLOCKS_OFFSET + (size_t)world_size * SHC_BLOCK_BYTES;
}

/* Rank 0: the only writer of the first page, before it offers the segment. */
static enum shc_status create_segment(struct meeting *m, uint32_t form)
{
    struct shc_seat *seat = m->seat;
    struct shc_segment *segment = &seat->segment;
    SHC_TRY(shc_segment_create(segment, form, segment_bytes(seat->world_size),
                               SHC_OS_ROBUST_DISTANCE, &seat->self, m->knobs->cache));
    enum shc_status st = shc_segment_reserve(segment, 0, SHC_BLOCKS_OFFSET, -1);
    if (st != SHC_OK) {
        shc_segment_detach(segment);
        return st;
    }
    size_t limit =
        m->knobs->arena_limit ? m->knobs->arena_limit : (size_t)shc_config_get()->arena_kib << 10;
    struct shc_header_shm *header = shc_seat_header(seat);
    *header = (struct shc_header_shm){
        .magic = SHC_LAYOUT_MAGIC,
        .layout_version = SHC_LAYOUT_VERSION,
        .world_size = (uint32_t)seat->world_size,
        .total_bytes = segment->bytes,
        .block_bytes = SHC_BLOCK_BYTES,
        .small_slot_bytes = SHC_SMALL_SLOT_BYTES,
        .byte_order = 0x01020304,
        .arena_limit = m->knobs->no_arena ? 0 : limit,
        .first_epoch = m->knobs->first_epoch,
    };
    memcpy(header->nonce, segment->name.nonce, sizeof header->nonce);
    return SHC_OK;
}

/* Is this the memory that was offered, laid out as this build lays it out? A copy is checked. */
static enum shc_status check_header(const struct shc_seat *seat)
{
    struct shc_header_shm header = *shc_seat_header(seat);
    if (memcmp(header.nonce, seat->segment.name.nonce, sizeof header.nonce) != 0)
        return shc_fail(SHC_ERR_UNREACHABLE, "the memory behind the offered name is another one");
    if (header.magic != SHC_LAYOUT_MAGIC || header.layout_version != SHC_LAYOUT_VERSION ||
        header.byte_order != 0x01020304 || header.block_bytes != SHC_BLOCK_BYTES ||
        header.small_slot_bytes != SHC_SMALL_SLOT_BYTES)
        return shc_fail(SHC_ERR_VERSION,
                        "rank 0 lays its memory out as version %u, this rank as version %u",
                        header.layout_version, SHC_LAYOUT_VERSION);
    if (header.world_size != (uint32_t)seat->world_size ||
        header.total_bytes != segment_bytes(seat->world_size) ||
        header.total_bytes > seat->segment.bytes)
        return shc_fail(SHC_ERR_MISMATCH, "rank 0 makes a group of %u ranks, this rank one of %d",
                        header.world_size, seat->world_size);
    return SHC_OK;
}

/* Reserves this rank's block, fills what others will read of it, and links the life word. */
static enum shc_status take_seat(struct meeting *m)
{
    struct shc_seat *seat = m->seat;
    int rank = seat->rank;
    size_t offset = SHC_BLOCKS_OFFSET + (size_t)rank * SHC_BLOCK_BYTES;
    SHC_TRY(shc_segment_reserve(&seat->segment, offset, SHC_BLOCK_BYTES, m->comm->arena.node));
    struct shc_identity_shm *identity = shc_seat_identity(seat, rank);
    identity->process = seat->self;
    identity->cpu_quota = shc_os_cpu_quota();
    if (shc_os_cpus_allowed(&identity->cpus) != 0)
        memset(&identity->cpus, 0, sizeof identity->cpus);
    m->comm->epoch = shc_seat_header(seat)->first_epoch;
    /* release progress/step -> acquire in shc_wait_reached(): the beginning of all counting. */
    shc_a64_store_release(&shc_seat_progress(seat, rank)->reached,
                          shc_progress_value(m->comm->epoch, 0));
    struct shc_member_shm *member = shc_seat_member(seat, rank);
    shc_keeper_link(m->comm->keeper, &member->life);
    m->linked = true;
    /* acq_rel member/state: the identity and the life word, before anybody may look at them. */
    shc_a32_cas_acq_rel(&member->state, SHC_MEMBER_EMPTY, SHC_MEMBER_ALIVE);
    return SHC_OK;
}

static void leave_seat(struct meeting *m)
{
    if (m->linked) {
        shc_member_leave(m->seat); /* should the others have found the group fine */
        shc_keeper_unlink(m->comm->keeper, &shc_seat_member(m->seat, m->seat->rank)->life);
    }
    m->linked = false;
    shc_segment_detach(&m->seat->segment);
}

/* ---- the attempts ---- */

static enum shc_status give_verdict(const struct meeting *m, int attempt, enum shc_status status)
{
    char key[KEY_BYTES];
    struct verdict verdict = verdict_of(status, status == SHC_OK ? "" : shc_error_text());
    key_of(key, m->generation, attempt, "v", m->seat->rank);
    return put(m, key, &verdict, sizeof verdict);
}

/* Rank 0: waits for all verdicts of the attempt; the first bad one, if any, with the ranks that
 * share its status. */
static enum shc_status gather_verdicts(struct meeting *m, int attempt, struct verdict *worst)
{
    static const struct verdict good = {.status = SHC_OK};
    int world = m->seat->world_size;
    char text[KEY_BYTES], ranks[128] = "";
    size_t used = 0;
    *worst = good;
    for (int rank = 1; rank < world; rank++) {
        uint64_t pause_ns = POLL_MIN_NS;
        struct verdict verdict;
        bool there = false;
        key_of(text, m->generation, attempt, "v", rank);
        for (;;) {
            SHC_TRY(try_get(m, text, &verdict, sizeof verdict, &there));
            if (there)
                break;
            SHC_TRY(pause_and_look(m, &pause_ns));
        }
        verdict.text[TEXT_BYTES - 1] = '\0';
        if (verdict.status == SHC_OK)
            continue;
        if (worst->status == SHC_OK)
            *worst = verdict;
        if (used < sizeof ranks)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, used ? ", %d" : "rank %d",
                                     rank);
    }
    if (worst->status != SHC_OK) {
        char reason[TEXT_BYTES];
        snprintf(reason, sizeof reason, "%s", worst->text);
        snprintf(worst->text, sizeof worst->text, "%s: %.360s", ranks, reason);
    }
    return SHC_OK;
}

/* The form to try behind this one, by what went wrong; 0: none. */
static uint32_t next_form(uint32_t form, uint32_t status)
{
    if (shc_config_get()->segment != SHC_SEGMENT_AUTO)
        return 0;
    if (form == SHC_FORM_UNNAMED && status == SHC_ERR_UNREACHABLE)
        return SHC_FORM_NAMED;
    if (form != SHC_FORM_MEMFD && (status == SHC_ERR_NOSPACE || status == SHC_ERR_SYSTEM))
        return SHC_FORM_MEMFD;
    return 0;
}

static uint32_t first_form(void)
{
    int choice = shc_config_get()->segment;
    return choice == SHC_SEGMENT_AUTO ? (uint32_t)SHC_FORM_UNNAMED : (uint32_t)choice;
}

/* One attempt of rank 0. *outcome is the verdict over all ranks. */
static enum shc_status offer_once(struct meeting *m, int attempt, uint32_t form,
                                  struct verdict *outcome)
{
    char key[KEY_BYTES];
    enum shc_status st = create_segment(m, form);
    if (st == SHC_OK)
        st = take_seat(m);
    if (st != SHC_OK) {
        char text[TEXT_BYTES];
        snprintf(text, sizeof text, "rank 0: %.480s", shc_error_text());
        *outcome = verdict_of(st, text);
        leave_seat(m);
        return SHC_OK;
    }
    key_of(key, m->generation, attempt, "o", -1);
    SHC_TRY(put(m, key, &m->seat->segment.name, sizeof m->seat->segment.name));
    return gather_verdicts(m, attempt, outcome);
}

static enum shc_status lead(struct meeting *m)
{
    uint32_t form = first_form();
    struct verdict outcome = {.status = SHC_ERR_SYSTEM}, decided;
    for (int attempt = 1; attempt <= MAX_ATTEMPTS;) {
        SHC_TRY(offer_once(m, attempt, form, &outcome));
        if (outcome.status == SHC_OK)
            break;
        uint32_t next = next_form(form, outcome.status);
        if (next == 0)
            break;
        shc_log(SHC_LOG_INFO, "\"%s\": no %s (%s); trying a %s", m->seat->group,
                shc_segment_form_name(form), outcome.text, shc_segment_form_name(next));
        if (m->seat->segment.base) /* it was offered: the others count this attempt */
            attempt++;
        leave_seat(m);
        form = next;
    }
    SHC_TRY(decide(m, &outcome, &decided));
    return decided.status == SHC_OK ? SHC_OK : failed_by_others(m, &decided);
}

/* Another rank: waits for the decision, or for the offer of this attempt. */
static enum shc_status await_news(struct meeting *m, int attempt, bool *decided_ok,
                                  struct shc_segment_name *name)
{
    char offer_key[KEY_BYTES], decision_key[KEY_BYTES];
    uint64_t pause_ns = POLL_MIN_NS;
    key_of(offer_key, m->generation, attempt, "o", -1);
    key_of(decision_key, m->generation, 0, "d", -1);
    for (;;) {
        struct verdict decided;
        bool there;
        SHC_TRY(try_get(m, decision_key, &decided, sizeof decided, &there));
        decided.text[TEXT_BYTES - 1] = '\0';
        *decided_ok = there && decided.status == SHC_OK;
        if (there)
            return *decided_ok ? SHC_OK : failed_by_others(m, &decided);
        SHC_TRY(try_get(m, offer_key, name, sizeof *name, &there));
        if (there)
            return SHC_OK;
        SHC_TRY(pause_and_look(m, &pause_ns));
    }
}

static enum shc_status follow(struct meeting *m)
{
    for (int attempt = 1;; attempt++) {
        struct shc_segment_name name;
        bool decided_ok;
        SHC_TRY(await_news(m, attempt, &decided_ok, &name));
        if (decided_ok)
            return SHC_OK;
        leave_seat(m); /* of the attempt before */
        enum shc_status st =
            shc_segment_attach(&m->seat->segment, &name, SHC_OS_ROBUST_DISTANCE, m->knobs->cache);
        if (st == SHC_OK)
            st = check_header(m->seat);
        if (st == SHC_OK)
            st = take_seat(m);
        SHC_TRY(give_verdict(m, attempt, st));
    }
}

/* ---- generations ---- */

/* A generation that has been decided is over: this rank begins the next. */
static enum shc_status begin_generation(struct meeting *m)
{
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "n/%d", m->seat->rank);
    for (;;) {
        struct verdict decided;
        bool there;
        int error = m->store->add(m->store->ctx, key, 1, &m->generation);
        if (error != 0)
            return store_failed(m, error, "add");
        char decision_key[KEY_BYTES];
        key_of(decision_key, m->generation, 0, "d", -1);
        SHC_TRY(try_get(m, decision_key, &decided, sizeof decided, &there));
        if (!there)
            break;
    }
    /* Ranks that still sit in the generation before would wait for a rank 0 that has gone on. */
    if (m->seat->rank == 0 && m->generation > 1) {
        struct meeting before = *m;
        struct verdict decided, wish = verdict_of(SHC_ERR_ABORTED, "rank 0 has begun again");
        before.generation--;
        SHC_TRY(decide(&before, &wish, &decided));
    }
    return SHC_OK;
}

static enum shc_status say_hello(const struct meeting *m)
{
    char key[KEY_BYTES];
    struct hello hello = {
        .magic = SHC_LAYOUT_MAGIC,
        .layout_version = SHC_LAYOUT_VERSION,
        .world_size = (uint32_t)m->seat->world_size,
        .process = m->seat->self,
    };
    key_of(key, m->generation, 0, "h", m->seat->rank);
    return put(m, key, &hello, sizeof hello);
}

static enum shc_status meet_others(struct meeting *m)
{
    SHC_TRY(begin_generation(m));
    SHC_TRY(say_hello(m));
    return m->seat->rank == 0 ? lead(m) : follow(m);
}

/* A world of one needs no store. */
static enum shc_status sit_alone(struct meeting *m)
{
    for (uint32_t form = first_form();;) {
        enum shc_status st = create_segment(m, form);
        if (st == SHC_OK)
            st = take_seat(m);
        if (st == SHC_OK)
            return SHC_OK;
        leave_seat(m);
        form = next_form(form, st);
        if (form == 0)
            return st;
    }
}

enum shc_status shc_bootstrap(struct shc_comm *comm, const struct shc_comm_config *config,
                              const struct shc_knobs *knobs)
{
    struct meeting m = {
        .comm = comm,
        .seat = &comm->seat,
        .config = config,
        .store = &config->store,
        .knobs = knobs,
        .begun_ns = shc_clock_ns(),
        .late_step_ns = comm->seat.late_ns,
    };
    m.looked_ns = m.begun_ns;
    m.late_ns = m.begun_ns + m.late_step_ns;
    /* relaxed: set by this thread. */
    m.deadline_ns = shc_deadline_after(m.begun_ns, shc_a64_load_relaxed(&comm->timeout_ns));
    enum shc_status st;
    if (comm->seat.world_size == 1) {
        st = sit_alone(&m);
    } else {
        st = meet_others(&m);
        if (st != SHC_OK && m.generation > 0)
            st = give_up(&m, st);
    }
    if (st != SHC_OK)
        leave_seat(&m);
    else
        shc_segment_settle(&comm->seat.segment);
    return st;
}
