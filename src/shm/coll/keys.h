/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The keys of SHMCOLL_TUNING, in one table, from which the parser, error texts and shmcoll.describe() follow.
 * docs/reference/tuning-keys.md says what each of them sets; tests/unit/tuning_test.cc compares names, values and
 * defaults.
 */

#include <stdbool.h>
#include <stddef.h>

struct shc_key {
    const char *name;
    size_t offset; /* of the size_t in struct shc_tuning */
    size_t minimum, maximum, multiple;
    bool has_never;  /* "never" is a value: SIZE_MAX */
    bool has_auto;   /* "auto" is a value: SHC_TUNING_AUTO, the default */
    bool may_differ; /* ranks of a group may have different values */
};

#define SHC_KEYS 20

extern const struct shc_key shc_keys[SHC_KEYS];

/* The key that replaces a key of an earlier version. NULL: there was never a key of that name. */
const char *shc_key_instead_of(const char *name);
