/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All-to-all. Tensors for ranks of the same host go by an all_to_all of the island.
 *
 *   short  all that leaves the island -> the leader, who sorts it by hosts -> along with the record -> what is for each
 *          island -> broadcast there
 *   long   in columns, elements [first, first + width) of each tensor; what is for local rank j of any host goes over
 *          rail j mod K of K
 *          begin   every rank hands each rail what it carries; the rail sorts it by hosts, and exchanges it
 *          finish  the rail hands each rank what is for it, unless it is for the rail's own rank alone
 *
 * A host does not know how long the tensors of others are, except those that two hosts give one another. So their sum
 * says how they go: in the record, as a message along with it, or over the rails if they are longer. The call is a short
 * one if none of any two hosts are. If not, those messages say nothing, because the leader does not have the data.
 *
 * Only sender and receiver know how long a tensor is. So each rank adds a hash of sender, receiver and size for the
 * tensors that it gives, and for those that it wants. The sums of all ranks travel in the record. They are equal if all
 * sizes agree, and otherwise differ, except for one chance in 2^64. Then hosts tell one another what they give, to name
 * the ranks. Where the tensors of an island are not all equal, its ranks tell one another their sizes.
 */
#include "hosts/hosts_trade.h"

#include "shm/base/num.h"

#include <stdlib.h>
#include <string.h>

/* What the leader says with its verdict; of a short call the data of its island follows, rank by rank. */
struct decision {
    uint64_t width, columns;
    uint64_t carried;
};

/* Bytes from a local rank to what `rail` carries of a host. */
static uint64_t given_to(const struct shc_hosts_trade *t, int local, int host, int rail,
                         uint64_t first)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, host);
    uint64_t bytes = 0;
    for (int to = rail; to < ranks && host != hosts->host; to += hosts->plan.rails)
        bytes += shc_hosts_given(t, local, shc_hosts_rank_at(hosts, host, to), first);
    return bytes;
}

/* Bytes to a local rank from a host. */
static uint64_t wanted_from(const struct shc_hosts_trade *t, int local, int host, uint64_t first)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const int ranks = shc_hosts_plan_size(&hosts->plan, host);
    uint64_t bytes = 0;
    for (int from = 0; from < ranks && host != hosts->host; from++)
        bytes += shc_hosts_wanted(t, local, shc_hosts_rank_at(hosts, host, from), first);
    return bytes;
}

/* ---- sizes ---- */

/* The island's ranks tell one another their sizes, if these differ. */
static enum shc_status share_sizes(struct shc_hosts_trade *t)
{
    const struct shc_op *op = t->call->op;
    struct shc_hosts *hosts = t->blocks.hosts;
    const size_t world = (size_t)hosts->plan.world, ranks = (size_t)shc_hosts_trade_ranks(t);
    uint64_t bytes[SHC_MAX_WORLD];
    t->each = hosts->sizes.most;
    if (hosts->sizes.least == hosts->sizes.most)
        return SHC_OK;
    t->table = malloc(ranks * 2 * world * sizeof *t->table);
    if (!t->table)
        return shc_hosts_fail(hosts, SHC_ERR_NOMEM, "all_to_all: no memory for the sizes");
    uint64_t *own = t->table + (size_t)hosts->local * 2 * world;
    for (size_t other = 0; other < world; other++) {
        own[other] = shc_vector_elements(&op->input.list[other]);
        own[world + other] = shc_vector_elements(&op->output.list[other]);
    }
    for (size_t local = 0; local < ranks; local++)
        bytes[local] = 2 * world * sizeof *t->table;
    return shc_hosts_share(hosts, (const char *)own, bytes, (char *)t->table);
}

