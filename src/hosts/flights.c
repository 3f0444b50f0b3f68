/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/flights.h"

#include "hosts/gate.h"
#include "hosts/hosts_sys.h"

#include "shm/base/clock.h"
#include "shm/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shc_flights {
    struct shc_p2p_fabric engine;
    struct shc_gate *gate;
    shc_flights_work *work;
    void *ctx; /* until the close */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t stir;
    int references; /* the caller's, the thread's, and one of each flight */
    bool started, stirred, closing;
    bool inside; /* the thread is in `work` */
    struct shc_flight *ended, *last;
};

static void drop(struct shc_flights *flights)
{
    pthread_mutex_lock(&flights->lock);
    const bool last = --flights->references == 0;
    pthread_mutex_unlock(&flights->lock);
    if (!last)
        return;
    shc_gate_release(flights->gate);
    pthread_cond_destroy(&flights->stir);
    pthread_mutex_destroy(&flights->lock);
    free(flights);
}

struct shc_flights *shc_flights_create(const struct shc_p2p_fabric *engine, shc_flights_work *work,
                                       void *ctx)
{
    struct shc_flights *flights = calloc(1, sizeof *flights);
    struct shc_gate *gate = shc_gate_create(0);
    if (!flights || !gate) {
        free(flights);
        if (gate)
            shc_gate_release(gate);
        return NULL;
    }
    *flights = (struct shc_flights){
        .engine = *engine, .gate = gate, .work = work, .ctx = ctx, .references = 1};
    pthread_mutex_init(&flights->lock, NULL);
    shc_hosts_cond_init(&flights->stir);
    return flights;
}

/* ---- flights ---- */

struct shc_flight *shc_flight_new(struct shc_flights *flights, int kind, int index, size_t bytes)
{
    struct shc_flight *flight =
        aligned_alloc(64, shc_align_up(sizeof(struct shc_flight) + bytes, 64));
    if (!flight)
        return NULL;
    memset(flight, 0, sizeof *flight);
    flight->of = flights;
    flight->kind = kind;
    flight->index = index;
    flight->bytes = bytes;
    pthread_mutex_lock(&flights->lock);
    flights->references++;
    pthread_mutex_unlock(&flights->lock);
    return flight;
}

void shc_flight_free(struct shc_flight *flight)
{
    struct shc_flights *flights = flight->of;
    free(flight);
    drop(flights);
}

static void free_all(struct shc_flight *flight)
{
    while (flight) {
        struct shc_flight *next = flight->next;
        shc_flight_free(flight);
        flight = next;
    }
}

/* Any thread: the call has ended. */
static void has_ended(void *arg, const char *error)
{
    struct shc_flight *flight = arg;
    struct shc_flights *flights = flight->of;
    snprintf(flight->error, sizeof flight->error, "%s", error);
    pthread_mutex_lock(&flights->lock);
    const bool closing = flights->closing;
    if (!closing) {
        flight->next = NULL;
        if (flights->last)
            flights->last->next = flight;
        else
            flights->ended = flight;
        flights->last = flight;
        pthread_cond_broadcast(&flights->stir);
    }
    pthread_mutex_unlock(&flights->lock);
    if (closing)
        shc_flight_free(flight);
}

static void begin(struct shc_flight *flight, bool sends, int rank, uint32_t slot)
{
    const struct shc_p2p_fabric *engine = &flight->of->engine;
    struct shc_ticket *ticket = shc_gate_callback(flight->of->gate, has_ended, flight);
    char why[64];
    if (!ticket) {
        has_ended(flight, "no memory for a call of the engine");
        return;
    }
    const int error =
        sends ? engine->send(engine->ctx, flight->data, flight->bytes, rank, slot, ticket)
              : engine->receive(engine->ctx, flight->data, flight->bytes, rank, slot, ticket);
    if (error)
        shc_ticket_done(ticket, strerror_r(error, why, sizeof why));
}

void shc_flight_send(struct shc_flight *flight, int rank, uint32_t slot)
{
    begin(flight, true, rank, slot);
}

void shc_flight_receive(struct shc_flight *flight, int rank, uint32_t slot)
{
    begin(flight, false, rank, slot);
}

/* ---- the thread ---- */

/* pre: the lock. Waits until there is something to do, or the time has come. */
static void await(struct shc_flights *flights, uint64_t again_ns)
{
    const uint64_t until_ns =
        again_ns == 0 ? SHC_NO_DEADLINE : shc_deadline_after(shc_clock_ns(), again_ns);
    bool waits = true;
    while (!flights->stirred && !flights->ended && !flights->closing && waits)
        if (until_ns == SHC_NO_DEADLINE)
            pthread_cond_wait(&flights->stir, &flights->lock);
        else
            waits = shc_hosts_cond_wait(&flights->stir, &flights->lock, until_ns);
}

static void *carry(void *arg)
{
    struct shc_flights *flights = arg;
    uint64_t again_ns = 1;
    pthread_mutex_lock(&flights->lock);
    for (;;) {
        await(flights, again_ns);
        struct shc_flight *ended = flights->ended;
        flights->ended = flights->last = NULL;
        flights->stirred = false;
        flights->inside = !flights->closing;
        pthread_mutex_unlock(&flights->lock);
        if (!flights->inside) {
            free_all(ended);
            break;
        }
        again_ns = flights->work(flights->ctx, ended);
        pthread_mutex_lock(&flights->lock);
        flights->inside = false;
        pthread_cond_broadcast(&flights->stir);
    }
    drop(flights);
    return NULL;
}

int shc_flights_start(struct shc_flights *flights)
{
    int error = 0;
    pthread_mutex_lock(&flights->lock);
    if (!flights->started && !flights->closing) {
        flights->references++;
        error = shc_hosts_start_thread("shc-hosts-p2p", carry, flights);
        flights->started = error == 0;
        flights->references -= error != 0;
    }
    pthread_mutex_unlock(&flights->lock);
    return error;
}

void shc_flights_stir(struct shc_flights *flights)
{
    pthread_mutex_lock(&flights->lock);
    flights->stirred = true;
    pthread_cond_broadcast(&flights->stir);
    pthread_mutex_unlock(&flights->lock);
}

void shc_flights_close(struct shc_flights *flights)
{
    pthread_mutex_lock(&flights->lock);
    const bool stops = !flights->closing && flights->started;
    flights->closing = true;
    pthread_cond_broadcast(&flights->stir);
    while (flights->inside)
        pthread_cond_wait(&flights->stir, &flights->lock);
    pthread_mutex_unlock(&flights->lock);
    if (stops)
        flights->engine.stop(flights->engine.ctx);
}

void shc_flights_free(struct shc_flights *flights)
{
    drop(flights);
}
