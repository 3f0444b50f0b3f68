/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which ranks share memory? Names of hosts, boot ids and local world sizes lie, so islands are proved. Each round:
 *
 *   1. Every rank says a word; ranks with equal words are candidates for one island. Rank 0 makes the map of it.
 *   2. The ranks of a candidate make an ordinary group. Its local 0 says what became of it.
 *   3. Rank 0 decides: done; or another round, in which the ranks of candidates that failed say their next word,
 *      and all others keep their islands; or failed, with a reason.
 *
 * A rank without another word is alone, which never fails. Any rank may decide that the round has failed.
 *
 *   hosts/<list>/n/<rank>              counter: the rank's generations
 *   hosts/<list>/<g>/<round>/r/<rank>  its word
 *   hosts/<list>/<g>/<round>/m         the map: the host of each rank, 16 bits
 *   hosts/<list>/<g>/<round>/i/<host>  what became of a candidate
 *   hosts/<list>/<g>/<round>/d         the decision; the first put wins. Its text is why, or the group's id
 */
#include "hosts/group.h"
#include "hosts/hosts_sys.h"

#include "shm/base/lateness.h"
#include "shm/base/once.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES  96
#define WORD_BYTES 320
#define FIRST_NS   (100 * SHC_NS_PER_US)
#define LOOK_NS    (20 * SHC_NS_PER_MS)
#define LONGEST_NS (5 * SHC_NS_PER_MS)
#define GRACE_NS   (200 * SHC_NS_PER_MS) /* for rank 0, which knows who is missing */
#define LAST_WORD  "alone"

struct outcome {
    uint32_t status; /* SHC_ERR_UNREACHABLE: another round */
    char text[SHC_HOSTS_ERROR_BYTES - 4];
};

struct finder {
    struct shc_hosts *hosts;
    const struct shc_comm_config *config;
    const struct shc_hosts_wish *wish;
    uint64_t list;
    int round;
    uint64_t deadline_ns;
    uint64_t looked_ns; /* around */
    uint16_t *map;
    char kept[32]; /* the word of a rank that has its island; else "" */
    char *error;
};

static enum shc_status fail(struct finder *f, enum shc_status st, const char *format, ...)
    SHC_PRINTF(3, 4);

static enum shc_status fail(struct finder *f, enum shc_status st, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->error, SHC_HOSTS_ERROR_BYTES, format, args);
    va_end(args);
    return st;
}

/* The rank's number in the job, for texts: the plan is made later. */
static int name_of(const struct finder *f, int rank)
{
    return f->config->global_ranks ? (int)f->config->global_ranks[rank] : rank;
}

/* ---- the store ---- */

static void key_of(const struct finder *f, const char *what, int number, char key[KEY_BYTES])
{
    const int used = snprintf(key, KEY_BYTES, "%s/%d/%s", f->hosts->prefix, f->round, what);
    if (number >= 0)
        snprintf(key + used, KEY_BYTES - (size_t)used, "/%d", number);
}

static enum shc_status store_failed(struct finder *f, const char *call, int error)
{
    char why[64];
    return fail(f, SHC_ERR_STORE, "rank %d: the %s of the store failed: %s",
                name_of(f, f->config->rank), call, strerror_r(error, why, sizeof why));
}

static enum shc_status put(struct finder *f, const char *what, int number, const void *value,
                           size_t bytes)
{
    char key[KEY_BYTES];
    key_of(f, what, number, key);
    const int error = f->config->store.set(f->config->store.ctx, key, value, bytes);
    return error == 0 ? SHC_OK : store_failed(f, "set", error);
}

static enum shc_status get(struct finder *f, const char *what, int number, void *value,
                           size_t capacity, size_t *bytes)
{
    char key[KEY_BYTES];
    key_of(f, what, number, key);
    const int error = f->config->store.get(f->config->store.ctx, key, value, capacity, bytes);
    if (error == ENOENT)
        *bytes = 0;
    return error == 0 || error == ENOENT ? SHC_OK : store_failed(f, "get", error);
}