/* The longest tensor that crosses to another host, or comes from it. */
static uint64_t longest_of(struct shc_hosts_trade *t)
{
    const struct shc_hosts_plan *plan = &t->blocks.hosts->plan;
    uint64_t most = 0;
    t->blocks.width = SHC_HOSTS_WHOLE;
    for (int other = 0; other < plan->world; other++)
        for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
            if (plan->host_of[other] == t->blocks.hosts->host)
                continue;
            const uint64_t in = shc_hosts_given(t, local, other, 0),
                           out = shc_hosts_wanted(t, local, other, 0);
            most = in > most ? in : most;
            most = out > most ? out : most;
        }
    return most / t->call->elem_bytes;
}

/* The most that a rail of this host gives or gets in the first column; no other one has more. */
static uint64_t load_of(struct shc_hosts_trade *t, uint64_t width)
{
    const struct shc_hosts_plan *plan = &t->blocks.hosts->plan;
    uint64_t most = 0;
    t->blocks.width = width;
    for (int rail = 0; rail < plan->rails; rail++) {
        uint64_t in = 0, out = 0;
        for (int host = 0; host < plan->hosts; host++)
            for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
                in += given_to(t, local, host, rail, 0);
                out += local % plan->rails == rail ? wanted_from(t, local, host, 0) : 0;
            }
        most = in > most ? in : most;
        most = out > most ? out : most;
    }
    return most;
}

/* The leader: the widest column that fits this host's staging memory, and the longest tensor, for the record. */
static void find_width(struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    const uint64_t longest = longest_of(t);
    const uint64_t room = shc_hosts_chunk_elements(&hosts->plan, 1) / (uint64_t)hosts->plan.rails;
    const uint64_t load = load_of(t, 1);
    uint64_t good = load > 0 ? room / load : longest, bad = longest + 1;
    while (t->table && good > 0 && good < bad && bad - good > 1) {
        const uint64_t width = good + (bad - good) / 2;
        if (load_of(t, width) <= room)
            good = width;
        else
            bad = width;
    }
    hosts->sizes.longest = longest;
    hosts->sizes.width = longest > 0 ? good : UINT64_MAX;
}

/* ---- short ---- */

/* A record's payload begins with the place of the data of each host. */
static size_t head_bytes(const struct shc_hosts_trade *t)
{
    return (size_t)t->blocks.hosts->plan.hosts * sizeof(uint32_t);
}

/* Have so many bytes of a host for another one a place in its record, whatever it has for the rest? */
static bool are_in_record(const struct shc_hosts_trade *t, uint64_t bytes)
{
    const uint64_t payload = t->blocks.hosts->payload_bytes, head = head_bytes(t),
                   others = (uint64_t)t->blocks.hosts->plan.hosts - 1;
    return bytes == 0 || (head < payload && bytes <= (payload - head) / others);
}

static bool are_a_message(const struct shc_hosts_trade *t, uint64_t bytes)
{
    return !are_in_record(t, bytes) && bytes <= shc_hosts_message_bytes(t->blocks.hosts);
}

/* Bytes from a local rank to a host. */
static uint64_t given_to_host(const struct shc_hosts_trade *t, int local, int host)
{
    uint64_t bytes = 0;
    for (int rail = 0; rail < t->blocks.hosts->plan.rails; rail++)
        bytes += given_to(t, local, host, rail, 0);
    return bytes;
}

/* Bytes between this host and another one, if all tensors are equally long. */
static uint64_t even_bytes(const struct shc_hosts_trade *t, int host)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const uint64_t own = (uint64_t)shc_hosts_trade_ranks(t),
                   others = (uint64_t)shc_hosts_plan_size(&hosts->plan, host);
    return host == hosts->host ? 0 : own * others * t->each * t->call->elem_bytes;
}

/* Bytes from this host to another one, and the reverse. */
static uint64_t all_given_to(const struct shc_hosts_trade *t, int host)
{
    uint64_t bytes = 0;
    if (!t->table)
        return even_bytes(t, host);
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++)
        bytes += given_to_host(t, local, host);
    return bytes;
}

