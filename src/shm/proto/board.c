/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/board.h"

#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/proto/dump.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BOARD_BYTES (SHC_PAGE_BYTES + (size_t)SHC_BOARD_GROUPS * sizeof(struct shc_board_group_shm))

_Static_assert(BOARD_BYTES % 1024 == 0, "say_none() names it in KiB");
_Static_assert(SHC_OP_KIND_COUNT <= SHC_BOARD_KINDS, "the board has room for all kinds");
_Static_assert(sizeof(struct shc_board_header_shm) <= SHC_PAGE_BYTES, "the header is one page");

static struct shc_board_group_shm *group_at(struct shc_board_header_shm *header, int index)
{
    return (struct shc_board_group_shm *)(void *)((char *)header + SHC_PAGE_BYTES) + index;
}

static void fill_header(struct shc_board_header_shm *header, const struct shc_os_process *self,
                        enum shc_board_level level)
{
    header->version = SHC_BOARD_VERSION;
    header->header_bytes = SHC_PAGE_BYTES;
    header->group_bytes = sizeof(struct shc_board_group_shm);
    header->group_count = SHC_BOARD_GROUPS;
    header->record_offset = offsetof(struct shc_board_group_shm, records);
    header->record_bytes = sizeof(struct shc_board_record_shm);
    header->record_count = SHC_BOARD_RECORDS;
    header->kind_count = SHC_BOARD_KINDS;
    header->kept_offset = offsetof(struct shc_board_group_shm, kept);
    header->kept_count = SHC_BOARD_KEPT;
    header->device_offset = offsetof(struct shc_board_group_shm, device_records);
    header->device_count = SHC_BOARD_DEVICE;
    header->level = (uint32_t)level;
    header->layout = SHC_LAYOUT_VERSION;
    header->pid = self->pid;
    header->start_time = self->start_time;
    header->pid_namespace = self->pid_namespace;
    header->boot = self->boot;
    header->ns = shc_clock_ns();
    header->ticks = level == SHC_BOARD_TIMES ? shc_clock_ticks() : 0;
    snprintf(header->library, sizeof header->library, "%d.%d.%d" SHC_VERSION_PRE, SHC_VERSION_MAJOR,
             SHC_VERSION_MINOR, SHC_VERSION_PATCH);
    /* release board/magic -> acquire in a tool outside: the header. */
    shc_a64_store_release(&header->magic, SHC_BOARD_MAGIC);
}

static int map_board(struct shc_board_process *process)
{
    void *base;
    size_t bytes;
    int error = shc_os_memfd_create(SHC_BOARD_NAME, &process->fd);
    if (error != 0)
        return error;
    error = shc_os_file_grow(process->fd, BOARD_BYTES);
    if (error == 0)
        error = shc_os_file_stat(process->fd, &process->file, &bytes);
    if (error == 0)
        error = shc_os_map(process->fd, BOARD_BYTES, 0, &base);
    if (error == 0) {
        /* Linux before 5.1 has no such seal. Then the mode alone keeps other users away. */
        (void)!shc_os_memfd_seal_for_readers(process->fd);
        process->header = base;
        return 0;
    }
    shc_os_file_close(process->fd);
    return error;
}

/* Which limit or filter it is, for a person who wants to see this process. */
static void say_none(int error)
{
    char why[SHC_STRERROR_BYTES], what_to_do[96];
    if (error == EFBIG)
        snprintf(what_to_do, sizeof what_to_do, "`ulimit -f` must be %zu KiB or more.",
                 BOARD_BYTES >> 10);
    else
        snprintf(what_to_do, sizeof what_to_do,
                 "Does a seccomp filter refuse memfd_create, or is there a limit (ulimit -n)?");
    shc_log(SHC_LOG_WARN,
            "cannot make a memfd (%s), so `shmcoll status` and dumps show nothing of this "
            "process. No group needs it. %s SHMCOLL_BOARD=off turns this line off.",
            strerror_r(error, why, sizeof why), what_to_do);
}

