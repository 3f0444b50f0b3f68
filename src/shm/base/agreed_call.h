/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

#include "shm/shmcoll.h"

/* One call, as far as the ranks must agree on it. */
struct shc_call {
    enum shc_op_kind kind;
    enum shc_dtype dtype;
    enum shc_redop redop;
    int root;
    uint64_t count;
    uint32_t elem_bytes;
    uint32_t dtype_tag;
    uint64_t hash;               /* of what texts and tools show: shc_call_settle() */
    uint64_t agreed;             /* of what ranks compare when they meet: shc_call_settle() */
    const struct shc_call *said; /* the call that is shown in its place; NULL: itself */
    uint64_t number; /* in texts; 0: its epoch. Otherwise texts show `root` as it is, too */
};
