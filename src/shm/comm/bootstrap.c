/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Attempts. Rank 0 makes a segment and offers its name. Every rank opens it, checks it, reserves its block,
 * links its life word and gives one verdict. Rank 0 decides, or tries the next form. The store carries what
 * cannot be written into the segment; docs/internals/protocol/rendezvous.md.
 */
#include "shm/comm/comm.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/comm/rendezvous.h"
#include "shm/os/numa.h"
#include "shm/proto/cma.h"
#include "shm/proto/member.h"

#include <stdio.h>
#include <string.h>

#define MAX_ATTEMPTS 3

/* One rank's path into the group. */
struct arrival {
    struct shc_rendezvous rendezvous;
    struct shc_comm *comm;
    const struct shc_knobs *knobs;
};

/* ---- the segment ---- */

static size_t segment_bytes(const struct shc_seat *seat)
{
    return shc_seat_hand_off_slot_offset(
        seat, seat->world_size == SHC_HAND_OFF_SLOT_RANKS ? SHC_HAND_OFF_SLOTS : 0);
}

/* Bytes. */
static size_t arena_limit(const struct arrival *a)
{
    const int kib = shc_config_get()->arena_kib;
    if (a->knobs->no_arena)
        return 0;
    if (a->knobs->arena_limit)
        return a->knobs->arena_limit;
    return kib == SHC_ARENA_AUTO ? shc_arena_usual_limit(a->rendezvous.seat->world_size)
                                 : (size_t)kib << 10;
}

/* Rank 0: the only writer of the first page, before it offers the segment. */
static enum shc_status create_segment(struct arrival *a, uint32_t form)
{
    struct shc_seat *seat = a->rendezvous.seat;
    struct shc_segment *segment = &seat->segment;
    SHC_TRY(shc_segment_create(segment, form, segment_bytes(seat), SHC_OS_ROBUST_DISTANCE,
                               &seat->self, a->knobs->cache));
    enum shc_status st = shc_segment_reserve(segment, 0, SHC_BLOCKS_OFFSET, 0);
    if (st != SHC_OK) {
        shc_segment_detach(segment);
        return st;
    }
    struct shc_header_shm *header = shc_seat_header(seat);
    *header = (struct shc_header_shm){
        .magic = SHC_LAYOUT_MAGIC,
        .layout_version = SHC_LAYOUT_VERSION,
        .world_size = (uint32_t)seat->world_size,
        .total_bytes = segment->bytes,
        .block_bytes = SHC_BLOCK_BYTES,
        .small_slot_bytes = SHC_SMALL_SLOT_BYTES,
        .byte_order = 0x01020304,
        .arena_limit = arena_limit(a),
        .first_epoch = a->knobs->first_epoch,
        .list = a->rendezvous.list,
    };
    shc_tuning_share(&a->comm->tuning, header->tuning);
    memcpy(header->nonce, segment->name.nonce, sizeof header->nonce);
    return SHC_OK;
}

/* Is this the memory that was offered, laid out as this build lays it out? A copy is checked. The name came
 * through the store: before the file is known to be the group's, nothing is written and no page is
 * touched. */
static enum shc_status check_header(const struct arrival *a)
{
    const struct shc_seat *seat = a->rendezvous.seat;
    if (!shc_os_file_is_ours(seat->segment.fd, seat->segment.name.form != SHC_FORM_NAMED))
        return shc_fail(SHC_ERR_UNREACHABLE, "the offered memory is not a file of this user's");
    struct shc_header_shm header;
    shc_copy_once(&header, shc_seat_header(seat), sizeof header);
    if (memcmp(header.nonce, seat->segment.name.nonce, sizeof header.nonce) != 0)
        return shc_fail(SHC_ERR_UNREACHABLE, "the offered name leads to other memory");
    if (header.magic != SHC_LAYOUT_MAGIC || header.layout_version != SHC_LAYOUT_VERSION ||
        header.byte_order != 0x01020304 || header.block_bytes != SHC_BLOCK_BYTES ||
        header.small_slot_bytes != SHC_SMALL_SLOT_BYTES)
        return shc_fail(SHC_ERR_VERSION,
                        "rank 0 lays its memory out as version %u, this rank as version %u",
                        header.layout_version, SHC_LAYOUT_VERSION);
    if (header.list != a->rendezvous.list || header.world_size != (uint32_t)seat->world_size ||
        header.total_bytes != segment_bytes(seat) || header.total_bytes > seat->segment.bytes)
        return shc_fail(SHC_ERR_MISMATCH,
                        "the offered memory is a group's of %u ranks, not of these %d",
                        header.world_size, seat->world_size);
    return shc_tuning_compare(&a->comm->tuning, header.tuning);
}

