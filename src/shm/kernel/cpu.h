/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What this CPU is, and which instruction sets it and its operating system offer. A set is one bit per
 * enum shc_isa; SHC_ISA_BASE is always in it. Pure functions, any thread.
 */

#include "shm/kernel/kernel.h"

/* What the machine has, independent of SHMCOLL_CPU. */
unsigned shc_cpu_isas(void);

/* The family of an AMD processor (0x19: Zen 3 and 4; 0x1a: Zen 5); 0: another maker's. */
unsigned shc_cpu_amd_family(void);

/* The part of `isas` that a value of SHMCOLL_CPU (enum shc_cpu_choice) allows. */
unsigned shc_cpu_allow(unsigned isas, int choice);