static uint64_t all_wanted_from(const struct shc_hosts_trade *t, int host)
{
    uint64_t bytes = 0;
    if (!t->table)
        return even_bytes(t, host);
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++)
        bytes += wanted_from(t, local, host, 0);
    return bytes;
}

static uint64_t wanted_by(const struct shc_hosts_trade *t, int local)
{
    uint64_t bytes = 0;
    for (int host = 0; host < t->blocks.hosts->plan.hosts; host++)
        bytes += wanted_from(t, local, host, 0);
    return bytes;
}

/* Is what this host gives others short, and what it gets? The same on all of its ranks. */
static bool find_fits(struct shc_hosts_trade *t, uint64_t *comes)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    bool fits = head_bytes(t) <= hosts->payload_bytes;
    *comes = 0;
    t->blocks.width = SHC_HOSTS_WHOLE;
    for (int host = 0; host < hosts->plan.hosts && fits; host++) {
        const uint64_t goes = all_given_to(t, host), other = all_wanted_from(t, host);
        fits = (are_in_record(t, goes) || are_a_message(t, goes)) &&
               (are_in_record(t, other) || are_a_message(t, other));
        *comes += other;
    }
    return fits;
}

/* This rank's tensors for other hosts, host by host. */
static uint64_t read_leaving(const struct shc_hosts_trade *t, char *to)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const char *const begin = to;
    for (int i = 0; i < plan->world; i++) {
        const int rank = plan->rank_at[i];
        const uint64_t bytes = shc_hosts_given(t, hosts->local, rank, 0);
        if (plan->host_of[rank] == hosts->host || bytes == 0)
            continue;
        const struct shc_tensors one = {&t->call->op->input.list[rank], 1};
        shc_vector_read(&one, t->call->elem_bytes,
                        (struct shc_slice){0, bytes / t->call->elem_bytes}, to);
        to += bytes;
    }
    return (uint64_t)(to - begin);
}

/* The leader: what came by local ranks, by hosts. */
static void sort_leaving(struct shc_hosts_trade *t, const char *from)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    char *payload = shc_hosts_payload(shc_hosts_own_record(hosts));
    char *in_record = payload + head_bytes(t), *in_messages = hosts->stage.given;
    const char *at[SHC_MAX_WORLD];
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
        at[local] = from;
        for (int host = 0; host < hosts->plan.hosts; host++)
            from += given_to_host(t, local, host);
    }
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const bool is_message = !are_in_record(t, all_given_to(t, host));
        char **to = is_message ? &in_messages : &in_record;
        if (is_message)
            t->message_at[host] = (uint64_t)(in_messages - hosts->stage.given);
        const uint32_t place = (uint32_t)(in_record - payload);
        memcpy(payload + (size_t)host * sizeof place, &place, sizeof place);
        for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
            const uint64_t bytes = given_to_host(t, local, host);
            memcpy(*to, at[local], bytes);
            at[local] += bytes;
            *to += bytes;
        }
    }
}

static enum shc_status bring_to_leader(struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    uint64_t give[SHC_MAX_WORLD] = {0}, take[SHC_MAX_WORLD] = {0};
    give[0] = read_leaving(t, hosts->stage.narrow);
    for (int local = 0; local < shc_hosts_trade_ranks(t) && shc_hosts_leads(hosts); local++)
        for (int host = 0; host < hosts->plan.hosts; host++)
            take[local] += given_to_host(t, local, host);
    SHC_TRY(shc_hosts_swap(hosts, hosts->stage.narrow, give, hosts->stage.wide, take));
    if (shc_hosts_leads(hosts))
        sort_leaving(t, hosts->stage.wide);
    return SHC_OK;
}

/* Of a long call the leader has no data, and the message says nothing. */
static struct shc_slice message(const struct shc_hosts_call *call, const void *ctx, int from,
                                int to)
{
    const struct shc_hosts_trade *t = ctx;
    const bool goes = from == call->hosts->host;
    const uint64_t bytes = goes ? all_given_to(t, to) : all_wanted_from(t, from);
    return (struct shc_slice){t->message_at[to], are_a_message(t, bytes) ? bytes : 0};
}

