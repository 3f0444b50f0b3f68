/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who has left? A rank that closes its group says so in the store, and a leader says it of its host.
 *
 *   <g>/left         counter: hosts that have left
 *   <g>/left/<host>  the last call in which the host took part; its leader writes it
 *   <g>/gone/<rank>  the same of a rank, which writes it: for messages that wait for it
 */
#include "hosts/dead.h"
#include "hosts/group.h"

#include <stdio.h>

#define LATEST_NS        (5 * SHC_NS_PER_S)
#define ANSWER_NS        (300 * SHC_NS_PER_MS) /* most that a failed call waits for the store */
#define FAREWELL_NS      (100 * SHC_NS_PER_MS) /* most that a close waits for the store */
#define FILE_FAREWELL_NS (10 * SHC_NS_PER_S)   /* and for one in a file */
#define LEFT_MAGIC       UINT64_C(0x327466656c2d6873) /* "sh-left2" */

struct left {
    uint64_t magic;
    uint64_t number; /* of the last call in which the host took part */
    int32_t host, rank;
};

struct farewell {
    struct left left;
    bool leads;
};

/* The rank has left, and with its leader the host. */
static void put_left(struct shc_work_item *item)
{
    const struct farewell *farewell = (const struct farewell *)(const void *)item->memory;
    const struct left *left = &farewell->left;
    const struct shc_store *store = shc_oob_store(item->oob);
    char key[SHC_OOB_KEY_BYTES];
    int64_t count;
    shc_oob_key(item->oob, "gone", left->rank, key);
    item->error = store->set(store->ctx, key, left, sizeof *left);
    if (!farewell->leads || item->error != 0)
        return;
    shc_oob_key(item->oob, "left", left->host, key);
    item->error = store->set(store->ctx, key, left, sizeof *left);
    shc_oob_key(item->oob, "left", -1, key);
    if (item->error == 0)
        item->error = store->add(store->ctx, key, 1, &count);
}

/* Is it what that host's leader, or with `rank` >= 0 that rank, has written? */
static bool is_left(const struct left *left, size_t bytes, int host, int rank)
{
    return bytes == sizeof *left && left->magic == LEFT_MAGIC && left->host == host &&
           (rank < 0 || left->rank == rank);
}

bool shc_leaving_is_left(struct shc_oob *oob, int host)
{
    const struct shc_store *store = shc_oob_store(oob);
    char key[SHC_OOB_KEY_BYTES];
    struct left left;
    size_t bytes = 0;
    shc_oob_key(oob, "left", host, key);
    return store->get(store->ctx, key, &left, sizeof left, &bytes) == 0 &&
           is_left(&left, bytes, host, -1);
}

struct departures {
    int hosts, host;
    struct {
        size_t bytes; /* 0: has not left */
        struct left left;
    } of[];
};

static void get_departures(struct shc_work_item *item)
{
    struct departures *d = (struct departures *)(void *)item->memory;
    const struct shc_store *store = shc_oob_store(item->oob);
    char key[SHC_OOB_KEY_BYTES];
    int64_t count = 0;
    shc_oob_key(item->oob, "left", -1, key);
    item->error = store->add(store->ctx, key, 0, &count);
    for (int host = 0; host < d->hosts && count > 0 && item->error == 0; host++) {
        if (host == d->host)
            continue;
        shc_oob_key(item->oob, "left", host, key);
        const int error = store->get(store->ctx, key, &d->of[host].left, sizeof d->of[host].left,
                                     &d->of[host].bytes);
        if (error != 0)
            d->of[host].bytes = 0; /* also a value that is too long */
    }
}

struct question {
    int host, rank;
    bool yes;
};

static void get_gone(struct shc_work_item *item)
{
    struct question *question = (struct question *)(void *)item->memory;
    const struct shc_store *store = shc_oob_store(item->oob);
    char key[SHC_OOB_KEY_BYTES];
    struct left left;
    size_t bytes = 0;
    shc_oob_key(item->oob, "gone", question->rank, key);
    item->error = store->get(store->ctx, key, &left, sizeof left, &bytes);
    question->yes = item->error == 0 && is_left(&left, bytes, question->host, question->rank);
}

