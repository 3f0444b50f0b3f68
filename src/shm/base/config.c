/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(struct shc_config, name)

/* Words stand for the minimum, the next number, ... in the order given. Where they end before the
 * maximum, a number behind theirs is a value as well. */
static const struct shc_config_row rows[] = {
    {"SHMCOLL_LOG", "what is written to stderr", "off|warn|info|trace", 0, 3, SHC_LOG_WARN,
     FIELD(log_level)},
    {"SHMCOLL_SEGMENT", "where a group's memory lives", "auto|unnamed|named|memfd", 0, 3,
     SHC_SEGMENT_AUTO, FIELD(segment)},
    {"SHMCOLL_CPU", "the best instruction set the kernels may use", "auto|base|avx2|avx512", 0, 3,
     SHC_CPU_AUTO, FIELD(cpu)},
    {"SHMCOLL_SPIN_US",
     "microseconds a wait spins before it gives its CPU away; -1 decides by the "
     "CPUs at hand",
     NULL, -1, 1000000, -1, FIELD(spin_us)},
    {"SHMCOLL_MOVE",
     "whether a waiting thread that finds another rank on its CPU goes to another one that it may "
     "use",
     "off|on", 0, 1, 1, FIELD(move)},
    {"SHMCOLL_CMA",
     "whether large blocks are copied by the kernel out of another rank's memory (cross-memory "
     "attach), where it lets all ranks of a group do so",
     "off|on", 0, 1, 1, FIELD(cma)},
    {"SHMCOLL_BIAS",
     "whether a thread that makes all of a group's calls has its turn, and the lock of its "
     "messages, without a locked instruction; when another one comes the kernel helps (membarrier)",
     "off|on", 0, 1, 1, FIELD(bias)},
    {"SHMCOLL_LATE_MS",
     "milliseconds after which a wait says whom it waits for, then at twice, "
     "four times, ...",
     NULL, 1, 86400000, 5000, FIELD(late_ms)},
    {"SHMCOLL_THREADS",
     "reduction threads per process, for large messages; auto: as many as the CPUs have room for "
     "beside the ranks",
     "auto", SHC_THREADS_AUTO, 256, 0, FIELD(threads)},
    {"SHMCOLL_ARENA_KIB",
     "limit of the staging memory that a group makes for large messages; 0 "
     "keeps the small slots",
     NULL, 0, 1 << 22, 32768, FIELD(arena_kib)},
    {"SHMCOLL_TUNING",
     "which algorithm and which chunks for which size: key=value,... or the name of a file",
     SHC_CONFIG_TEXT, 0, 0, 0, FIELD(tuning)},
};

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

/* The number behind the words. */
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
