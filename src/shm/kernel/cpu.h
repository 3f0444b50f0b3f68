/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which instruction sets this CPU and its operating system offer. A set is one bit per enum
 * shc_isa; SHC_ISA_BASE is always in it. Pure functions, any thread.
 */

#include "shm/kernel/kernel.h"

/* What the machine has, whatever SHMCOLL_CPU says. */
unsigned shc_cpu_isas(void);

/* What is left of `isas` under a value of SHMCOLL_CPU (enum shc_cpu_choice). */
unsigned shc_cpu_allow(unsigned isas, int choice);
