/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/record.h"

#include "shm/proto/segment.h"

#include <stdio.h>
#include <string.h>

size_t shc_record_bytes(const union shc_record *record)
{
    switch (record->head.kind) {
    case SHC_RECORD_JOIN:
        return offsetof(struct shc_join, ranks) +
               (size_t)record->join.world_size * sizeof record->join.ranks[0];
    case SHC_RECORD_OFFER:
        return sizeof record->invitation;
    default:
        return sizeof record->verdict;
    }
}

/* ---- member lists ---- */

uint64_t shc_member_list_hash(const int32_t *ranks, int world_size)
{
    uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
    for (int i = 0; i < world_size; i++)
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ ((uint32_t)ranks[i] >> shift & 0xff)) * 0x100000001b3ULL;
    return hash;
}

void shc_member_list_text(const int32_t *ranks, int world_size, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0, last; i < world_size; i = last + 1) {
        char part[32];
        for (last = i; last + 1 < world_size && ranks[last + 1] - 1 == ranks[last];)
            last++;
        if (last < i + 2) /* 1, 2 is as short as 1-2 */
            last = i;
        int length = last > i ? snprintf(part, sizeof part, "%s%d-%d", i ? ", " : "", (int)ranks[i],
                                         (int)ranks[last])
                              : snprintf(part, sizeof part, "%s%d", i ? ", " : "", (int)ranks[i]);
        if (used + (size_t)length + sizeof ", ..." > capacity) {
            snprintf(text + used, capacity - used, ", ...");
            return;
        }
        memcpy(text + used, part, (size_t)length + 1);
        used += (size_t)length;
    }
}

/* ---- reading ---- */

/* How many bytes the UTF-8 character has that begins here; 0: none begins here. */
static size_t character_bytes(const char *text)
{
    const unsigned char first = (unsigned char)text[0];
    if (first < 0x80)
        return first >= 0x20 && first != 0x7f ? 1 : 0;
    const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) /* the end of the text, too */
            return 0;
    const unsigned char second = (unsigned char)text[1];
    const bool longer = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
    return longer || beyond ? 0 : bytes;
}

void shc_record_text(char *to, size_t capacity, const char *text)
{
    size_t used = 0;
    while (*text) {
        const size_t bytes = character_bytes(text);
        if (used + (bytes ? bytes : 1) >= capacity)
            break;
        if (bytes == 0)
            to[used++] = '?';
        else
            memcpy(to + used, text, bytes);
        used += bytes;
        text += bytes ? bytes : 1;
    }
    to[used] = '\0';
}

static const char *check_join(const struct shc_join *join, const struct shc_record_wish *wish)
{
    if (join->process.pid <= 0)
        return "it names no process";
    if (join->head.generation < 1 || join->head.generation > SHC_RECORD_GENERATIONS)
        return "its generation is out of range";
    for (int i = 0; i < join->world_size; i++)
        if (join->ranks[i] < 0)
            return "its list of members has a negative rank";
    if (join->head.list != shc_member_list_hash(join->ranks, join->world_size))
        return "its list of members is not the one that it was made with";
    if (join->head.rank < 0 || join->head.rank >= join->world_size ||
        join->ranks[join->head.rank] != wish->head.rank)
        return "it is another rank's";
    return NULL;
}

static const char *check_name(const struct shc_segment_name *name,
                              const struct shc_record_wish *wish)
{
    if (name->form < SHC_FORM_UNNAMED || name->form > SHC_FORM_MEMFD)
        return "it offers an unknown kind of memory";
    if (name->bytes != wish->segment_bytes)
        return "it offers memory of another size";
    if (name->creator.pid <= 0 || name->creator_fd < 0)
        return "it names no process and descriptor";
    if (!memchr(name->path, '\0', sizeof name->path) ||
        (name->path[0] != '\0') != (name->form == SHC_FORM_NAMED))
        return "the name of its memory is not one";
    return NULL;
}

static const char *check_verdict(const struct shc_verdict *verdict)
{
    if (verdict->status >= SHC_STATUS_COUNT)
        return "its status is out of range";
    if (!memchr(verdict->text, '\0', sizeof verdict->text))
        return "its text does not end";
    if (verdict->status == SHC_OK && verdict->head.rank != 0)
        return "only rank 0 decides that a group is made";
    return NULL;
}

static const char *check_head(const struct shc_record_head *head,
                              const struct shc_record_wish *wish)
{
    const struct shc_record_head *wanted = &wish->head;
    if (head->kind != wanted->kind)
        return "it is another kind of value";
    if (head->kind == SHC_RECORD_JOIN)
        return NULL;
    if (head->list != wanted->list)
        return "it is a group's of other members";
    if (head->generation != wanted->generation || head->attempt != wanted->attempt)
        return "it is another generation's or attempt's";
    if (head->rank < 0 || head->rank >= SHC_MAX_WORLD ||
        (wanted->rank >= 0 && head->rank != wanted->rank))
        return "it is another rank's";
    return NULL;
}

/* The whole of it: a record is exactly as long as its kind and its list need. */
static bool has_length(const union shc_record *record, size_t bytes)
{
    if (record->head.kind == SHC_RECORD_JOIN &&
        (bytes < offsetof(struct shc_join, ranks) || record->join.world_size < 1 ||
         record->join.world_size > SHC_MAX_WORLD))
        return false;
    return bytes == shc_record_bytes(record);
}

const char *shc_record_read(const struct shc_record_wish *wish, const void *value, size_t bytes,
                            union shc_record *record, bool *older)
{
    memset(record, 0, sizeof *record);
    *older = false;
    if (bytes < sizeof record->head || bytes > sizeof *record)
        return "it has another length";
    memcpy(record, value, bytes);
    if (record->head.magic != SHC_LAYOUT_MAGIC)
        return "nothing of this library wrote it";
    *older = record->head.layout_version != SHC_LAYOUT_VERSION;
    if (*older)
        return "another version wrote it";
    const char *why = check_head(&record->head, wish);
    if (!why && !has_length(record, bytes))
        why = "it has another length";
    if (why)
        return why;
    switch (record->head.kind) {
    case SHC_RECORD_JOIN:
        return check_join(&record->join, wish);
    case SHC_RECORD_OFFER:
        return check_name(&record->invitation.name, wish);
    default:
        return check_verdict(&record->verdict);
    }
}
