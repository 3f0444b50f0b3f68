/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The states of a wait. Each of them ends the wait when its target is ready.
 *
 *   SPIN    patience.spins turns. The clock is not looked at.
 *     |
 *     v         target->moves has grown
 *   YIELD ------------------------------> SPIN anew, as long as it grows, for 8 ms at most; then YIELD anew
 *     |
 *     |     patience.yields turns and patience.awake_ns are over, or 2 ms; or a thread that computes
 *     v     shares the CPU (proto/cpu_sharing.h)
 *   SLEEP   on the bell and the life words, until one of them changes (proto/park.h). Where that is not possible, on
 *     |     the bell, in slices of at most 10 ms. Before each sleep the wait looks at the members, the group's
 *     |     failure, the deadline, its lateness and the caller's interrupt, which may end it.
 *     |
 *     v     target->moves has grown
 *   SPIN anew, then YIELD
 *
 * Most targets have no `moves`: their waits go through the three states once, from top to bottom.
 */
#include "shm/proto/wait.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/os/bias.h"
#include "shm/proto/board.h"
#include "shm/proto/deadlock.h"
#include "shm/proto/late.h"
#include "shm/proto/member.h"
#include "shm/proto/park.h"

#include <errno.h>
#include <stdio.h>

#define SLICE_NS      SHC_LOOK_NS         /* of sleep, and shorter ones: */
#define FIRST_NS      (2 * SHC_NS_PER_MS) /* before the wait parks; most waits are over by then */
#define ATTEND_NS     SHC_NS_PER_MS       /* while a library thread's work falls to this one */
#define ASK_NS        (50 * SHC_NS_PER_MS)
#define ALERT_NS      SHC_NS_PER_S /* after a signal: the callback's answer may take some time */
#define YIELDS_A_LOOK 16
#define YIELDING_NS   (2 * SHC_NS_PER_MS) /* a thread that computes keeps its whole time slice */

/* "rank 0: all_reduce #412 (float32[2], sum) on group "default_pg"" */
static void what_text(const struct shc_wait *wait, char *text, size_t capacity)
{
    char call[160] = "a wait";
    if (wait->call)
        shc_call_text(wait->seat, wait->call, wait->epoch, call, sizeof call);
    shc_seat_doing_text(wait->seat, call, text, capacity);
}

/* The ranks that this call waits for: those that have not entered it; if there are none, the peer that is late. */
static void whom_text(const struct shc_wait *wait, const struct shc_target *target, char *text,
                      size_t capacity)
{
    text[0] = '\0';
    if (target->peer < 0)
        snprintf(text, capacity, "%s", target->whom ? target->whom : "this process");
    else if (shc_member_missing_text(wait->seat, wait->epoch, text, capacity) == 0)
        shc_member_text(wait->seat, target->peer, text, capacity);
}

/* `named`: the reason names this rank's call. */
static enum shc_status give_up(struct shc_wait *wait, enum shc_status status, const char *reason,
                               bool named, const struct shc_member_end *end)
{
    char what[256];
    what_text(wait, what, sizeof what);
    bool ours_alone = !wait->published || status == SHC_ERR_CLOSED ||
                      (status == SHC_ERR_PEER_LEFT && !wait->entered);
    if (!ours_alone) {
        char text[SHC_REASON_BYTES];
        snprintf(text, sizeof text, "%s%s%s", reason, named ? "" : "; in ", named ? "" : what);
        status = shc_group_fail_from(wait->seat, wait->epoch, status, text, end);
    } else if (wait->published && status == SHC_ERR_PEER_LEFT) {
        shc_member_show_failure(wait->seat, status, reason, end); /* this rank cannot go on */
    }
    if (named)
        shc_seat_group_text(wait->seat, what, sizeof what);
    return shc_fail(status, "%s failed: %s", what, reason);
}

enum shc_status shc_wait_give_up_for(struct shc_wait *wait, enum shc_status status,
                                     const char *reason, const struct shc_member_end *end)
{
    return give_up(wait, status, reason, false, end);
}

static enum shc_status check_group(struct shc_wait *wait)
{
    struct shc_seat *seat = wait->seat;
    /* acquire seat/closed <- acq_rel in close_comm(): nothing else. */
    if (shc_a32_load_acquire(&seat->closed))
        return shc_wait_give_up(wait, SHC_ERR_CLOSED, "this rank has closed the group");
    if (SHC_LIKELY(!shc_group_failed_at(seat, wait->epoch)))
        return SHC_OK;
    char what[256], called[256];
    what_text(wait, what, sizeof what);
    shc_call_made_text(wait->seat, wait->call, wait->epoch, called, sizeof called);
    return shc_group_reason_at(seat, wait->epoch, what, called);
}

