/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The ranks' rendezvous at the store, before they share any memory: keys, generations, the one decision, and
 * looking around while a key is polled or an answer is awaited. Belongs to the thread that makes the group.
 * docs/internals/protocol/rendezvous.md.
 *
 *   h/<member>              join: which rank this is, its list of members, its generation
 *   <list>/n/<member>       counter: how many generations the rank has begun with this list
 *   <list>/<g>/<a>/o        offer of attempt a, by rank 0: the segment's name
 *   <list>/<g>/<a>/v/<rank> bad verdict of the rank: why it cannot attach or reserve
 *   <list>/<g>/d            decision, the first put wins: ok (rank 0 only) or why not (any rank)
 *   <outsider_prefix><rank>    written by a rank that does not use this library (shc_comm_config)
 *
 * <list> is a hash of the ordered list of members, so only ranks with the same list meet. Keys carry a
 * generation g, because prefixes meet again: destroy and init on one store, every job under torchrun,
 * re-made groups. No key is waited for inside the store: a blocking wait would hold the store client's lock
 * against another thread that makes another group. Instead keys are polled. Between polls the rank looks at
 * the others' processes and at the deadline. A rank with a seat in the offered segment says so there, and
 * is told there to go on, which is faster than any poll.
 *
 * rendezvous.c has the values, decisions and generations; lookout.c looks around.
 */

#include "shm/comm/comm.h"
#include "shm/comm/record.h"
#include "shm/comm/store_thread.h"

#define SHC_RENDEZVOUS_POLL_NS  (50 * SHC_NS_PER_US) /* the first pause of a poll */
#define SHC_RENDEZVOUS_WOKEN_NS (2 * SHC_NS_PER_MS)  /* the same, if the segment wakes the rank */

struct shc_rendezvous {
    struct shc_seat *seat;
    const struct shc_comm_config *config;
    uint64_t list;
    int32_t members[SHC_MAX_WORLD]; /* their numbers in the job */
    uint64_t life;                  /* shc_process_life() */
    size_t segment_bytes;           /* that an offer must have */
    int64_t generation;             /* 0 before shc_rendezvous_begin() */
    int attempt;                    /* on offer, or 0 */
    bool seated;                    /* this rank, in the segment of the attempt */

    /* Private to rendezvous.c and lookout.c. */
    struct shc_store_thread *thread; /* NULL: calls are made in this thread */
    struct shc_store_call own;       /* then this one */
    bool greeted;                    /* this rank waits, in its generation */
    bool outsiders;                  /* the keys of such ranks are looked at */
    uint64_t asked_ns;               /* an answer of the store is awaited, since then; 0: none is */
    bool silent;                     /* the store did not answer in time: it is not asked again */
    uint64_t grace_ns;  /* not 0: answers are awaited for that long, without looking around */
    uint64_t looked_ns; /* around */
    struct shc_lateness lateness;
    struct shc_clock_watch watch;
    int next_look;
    bool known[SHC_MAX_WORLD];
    struct shc_os_process processes[SHC_MAX_WORLD];
};

/* pre: the seat knows its process. */
void shc_rendezvous_init(struct shc_rendezvous *m, struct shc_seat *seat,
                         const struct shc_comm_config *config, uint64_t timeout_ns);

/* Releases everything. Does not wait, whatever the store does. */
void shc_rendezvous_fini(struct shc_rendezvous *m);

/* Takes this rank's next generation, and joins it. */
SHC_NODISCARD enum shc_status shc_rendezvous_begin(struct shc_rendezvous *m);

/* ---- values: *there says whether the key exists; one that is not valid is an error ---- */

SHC_NODISCARD enum shc_status shc_rendezvous_get_join(struct shc_rendezvous *m, int rank,
                                                      struct shc_join *join, bool *there);
SHC_NODISCARD enum shc_status shc_rendezvous_get_offer(struct shc_rendezvous *m, int attempt,
                                                       struct shc_segment_name *name, bool *there);
SHC_NODISCARD enum shc_status shc_rendezvous_get_verdict(struct shc_rendezvous *m, int attempt,
                                                         int rank, struct shc_verdict *verdict,
                                                         bool *there);

