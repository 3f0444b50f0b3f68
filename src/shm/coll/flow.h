/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Messages in chunks, in two ways: through broadcast slots, in which one rank stores what all others
 * read, and through exchange cells, in which each of two ranks stores what the other one reads.
 */

#include "shm/coll/task.h"

/* Fails the group if the steps of an operation cannot count so many chunks. */
SHC_NODISCARD enum shc_status shc_check_length(struct shc_task *task, uint64_t chunk_count);

/* ---- broadcast slots ---- */

/* Without an arena a flow goes through the small slots, which this operation has filled before its
 * call line. Publishes step 1 and waits for it: then all ranks have read the slots (STAGE-42). The
 * flow's steps begin after that one. */
SHC_NODISCARD enum shc_status shc_small_slots_reuse(struct shc_task *task);

/* How a message is cut, and into which places. The same on all ranks. */
struct shc_cut {
    size_t place_bytes; /* whole lines: a slot, or a part of one */
    size_t chunk_bytes; /* whole elements */
    uint32_t depth;     /* number of places */
    uint32_t first;     /* place of chunk 0 */
    uint64_t chunk_count;
    int owner; /* whose broadcast slots these are; -1: each rank's own, or there is no arena */
    bool handed_over; /* the rank that gives has read them in the last flow (STAGE-56) */
};

/*
 * Chunks through broadcast slots, or through small slots if there is no
 * arena. In turn k, `give` fills this rank's slot with its chunk k, if it is a giver. `take` works
 * on the slots that hold chunk k, if this rank is a taker. The only taker of a flow gives nothing,
 * so its own slot is not filled.
 */
struct shc_flow {
    struct shc_task *task;
    size_t total_bytes;  /* of one giver's contribution */
    int giver;           /* the only rank that gives; -1: all ranks except the only taker */
    int taker;           /* the only rank that takes; -1: all ranks except the only giver */
    uint64_t first_step; /* steps that the operation has published before */
    bool announced;      /* chunk 0, by call lines; before `cut` is made: if its place is free */
    struct shc_cut cut;  /* depth 0: not cut yet */
    uint64_t begun;      /* chunks that this rank has stored before the meeting */
    struct shc_copy_meter meter; /* measures the stores of these */
    void (*give)(struct shc_task *task, struct shc_span chunk, char *slot);
    void (*take)(struct shc_task *task, struct shc_span chunk, char *const *slots);
    /* If this rank gives: copies what it keeps of a chunk, after the chunk's publication, while the
     * caches have it. The chunk may reach beyond its input. May be NULL. */
    void (*keep)(struct shc_task *task, struct shc_span chunk);
};

/* Stores that piece of this rank's input into its broadcast slot: non-temporally if the input is
 * large and the trial of copy modes has chosen that. */
void shc_give_piece(struct shc_task *task, struct shc_span piece, char *slot);

/* The usual `give`: the chunk of this rank's input, which may end before the chunk. */
void shc_give_input(struct shc_task *task, struct shc_span chunk, char *slot);

/* Before the call line, which then announces chunk 0: stores chunk 0, if no rank may still be
 * reading what lies there (STAGE-17, STAGE-18). All ranks call it, or none. The flow must be run;
 * otherwise no rank reads what it has stored. */
void shc_flow_begin(struct shc_flow *flow);

/* Between entering and meeting: a rank that gives and does not take stores more chunks into free
 * slots (STAGE-20). It stores a few, or as many as it can while other ranks have not arrived. Each
 * rank may call it or not. */
void shc_flow_go_on(struct shc_flow *flow);

/* pre: the ranks have met. */
SHC_NODISCARD enum shc_status shc_flow_run(struct shc_flow *flow);

/* ---- exchange cells ---- */

/*
 * Chunks through exchange cells. In turn k every rank stores given(peer, k), a piece of its input,
 * into a cell of the pair. Then it copies what the peer has stored to got(peer, k), a piece of its
 * output. After the last chunk both pieces are empty. Or it works on the cells of all peers at once
 * in take(); then cells[own rank] is NULL.
 */
struct shc_swap {
    struct shc_task *task;
    uint64_t chunk_count; /* the same on all ranks */
    struct shc_span (*given)(const struct shc_task *task, int peer, uint64_t k);
    struct shc_span (*got)(const struct shc_task *task, int peer, uint64_t k);
    void (*take)(struct shc_task *task, uint64_t k, char *const *cells); /* NULL: got() is used */
    /* Copies what this rank keeps of chunk k, after the chunk's publication. May be NULL. */
    void (*keep)(struct shc_task *task, uint64_t k);
    bool begun; /* set by shc_swap_begin() or shc_swap_begin_empty() */
};

/* Before the call line, which then announces chunk 0: stores chunk 0, if there is an arena already
 * (STAGE-12). Needs given() only. The swap must be run, unless no rank gives anything: then no
 * rank's cells change hands. */
void shc_swap_begin(struct shc_swap *swap);

/* The same for a rank whose chunk 0 is empty. The chunks of other ranks may have bytes. */
SHC_INLINE void shc_swap_begin_empty(struct shc_swap *swap)
{
    swap->begun = swap->task->arena->made;
}

/* pre: the ranks have met, and there is an arena. If `begun`: there is at least one chunk, which
 * may have no bytes. */
SHC_NODISCARD enum shc_status shc_swap_run(const struct shc_swap *swap);
