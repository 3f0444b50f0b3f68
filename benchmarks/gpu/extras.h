/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Functions of the driver that experiments need and the library does not: they stay out of its
 * table. Any of them may be missing (NULL).
 */

#include "cuda_ipc/cuda_abi.h"
#include <stdbool.h>

struct shc_cu_graph;
struct shc_cu_graph_exec;

#define EXTRA_CAPTURE_RELAXED 2

struct extras {
    int (*mem_info)(size_t *free_bytes, size_t *all_bytes);
    int (*begin_capture)(struct shc_cu_stream *stream, int mode);
    int (*end_capture)(struct shc_cu_stream *stream, struct shc_cu_graph **graph);
    int (*instantiate)(struct shc_cu_graph_exec **exec, struct shc_cu_graph *graph,
                       unsigned long long flags);
    int (*launch)(struct shc_cu_graph_exec *exec, struct shc_cu_stream *stream);
    int (*destroy_exec)(struct shc_cu_graph_exec *exec);
    int (*destroy_graph)(struct shc_cu_graph *graph);
    int (*copy_peer)(shc_cu_address to, struct shc_cu_context *to_context, shc_cu_address from,
                     struct shc_cu_context *from_context, size_t bytes,
                     struct shc_cu_stream *stream);
};

/* pre: shc_driver_open() has opened the same library. */
void extras_find(const char *library, struct extras *extras);

bool extras_have_graphs(const struct extras *extras);

/* Free memory of the current context's GPU, in MiB; not a number where the driver does not tell. */
double extras_free_mib(const struct extras *extras);
