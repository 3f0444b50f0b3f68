/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/copy.h"

#include "shm/kernel/kernel_isa.h"

void shc_copy_stream(void *dst, const void *src, size_t bytes)
{
    shc_kernel_set_chosen()->stream(dst, src, bytes);
}

void shc_copy_lines(void *dst, const void *src, size_t bytes)
{
    shc_kernel_set_chosen()->lines(dst, src, bytes);
}

void shc_copy_exchange_past(void *out, void *cell, const void *next, size_t bytes)
{
    shc_kernel_set_chosen()->exchange_past(out, cell, next, bytes);
}

void shc_copy_exchange(void *out, void *cell, const void *next, size_t bytes)
{
    shc_kernel_set_chosen()->exchange(out, cell, next, bytes);
}