/* Has the round been decided? *outcome: how. */
static enum shc_status look_for_decision(struct finder *f, struct outcome *outcome, bool *there)
{
    size_t bytes;
    SHC_TRY(get(f, "d", -1, outcome, sizeof *outcome, &bytes));
    *there = bytes > 0;
    if (!*there)
        return SHC_OK;
    if (bytes != sizeof *outcome || outcome->status >= SHC_STATUS_COUNT)
        return fail(f, SHC_ERR_STORE, "rank %d: the store's decision about the hosts is not valid",
                    name_of(f, f->config->rank));
    outcome->text[sizeof outcome->text - 1] = '\0';
    if (outcome->status == SHC_OK || outcome->status == SHC_ERR_UNREACHABLE)
        return SHC_OK;
    return fail(f, (enum shc_status)outcome->status, "%s", outcome->text);
}

/* One pause of a poll; they grow. Now and then it looks around, and fails if there is no reason to wait any longer. */
static enum shc_status pause_a_while(struct finder *f, uint64_t *pause_ns, const char *whom)
{
    struct outcome outcome;
    bool there;
    shc_gate_pause(*pause_ns);
    *pause_ns = *pause_ns * 2 > LONGEST_NS ? LONGEST_NS : *pause_ns * 2;
    const uint64_t now_ns = shc_clock_ns();
    if (now_ns - f->looked_ns < LOOK_NS)
        return SHC_OK;
    f->looked_ns = now_ns;
    SHC_TRY(look_for_decision(f, &outcome, &there));
    if (f->config->interrupted && f->config->interrupted(f->config->interrupted_ctx))
        return fail(f, SHC_ERR_INTERRUPTED, "rank %d: interrupted while the hosts of \"%s\" meet",
                    name_of(f, f->config->rank), f->hosts->name);
    if (now_ns < f->deadline_ns)
        return SHC_OK;
    return fail(f, SHC_ERR_TIMEOUT,
                "rank %d: " SHC_TIMED_OUT "%.3f s while the hosts of \"%s\" meet, waiting for %s",
                name_of(f, f->config->rank), (double)f->config->timeout_ns / (double)SHC_NS_PER_S,
                f->hosts->name, whom);
}

/* Waits for a value of at most `capacity` bytes. */
static enum shc_status await(struct finder *f, const char *what, int number, void *value,
                             size_t capacity, size_t *bytes)
{
    uint64_t pause_ns = FIRST_NS;
    char whom[32];
    const int rank = what[0] == 'r'   ? number
                     : what[0] == 'i' ? (int)f->hosts->plan.rank_at[f->hosts->plan.first[number]]
                                      : 0;
    snprintf(whom, sizeof whom, "rank %d", name_of(f, rank));
    SHC_TRY(get(f, what, number, value, capacity, bytes));
    while (*bytes == 0) {
        SHC_TRY(pause_a_while(f, &pause_ns, whom));
        SHC_TRY(get(f, what, number, value, capacity, bytes));
    }
    return SHC_OK;
}

/* Decides the round, unless that was done. *stands: the decision. */
static enum shc_status decide(struct finder *f, enum shc_status st, const char *text,
                              struct outcome *stands)
{
    char key[KEY_BYTES];
    size_t bytes = 0;
    struct outcome wish = {.status = (uint32_t)st};
    snprintf(wish.text, sizeof wish.text, "%s", text);
    key_of(f, "d", -1, key);
    const struct shc_store *store = &f->config->store;
    const int error =
        store->put_first(store->ctx, key, &wish, sizeof wish, stands, sizeof *stands, &bytes);
    return error == 0 ? SHC_OK : store_failed(f, "put_first", error);
}

/* ---- a round ---- */

static enum shc_status say_word(struct finder *f)
{
    char word[WORD_BYTES];
    const int used = snprintf(word, sizeof word, "%d %d %d %s ", f->wish->rails, f->wish->by_rank,
                              f->wish->wide, f->hosts->engine[0] ? f->hosts->engine : "-");
    char *rest = word + used;
    const size_t capacity = sizeof word - (size_t)used;
    if (f->kept[0])
        snprintf(rest, capacity, "%s", f->kept);
    else if (f->round < f->wish->word_count)
        snprintf(rest, capacity, "word %s", f->wish->words[f->round]);
    else
        snprintf(rest, capacity, LAST_WORD " %d", f->config->rank);
    return put(f, "r", f->config->rank, word, strlen(word) + 1);
}

