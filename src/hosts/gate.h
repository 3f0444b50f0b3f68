/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Waiting for an engine. A call of an engine cannot be ended: a rank that gives up walks away from it, and the
 * engine may finish it much later, or never, from a thread of its own. So everything that the engine may touch
 * belongs to the gate and lives as long as any call: the staging memory, the tickets, the lock.
 */

#include "hosts/hosts.h"

#include "shm/base/attrs.h"

struct shc_gate;

/* `stage_bytes` of staging memory, all zero. NULL: no memory. */
struct shc_gate *shc_gate_create(size_t stage_bytes);

/* Lets go of it. What is still in flight frees it at its end. */
void shc_gate_release(struct shc_gate *gate);

char *shc_gate_stage(struct shc_gate *gate);

/* For a call that is about to begin; NULL: no memory. It ends with shc_gate_wait() or shc_gate_abandon(). */
struct shc_ticket *shc_gate_ticket(struct shc_gate *gate);

/* The call of that ticket, which is about to begin, brings so many bytes: the link is measured by it. */
void shc_gate_measure(struct shc_ticket *ticket, uint64_t bytes);

/* Bytes per second of what was measured (hosts_rate.h); 0: unknown. */
uint64_t shc_gate_rate(struct shc_gate *gate);

/* For a call that nobody waits for: `done` is told how it ended (error "": well), by the thread that ends it, and the
 * ticket is gone. NULL: no memory. */
struct shc_ticket *shc_gate_callback(struct shc_gate *gate,
                                     void (*done)(void *arg, const char *error), void *arg);

/* Waits until the call has ended, at most `slice_ns`. False: it has not. True: the ticket is gone, and `error` (of
 * SHC_HOSTS_ERROR_BYTES) says why it failed, or is "". */
bool shc_gate_wait(struct shc_ticket *ticket, uint64_t slice_ns, char *error);

/* Does nothing for that long, or a little less. */
void shc_gate_pause(uint64_t ns);

/* Nobody waits any longer. */
void shc_gate_abandon(struct shc_ticket *ticket);
