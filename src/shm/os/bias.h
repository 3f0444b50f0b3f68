/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A turn that nearly always the same thread takes: a runner's (comm/runner.h), or a lock's
 * (os/biased_lock.h). Both have a word, which one locked instruction takes and another one
 * releases. These two are a seventh of a small operation. So after many calls in a row of one
 * thread the turn is biased towards that thread: it enters and leaves by plain stores to `inside`,
 * and the word does not change. Another thread that takes the word then finds the bias, and revokes
 * it:
 *
 *   the biased thread                       the revoker, which has the word and the lock
 *   inside = 1                              whose = nobody's
 *   light fence                             heavy fence: a full one in every thread of the process
 *   whose is me and the word 0?  its turn   inside is 0?  it has its turn
 *     else it leaves (below)                  else the word is the biased thread's from now on
 *   ...
 *   inside = 0
 *   light fence
 *   whose is me?  done
 *     else, under the lock: was the word left to it?  then it releases the word
 *
 * The heavy fence lies between the biased thread's store and its look, or after both, or before
 * both. So either that thread sees that its bias has ended, or the revoker sees it inside. The word
 * does not show a biased holder, but no thread sleeps because of one: the revoker leaves the word
 * to the biased thread, and then sleeps because of the word. The biased thread must also look at
 * the word, which is 0 if no thread holds it and nothing is announced there. Otherwise it would
 * overtake what the word says.
 *
 * Only the first thread that has earned a bias ever gets one. The stores of another thread to
 * `inside` could be mixed with those of a thread that looked at its bias long ago, and has not yet
 * seen its end.
 *
 * Each revocation takes some 10 us, and the biased thread sleeps for that time if it leaves
 * meanwhile. So the next bias needs as many calls in a row as pay for it; twice as many each time.
 * (docs/internals/adr/0014-biased-runner.md; models: bias.pml, weak_bias.cc, weak_biased_lock.cc)
 */

#include "shm/os/lock.h"

#define SHC_BIAS_FIRST_PAY 1024u
#define SHC_BIAS_LAST_PAY  (1u << 20)

struct shc_bias {
    shc_a32 inside;       /* stored to by the biased thread: it has its turn, but not the word */
    uint32_t pay;         /* (word) that many calls of one thread in a row earn a bias */
    shc_a64 whose;        /* its number; 0: no thread's; stored by the holder of the word */
    uint64_t home;        /* (word) the only thread that may have one */
    uint64_t last;        /* (word) the thread that made the last calls, */
    uint32_t in_a_row;    /* (word) and how many */
    struct shc_lock lock; /* guards what follows */
    bool left;            /* the word was left to the biased thread */
};

extern __thread char shc_thread_mark __attribute__((tls_model("initial-exec")));

/* A number for the calling thread that no other living thread has. */
SHC_INLINE uint64_t shc_thread_number(void)
{
    return (uint64_t)(uintptr_t)&shc_thread_mark;
}

/* Does this process have heavy fences (shc_os_fence_heavy())? Also false until they are ready. The
 * first call starts a thread that prepares them, which takes longer than a call may. */
bool shc_bias_has_fences(void);

/* May a thread that has earned a bias get it? */
bool shc_bias_is_possible(void);

/* In a forked child, while it has one thread. */
void shc_bias_forget_parent(void);

/* pre: it is all zero, and only the calling thread knows it. Here and below, `me` is a number that
 * no other living thread has, and (word) means that the word is held. */
SHC_INLINE void shc_bias_init(struct shc_bias *bias, uint32_t pay)
{
    bias->pay = pay;
}

/* Ends a bias. False: the biased thread is inside, and now has the word. (word) */
bool shc_bias_revoke(struct shc_bias *bias, uint64_t me);

/* The biased thread leaves, and its bias has ended. Returns as shc_bias_leave() does. */
bool shc_bias_leave_late(struct shc_bias *bias);

/* The word has been taken: does the calling thread have its turn? If not, the word belongs to
 * another thread. */
SHC_INLINE bool shc_bias_took(struct shc_bias *bias, uint64_t me)
{
    /* relaxed: the word's edge covers it. After that: otherwise a bias could begin in between. */
    const bool biased = shc_a64_load_relaxed(&bias->whose) != 0;
    return SHC_LIKELY(!biased) || shc_bias_revoke(bias, me);
}

/* Leaves a turn that was entered by bias. True: the word belongs to this thread, which must release
 * it. */
SHC_INLINE bool shc_bias_leave(struct shc_bias *bias, uint64_t me)
{
    /* release bias/inside -> acquire in shc_bias_revoke(): what was done inside. */
    shc_a32_store_release(&bias->inside, 0);
    shc_fence_light();
    /* relaxed: the revoker looks after a heavy fence. */
    const bool biased = shc_a64_load_relaxed(&bias->whose) == me;
    return SHC_LIKELY(biased) ? false : shc_bias_leave_late(bias);
}

/* Enters by the bias, if this thread has one and the word is 0. False: take the word. *left is what
 * shc_bias_leave() would return. */
SHC_INLINE bool shc_bias_enter(struct shc_bias *bias, const shc_a32 *word, uint64_t me, bool *left)
{
    /* relaxed: a thread that does not find its own number looks no further. */
    if (shc_a64_load_relaxed(&bias->whose) != me)
        return false;
    /* relaxed: the revoker looks after a heavy fence. */
    shc_a32_store_relaxed(&bias->inside, 1);
    shc_fence_light();
    /* relaxed: the light fence is the order; a thread that has revoked looks after a heavy fence. */
    const bool biased = shc_a64_load_relaxed(&bias->whose) == me;
    /* relaxed: a thread sees its own stores, and there is no order with stores of others. */
    if (SHC_LIKELY(biased && shc_a32_load_relaxed(word) == 0))
        return true;
    *left = shc_bias_leave(bias, me);
    return false;
}

/* Counts a call of this thread by the word. True: it has earned a bias, and may be the thread for
 * it. (word) */
SHC_INLINE bool shc_bias_count(struct shc_bias *bias, uint64_t me)
{
    bias->in_a_row = bias->last == me ? bias->in_a_row + 1 : 1;
    bias->last = me;
    return bias->in_a_row >= bias->pay && (bias->home == 0 || bias->home == me);
}

/* Begins with the next call. pre: shc_bias_count() was true, and there are heavy fences here.
 * (word) */
SHC_INLINE void shc_bias_give(struct shc_bias *bias, uint64_t me)
{
    bias->home = me;
    /* relaxed: the word's edge covers it. */
    shc_a64_store_relaxed(&bias->whose, me);
}