/* A rank that is gone may have ended because it was told that the group failed. The abort word was
 * set before that rank went, so it is looked at again after the rank's state. */
static enum shc_status check_death(struct shc_wait *wait, int rank)
{
    char reason[512];
    SHC_TRY(check_group(wait));
    const struct shc_member_end end = shc_member_get_end(wait->seat, rank);
    shc_member_death_text(wait->seat, &end, reason, sizeof reason);
    return shc_wait_give_up_for(wait, SHC_ERR_PEER_DEAD, reason, &end);
}

/* Is any rank dead, whether this operation needs it or not? */
static enum shc_status check_deaths(struct shc_wait *wait)
{
    const int dead = shc_member_find_dead(wait->seat, -1);
    return dead < 0 ? SHC_OK : check_death(wait, dead);
}

/* A rank has left, perhaps because another group told it of a death. So after its state dead ranks
 * are looked for, too, also ranks whose death no life word shows yet. */
static enum shc_status check_left(struct shc_wait *wait, int rank)
{
    struct shc_seat *seat = wait->seat;
    shc_member_look_at_processes(seat, 0, seat->world_size);
    SHC_TRY(check_deaths(wait));
    SHC_TRY(check_group(wait));
    char call[160], how[160], reason[512];
    const struct shc_member_end end = shc_member_get_end(seat, rank);
    shc_call_last_clause(seat, rank, call, sizeof call);
    shc_member_left_text(seat, &end, how, sizeof how);
    snprintf(reason, sizeof reason, "%s %s; %s", shc_seat_process_name(seat, rank).text, how, call);
    return shc_wait_give_up_for(wait, SHC_ERR_PEER_LEFT, reason, &end);
}

/* Does the rank owe this operation something? A rank that died after it had finished the
 * operation does not. A rank that left after it had entered does not, unless it is the peer:
 * otherwise it gave up, and told the others. */
static bool owes(const struct shc_wait *wait, int rank, enum shc_member_state state)
{
    return state == SHC_MEMBER_DEAD ? !shc_member_has_finished(wait->seat, rank, wait->epoch)
                                    : !shc_member_has_entered(wait->seat, rank, wait->epoch);
}

/*
 * The peer's data is not there: is the end of a rank a reason to give up? The peer's state was read
 * before the last look at the data. Another rank that is gone matters only if it may owe something.
 * (If a rank died inside the operation, every rank may act on that: the rank that misses its data
 * may be stopped.)
 */
static enum shc_status check_members(struct shc_wait *wait, int peer,
                                     enum shc_member_state peer_state)
{
    const struct shc_seat *seat = wait->seat;
    int left = peer_state == SHC_MEMBER_LEFT ? peer : -1;
    for (int rank = 0; rank < seat->world_size; rank++) {
        enum shc_member_state state = peer_state;
        if (rank == seat->rank)
            continue;
        if (rank != peer)
            state = shc_member_look(seat, rank);
        if (state != SHC_MEMBER_DEAD && state != SHC_MEMBER_LEFT)
            continue;
        if (rank != peer && !owes(wait, rank, state))
            continue;
        if (state == SHC_MEMBER_DEAD)
            return check_death(wait, rank);
        left = left < 0 ? rank : left;
    }
    return left < 0 ? SHC_OK : check_left(wait, left);
}

static void say_late(struct shc_wait *wait, const struct shc_target *target, uint64_t now_ns)
{
    const struct shc_seat *seat = wait->seat;
    char what[256], whom[1024], others[64] = "";
    uint32_t which = 0;
    const int missing = target->peer < 0 ? 0 : shc_member_missing(seat, wait->epoch, &which);
    const int callers = missing > 0 ? seat->world_size - missing - 1 : 0;
    if (target->peer >= 0)
        shc_board_count_late(&seat->board);
    what_text(wait, what, sizeof what);
    whom_text(wait, target, whom, sizeof whom);
    if (callers > 0)
        snprintf(others, sizeof others, "; %d other rank%s made this call", callers,
                 callers == 1 ? " has" : "s have");
    const bool quiet = callers > 0 && shc_log_goes(SHC_LOG_WARN) &&
                       shc_late_is_said(seat, wait->epoch, which, now_ns - wait->lateness.begun_ns);
    shc_log_late(!quiet, "%s " SHC_HAS_WAITED " for %s%s", what,
                 shc_lateness_seconds(&wait->lateness, now_ns), whom, others);
}

