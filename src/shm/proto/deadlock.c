/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/deadlock.h"

#include "shm/base/clock.h"
#include "shm/base/num.h"
#include "shm/shmcoll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PROCESSES 64
#define MOST_WAITS     128
#define MOST_EDGES     512
#define MOST_MISSING   16 /* ranks that wait, of those that one call waits for */

/* At a cycle that was seen, every 10 ms: a parked thread looks within SHC_PARK_MOST_NS. */
#define MOST_LOOKS 100

/* What the board of a process says of one of its groups. Each value was copied once. */
struct part {
    int index; /* on the board */
    uint32_t world_size;
    int32_t rank;
    uint8_t nonce[16];
    uint64_t entered, left, waits_epoch, waits_since_ns;
    uint64_t user;
    uint32_t submitted, ended;
    uint32_t sending, receiving;
    uint64_t blocked_since_ns, blocked_thread;
    uint32_t blocked_peer, blocked_kind, blocked_tag;
    uint32_t over_hosts;
    uint64_t looked_ns; /* the last one: it changes all the time */
};

struct process {
    int32_t pid;
    int fd; /* -1: it has no board that can be read */
    struct part *parts;
    int count;
};

/* A wait of a process: for a message, or in the call that its part shows. */
struct wait {
    int process; /* in the search, as all of these */
    int part;
    bool message;
    uint64_t since_ns;
    bool returns; /* a path leads back to the first wait */
    int towards;  /* the edge that begins a shortest way back; -1: none */
};

/* The first wait ends only after the second one: `part` of `process` is what the first one waits for. */
struct edge {
    int from, to;
    int process, part;
    bool by_thread; /* because the thread that is to make the call sleeps in the second one */
};

struct search {
    const struct shc_os_process *self;
    struct process processes[MOST_PROCESSES];
    struct wait waits[MOST_WAITS];
    struct edge edges[MOST_EDGES];
    int process_count, wait_count, edge_count;
};

/* ---- reading boards ---- */

static uint64_t number64(const shc_a64 *word)
{
    /* relaxed: a copy, which the kernel's read has ordered; or a hint of this process's own board. */
    return shc_a64_load_relaxed(word);
}

static uint32_t number32(const shc_a32 *word)
{
    /* relaxed: as number64(). */
    return shc_a32_load_relaxed(word);
}

static bool header_fits(int fd, const struct shc_os_process *self, int32_t pid)
{
    struct shc_board_header_shm header;
    if (shc_os_file_read(fd, 0, &header, sizeof header) != 0)
        return false;
    return number64(&header.magic) == SHC_BOARD_MAGIC && header.version == SHC_BOARD_VERSION &&
           header.header_bytes == SHC_PAGE_BYTES &&
           header.group_bytes == sizeof(struct shc_board_group_shm) &&
           header.group_count == SHC_BOARD_GROUPS && header.pid == pid &&
           header.pid_namespace == self->pid_namespace && header.boot == self->boot;
}

/* The process's own board: it may also hold one that it has inherited. -1: there is none. */
static int open_board(const struct shc_os_process *self, int32_t pid)
{
    int fd;
    for (int index = 0; shc_os_process_open_memfd(pid, SHC_BOARD_NAME, index, &fd) == 0; index++) {
        if (header_fits(fd, self, pid))
            return fd;
        shc_os_file_close(fd);
    }
    return -1;
}

static size_t part_offset(int index)
{
    return SHC_PAGE_BYTES + (size_t)index * sizeof(struct shc_board_group_shm);
}

/* A part up to the numbers of all ranks, which are read when they are needed. */
union copy {
    struct shc_board_group_shm group;
    char bytes[offsetof(struct shc_board_group_shm, pids)];
};