/* Reserves this rank's block, fills in what others read from it, and links the life word. */
static enum shc_status take_seat(struct arrival *a)
{
    struct shc_seat *seat = a->rendezvous.seat;
    int rank = seat->rank;
    size_t offset = SHC_BLOCKS_OFFSET + (size_t)rank * SHC_BLOCK_BYTES;
    struct shc_identity identity = {.process = seat->self, .cpu_quota = shc_os_cpu_quota()};
    if (shc_os_cpus_allowed(&identity.cpus) != 0)
        memset(&identity.cpus, 0, sizeof identity.cpus);
    const int node = shc_numa_node_of(shc_numa_get(), &identity.cpus);
    const uint64_t nodes = node >= 0 ? UINT64_C(1) << node : 0;
    SHC_TRY(shc_segment_reserve(&seat->segment, offset, SHC_BLOCK_BYTES, nodes));
    SHC_TRY(shc_segment_reserve(&seat->segment, shc_seat_mail_offset(seat, rank),
                                shc_mail_reserved_bytes(&seat->mail), nodes));
    if (seat->world_size == SHC_HAND_OFF_SLOT_RANKS)
        SHC_TRY(shc_segment_reserve(&seat->segment, shc_seat_hand_off_slot_offset(seat, rank),
                                    SHC_HAND_OFF_SLOT_BYTES, nodes));
    shc_thread_budget_tell(&a->comm->budget, &identity);
    shc_cma_tell(seat, &identity);
    shc_seat_identity_shm(seat, rank)->said = identity;
    a->comm->epoch = SHC_READ_ONCE(shc_seat_header(seat)->first_epoch);
    seat->hand_off_slot =
        (struct shc_hand_off_slot){.epoch = a->comm->epoch, .giver = -1}; /* none yet */
    /* release progress/step -> acquire in shc_wait_has_reached(): the start of all counting. */
    shc_a64_store_release(&shc_seat_progress(seat, rank)->reached,
                          shc_progress_value(a->comm->epoch, 0));
    shc_member_finish(seat, a->comm->epoch);
    struct shc_member_shm *member = shc_seat_member(seat, rank);
    a->comm->liveness = shc_liveness_link(a->comm->liveness, &member->life);
    /* acq_rel member/state: the identity and the life word, before any rank may look at them. */
    shc_a32_cas_acq_rel(&member->state, SHC_MEMBER_EMPTY, SHC_MEMBER_ALIVE);
    shc_os_futex_wake_all(&member->state, true); /* rank 0 sleeps on it */
    a->rendezvous.seated = true;
    return SHC_OK;
}

/* Rank 0: tells the others, once the news is in the store. */
static void tell(const struct arrival *a, enum shc_decision what)
{
    shc_a32 *word = &shc_seat_decision(a->rendezvous.seat)->word;
    /* release decision/word -> acquire in await_news() and shc_rendezvous_is_told(): the store holds the news. */
    shc_a32_store_release(word, (uint32_t)what);
    shc_os_futex_wake_all(word, true);
}

static void leave_seat(struct arrival *a)
{
    const struct shc_seat *seat = a->rendezvous.seat;
    if (a->rendezvous.seated) {
        if (seat->rank == 0)
            tell(a, SHC_DECISION_LOOK);
        shc_member_leave(seat); /* in case the others have found the group fine */
        shc_liveness_unlink(a->comm->liveness, &shc_seat_member(seat, seat->rank)->life);
    }
    a->rendezvous.seated = false;
    shc_segment_detach(&a->rendezvous.seat->segment);
}

/* ---- the attempts ---- */

/* Rank 0: waits for the rank's seat, or its bad verdict. */
static enum shc_status await_verdict(struct arrival *a, int attempt, int rank,
                                     struct shc_verdict *verdict)
{
    shc_a32 *state = &shc_seat_member(a->rendezvous.seat, rank)->state;
    uint64_t pause_ns = SHC_RENDEZVOUS_WOKEN_NS;
    bool there = false;
    while (!there && !shc_rendezvous_is_seated(&a->rendezvous, rank)) {
        SHC_TRY(shc_rendezvous_pause(&a->rendezvous, &pause_ns, state, SHC_MEMBER_EMPTY));
        if (!shc_rendezvous_is_seated(&a->rendezvous, rank))
            SHC_TRY(shc_rendezvous_get_verdict(&a->rendezvous, attempt, rank, verdict, &there));
    }
    if (!there)
        *verdict = shc_verdict_of(SHC_OK, "");
    return SHC_OK;
}

