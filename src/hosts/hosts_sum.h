/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Sums over hosts: each host's ranks in order, then the hosts in order, by the library and never by an engine. Sums of
 * narrow floats and averages of integers go in a wider type, and are rounded once.
 */

#include "hosts/group.h"

struct shc_hosts_sum {
    const struct shc_hosts_call *call;
    enum shc_dtype dtype; /* of the sums */
    uint32_t elem_bytes;  /* of these */
    bool wider;
};

struct shc_hosts_sum shc_hosts_sum_of(const struct shc_hosts_call *call);

/* Adds as many arrays as there are hosts, one every `stride` bytes. */
SHC_NODISCARD enum shc_status shc_hosts_fold(const struct shc_hosts_sum *sum, const char *from,
                                             size_t stride, char *to, uint64_t count);

/* The leader: adds what hosts gave this one in a short call: `bytes` of each in all, this host's part from `first` on. */
SHC_NODISCARD enum shc_status shc_hosts_fold_data(const struct shc_hosts_sum *sum, uint64_t first,
                                                  uint64_t bytes, char *to, uint64_t count);

/* The reduction in the island: its sum is divided by the number of all ranks later. */
struct shc_op shc_hosts_island_sum(const struct shc_hosts_sum *sum, enum shc_op_kind kind);

/* Input elements as sums: the same memory if they are, otherwise `room`. */
SHC_NODISCARD enum shc_status shc_hosts_widen(const struct shc_hosts_sum *sum, char *from,
                                              char *room, uint64_t count, char **at);
SHC_NODISCARD enum shc_status shc_hosts_narrow(const struct shc_hosts_sum *sum, char *from,
                                               char *room, uint64_t count, char **at);
