/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The death line. A rank whose call has failed puts the reason into the store, where the first one wins, and raises
 * what stands there. A thread of each leader waits for that key: told, it fails its island, and with it all its ranks.
 *
 *   <g>/dead  the reason; the first put wins
 */
#include "hosts/dead.h"
#include "hosts/group.h"
#include "hosts/hosts_late.h"
#include "hosts/hosts_p2p.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_NS SHC_NS_PER_S          /* of a wait for the key */
#define POLL_NS  (50 * SHC_NS_PER_MS)  /* without a watch, while calls are made */
#define IDLE_NS  (200 * SHC_NS_PER_MS) /* and while none are */
#define GRACE_NS \
    SHC_NS_PER_S /* for a call that runs when the store goes: all may have come for it */
#define FOLLOWER_NS  (250 * SHC_NS_PER_MS) /* more for a rank that does not lead */
#define ANSWER_NS    (500 * SHC_NS_PER_MS) /* most that a failing rank waits for the store */
#define HINT_NS      (500 * SHC_NS_PER_MS) /* and for the looks of one that has only a hint */
#define EARLIER_NS   SHC_NS_PER_S          /* for a call before that of the reason */
#define LATE_LINE_NS (5 * SHC_NS_PER_S)

/* ---- work items ---- */

struct settling {
    int looks;
    bool doubts; /* that the store is there */
    struct shc_hosts_reason wish;
    size_t bytes; /* of what stands */
    char stands[sizeof(struct shc_hosts_reason) + 8];
};

/* A reason of another rank is looked for, and then this one's is put. Returns an errno of the store. */
static int put_reason(struct shc_oob *oob, struct settling *s)
{
    const struct shc_store *store = shc_oob_store(oob);
    char key[SHC_OOB_KEY_BYTES];
    if (s->doubts && shc_oob_refuses(oob))
        return ECONNREFUSED; /* HOST-36 */
    shc_oob_key(oob, "dead", -1, key);
    for (int look = 0; look < s->looks; look++) {
        const int error = store->get(store->ctx, key, s->stands, sizeof s->stands, &s->bytes);
        if (error != ENOENT)
            return error;
        shc_gate_pause(SHC_DEAD_LOOK_NS);
    }
    return store->put_first(store->ctx, key, &s->wish, sizeof s->wish, s->stands, sizeof s->stands,
                            &s->bytes);
}

static void settle_in_store(struct shc_work_item *item)
{
    item->error = put_reason(item->oob, (struct settling *)(void *)item->memory);
}

/* ---- what stands ---- */

/* Does a message of this rank wait, perhaps for another host? */
static bool has_messages(const struct shc_hosts *hosts)
{
    return hosts->p2p && shc_hosts_p2p_waits(hosts->p2p);
}

/* True: it fails this island. False: an earlier call may still end well. */
static bool take(struct shc_hosts *hosts, const struct shc_hosts_reason *reason)
{
    struct shc_dead *dead = &hosts->dead;
    shc_oob_lock(dead->oob);
    if (dead->reason.status == SHC_OK)
        dead->reason = *reason;
    const uint64_t next = dead->call ? dead->number : dead->number + 1;
    shc_oob_unlock(dead->oob);
    const bool fails = next >= reason->number || has_messages(hosts);
    if (fails)
        shc_comm_abort(hosts->island, reason->text);
    return fails;
}

bool shc_dead_stands(struct shc_oob *oob)
{
    const struct shc_store *store = shc_oob_store(oob);
    char key[SHC_OOB_KEY_BYTES], value[sizeof(struct shc_hosts_reason) + 8];
    size_t bytes;
    shc_oob_key(oob, "dead", -1, key);
    return store->get(store->ctx, key, value, sizeof value, &bytes) != ENOENT;
}

void shc_dead_put(struct shc_oob *oob, const struct shc_hosts_reason *wish)
{
    struct settling s = {.wish = *wish};
    struct shc_hosts_reason reason;
    struct shc_hosts *hosts = put_reason(oob, &s) == 0 ? shc_oob_enter(oob) : NULL;
    if (!hosts)
        return;
    if (shc_reason_read(hosts, s.stands, s.bytes, &reason))
        (void)!take(hosts, &reason);
    shc_oob_leave(oob);
}

