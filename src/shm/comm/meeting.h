/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The ranks' meeting at the store, before they share any memory: keys, generations, the one
 * decision, and looking around while a key is polled. Belongs to the thread that makes the group.
 *
 *   n/<rank>            counter: how many generations this rank has begun
 *   <g>/h/<rank>        hello: who the rank is, so that others can look whether it lives
 *   <g>/<a>/o           offer of attempt a, by rank 0: the segment's name
 *   <g>/<a>/v/<rank>    bad verdict of the rank: why it cannot attach or reserve
 *   <g>/d               decision, the first put wins: ok (rank 0 only) or why not (anyone)
 *
 * Keys carry a generation g, because prefixes meet again: destroy and init on one store, every job
 * under torchrun, re-made groups. No key is waited for inside the store: a blocking wait would hold
 * the store client's lock against another thread that makes another group. Keys are polled, and
 * between polls the others' processes and the deadline are looked at. Who has a seat in the offered
 * segment says so there, and is told there to go on: faster than any poll.
 */

#include "shm/comm/comm.h"

#define SHC_MEETING_KEY_BYTES  64
#define SHC_MEETING_TEXT_BYTES 512
#define SHC_MEETING_POLL_NS    (50 * SHC_NS_PER_US) /* the first pause of a poll */
#define SHC_MEETING_WOKEN_NS   (2 * SHC_NS_PER_MS)  /* the same, where the segment wakes */

struct shc_verdict { /* of a rank on an attempt; also the decision */
    uint32_t status;
    char text[SHC_MEETING_TEXT_BYTES];
};

struct shc_meeting {
    struct shc_seat *seat;
    const struct shc_comm_config *config;
    const struct shc_store *store;
    int64_t generation; /* 0 before shc_meeting_begin() */
    int attempt;        /* on offer, or 0 */
    bool seated;        /* this rank, in the segment of the attempt */

    /* Private to meeting.c. */
    uint64_t begun_ns, deadline_ns, looked_ns, late_ns, late_step_ns;
    int next_look;
    bool known[SHC_MAX_WORLD];
    struct shc_os_process processes[SHC_MAX_WORLD];
};

void shc_meeting_init(struct shc_meeting *m, struct shc_seat *seat,
                      const struct shc_comm_config *config, uint64_t timeout_ns);

/* Takes this rank's next generation, and says hello in it. */
SHC_NODISCARD enum shc_status shc_meeting_begin(struct shc_meeting *m);

void shc_meeting_key(char key[SHC_MEETING_KEY_BYTES], int64_t generation, int attempt,
                     const char *what, int rank);

SHC_NODISCARD enum shc_status shc_meeting_put(const struct shc_meeting *m, const char *key,
                                              const void *value, size_t bytes);

/* *there: the key exists, and `value` holds it. A value of another size is an alien one: VERSION. */
SHC_NODISCARD enum shc_status shc_meeting_get(const struct shc_meeting *m, const char *key,
                                              void *value, size_t bytes, bool *there);

struct shc_verdict shc_verdict_of(enum shc_status status, const char *text);

/* The same for one that came out of the store: its text ends. */
SHC_NODISCARD enum shc_status shc_meeting_get_verdict(const struct shc_meeting *m, const char *key,
                                                      struct shc_verdict *verdict, bool *there);

/* Has the rank a seat in the segment of this attempt? That is its good verdict. pre: seated */
bool shc_meeting_is_seated(const struct shc_meeting *m, int rank);

/* One pause of a poll, growing; over as soon as somebody wakes who sleeps on `word`, or finds it not
 * to be `value` (NULL: a sleep). Now and then a look at the decision, the ranks, the clock, the
 * caller's interrupt. Fails when waiting on makes no sense. */
SHC_NODISCARD enum shc_status shc_meeting_pause(struct shc_meeting *m, uint64_t *pause_ns,
                                                shc_a32 *word, uint32_t value);

/* Puts a decision if there is none; *decided is what then stands. */
SHC_NODISCARD enum shc_status shc_meeting_decide(const struct shc_meeting *m,
                                                 const struct shc_verdict *wish,
                                                 struct shc_verdict *decided);

/* Records why the group could not be made. */
SHC_NODISCARD enum shc_status shc_meeting_failed(const struct shc_meeting *m,
                                                 const struct shc_verdict *decided);

/* Takes this rank's next generation, and decides it as failed with the text recorded now. */
SHC_NODISCARD enum shc_status shc_meeting_refuse(struct shc_meeting *m, enum shc_status status);

/* This rank gives up with this status. If the group has been decided to be fine meanwhile, it is,
 * for all: SHC_OK. */
SHC_NODISCARD enum shc_status shc_meeting_give_up(const struct shc_meeting *m,
                                                  enum shc_status status);