/* A call is late. Is it in a cycle of waits? */
static enum shc_status check_cycle(struct shc_wait *wait)
{
    char text[SHC_DEADLOCK_TEXT];
    if (!shc_deadlock_find(wait->seat, NULL, text, sizeof text))
        return SHC_OK;
    if (shc_config_get()->raises)
        return shc_wait_give_up(wait, SHC_ERR_DEADLOCK, text);
    shc_board_count_late(&wait->seat->board);
    shc_log_late(true, "%s", text);
    return SHC_OK;
}

static enum shc_status check_time(struct shc_wait *wait, const struct shc_target *target,
                                  uint64_t now_ns)
{
    /* relaxed: as in finish_unattended() of comm.c. */
    const uint64_t leaves_ns = shc_a64_load_relaxed(&wait->seat->leaves_ns);
    if (leaves_ns != 0 && now_ns >= leaves_ns)
        return shc_wait_give_up(wait, SHC_ERR_CLOSED, "this rank is closing the group");
    const enum shc_lateness_state state = shc_lateness_look(&wait->lateness, now_ns);
    if (state == SHC_TIME_OVER) {
        char whom[1024], reason[1200];
        whom_text(wait, target, whom, sizeof whom);
        snprintf(reason, sizeof reason, SHC_TIMED_OUT "%.3f s waiting for %s",
                 shc_lateness_seconds(&wait->lateness, now_ns), whom);
        return shc_wait_give_up(wait, SHC_ERR_TIMEOUT, reason);
    }
    if (state == SHC_LATE && (target->peer >= 0 || target->whom))
        say_late(wait, target, now_ns);
    if (target->peer >= 0 && (state == SHC_LATE || shc_deadlock_is_suspected(wait->seat, false)))
        return check_cycle(wait);
    return SHC_OK;
}

/* The looks that cost system calls are rarer. */
static enum shc_status check_slowly(struct shc_wait *wait, const struct shc_target *target,
                                    bool quiet, uint64_t now_ns)
{
    struct shc_seat *seat = wait->seat;
    if (target->peer >= 0 && now_ns - wait->asked_ns >= ASK_NS) {
        wait->asked_ns = now_ns;
        if (quiet)
            shc_member_look_at_threads(seat, target->peer);
        else
            shc_member_look_at_processes(seat, target->peer, SHC_MEMBER_LOOKS);
    }
    if (!wait->interruptible || !seat->interrupted)
        return SHC_OK;
    if (quiet && target->parker)
        target->parker->park(target->arg, false);
    const bool interrupted = seat->interrupted(seat->interrupted_ctx);
    if (quiet && target->parker)
        target->parker->park(target->arg, true);
    return interrupted ? shc_wait_give_up(wait, SHC_ERR_INTERRUPTED, "interrupted by a signal")
                       : SHC_OK;
}

/* Two looks at the clock are at most one slice of sleep apart; if they are further apart, this rank
 * was away. */
static void look_at_clock(struct shc_wait *wait, uint64_t now_ns)
{
    if (wait->lateness.begun_ns == 0) {
        shc_lateness_begin(&wait->lateness, now_ns, wait->timeout_ns, wait->seat->late_ns);
        wait->watch = (struct shc_clock_watch){.looked_ns = now_ns};
        wait->asked_ns = now_ns;
        wait->alert_ns = 0;
    }
    shc_lateness_add_lost(&wait->lateness, now_ns, shc_clock_watch_lost(&wait->watch, now_ns));
}

static uint64_t moves_of(const struct shc_target *target)
{
    return target->moves ? *target->moves : 0;
}

/* Not before the first slice is over, nor soon after a signal. */
static bool may_sleep_long(const struct shc_wait *wait)
{
    return wait->lateness.begun_ns != 0 &&
           (wait->alert_ns == 0 || shc_clock_ns() >= wait->alert_ns);
}

/* May the wait sleep until something happens? */
static bool may_park(const struct shc_wait *wait, const struct shc_target *target)
{
    return (target->peer >= 0 || target->parker) && may_sleep_long(wait) &&
           !shc_deadlock_is_suspected(wait->seat, target->parker != NULL) &&
           shc_os_futex_waits_for_any();
}

