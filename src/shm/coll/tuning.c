/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/tuning.h"

#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/coll/keys.h"
#include "shm/os/os.h"

#include <stdio.h>
#include <string.h>

#define FILE_BYTES  16384
#define WORD_BYTES  48 /* of a key or a value */
#define PLACE_BYTES 320

_Static_assert(SHC_KEYS <= SHC_TUNING_WORDS, "the header has a word for every key");

static size_t value_of(const struct shc_tuning *tuning, const struct shc_key *key)
{
    size_t value;
    memcpy(&value, (const char *)tuning + key->offset, sizeof value);
    return value;
}

/* ---- reading ---- */

/* What an error names: the variable or option, and the line of the file if the option names one. */
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

static enum shc_status fail_value(const struct source *source, const struct shc_key *key,
                                  const char *word)
{
    char why[160], multiple[48] = "", pair[2 * WORD_BYTES + 2];
    if (key->multiple > 1)
        snprintf(multiple, sizeof multiple, "a multiple of %zu ", key->multiple);
    snprintf(why, sizeof why, "is not %s%sfrom %zu to %zu%s%s", multiple,
             key->multiple > 1 ? "" : "a number ", key->minimum, key->maximum,
             key->has_never ? ", nor never" : "", key->has_auto ? ", nor auto" : "");
    snprintf(pair, sizeof pair, "%s=%s", key->name, word);
    return fail(source, why, pair);
}

static enum shc_status fail_key(const struct source *source, const char *name)
{
    char why[96];
    const char *instead = shc_key_instead_of(name);
    if (!instead)
        return fail(source, "is not a key (docs/reference/tuning-keys.md has them)", name);
    snprintf(why, sizeof why, "is retired; use %s instead", instead);
    return fail(source, why, name);
}

static bool parse_value(const struct shc_key *key, const char *word, size_t *value)
{
    if (key->has_never && strcmp(word, "never") == 0)
        *value = SIZE_MAX;
    else if (key->has_auto && strcmp(word, "auto") == 0)
        *value = SHC_TUNING_AUTO;
    else
        return parse_size(word, value) && *value >= key->minimum && *value <= key->maximum &&
               *value % key->multiple == 0;
    return true;
}

static enum shc_status set(struct shc_tuning *tuning, const struct source *source,
                           const struct shc_key *key, const char *word)
{
    size_t value;
    if (!parse_value(key, word, &value))
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
        return name[0] ? fail(source,
                              source->path ? "is not key=value"
                                           : "is not key=value (a file: /its/path, or @its/path)",
                              name)
                       : SHC_OK;
    if (!copy_word(word, equals + 1, bytes - name_bytes - 1) || !fits)
        return fail(source, "is followed by, or is, a word that is too long", name);
    for (int i = 0; i < SHC_KEYS; i++) {
        if (strcmp(shc_keys[i].name, name) != 0)
            continue;
        if (*seen >> i & 1)
            return fail(source, "is given twice", name);
        *seen |= 1ULL << i;
        return set(tuning, source, &shc_keys[i], word);
    }
    return fail_key(source, name);
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
                                const struct shc_tuning *defaults, struct shc_tuning *tuning)
{
    struct source source = {.origin = origin};
    *tuning = *defaults;
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

/* ---- comparing and printing ---- */

void shc_tuning_share(const struct shc_tuning *tuning, uint64_t words[SHC_TUNING_WORDS])
{
    memset(words, 0, SHC_TUNING_WORDS * sizeof words[0]);
    for (int i = 0; i < SHC_KEYS; i++)
        if (!shc_keys[i].may_differ)
            words[i] = value_of(tuning, &shc_keys[i]);
}

static const char *value_text(char text[WORD_BYTES], uint64_t value)
{
    snprintf(text, WORD_BYTES, "%llu", (unsigned long long)value);
    return value == SIZE_MAX ? "never" : value == SHC_TUNING_AUTO ? "auto" : text;
}

enum shc_status shc_tuning_compare(const struct shc_tuning *tuning,
                                   const uint64_t words[SHC_TUNING_WORDS])
{
    char here[WORD_BYTES], there[WORD_BYTES];
    for (int i = 0; i < SHC_KEYS; i++) {
        size_t value = value_of(tuning, &shc_keys[i]);
        if (!shc_keys[i].may_differ && value != words[i])
            return shc_fail(SHC_ERR_MISMATCH,
                            "tuning differs: %s is %s, on rank 0 it is %s; all ranks of a group "
                            "need the same (SHMCOLL_TUNING, or " SHC_TUNING_OPTION ")",
                            shc_keys[i].name, value_text(here, value), value_text(there, words[i]));
    }
    return SHC_OK;
}

size_t shc_tuning_print(const struct shc_tuning *tuning, char *text, size_t capacity)
{
    char word[WORD_BYTES];
    size_t used = 0;
    for (int i = 0; i < SHC_KEYS; i++) {
        size_t at = shc_min_size(used, capacity);
        used += (size_t)snprintf(text + at, capacity - at, "tuning.%s=%s\n", shc_keys[i].name,
                                 value_text(word, value_of(tuning, &shc_keys[i])));
    }
    return used;
}
