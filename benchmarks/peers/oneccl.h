/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The collectives of oneCCL, in the place of MPI's. MPI starts its ranks. In a program that is compiled without it
 * (PEERS_ONECCL) there is none.
 */
#include <stdbool.h>
#include <stddef.h>

#include <shm/shmcoll.h>

#ifdef PEERS_ONECCL
#ifdef __cplusplus
extern "C" {
#endif
/* Collective. pre: MPI is initialized. */
void oneccl_begin(int rank, int size);
void oneccl_end(void);

/* Has oneCCL this operation? */
bool oneccl_has(enum shc_op_kind kind);

/* Of float32, and sums; `count` elements of a rank's block. pre: oneccl_has(). */
void oneccl_run(enum shc_op_kind kind, const float *given, float *got, size_t count, int root);
#ifdef __cplusplus
}
#endif
#define ONECCL true
#else
#define ONECCL false
static inline void oneccl_begin(int rank, int size)
{
    (void)rank, (void)size;
}

static inline void oneccl_end(void) {}

static inline bool oneccl_has(enum shc_op_kind kind)
{
    (void)kind;
    return false;
}

static inline void oneccl_run(enum shc_op_kind kind, const float *given, float *got, size_t count,
                              int root)
{
    (void)kind, (void)given, (void)got, (void)count, (void)root;
}
#endif