/* Of that list's generation, which may differ from this rank's. */
SHC_NODISCARD enum shc_status shc_rendezvous_get_decision(struct shc_rendezvous *m, uint64_t list,
                                                          int64_t generation,
                                                          struct shc_verdict *decided, bool *there);

SHC_NODISCARD enum shc_status shc_rendezvous_put_offer(struct shc_rendezvous *m, int attempt,
                                                       const struct shc_segment_name *name);
SHC_NODISCARD enum shc_status shc_rendezvous_put_verdict(struct shc_rendezvous *m, int attempt,
                                                         enum shc_status status, const char *text);

/* Has the rank given a bad verdict? If the store does not answer, that counts as no. */
bool shc_rendezvous_has_verdict(struct shc_rendezvous *m, int attempt, int rank);

/* ---- decisions ---- */

struct shc_verdict shc_verdict_of(enum shc_status status, const char *text);

/* Puts a decision on that list's generation if there is none; *decided is the decision in force. */
SHC_NODISCARD enum shc_status shc_rendezvous_decide(struct shc_rendezvous *m, uint64_t list,
                                                    int64_t generation,
                                                    const struct shc_verdict *wish,
                                                    struct shc_verdict *decided);

/* Records why the group could not be made. */
SHC_NODISCARD enum shc_status shc_rendezvous_failed(struct shc_rendezvous *m,
                                                    const struct shc_verdict *decided);

/* Records that the store says "made" although that cannot be. */
SHC_NODISCARD enum shc_status shc_rendezvous_lied_to(const struct shc_rendezvous *m,
                                                     const char *what);

/* Takes this rank's next generation, and decides it as failed with the text recorded now. */
SHC_NODISCARD enum shc_status shc_rendezvous_refuse(struct shc_rendezvous *m,
                                                    enum shc_status status);

/* This rank gives up with this status. If the group has been decided to be fine meanwhile, and this rank
 * has its seat, the group is fine for all: SHC_OK. Waits only a moment for a silent store. */
SHC_NODISCARD enum shc_status shc_rendezvous_give_up(struct shc_rendezvous *m,
                                                     enum shc_status status);

/* ---- looking around (lookout.c) ---- */

/* Has the rank a seat in the segment of this attempt? That is its good verdict. pre: seated */
bool shc_rendezvous_is_seated(const struct shc_rendezvous *m, int rank);

/* The same for rank 0's word in the segment that the group is made. */
bool shc_rendezvous_is_told(const struct shc_rendezvous *m);

/* One pause of a poll. Pauses grow. A pause ends as soon as a thread wakes the sleepers on `word`, or
 * `word` is not `value` (NULL: a plain sleep). Now and then it looks at the decision, the ranks, the clock
 * and the caller's interrupt. Fails if there is no reason to wait any longer. */
SHC_NODISCARD enum shc_status shc_rendezvous_pause(struct shc_rendezvous *m, uint64_t *pause_ns,
                                                   shc_a32 *word, uint32_t value);

/* Waits for the store's answer to the last question. Looks at the clock, the interrupt and rank 0's word
 * meanwhile. */
SHC_NODISCARD enum shc_status shc_rendezvous_await_answer(struct shc_rendezvous *m);

/* Has the rank set the key of ranks that do not use this library? If the store does not answer, that counts
 * as no. */
bool shc_rendezvous_is_outside(struct shc_rendezvous *m, int rank);

/* Has another living process come as this rank, and does it still wait? Tells all that do. */
SHC_NODISCARD enum shc_status shc_rendezvous_look_for_rival(struct shc_rendezvous *m);

/* "two processes came as rank 0 of ...": this process and that one. */
void shc_rendezvous_two_text(const struct shc_rendezvous *m, int32_t pid, char *text,
                             size_t capacity);

/* There is no reason to wait any longer: the deadline has passed, or the caller is interrupted. Logs which
 * ranks are late. */
SHC_NODISCARD enum shc_status shc_rendezvous_look_at_clock(struct shc_rendezvous *m);

/* " (TCPStore at 127.0.0.1:29500, served by rank 0 (pid 12, stopped))": what this process knows about the
 * store. */
void shc_rendezvous_store_text(const struct shc_rendezvous *m, char *text, size_t capacity);