/* Rank 0: waits for all verdicts of the attempt; the first bad one, if any, with the ranks that
 * share its status. */
static enum shc_status gather_verdicts(struct arrival *a, int attempt, struct shc_verdict *worst)
{
    int world = a->rendezvous.seat->world_size;
    char ranks[128] = "";
    size_t used = 0;
    *worst = shc_verdict_of(SHC_OK, "");
    for (int rank = 1; rank < world; rank++) {
        struct shc_verdict verdict;
        SHC_TRY(await_verdict(a, attempt, rank, &verdict));
        if (verdict.status == SHC_OK)
            continue;
        if (worst->status == SHC_OK)
            *worst = verdict;
        if (used < sizeof ranks)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, used ? ", %d" : "rank %d",
                                     shc_seat_global_rank(a->rendezvous.seat, rank));
    }
    if (worst->status != SHC_OK) {
        char reason[SHC_RECORD_TEXT_BYTES];
        snprintf(reason, sizeof reason, "%s", worst->text);
        snprintf(worst->text, sizeof worst->text, "%s: %.360s", ranks, reason);
    }
    return SHC_OK;
}

/* The form to try after this one, depending on the error; 0: none. */
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
static enum shc_status offer_once(struct arrival *a, int attempt, uint32_t form,
                                  struct shc_verdict *outcome)
{
    enum shc_status st = create_segment(a, form);
    if (st == SHC_OK)
        st = take_seat(a);
    if (st != SHC_OK) {
        char text[SHC_RECORD_TEXT_BYTES];
        snprintf(text, sizeof text, "rank 0: %.480s", shc_error_text());
        *outcome = shc_verdict_of(st, text);
        leave_seat(a);
        return SHC_OK;
    }
    a->rendezvous.attempt = attempt;
    SHC_TRY(shc_rendezvous_put_offer(&a->rendezvous, attempt, &a->rendezvous.seat->segment.name));
    return gather_verdicts(a, attempt, outcome);
}

static enum shc_status lead(struct arrival *a)
{
    uint32_t form = first_form();
    struct shc_verdict outcome = {.status = SHC_ERR_SYSTEM}, decided;
    for (int attempt = 1; attempt <= MAX_ATTEMPTS;) {
        SHC_TRY(offer_once(a, attempt, form, &outcome));
        if (outcome.status == SHC_OK)
            break;
        uint32_t next = next_form(form, outcome.status);
        if (next == 0)
            break;
        shc_log(SHC_LOG_INFO, "\"%s\": no %s (%s); trying a %s", shc_seat_group(a->rendezvous.seat),
                shc_segment_form_name(form), outcome.text, shc_segment_form_name(next));
        if (a->rendezvous.seat->segment.base) /* it was offered: the others count this attempt */
            attempt++;
        leave_seat(a);
        form = next;
    }
    SHC_TRY(shc_rendezvous_decide(&a->rendezvous, a->rendezvous.list, a->rendezvous.generation,
                                  &outcome, &decided));
    if (decided.status != SHC_OK)
        return shc_rendezvous_failed(&a->rendezvous, &decided);
    if (outcome.status != SHC_OK)
        return shc_rendezvous_lied_to(&a->rendezvous, "rank 0 has not made it");
    tell(a, SHC_DECISION_OK);
    return SHC_OK;
}

/* The decision came through the store, where others may write; the seats can be written only by ranks. */
static enum shc_status check_seats(const struct arrival *a)
{
    char what[160];
    for (int rank = 0; rank < a->rendezvous.seat->world_size; rank++) {
        if (shc_rendezvous_is_seated(&a->rendezvous, rank))
            continue;
        snprintf(what, sizeof what, "%s has no seat in it",
                 shc_seat_rank_name(a->rendezvous.seat, rank).text);
        return shc_rendezvous_lied_to(&a->rendezvous, what);
    }
    return SHC_OK;
}

/* Another rank: the store's content, the decision or the offer of this attempt. */
static enum shc_status look_for_news(struct arrival *a, int attempt, bool *decided_ok,
                                     struct shc_segment_name *name, bool *there)
{
    struct shc_verdict decided;
    if (attempt <= MAX_ATTEMPTS)
        SHC_TRY(shc_rendezvous_get_offer(&a->rendezvous, attempt, name, there));
    if (*there)
        return SHC_OK;
    SHC_TRY(shc_rendezvous_get_decision(&a->rendezvous, a->rendezvous.list,
                                        a->rendezvous.generation, &decided, there));
    *decided_ok = *there && decided.status == SHC_OK;
    if (*decided_ok && !a->rendezvous.seated)
        return shc_rendezvous_lied_to(&a->rendezvous, "this rank has no seat in it");
    return *there && !*decided_ok ? shc_rendezvous_failed(&a->rendezvous, &decided) : SHC_OK;
}

