/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * An operation or a message in flight, as the watcher sees it.
 */

#include "cuda_ipc/kernel/args.h"
#include "shm/base/lateness.h"

#include <stdbool.h>

#define SHC_LATE_NS \
    (5 * SHC_NS_PER_S) /* then the ranks that it waits for are logged; again at 10 s, 20, ... */

#define SHC_SHOWN_NS (100 * SHC_NS_PER_MS) /* then the board says whom it waits for */

struct shc_flight {
    struct shc_lateness lateness;
    uint64_t last_round; /* a message's: its last piece */
    bool relayed;        /* by the relay: its rounds are the relay's */
    bool sliced;         /* ... and each rank adds a slice */
    const void *stream;  /* a message's */
    uint64_t call[SHC_RECORD_CALL_WORDS];
};
