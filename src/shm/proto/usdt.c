/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/usdt.h"

#ifdef SHC_HAVE_SDT
#define _SDT_HAS_SEMAPHORES 1
#define SDT_USE_VARIADIC
#include <sys/sdt.h>

/* Tools find them by this section. */
#define SEMAPHORE(name) unsigned short SHC_USDT_SEMAPHORE(name) __attribute__((section(".probes")))

SEMAPHORE(group_made);
SEMAPHORE(op_begin);
SEMAPHORE(op_end);
SEMAPHORE(waits);
SEMAPHORE(wait_slow);
SEMAPHORE(sent);
SEMAPHORE(received);
SEMAPHORE(failed);

#define PROBE(name, ...) STAP_PROBEV(shmcoll, name, __VA_ARGS__)
#else
#define PROBE(name, ...) ignore(0, __VA_ARGS__)

static void ignore(int first, ...)
{
    (void)first;
}
#endif

void shc_usdt_fire_group_made(const struct shc_seat *seat)
{
    PROBE(group_made, shc_seat_group(seat), (int64_t)seat->rank, (int64_t)seat->world_size);
}

void shc_usdt_fire_op_begin(const struct shc_seat *seat, uint64_t epoch,
                            const struct shc_call *call)
{
    call = shc_call_shown(call);
    PROBE(op_begin, shc_seat_group(seat), epoch, shc_op_kind_name(call->kind),
          shc_dtype_name(call->dtype), (uint64_t)call->count);
}

void shc_usdt_fire_op_end(const struct shc_seat *seat, uint64_t epoch, enum shc_status status)
{
    PROBE(op_end, shc_seat_group(seat), epoch, (int64_t)status);
}

void shc_usdt_fire_waits(const struct shc_seat *seat, int peer, uint64_t ns)
{
    PROBE(waits, shc_seat_group(seat), (int64_t)shc_seat_global_rank(seat, peer), ns);
}

void shc_usdt_fire_wait_slow(const struct shc_seat *seat, int peer, uint64_t ns)
{
    PROBE(wait_slow, shc_seat_group(seat), (int64_t)shc_seat_global_rank(seat, peer), ns);
}

void shc_usdt_fire_sent(const struct shc_seat *seat, int peer, int32_t tag, uint64_t bytes)
{
    PROBE(sent, shc_seat_group(seat), (int64_t)shc_seat_global_rank(seat, peer), (int64_t)tag,
          bytes);
}

void shc_usdt_fire_received(const struct shc_seat *seat, int peer, int32_t tag, uint64_t bytes)
{
    PROBE(received, shc_seat_group(seat), (int64_t)shc_seat_global_rank(seat, peer), (int64_t)tag,
          bytes);
}

void shc_usdt_fire_failed(enum shc_status status, const char *text)
{
    PROBE(failed, (int64_t)status, text);
}
