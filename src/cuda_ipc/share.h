/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Every rank's slab, mapped by every rank: or by none. The ranks try the kinds in turn, file
 * descriptors first; a kind holds only if every rank has made its slab and imported all others, and
 * reads in them what their ranks have written (probe.h).
 * Where no kind holds that is a result, not a failure: the ranks go on without shared GPU memory.
 *
 * Collective over the ranks of the control socket; one thread. All ranks get the same kind and the
 * same reasons.
 */

#include "cuda_ipc/probe.h"
#include "cuda_ipc/slab.h"

#define SHC_SHARE_REASON_BYTES 320

struct shc_share {
    enum shc_slab_kind kind; /* NONE: nothing is mapped */
    int rank, world;
    struct shc_slab slabs[SHC_MAX_WORLD]; /* by rank; one's own is no view */
    /* Why an earlier kind did not hold: "rank 2: ..."; "" where it was not tried, or held. */
    char reasons[SHC_SLAB_KIND_COUNT][SHC_SHARE_REASON_BYTES];
    bool late; /* some rank's reading did not end: no other kind was tried, it is the same way */
};

/*
 * Slabs of at least `bytes`, the same on all ranks. pre: the control socket has met. prober NULL:
 * nobody looks at the data. On failure (a rank is dead, or silent until the deadline) nothing stays
 * mapped, except what a GPU still reads, where prober->hung.
 */
SHC_NODISCARD enum shc_status shc_share_make(struct shc_control *control, const struct shc_gpu *gpu,
                                             size_t bytes, uint64_t deadline_ns,
                                             struct shc_prober *prober, struct shc_share *share);

/* pre: nothing that is enqueued touches the slabs. Needs no other rank. */
void shc_share_undo(struct shc_share *share);
