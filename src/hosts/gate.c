/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/gate.h"

#include "hosts/hosts_rate.h"
#include "hosts/hosts_sys.h"

#include "shm/base/clock.h"

#include <stdio.h>
#include <stdlib.h>

#define ALIGN 64

struct shc_gate {
    pthread_mutex_t lock; /* guards the rest and all tickets */
    pthread_cond_t ended;
    int references; /* the group's, and one of each call in flight */
    struct shc_hosts_rate rate;
    char *stage;
};

struct shc_ticket {
    struct shc_gate *gate;
    bool in_flight, abandoned, measured;
    const struct shc_ticket_hooks *hooks; /* or NULL */
    void *hooks_arg;
    void (*done)(void *arg, const char *error); /* or NULL */
    void *arg;
    char error[SHC_HOSTS_ERROR_BYTES];
};

struct shc_gate *shc_gate_create(size_t stage_bytes)
{
    struct shc_gate *gate = calloc(1, sizeof *gate);
    char *stage = calloc(1, stage_bytes + ALIGN);
    if (!gate || !stage) {
        free(gate);
        free(stage);
        return NULL;
    }
    gate->stage = stage;
    gate->references = 1;
    pthread_mutex_init(&gate->lock, NULL);
    shc_hosts_cond_init(&gate->ended);
    return gate;
}

/* Drops a reference and the lock. */
static void drop(struct shc_gate *gate)
{
    const bool last = --gate->references == 0;
    pthread_mutex_unlock(&gate->lock);
    if (!last)
        return;
    pthread_cond_destroy(&gate->ended);
    pthread_mutex_destroy(&gate->lock);
    free(gate->stage);
    free(gate);
}

void shc_gate_release(struct shc_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    drop(gate);
}

char *shc_gate_stage(struct shc_gate *gate)
{
    const uintptr_t at = (uintptr_t)gate->stage;
    return gate->stage + (ALIGN - at % ALIGN) % ALIGN;
}

struct shc_ticket *shc_gate_ticket(struct shc_gate *gate)
{
    struct shc_ticket *ticket = calloc(1, sizeof *ticket);
    if (!ticket)
        return NULL;
    ticket->gate = gate;
    ticket->in_flight = true;
    pthread_mutex_lock(&gate->lock);
    gate->references++;
    pthread_mutex_unlock(&gate->lock);
    return ticket;
}

void shc_gate_measure(struct shc_ticket *ticket, uint64_t bytes)
{
    struct shc_gate *gate = ticket->gate;
    if (bytes == 0)
        return;
    pthread_mutex_lock(&gate->lock);
    ticket->measured = true;
    shc_hosts_rate_begin(&gate->rate, bytes, shc_clock_ns());
    pthread_mutex_unlock(&gate->lock);
}

uint64_t shc_gate_rate(struct shc_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    const uint64_t known = shc_hosts_rate_known(&gate->rate);
    pthread_mutex_unlock(&gate->lock);
    return known;
}

struct shc_ticket *shc_gate_callback(struct shc_gate *gate,
                                     void (*done)(void *arg, const char *error), void *arg)
{
    struct shc_ticket *ticket = shc_gate_ticket(gate);
    if (ticket) {
        ticket->done = done;
        ticket->arg = arg;
        ticket->abandoned = true;
    }
    return ticket;
}

/* Tells the one who asked for it. */
static void tell(const struct shc_ticket *ticket, const char *error)
{
    char text[SHC_HOSTS_ERROR_BYTES] = "";
    if (error)
        snprintf(text, sizeof text, "%s", *error ? error : "no reason is given");
    ticket->done(ticket->arg, text);
}

void shc_ticket_done(struct shc_ticket *ticket, const char *error)
{
    struct shc_gate *gate = ticket->gate;
    if (ticket->done)
        tell(ticket, error);
    pthread_mutex_lock(&gate->lock);
    if (error)
        snprintf(ticket->error, sizeof ticket->error, "%s", *error ? error : "no reason is given");
    ticket->in_flight = false;
    if (ticket->measured)
        shc_hosts_rate_end(&gate->rate, !error, shc_clock_ns());
    if (ticket->abandoned)
        free(ticket);
    else
        pthread_cond_broadcast(&gate->ended);
    drop(gate);
}

void shc_ticket_set_hooks(struct shc_ticket *ticket, const struct shc_ticket_hooks *hooks,
                          void *arg)
{
    ticket->hooks = hooks;
    ticket->hooks_arg = arg;
}

void shc_gate_pause(uint64_t ns)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never;
    const uint64_t until_ns = shc_deadline_after(shc_clock_ns(), ns);
    shc_hosts_cond_init(&never);
    pthread_mutex_lock(&lock);
    (void)shc_hosts_cond_wait(&never, &lock, until_ns);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&never);
}

bool shc_gate_wait(struct shc_ticket *ticket, uint64_t slice_ns, char *error)
{
    struct shc_gate *gate = ticket->gate;
    const uint64_t until_ns = shc_deadline_after(shc_clock_ns(), slice_ns);
    pthread_mutex_lock(&gate->lock);
    if (ticket->in_flight && ticket->hooks) {
        pthread_mutex_unlock(&gate->lock);
        ticket->hooks->carry_on(ticket->hooks_arg);
        pthread_mutex_lock(&gate->lock);
    }
    while (ticket->in_flight && !ticket->hooks &&
           shc_hosts_cond_wait(&gate->ended, &gate->lock, until_ns))
        continue;
    const bool over = !ticket->in_flight;
    pthread_mutex_unlock(&gate->lock);
    if (!over)
        return false;
    snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s", ticket->error);
    free(ticket);
    return true;
}

void shc_gate_abandon(struct shc_ticket *ticket)
{
    struct shc_gate *gate = ticket->gate;
    pthread_mutex_lock(&gate->lock);
    ticket->abandoned = true;
    const bool is_carried = ticket->in_flight && ticket->hooks;
    if (!ticket->in_flight)
        free(ticket);
    pthread_mutex_unlock(&gate->lock);
    if (is_carried)
        ticket->hooks->abandon(ticket->hooks_arg);
}