/* False: no group that is usable has that part. *last: nor has any later one. */
static bool read_part(int fd, int index, struct part *part, bool *last)
{
    char head[offsetof(struct shc_board_group_shm, made_ns)];
    uint32_t state;
    uint64_t begun_ns;
    *last = shc_os_file_read(fd, part_offset(index), head, sizeof head) != 0;
    if (*last)
        return false;
    memcpy(&state, head + offsetof(struct shc_board_group_shm, state), sizeof state);
    memcpy(&begun_ns, head + offsetof(struct shc_board_group_shm, begun_ns), sizeof begun_ns);
    *last = state == SHC_BOARD_FREE && begun_ns == 0; /* groups take the first part that is free */
    union copy *copy =
        state == SHC_BOARD_MADE ? aligned_alloc(_Alignof(union copy), sizeof *copy) : NULL;
    if (!copy)
        return false;
    const struct shc_board_group_shm *group = &copy->group;
    bool good = shc_os_file_read(fd, part_offset(index), copy->bytes, sizeof copy->bytes) == 0;
    if (good) {
        memset(part, 0, sizeof *part); /* its bytes are hashed */
        part->index = index;
        part->world_size = (uint32_t)group->world_size;
        part->rank = group->rank;
        memcpy(part->nonce, group->nonce, sizeof part->nonce);
        part->entered = number64(&group->entered);
        part->left = number64(&group->left);
        part->waits_epoch = number64(&group->waits_epoch);
        part->waits_since_ns = number64(&group->waits_since_ns);
        part->user = number64(&group->user);
        part->submitted = number32(&group->submitted);
        part->ended = number32(&group->ended);
        part->sending = number32(&group->sending);
        part->receiving = number32(&group->receiving);
        part->blocked_since_ns = number64(&group->block.since_ns);
        part->blocked_thread = number64(&group->block.thread);
        part->blocked_peer = number32(&group->block.peer);
        part->blocked_kind = number32(&group->block.kind);
        part->blocked_tag = number32(&group->block.tag);
        part->looked_ns = number64(&group->looked_ns);
        part->over_hosts = number64(&group->over.id) != 0;
        good = number32(&group->state) == SHC_BOARD_MADE && number32(&group->status) == SHC_OK &&
               part->world_size >= 1 && part->world_size <= SHC_MAX_WORLD && part->rank >= 0 &&
               (uint32_t)part->rank < part->world_size;
    }
    free(copy);
    return good;
}

static void read_parts(struct process *process)
{
    bool last = false;
    for (int index = 0; index < SHC_BOARD_GROUPS && !last; index++) {
        struct part part;
        if (!read_part(process->fd, index, &part, &last))
            continue;
        struct part *more = realloc(process->parts, (size_t)(process->count + 1) * sizeof *more);
        if (!more)
            return;
        more[process->count++] = part;
        process->parts = more;
    }
}

/* -1: it has no board, or there are too many processes. */
static int find_process(struct search *search, int32_t pid)
{
    for (int i = 0; i < search->process_count; i++)
        if (search->processes[i].pid == pid)
            return search->processes[i].fd < 0 ? -1 : i;
    if (search->process_count == MOST_PROCESSES || pid <= 0)
        return -1;
    struct process *process = &search->processes[search->process_count++];
    *process = (struct process){.pid = pid, .fd = open_board(search->self, pid)};
    if (process->fd < 0)
        return -1;
    read_parts(process);
    return search->process_count - 1;
}

static int find_part(const struct process *process, const uint8_t *nonce, int32_t rank)
{
    for (int i = 0; i < process->count; i++) {
        const struct part *part = &process->parts[i];
        if (part->rank == rank && memcmp(part->nonce, nonce, sizeof part->nonce) == 0)
            return i;
    }
    return -1;
}

static const struct part *part_of(const struct search *search, int process, int part)
{
    return &search->processes[process].parts[part];
}

static int32_t read_number(const struct process *process, const struct part *part, size_t offset,
                           uint32_t rank)
{
    int32_t number = -1;
    const size_t at = part_offset(part->index) + offset + rank * sizeof number;
    return shc_os_file_read(process->fd, at, &number, sizeof number) == 0 ? number : -1;
}

static int32_t pid_of(const struct process *process, const struct part *part, uint32_t rank)
{
    return read_number(process, part, offsetof(struct shc_board_group_shm, pids), rank);
}

/* The rank's number in the job, or its number in the group if the former is not known. */
static int32_t global_rank_of(const struct process *process, const struct part *part, uint32_t rank)
{
    const int32_t number =
        read_number(process, part, offsetof(struct shc_board_group_shm, global_ranks), rank);
    return number >= 0 ? number : (int32_t)rank;
}

/* ---- the graph ---- */

static bool is_inside(const struct part *part)
{
    return part->entered != part->left;
}

/* It sleeps in its call. */
static bool sleeps_inside(const struct part *part)
{
    return is_inside(part) && part->waits_epoch == part->entered;
}

/* -1: there are too many. */
static int find_wait(struct search *search, int process, int part, bool message)
{
    for (int i = 0; i < search->wait_count; i++) {
        const struct wait *wait = &search->waits[i];
        if (wait->process == process && wait->part == part && wait->message == message)
            return i;
    }
    if (search->wait_count == MOST_WAITS)
        return -1;
    const struct part *at = part_of(search, process, part);
    search->waits[search->wait_count] = (struct wait){
        .process = process,
        .part = part,
        .message = message,
        .since_ns = message ? at->blocked_since_ns : at->waits_since_ns,
        .towards = -1,
    };
    return search->wait_count++;
}

