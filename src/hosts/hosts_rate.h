/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How fast is the link of this host? Arithmetic alone: the caller has the clock and the lock.
 *
 *   period  Calls of the engine are under way without a gap. One call alone says too little: two that are in flight
 *           share the link, and the thread that ends the first one may get a CPU as late as that of the second one.
 *   sample  Periods in a row that have brought enough bytes together. After a pause a link that a token bucket shapes
 *           lets the first bytes pass at once; a peer that comes late makes it look slow.
 *   rate    The median of the last samples: a maximum would be that of the bucket
 *           (docs/notebook/large-collectives.md, "The rate of a link").
 *
 * Bytes that leave are no measure: a call may be over when the kernel has them. Nor are periods with a failure.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>
#include <stdint.h>

#define SHC_HOSTS_SAMPLES      8
#define SHC_HOSTS_SAMPLE_BYTES ((uint64_t)8 << 20)
#define SHC_HOSTS_PERIOD_BYTES ((uint64_t)128 << 10) /* a period of less is mostly latency */

/* All zero: nothing is known. */
struct shc_hosts_rate {
    uint64_t samples[SHC_HOSTS_SAMPLES]; /* bytes per second */
    uint64_t count;                      /* of all samples so far */
    uint32_t under_way;                  /* calls */
    bool fails;                          /* one of the period has failed */
    uint64_t begun_ns, bytes;            /* the period */
    uint64_t sample_ns, sample_bytes;    /* periods before it, since the last sample */
};

/* A call that brings `bytes` begins, and ends. */
void shc_hosts_rate_begin(struct shc_hosts_rate *rate, uint64_t bytes, uint64_t now_ns);
void shc_hosts_rate_end(struct shc_hosts_rate *rate, bool good, uint64_t now_ns);

/* Bytes per second; 0: unknown. */
uint64_t shc_hosts_rate_known(const struct shc_hosts_rate *rate);
