/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Do all hosts make the same call? Nothing that an engine gets may have another size than the other hosts expect:
 * some engines end the process then. So a record of one size goes before everything else.
 *
 * Cost: an all_gather of 128 bytes and a broadcast in the island, and one exchange of the records between the leaders.
 */
#include "hosts/group.h"

#include "shm/base/num.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define RANKS_TEXT     96
#define LOST_LOOKS     4  /* HOST-34 */
#define LEADER_LOOKS   25 /* HOST-10 */
#define COMPARED_BYTES offsetof(struct shc_hosts_said, sizes)

/* The record of this host. A failure's text takes the place of the payload. */
static void fill(const struct shc_hosts_call *call, enum shc_status st)
{
    struct shc_hosts *hosts = call->hosts;
    struct shc_hosts_record *record = shc_hosts_own_record(hosts);
    record->said = shc_hosts_said_of(call);
    record->said.sizes = hosts->sizes;
    record->said.sizes.rate = hosts->known_rate ? hosts->known_rate : shc_gate_rate(hosts->gate);
    record->said.sizes.messages = hosts->line.send && hosts->line.receive;
    record->status = (uint32_t)st;
    if (st != SHC_OK)
        snprintf(shc_hosts_payload(record), hosts->payload_bytes, "%s",
                 hosts->turn->error[0] ? hosts->turn->error : shc_error_text());
}

/* The rate of the slowest host's link; 0: a host does not know its own. No value is wrong (hosts_plan.h). */
static uint64_t least_rate(const struct shc_hosts *hosts)
{
    uint64_t least = UINT64_MAX;
    for (int host = 0; host < hosts->plan.hosts; host++)
        least = shc_min_size(least, shc_hosts_record_of(hosts, host)->said.sizes.rate);
    return least;
}

static bool all_have_messages(const struct shc_hosts *hosts)
{
    for (int host = 0; host < hosts->plan.hosts; host++)
        if (shc_hosts_record_of(hosts, host)->said.sizes.messages != 1)
            return false;
    return true;
}

/* The first host that says another call than host 0, or that has failed. */
static enum shc_status compare(struct shc_hosts *hosts)
{
    const struct shc_hosts_record *first = shc_hosts_record_of(hosts, 0);
    hosts->rate = least_rate(hosts);
    hosts->messages = all_have_messages(hosts);
    for (int host = 0; host < hosts->plan.hosts; host++) {
        struct shc_hosts_record *record = shc_hosts_record_of(hosts, host);
        char ranks[2][RANKS_TEXT], calls[2][SHC_HOSTS_CALL_TEXT];
        shc_hosts_plan_text(&hosts->plan, 0, ranks[0], RANKS_TEXT);
        shc_hosts_plan_text(&hosts->plan, host, ranks[1], RANKS_TEXT);
        if (record->status != SHC_OK) {
            shc_hosts_payload(record)[hosts->payload_bytes - 1] = '\0';
            const bool known = record->status < SHC_STATUS_COUNT;
            return shc_hosts_fail(hosts, known ? (enum shc_status)record->status : SHC_ERR_ABORTED,
                                  "host %d (%s): %s", host, ranks[1], shc_hosts_payload(record));
        }
        if (record->said.version != first->said.version)
            return shc_hosts_fail(hosts, SHC_ERR_MISMATCH,
                                  "host %d (%s) has another version of shmcoll than host 0 (%s)",
                                  host, ranks[1], ranks[0]);
        if (memcmp(&first->said, &record->said, COMPARED_BYTES) == 0)
            continue;
        shc_hosts_said_text(&first->said, calls[0], SHC_HOSTS_CALL_TEXT);
        shc_hosts_said_text(&record->said, calls[1], SHC_HOSTS_CALL_TEXT);
        return shc_hosts_fail(hosts, SHC_ERR_MISMATCH,
                              "calls of \"%s\" differ: %s on host 0 (%s), %s on host %d (%s)",
                              shc_hosts_group_name(hosts), calls[0], ranks[0], calls[1], host,
                              ranks[1]);
    }
    return SHC_OK;
}

/* ---- a store that is gone ---- */

/* A gather among the leaders that waits for so many looks at most. True: all hosts have taken part. */
static bool gather_soon(struct shc_hosts *hosts, size_t bytes, char *out, int *looks)
{
    char error[SHC_HOSTS_ERROR_BYTES];
    struct shc_ticket *ticket;
    if (shc_hosts_tell_leaders(hosts, bytes, out, &ticket) != SHC_OK)
        return false;
    while (!shc_gate_wait(ticket, SHC_DEAD_LOOK_NS, error)) {
        if (--*looks > 0)
            continue;
        shc_gate_abandon(ticket);
        return false;
    }
    return !error[0];
}

static bool says_gone(const struct shc_hosts *hosts, int host)
{
    return shc_hosts_record_of(hosts, host)->status == SHC_ERR_STORE;
}

/* All records are there, or not. They do not show which hosts live: one may have given its own before the store ended,
 * and died with it. But one whose record says that the store is gone has lived on. */
