/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Messages with ranks that share no memory with this one: the library matches and checks them with all others, and a
 * caller of the same project (src/hosts) carries them. No promise to other callers.
 *
 * A remote rank is numbered from world_size on. The caller moves frames (in the order in which it got them for each
 * rank, and one at a time) and, after CTS, the bytes of long messages. The rules are REM-1 to REM-9 of
 * docs/internals/protocol/remote.md.
 */

#include "shm/shmcoll.h"

#include "shm/base/attrs.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* The longest message whose bytes come with its header. */
#define SHC_REMOTE_EAGER_BYTES 960

enum shc_remote_kind {
    SHC_REMOTE_NONE = 0,
    SHC_REMOTE_EAGER,  /* a header with all bytes of its message */
    SHC_REMOTE_FIRST,  /* a header; the bytes follow after CTS */
    SHC_REMOTE_CTS,    /* the receive is there */
    SHC_REMOTE_NACK,   /* the receive is of this other type or size */
    SHC_REMOTE_CREDIT, /* `number`: eager messages that receives have taken in all; wraps */
    SHC_REMOTE_KINDS
};

struct shc_remote_frame {
    uint32_t kind;
    uint32_t number; /* of the message; its sender counts those for each rank */
    int32_t tag;
    uint32_t dtype, elem_bytes, dtype_tag;
    uint64_t bytes;
};

/* A long message whose bytes may go now. */
struct shc_remote_flow {
    uint32_t number;
    uint64_t bytes; /* 0: none */
};

/* Who carries messages. */
struct shc_remote {
    void *ctx;
    int count; /* remote ranks */
    /* "rank 9 (host 1)". */
    void (*name)(void *ctx, int rank, char *text, size_t capacity);
    /* There may be something for shc_remote_next(). Called under the lock of messages: calls nothing here. */
    void (*stir)(void *ctx);
};

struct shc_comm;
struct shc_p2p;

/* The messages of the group, as long as it lives. */
struct shc_p2p *shc_comm_messages(struct shc_comm *comm);

/* Before the group's first message. SHC_ERR_NOMEM. */
enum shc_status shc_remote_attach(struct shc_p2p *p2p, const struct shc_remote *remote);

/* The functions below do nothing, and return false, if the group is closed or has failed. */

/* The next frame for that rank, if there is one, with the bytes of an eager message. After a CTS the caller takes the
 * bytes that come (`flow`). */
bool shc_remote_next(struct shc_p2p *p2p, int rank, struct shc_remote_frame *frame, void *payload,
                     struct shc_remote_flow *flow);

/* A frame of that rank has come. After a CTS the caller sends the message's bytes (`flow`). SHC_ERR_INVALID: no rank of
 * this group sends such a frame now. SHC_ERR_NOMEM: a header that no receive takes cannot be kept. */
SHC_NODISCARD enum shc_status shc_remote_take(struct shc_p2p *p2p, int rank,
                                              const struct shc_remote_frame *frame,
                                              const void *payload, struct shc_remote_flow *flow);

/* Copies the next bytes of a message that goes out, from its sender's tensor; says that all of them have arrived, also
 * those of an eager frame; and copies bytes that have come to the receiver's tensor. False: the message is not there any
 * more. */
bool shc_remote_read(struct shc_p2p *p2p, int rank, uint32_t number, void *out, size_t bytes);
void shc_remote_end(struct shc_p2p *p2p, int rank, uint32_t number);
bool shc_remote_write(struct shc_p2p *p2p, int rank, uint32_t number, uint64_t offset,
                      const void *in, size_t bytes);

/* The rank has left, and nothing more comes from it: its messages end with SHC_ERR_PEER_LEFT and this reason. */
void shc_remote_gone(struct shc_p2p *p2p, int rank, const char *reason);

/* Does a message wait that names that rank? */
bool shc_remote_waits(struct shc_p2p *p2p, int rank);

/* Is any message of this rank not over? A hint. */
bool shc_remote_pends(const struct shc_p2p *p2p);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