void shc_board_process_make(struct shc_board_process *process, const struct shc_os_process *self)
{
    enum shc_board_level level = (enum shc_board_level)shc_config_get()->board;
    *process = (struct shc_board_process){.fd = -1};
    shc_dump_check_folder();
    if (level == SHC_BOARD_OFF)
        return;
    if (level == SHC_BOARD_TIMES && !shc_os_ticks_are_steady())
        level = SHC_BOARD_COUNTS;
    const int error = map_board(process);
    if (error != 0) {
        process->header = NULL;
        say_none(error);
        return;
    }
    process->level = level;
    fill_header(process->header, self, level);
}

/* A part that no group has. */
static struct shc_board_group_shm *take_part(struct shc_board_header_shm *header)
{
    for (int i = 0; i < SHC_BOARD_GROUPS; i++) {
        struct shc_board_group_shm *group = group_at(header, i);
        /* acq_rel board/part: what its last group stored comes before what the next one stores. */
        if (shc_a32_cas_acq_rel(&group->state, SHC_BOARD_FREE, SHC_BOARD_TAKEN))
            return group;
    }
    return NULL;
}

/* A look at a page that was never used would give memory to it. */
static void clear_kept(struct shc_board_group_shm *group)
{
    /* relaxed: no tool looks at a part that is TAKEN. */
    if (shc_a64_load_relaxed(&group->kept_messages) != 0)
        memset(group->kept, 0, sizeof group->kept);
    /* relaxed: no tool looks at a part that is TAKEN. */
    if (shc_a64_load_relaxed(&group->device_kept) != 0)
        memset(group->device_records, 0, sizeof group->device_records);
}

/* All but `state`. */
static void clear_part(struct shc_board_group_shm *group)
{
    char *begin = (char *)group + sizeof group->state;
    clear_kept(group);
    memset(begin, 0, offsetof(struct shc_board_group_shm, records) - sizeof group->state);
    for (int i = 0; i < SHC_BOARD_RECORDS; i++) {
        /* relaxed: no tool looks at a part that is TAKEN. */
        if (shc_a64_load_relaxed(&group->records[i].number) != 0) {
            /* relaxed: no tool looks at a part that is TAKEN. */
            shc_a64_store_relaxed(&group->records[i].number, 0);
        }
    }
}

void shc_board_begin(struct shc_board *board, const struct shc_board_process *process,
                     const struct shc_board_facts *facts)
{
    *board = (struct shc_board){.level = SHC_BOARD_OFF, .header = process->header};
    board->shm = process->header ? take_part(process->header) : NULL;
    if (!board->shm)
        return;
    struct shc_board_group_shm *group = board->shm;
    clear_part(group);
    group->rank = facts->rank;
    group->world_size = facts->world_size;
    group->global_rank = facts->global_ranks ? facts->global_ranks[facts->rank] : -1;
    for (int rank = 0; rank < facts->world_size; rank++)
        group->global_ranks[rank] = facts->global_ranks ? facts->global_ranks[rank] : -1;
    group->begun_ns = shc_clock_ns();
    snprintf(group->name, sizeof group->name, "%s", facts->name);
    /* relaxed: a number for people. */
    shc_a64_store_relaxed(&group->timeout_ns, facts->timeout_ns);
    board->level = board->calls = process->level;
    if (strcmp(facts->description, facts->name) != 0)
        shc_board_describe(board, facts->description);
    /* release board/state -> acquire in a tool outside: the group's name and ranks. */
    shc_a32_store_release(&group->state, SHC_BOARD_MAKING);
}

void shc_board_describe(const struct shc_board *board, const char *description)
{
    struct shc_board_group_shm *group = board->shm;
    if (board->level == SHC_BOARD_OFF)
        return;
    /* acq_rel board/described: only the first thread writes the text. */
    if (!shc_a32_cas_acq_rel(&group->described, SHC_NOT_DESCRIBED, SHC_BEING_DESCRIBED))
        return;
    snprintf(group->description, sizeof group->description, "%s", description);
    /* release board/described -> acquire in a tool outside: the text. */
    shc_a32_store_release(&group->described, SHC_DESCRIBED);
}

void shc_board_set_timeout(const struct shc_board *board, uint64_t timeout_ns)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    /* relaxed: a number for people. */
    shc_a64_store_relaxed(&board->shm->timeout_ns, timeout_ns);
}

