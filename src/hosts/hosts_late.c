/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_late.h"

#include "hosts/group.h"

#include "shm/base/lateness.h"
#include "shm/base/once.h"
#include "shm/comm/island.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC        UINT64_C(0x3131746174682d73) /* "s-htat11" */
#define LISTED       8
#define RANKS_TEXT   96
#define MISSING_NS   (200 * SHC_NS_PER_MS)
#define ANSWER_TIMES 3 /* so many periods without a move, and a host does not answer */

void shc_late_look(struct shc_late *late, struct shc_hosts *hosts, uint64_t now_ns)
{
    struct shc_dead *dead = &hosts->dead;
    struct shc_hosts_at *own = &late->own;
    late->due = false;
    shc_oob_lock(dead->oob);
    *own = (struct shc_hosts_at){.magic = MAGIC, .host = hosts->host, .number = dead->number};
    own->state = !dead->call ? SHC_AT_NONE : dead->awaits ? SHC_AT_HOSTS : SHC_AT_ISLAND;
    if (dead->call) {
        shc_hosts_call_text(dead->call, own->call, sizeof own->call);
        late->due = shc_lateness_look(&dead->lateness, now_ns) == SHC_LATE;
        late->waited_ns = now_ns - dead->lateness.begun_ns;
    }
    shc_oob_unlock(dead->oob);
}

/* Is the value one that a leader could have written? */
static bool read_at(const void *value, size_t bytes, int host, struct shc_hosts_at *at)
{
    struct shc_hosts_at read;
    if (bytes != sizeof read)
        return false;
    memcpy(&read, value, sizeof read);
    if (read.magic != MAGIC || read.host != host ||
        memchr(read.call, '\0', sizeof read.call) == NULL)
        return false;
    if (read.state < SHC_AT_NONE || read.state > SHC_AT_HOSTS)
        return false;
    *at = read;
    shc_copy_text_once(at->call, read.call, sizeof at->call);
    return true;
}

/* magic 0: there is none that counts. */
static struct shc_hosts_at get_at(struct shc_oob *oob, int host)
{
    const struct shc_store *store = shc_oob_store(oob);
    char key[SHC_OOB_KEY_BYTES], value[sizeof(struct shc_hosts_at) + 8];
    struct shc_hosts_at at = {0};
    size_t bytes = 0;
    shc_oob_key(oob, "at", host, key);
    if (store->get(store->ctx, key, value, sizeof value, &bytes) != 0 ||
        !read_at(value, bytes, host, &at))
        at.magic = 0;
    return at;
}

static void read_others(struct shc_late *late, struct shc_oob *oob, int hosts, uint64_t now_ns)
{
    if (!late->seen)
        late->seen = calloc((size_t)hosts, sizeof *late->seen);
    const bool first = late->seen_number != late->own.number;
    for (int host = 0; host < hosts && late->seen; host++) {
        struct shc_late_seen *seen = &late->seen[host];
        const uint64_t moves = seen->at.moves;
        if (host == late->own.host)
            continue;
        seen->at = get_at(oob, host);
        if (first)
            seen->first_moves = seen->at.moves;
        if (first || seen->at.moves != moves)
            seen->moved_ns = now_ns;
    }
    late->seen_number = late->own.number;
}

int shc_late_exchange(struct shc_late *late, struct shc_oob *oob, int hosts, uint64_t now_ns,
                      uint64_t late_ns)
{
    const struct shc_store *store = shc_oob_store(oob);
    char key[SHC_OOB_KEY_BYTES];
    int64_t asked;
    if (!late->due && now_ns - late->asked_ns < late_ns)
        return 0;
    late->asked_ns = now_ns;
    shc_oob_key(oob, "late", -1, key);
    const int error = store->add(store->ctx, key, late->due, &asked);
    if (error != 0)
        return error;
    if (late->due || (uint64_t)asked != late->asked) {
        late->own.moves = ++late->moves;
        shc_oob_key(oob, "at", late->own.host, key);
        (void)!store->set(store->ctx, key, &late->own, sizeof late->own);
    }
    late->asked = (uint64_t)asked;
    if (late->due)
        read_others(late, oob, hosts, now_ns);
    return 0;
}

static bool waits_too(const struct shc_hosts_at *at, uint64_t number)
{
    return at->magic != 0 && at->number == number && at->state == SHC_AT_HOSTS;
}