/* Where the data of a host for this one are, `bytes` of them; NULL: its record says what no host says. */
static const char *find_data(const struct shc_hosts_trade *t, int host, uint64_t bytes)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    if (!are_in_record(t, bytes))
        return shc_hosts_data_taken(hosts, host, 0, UINT64_MAX);
    const char *payload = shc_hosts_payload(shc_hosts_record_of(hosts, host));
    uint32_t place;
    memcpy(&place, payload + (size_t)hosts->host * sizeof place, sizeof place);
    const bool fits = place <= hosts->payload_bytes && bytes <= hosts->payload_bytes - place;
    return fits ? payload + place : NULL;
}

/* The leader: what all hosts have for its island, rank by rank. pre: sizes agree. */
static enum shc_status take_data(const struct shc_hosts_trade *t, char *to)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    char *at[SHC_MAX_WORLD];
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
        at[local] = to;
        to += wanted_by(t, local);
    }
    for (int host = 0; host < hosts->plan.hosts; host++) {
        if (host == hosts->host)
            continue;
        const char *data = find_data(t, host, all_wanted_from(t, host));
        if (!data)
            return shc_hosts_fail(hosts, SHC_ERR_MISMATCH,
                                  "all_to_all: host %d sent a record that no host sends", host);
        for (int from = 0; from < shc_hosts_plan_size(&hosts->plan, host); from++)
            for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
                const uint64_t bytes =
                    shc_hosts_wanted(t, local, shc_hosts_rank_at(hosts, host, from), 0);
                memcpy(at[local], data, bytes);
                at[local] += bytes;
                data += bytes;
            }
    }
    return SHC_OK;
}

/* ---- both ---- */

/* Do all ranks give what others want? */
static enum shc_status compare(const struct shc_hosts_call *call, const void *ctx)
{
    uint64_t given = 0, wanted = 0;
    for (int host = 0; host < call->hosts->plan.hosts; host++) {
        const struct shc_hosts_record *record = shc_hosts_record_of(call->hosts, host);
        given += record->said.sizes.given;
        wanted += record->said.sizes.wanted;
    }
    return given == wanted ? SHC_OK : shc_hosts_sizes_differ(ctx);
}

/* *to: the decision, and the data. */
static enum shc_status decide(const struct shc_hosts_call *call, const void *ctx, char *to)
{
    const struct shc_hosts_trade *t = ctx;
    struct shc_hosts *hosts = call->hosts;
    struct shc_hosts_sizes all = {.width = UINT64_MAX, .carried = 1};
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const struct shc_hosts_sizes *one = &shc_hosts_record_of(hosts, host)->said.sizes;
        all.width = shc_min_size(all.width, one->width);
        all.longest = one->longest > all.longest ? one->longest : all.longest;
        all.carried &= one->carried;
    }
    if (all.width == 0)
        return shc_hosts_fail(hosts, SHC_ERR_UNSUPPORTED,
                              "all_to_all: a group of %d ranks on %d hosts cannot move elements of "
                              "%u bytes in its staging memory",
                              hosts->plan.world, hosts->plan.hosts, (unsigned)call->elem_bytes);
    const uint64_t width =
        shc_hosts_column_by_rate(&hosts->plan, all.width, all.longest, hosts->rate);
    const struct decision decision = {
        .width = width,
        .columns = all.longest > 0 ? shc_div_ceil(all.longest, width) : 0,
        .carried = all.carried & t->fits,
    };
    memcpy(to, &decision, sizeof decision);
    return decision.carried ? take_data(t, to + sizeof decision) : SHC_OK;
}

/* ---- moving ---- */

