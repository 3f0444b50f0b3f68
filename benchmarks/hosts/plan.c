/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The library's own arithmetic for benchmarks/hosts/model.py, which compiles this file and lets the linker drop what
 * the functions below do not call.
 */
#include "hosts/group.c"
#include "hosts/hosts_payload.c"
#include "hosts/hosts_plan.c"

/* class Plan of model.py has the same members in the same order. */
struct sim_plan {
    uint64_t rails, chunk_bytes, payload_bytes, record_bytes, eager_bytes;
    uint64_t stage_bytes; /* of a rank that carries a rail */
    uint64_t depth, adds_whole;
};

/* A plan for equal hosts; 0, or 1 if there is none. */
__attribute__((visibility("default"))) int sim_plan(int hosts, int ranks, int rails,
                                                    struct sim_plan *out);

/* By the rate of the links, in bytes per second; 0: unknown. */
__attribute__((visibility("default"))) uint64_t sim_chunk(int hosts, int rails, uint64_t bytes,
                                                          uint64_t rate);
__attribute__((visibility("default"))) uint64_t sim_column(int hosts, int rails, uint64_t width,
                                                           uint64_t longest, uint64_t rate);

uint64_t sim_chunk(int hosts, int rails, uint64_t bytes, uint64_t rate)
{
    const struct shc_hosts_plan plan = {.hosts = hosts, .rails = rails};
    const uint64_t count = bytes / sizeof(float);
    return shc_hosts_chunk_by_rate(&plan, sizeof(float), count, rate) * sizeof(float);
}

uint64_t sim_column(int hosts, int rails, uint64_t width, uint64_t longest, uint64_t rate)
{
    const struct shc_hosts_plan plan = {.hosts = hosts, .rails = rails};
    return shc_hosts_column_by_rate(&plan, width, longest, rate);
}

int sim_plan(int hosts, int ranks, int rails, struct sim_plan *out)
{
    const int world = hosts * ranks;
    struct shc_hosts group = {.payload_bytes = shc_hosts_payload_bytes(hosts)};
    const char *why;
    int32_t *host_of = calloc((size_t)world, sizeof *host_of);
    if (!host_of)
        return 1;
    for (int rank = 0; rank < world; rank++)
        host_of[rank] = rank / ranks;
    const enum shc_status st = shc_hosts_plan_init(&group.plan, world, host_of, NULL, rails, &why);
    free(host_of);
    if (st != SHC_OK)
        return 1;
    *out = (struct sim_plan){
        .rails = (uint64_t)group.plan.rails,
        .chunk_bytes = shc_hosts_chunk_elements(&group.plan, 1),
        .payload_bytes = group.payload_bytes,
        .record_bytes = shc_hosts_record_bytes(&group),
        .eager_bytes = shc_hosts_eager_bytes(hosts),
        .stage_bytes = lay_out(&group, NULL),
        .depth = SHC_HOSTS_DEPTH,
        .adds_whole = shc_hosts_adds_whole(&group.plan),
    };
    shc_hosts_plan_fini(&group.plan);
    return 0;
}
