/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/tuning.h"

#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/os/os.h"

#include <stdio.h>
#include <string.h>

#define FILE_BYTES  16384
#define WORD_BYTES  48 /* of a key or a value */
#define PLACE_BYTES 320

struct key {
    const char *name;
    size_t offset; /* of the size_t in struct shc_tuning */
    size_t minimum, maximum, multiple;
    bool never; /* that word is a value, too: SIZE_MAX */
    bool own;   /* a rank may decide for itself */
};

enum { MOVES = SHC_INLINE_BYTES, REDUCES = SHC_SELECT_REDUCED_INLINE };
enum { SLOT = SHC_SMALL_SLOT_BYTES, RELAY = SHC_RELAY_BYTES };
enum { CELL = SHC_ARENA_MAX_CELL_BYTES, LEAST = SHC_ARENA_MIN_CELL_BYTES, LINE = SHC_LINE_BYTES };
#define MANY ((size_t)1 << 40)

/* clang-format off */
#define AT(field) offsetof(struct shc_tuning, field)
#define FORMS(op, kind, most, most_of_two)                                                   \
    {op ".inline",       AT(forms[kind].inline_bytes),       0, most, 1, false, false},      \
    {op ".small",        AT(forms[kind].small_bytes),        0, SLOT, 1, false, false},      \
    {op ".small_of_two", AT(forms[kind].small_bytes_of_two), 0, most_of_two, 1, false, false}

static const struct key keys[] = {
    FORMS("broadcast",      SHC_BROADCAST,      MOVES,   RELAY),
    FORMS("gather",         SHC_GATHER,         MOVES,   RELAY),
    FORMS("scatter",        SHC_SCATTER,        MOVES,   RELAY),
    FORMS("reduce",         SHC_REDUCE,         REDUCES, RELAY),
    FORMS("all_gather",     SHC_ALL_GATHER,     MOVES,   SLOT),
    FORMS("reduce_scatter", SHC_REDUCE_SCATTER, REDUCES, SLOT),
    FORMS("all_reduce",     SHC_ALL_REDUCE,     REDUCES, SLOT),
    {"all_to_all.small_of_two", AT(forms[SHC_ALL_TO_ALL].small_bytes_of_two), 0, SLOT, 1, false,
     false},
    {"all_reduce.one_use", AT(forms[SHC_ALL_REDUCE].one_use_bytes), 0, CELL, 1, false, false},
    {"all_reduce.sliced_from", AT(sliced_bytes), 0, MANY, 1, true, false},
    {"all_reduce.sliced_from_crowded", AT(sliced_bytes_crowded), 0, MANY, 1, true, false},
    {"reduce.sliced_from", AT(sliced_reduce_bytes), 0, MANY, 1, true, false},
    {"reduce.sliced_from_crowded", AT(sliced_reduce_bytes_crowded), 0, MANY, 1, true, false},
    {"reduce.spread_from", AT(spread_bytes), 0, MANY, 1, true, false},
    {"reduce.spread_from_crowded", AT(spread_bytes_crowded), 0, MANY, 1, true, false},
    {"turn",           AT(turn_bytes),        LEAST, CELL,                LINE, false, false},
    {"long_turn_from", AT(long_turn_bytes),   0,     MANY,                1,    true,  false},
    {"lockstep_from",  AT(lockstep_bytes),    0,     MANY,                1,    true,  false},
    {"chunk",          AT(arena.chunk_bytes),         2 * LEAST, 256 * CELL, 1, false, false},
    {"chunk_of_many",  AT(arena.chunk_of_many_bytes), 2 * LEAST, 256 * CELL, 1, false, false},
    {"depth",          AT(arena.depth),       2, SHC_ARENA_MAX_DEPTH,     1,    false, false},
    {"shout",          AT(arena.shout_bytes), LEAST, CELL,                LINE, false, false},
    {"shout_depth",    AT(arena.shout_depth), 2, SHC_ARENA_MAX_SHOUT_DEPTH, 1,  false, false},
    {"shout_depth_of_many", AT(arena.shout_depth_of_many), 2, SHC_ARENA_MAX_SHOUT_DEPTH, 1, false,
     false},
    {"flag",           AT(flag_bytes),        1,     CELL,                1,    false, false},
    {"stream",         AT(stream_bytes),      0,     MANY,                1,    true,  true},
    {"stream_out",     AT(stream_out_bytes),  0,     MANY,                1,    true,  true},
    {"ask_ahead",      AT(ask_ahead_bytes),   0,     MANY,                1,    true,  true},
    {"scatter.cma",    AT(scatter_cma_bytes), 1,     MANY,                1,    true,  false},
    {"scatter.cma_of_many", AT(scatter_cma_of_many_bytes), 1, MANY,       1,    true,  false},
};
/* clang-format on */

