/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/dump.h"

#include "shm/base/config.h"
#include "shm/base/log.h"

#include <stdio.h>
#include <string.h>

#define LOOKS           20  /* at numbers that change while they are copied */
#define MOST_DUMPS      256 /* of a process */
#define RECORDS_AT_ONCE 128 /* the rest of a part is as long */

union piece {
    struct shc_board_header_shm header;
    struct shc_board_record_shm records[RECORDS_AT_ONCE];
    uint64_t words[SHC_PAGE_BYTES / 4];
};

#define REST_BYTES offsetof(struct shc_board_group_shm, records)
_Static_assert(sizeof(union piece) == REST_BYTES, "a part without its records is one piece");
_Static_assert(SHC_BOARD_RECORDS % RECORDS_AT_ONCE == 0, "and they are whole pieces");
_Static_assert(SHC_BOARD_KEPT % RECORDS_AT_ONCE == 0, "and so are those of messages");
_Static_assert(SHC_BOARD_DEVICE % RECORDS_AT_ONCE == 0, "and those of a GPU");
_Static_assert(SHC_BOARD_DEVICE <= SHC_BOARD_KEPT, "write_kept() has zeros enough");

static const struct shc_board_group_shm *part_at(const struct shc_board_header_shm *header,
                                                 int index)
{
    return (const struct shc_board_group_shm *)(const void *)((const char *)header +
                                                              SHC_PAGE_BYTES) +
           index;
}

/* Other threads go on with their groups. Each word is one load, in order, as a tool outside reads them. */
static void copy_words(void *to, const void *from, size_t bytes)
{
    const shc_a64 *words = from;
    for (size_t i = 0; i < bytes / sizeof words[0]; i++) {
        /* acquire board/record <- release in shc_board_enter(): a number comes before its fields. */
        /* acquire board/kept <- release in shc_board_keep(): a number comes before its fields. */
        /* acquire board/clock <- release in shc_board_note_clock(): a number comes before its fields. */
        /* acquire board/messages <- release in shc_board_messages(): a number comes before its fields. */
        /* acquire board/device <- release in shc_board_device(): a number comes before its fields. */
        const uint64_t word = shc_a64_load_acquire(&words[i]);
        memcpy((char *)to + i * sizeof word, &word, sizeof word);
    }
}

/* A number of the copy, which has words of a part and not a part's alignment. */
static uint64_t copied(const void *copy, size_t offset)
{
    uint64_t number;
    memcpy(&number, (const char *)copy + offset, sizeof number);
    return number;
}

static bool is_same(uint64_t number, const void *copy, size_t offset)
{
    return number % 2 == 0 && number == copied(copy, offset);
}

/* A part without its records. */
static void copy_rest(void *to, const struct shc_board_group_shm *part)
{
    for (int look = 0; look < LOOKS; look++) {
        copy_words(to, part, REST_BYTES);
        /* acquire board/clock <- release in shc_board_note_clock(): the moment has not changed. */
        const uint64_t clock = shc_a64_load_acquire(&part->clock_number);
        /* acquire board/messages <- release in shc_board_messages(): the numbers have not changed. */
        const uint64_t messages = shc_a64_load_acquire(&part->messages.number);
        /* acquire board/device <- release in shc_board_device(): the text has not changed. */
        const uint64_t device = shc_a64_load_acquire(&part->device.number);
        /* acquire board/device <- release in shc_board_device(): the text has not changed. */
        const uint64_t mail = shc_a64_load_acquire(&part->device_messages.number);
        /* acquire board/whom <- release in shc_board_missing(): the text has not changed. */
        const uint64_t over = shc_a64_load_acquire(&part->over.number);
#define SAME(number, field) is_same(number, to, offsetof(struct shc_board_group_shm, field))
        if (SAME(clock, clock_number) && SAME(messages, messages.number) &&
            SAME(device, device.number) && SAME(mail, device_messages.number) &&
            SAME(over, over.number))
            return;
#undef SAME
    }
}