/* How long the sleep may last that begins now. */
static uint64_t slice_of(const struct shc_wait *wait, const struct shc_target *target,
                         const struct shc_park *park, uint64_t now_ns)
{
    struct shc_seat *seat = wait->seat;
    const struct shc_lateness *lateness = &wait->lateness;
    const bool rings = target->peer < 0 && !target->shared; /* WAIT-19 */
    uint64_t slice_ns = SLICE_NS;
    if (seat->attend && seat->attend(seat))
        slice_ns = ATTEND_NS;
    else if (park->quiet || (rings && may_sleep_long(wait)))
        slice_ns = shc_park_ns(now_ns - lateness->begun_ns);
    else if (now_ns == lateness->begun_ns && !rings)
        slice_ns = FIRST_NS;
    /* relaxed: as in finish_unattended() of comm.c. */
    const uint64_t leaves_ns = shc_a64_load_relaxed(&seat->leaves_ns);
    if (leaves_ns != 0)
        slice_ns = shc_min_u64(slice_ns, SLICE_NS);
    if (park->quiet && target->parker) {
        const uint64_t due_ns = target->parker->due_ns(target->arg);
        slice_ns = shc_min_u64(slice_ns, due_ns > now_ns ? due_ns - now_ns : SLICE_NS);
    }
    slice_ns = shc_min_u64(slice_ns, lateness->deadline_ns - now_ns);
    return lateness->late_ns > now_ns ? shc_min_u64(slice_ns, lateness->late_ns - now_ns)
                                      : slice_ns;
}

/* One sleep, unless there is something new to look at. */
static void sleep_slice(struct shc_wait *wait, const struct shc_target *target,
                        const struct shc_park *park, uint64_t moves, uint64_t now_ns)
{
    const uint32_t heard = park->quiet ? park->heard : shc_bell_listen(target->bell);
    if (target->ready(target->arg) || moves_of(target) != moves)
        return;
    if (target->peer >= 0 && shc_group_failed_at(wait->seat, wait->epoch))
        return;
    /* Only now: whatever makes it shorter rings after that. */
    const uint64_t slice_ns = slice_of(wait, target, park, now_ns);
    const int error = park->quiet ? shc_park_sleep(park, slice_ns)
                                  : shc_bell_sleep(target->bell, heard, slice_ns, target->shared);
    /* After a slice all is looked at: it is no time without looks. */
    const uint64_t long_ns = slice_ns > SLICE_NS ? slice_ns : 0;
    shc_clock_watch_slept(&wait->watch, long_ns);
    if (error == EINTR)
        wait->alert_ns = shc_clock_ns() + ALERT_NS;
    if (target->parker)
        target->parker->slept(target->arg, long_ns, error == EINTR);
}

/* Looks at all that may end the wait, then sleeps. Members, deadline and the rest are looked at before each sleep. */
static enum shc_status sleep_once(struct shc_wait *wait, const struct shc_target *target,
                                  const struct shc_park *park, uint64_t moves, bool shown,
                                  bool *ready)
{
    const uint64_t looked_ns = shown ? shc_clock_ns() : 0;
    enum shc_member_state state = SHC_MEMBER_ALIVE;
    if (target->peer >= 0)
        state = shc_member_look(wait->seat, target->peer);
    /* Read after the state: a LEFT that is read later says nothing of the data looked at before. */
    *ready = target->ready(target->arg);
    if (*ready)
        return SHC_OK;
    if (shown)
        shc_board_look(&wait->seat->board, looked_ns);
    if (target->peer >= 0) {
        SHC_TRY(check_group(wait));
        SHC_TRY(check_members(wait, target->peer, state));
    }
    uint64_t now_ns = shc_clock_ns();
    look_at_clock(wait, now_ns);
    SHC_TRY(check_time(wait, target, now_ns));
    SHC_TRY(check_slowly(wait, target, park->quiet, now_ns));
    if (moves_of(target) != moves)
        return SHC_OK;
    if (target->peer >= 0) {
        shc_board_wait(&wait->seat->board, wait->epoch, target->peer, wait->lateness.begun_ns,
                       now_ns);
        shc_usdt_waits(wait->seat, target->peer, now_ns - wait->lateness.begun_ns);
    }
    sleep_slice(wait, target, park, moves, now_ns);
    return SHC_OK;
}