enum { KEYS = sizeof keys / sizeof keys[0] };
_Static_assert(KEYS <= SHC_TUNING_WORDS, "the header has a word for every key");

static size_t value_of(const struct shc_tuning *tuning, const struct key *key)
{
    size_t value;
    memcpy(&value, (const char *)tuning + key->offset, sizeof value);
    return value;
}

/* ---- reading ---- */

/* Where an error is: in what somebody set, or on a line of the file that it names. */
struct source {
    const char *origin;
    const char *path; /* NULL: the text itself */
    int line;
};

static enum shc_status fail(const struct source *source, const char *why, const char *word)
{
    char place[PLACE_BYTES] = "";
    if (source->path)
        snprintf(place, sizeof place, ", line %d of %.256s", source->line, source->path);
    return shc_fail(SHC_ERR_INVALID, "%s%s: \"%s\" %s", source->origin, place, word, why);
}

/* "64k": digits and at most one letter. */
static bool parse_size(const char *word, size_t *value)
{
    static const char units[] = "kmg";
    uint64_t number = 0;
    if (*word < '0' || *word > '9')
        return false;
    for (; *word >= '0' && *word <= '9'; word++)
        if (shc_mul_overflows(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*word - '0'), &number))
            return false;
    const char *unit = *word ? strchr(units, *word | 0x20) : NULL;
    if (*word && (!unit || word[1] != '\0' ||
                  shc_mul_overflows(number, 1ULL << 10 * (unit - units + 1), &number)))
        return false;
    *value = (size_t)number;
    return true;
}

static enum shc_status fail_value(const struct source *source, const struct key *key,
                                  const char *word)
{
    char why[160], multiple[48] = "", pair[2 * WORD_BYTES + 2];
    if (key->multiple > 1)
        snprintf(multiple, sizeof multiple, "a multiple of %zu ", key->multiple);
    snprintf(why, sizeof why, "is not %s%sfrom %zu to %zu%s", multiple,
             key->multiple > 1 ? "" : "a number ", key->minimum, key->maximum,
             key->never ? ", nor never" : "");
    snprintf(pair, sizeof pair, "%s=%s", key->name, word);
    return fail(source, why, pair);
}

static enum shc_status set(struct shc_tuning *tuning, const struct source *source,
                           const struct key *key, const char *word)
{
    size_t value = SIZE_MAX;
    const bool never = key->never && strcmp(word, "never") == 0;
    if (!never && (!parse_size(word, &value) || value < key->minimum || value > key->maximum ||
                   value % key->multiple != 0))
        return fail_value(source, key, word);
    memcpy((char *)tuning + key->offset, &value, sizeof value);
    return SHC_OK;
}

/* `text`, without the blanks around it. False: too long for a word. */
static bool copy_word(char word[WORD_BYTES], const char *text, size_t bytes)
{
    static const char blanks[] = " \t\r";
    for (; bytes > 0 && strchr(blanks, text[0]); bytes--)
        text++;
    while (bytes > 0 && strchr(blanks, text[bytes - 1]))
        bytes--;
    snprintf(word, WORD_BYTES, "%.*s", (int)bytes, text);
    return bytes < WORD_BYTES;
}