struct shc_work_item *shc_dead_ask_gone(const struct shc_hosts *hosts, int rank)
{
    struct shc_work_item *item =
        shc_work_item_create(hosts->dead.oob, get_gone, sizeof(struct question));
    if (!item)
        return NULL;
    *(struct question *)(void *)item->memory =
        (struct question){.host = hosts->plan.host_of[rank], .rank = rank};
    shc_work_item_start(item, false);
    return item;
}

bool shc_dead_is_gone(struct shc_work_item *item)
{
    return ((const struct question *)(const void *)item->memory)->yes;
}

/* ---- in a call ---- */

void shc_leaving_forget(struct shc_dead *dead)
{
    if (dead->departures)
        shc_work_item_drop(dead->departures);
    dead->departures = NULL;
}

static void ask_for_departures(struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    struct departures *d;
    const size_t bytes = sizeof *d + (size_t)hosts->plan.hosts * sizeof d->of[0];
    dead->asked_ns = shc_clock_ns();
    dead->again_ns = dead->again_ns < LATEST_NS ? dead->again_ns * 2 : LATEST_NS;
    if (!shc_dead_lacks_store(hosts))
        dead->departures = shc_work_item_create(dead->oob, get_departures, bytes);
    if (!dead->departures)
        return;
    d = (struct departures *)(void *)dead->departures->memory;
    d->hosts = hosts->plan.hosts;
    d->host = hosts->host;
    shc_work_item_start(dead->departures, false);
}

static enum shc_status check_departures(struct shc_hosts *hosts)
{
    struct shc_work_item *item = hosts->dead.departures;
    const struct departures *d = (const struct departures *)(const void *)item->memory;
    for (int host = 0; host < d->hosts && item->error == 0; host++) {
        const struct left *left = &d->of[host].left;
        char ranks[96];
        if (!is_left(left, d->of[host].bytes, host, -1))
            continue; /* not there, or not written by its leader */
        if (left->number >= hosts->number)
            continue; /* it has done its part of this call */
        shc_hosts_plan_text(&hosts->plan, host, ranks, sizeof ranks);
        return shc_hosts_fail(hosts, SHC_ERR_PEER_LEFT,
                              "host %d (%s) has left the group \"%s\" after its call #%llu", host,
                              ranks, shc_hosts_group_name(hosts), (unsigned long long)left->number);
    }
    return SHC_OK;
}

enum shc_status shc_leaving_look(struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->departures) {
        if (shc_clock_ns() - dead->asked_ns >= dead->again_ns)
            ask_for_departures(hosts);
        return SHC_OK;
    }
    if (!shc_work_item_wait(dead->departures, 0))
        return SHC_OK;
    const enum shc_status st = check_departures(hosts);
    shc_leaving_forget(dead);
    return st;
}

enum shc_status shc_leaving_ask(struct shc_hosts *hosts)
{
    struct shc_dead *dead = &hosts->dead;
    enum shc_status st = SHC_OK;
    if (!dead->oob)
        return SHC_OK;
    shc_leaving_forget(dead);
    ask_for_departures(hosts);
    if (dead->departures && shc_work_item_wait(dead->departures, ANSWER_NS))
        st = check_departures(hosts);
    shc_leaving_forget(dead);
    return st;
}

/* ---- the close ---- */

void shc_dead_close(struct shc_hosts *hosts, bool says)
{
    struct shc_dead *dead = &hosts->dead;
    if (!dead->oob || !shc_oob_close(dead->oob))
        return;
    if (!says || !hosts->gate || dead->reason.status != SHC_OK)
        return; /* nobody waits for this rank */
    struct shc_work_item *item = shc_work_item_create(dead->oob, put_left, sizeof(struct farewell));
    if (!item)
        return;
    *(struct farewell *)(void *)item->memory = (struct farewell){
        .left = {LEFT_MAGIC, dead->completed, hosts->host, hosts->rank},
        .leads = shc_hosts_leads(hosts),
    };
    shc_work_item_start(item, false);
    /* A process that ends in the middle of a write leaves the others a file that torch reads for ever. */
    (void)!shc_work_item_wait(item, dead->in_file ? FILE_FAREWELL_NS : FAREWELL_NS);
    shc_work_item_drop(item);
}
