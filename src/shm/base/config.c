/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/config.h"

#include "shm/base/num.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIELD(name) offsetof(struct shc_config, name)
#define TEXT        "text" /* in place of the words: the value is text, which its user parses */

struct row {
    const char *variable;
    const char *values;              /* its words, or NULL for a number; or TEXT */
    int minimum, maximum, otherwise; /* words stand for the numbers from the minimum on */
    size_t offset;                   /* of the int, or the text, in struct shc_config */
};

/* Words stand for the minimum, the next number, and so on, in the order given. If there are fewer
 * words than numbers, a number after theirs is a value as well. */
static const struct row rows[] = {
    {"SHMCOLL_LOG", "off|warn|info|trace", 0, 3, SHC_LOG_WARN, FIELD(log_level)},
    {"SHMCOLL_LOG_FILE", TEXT, 0, 0, 0, FIELD(log_file)},
    {"SHMCOLL_SEGMENT", "auto|unnamed|named|memfd", 0, 3, SHC_SEGMENT_AUTO, FIELD(segment)},
    {"SHMCOLL_CPU", "auto|base|avx2|avx512", 0, 3, SHC_CPU_AUTO, FIELD(cpu)},
    {"SHMCOLL_SPIN_US", NULL, -1, 1000000, -1, FIELD(spin_us)},
    {"SHMCOLL_MOVE", "off|on", 0, 1, 1, FIELD(move)},
    {"SHMCOLL_CMA", "off|on", 0, 1, 1, FIELD(cma)},
    {"SHMCOLL_BIAS", "off|on", 0, 1, 1, FIELD(bias)},
    {"SHMCOLL_LATE_MS", NULL, 1, 86400000, 5000, FIELD(late_ms)},
    {"SHMCOLL_ON_DEADLOCK", "warn|raise", 0, 1, 0, FIELD(raises)},
    {"SHMCOLL_BOARD", "off|counts|times", 0, 2, 2, FIELD(board)},
    {"SHMCOLL_DUMP", TEXT, 0, 0, 0, FIELD(dump)},
    {"SHMCOLL_TRACEABLE", "0|1", 0, 1, 0, FIELD(traceable)},
    {"SHMCOLL_THREADS", "auto", SHC_THREADS_AUTO, 256, 0, FIELD(threads)},
    {"SHMCOLL_ARENA_KIB", "auto", SHC_ARENA_AUTO, 1 << 22, SHC_ARENA_AUTO, FIELD(arena_kib)},
    {"SHMCOLL_TUNING", TEXT, 0, 0, 0, FIELD(tuning)},
};

/* Names that begin with SHMCOLL_ and that other programs read. */
static const char *const elsewhere[] = {
    "SHMCOLL_AUTOLOAD", "SHMCOLL_FAKE_HOSTS", "SHMCOLL_FOR_GLOO",
    "SHMCOLL_FOR_VLLM", "SHMCOLL_GLUE",       "SHMCOLL_ENGINE",
    "SHMCOLL_HOSTS",    "SHMCOLL_RAILS",      "SHMCOLL_RELAY",
};

#define PREFIX       "SHMCOLL_"
#define PREFIX_BYTES (sizeof PREFIX - 1)

static struct shc_config config;
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

/* The position of `text` in "a|b|c", or -1. */
static int word_index(const char *words, const char *text)
{
    size_t length = strlen(text);
    for (int index = 0; *words; index++) {
        size_t word = strcspn(words, "|");
        if (word == length && memcmp(words, text, length) == 0)
            return index;
        words += word + (words[word] == '|');
    }
    return -1;
}

/* The number that follows the words. */
static int first_number(const struct row *row)
{
    int words = row->values ? 1 : 0;
    for (const char *at = row->values; at && *at; at++)
        words += *at == '|';
    return row->minimum + words;
}

static int parse(const struct row *row, const char *text)
{
    const int first = first_number(row);
    const int index = row->values ? word_index(row->values, text) : -1;
    if (index >= 0)
        return row->minimum + index;
    char *end;
    long value = strtol(text, &end, 10);
    if (end != text && *end == '\0' && value >= first && value <= row->maximum)
        return (int)value;
    fprintf(stderr, "shmcoll: %s=%s is not ", row->variable, text);
    if (row->values)
        fprintf(stderr, "one of %s%s", row->values, first <= row->maximum ? ", nor " : "");
    if (first <= row->maximum)
        fprintf(stderr, "a number from %d to %d", first, row->maximum);
    fprintf(stderr, "; ignored\n");
    return row->otherwise;
}

