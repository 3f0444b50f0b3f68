/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The limits of coll/select.h as text: `key=value,key=value`, or a file with one pair per line. The keys are
 * those of coll/keys.c.
 */

#include "shm/coll/select.h"
#include "shm/proto/layout.h"

/* What an error names as the origin of a text that a group was made with. */
#define SHC_TUNING_OPTION "the group's option tuning"

/*
 * The values of `defaults`, replaced by those of `text`; NULL or "" replaces none. A text that begins with '/'
 * names a file, and so does the rest of a text that begins with '@'. An error names `origin`, which is the
 * variable or option that has this text, and the key, the value and its range.
 */
SHC_NODISCARD enum shc_status shc_tuning_read(const char *origin, const char *text,
                                              const struct shc_tuning *defaults,
                                              struct shc_tuning *tuning);

/* The values that ranks must have alike, word by word, for the segment's header. */
void shc_tuning_share(const struct shc_tuning *tuning, uint64_t words[SHC_TUNING_WORDS]);

/* Are these words, which are rank 0's, equal to this rank's? MISMATCH names the first key that
 * differs, and both values. */
SHC_NODISCARD enum shc_status shc_tuning_compare(const struct shc_tuning *tuning,
                                                 const uint64_t words[SHC_TUNING_WORDS]);

/* A line `tuning.key=value` for each key. Returns the bytes needed, as snprintf does. */
size_t shc_tuning_print(const struct shc_tuning *tuning, char *text, size_t capacity);
