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

/* Words stand for the minimum, the next number, and so on, in the order given. If there are fewer
 * words than numbers, a number after theirs is a value as well. */
static const struct shc_config_row rows[] = {
    {"SHMCOLL_LOG", "what is written to stderr", "off|warn|info|trace", 0, 3, SHC_LOG_WARN,
     FIELD(log_level)},
    {"SHMCOLL_LOG_FILE",
     "the file for these lines, in place of stderr; %h, %r and %p in its name stand for the host, "
     "the rank and the pid",
     SHC_CONFIG_TEXT, 0, 0, 0, FIELD(log_file)},
    {"SHMCOLL_SEGMENT", "where a group's memory lives", "auto|unnamed|named|memfd", 0, 3,
     SHC_SEGMENT_AUTO, FIELD(segment)},
    {"SHMCOLL_CPU", "the best instruction set the kernels may use", "auto|base|avx2|avx512", 0, 3,
     SHC_CPU_AUTO, FIELD(cpu)},
    {"SHMCOLL_SPIN_US",
     "microseconds a wait spins before it yields its CPU; -1 decides by the "
     "CPUs at hand",
     NULL, -1, 1000000, -1, FIELD(spin_us)},
    {"SHMCOLL_MOVE",
     "whether a waiting thread that finds another rank on its CPU moves to another CPU that it may "
     "use",
     "off|on", 0, 1, 1, FIELD(move)},
    {"SHMCOLL_CMA",
     "whether large blocks are copied by the kernel out of another rank's memory (cross-memory "
     "attach), where it lets all ranks of a group do so",
     "off|on", 0, 1, 1, FIELD(cma)},
    {"SHMCOLL_BIAS",
     "whether a thread that makes all of a group's calls runs them, and locks its "
     "messages, without a locked instruction; another thread then needs membarrier",
     "off|on", 0, 1, 1, FIELD(bias)},
    {"SHMCOLL_LATE_MS",
     "milliseconds after which a wait says which rank it waits for, then at twice, "
     "four times, ...",
     NULL, 1, 86400000, 5000, FIELD(late_ms)},
    {"SHMCOLL_ON_DEADLOCK",
     "what one of the ranks that wait for one another in a cycle does when it is late: say so, or "
     "also "
     "fail its call",
     "warn|raise", 0, 1, 0, FIELD(raises)},
    {"SHMCOLL_BOARD",
     "what `shmcoll status` can see of this process: nothing, calls and counts, or also times",
     "off|counts|times", 0, 2, 2, FIELD(board)},
    {"SHMCOLL_DUMP",
     "a folder that gets a file for each rank of a group that fails, with its last calls",
     SHC_CONFIG_TEXT, 0, 0, 0, FIELD(dump)},
    {"SHMCOLL_TRACEABLE",
     "whether each process of this user may trace this one where Yama allows that to ancestors "
     "alone",
     "0|1", 0, 1, 0, FIELD(traceable)},
    {"SHMCOLL_THREADS",
     "reduction threads per process, for large messages; auto: as many as the CPUs have room for "
     "besides the ranks",
     "auto", SHC_THREADS_AUTO, 256, 0, FIELD(threads)},
    {"SHMCOLL_ARENA_KIB",
     "limit of the staging memory that a group makes for large messages; auto: 32768, or 6 times "
     "the square of the number of ranks; 0 keeps the small slots",
     "auto", SHC_ARENA_AUTO, 1 << 22, SHC_ARENA_AUTO, FIELD(arena_kib)},
    {"SHMCOLL_TUNING",
     "which algorithm and which chunks for which size: key=value,... or the name of a file",
     SHC_CONFIG_TEXT, 0, 0, 0, FIELD(tuning)},
};

/* Names that begin with SHMCOLL_ and that other programs read. */
static const char *const elsewhere[] = {
    "SHMCOLL_AUTOLOAD", "SHMCOLL_FAKE_HOSTS", "SHMCOLL_FOR_GLOO", "SHMCOLL_FOR_VLLM",
    "SHMCOLL_GLUE",     "SHMCOLL_HOSTS",      "SHMCOLL_RAILS",    "SHMCOLL_RELAY",
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
static int first_number(const struct shc_config_row *row)
{
    int words = row->values ? 1 : 0;
    for (const char *at = row->values; at && *at; at++)
        words += *at == '|';
    return row->minimum + words;
}

static int parse(const struct shc_config_row *row, const char *text)
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
    return row->preset;
}

/* A copy: the program may change its environment. */
static void read_text(const struct shc_config_row *row, const char *text)
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
        if (strncmp(*entry, PREFIX, PREFIX_BYTES) != 0 || bytes >= sizeof name ||
            is_known(*entry, bytes))
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
        if (rows[i].values && strcmp(rows[i].values, SHC_CONFIG_TEXT) == 0) {
            read_text(&rows[i], text);
            continue;
        }
        int value = text && *text ? parse(&rows[i], text) : rows[i].preset;
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

const struct shc_config_row *shc_config_describe(size_t index)
{
    return index < sizeof rows / sizeof rows[0] ? &rows[index] : NULL;
}
