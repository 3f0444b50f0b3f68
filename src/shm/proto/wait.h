/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * THE wait loop. Everything in the library that waits for another rank, or for an operation, waits here
 * (except the rendezvous, which has no shared memory yet). It spins while the CPUs suffice, then yields,
 * then sleeps until something happens, or in slices of at most 10 ms. Between sleeps, or after 10 ms awake, it looks
 * at the abort word, the members, the deadline, the caller's interrupt, and reports which rank it waits for.
 *
 * A wait that fails after the call was published fails the group, because no rank can tell what the others
 * still need from this one. Exceptions: PEER_LEFT before all ranks have entered, and CLOSED.
 */

#include "shm/base/clock.h"
#include "shm/base/lateness.h"
#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/proto/bell.h"
#include "shm/proto/board.h"
#include "shm/proto/call.h"
#include "shm/proto/seat.h"

struct shc_member_end;

/* The limits of one blocking call; lives on its caller's stack. */
#define SHC_MOMENT_TURNS 64 /* 1 to 3 us */

struct shc_wait {
    struct shc_seat *seat;
    const struct shc_call *call; /* the operation, for messages; NULL: none */
    uint64_t epoch;              /* of the operation; 0 while it has none */
    uint64_t timeout_ns;         /* from the first time the clock is read */
    struct shc_patience patience;
    bool interruptible; /* an application's thread: asks the interrupt callback */
    bool published;     /* this rank's call is out: giving up fails the group */
    bool entered;       /* all ranks' calls are published */
    bool waited;        /* more than SHC_MOMENT_TURNS turns of a spin loop */

    /* Private to wait.c. */
    struct shc_lateness lateness; /* begun_ns is zero to begin with; then the rest means nothing */
    struct shc_clock_watch watch;
    uint64_t asked_ns;
    uint64_t alert_ns; /* a signal has come: no sleep without slices until then; 0: none has */
};

/* Initialised field by field, and no more than necessary: each operation begins with it. */
SHC_INLINE void shc_wait_init(struct shc_wait *wait, struct shc_seat *seat, uint64_t timeout_ns)
{
    wait->seat = seat;
    wait->call = NULL;
    wait->epoch = 0;
    wait->timeout_ns = timeout_ns;
    wait->patience = seat->patience;
    wait->interruptible = false;
    wait->published = false;
    wait->entered = false;
    wait->waited = false;
    wait->lateness.begun_ns = 0;
}

/* How a wait for messages sleeps without slices (WAIT-17). Its ready() looks at members and deadlines itself. */
struct shc_parker {
    /* True: before the last looks, so that the next ready() looks at everything. False: after the sleep, and while
     * the interrupt callback is asked. */
    void (*park)(void *arg, bool parked);
    uint64_t (*due_ns)(void *arg); /* when the sleep must end */
    /* It slept for at most that long (0: a slice), and perhaps a signal came: the interrupt callback may take long. */
    void (*slept)(void *arg, uint64_t asked_ns, bool signalled);
};

/* What is waited for. */
struct shc_target {
    /* An acquire load of what the bell's owner stores; for messages, a pass over the mailbox. */
    bool (*ready)(void *arg);
    void *arg;
    struct shc_bell_shm *bell;
    int peer;    /* the rank that stores; -1: many do, or this process: no member is looked at */
    bool shared; /* the bell is in the segment; if not, all that ends the wait rings it */
    const struct shc_parker *parker; /* of messages; else NULL */
    /* Describes the wait of this process, for messages. NULL: another thread reports it. */
    const char *whom;
    /* The message that this thread waits for, for the board. NULL: it waits for a call, or `whom` says for what. */
    const struct shc_board_awaited *message;
    /* Grows in ready() when that has made progress. Then spinning begins anew, and only a thread that waits
     * in vain goes to sleep. NULL: there is no such number. */
    const uint64_t *moves;
};

/* Until target->ready(). SHC_OK, or why not, with the text recorded. */
SHC_NODISCARD enum shc_status shc_wait_for(struct shc_wait *wait, const struct shc_target *target);