/* What a missing host is at. */
static void at_text(const struct shc_late *late, const struct shc_late_seen *seen, bool silent,
                    char *text, size_t capacity)
{
    const struct shc_hosts_at *at = &seen->at;
    const bool counts = at->number == late->own.number || at->moves != seen->first_moves;
    if (silent)
        snprintf(text, capacity, ": it does not answer");
    else if (at->magic == 0 || !counts)
        text[0] = '\0'; /* it has not said */
    else if (at->state == SHC_AT_NONE && at->number == 0)
        snprintf(text, capacity, ": it has made no call yet");
    else if (at->state == SHC_AT_NONE)
        snprintf(text, capacity, ": it is in no call, after call #%llu",
                 (unsigned long long)at->number);
    else
        snprintf(text, capacity, ": it is in %s, waiting for %s", at->call,
                 at->state == SHC_AT_ISLAND ? "ranks of its own" : "other hosts");
}

/* "host 1 (ranks 2-3)<what>; ..." */
struct list {
    int count;
    size_t used, capacity;
    char *text;
};

static void list_host(struct list *list, const struct shc_hosts *hosts, int host, const char *what)
{
    char ranks[RANKS_TEXT];
    const char *comma = list->count > 0 ? "; " : "";
    char *at = list->text + list->used;
    shc_hosts_plan_text(&hosts->plan, host, ranks, sizeof ranks);
    if (list->count++ >= LISTED || list->used >= list->capacity)
        return;
    list->used += (size_t)snprintf(at, list->capacity - list->used, "%shost %d (%s)%s", comma, host,
                                   ranks, what);
}

static void end_list(struct list *list)
{
    if (list->count > LISTED && list->used < list->capacity)
        snprintf(list->text + list->used, list->capacity - list->used, "; and %d more",
                 list->count - LISTED);
}

void shc_late_say(struct shc_late *late, struct shc_hosts *hosts, uint64_t now_ns)
{
    struct shc_dead *dead = &hosts->dead;
    const struct shc_hosts_at *own = &late->own;
    char whom[1024] = "the engine: all hosts wait in this call", line[1400];
    struct list list = {.text = whom, .capacity = sizeof whom};
    shc_oob_lock(dead->oob);
    const bool holds = dead->call && dead->awaits && dead->number == own->number;
    shc_oob_unlock(dead->oob);
    if (!holds || own->state != SHC_AT_HOSTS || !late->seen)
        return; /* the core says whom a rank of the island waits for */
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const struct shc_late_seen *seen = &late->seen[host];
        char what[SHC_AT_CALL_BYTES + 64];
        if (host == own->host || waits_too(&seen->at, own->number))
            continue;
        at_text(late, seen, now_ns - seen->moved_ns >= ANSWER_TIMES * dead->late_ns, what,
                sizeof what);
        list_host(&list, hosts, host, what);
    }
    end_list(&list);
    shc_island_missing(hosts->island, own->number, whom);
    snprintf(line, sizeof line, "rank %d: %s on \"%s\" " SHC_HAS_WAITED " for %s",
             (int)hosts->plan.name_of[hosts->rank], own->call, shc_hosts_group_name(hosts),
             (double)late->waited_ns / (double)SHC_NS_PER_S, whom);
    shc_comm_log_late(hosts->sequencer, own->number, 0, late->waited_ns, line);
}

void shc_late_fini(struct shc_late *late)
{
    free(late->seen);
}

/* ---- a time-out ---- */

struct question {
    int hosts;
    struct shc_hosts_at of[];
};

static void get_all(struct shc_work_item *item)
{
    struct question *q = (struct question *)(void *)item->memory;
    for (int host = 0; host < q->hosts; host++)
        q->of[host] = get_at(item->oob, host);
}

/* False: no host has said that it waits in this call, too, so any may be missing. */
static bool list_missing(const struct shc_hosts *hosts, const struct question *q, char *text,
                         size_t capacity)
{
    struct list list = {.text = text, .capacity = capacity};
    int waiting = 0;
    for (int host = 0; host < q->hosts; host++)
        if (host != hosts->host && waits_too(&q->of[host], hosts->number))
            waiting++;
        else if (host != hosts->host)
            list_host(&list, hosts, host, "");
    end_list(&list);
    return list.count > 0 && waiting > 0;
}

void shc_late_missing_text(struct shc_hosts *hosts, char *text, size_t capacity)
{
    struct question *q;
    const int count = hosts->plan.hosts;
    struct list list = {.text = text, .capacity = capacity};
    bool known = count == 2;
    if (known) {
        list_host(&list, hosts, 1 - hosts->host, "");
        return;
    }
    struct shc_work_item *item =
        shc_work_item_create(hosts->dead.oob, get_all, sizeof *q + (size_t)count * sizeof q->of[0]);
    if (item) {
        q = (struct question *)(void *)item->memory;
        q->hosts = count;
        shc_work_item_start(item, false);
        if (shc_work_item_wait(item, MISSING_NS))
            known = list_missing(hosts, q, text, capacity);
        shc_work_item_drop(item);
    }
    if (!known)
        snprintf(text, capacity, "the other hosts");
}