/* A record that changes meanwhile is left out: its number is 0. */
static void copy_record(struct shc_board_record_shm *to, const struct shc_board_record_shm *from)
{
    copy_words(to, from, sizeof *to);
    /* acquire board/record <- release in shc_board_enter(): the fields have not changed. */
    /* acquire board/kept <- release in shc_board_keep(): the fields have not changed. */
    const uint64_t number = shc_a64_load_acquire(&from->number);
    /* relaxed: the copy is this thread's. */
    if (number != shc_a64_load_relaxed(&to->number)) {
        /* relaxed: the copy is this thread's. */
        shc_a64_store_relaxed(&to->number, 0);
    }
}

static int write_records(const struct shc_os_new_file *file,
                         const struct shc_board_record_shm *records, int count)
{
    union piece piece;
    int error = 0;
    for (int at = 0; at < count && error == 0; at += RECORDS_AT_ONCE) {
        for (int i = 0; i < RECORDS_AT_ONCE; i++)
            copy_record(&piece.records[i], &records[at + i]);
        error = shc_os_file_add(file, piece.records, sizeof piece.records);
    }
    return error;
}

/* Without a message that is kept their records are zeros: to look would give memory to their pages. */
static int write_kept(const struct shc_os_new_file *file, const shc_a64 *number,
                      const struct shc_board_record_shm *records, int count)
{
    static const struct shc_board_record_shm none[SHC_BOARD_KEPT];
    /* acquire board/kept <- release in shc_board_keep(): the records. */
    /* acquire board/kept <- release in shc_board_keep_device(): the records. */
    if (shc_a64_load_acquire(number) == 0)
        return shc_os_file_add(file, none, (size_t)count * sizeof none[0]);
    return write_records(file, records, count);
}

static int write_part(const struct shc_os_new_file *file, const struct shc_board_group_shm *part)
{
    union piece piece;
    copy_rest(&piece, part);
    int error = shc_os_file_add(file, &piece, REST_BYTES);
    if (error == 0)
        error = write_records(file, part->records, SHC_BOARD_RECORDS);
    if (error == 0)
        error = write_kept(file, &part->kept_messages, part->kept, SHC_BOARD_KEPT);
    if (error == 0)
        error = write_kept(file, &part->device_kept, part->device_records, SHC_BOARD_DEVICE);
    return error;
}

/* Which parts groups have, or that one. Groups take the first free part, so after one that was never used there is none:
 * to look further would give memory to all pages of the board. */
static int used_parts(const struct shc_board_header_shm *header,
                      const struct shc_board_group_shm *only, uint16_t used[SHC_BOARD_GROUPS])
{
    int count = 0;
    for (int i = 0; i < SHC_BOARD_GROUPS; i++) {
        const struct shc_board_group_shm *part = part_at(header, i);
        /* acquire board/state <- release in shc_board_begin() and shc_board_made(): its texts and members. */
        const uint32_t state = shc_a32_load_acquire(&part->state);
        if (state == SHC_BOARD_FREE && SHC_READ_ONCE(part->begun_ns) == 0)
            break;
        if (state != SHC_BOARD_FREE && state != SHC_BOARD_TAKEN && (!only || part == only))
            used[count++] = (uint16_t)i;
    }
    return count;
}

static int write_header(const struct shc_os_new_file *file,
                        const struct shc_board_header_shm *header, int count, int failed)
{
    union piece piece = {.words = {0}};
    copy_words(&piece.header, header, sizeof *header);
    piece.header.group_count = (uint32_t)count;
    piece.header.dumped_ns = shc_clock_ns();
    piece.header.dumped_unix_ns = shc_clock_unix_ns();
    piece.header.failed = (uint32_t)failed;
    shc_os_host_name(piece.header.host, sizeof piece.header.host);
    snprintf(piece.header.job, sizeof piece.header.job, "%s", shc_config_get()->job);
    return shc_os_file_add(file, &piece, SHC_PAGE_BYTES);
}