/* Until the peer's word has reached `want`; the word only grows, modulo 2^64. */
SHC_NODISCARD enum shc_status shc_wait_word(struct shc_wait *wait, int peer, const shc_a64 *word,
                                            uint64_t want);

SHC_INLINE bool shc_wait_has_reached(const shc_a64 *word, uint64_t want)
{
    /* acquire call/publish <- release in shc_call_publish(). */
    /* acquire progress/step <- release in shc_progress_publish(). */
    /* acquire offer/verdict <- release in publish_verdict(). */
    return shc_reached(shc_a64_load_acquire(word), want);
}

SHC_INLINE enum shc_status shc_wait_reached(struct shc_wait *wait, int peer, const shc_a64 *word,
                                            uint64_t want)
{
    if (SHC_LIKELY(shc_wait_has_reached(word, want)))
        return SHC_OK;
    return shc_wait_word(wait, peer, word, want);
}

/*
 * The operation cannot go on. Fails the group with this reason, unless `status` concerns only this rank,
 * and records "<operation> failed: <reason>". `end`: whose end is the reason, or NULL.
 */
SHC_NODISCARD enum shc_status shc_wait_give_up_for(struct shc_wait *wait, enum shc_status status,
                                                   const char *reason,
                                                   const struct shc_member_end *end);
SHC_NODISCARD SHC_INLINE enum shc_status
shc_wait_give_up(struct shc_wait *wait, enum shc_status status, const char *reason)
{
    return shc_wait_give_up_for(wait, status, reason, NULL);
}

/* ---- progress ---- */

/* P of CALL-11 (docs/internals/protocol/calls.md): step 0 of an epoch is its call line. */
SHC_INLINE uint64_t shc_progress_value(uint64_t epoch, uint64_t step)
{
    return (epoch << SHC_STEP_BITS) + step;
}

/* All this rank's stores and reads before this step are done. Rings. */
SHC_INLINE void shc_progress_publish(const struct shc_seat *seat, uint64_t epoch, uint64_t step)
{
    /* release progress/step -> acquire in shc_wait_has_reached(): cells written and cells read. */
    shc_a64_store_release(&shc_seat_progress(seat, seat->rank)->reached,
                          shc_progress_value(epoch, step));
    shc_bell_ring(shc_seat_bell(seat, seat->rank), true);
}

/*
 * CALL-14. The comparison takes a word that is 2^39 operations old for one of the future. An operation without steps
 * leaves the word as it is, and so many of those take no more than days. So a rank that leaves such an epoch says that
 * it has done all steps there.
 */
#define SHC_PROGRESS_RENEWED_EPOCHS (UINT64_C(1) << 30)

SHC_INLINE void shc_progress_renew(const struct shc_seat *seat, uint64_t epoch)
{
    if (SHC_UNLIKELY((epoch & (SHC_PROGRESS_RENEWED_EPOCHS - 1)) == 0))
        shc_progress_publish(seat, epoch, (UINT64_C(1) << SHC_STEP_BITS) - 1);
}

/* Until the peer has done this step of the current operation. */
SHC_NODISCARD SHC_INLINE enum shc_status shc_progress_wait(struct shc_wait *wait, int peer,
                                                           uint64_t step)
{
    return shc_wait_reached(wait, peer, &shc_seat_progress(wait->seat, peer)->reached,
                            shc_progress_value(wait->epoch, step));
}

/* Until all other ranks have, rank + 1 first. */
SHC_NODISCARD enum shc_status shc_progress_wait_all(struct shc_wait *wait, uint64_t step);

/* Have all ranks published this epoch's call? */
bool shc_call_all_here(const struct shc_wait *wait);

/* Until all ranks have published this epoch's call, and it is the same as this rank's. */
SHC_NODISCARD enum shc_status shc_call_meet(struct shc_wait *wait);

/* Turns of a spin loop that take about that long on this machine; measured once. */
uint32_t shc_wait_spins_for(uint64_t ns);