/* DEAD-3: the wait in which that thread of the process sleeps; -1: it is not known to sleep. */
static int find_blocked(struct search *search, int process, uint64_t thread)
{
    for (int i = 0; thread != 0 && i < search->processes[process].count; i++) {
        const struct part *part = part_of(search, process, i);
        if (part->blocked_thread != thread || part->blocked_since_ns == 0)
            continue;
        if (part->blocked_peer == SHC_BOARD_ANY)
            return -1;
        if (part->blocked_peer != 0)
            return find_wait(search, process, i, true);
        return sleeps_inside(part) ? find_wait(search, process, i, false) : -1;
    }
    return -1;
}

/* Has the rank with that part posted what the message needs, or may it have? `next`: where its thread sleeps. */
static bool has_posted(const struct search *search, const struct wait *wait, int process, int part,
                       const struct wait *next)
{
    const struct part *here = part_of(search, wait->process, wait->part);
    const struct part *there = part_of(search, process, part);
    const bool owes_send = here->blocked_kind == SHC_RECV;
    uint32_t posted = owes_send ? there->sending : there->receiving;
    if (next->message && next->process == process && next->part == part &&
        (there->blocked_kind == SHC_SEND) == owes_send) {
        if (there->blocked_peer == (uint32_t)here->rank + 1 &&
            there->blocked_tag == here->blocked_tag)
            return true;
        posted--; /* the one that its thread waits for is another one */
    }
    return posted != 0;
}

/* DEAD-2: that wait ends only after the rank with that part has made its next call, or posted a message. */
static void add_target(struct search *search, int from, int process, int part, bool posts)
{
    const struct part *target = part_of(search, process, part);
    const bool by_thread = posts || (!is_inside(target) && target->submitted == target->ended);
    int to = -1;
    if (by_thread)
        to = find_blocked(search, process, target->user);
    else if (sleeps_inside(target))
        to = find_wait(search, process, part, false);
    if (to < 0 || search->edge_count == MOST_EDGES)
        return;
    if (posts && has_posted(search, &search->waits[from], process, part, &search->waits[to]))
        return;
    search->edges[search->edge_count++] = (struct edge){
        .from = from, .to = to, .process = process, .part = part, .by_thread = by_thread};
}

static void add_rank(struct search *search, int from, uint32_t rank)
{
    const struct wait wait = search->waits[from];
    const struct part here = *part_of(search, wait.process, wait.part);
    const int process = find_process(search, pid_of(&search->processes[wait.process], &here, rank));
    const int part =
        process < 0 ? -1 : find_part(&search->processes[process], here.nonce, (int32_t)rank);
    if (part < 0)
        return;
    if (wait.message || !shc_reached(part_of(search, process, part)->entered, here.entered))
        add_target(search, from, process, part, wait.message);
}

/* What the wait waits for. A call waits for the ranks that have not entered it; if there are none, it is under way,
 * and waits for nothing that could be part of a cycle. */
static void add_edges(struct search *search, int from)
{
    const struct wait wait = search->waits[from];
    const struct part here = *part_of(search, wait.process, wait.part);
    if (wait.message) {
        if (here.blocked_peer - 1 < here.world_size)
            add_rank(search, from, here.blocked_peer - 1);
        return;
    }
    const int before = search->edge_count;
    for (uint32_t turn = 1; turn < here.world_size; turn++) {
        if (search->edge_count - before >= MOST_MISSING)
            return;
        add_rank(search, from, ((uint32_t)here.rank + turn) % here.world_size);
    }
}

/* ---- the cycle ---- */

/* From each wait, the first step of a shortest way back to the first wait, found from its end. */
static void find_ways_back(struct search *search)
{
    bool more = true;
    search->waits[0].returns = true;
    while (more) {
        bool found[MOST_WAITS] = {false};
        more = false;
        for (int i = 0; i < search->edge_count; i++) {
            const struct edge *edge = &search->edges[i];
            struct wait *from = &search->waits[edge->from];
            if (!search->waits[edge->to].returns || from->towards >= 0)
                continue;
            from->towards = i;
            found[edge->from] = more = true;
        }
        for (int i = 0; i < search->wait_count; i++)
            search->waits[i].returns = search->waits[i].returns || found[i];
    }
}

