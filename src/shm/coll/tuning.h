/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The selection table's values as text: `key=value,key=value`, or a file with one pair per line.
 * docs/notebook/performance.md, "Tuning", has the keys; the table of them is in tuning.c.
 */

#include "shm/coll/select.h"
#include "shm/proto/layout.h"

/*
 * The preset values with those of `text` in their places. NULL or "": the presets. A text that
 * begins with '/' names a file, and so does what follows a '@'. Errors name the origin, which is
 * what somebody has set to that text, key, value and range.
 */
SHC_NODISCARD enum shc_status shc_tuning_read(const char *origin, const char *text,
                                              const struct shc_tuning *preset,
                                              struct shc_tuning *tuning);

/* What ranks must have alike, word by word, for the segment's header. */
void shc_tuning_share(const struct shc_tuning *tuning, uint64_t words[SHC_TUNING_WORDS]);

/* Are these, rank 0's, the same? MISMATCH names the first key that differs, and both values. */
SHC_NODISCARD enum shc_status shc_tuning_compare(const struct shc_tuning *tuning,
                                                 const uint64_t words[SHC_TUNING_WORDS]);

/* Lines of `tuning.key=value`, all keys. Returns the bytes needed, as snprintf does. */
size_t shc_tuning_print(const struct shc_tuning *tuning, char *text, size_t capacity);