void shc_board_made(struct shc_board *board, const struct shc_seat *seat)
{
    struct shc_board_group_shm *group = board->shm;
    shc_usdt_group_made(seat);
    if (board->level == SHC_BOARD_OFF)
        return;
    _Static_assert(sizeof group->nonce == sizeof seat->segment.name.nonce, "the same bytes");
    memcpy(group->nonce, seat->segment.name.nonce, sizeof group->nonce);
    for (int rank = 0; rank < seat->world_size; rank++)
        group->pids[rank] = shc_seat_pid(seat, rank);
    group->segment_bytes = seat->segment.bytes;
    const uint64_t now_ns = shc_clock_ns();
    group->made_ns = now_ns;
    shc_board_note_clock(board, now_ns);
    /* release board/state -> acquire in a tool outside: the members. */
    shc_a32_store_release(&group->state, SHC_BOARD_MADE);
}

static void store_end(struct shc_board_group_shm *group, const struct shc_board_end *end)
{
    struct shc_board_end_shm *shm = &group->end;
    shm->finder = (uint32_t)end->finder + 1;
    if (end->rank < 0)
        return;
    shm->rank = (uint32_t)end->rank + 1;
    shm->pid = end->pid;
    shm->died = end->died;
    shm->kind = (uint32_t)end->how.kind;
    shm->code = end->how.code;
    shm->last_call = end->last_call;
    snprintf(shm->why, sizeof shm->why, "%s", end->why);
}

void shc_board_fail(const struct shc_board *board, enum shc_status status, const char *reason,
                    const struct shc_board_end *end)
{
    struct shc_board_group_shm *group = board->shm;
    if (board->level == SHC_BOARD_OFF) {
        shc_dump_lacks_board();
        return;
    }
    /* acq_rel board/failed: of several threads the first one writes. */
    if (shc_a32_exchange_acq_rel(&group->failed_once, 1) != 0)
        return;
    snprintf(group->reason, sizeof group->reason, "%s", reason);
    store_end(group, end);
    /* release board/failed -> acquire in a tool outside: the reason. */
    shc_a32_store_release(&group->status, (uint32_t)status);
    shc_dump_failure(board);
}

void shc_board_close(const struct shc_board *board)
{
    if (board->level == SHC_BOARD_OFF || board->lent)
        return;
    /* release board/state -> acquire in a tool outside: all that came before. */
    shc_a32_store_release(&board->shm->state, SHC_BOARD_CLOSED);
}

void shc_board_free(struct shc_board *board)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    board->level = board->calls = SHC_BOARD_OFF;
    if (board->lent)
        return;
    /* release board/part -> acq_rel in take_part(): the last stores of this group. */
    shc_a32_store_release(&board->shm->state, SHC_BOARD_FREE);
}

/* Makes the number odd. Returns the even one that it becomes when its fields are stored. */
static uint64_t begin_change(shc_a64 *number)
{
    /* relaxed: one writer. */
    const uint64_t odd = shc_a64_load_relaxed(number) + 1;
    /* relaxed: the release stores after it keep it before the rest. */
    shc_a64_store_relaxed(number, odd);
    return odd + 1;
}

void shc_board_note_clock(const struct shc_board *board, uint64_t now_ns)
{
    struct shc_board_group_shm *group = board->shm;
    if (board->level != SHC_BOARD_TIMES)
        return;
    const uint64_t next = begin_change(&group->clock_number);
    shc_board_store(&group->clock_ticks, shc_clock_ticks());
    shc_board_store(&group->clock_ns, now_ns);
    /* release board/clock -> acquire in a tool outside: the moment. */
    shc_a64_store_release(&group->clock_number, next);
}