/* One `key = value`, or nothing. */
static enum shc_status read_pair(struct shc_tuning *tuning, const struct source *source,
                                 const char *text, size_t bytes, uint64_t *seen)
{
    char name[WORD_BYTES], word[WORD_BYTES];
    const char *equals = memchr(text, '=', bytes);
    size_t name_bytes = equals ? (size_t)(equals - text) : bytes;
    bool fits = copy_word(name, text, name_bytes);
    if (!equals)
        return name[0] ? fail(source, "is not key=value", name) : SHC_OK;
    if (!copy_word(word, equals + 1, bytes - name_bytes - 1) || !fits)
        return fail(source, "is followed by, or is, a word that is too long", name);
    for (int i = 0; i < KEYS; i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (*seen >> i & 1)
            return fail(source, "is given twice", name);
        *seen |= 1ULL << i;
        return set(tuning, source, &keys[i], word);
    }
    return fail(source, "is not a key (docs/notebook/performance.md, \"Tuning\", has them)", name);
}

static enum shc_status read_text(struct shc_tuning *tuning, struct source *source, const char *text)
{
    uint64_t seen = 0;
    for (source->line = 1; *text; source->line++) {
        const char *end = text + strcspn(text, "\n");
        const char *comment = memchr(text, '#', (size_t)(end - text));
        const char *last = comment ? comment : end;
        while (text < last) {
            size_t bytes = shc_min_size(strcspn(text, ","), (size_t)(last - text));
            SHC_TRY(read_pair(tuning, source, text, bytes, &seen));
            text += bytes + (text + bytes < last);
        }
        text = end + (*end == '\n');
    }
    return SHC_OK;
}

enum shc_status shc_tuning_read(const char *origin, const char *text,
                                const struct shc_tuning *preset, struct shc_tuning *tuning)
{
    struct source source = {.origin = origin};
    *tuning = *preset;
    if (!text)
        return SHC_OK;
    if (*text != '/' && *text != '@')
        return read_text(tuning, &source, text);
    char content[FILE_BYTES];
    source.path = text + (*text == '@');
    int error = shc_os_read_text(source.path, content, sizeof content);
    if (error != 0)
        return shc_fail_errno(SHC_ERR_INVALID, error, "%s: cannot read %.256s", origin,
                              source.path);
    if (strlen(content) == sizeof content - 1)
        return shc_fail(SHC_ERR_INVALID, "%s: %.256s has more than %d bytes", origin, source.path,
                        FILE_BYTES - 1);
    return read_text(tuning, &source, content);
}

/* ---- comparing and showing ---- */

void shc_tuning_share(const struct shc_tuning *tuning, uint64_t words[SHC_TUNING_WORDS])
{
    memset(words, 0, SHC_TUNING_WORDS * sizeof words[0]);
    for (int i = 0; i < KEYS; i++)
        if (!keys[i].own)
            words[i] = value_of(tuning, &keys[i]);
}

static const char *value_text(char text[WORD_BYTES], uint64_t value)
{
    snprintf(text, WORD_BYTES, "%llu", (unsigned long long)value);
    return value == SIZE_MAX ? "never" : text;
}

enum shc_status shc_tuning_compare(const struct shc_tuning *tuning,
                                   const uint64_t words[SHC_TUNING_WORDS])
{
    char here[WORD_BYTES], there[WORD_BYTES];
    for (int i = 0; i < KEYS; i++) {
        size_t value = value_of(tuning, &keys[i]);
        if (!keys[i].own && value != words[i])
            return shc_fail(SHC_ERR_MISMATCH,
                            "tuning differs: %s is %s, on rank 0 it is %s; all ranks of a group "
                            "need the same (SHMCOLL_TUNING, or the group's option tuning)",
                            keys[i].name, value_text(here, value), value_text(there, words[i]));
    }
    return SHC_OK;
}

size_t shc_tuning_print(const struct shc_tuning *tuning, char *text, size_t capacity)
{
    char word[WORD_BYTES];
    size_t used = 0;
    for (int i = 0; i < KEYS; i++) {
        size_t at = shc_min_size(used, capacity);
        used += (size_t)snprintf(text + at, capacity - at, "tuning.%s=%s\n", keys[i].name,
                                 value_text(word, value_of(tuning, &keys[i])));
    }
    return used;
}
