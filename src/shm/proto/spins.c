/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long does a turn of a spin loop take on this machine?
 */
#include "shm/proto/wait.h"

#define LOOKS      4 /* looks at the time that a turn takes */
#define LOOK_TURNS 64

/* The shortest of some short measurements: in a longer one this thread would lose its CPU. */
static uint64_t measure_turn_ps(void)
{
    uint64_t least_ns = UINT64_MAX;
    for (int look = 0; look < LOOKS; look++) {
        uint64_t begun_ns = shc_clock_ns();
        for (uint32_t turn = 0; turn < LOOK_TURNS; turn++)
            shc_cpu_relax();
        uint64_t took_ns = shc_clock_ns() - begun_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    return (least_ns ? least_ns : 1) * 1000 / LOOK_TURNS;
}

uint32_t shc_wait_spins_for(uint64_t ns)
{
    static shc_a64 known_ps; /* 0: not measured yet */
    /* relaxed: a thread that measures at the same time finds as good a number. */
    uint64_t turn_ps = shc_a64_load_relaxed(&known_ps);
    if (turn_ps == 0) {
        turn_ps = measure_turn_ps();
        /* relaxed: a thread that measures at the same time finds as good a number. */
        shc_a64_store_relaxed(&known_ps, turn_ps);
    }
    uint64_t spins = ns * 1000 / turn_ps;
    return spins < UINT32_MAX ? (uint32_t)spins : UINT32_MAX;
}