/* A copy: the program may change its environment. */
static void read_text(const struct row *row, const char *text)
{
    const char *copy = text && *text ? strdup(text) : NULL;
    memcpy((char *)&config + row->offset, &copy, sizeof copy);
}

/* The index-th of all names, or NULL. */
static const char *name_at(size_t index)
{
    const size_t read_here = sizeof rows / sizeof rows[0];
    if (index < read_here)
        return rows[index].variable;
    index -= read_here;
    return index < sizeof elsewhere / sizeof elsewhere[0] ? elsewhere[index] : NULL;
}

/* Can at most that many edits (insert, delete or change a letter, or swap neighbours) turn a into
 * b? */
static bool is_near(const char *a, const char *b, int letters)
{
    for (; *a && *a == *b; a++)
        b++;
    if (*a == *b || letters == 0)
        return *a == *b;
    return (*a && is_near(a + 1, b, letters - 1)) || (*b && is_near(a, b + 1, letters - 1)) ||
           (*a && *b && is_near(a + 1, b + 1, letters - 1)) ||
           (*a && *b && a[0] == b[1] && a[1] == b[0] && is_near(a + 2, b + 2, letters - 1));
}

/* Was the unknown name `name` probably meant to be `known`? Yes if that many edits turn one into
 * the other (one edit for a short name), or if one begins with the words of the other (ARENA,
 * LOG_LEVEL). Both without the prefix. */
static bool is_meant(const char *name, const char *known, int letters)
{
    enum { SHORT = 6 };
    const size_t shorter = shc_min_size(strlen(name), strlen(known));
    if (letters == 0)
        return memcmp(name, known, shorter) == 0 && (name[shorter] == '_' || known[shorter] == '_');
    return is_near(name, known, strlen(known) <= SHORT ? 1 : letters);
}

static bool is_known(const char *name, size_t bytes)
{
    for (size_t i = 0; name_at(i); i++)
        if (strlen(name_at(i)) == bytes && memcmp(name_at(i), name, bytes) == 0)
            return true;
    return false;
}

/* The nearest known name, or NULL. Tests, tools and programs have names of their own. */
static const char *find_meant(const char *name)
{
    if (strncmp(name, PREFIX, PREFIX_BYTES) != 0) { /* then the prefix alone is misspelt */
        for (size_t i = 0; name_at(i); i++)
            if (is_near(name, name_at(i), 2) && strstr(name, name_at(i) + PREFIX_BYTES))
                return name_at(i);
        return NULL;
    }
    for (int letters = 0; letters <= 2; letters++)
        for (size_t i = 0; name_at(i); i++)
            if (is_meant(name + PREFIX_BYTES, name_at(i) + PREFIX_BYTES, letters))
                return name_at(i);
    return NULL;
}

static void tell_misspelt(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        const size_t bytes = strcspn(*entry, "=");
        char name[PREFIX_BYTES + 32];
        if (strncmp(*entry, PREFIX, 2) != 0 || /* of a misspelt prefix, too */
            bytes >= sizeof name || is_known(*entry, bytes))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *entry);
        const char *meant = find_meant(name);
        if (meant)
            fprintf(stderr, "shmcoll: nothing reads %s; did you mean %s?\n", name, meant);
    }
}

/* Launchers give all ranks of one run of a job the same words. */
static void read_job(void)
{
    static const struct {
        const char *id, *run;
    } launchers[] = {{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
                     {"SLURM_JOB_ID", "SLURM_STEP_ID"}};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0] && !config.job[0]; i++) {
        const char *id = getenv(launchers[i].id), *run = getenv(launchers[i].run);
        if (!id || !*id || strcmp(id, "none") == 0) /* torchrun's word for a job without a name */
            continue;
        snprintf(config.job, sizeof config.job, "%.44s%s%.16s", id, run ? "." : "", run ? run : "");
    }
    for (char *at = config.job; *at; at++) {
        const bool plain = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
                           (*at >= '0' && *at <= '9') || strchr("-_.", *at);
        if (!plain)
            *at = '_';
    }
}

static void read_environment(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *text = getenv(rows[i].variable);
        if (rows[i].values && strcmp(rows[i].values, TEXT) == 0) {
            read_text(&rows[i], text);
            continue;
        }
        int value = text && *text ? parse(&rows[i], text) : rows[i].otherwise;
        memcpy((char *)&config + rows[i].offset, &value, sizeof value);
    }
    read_job();
    if (config.log_level >= SHC_LOG_WARN)
        tell_misspelt();
}

const struct shc_config *shc_config_get(void)
{
    pthread_once(&config_once, read_environment);
    return &config;
}