/* Tensors between ranks of this host. */
static enum shc_status trade_at_home(const struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    struct shc_tensor in[SHC_MAX_WORLD], out[SHC_MAX_WORLD];
    struct shc_op op = *t->call->op;
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
        const int rank = shc_hosts_rank_at(hosts, hosts->host, local);
        in[local] = op.input.list[rank];
        out[local] = op.output.list[rank];
    }
    op.input = (struct shc_tensors){in, (uint32_t)shc_hosts_trade_ranks(t)};
    op.output = (struct shc_tensors){out, (uint32_t)shc_hosts_trade_ranks(t)};
    return shc_hosts_island(hosts, &op);
}

/* This rank's column: what each rail carries, host by host. */
static void read_input(const struct shc_hosts_trade *t, uint64_t first, char *to, uint64_t *give)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    memset(give, 0, (size_t)shc_hosts_trade_ranks(t) * sizeof *give);
    for (int rail = 0; rail < plan->rails; rail++)
        for (int host = 0; host < plan->hosts; host++)
            for (int local = rail; local < shc_hosts_plan_size(plan, host); local += plan->rails) {
                const int rank = shc_hosts_rank_at(hosts, host, local);
                const uint64_t bytes = shc_hosts_given(t, hosts->local, rank, first);
                if (host == hosts->host || bytes == 0)
                    continue;
                const struct shc_tensors one = {&t->call->op->input.list[rank], 1};
                shc_vector_read(&one, t->call->elem_bytes,
                                (struct shc_slice){first, bytes / t->call->elem_bytes}, to);
                to += bytes;
                give[rail] += bytes;
            }
}

/* A rail: what came by local ranks is sorted by hosts, and goes. */
static enum shc_status send(const struct shc_hosts_trade *t, struct shc_hosts_chunk *chunk,
                            const char *from, int place)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const uint64_t first = chunk->part.first;
    uint64_t comes = 0;
    char *to = hosts->stage.chunk[place].in;
    const char *at[SHC_MAX_WORLD];
    for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
        at[local] = from;
        for (int host = 0; host < plan->hosts; host++)
            from += given_to(t, local, host, hosts->local, first);
    }
    for (int host = 0; host < plan->hosts; host++) {
        hosts->in_bytes[host] = hosts->out_bytes[host] = 0;
        for (int local = 0; local < shc_hosts_trade_ranks(t); local++) {
            const uint64_t bytes = given_to(t, local, host, hosts->local, first);
            memcpy(to, at[local], bytes);
            to += bytes;
            at[local] += bytes;
            hosts->in_bytes[host] += bytes;
            if (local % plan->rails == hosts->local)
                hosts->out_bytes[host] += wanted_from(t, local, host, first);
        }
        comes += hosts->out_bytes[host];
    }
    SHC_TRY(shc_hosts_rail_ticket(hosts, comes, &chunk->ticket));
    return shc_hosts_begun(hosts, &chunk->ticket,
                           hosts->rail.exchange(hosts->rail.ctx, hosts->stage.chunk[place].in,
                                                hosts->in_bytes, hosts->stage.chunk[place].out,
                                                hosts->out_bytes, chunk->ticket));
}

static enum shc_status begin(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_trade *t = ctx;
    struct shc_hosts *hosts = t->blocks.hosts;
    uint64_t give[SHC_MAX_WORLD], take[SHC_MAX_WORLD] = {0};
    read_input(t, chunk->part.first, hosts->stage.narrow, give);
    for (int local = 0; local < shc_hosts_trade_ranks(t) && shc_hosts_carries(hosts); local++)
        for (int host = 0; host < hosts->plan.hosts; host++)
            take[local] += given_to(t, local, host, hosts->local, chunk->part.first);
    SHC_TRY(shc_hosts_swap(hosts, hosts->stage.narrow, give, hosts->stage.wide, take));
    return shc_hosts_carries(hosts) ? send(t, chunk, hosts->stage.wide, place) : SHC_OK;
}

