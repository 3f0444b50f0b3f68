/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The control socket: one connection between every two ranks of a group, for what a store cannot
 * carry (file descriptors) and should not (handles). Used while a group is made, by one thread.
 *
 * A rank opens its end and publishes the address through the group's rendezvous; when all
 * addresses are known, shc_control_meet connects, and each shc_control_swap is a round in which
 * every rank sends the others one message and gets one from each.
 *
 * Identity: the process at the other end, as the kernel reports it (SO_PEERCRED), must be the
 * announced process and this user. It must know the random bits of the address, which only a reader
 * of the rendezvous can. A stranger is turned away and changes nothing. The sockets'
 * names are abstract: they are of a network namespace, and go with the process. A rank that dies
 * before it has met the others is seen by the deadline, or by `look`.
 */

#include "cuda_ipc/sys.h"
#include "shm/shmcoll.h"

#define SHC_CONTROL_BYTES 256 /* of a message */

/* The address that a rank publishes. Plain data. */
struct shc_control_address {
    char name[SHC_SYS_NAME_BYTES];
    uint64_t secret[2];
    int32_t pid;
    uint32_t uid;
};

struct shc_control {
    struct shc_control_address self;
    int listener;
    int rank, world;
    int links[SHC_MAX_WORLD]; /* by rank; -1: none */
    /* Asked every 10 ms of waiting: has a rank died that nobody can meet any more? May be NULL. */
    enum shc_status (*look)(void *ctx);
    void *look_ctx;
    uint64_t strangers; /* turned away */
    const struct shc_comm
        *core; /* the group of these ranks, for their names; NULL: there is none */
};

/* One message; fd -1: none. The receiver closes the descriptor that it received. */
struct shc_control_message {
    uint32_t count; /* <= SHC_CONTROL_BYTES */
    int fd;
    unsigned char bytes[SHC_CONTROL_BYTES];
};

SHC_NODISCARD enum shc_status shc_control_open(int rank, int world, struct shc_control *control);
void shc_control_close(struct shc_control *control);

/* "rank 2", or "rank 5 (rank 2 of group "tp")". */
struct shc_rank_name shc_control_rank_name(const struct shc_control *control, int rank);

/*
 * Connects to all. `all` is by rank, as published. SHC_ERR_TIMEOUT names the ranks that did not
 * come, SHC_ERR_UNREACHABLE one that cannot be reached, or whose name another process answers for. Ranks
 * that are connected with one that fails here learn its reason in their first round.
 */
SHC_NODISCARD enum shc_status shc_control_meet(struct shc_control *control,
                                               const struct shc_control_address *all,
                                               uint64_t deadline_ns);

/*
 * A round. post: theirs[r] is rank r's message (one's own: no descriptor). On failure no received
 * descriptor is left open, and the others have been told why: they give this rank's reason, not
 * this rank, as theirs. SHC_ERR_PEER_DEAD: a rank closed its end first, or one was told so.
 */
SHC_NODISCARD enum shc_status shc_control_swap(struct shc_control *control,
                                               const struct shc_control_message *mine,
                                               uint64_t deadline_ns,
                                               struct shc_control_message *theirs);

/* The descriptors that came with a round, of a world of that size. */
void shc_control_close_received(struct shc_control_message *theirs, int world);
