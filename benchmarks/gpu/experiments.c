/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a GPU really does, asked before anything is built on the answers:
 *
 *   gpu_experiments [OPTIONS] EXPERIMENT...
 *     info      the GPU, the driver, what they say of themselves
 *     share     slabs between processes by file descriptor and by legacy handle, data checked
 *     release   what ends a stream's pending wait for a word in GPU and in host memory
 *     handoff   how long a word takes from stream to stream, through all processes
 *     copies    GB/s inside the GPU and to and from registered memory, alone and all at once
 *     relay     one operation through host memory, without a kernel
 *     register  registering the same host memory in all processes, seconds a GiB
 *     kill      a process is killed while another waits for it, or while it waits itself
 *     graph     stream writes and waits in a graph that is replayed
 *     all       these, in this order
 *     ptx       the kernels' text
 *   --driver LIBRARY (libcuda.so.1)   --gpu ORDINAL   --image FILE   --ranks 2,4,8
 *   --small   --json   --limit SECONDS (of each group of processes)   --patience MILLISECONDS
 *
 * exit code: 0; 1 when an experiment failed; 2 after bad usage
 */
#include "experiments.h"
#include "cuda_ipc/driver.h"
#include "lab.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(const struct options *options);
} experiments[] = {
    {"info", experiment_info},       {"share", experiment_share},
    {"release", experiment_release}, {"handoff", experiment_handoff},
    {"copies", experiment_copies},   {"register", experiment_register},
    {"kill", experiment_kill},       {"graph", experiment_graph},
    {"relay", experiment_relay},
};

#define EXPERIMENTS (sizeof experiments / sizeof experiments[0])

/* ---- info ---- */

static const struct {
    const char *name;
    int attribute;
} attributes[] = {
    {"multiprocessors", 16},    {"copy_engines", 40},  {"compute_mode", 20},
    {"unified_addressing", 41}, {"host_pointer", 91},  {"host_atomics", 86},
    {"memops_64", 93},          {"memops_v2_64", 122}, {"host_register", 99},
    {"fd_handles", 103},        {"memory_pools", 115},
};

static enum shc_status tell(struct lab *lab)
{
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "gpu", lab->gpu.name);
    line_number(&line, "driver", lab->driver.version);
    line_number(&line, "devices", lab->driver.device_count);
    line_number(&line, "capability", lab->gpu.capability);
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        int value;
        if (lab->driver.cuDeviceGetAttribute(&value, attributes[i].attribute, lab->gpu.device) ==
            SHC_CU_SUCCESS)
            line_number(&line, attributes[i].name, value);
    }
    line_number(&line, "free_mib", extras_free_mib(&lab->extras));
    line_text(&line, "graphs", extras_have_graphs(&lab->extras) ? "yes" : "no");
    line_text(&line, "kernels", lab->kernels.why_not[0] ? lab->kernels.why_not : "yes");
    line_end(&line);
    return SHC_OK;
}

int experiment_info(const struct options *options)
{
    struct job job = {.experiment = "info", .body = tell, .world = 1};
    return job_run(options, &job);
}

/* ---- the command line ---- */

static int usage(const char *why)
{
    fprintf(stderr, "gpu_experiments: %s\nexperiments: ", why);
    for (size_t i = 0; i < EXPERIMENTS; i++)
        fprintf(stderr, "%s ", experiments[i].name);
    fprintf(stderr, "all ptx; options: --driver --gpu --image --ranks --small --json --limit "
                    "--patience (the source says more)\n");
    return 2;
}

/* "2,4,8" */
static bool read_worlds(const char *text, struct options *options)
{
    options->world_count = 0;
    for (char *end; options->world_count < WORLDS_MAX; text = end + 1) {
        const long world = strtol(text, &end, 10);
        if (end == text || world < 2 || world > RANKS_MAX - 2)
            return false;
        options->worlds[options->world_count++] = (int)world;
        if (*end != ',')
            return *end == '\0';
    }
    return false;
}

static bool read_number(const char *text, double least, double most, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

/* False after bad usage. */
static bool read_options(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"driver", required_argument, NULL, 'd'},
        {"gpu", required_argument, NULL, 'g'},
        {"image", required_argument, NULL, 'i'},
        {"ranks", required_argument, NULL, 'r'},
        {"limit", required_argument, NULL, 'l'},
        {"patience", required_argument, NULL, 'p'},
        {"small", no_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {NULL, 0, NULL, 0},
    };
    double number = 0;
    bool good = true;
    for (int c; good && (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'd')
            options->driver = optarg;
        else if (c == 'i')
            options->image = optarg;
        else if (c == 's')
            options->small = true;
        else if (c == 'j')
            options->json = true;
        else if (c == 'r')
            good = read_worlds(optarg, options);
        else if (c == 'g' && (good = read_number(optarg, 0, 63, &number)))
            options->ordinal = (int)number;
        else if (c == 'l' && (good = read_number(optarg, 0.1, 3600, &number)))
            options->limit_ns = (uint64_t)(number * (double)SHC_NS_PER_S);
        else if (c == 'p' && (good = read_number(optarg, 1, 60000, &number)))
            options->patience_ns = (uint64_t)(number * (double)SHC_NS_PER_MS);
        else if (c == '?')
            good = false;
    }
    return good;
}

static int run_one(const char *name, const struct options *options)
{
    int failed = 0;
    bool known = false;
    for (size_t i = 0; i < EXPERIMENTS; i++)
        if (strcmp(name, experiments[i].name) == 0 || strcmp(name, "all") == 0) {
            failed |= experiments[i].run(options);
            known = true;
        }
    return known ? failed : usage("there is no such experiment");
}

int main(int argc, char **argv)
{
    struct options options = {
        .driver = SHC_DRIVER_LIBRARY,
        .worlds = {2, 4, 8},
        .world_count = 3,
        .limit_ns = 60 * SHC_NS_PER_S,
        .patience_ns = SHC_NS_PER_S,
    };
    int failed = 0;
    if (!read_options(argc, argv, &options))
        return usage("an option is unknown or has no good value");
    if (optind == argc)
        return usage("which experiment?");
    for (int i = optind; i < argc && failed < 2; i++) {
        if (strcmp(argv[i], "ptx") == 0)
            fputs(kernels_ptx(), stdout);
        else
            failed |= run_one(argv[i], &options);
    }
    return failed > 2 ? 2 : failed;
}