static enum shc_status fail_without_store(const struct shc_hosts_call *call, bool has_records,
                                          int looks)
{
    struct shc_hosts *hosts = call->hosts;
    char ranks[RANKS_TEXT], text[SHC_HOSTS_ERROR_BYTES], what[SHC_HOSTS_CALL_TEXT];
    int teller = hosts->host, lost = -1;
    for (int host = 0; has_records && host < hosts->plan.hosts; host++)
        if (says_gone(hosts, host) && (host < teller || !says_gone(hosts, teller)))
            teller = host;
    if (!has_records || !gather_soon(hosts, SHC_HOSTS_ANSWER_BYTES, hosts->stage.answers, &looks)) {
        while (looks-- > 0 && shc_dead_lost_host(hosts) < 0)
            shc_gate_pause(SHC_DEAD_LOOK_NS);
        lost = shc_dead_lost_host(hosts);
    }
    if (lost >= 0 && has_records && says_gone(hosts, lost))
        lost = -1;
    const enum shc_status st = shc_dead_store_text(hosts, lost, text, sizeof text);
    shc_hosts_plan_text(&hosts->plan, teller, ranks, sizeof ranks);
    shc_hosts_call_text(call, what, sizeof what);
    return shc_hosts_fail(hosts, st, "host %d (%s): %s; in %s on \"%s\"", teller, ranks, text, what,
                          shc_hosts_group_name(hosts));
}

/* A rank that does not lead: its leader says it for the island, if it knows. */
static enum shc_status fail_with_leader(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    for (int look = 0; look < LEADER_LOOKS; look++) {
        SHC_TRY(shc_comm_error(hosts->island));
        shc_gate_pause(SHC_DEAD_LOOK_NS);
    }
    return fail_without_store(call, false, 0);
}

enum shc_status shc_hosts_tell_gone(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    char text[SHC_HOSTS_ERROR_BYTES];
    int looks = LOST_LOOKS;
    if (!shc_hosts_leads(hosts))
        return fail_with_leader(call);
    const enum shc_status st = shc_dead_store_text(hosts, -1, text, sizeof text);
    (void)!shc_hosts_fail(hosts, st, "%s", text); /* where fill() takes it from */
    fill(call, st);
    const bool has_records = !call->proves && gather_soon(hosts, shc_hosts_record_bytes(hosts),
                                                          hosts->stage.records, &looks);
    const enum shc_status found = has_records ? compare(hosts) : st;
    return found == st ? fail_without_store(call, has_records, looks) : found;
}

/* ---- records ---- */

enum shc_status shc_hosts_agree_leaders(const struct shc_hosts_call *call, enum shc_status st)
{
    struct shc_hosts *hosts = call->hosts;
    const size_t bytes = shc_hosts_record_bytes(hosts);
    struct shc_ticket *ticket;
    fill(call, st);
    SHC_TRY(shc_hosts_tell_leaders(hosts, bytes, hosts->stage.records, &ticket));
    SHC_TRY(shc_hosts_await(hosts, &ticket));
    if (st == SHC_OK)
        st = compare(hosts);
    if (st == SHC_ERR_STORE && !call->proves) /* another host has said it */
        st = fail_without_store(call, true, LOST_LOOKS);
    return st;
}

/* The leader, whose island has failed: the other hosts are waiting for its record. */
static void tell_hosts(const struct shc_hosts_call *call, enum shc_status st)
{
    char *error = call->hosts->turn->error, why[SHC_HOSTS_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", error);
    (void)!shc_hosts_agree_leaders(call, st);
    snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s", why);
}

static void add_sizes(struct shc_hosts_sizes *to, const struct shc_hosts_sizes *one)
{
    to->given += one->given;
    to->wanted += one->wanted;
    to->least = shc_min_size(to->least, one->least);
    to->most = one->most > to->most ? one->most : to->most;
}

enum shc_status shc_hosts_announce(const struct shc_hosts_call *call)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    struct shc_hosts_said own = shc_hosts_said_of(call), other;
    const int ranks = shc_hosts_plan_size(plan, hosts->host);
    const int64_t one = sizeof own, all = (int64_t)sizeof own * ranks;
    const struct shc_tensor in = shc_hosts_flat(&own, &one);
    const struct shc_tensor out = shc_hosts_flat(hosts->stage.said, &all);
    struct shc_op op = {.kind = SHC_ALL_GATHER, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){&in, 1};
    op.output = (struct shc_tensors){&out, 1};
    SHC_TRY(shc_hosts_island_first(hosts, &op));
    hosts->sizes = (struct shc_hosts_sizes){.least = UINT64_MAX};
    for (int local = 0; local < ranks; local++) {
        memcpy(&other, hosts->stage.said + (size_t)local * sizeof other, sizeof other);
        add_sizes(&hosts->sizes, &other.sizes);
        if (memcmp(&own, &other, COMPARED_BYTES) == 0)
            continue;
        char ours[SHC_HOSTS_CALL_TEXT], theirs[SHC_HOSTS_CALL_TEXT];
        shc_hosts_said_text(&own, ours, sizeof ours);
        shc_hosts_said_text(&other, theirs, sizeof theirs);
        const enum shc_status st = shc_hosts_fail(
            hosts, SHC_ERR_MISMATCH, "calls of \"%s\" differ: %s on rank %d, %s on rank %d",
            shc_hosts_group_name(hosts), ours, (int)plan->name_of[hosts->rank], theirs,
            (int)plan->name_of[plan->rank_at[plan->first[hosts->host] + local]]);
        if (shc_hosts_leads(hosts))
            tell_hosts(call, st);
        return st;
    }
    return SHC_OK;
}