int shc_dump_write(const struct shc_board_header_shm *header,
                   const struct shc_board_group_shm *failed, bool whole, const char *path)
{
    uint16_t used[SHC_BOARD_GROUPS];
    const int count = used_parts(header, whole ? NULL : failed, used);
    int failed_part = 0;
    for (int i = 0; i < count; i++)
        if (part_at(header, used[i]) == failed)
            failed_part = i + 1;
    struct shc_os_new_file file;
    int error = shc_os_file_begin(&file, path);
    if (error != 0)
        return error;
    error = write_header(&file, header, count, failed_part);
    for (int i = 0; i < count && error == 0; i++)
        error = write_part(&file, part_at(header, used[i]));
    return shc_os_file_end(&file, path, error);
}

/* ---- when a group fails ---- */

/* One line for the process. */
static void warn_once(const char *what, const char *path, int error)
{
    static shc_a32 said;
    char why[SHC_STRERROR_BYTES] = "";
    /* acq_rel dump/said: only the first thread says it; no other data. */
    if (shc_a32_exchange_acq_rel(&said, 1) != 0)
        return;
    shc_log(SHC_LOG_WARN, "SHMCOLL_DUMP=%s: %s%s%s", path, what, error != 0 ? ": " : "",
            error != 0 ? strerror_r(error, why, sizeof why) : "");
}

/* DIR/shmcoll-JOB-GROUP-rank-R.dump. GROUP is the same on all ranks of the group. */
static bool name_file(const struct shc_board_group_shm *part, const char *folder, char *path,
                      size_t capacity)
{
    char host[64];
    const char *job = shc_config_get()->job;
    const int32_t global_rank = SHC_READ_ONCE(part->global_rank);
    const int32_t rank = global_rank >= 0 ? global_rank : SHC_READ_ONCE(part->rank);
    uint8_t nonce[4];
    shc_copy_once(nonce, part->nonce, sizeof nonce);
    shc_os_host_name(host, sizeof host);
    host[strcspn(host, "./")] = '\0';
    const int length =
        snprintf(path, capacity, "%s/shmcoll-%s-%02x%02x%02x%02x-rank-%d.dump", folder,
                 job[0] ? job : host, nonce[0], nonce[1], nonce[2], nonce[3], (int)rank);
    return length >= 0 && (size_t)length < capacity;
}

/* How many dumps this process has begun. Of a process with many groups all may fail, one after the other. So only
 * its first dump has them all: the process would write as many bytes as the square of their number. And a job may
 * make and lose groups for weeks: it must not fill the disk. */
static uint32_t count_dumps(const struct shc_board_header_shm *header)
{
    static shc_a32 process, count; /* a forked child has a board of its own */
    const uint32_t pid = (uint32_t)SHC_READ_ONCE(header->pid);
    /* acq_rel dump/first: only one thread finds another number there; no other data. */
    if (shc_a32_exchange_acq_rel(&process, pid) != pid) {
        /* relaxed: a number that decides nothing else. */
        shc_a32_store_relaxed(&count, 0);
    }
    /* acq_rel dump/count: each dump has its own number; no other data. */
    return shc_a32_add_acq_rel(&count, 1);
}

void shc_dump_failure(const struct shc_board *board)
{
    const char *folder = shc_config_get()->dump;
    char path[SHC_OS_PATH_BYTES];
    if (!folder)
        return;
    if (!name_file(board->shm, folder, path, sizeof path)) {
        warn_once("the name of the folder is too long for a dump", folder, 0);
        return;
    }
    const uint32_t before = count_dumps(board->header);
    if (before >= MOST_DUMPS) {
        warn_once("this process has written 256 dumps, and writes no more", folder, 0);
        return;
    }
    const int error = shc_dump_write(board->header, board->shm, before == 0, path);
    if (error != 0)
        warn_once("no dump of the group that has failed", folder, error);
    else
        shc_log(SHC_LOG_INFO, "the last calls of this process are in %s (shmcoll postmortem)",
                path);
}

void shc_dump_lacks_board(void)
{
    const char *folder = shc_config_get()->dump;
    if (folder)
        warn_once("no dump of the group that has failed: the group is not on a board "
                  "(SHMCOLL_BOARD=off, or the system refused one)",
                  folder, 0);
}

void shc_dump_check_folder(void)
{
    const char *folder = shc_config_get()->dump;
    const int error = folder ? shc_os_directory_check(folder) : 0;
    if (error != 0)
        warn_once("no dump will be written", folder, error);
}