/* DEAD-5: of the waits that depend on one another the one that began last speaks: it is the last one to be late. */
static bool is_speaker(const struct search *search)
{
    const struct wait *first = &search->waits[0];
    for (int i = 1; i < search->wait_count; i++) {
        const struct wait *other = &search->waits[i];
        if (!other->returns || other->since_ns < first->since_ns)
            continue;
        if (other->since_ns > first->since_ns ||
            search->processes[other->process].pid > search->processes[first->process].pid)
            return false;
    }
    return true;
}

/* The edge after that one on the cycle; -1: the cycle is closed. `at`: an edge, or -1 to begin. */
static int next_edge(const struct search *search, int at)
{
    if (at >= 0 && search->edges[at].to == 0)
        return -1;
    return search->waits[at < 0 ? 0 : search->edges[at].to].towards;
}

static uint64_t add_to_hash(uint64_t hash, const struct part *part)
{
    const unsigned char *bytes = (const unsigned char *)part;
    for (size_t i = 0; i < offsetof(struct part, looked_ns); i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

/* DEAD-4: of all that the cycle rests on. */
static uint64_t hash_cycle(const struct search *search)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int at = next_edge(search, -1); at >= 0; at = next_edge(search, at)) {
        const struct edge *edge = &search->edges[at];
        const struct wait *from = &search->waits[edge->from];
        hash = add_to_hash(hash, part_of(search, from->process, from->part));
        hash = add_to_hash(hash, part_of(search, edge->process, edge->part));
    }
    return hash;
}

/* Have all threads that sleep, and that others need, looked in vain since then? */
static bool all_have_looked(const struct search *search, uint64_t since_ns)
{
    for (int at = next_edge(search, -1); at >= 0; at = next_edge(search, at)) {
        const struct edge *edge = &search->edges[at];
        const struct wait *to = &search->waits[edge->to];
        if (edge->by_thread && part_of(search, to->process, to->part)->looked_ns <= since_ns)
            return false;
    }
    return true;
}

/* The same cycle was there before, and no thread of it was about to go on. */
static bool is_certain(const struct search *search, struct shc_suspicion *suspicion)
{
    const uint64_t hash = hash_cycle(search);
    if (suspicion->seen_ns != 0 && suspicion->hash == hash)
        return all_have_looked(search, suspicion->seen_ns);
    suspicion->hash = hash;
    suspicion->seen_ns = shc_clock_ns();
    return false;
}

/* ---- words ---- */

/* "all_reduce #3 (float32[4], sum)", or "call #3" where the board has no records. */
static void call_text(const struct process *process, const struct part *part, char *text,
                      size_t capacity)
{
    struct shc_board_record_shm record;
    const size_t at = part_offset(part->index) + offsetof(struct shc_board_group_shm, records) +
                      (part->entered & (SHC_BOARD_RECORDS - 1)) * sizeof record;
    snprintf(text, capacity, "call #%llu", (unsigned long long)part->entered);
    if (shc_os_file_read(process->fd, at, &record, sizeof record) != 0 ||
        number64(&record.number) != part->entered)
        return;
    const uint64_t what = number64(&record.what);
    const uint32_t root = (uint32_t)(what >> 32);
    struct shc_call call = {
        .kind = (enum shc_op_kind)(what & 0xff),
        .dtype = (enum shc_dtype)(what >> 8 & 0xff),
        .redop = (enum shc_redop)(what >> 16 & 0xff),
        .count = number64(&record.count),
    };
    if (call.kind >= SHC_OP_KIND_COUNT || call.dtype >= SHC_DTYPE_COUNT)
        return;
    if (part->over_hosts)
        call.root = (int)root;
    else if (root < part->world_size)
        call.root = (int)global_rank_of(process, part, root);
    if (call.dtype == SHC_OPAQUE && call.count > 0)
        call.elem_bytes = (uint32_t)(number64(&record.bytes) / call.count);
    static const struct shc_seat plain; /* the root is a rank of the job already */
    shc_call_text(&plain, &call, part->entered, text, capacity);
}

static void group_text(const struct process *process, const struct part *part, char *text,
                       size_t capacity)
{
    char name[SHC_BOARD_TEXT] = "", description[SHC_BOARD_TEXT] = "";
    const size_t at = part_offset(part->index);
    (void)!shc_os_file_read(process->fd, at + offsetof(struct shc_board_group_shm, name), name,
                            sizeof name);
    (void)!shc_os_file_read(process->fd, at + offsetof(struct shc_board_group_shm, description),
                            description, sizeof description);
    snprintf(text, capacity, "%.*s", (int)SHC_BOARD_TEXT - 1, description[0] ? description : name);
}

