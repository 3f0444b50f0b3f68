/* SPDX-License-Identifier: BSD-3-Clause */
#include "peers.h"

#include <stdint.h>
#include <string.h>

/* The bits of 1 and 2: of a number, or of the real part of a complex one. */
static const struct unit {
    size_t bytes;
    uint64_t one, two;
} units[SHC_DTYPE_COUNT] = {
    [SHC_INT8] = {1, 1, 2},
    [SHC_INT16] = {2, 1, 2},
    [SHC_INT32] = {4, 1, 2},
    [SHC_INT64] = {8, 1, 2},
    [SHC_UINT8] = {1, 1, 2},
    [SHC_UINT16] = {2, 1, 2},
    [SHC_UINT32] = {4, 1, 2},
    [SHC_UINT64] = {8, 1, 2},
    [SHC_BOOL] = {1, 1, 1}, /* true or true */
    [SHC_FLOAT16] = {2, 0x3c00, 0x4000},
    [SHC_BFLOAT16] = {2, 0x3f80, 0x4000},
    [SHC_FLOAT8_E4M3FN] = {1, 0x38, 0x40},
    [SHC_FLOAT8_E5M2] = {1, 0x3c, 0x40},
    [SHC_FLOAT8_E4M3FNUZ] = {1, 0x40, 0x48},
    [SHC_FLOAT8_E5M2FNUZ] = {1, 0x40, 0x44},
    [SHC_FLOAT32] = {4, 0x3f800000, 0x40000000},
    [SHC_FLOAT64] = {8, 0x3ff0000000000000, 0x4000000000000000},
    [SHC_COMPLEX64] = {4, 0x3f800000, 0x40000000},
    [SHC_COMPLEX128] = {8, 0x3ff0000000000000, 0x4000000000000000},
};

bool numbers_choose(const char *names, size_t k, struct numbers *numbers)
{
    const char *wanted = strcmp(names, "all") == 0 ? NULL : names;
    for (int dtype = 0; dtype < SHC_OPAQUE; dtype++)
        for (int redop = 0; redop < SHC_REDOP_COUNT; redop++) {
            *numbers = (struct numbers){(enum shc_dtype)dtype, (enum shc_redop)redop};
            if (listed(wanted, shc_dtype_name(numbers->dtype)) &&
                shc_reduction_supported(numbers->dtype, numbers->redop) && k-- == 0)
                return true;
        }
    return false;
}

/* Element i of the parts: every second one of a complex dtype is an imaginary zero. */
static uint64_t part_of(const struct numbers *numbers, uint64_t value, size_t i)
{
    bool complex = numbers->dtype == SHC_COMPLEX64 || numbers->dtype == SHC_COMPLEX128;
    return complex && i % 2 ? 0 : value;
}

void numbers_fill(const struct numbers *numbers, void *memory, size_t bytes)
{
    const struct unit *unit = &units[numbers->dtype];
    for (size_t i = 0; i < bytes / unit->bytes; i++) {
        uint64_t value = part_of(numbers, unit->one, i);
        memcpy((char *)memory + i * unit->bytes, &value, unit->bytes);
    }
}

bool numbers_right(const struct numbers *numbers, const void *memory, size_t bytes)
{
    const struct unit *unit = &units[numbers->dtype];
    const enum shc_redop redop = numbers->redop;
    const uint64_t want = redop == SHC_SUM || redop == SHC_PREMUL_SUM ? unit->two
                          : redop == SHC_BXOR                         ? 0
                                                                      : unit->one;
    for (size_t i = 0; i < bytes / unit->bytes; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)memory + i * unit->bytes, unit->bytes);
        if (value != part_of(numbers, want, i))
            return false;
    }
    return true;
}
