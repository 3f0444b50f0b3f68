/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A thread calls the caller's store, so that the rank that waits for an answer can stop waiting. One thread
 * per rendezvous. It ends with the rendezvous, or when its present call returns: the memory of a late
 * answer, and the store itself, live until then. Owned by the thread that makes the group.
 */

#include "shm/base/status.h"

#include <stdbool.h>

#define SHC_STORE_KEY_BYTES   96
#define SHC_STORE_VALUE_BYTES 2048

enum shc_store_kind {
    SHC_STORE_SET,
    SHC_STORE_GET,
    SHC_STORE_CHECK,
    SHC_STORE_ADD,
    SHC_STORE_PUT_FIRST
};

/* One call, with memory of its own for both directions. */
struct shc_store_call {
    enum shc_store_kind kind;
    char key[SHC_STORE_KEY_BYTES];
    int64_t number; /* add: what to add; then the sum */
    size_t bytes;
    char value[SHC_STORE_VALUE_BYTES];
    /* The answer. */
    int error;
    size_t now_bytes;
    char now[SHC_STORE_VALUE_BYTES];
};

struct shc_store_thread;

/* NULL: the store cannot be kept beyond the rendezvous, or memory or a thread is missing. Then calls are
 * made directly. */
struct shc_store_thread *shc_store_thread_start(const struct shc_store *store);

/* Memory for the next call. NULL if the two calls before it have no answer. */
struct shc_store_call *shc_store_thread_next(struct shc_store_thread *thread);

/* The call is filled in: hands it over. */
void shc_store_thread_ask(struct shc_store_thread *thread);

/* Waits, at most that long and until a signal comes, for the answers of all calls. False: one is missing. */
bool shc_store_thread_await(struct shc_store_thread *thread, uint64_t timeout_ns);

/* Calls that were handed over are still made, but their answers are dropped. Waits for nothing. NULL is
 * fine. */
void shc_store_thread_end(struct shc_store_thread *thread);

/* The call itself, in the calling thread. */
void shc_store_make_call(const struct shc_store *store, struct shc_store_call *call);
