/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The probe: does a rank read in another one's memory what that one has written there? A driver
 * says that a GPU may use another's memory, and then there are machines where it reads other bytes,
 * or where the reading never ends. So each rank writes a pattern into its own memory, at the
 * beginning, in the middle and at the end, and each reads all patterns, by the copy engine and by a
 * kernel: either may be right where the other is wrong. Twice, with other patterns: what was cached
 * must not pass.
 *
 * Collective over the ranks of the control socket; one thread; all ranks get the same answer. It
 * never synchronizes: it looks whether its stream is done, until its time is over. Then that stream
 * and all it may touch are left as they are, for ever, because nothing ends what a GPU has begun.
 */

#include "cuda_ipc/control.h"
#include "cuda_ipc/kernel/kernels.h"

#define SHC_PROBE_REASON_BYTES 232

enum shc_probe_outcome {
    SHC_PROBE_GOOD = 0,
    SHC_PROBE_WRONG,   /* other bytes than were written */
    SHC_PROBE_LATE,    /* it did not end */
    SHC_PROBE_REFUSED, /* the driver says no */
    SHC_PROBE_OUTCOMES
};

/* Memory that a probe has read into. Freeing it may wait for all work of the GPU, and that may wait
 * for a rank that is on its way to this one's probe: so it stays until the group goes. */
struct shc_probe_rest {
    shc_cu_address own;
    void *host;
    size_t bytes;
};
#define SHC_PROBE_RESTS 3 /* two kinds of slab, the host arena */

/* How this rank looks. */
struct shc_prober {
    struct shc_control *control; /* has met */
    const struct shc_kernels *kernels;
    shc_cu_address gate;  /* open */
    uint64_t deadline_ns; /* the group's; a look takes a quarter of what is left, or five seconds */
    bool hung;            /* set when work of this rank's did not end: its GPU waits for it for ever
                           * wherever it waits for all, as when memory is freed */
    struct shc_probe_rest rests[SHC_PROBE_RESTS];
    int rest_count;
};

/* The memory that is probed: the same `bytes` of every rank, at least 192, as this rank's GPU sees them. */
struct shc_probe_area {
    shc_cu_address at[SHC_MAX_WORLD];
    size_t bytes;
};

struct shc_probe_answer {
    enum shc_probe_outcome outcome;      /* LATE if anything was, else that of the reason */
    char reason[SHC_PROBE_REASON_BYTES]; /* the lowest rank's: which pair, how; "" if all is good */
};

/* pre: the area is not in use. post: it holds patterns. Fails only where the ranks cannot tell
 * one another (a rank is dead, or silent until the deadline). */
SHC_NODISCARD enum shc_status shc_probe(struct shc_prober *prober,
                                        const struct shc_probe_area *area,
                                        struct shc_probe_answer *answer);

/* Frees what probes have left. pre: none of them hung; the GPU is entered. */
void shc_probe_undo(struct shc_prober *prober, const struct shc_driver *driver);
