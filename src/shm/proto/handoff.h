/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Ownership transfer between two ranks: two buffers, one in the memory of each rank, that are not
 * given back. The rank that has read a buffer fills it with its own next bytes. So a rank stores to
 * memory that is already in its cache; the owner of a buffer that is given back must fetch it.
 *
 * Each rank keeps for both buffers where they are (P2P-10): private arithmetic, no shared word. The
 * line that names a buffer hands it over, and publishes what was stored to it.
 *
 *   HERE --shc_hand_off_pass()--> AWAY (on its way, or the peer has it) --shc_hand_off_hold()--> HERE
 *
 * Only the rank that holds a buffer stores to it, and no rank reads it then. While it is on its
 * way its receiver alone reads it.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>
#include <stdint.h>

enum shc_whereabouts { SHC_NOWHERE, SHC_HERE, SHC_AWAY };
enum { SHC_OURS, SHC_THEIRS }; /* whose memory the buffer lies in, as this rank sees it */

struct shc_hand_off {
    uint8_t where[2]; /* enum shc_whereabouts */
    uint8_t newest;   /* the one that came last: more of it is in the cache */
};

/* At first each rank holds the buffer in its own memory. */
SHC_INLINE struct shc_hand_off shc_hand_off_begin(void)
{
    return (struct shc_hand_off){.where = {SHC_HERE, SHC_AWAY}, .newest = SHC_OURS};
}

/* Passes on a buffer that this rank holds, the one that came last if possible. -1: it holds none.
 * own_usable: there is memory for its own one; without it that one is never used. */
SHC_INLINE int shc_hand_off_pass(struct shc_hand_off *both, bool own_usable)
{
    int which = both->where[both->newest] == SHC_HERE ? both->newest : 1 - both->newest;
    if (SHC_UNLIKELY(!own_usable))
        which = SHC_THEIRS;
    if (both->where[which] != SHC_HERE)
        return -1;
    both->where[which] = SHC_AWAY;
    return which;
}

SHC_INLINE bool shc_hand_off_holds(const struct shc_hand_off *both)
{
    return both->where[SHC_OURS] == SHC_HERE || both->where[SHC_THEIRS] == SHC_HERE;
}

/* What the buffer brought has been read: this rank may fill it now. */
SHC_INLINE void shc_hand_off_hold(struct shc_hand_off *both, unsigned which)
{
    both->newest = (uint8_t)which;
    both->where[which] = SHC_HERE;
}

/* The peer's "ours" is "theirs" here. */
SHC_INLINE unsigned shc_hand_off_mirror(unsigned which)
{
    return 1 - which;
}
