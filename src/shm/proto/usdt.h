/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Static probes (USDT) of the provider `shmcoll`, for bpftrace, perf and systemtap: docs/operate/probes.md. A probe
 * costs one look at its semaphore, which the kernel counts up while a tool listens. Only then are arguments made.
 * They are 64-bit numbers, and texts, which live until the probe returns. Built without <sys/sdt.h>, a probe is
 * nothing.
 */

#include "shm/base/once.h"
#include "shm/proto/call.h"
#include "shm/proto/seat.h"

#ifdef SHC_HAVE_SDT
#define SHC_USDT_SEMAPHORE(name) shmcoll_##name##_semaphore
#define SHC_USDT_LISTENED(name)  SHC_UNLIKELY(SHC_READ_ONCE(SHC_USDT_SEMAPHORE(name)) != 0)

extern unsigned short SHC_USDT_SEMAPHORE(group_made) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(op_begin) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(op_end) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(waits) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(wait_slow) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(sent) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(received) __attribute__((visibility("hidden")));
extern unsigned short SHC_USDT_SEMAPHORE(failed) __attribute__((visibility("hidden")));
#else
#define SHC_USDT_LISTENED(name) false
#endif

/* What a probe does where a tool listens. */
SHC_COLD void shc_usdt_fire_group_made(const struct shc_seat *seat);
SHC_COLD void shc_usdt_fire_op_begin(const struct shc_seat *seat, uint64_t epoch,
                                     const struct shc_call *call);
SHC_COLD void shc_usdt_fire_op_end(const struct shc_seat *seat, uint64_t epoch,
                                   enum shc_status status);
SHC_COLD void shc_usdt_fire_waits(const struct shc_seat *seat, int peer, uint64_t ns);
SHC_COLD void shc_usdt_fire_wait_slow(const struct shc_seat *seat, int peer, uint64_t ns);
SHC_COLD void shc_usdt_fire_sent(const struct shc_seat *seat, int peer, int32_t tag,
                                 uint64_t bytes);
SHC_COLD void shc_usdt_fire_received(const struct shc_seat *seat, int peer, int32_t tag,
                                     uint64_t bytes);
SHC_COLD void shc_usdt_fire_failed(enum shc_status status, const char *text);

/* group_made(group, rank, world): `rank` is the one in the group. */
SHC_INLINE void shc_usdt_group_made(const struct shc_seat *seat)
{
    if (SHC_USDT_LISTENED(group_made))
        shc_usdt_fire_group_made(seat);
}

/* op_begin(group, epoch, kind, dtype, count): texts for kind and dtype. */
SHC_INLINE void shc_usdt_op_begin(const struct shc_seat *seat, uint64_t epoch,
                                  const struct shc_call *call)
{
    if (SHC_USDT_LISTENED(op_begin))
        shc_usdt_fire_op_begin(seat, epoch, call);
}

/* op_end(group, epoch, status): 0 is success. */
SHC_INLINE void shc_usdt_op_end(const struct shc_seat *seat, uint64_t epoch, enum shc_status status)
{
    if (SHC_USDT_LISTENED(op_end))
        shc_usdt_fire_op_end(seat, epoch, status);
}

/* waits(group, peer, ns): a call is about to sleep, again, since `ns`. The peer is named by its rank in the job,
 * here and below. */
SHC_INLINE void shc_usdt_waits(const struct shc_seat *seat, int peer, uint64_t ns)
{
    if (SHC_USDT_LISTENED(waits))
        shc_usdt_fire_waits(seat, peer, ns);
}

/* wait_slow(group, peer, ns): a call has slept so long for that peer. */
SHC_INLINE void shc_usdt_wait_slow(const struct shc_seat *seat, int peer, uint64_t ns)
{
    if (SHC_USDT_LISTENED(wait_slow))
        shc_usdt_fire_wait_slow(seat, peer, ns);
}

/* sent(group, peer, tag, bytes) */
SHC_INLINE void shc_usdt_sent(const struct shc_seat *seat, int peer, int32_t tag, uint64_t bytes)
{
    if (SHC_USDT_LISTENED(sent))
        shc_usdt_fire_sent(seat, peer, tag, bytes);
}

/* received(group, peer, tag, bytes) */
SHC_INLINE void shc_usdt_received(const struct shc_seat *seat, int peer, int32_t tag,
                                  uint64_t bytes)
{
    if (SHC_USDT_LISTENED(received))
        shc_usdt_fire_received(seat, peer, tag, bytes);
}

/* failed(status, text): this rank has failed a group. */
SHC_INLINE void shc_usdt_failed(enum shc_status status, const char *text)
{
    if (SHC_USDT_LISTENED(failed))
        shc_usdt_fire_failed(status, text);
}