#define VERDICT_BYTES 64
/* After the status. */
#define MESSAGES_AT 4
#define RATE_AT     8

/* The leader's verdict reaches its island. */
static enum shc_status tell(struct shc_hosts *hosts, enum shc_status st, size_t bytes)
{
    char *verdict = hosts->stage.verdict, *text = hosts->stage.text;
    uint32_t status = (uint32_t)st, messages = hosts->messages;
    memcpy(verdict, &status, sizeof status);
    memcpy(verdict + MESSAGES_AT, &messages, sizeof messages);
    memcpy(verdict + RATE_AT, &hosts->rate, sizeof hosts->rate);
    SHC_TRY(shc_hosts_give(hosts, 0, verdict, VERDICT_BYTES + bytes));
    memcpy(&status, verdict, sizeof status);
    memcpy(&messages, verdict + MESSAGES_AT, sizeof messages);
    hosts->messages = messages == 1;
    memcpy(&hosts->rate, verdict + RATE_AT, sizeof hosts->rate);
    if (status == SHC_OK)
        return SHC_OK;
    if (shc_hosts_leads(hosts))
        snprintf(text, SHC_HOSTS_ERROR_BYTES, "%s",
                 hosts->turn->error[0] ? hosts->turn->error : shc_error_text());
    SHC_TRY(shc_hosts_give(hosts, 0, text, SHC_HOSTS_ERROR_BYTES));
    return shc_hosts_fail(hosts, (enum shc_status)status, "%s", text);
}

enum shc_status shc_hosts_meet(const struct shc_hosts_call *call, size_t bytes,
                               const struct shc_hosts_data *data, char **made)
{
    struct shc_hosts *hosts = call->hosts;
    struct shc_hosts_messages messages;
    *made = hosts->stage.verdict + VERDICT_BYTES;
    if (!shc_hosts_leads(hosts))
        return tell(hosts, SHC_OK, bytes);
    enum shc_status st = shc_hosts_messages_begin(call, data, &messages);
    st = shc_hosts_agree_leaders(call, st);
    if (st == SHC_OK && data && data->compare)
        st = data->compare(call, data->ctx);
    if (st == SHC_OK)
        st = shc_hosts_messages_await(hosts, messages.receives);
    if (st == SHC_OK && data && data->make)
        st = data->make(call, data->ctx, *made);
    st = tell(hosts, st, bytes);
    if (st == SHC_OK)
        st = shc_hosts_messages_await(hosts, messages.sends);
    shc_hosts_messages_abandon(&messages);
    return st;
}

/* What became of the ranks of the island: the first failure, with its text, on all of them. */
static enum shc_status agree_in_island(struct shc_hosts *hosts, enum shc_status st)
{
    const int ranks = shc_hosts_plan_size(&hosts->plan, hosts->host);
    const int64_t one = sizeof(uint32_t), all = one * ranks;
    char *text = hosts->stage.text;
    uint32_t own = (uint32_t)st, other;
    const struct shc_tensor in = shc_hosts_flat(&own, &one);
    const struct shc_tensor out = shc_hosts_flat(hosts->stage.said, &all);
    struct shc_op op = {.kind = SHC_ALL_GATHER, .dtype = SHC_UINT8};
    op.input = (struct shc_tensors){&in, 1};
    op.output = (struct shc_tensors){&out, 1};
    snprintf(text, SHC_HOSTS_ERROR_BYTES, "%s", hosts->turn->error);
    SHC_TRY(shc_hosts_island(hosts, &op));
    for (int local = 0; local < ranks; local++) {
        memcpy(&other, hosts->stage.said + (size_t)local * sizeof other, sizeof other);
        if (other == SHC_OK)
            continue;
        SHC_TRY(shc_hosts_give(hosts, local, text, SHC_HOSTS_ERROR_BYTES));
        return shc_hosts_fail(
            hosts, (enum shc_status)other, "rank %d: %s",
            (int)hosts->plan.name_of[hosts->plan.rank_at[hosts->plan.first[hosts->host] + local]],
            text);
    }
    return SHC_OK;
}

enum shc_status shc_hosts_agree(const struct shc_hosts_call *call, enum shc_status st)
{
    st = agree_in_island(call->hosts, st);
    if (shc_hosts_leads(call->hosts))
        st = shc_hosts_agree_leaders(call, st);
    return tell(call->hosts, st, 0);
}