/* Has the call failed elsewhere? */
static enum shc_status check_reason(struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    shc_oob_lock(dead->oob);
    struct shc_hosts_reason reason = dead->reason;
    shc_oob_unlock(dead->oob);
    if (reason.status == SHC_OK || reason.number > hosts->number)
        return SHC_OK;
    return shc_hosts_fail(hosts, (enum shc_status)reason.status, "%s", reason.text);
}

int shc_dead_lost_host(const struct shc_hosts *hosts)
{
    const struct shc_dead *dead = &hosts->dead;
    shc_oob_lock(dead->oob);
    const int host = dead->is_lost ? dead->lost : -1;
    shc_oob_unlock(dead->oob);
    return host;
}

#define IS_GONE " is gone, by which hosts tell each other of failures"

enum shc_status shc_dead_store_text(const struct shc_hosts *hosts, int lost, char *text,
                                    size_t capacity)
{
    const char *server = shc_oob_store(hosts->dead.oob)->server;
    char whom[192] = "", ranks[96];
    if (lost >= 0) {
        shc_hosts_plan_text(&hosts->plan, lost, ranks, sizeof ranks);
        snprintf(whom, sizeof whom, "; host %d (%s) has died, or the connection to it has broken",
                 lost, ranks);
    }
    snprintf(text, capacity,
             "the store of \"%s\"%s%s%s" IS_GONE
             ": the process that serves it has ended, or its connection%s",
             shc_hosts_group_name(hosts), server ? " (" : "", server ? server : "",
             server ? ")" : "", whom);
    return SHC_ERR_STORE;
}

enum shc_status shc_dead_begin(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob)
        return SHC_OK;
    shc_oob_lock(dead->oob);
    dead->call = call;
    dead->number = hosts->number;
    dead->awaits = false;
    dead->tells = dead->gone;
    shc_lateness_begin(&dead->lateness, shc_clock_ns(), SHC_NO_DEADLINE, dead->late_ns);
    const bool sleeps = dead->sleeps;
    dead->sleeps = false;
    shc_oob_unlock(dead->oob);
    if (sleeps)
        shc_oob_stir(dead->oob);
    dead->asked_ns = shc_clock_ns();
    dead->again_ns = SHC_LEAVING_LATE_NS;
    return check_reason(hosts);
}

void shc_dead_end(struct shc_hosts *hosts, enum shc_status st)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob)
        return;
    shc_leaving_forget(dead);
    shc_oob_lock(dead->oob);
    dead->call = NULL;
    if (st == SHC_OK)
        dead->completed = dead->number;
    dead->awaits = false;
    shc_oob_unlock(dead->oob);
}

void shc_dead_await(struct shc_hosts *hosts, bool awaits)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob)
        return;
    shc_oob_lock(dead->oob);
    dead->awaits = awaits;
    shc_oob_unlock(dead->oob);
}

enum shc_status shc_dead_look(struct shc_hosts *hosts)
{
    if (!hosts->dead.oob)
        return SHC_OK;
    SHC_TRY(check_reason(hosts));
    return shc_leaving_look(hosts);
}

static struct shc_work_item *begin_to_put(struct shc_dead *dead,
                                          const struct shc_hosts_reason *reason, int looks)
{
    struct shc_work_item *item =
        shc_work_item_create(dead->oob, settle_in_store, sizeof(struct settling));
    if (!item)
        return NULL;
    struct settling *s = (struct settling *)(void *)item->memory;
    s->wish = *reason;
    s->looks = looks;
    s->doubts = strstr(reason->text, IS_GONE) != NULL;
    shc_work_item_start(item, true);
    return item;
}

static bool is_ours_alone(enum shc_status st)
{
    return st == SHC_OK || st == SHC_ERR_CLOSED || st == SHC_ERR_FORKED;
}