static enum shc_status sleep_until(struct shc_wait *wait, const struct shc_target *target,
                                   uint64_t moves, bool shown, bool *ready)
{
    enum shc_status st;
    struct shc_park park;
    do {
        park.quiet = false;
        if (may_park(wait, target))
            shc_park_begin(&park, wait->seat, target->bell);
        const struct shc_parker *parker = park.quiet ? target->parker : NULL;
        if (parker)
            parker->park(target->arg, true);
        st = sleep_once(wait, target, &park, moves, shown, ready);
        if (parker)
            parker->park(target->arg, false);
    } while (st == SHC_OK && !*ready && moves_of(target) == moves);
    return st;
}

/* Until the target is ready, or has moved on from `moves`. */
static enum shc_status wait_asleep(struct shc_wait *wait, const struct shc_target *target,
                                   uint64_t moves, bool *ready)
{
    const struct shc_board *board = &wait->seat->board;
    const uint64_t begun_ns = shc_clock_ns();
    const bool shown = wait->interruptible && !target->whom &&
                       shc_board_block(board, shc_thread_number(), target->message, begun_ns);
    const enum shc_status st = sleep_until(wait, target, moves, shown, ready);
    if (shown)
        shc_board_unblock(board);
    if (target->peer >= 0) {
        const uint64_t ns = shc_clock_ns() - begun_ns;
        shc_board_waited(board, target->peer, ns);
        shc_usdt_wait_slow(wait->seat, target->peer, ns);
    }
    return st;
}

/* Spins until the target has moved. A turn may take long then, so turns are counted, not timed. */
SHC_INLINE bool spin(const struct shc_wait *wait, const struct shc_target *target, bool *moved)
{
    const uint64_t moves = moves_of(target);
    *moved = false;
    for (uint32_t i = 0; i < wait->patience.spins && !*moved; i++) {
        if (target->ready(target->arg))
            return true;
        shc_cpu_relax();
        *moved = moves_of(target) != moves;
    }
    return false;
}

/* The target has moved. As long as it does, spinning begins anew, until that time. */
static bool spin_on(const struct shc_wait *wait, const struct shc_target *target, uint64_t until_ns)
{
    bool moved = true;
    while (moved && shc_clock_ns() < until_ns)
        if (spin(wait, target, &moved))
            return true;
    return false;
}

/* Gives the CPU to a thread that wants it. If that thread is another rank of the group, moves to
 * another CPU. */
static bool yield_once(struct shc_wait *wait, const struct shc_target *target, uint64_t *now_ns)
{
    struct shc_seat *seat = wait->seat;
    const bool look = shc_cpu_sharing_yield(&seat->cpu_sharing, now_ns);
    /* Looked at after the yield, which may last: data that has come meanwhile counts more than what
     * others have found. */
    const bool ready = target->ready(target->arg);
    /* Only if `shared`: otherwise the segment may be unmapped meanwhile. */
    if (look && wait->patience.migrates && target->shared)
        shc_cpu_sharing_look(&seat->cpu_sharing, seat, now_ns);
    return ready;
}

/* As long as the target moves, patience begins anew, until the next look is due. */
static enum shc_status yield_awhile(struct shc_wait *wait, const struct shc_target *target,
                                    bool moved, bool *ready)
{
    uint64_t now_ns = shc_clock_ns(), until_ns = now_ns + YIELDING_NS;
    const uint64_t look_ns = now_ns + SLICE_NS - YIELDING_NS;
    const uint64_t awake_ns = now_ns + wait->patience.awake_ns;
    *ready = moved && spin_on(wait, target, look_ns);
    uint64_t moves = moves_of(target);
    for (uint32_t i = 0; !*ready && now_ns < until_ns; i++) {
        if (i >= wait->patience.yields && now_ns >= awake_ns)
            break;
        if (shc_cpu_sharing_wants_sleep(&wait->seat->cpu_sharing, now_ns))
            break;
        *ready = yield_once(wait, target, &now_ns);
        if (*ready)
            return SHC_OK;
        if (i % YIELDS_A_LOOK == 0 && target->peer >= 0)
            SHC_TRY(check_group(wait));
        if (moves_of(target) != moves && now_ns < look_ns) {
            *ready = spin_on(wait, target, look_ns);
            moves = moves_of(target);
            until_ns = shc_clock_ns() + YIELDING_NS;
            i = 0;
        }
    }
    return SHC_OK;
}

/* The rest of a wait after the spinning. */
static enum shc_status wait_longer(struct shc_wait *wait, const struct shc_target *target,
                                   bool moved)
{
    bool ready = false;
    wait->waited = true;
    while (!ready) {
        const uint64_t moves = moves_of(target);
        SHC_TRY(yield_awhile(wait, target, moved, &ready));
        if (!ready)
            SHC_TRY(wait_asleep(wait, target, moves, &ready));
        moved = moves_of(target) != moves;
    }
    return SHC_OK;
}