/* Rank 0: what a rank's word says of what it wants. */
static enum shc_status compare_wishes(struct finder *f, int rank, const char *word)
{
    static const char *const orders[2] = {"hosts", "ranks"};
    const char *group = f->hosts->name, *own = f->hosts->engine[0] ? f->hosts->engine : "-";
    char engine[SHC_HOSTS_ENGINE_BYTES] = "";
    int rails = -1, by_rank = -1, wide = -1;
    const int first = name_of(f, 0);
    if (sscanf(word, "%d %d %d %31s", &rails, &by_rank, &wide, engine) != 4 ||
        ((by_rank | wide) & ~1))
        return fail(f, SHC_ERR_STORE, "what the store says of rank %d is not valid",
                    name_of(f, rank));
    if (rails != f->wish->rails)
        return fail(f, SHC_ERR_MISMATCH,
                    "rank %d of \"%s\" wants %d rails, rank %d wants %d (0: as many as there can "
                    "be); all ranks must want the same",
                    name_of(f, rank), group, rails, first, f->wish->rails);
    if (strcmp(engine, own) != 0)
        return fail(f, SHC_ERR_MISMATCH,
                    "rank %d of \"%s\" wants the engine %s, rank %d wants %s; all ranks must want "
                    "the same",
                    name_of(f, rank), group, engine, first, own);
    if (by_rank != f->wish->by_rank)
        return fail(
            f, SHC_ERR_MISMATCH,
            "rank %d of \"%s\" wants sums in the order of %s, rank %d wants that of %s; all "
            "ranks must want the same",
            name_of(f, rank), group, orders[by_rank], first, orders[f->wish->by_rank]);
    if (wide != f->wish->wide)
        return fail(f, SHC_ERR_MISMATCH,
                    "rank %d of \"%s\" wants %s sums of bfloat16 between hosts, rank %d wants %s "
                    "ones; all ranks must want the same",
                    name_of(f, rank), group, wide ? "wide" : "narrow", first,
                    wide ? "narrow" : "wide");
    return SHC_OK;
}

/* Rank 0: keeps the word of a host's first rank, which tells why there are several hosts. A rank that keeps its island
 * has said its word in an earlier round. */
static void note_word(struct finder *f, int rank, const char *said)
{
    int at = 0;
    (void)sscanf(said, "%*d %*d %*d %*s %n", &at);
    const char *rest = said + at;
    if (!f->hosts->words || strncmp(rest, "kept ", 5) == 0)
        return;
    char **word = &f->hosts->words[rank];
    free(*word);
    *word = strncmp(rest, "word ", 5) == 0 ? strdup(rest + 5) : NULL;
    if (*word)
        shc_copy_text_once(*word, rest + 5, strlen(rest + 5) + 1);
}

/* Rank 0: hosts are numbered as their words come. */
static enum shc_status make_map(struct finder *f)
{
    const int world = f->config->world_size;
    char(*words)[WORD_BYTES] = malloc((size_t)world * sizeof *words);
    int hosts = 0;
    enum shc_status st =
        words ? SHC_OK : fail(f, SHC_ERR_NOMEM, "no memory for the map of %d ranks", world);
    for (int rank = 0; rank < world && st == SHC_OK; rank++) {
        size_t bytes;
        int host = 0;
        st = await(f, "r", rank, words[hosts], WORD_BYTES, &bytes);
        if (st != SHC_OK)
            break;
        words[hosts][bytes < WORD_BYTES ? bytes : WORD_BYTES - 1] = '\0';
        st = compare_wishes(f, rank, words[hosts]);
        while (strcmp(words[host], words[hosts]) != 0)
            host++;
        if (host == hosts)
            note_word(f, rank, words[hosts++]);
        f->map[rank] = (uint16_t)host;
    }
    free(words);
    return st == SHC_OK ? put(f, "m", -1, f->map, (size_t)world * sizeof *f->map) : st;
}