enum shc_status shc_dead_settle(struct shc_hosts *hosts, enum shc_status st, int looks)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob || is_ours_alone(st))
        return st;
    struct shc_hosts_reason reason =
        shc_reason_make(hosts, st, hosts->number, dead->call,
                        hosts->turn->error[0] ? hosts->turn->error : shc_error_text());
    SHC_TRY(check_reason(hosts)); /* with its text */
    if (!dead->settled && !shc_dead_lacks_store(hosts)) {
        struct shc_work_item *item = begin_to_put(dead, &reason, looks);
        const uint64_t limit_ns = ANSWER_NS + (looks > 0 ? HINT_NS : 0);
        if (item && shc_work_item_wait(item, limit_ns) && item->error == 0) {
            const struct settling *s = (const struct settling *)(const void *)item->memory;
            (void)!shc_reason_read(hosts, s->stands, s->bytes, &reason);
        }
        if (item)
            shc_work_item_drop(item);
    }
    shc_oob_lock(dead->oob);
    dead->settled = true;
    if (dead->reason.status == SHC_OK)
        dead->reason = reason;
    shc_oob_unlock(dead->oob);
    return shc_hosts_fail(hosts, (enum shc_status)reason.status, "%s", reason.text);
}

void shc_dead_tell_abort(struct shc_hosts *hosts, const char *reason)
{
    struct shc_dead *dead = &hosts->dead;
    char text[SHC_HOSTS_ERROR_BYTES];
    if (!dead->oob || shc_comm_error(hosts->sequencer) == SHC_ERR_FORKED)
        return;
    snprintf(text, sizeof text, "rank %d aborted the group: %s",
             (int)hosts->plan.name_of[hosts->rank], reason);
    shc_oob_lock(dead->oob);
    const uint64_t next = dead->call ? dead->number : dead->number + 1;
    shc_oob_unlock(dead->oob);
    const struct shc_hosts_reason made = shc_reason_make(hosts, SHC_ERR_ABORTED, next, NULL, text);
    struct shc_work_item *item = begin_to_put(dead, &made, 0);
    if (item)
        shc_work_item_drop(item);
}

/* ---- the thread ---- */

struct watcher {
    struct shc_oob *oob;
    bool leads; /* it writes lines about late calls */
    uint64_t slice_ns;
    uint64_t gone_ns; /* since when; 0: the store is there */
    bool runs;        /* a call did since the last look, or a message waits */
    bool hurries;     /* nobody else on this host is told for it */
    bool doubts;      /* a request for something else has failed */
    uint64_t number;  /* of the last call that had begun then */
    struct shc_late late;
    bool found;                     /* this island has failed while no call ran */
    uint64_t reason_ns;             /* when a reason came; 0: none has */
    struct shc_hosts_reason reason; /* that was found, or came */
    int error;                      /* of the wait */
    size_t bytes;
    char value[sizeof(struct shc_hosts_reason) + 8];
};

static int get_reason(struct watcher *w)
{
    const struct shc_store *store = shc_oob_store(w->oob);
    char key[SHC_OOB_KEY_BYTES];
    shc_oob_key(w->oob, "dead", -1, key);
    const int error = store->get(store->ctx, key, w->value, sizeof w->value, &w->bytes);
    if (error == EMSGSIZE)
        w->bytes = sizeof w->value; /* of no reason */
    return error == EMSGSIZE ? 0 : error == ENOENT ? ETIMEDOUT : error;
}

/* One slice. False: the group is gone. */
static bool await_reason(struct watcher *w)
{
    const struct shc_watch *watch = shc_oob_watch(w->oob);
    char key[SHC_OOB_KEY_BYTES];
    w->error = ETIMEDOUT;
    if (w->reason_ns)
        return shc_oob_pause(w->oob, w->runs ? POLL_NS : IDLE_NS);
    if (w->gone_ns || !watch) {
        const bool now = w->doubts && !w->gone_ns;
        const uint64_t pause_ns = w->runs && w->hurries ? POLL_NS : IDLE_NS;
        const bool there = now || shc_oob_pause(w->oob, pause_ns);
        if (there && !w->gone_ns && (w->runs || now))
            w->error = get_reason(w);
        w->doubts = false;
        return there;
    }
    shc_oob_key(w->oob, "dead", -1, key);
    w->error = watch->wait(watch->ctx, key, w->slice_ns);
    if (w->error != 0)
        return true;
    w->error = get_reason(w);
    return w->error == 0 || shc_oob_pause(w->oob, POLL_NS); /* a wait that does not wait */
}