enum shc_status shc_wait_for(struct shc_wait *wait, const struct shc_target *target)
{
    bool moved;
    return spin(wait, target, &moved) ? SHC_OK : wait_longer(wait, target, moved);
}

struct word {
    const shc_a64 *word;
    uint64_t want;
};

static bool word_ready(void *arg)
{
    const struct word *target = arg;
    return shc_wait_has_reached(target->word, target->want);
}

/* The rest of a wait for a word after the spinning. */
static SHC_NOINLINE enum shc_status wait_word_longer(struct shc_wait *wait, int peer,
                                                     const shc_a64 *word, uint64_t want)
{
    struct word arg = {.word = word, .want = want};
    const struct shc_target target = {
        .ready = word_ready,
        .arg = &arg,
        .bell = shc_seat_bell(wait->seat, peer),
        .peer = peer,
        .shared = true,
    };
    return wait_longer(wait, &target, false);
}

enum shc_status shc_wait_word(struct shc_wait *wait, int peer, const shc_a64 *word, uint64_t want)
{
    for (uint32_t i = 0; i < wait->patience.spins; i++) {
        if (shc_wait_has_reached(word, want)) {
            wait->waited |= i > SHC_MOMENT_TURNS;
            return SHC_OK;
        }
        shc_cpu_relax();
    }
    return wait_word_longer(wait, peer, word, want);
}

enum shc_status shc_progress_wait_all(struct shc_wait *wait, uint64_t step)
{
    for (int turn = 1; turn < wait->seat->world_size; turn++)
        SHC_TRY(shc_progress_wait(wait, shc_seat_peer(wait->seat, turn), step));
    return SHC_OK;
}

static SHC_COLD enum shc_status check_mismatch(struct shc_wait *wait, int rank)
{
    /* A rank that was told of a death makes another call than one that was not. */
    shc_member_look_at_processes(wait->seat, 0, wait->seat->world_size);
    SHC_TRY(check_group(wait));
    SHC_TRY(check_deaths(wait));
    char theirs[160], ours[256], reason[640];
    if (!shc_call_latest_text(wait->seat, rank, theirs, sizeof theirs))
        snprintf(theirs, sizeof theirs, "something that cannot be read");
    shc_call_made_text(wait->seat, wait->call, wait->epoch, ours, sizeof ours);
    snprintf(reason, sizeof reason, "ranks made different calls: %s, but %s called %s", ours,
             shc_seat_rank_name(wait->seat, rank).text, theirs);
    return give_up(wait, SHC_ERR_MISMATCH, reason, true, NULL);
}

bool shc_call_all_here(const struct shc_wait *wait)
{
    for (int turn = 1; turn < wait->seat->world_size; turn++) {
        const int peer = shc_seat_peer(wait->seat, turn);
        const struct shc_call_shm *line = shc_seat_call(wait->seat, peer, wait->epoch);
        if (!shc_wait_has_reached(&line->epoch, wait->epoch))
            return false;
    }
    return true;
}

/* After the meeting: asks for the cache lines that this rank will store to next. */
static SHC_NOINLINE void ask_ahead(struct shc_seat *seat, uint64_t before)
{
    const char *slot = shc_call_lent_slot(seat, before);
    if (slot)
        shc_cpu_will_store(slot, seat->lent[before & 1]);
    seat->lent[before & 1] = 0;
}

enum shc_status shc_call_meet(struct shc_wait *wait)
{
    struct shc_seat *seat = wait->seat;
    /* Its own line is not asked for: the other ranks are fetching that. */
    const uint64_t epoch = wait->epoch, hash = wait->call->agreed;
    if (seat->world_size == 2)
        shc_cpu_hold_loads(); /* the peer may still have to store to its line, in its cache */
    for (int turn = 1; turn < seat->world_size; turn++) {
        const int peer = shc_seat_peer(seat, turn);
        const struct shc_call_shm *line = shc_seat_call(seat, peer, epoch);
        SHC_TRY(shc_wait_reached(wait, peer, &line->epoch, epoch));
        if (SHC_UNLIKELY(SHC_READ_ONCE(line->hash) != hash))
            return check_mismatch(wait, peer);
    }
    wait->entered = true;
    if (SHC_UNLIKELY(seat->lent[(epoch - 1) & 1] != 0))
        ask_ahead(seat, epoch - 1);
    return SHC_OK;
}