static enum shc_status take_map(struct finder *f)
{
    const int world = f->config->world_size;
    const char *why;
    size_t bytes;
    SHC_TRY(f->config->rank == 0 ? make_map(f) : SHC_OK);
    SHC_TRY(await(f, "m", -1, f->map, (size_t)world * sizeof *f->map, &bytes));
    if (bytes != (size_t)world * sizeof *f->map)
        return fail(f, SHC_ERR_STORE, "rank %d: the store's map of the hosts is not valid",
                    name_of(f, f->config->rank));
    int32_t *host_of = malloc((size_t)world * sizeof *host_of);
    if (!host_of)
        return fail(f, SHC_ERR_NOMEM, "no memory for the map of %d ranks", world);
    for (int rank = 0; rank < world; rank++)
        host_of[rank] = f->map[rank];
    shc_hosts_plan_fini(&f->hosts->plan);
    const enum shc_status st = shc_hosts_plan_init(&f->hosts->plan, world, host_of,
                                                   f->config->global_ranks, f->wish->rails, &why);
    free(host_of);
    if (st == SHC_OK && f->wish->by_rank && f->hosts->plan.runs > SHC_HOSTS_MAX_RUNS)
        return fail(f, SHC_ERR_INVALID,
                    "sums of \"%s\" in the order of ranks: its ranks lie in %d runs, each on one "
                    "host; at most %d are possible",
                    f->hosts->name, f->hosts->plan.runs, SHC_HOSTS_MAX_RUNS);
    return st == SHC_OK ? SHC_OK : fail(f, st, "a group of %d ranks over hosts: %s", world, why);
}

/* A group of the ranks of this rank's host, as the plan has it. */
static enum shc_status make_island(struct shc_hosts *hosts, const struct shc_comm_config *config)
{
    const struct shc_hosts_plan *plan = &hosts->plan;
    const int32_t *ranks = plan->rank_at + plan->first[hosts->host];
    int32_t members[SHC_MAX_WORLD];
    struct shc_comm_config island = *config;
    char name[sizeof hosts->name + 32];
    snprintf(name, sizeof name, "%s on host %d", hosts->name, hosts->host);
    island.name = name;
    island.outsider_prefix = NULL; /* ranks have other numbers there */
    island.description = NULL;     /* it is the group's, not this part's */
    island.rank = hosts->local;
    island.world_size = shc_hosts_plan_size(plan, hosts->host);
    for (int i = 0; i < island.world_size; i++)
        members[i] = config->global_ranks ? config->global_ranks[ranks[i]] : ranks[i];
    island.global_ranks = members; /* other members, other keys: no prefix is needed */
    island.interrupted = shc_hosts_is_interrupted;
    island.interrupted_ctx = hosts;
    hosts->making = true;
    const enum shc_status st = shc_comm_create(&island, &hosts->island);
    hosts->making = false;
    return st;
}

/* The candidate proves itself, or does not. */
static enum shc_status prove(struct finder *f)
{
    struct shc_hosts *hosts = f->hosts;
    struct outcome outcome = {.status = SHC_OK};
    hosts->host = hosts->plan.host_of[f->config->rank];
    hosts->local = hosts->plan.local_of[f->config->rank];
    if (f->kept[0])
        return SHC_OK;
    const enum shc_status st = make_island(hosts, f->config);
    if (st == SHC_OK) {
        snprintf(f->kept, sizeof f->kept, "kept %d %d", f->round, hosts->host);
    } else {
        outcome.status = (uint32_t)st;
        snprintf(outcome.text, sizeof outcome.text, "%s", shc_error_text());
    }
    return hosts->local == 0 ? put(f, "i", hosts->host, &outcome, sizeof outcome) : SHC_OK;
}

/* Rank 0: what became of the candidates. Those that were kept say it in their first round. */
static enum shc_status gather_outcomes(struct finder *f, bool *kept, struct outcome *verdict)
{
    const struct shc_hosts_plan *plan = &f->hosts->plan;
    *verdict = (struct outcome){.status = SHC_OK};
    for (int host = 0; host < plan->hosts; host++) {
        struct outcome outcome;
        size_t bytes;
        const int first = plan->rank_at[plan->first[host]];
        if (kept[first])
            continue;
        SHC_TRY(await(f, "i", host, &outcome, sizeof outcome, &bytes));
        outcome.text[sizeof outcome.text - 1] = '\0';
        if (bytes != sizeof outcome || outcome.status >= SHC_STATUS_COUNT)
            return fail(f, SHC_ERR_STORE, "what the store says of host %d is not valid", host);
        if (outcome.status == SHC_OK)
            for (int i = plan->first[host]; i < plan->first[host + 1]; i++)
                kept[plan->rank_at[i]] = true;
        else if (verdict->status == SHC_OK || verdict->status == SHC_ERR_UNREACHABLE)
            *verdict = outcome;
    }
    return SHC_OK;
}

