/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The keys of SHMCOLL_TUNING, in one table. The parser, error texts, shmcoll.describe() and the page
 * docs/reference/tuning-keys.md follow from it; tests/unit/tuning_test.cc compares the page.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>
#include <stddef.h>

struct shc_key {
    const char *name;
    size_t offset; /* of the size_t in struct shc_tuning */
    size_t minimum, maximum, multiple;
    bool has_never;        /* "never" is a value: SIZE_MAX */
    bool has_auto;         /* "auto" is a value: SHC_TUNING_AUTO, the default */
    bool may_differ;       /* ranks of a group may have different values */
    const char *otherwise; /* the default in words, if it depends on the machine or the group */
    const char *sets;      /* what the value is */
    const char *row;       /* the rows of shmcoll.bench that it moves */
};

#define SHC_KEYS 20

extern const struct shc_key shc_keys[SHC_KEYS];

/* The key that replaces a key of an earlier version. NULL: there was never a key of that name. */
const char *shc_key_instead_of(const char *name);