/* A rail has what is for its ranks, host by host and sender by sender. Sorts it by receivers. */
static void sort(const struct shc_hosts_trade *t, uint64_t first, const char *from, char *to,
                 uint64_t *give)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    char *at[SHC_MAX_WORLD];
    for (int local = hosts->local; local < shc_hosts_trade_ranks(t); local += plan->rails) {
        at[local] = to;
        for (int host = 0; host < plan->hosts; host++)
            give[local] += wanted_from(t, local, host, first);
        to += give[local];
    }
    for (int i = 0; i < plan->world; i++) {
        const int sender = plan->rank_at[i]; /* host by host */
        for (int local = hosts->local; local < shc_hosts_trade_ranks(t); local += plan->rails) {
            if (plan->host_of[sender] == hosts->host)
                break;
            const uint64_t bytes = shc_hosts_wanted(t, local, sender, first);
            memcpy(at[local], from, bytes);
            at[local] += bytes;
            from += bytes;
        }
    }
}

static void write_output(const struct shc_hosts_trade *t, uint64_t first, const char *from)
{
    const struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    for (int i = 0; i < plan->world; i++) {
        const int sender = plan->rank_at[i];
        const uint64_t bytes = shc_hosts_wanted(t, hosts->local, sender, first);
        if (plan->host_of[sender] == hosts->host || bytes == 0)
            continue;
        const struct shc_tensors one = {&t->call->op->output.list[sender], 1};
        shc_vector_write(&one, t->call->elem_bytes,
                         (struct shc_slice){first, bytes / t->call->elem_bytes}, from);
        from += bytes;
    }
}

static enum shc_status finish(void *ctx, struct shc_hosts_chunk *chunk, int place)
{
    const struct shc_hosts_trade *t = ctx;
    struct shc_hosts *hosts = t->blocks.hosts;
    const uint64_t first = chunk->part.first;
    const char *from = hosts->stage.chunk[place].out;
    uint64_t give[SHC_MAX_WORLD] = {0}, take[SHC_MAX_WORLD] = {0};
    if (shc_hosts_carries(hosts))
        SHC_TRY(shc_hosts_await(hosts, &chunk->ticket));
    if (!shc_hosts_blocks_are_own(hosts)) {
        if (shc_hosts_carries(hosts))
            sort(t, first, from, hosts->stage.wide, give);
        for (int host = 0; host < hosts->plan.hosts; host++)
            take[hosts->local % hosts->plan.rails] += wanted_from(t, hosts->local, host, first);
        SHC_TRY(shc_hosts_swap(hosts, hosts->stage.wide, give, hosts->stage.narrow, take));
        from = hosts->stage.narrow;
    }
    write_output(t, first, from);
    return SHC_OK;
}

static enum shc_status run(struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_data data = {
        .ctx = t, .message = message, .make = decide, .compare = compare};
    const struct shc_hosts_steps steps = {{begin, NULL, finish}, t, shc_hosts_blocks_cut};
    struct decision decision;
    uint64_t comes;
    char *said;
    SHC_TRY(share_sizes(t));
    if (shc_hosts_leads(hosts))
        find_width(t);
    t->fits = find_fits(t, &comes);
    hosts->sizes.carried = t->fits;
    if (t->fits)
        SHC_TRY(bring_to_leader(t));
    SHC_TRY(shc_hosts_meet(t->call, sizeof decision + (t->fits ? comes : 0), &data, &said));
    memcpy(&decision, said, sizeof decision);
    SHC_TRY(trade_at_home(t));
    if (decision.carried) {
        said += sizeof decision;
        for (int local = 0; local < hosts->local; local++)
            said += wanted_by(t, local);
        write_output(t, 0, said);
        return SHC_OK;
    }
    t->blocks.width = decision.width;
    t->blocks.columns = decision.columns;
    return shc_hosts_pass(&steps, decision.columns);
}

enum shc_status shc_hosts_alltoall(const struct shc_hosts_call *call)
{
    struct shc_hosts_trade t = {.call = call, .blocks = {.hosts = call->hosts}};
    const enum shc_status st = run(&t);
    free(t.table);
    return st;
}