/* One round. *done: the map is proved. */
static enum shc_status run_round(struct finder *f, bool *kept, bool *done)
{
    struct outcome outcome;
    bool there = false;
    uint64_t pause_ns = FIRST_NS;
    SHC_TRY(say_word(f));
    SHC_TRY(take_map(f));
    SHC_TRY(prove(f));
    if (f->config->rank == 0) {
        SHC_TRY(gather_outcomes(f, kept, &outcome));
        char text[sizeof outcome.text];
        memcpy(text, outcome.text, sizeof text);
        if (outcome.status == SHC_OK)
            snprintf(text, sizeof text, "%016" PRIx64, shc_hosts_random());
        SHC_TRY(decide(f, (enum shc_status)outcome.status, text, &outcome));
    }
    SHC_TRY(look_for_decision(f, &outcome, &there));
    while (!there) {
        SHC_TRY(pause_a_while(f, &pause_ns, "rank 0"));
        SHC_TRY(look_for_decision(f, &outcome, &there));
    }
    *done = outcome.status == SHC_OK;
    if (*done)
        f->hosts->id = strtoull(outcome.text, NULL, 16) | 1;
    return SHC_OK;
}

/* Only ranks with the same list, in the same order, meet. */
static uint64_t list_of(const struct shc_comm_config *config)
{
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)config->world_size;
    for (int i = 0; i < config->world_size; i++)
        hash = (hash ^ (uint32_t)(config->global_ranks ? config->global_ranks[i] : i)) *
               0x100000001b3u;
    return hash;
}

static enum shc_status take_generation(struct finder *f)
{
    char key[KEY_BYTES];
    const struct shc_store *store = &f->config->store;
    snprintf(key, sizeof key, "hosts/%016" PRIx64 "/n/%d", f->list, f->config->rank);
    int64_t generation;
    const int error = store->add(store->ctx, key, 1, &generation);
    if (error != 0)
        return store_failed(f, "add", error);
    snprintf(f->hosts->prefix, sizeof f->hosts->prefix, "hosts/%016" PRIx64 "/%lld", f->list,
             (long long)generation);
    return SHC_OK;
}

static enum shc_status find(struct finder *f, bool *kept)
{
    struct outcome stands;
    bool done = false;
    enum shc_status st = take_generation(f);
    if (st != SHC_OK)
        return st;
    if (f->wish->refuses)
        st = fail(f, SHC_ERR_MISMATCH,
                  "rank %d of \"%s\" refuses a group over several hosts (hosts=\"one\"), and not "
                  "all ranks share memory; all ranks must have the same setting",
                  name_of(f, f->config->rank), f->hosts->name);
    while (st == SHC_OK && !done) {
        st = run_round(f, kept, &done);
        f->round += st == SHC_OK; /* a failure is told in the round in which the others are */
    }
    if (st == SHC_OK)
        return SHC_OK;
    char text[SHC_HOSTS_ERROR_BYTES]; /* the others are told; if the store is gone, nobody can be */
    snprintf(text, sizeof text, "%s", f->error);
    (void)!decide(f, st, text, &stands);
    return fail(f, st, "%s", text);
}

const char *shc_hosts_word(const struct shc_hosts *hosts, int host)
{
    const char *word =
        hosts->words ? hosts->words[hosts->plan.rank_at[hosts->plan.first[host]]] : NULL;
    return word ? word : "";
}

void shc_hosts_map_fini(struct shc_hosts *hosts, int world)
{
    for (int rank = 0; rank < world && hosts->words; rank++)
        free(hosts->words[rank]);
    free(hosts->words);
    hosts->words = NULL;
}

enum shc_status shc_hosts_map(struct shc_hosts *hosts, const struct shc_comm_config *config,
                              const struct shc_hosts_wish *wish, char *error)
{
    const size_t world = (size_t)config->world_size;
    struct finder f = {.hosts = hosts, .config = config, .wish = wish, .error = error};
    f.list = list_of(config);
    f.deadline_ns = shc_deadline_after(shc_clock_ns(), config->timeout_ns);
    if (config->rank != 0)
        f.deadline_ns = shc_deadline_after(GRACE_NS, f.deadline_ns);
    f.map = calloc(world, sizeof *f.map);
    bool *kept = calloc(world, sizeof *kept);
    hosts->words = config->rank == 0 ? calloc(world, sizeof *hosts->words) : NULL;
    const enum shc_status st = f.map && kept
                                   ? find(&f, kept)
                                   : fail(&f, SHC_ERR_NOMEM, "no memory for a group over hosts");
    free(f.map);
    free(kept);
    return st;
}
