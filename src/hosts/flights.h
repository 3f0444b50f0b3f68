/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Calls of the engine for messages. A call cannot be ended, and may last longer than the group. So the memory that it
 * may touch belongs to a flight, which lives until the call has ended. Threads of the engine only put a flight into the
 * list of those that have ended. One thread of this rank does all the rest, and waits for nothing but that list.
 */

#include "hosts/hosts.h"

#include "shm/base/attrs.h"

struct shc_flights;

/* One call. The caller's fields are not touched here. */
struct shc_flight {
    struct shc_flights *of;
    struct shc_flight *next; /* in the list of those that have ended */
    size_t bytes;
    char error[SHC_HOSTS_ERROR_BYTES]; /* "": the call has ended well */

    /* The caller's. */
    int kind, index;
    void *stream;
    uint64_t offset;

    _Alignas(64) char data[];
};

/* What the thread does, with the flights that have ended, linked by `next`. Returns when it is to be called again, in
 * nanoseconds from now; 0: when a flight has ended or somebody stirs. NULL at its first call. */
typedef uint64_t shc_flights_work(void *ctx, struct shc_flight *ended);

/* NULL: no memory. */
struct shc_flights *shc_flights_create(const struct shc_p2p_fabric *engine, shc_flights_work *work,
                                       void *ctx);

/* Makes sure that the thread runs. An errno. */
SHC_NODISCARD int shc_flights_start(struct shc_flights *flights);

/* Wakes the thread. Waits for nothing. */
void shc_flights_stir(struct shc_flights *flights);

/* NULL: no memory. */
struct shc_flight *shc_flight_new(struct shc_flights *flights, int kind, int index, size_t bytes);
void shc_flight_free(struct shc_flight *flight);

/* Begins its call. `rank` -1: a receive from any. */
void shc_flight_send(struct shc_flight *flight, int rank, uint32_t slot);
void shc_flight_receive(struct shc_flight *flight, int rank, uint32_t slot);

/* Stops the engine. After this `work` is not called. */
void shc_flights_close(struct shc_flights *flights);

/* The caller's reference; the last call of the engine frees the rest. pre: closed. */
void shc_flights_free(struct shc_flights *flights);