/* Another rank: waits for the decision, or for the offer of this attempt. */
static enum shc_status await_news(struct arrival *a, int attempt, bool *decided_ok,
                                  struct shc_segment_name *name)
{
    /* In the seat of the attempt before, rank 0's word comes first. */
    shc_a32 *word = a->rendezvous.seated ? &shc_seat_decision(a->rendezvous.seat)->word : NULL;
    uint64_t pause_ns = word ? SHC_RENDEZVOUS_WOKEN_NS : SHC_RENDEZVOUS_POLL_NS;
    bool there = false;
    *decided_ok = false;
    if (!word)
        SHC_TRY(look_for_news(a, attempt, decided_ok, name, &there));
    while (!there) {
        SHC_TRY(shc_rendezvous_pause(&a->rendezvous, &pause_ns, word, SHC_DECISION_NOTHING));
        /* acquire decision/word <- release in tell(): the store holds the news. */
        uint32_t news = word ? shc_a32_load_acquire(word) : (uint32_t)SHC_DECISION_NOTHING;
        *decided_ok = news == SHC_DECISION_OK;
        if (*decided_ok)
            return SHC_OK;
        if (news == SHC_DECISION_LOOK) {
            word = NULL;
            pause_ns = SHC_RENDEZVOUS_POLL_NS;
        }
        SHC_TRY(look_for_news(a, attempt, decided_ok, name, &there));
    }
    return SHC_OK;
}

static enum shc_status follow(struct arrival *a)
{
    for (int attempt = 1;; attempt++) {
        struct shc_segment_name name;
        bool decided_ok;
        SHC_TRY(await_news(a, attempt, &decided_ok, &name));
        if (decided_ok)
            return SHC_OK;
        a->rendezvous.attempt = attempt;
        leave_seat(a); /* of the attempt before */
        enum shc_status st = shc_segment_attach(&a->rendezvous.seat->segment, &name,
                                                SHC_OS_ROBUST_DISTANCE, a->knobs->cache);
        if (st == SHC_OK)
            st = check_header(a);
        if (st == SHC_OK)
            st = take_seat(a);
        if (st != SHC_OK)
            SHC_TRY(shc_rendezvous_put_verdict(&a->rendezvous, attempt, st, shc_error_text()));
    }
}

static enum shc_status meet_others(struct arrival *a)
{
    SHC_TRY(shc_rendezvous_begin(&a->rendezvous));
    return a->rendezvous.seat->rank == 0 ? lead(a) : follow(a);
}

/* A world of one needs no store. */
static enum shc_status sit_alone(struct arrival *a)
{
    for (uint32_t form = first_form();;) {
        enum shc_status st = create_segment(a, form);
        if (st == SHC_OK)
            st = take_seat(a);
        if (st == SHC_OK)
            return SHC_OK;
        leave_seat(a);
        form = next_form(form, st);
        if (form == 0)
            return st;
    }
}

enum shc_status shc_bootstrap(struct shc_comm *comm, const struct shc_comm_config *config,
                              const struct shc_knobs *knobs)
{
    struct arrival a = {.comm = comm, .knobs = knobs};
    /* relaxed: set by this thread. */
    shc_rendezvous_init(&a.rendezvous, &comm->seat, config,
                        shc_a64_load_relaxed(&comm->timeout_ns));
    enum shc_status st;
    if (comm->seat.world_size == 1) {
        st = sit_alone(&a);
    } else {
        a.rendezvous.segment_bytes = shc_align_up(segment_bytes(&comm->seat), SHC_PAGE_BYTES);
        st = meet_others(&a);
        if (st != SHC_OK && a.rendezvous.generation > 0)
            st = shc_rendezvous_give_up(&a.rendezvous, st);
        if (st == SHC_OK)
            st = check_seats(&a);
    }
    if (st != SHC_OK)
        leave_seat(&a);
    else
        shc_segment_settle(&comm->seat.segment);
    shc_rendezvous_fini(&a.rendezvous);
    return st;
}

enum shc_status shc_bootstrap_refuse(struct shc_comm *comm, const struct shc_comm_config *config,
                                     enum shc_status status)
{
    struct shc_rendezvous rendezvous;
    /* relaxed: set by this thread. */
    shc_rendezvous_init(&rendezvous, &comm->seat, config, shc_a64_load_relaxed(&comm->timeout_ns));
    enum shc_status st = shc_rendezvous_refuse(&rendezvous, status);
    shc_rendezvous_fini(&rendezvous);
    return st;
}