bool shc_board_block(const struct shc_board *board, uint64_t thread,
                     const struct shc_board_awaited *message, uint64_t now_ns)
{
    if (board->level == SHC_BOARD_OFF)
        return false;
    struct shc_board_block_shm *block = &board->shm->block;
    if (!message && board->calls == SHC_BOARD_OFF && !board->lent) {
        /* relaxed: a hint. A call that was submitted runs in a thread of the library; the thread that waits for it is shown. */
        if (shc_a64_load_relaxed(&board->shm->user) != thread)
            return false;
    }
    /* acq_rel board/block: only one thread has it; the stores of the one before come first. */
    if (!shc_a64_cas_acq_rel(&block->thread, 0, thread))
        return false;
    uint32_t peer = 0;
    if (message)
        peer = message->peer < 0 ? SHC_BOARD_ANY : (uint32_t)message->peer + 1;
    /* relaxed: the release store after it keeps it before. */
    shc_a32_store_relaxed(&block->peer, peer);
    /* relaxed: the release store after it keeps it before. */
    shc_a32_store_relaxed(&block->kind, message ? (uint32_t)message->kind : 0);
    /* relaxed: the release store after it keeps it before. */
    shc_a32_store_relaxed(&block->tag, message ? (uint32_t)message->tag : 0);
    /* release board/block -> acquire in a tool outside: the rest. */
    shc_a64_store_release(&block->since_ns, now_ns);
    return true;
}

void shc_board_unblock(const struct shc_board *board)
{
    struct shc_board_block_shm *block = &board->shm->block;
    /* relaxed: the release store after it keeps it before. */
    shc_a64_store_relaxed(&block->since_ns, 0);
    /* release board/block -> acq_rel in shc_board_block(): another thread may have it. */
    shc_a64_store_release(&block->thread, 0);
}

/* What a record of a message, or of a GPU's work, has. */
struct fields {
    uint64_t begin, end, what, count, bytes, pair;
    int peer;
    int32_t tag;
};

_Static_assert(SHC_BOARD_CALL_WORDS <= SHC_BOARD_WHOM_WORDS, "store_text() has room");

static void store_text(shc_a64 *words, size_t count, const char *text)
{
    char bytes[sizeof(shc_a64) * SHC_BOARD_WHOM_WORDS] = "";
    snprintf(bytes, count * sizeof words[0], "%s", text);
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * sizeof word, sizeof word);
        shc_board_store(&words[i], word);
    }
}

void shc_board_device(const struct shc_board *board, const struct shc_device_work *work)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_device_shm *device =
        work->messages ? &board->shm->device_messages : &board->shm->device;
    const uint64_t next = begin_change(&device->number);
    shc_board_store(&device->called, work->called);
    shc_board_store(&device->done, work->done);
    shc_board_store(&device->since_ns, work->since_ns);
    store_text(device->call, SHC_BOARD_CALL_WORDS, work->call);
    store_text(device->whom, SHC_BOARD_WHOM_WORDS, work->whom);
    for (int i = 0; i < SHC_MAX_WORLD / 64; i++)
        shc_board_store(&device->missing[i], work->missing[i]);
    /* release board/device -> acquire in a tool outside: the rest. */
    shc_a64_store_release(&device->number, next);
}

/* As shc_board_store(). */
static void store32(shc_a32 *field, uint32_t value)
{
    /* release board/messages -> acquire in a tool outside: the number was odd before. */
    shc_a32_store_release(field, value);
}

void shc_board_messages(const struct shc_board *board, const struct shc_board_pending *pending)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_messages_shm *messages = &board->shm->messages;
    const uint64_t next = begin_change(&messages->number);
    store32(&messages->sends, pending->sends);
    store32(&messages->receives, pending->receives);
    store32(&messages->kind, (uint32_t)pending->kind);
    store32(&messages->peer, (uint32_t)(pending->peer + 1));
    store32(&messages->tag, (uint32_t)pending->tag);
    store32(&messages->waiters, pending->waiters);
    shc_board_store(&messages->bytes, pending->bytes);
    shc_board_store(&messages->since_ns, pending->since_ns);
    /* release board/messages -> acquire in a tool outside: the numbers. */
    shc_a64_store_release(&messages->number, next);
}

static void store_record(struct shc_board_record_shm *record, uint64_t number,
                         const struct fields *fields)
{
    /* relaxed: the release stores after it keep it before the fields. */
    shc_a64_store_relaxed(&record->number, 0);
    shc_board_store(&record->begin, fields->begin);
    shc_board_store(&record->end, fields->end);
    shc_board_store(&record->what, fields->what);
    shc_board_store(&record->count, fields->count);
    shc_board_store(&record->bytes, fields->bytes);
    shc_board_store(&record->peer, (uint32_t)fields->peer | (uint64_t)(uint32_t)fields->tag << 32);
    shc_board_store(&record->pair, fields->pair);
    /* release board/kept -> acquire in a tool outside: the fields. */
    shc_a64_store_release(&record->number, number);
}

