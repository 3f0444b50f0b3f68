/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/hosts_sum.h"

/* The range of a float of 16 or 8 bits is too small for the sum of an average. (bfloat16 has that of float32,
 * and is rounded on each host if that is wanted.) */
static enum shc_dtype dtype_of_sums(const struct shc_op *op, bool wide)
{
    const bool order = op->redop == SHC_MIN || op->redop == SHC_MAX;
    if (op->dtype == SHC_FLOAT16 || (op->dtype == SHC_BFLOAT16 && wide) ||
        (op->dtype >= SHC_FLOAT8_E4M3FN && op->dtype <= SHC_FLOAT8_E5M2FNUZ))
        return order ? op->dtype : SHC_FLOAT32;
    const bool integer = op->dtype <= SHC_UINT32 && op->dtype != SHC_INT64;
    return integer && op->redop == SHC_AVG ? SHC_INT64 : op->dtype;
}

struct shc_hosts_sum shc_hosts_sum_of(const struct shc_hosts_call *call)
{
    struct shc_hosts_sum sum = {.call = call, .dtype = dtype_of_sums(call->op, call->hosts->wide)};
    sum.elem_bytes = (uint32_t)shc_dtype_bytes(sum.dtype);
    sum.wider = sum.dtype != call->op->dtype;
    return sum;
}

/* Adds hosts->sources. */
static enum shc_status fold(const struct shc_hosts_sum *sum, char *to, uint64_t count)
{
    const struct shc_hosts *hosts = sum->call->hosts;
    return shc_fold(sum->dtype, sum->call->op->redop, hosts->sources, hosts->plan.hosts, to, count,
                    (uint32_t)hosts->plan.world);
}

enum shc_status shc_hosts_fold(const struct shc_hosts_sum *sum, const char *from, size_t stride,
                               char *to, uint64_t count)
{
    const struct shc_hosts *hosts = sum->call->hosts;
    for (int host = 0; host < hosts->plan.hosts; host++)
        hosts->sources[host] = from + (size_t)host * stride;
    return fold(sum, to, count);
}

enum shc_status shc_hosts_fold_data(const struct shc_hosts_sum *sum, uint64_t first, uint64_t bytes,
                                    char *to, uint64_t count)
{
    const struct shc_hosts *hosts = sum->call->hosts;
    for (int host = 0; host < hosts->plan.hosts; host++)
        hosts->sources[host] = shc_hosts_data_taken(hosts, host, first, bytes);
    return fold(sum, to, count);
}

struct shc_op shc_hosts_island_sum(const struct shc_hosts_sum *sum, enum shc_op_kind kind)
{
    const struct shc_op *op = sum->call->op;
    return (struct shc_op){
        .kind = kind,
        .dtype = sum->dtype,
        .redop = op->redop == SHC_AVG ? SHC_SUM : op->redop,
        .premul = op->premul,
    };
}

enum shc_status shc_hosts_widen(const struct shc_hosts_sum *sum, char *from, char *room,
                                uint64_t count, char **at)
{
    *at = sum->wider ? room : from;
    return sum->wider ? shc_convert(sum->call->op->dtype, from, sum->dtype, room, count) : SHC_OK;
}

enum shc_status shc_hosts_narrow(const struct shc_hosts_sum *sum, char *from, char *room,
                                 uint64_t count, char **at)
{
    *at = sum->wider ? room : from;
    return sum->wider ? shc_convert(sum->dtype, from, sum->call->op->dtype, room, count) : SHC_OK;
}
