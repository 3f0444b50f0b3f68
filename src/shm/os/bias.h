/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A turn that nearly always the same thread takes: a runner's (comm/runner.h), a lock's (os/biased_lock.h).
 * Both have a word, which one locked instruction takes and another one drops, and these take a seventh of a small
 * operation. So behind many calls in a row of one thread the turn is biased towards it: it enters and leaves by
 * plain stores to `inside`, and the word stays as it is. Whoever else takes the word finds the bias behind that,
 * and revokes it:
 *
 *   the biased thread                       who revokes, and has the word, under the lock
 *   inside = 1                              whose = nobody's
 *   light fence                             heavy fence: a full one in every thread of the process
 *   whose is me and the word 0?  its turn   inside is 0?  it has its turn
 *     else as one that leaves                 else the word is the biased thread's from now on
 *   ...
 *   inside = 0
 *   light fence
 *   whose is me?  it is gone
 *     else, under the lock: was the word left to it?  then it drops that, as everybody does
 *
 * The heavy fence lies between the biased thread's store and its look, or behind both, or in front of
 * both: so either that thread sees that its bias is gone, or who revokes sees it inside. Nobody sleeps because of
 * a biased holder, whom the word does not show: who takes it from there leaves the word to that one, and sleeps
 * because of the word. Without the look at the word, which is 0 where nobody has it and nothing is to be known, a
 * thread would overtake what the word says.
 *
 * Only the first thread that has earned a bias ever gets one: any other one's stores to `inside` could be
 * mixed with those of a thread that looked at its bias long ago, and has not found out yet.
 *
 * Each revocation takes some 10 us, for which the biased thread sleeps as well if it leaves meanwhile, and so
 * many calls in a row must come before the next bias as pay for it; twice as many each time. (docs/internals/adr/0014-biased-runner.md; models: bias.pml, weak_bias.cc, weak_biased_lock.cc)
 */

#include "shm/os/lock.h"

#define SHC_BIAS_FIRST_PAY 1024u
#define SHC_BIAS_LAST_PAY  (1u << 20)

struct shc_bias {
    shc_a32 inside;       /* stored to by the biased thread: it has its turn, and not the word */
    uint32_t pay;         /* (word) so many calls of one thread in a row are worth a bias */
    shc_a64 whose;        /* its number; 0: nobody's; who has the word stores */
    uint64_t home;        /* (word) the only thread that may have one */
    uint64_t last;        /* (word) whose calls were the last ones, */
    uint32_t in_a_row;    /* (word) so many */
    struct shc_lock lock; /* guards what follows */
    bool left;            /* the word was left to the biased thread */
};

extern __thread char shc_thread_mark __attribute__((tls_model("initial-exec")));

/* The calling thread as a number that no other living thread has. */
SHC_INLINE uint64_t shc_thread_number(void)
{
    return (uint64_t)(uintptr_t)&shc_thread_mark;
}

/* Are there heavy fences (shc_os_fence_heavy()) in this process? Also false while they are not ready: the first
 * call starts a thread that prepares them, which takes longer than a call may. */
bool shc_bias_has_fences(void);

/* May a thread that has earned a bias get it? */
bool shc_bias_is_possible(void);

/* In a forked child, while it has one thread. */
void shc_bias_forget_parent(void);

/* pre: it is all zero, and only the calling thread knows it. Here and below `me` is a number that no other living
 * thread has, and (word) means that the word is held. */
SHC_INLINE void shc_bias_init(struct shc_bias *bias, uint32_t pay)
{
    bias->pay = pay;
}

/* Ends a bias. False: the biased thread is inside, and has the word. (word) */
bool shc_bias_revoke(struct shc_bias *bias, uint64_t me);

/* The biased thread leaves, and its bias has ended. As shc_bias_leave(). */
bool shc_bias_leave_late(struct shc_bias *bias);

/* The word has been taken: is it this thread's turn? Else the word is another one's. */
SHC_INLINE bool shc_bias_took(struct shc_bias *bias, uint64_t me)
{
    /* relaxed: the word's edge covers it. Behind that, or it could begin in between. */
    const bool biased = shc_a64_load_relaxed(&bias->whose) != 0;
    return SHC_LIKELY(!biased) || shc_bias_revoke(bias, me);
}

/* Of who has entered by its bias. True: the word is its own, and it is to drop that. */
SHC_INLINE bool shc_bias_leave(struct shc_bias *bias, uint64_t me)
{
    /* release bias/inside -> acquire in shc_bias_revoke(): what was done inside. */
    shc_a32_store_release(&bias->inside, 0);
    shc_fence_light();
    /* relaxed: who has revoked looks behind a heavy fence. */
    const bool biased = shc_a64_load_relaxed(&bias->whose) == me;
    return SHC_LIKELY(biased) ? false : shc_bias_leave_late(bias);
}

/* Its turn by its bias, if it has one and the word is 0. False: take the word; *left: as shc_bias_leave(). */
SHC_INLINE bool shc_bias_enter(struct shc_bias *bias, const shc_a32 *word, uint64_t me, bool *left)
{
    /* relaxed: who does not find its own number looks no further. */
    if (shc_a64_load_relaxed(&bias->whose) != me)
        return false;
    /* relaxed: who revokes looks behind a heavy fence. */
    shc_a32_store_relaxed(&bias->inside, 1);
    shc_fence_light();
    /* relaxed: as in shc_bias_leave(). */
    const bool biased = shc_a64_load_relaxed(&bias->whose) == me;
    /* relaxed: what this thread stored there it sees, and with others' stores there is no order. */
    if (SHC_LIKELY(biased && shc_a32_load_relaxed(word) == 0))
        return true;
    *left = shc_bias_leave(bias, me);
    return false;
}

/* A call of this thread by the word. True: it is worth a bias, and this may be the thread for it. (word) */
SHC_INLINE bool shc_bias_count(struct shc_bias *bias, uint64_t me)
{
    bias->in_a_row = bias->last == me ? bias->in_a_row + 1 : 1;
    bias->last = me;
    return bias->in_a_row >= bias->pay && (bias->home == 0 || bias->home == me);
}

/* From the next call on. pre: shc_bias_count() has said so, and there are heavy fences here. (word) */
SHC_INLINE void shc_bias_give(struct shc_bias *bias, uint64_t me)
{
    bias->home = me;
    /* relaxed: the word's edge covers it. */
    shc_a64_store_relaxed(&bias->whose, me);
}