void shc_board_keep(const struct shc_board *board, const struct shc_board_message *message)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_group_shm *group = board->shm;
    /* relaxed: one writer, under the lock of messages. */
    const uint64_t number = shc_a64_load_relaxed(&group->kept_messages) + 1;
    const struct fields fields = {
        .begin = message->begun_ticks,
        .end = shc_clock_ticks(),
        .what = (uint64_t)message->kind | (uint64_t)message->dtype << 8 |
                (uint64_t)message->status << 24,
        .count = message->count,
        .bytes = message->bytes,
        .peer = message->peer,
        .tag = message->tag,
        .pair = message->pair,
    };
    struct shc_board_record_shm *record = &group->kept[number & (SHC_BOARD_KEPT - 1)];
    store_record(record, number, &fields);
    /* release board/kept -> acquire in a tool outside: the record. */
    shc_a64_store_release(&group->kept_messages, number);
}

void shc_board_keep_device(const struct shc_board *board, const struct shc_op *op, uint64_t number,
                           uint64_t count, uint64_t begun_ns)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_group_shm *group = board->shm;
    /* relaxed: one writer. */
    const uint64_t kept = shc_a64_load_relaxed(&group->device_kept) + 1;
    const struct fields fields = {
        .begin = begun_ns,
        .end = shc_clock_ns(),
        .what = (uint64_t)op->kind | (uint64_t)op->dtype << 8 | (uint64_t)op->redop << 16 |
                (uint64_t)(uint32_t)op->root << 32,
        .count = count,
        .bytes = count * op->elem_bytes,
        .peer = op->peer,
        .tag = op->tag,
        .pair = number,
    };
    struct shc_board_record_shm *record = &group->device_records[kept & (SHC_BOARD_DEVICE - 1)];
    store_record(record, kept, &fields);
    /* release board/kept -> acquire in a tool outside: the record. */
    shc_a64_store_release(&group->device_kept, kept);
}

void shc_board_share(struct shc_board *board, struct shc_board *calls,
                     const struct shc_board_over *over)
{
    shc_board_free(calls);
    if (board->level == SHC_BOARD_OFF)
        return;
    board->calls = SHC_BOARD_OFF;
    *calls = *board;
    calls->lent = true;
    struct shc_board_over_shm *shm = &board->shm->over;
    shm->hosts = over->hosts;
    shm->host = over->host;
    shm->world = over->world;
    for (int rank = 0; rank < board->shm->world_size; rank++)
        shm->ranks[rank] = (uint16_t)over->ranks[rank];
    /* release board/over -> acquire in a tool outside: the rest. */
    shc_a64_store_release(&shm->id, over->id);
}

void shc_board_await(const struct shc_board *board, uint64_t epoch, uint64_t since_ns)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_over_shm *shm = &board->shm->over;
    /* relaxed: the release store after it keeps it before the rest. */
    shc_a64_store_relaxed(&shm->awaits_epoch, 0);
    if (since_ns == 0)
        return;
    /* release board/awaits -> acquire in a tool outside: the epoch was 0 before. */
    shc_a64_store_release(&shm->awaits_since_ns, since_ns);
    /* release board/awaits -> acquire in a tool outside: since when. */
    shc_a64_store_release(&shm->awaits_epoch, epoch);
}

void shc_board_missing(const struct shc_board *board, uint64_t epoch, const char *whom)
{
    if (board->level == SHC_BOARD_OFF)
        return;
    struct shc_board_over_shm *over = &board->shm->over;
    const uint64_t next = begin_change(&over->number);
    shc_board_store(&over->whom_epoch, epoch);
    store_text(over->whom, SHC_BOARD_WHOM_WORDS, whom);
    /* release board/whom -> acquire in a tool outside: the text. */
    shc_a64_store_release(&over->number, next);
}