/* The island fails while nobody on this host calls anything, and others wait for this host. */
static void look_at_island(struct watcher *w, struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    shc_oob_lock(dead->oob);
    const bool idle = !dead->call && !dead->settled && dead->reason.status == SHC_OK;
    const uint64_t next = dead->number + 1;
    shc_oob_unlock(dead->oob);
    const enum shc_status st = idle && !w->found ? shc_comm_error(hosts->island) : SHC_OK;
    if (is_ours_alone(st))
        return;
    w->found = true;
    w->reason = shc_reason_make(hosts, st, next, NULL, shc_error_text());
}

static void look_at_store(struct watcher *w, struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    char text[SHC_HOSTS_ERROR_BYTES];
    const uint64_t now_ns = shc_clock_ns();
    if (w->error != 0 && w->error != ETIMEDOUT && !w->gone_ns)
        w->gone_ns = now_ns;
    const uint64_t grace_ns = w->leads ? GRACE_NS : GRACE_NS + FOLLOWER_NS;
    const bool over = w->gone_ns && now_ns - w->gone_ns >= grace_ns;
    shc_oob_lock(dead->oob);
    dead->gone = w->gone_ns && (w->leads || over);
    const bool fails = over && ((dead->call && !dead->tells) || has_messages(hosts));
    const uint64_t number = dead->number;
    shc_oob_unlock(dead->oob);
    if (!fails)
        return;
    const enum shc_status st =
        shc_dead_store_text(hosts, shc_dead_lost_host(hosts), text, sizeof text);
    const struct shc_hosts_reason reason = shc_reason_make(hosts, st, number, NULL, text);
    (void)!take(hosts, &reason);
}

static void read_reason(struct watcher *w, struct shc_hosts *hosts)
{
    w->reason_ns = shc_clock_ns();
    if (!shc_reason_read(hosts, w->value, w->bytes, &w->reason)) {
        char text[256], key[SHC_OOB_KEY_BYTES];
        shc_oob_key(w->oob, "dead", -1, key);
        snprintf(text, sizeof text, "the store's key \"%s\" has a value that no rank wrote", key);
        w->reason = shc_reason_make(hosts, SHC_ERR_STORE, 1, NULL, text);
    }
}

/* A reason has come. True: there is more to wait for. */
static bool fail_in_time(struct watcher *w, struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    if (take(hosts, &w->reason))
        return false;
    shc_oob_lock(dead->oob);
    w->runs = dead->call != NULL;
    shc_oob_unlock(dead->oob);
    if (!w->runs || shc_clock_ns() - w->reason_ns < EARLIER_NS)
        return true;
    shc_comm_abort(hosts->island, w->reason.text); /* HOST-32 */
    return false;
}

/* True: there is more to wait for. */
static bool look(struct watcher *w, struct shc_hosts *hosts)
{
    if (is_ours_alone(shc_comm_error(hosts->sequencer)) &&
        shc_comm_error(hosts->sequencer) != SHC_OK)
        return false; /* the process ends, or is another one */
    if (w->error == 0)
        read_reason(w, hosts);
    if (w->reason_ns)
        return fail_in_time(w, hosts);
    look_at_store(w, hosts);
    look_at_island(w, hosts);
    if (w->leads)
        shc_late_look(&w->late, hosts, shc_clock_ns());
    const bool messages = has_messages(hosts);
    shc_oob_lock(hosts->dead.oob);
    w->hurries = w->leads || messages;
    w->runs = hosts->dead.call != NULL || hosts->dead.number != w->number || messages;
    w->number = hosts->dead.number;
    hosts->dead.sleeps = w->hurries && !w->runs;
    shc_oob_unlock(hosts->dead.oob);
    return true;
}