/* "rank 0 (pid 12) waits in barrier #3 on group "tp" for rank 1" */
static size_t append_wait(const struct search *search, const struct edge *edge, char *text,
                          size_t capacity)
{
    const struct wait *wait = &search->waits[edge->from];
    const struct process *process = &search->processes[wait->process];
    const struct part *part = part_of(search, wait->process, wait->part);
    const struct part *target = part_of(search, edge->process, edge->part);
    char what[160], group[SHC_BOARD_TEXT];
    if (wait->message)
        snprintf(what, sizeof what, "%s (tag %d)",
                 shc_op_kind_name((enum shc_op_kind)part->blocked_kind), (int)part->blocked_tag);
    else
        call_text(process, part, what, sizeof what);
    group_text(process, part, group, sizeof group);
    const int length =
        snprintf(text, capacity, "rank %d (pid %d) waits in %s on group \"%s\" for rank %d; ",
                 (int)global_rank_of(process, part, (uint32_t)part->rank), (int)process->pid, what,
                 group, (int)global_rank_of(process, part, (uint32_t)target->rank));
    return shc_min_size((size_t)length, capacity - 1);
}

static void describe(const struct search *search, char *text, size_t capacity)
{
    size_t used = (size_t)snprintf(text, capacity, "DEADLOCK: ");
    for (int at = next_edge(search, -1); at >= 0; at = next_edge(search, at))
        used += append_wait(search, &search->edges[at], text + used, capacity - used);
    snprintf(text + used - 2, capacity - used + 2, "%s", "");
}

/* ---- the search ---- */

/* Does the board show that wait of this rank? */
static bool is_shown(const struct shc_seat *seat, const struct shc_board_awaited *message)
{
    const struct shc_board_block_shm *block = &seat->board.shm->block;
    if (!message)
        return true;
    return message->peer >= 0 && number64(&block->since_ns) != 0 &&
           number32(&block->peer) == (uint32_t)message->peer + 1 &&
           number32(&block->kind) == (uint32_t)message->kind &&
           number32(&block->tag) == (uint32_t)message->tag;
}

/* That wait. */
static bool add_first(struct search *search, const struct shc_seat *seat, bool message)
{
    const int process = find_process(search, seat->self.pid);
    const int part =
        process < 0 ? -1
                    : find_part(&search->processes[process], seat->segment.name.nonce, seat->rank);
    if (part < 0)
        return false;
    const struct part *here = part_of(search, process, part);
    return (message ? here->blocked_since_ns != 0 : sleeps_inside(here)) &&
           find_wait(search, process, part, message) == 0;
}

/* A cycle of which this rank speaks. */
static bool find_cycle(struct search *search, const struct shc_seat *seat, bool message)
{
    if (!add_first(search, seat, message))
        return false;
    for (int i = 0; i < search->wait_count; i++)
        add_edges(search, i);
    find_ways_back(search);
    /* relaxed: one value; a thread that sees it late says the same once more. */
    const uint64_t named_ns = shc_a64_load_relaxed(&seat->deadlocked_since_ns);
    return search->waits[0].towards >= 0 && is_speaker(search) &&
           search->waits[0].since_ns != named_ns;
}

bool shc_deadlock_find(struct shc_seat *seat, const struct shc_board_awaited *message, char *text,
                       size_t capacity)
{
    struct shc_suspicion *suspicion = &seat->suspicions[message != NULL];
    if (seat->board.level == SHC_BOARD_OFF || !is_shown(seat, message))
        return false;
    struct search *search = calloc(1, sizeof *search);
    if (!search)
        return false;
    search->self = &seat->self;
    const bool seen = find_cycle(search, seat, message != NULL);
    const bool certain = seen && is_certain(search, suspicion);
    if (certain) {
        /* relaxed: one value. */
        shc_a64_store_relaxed(&seat->deadlocked_since_ns, search->waits[0].since_ns);
        describe(search, text, capacity);
    }
    if (!seen || certain || ++suspicion->looks >= MOST_LOOKS)
        *suspicion = (struct shc_suspicion){.seen_ns = 0};
    for (int i = 0; i < search->process_count; i++) {
        if (search->processes[i].fd >= 0)
            shc_os_file_close(search->processes[i].fd);
        free(search->processes[i].parts);
    }
    free(search);
    return certain;
}