/* False: the group is gone. */
static bool be_late(struct watcher *w, int count, uint64_t late_ns)
{
    const bool due = w->late.due;
    w->doubts = shc_late_exchange(&w->late, w->oob, count, shc_clock_ns(), late_ns) != 0;
    struct shc_hosts *hosts = due ? shc_oob_enter(w->oob) : NULL;
    if (!hosts)
        return !due;
    shc_late_say(&w->late, hosts, shc_clock_ns());
    shc_oob_leave(w->oob);
    return true;
}

static void *watch_for_reason(void *arg)
{
    struct watcher *w = arg;
    bool goes_on = true;
    while (goes_on && await_reason(w)) {
        struct shc_hosts *hosts = shc_oob_enter(w->oob);
        if (!hosts)
            break;
        const bool had_found = w->found;
        const int count = hosts->plan.hosts;
        const uint64_t late_ns = hosts->dead.late_ns;
        goes_on = look(w, hosts);
        shc_oob_leave(w->oob);
        if (w->found && !had_found && !w->gone_ns)
            shc_dead_put(w->oob, &w->reason);
        if (goes_on && w->leads && !w->gone_ns && !w->reason_ns)
            goes_on = be_late(w, count, late_ns);
    }
    shc_late_fini(&w->late);
    shc_oob_drop(w->oob);
    free(w);
    return NULL;
}

enum shc_status shc_dead_init(struct shc_hosts *hosts, const struct shc_store *store,
                              const struct shc_hosts_wish *wish)
{
    hosts->dead.late_ns = wish->late_ns ? wish->late_ns : LATE_LINE_NS;
    hosts->dead.in_file = wish->in_file;
    if (hosts->plan.hosts > 1)
        hosts->dead.oob = shc_oob_create(store, hosts->prefix, hosts);
    return hosts->plan.hosts > 1 && !hosts->dead.oob ? SHC_ERR_NOMEM : SHC_OK;
}

static enum shc_status start_watcher(struct shc_hosts *hosts, const struct shc_watch *watch)
{
    struct shc_dead *dead = &hosts->dead;
    shc_oob_lock(dead->oob);
    const bool first = !dead->watched;
    dead->watched = true;
    shc_oob_unlock(dead->oob);
    if (!first)
        return SHC_OK;
    struct watcher *w = calloc(1, sizeof *w);
    if (!w)
        return SHC_ERR_NOMEM;
    w->oob = dead->oob;
    w->leads = w->hurries = shc_hosts_leads(hosts);
    shc_oob_lock(dead->oob);
    dead->sleeps = w->hurries;
    shc_oob_unlock(dead->oob);
    w->slice_ns = dead->late_ns / 4 < SLICE_NS ? dead->late_ns / 4 : SLICE_NS;
    if (watch)
        shc_oob_take_watch(dead->oob, watch);
    const int error = shc_oob_start(dead->oob, watch_for_reason, w);
    if (error == 0)
        return SHC_OK;
    free(w);
    char text[256], why[64];
    snprintf(text, sizeof text,
             "no thread for the group \"%s\" (%s): a failure of another host is found only when "
             "its engine fails, or by the time-out",
             hosts->name, strerror_r(error, why, sizeof why));
    shc_log_warning(text);
    return SHC_OK;
}

enum shc_status shc_dead_start(struct shc_hosts *hosts, const struct shc_watch *watch)
{
    /* The second rank of a host sees the death of the first. */
    if (!hosts->dead.oob || hosts->local > 1)
        return SHC_OK;
    return start_watcher(hosts, shc_hosts_leads(hosts) ? watch : NULL);
}

enum shc_status shc_dead_watch(struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob)
        return SHC_OK;
    shc_oob_lock(dead->oob);
    const struct shc_hosts_reason reason = dead->reason;
    shc_oob_unlock(dead->oob);
    if (reason.status != SHC_OK)
        shc_comm_abort(hosts->island, reason.text); /* it came when this rank had no message */
    return start_watcher(hosts, NULL);
}

void shc_dead_free(struct shc_hosts *hosts)
{
    if (hosts->dead.oob)
        shc_oob_release(hosts->dead.oob);
}
