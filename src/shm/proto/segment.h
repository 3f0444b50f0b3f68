/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A piece of memory that ranks share: made by one of them, opened by the others through its name,
 * reserved range by range. Knows files and mappings, nothing of their content. A segment belongs to
 * one thread until its owner shares it by means of its own.
 *
 * Life: create or attach -> reserve (each rank its range) -> [all have reserved] -> use -> detach.
 * No page may be touched that no rank has reserved: it would be SIGBUS when memory is short.
 */

#include "shm/base/status.h"
#include "shm/os/os.h"
#include "shm/proto/layout.h"

enum shc_segment_form {
    SHC_FORM_UNNAMED = 1, /* a file in /dev/shm without a name, reached through /proc */
    SHC_FORM_NAMED,       /* a random name in /dev/shm until all have attached */
    SHC_FORM_MEMFD,       /* a sealed memfd, reached through /proc */
};

const char *shc_segment_form_name(uint32_t form);

/*
 * Tests only: ranks that are threads of one process share one mapping, because a thread sanitizer
 * sees a race only through one address. NULL everywhere else.
 */
struct shc_segment;
struct shc_mapping_cache {
    int (*map)(struct shc_mapping_cache *cache, const struct shc_segment *segment, void **base);
    void (*unmap)(struct shc_mapping_cache *cache, const struct shc_segment *segment);
};

struct shc_segment {
    char *base; /* NULL if there is none */
    size_t bytes;
    size_t guard_bytes; /* private memory directly before base */
    int fd;             /* -1 when closed */
    struct shc_mapping_cache *cache;
    struct shc_segment_name name;
};

/* A new, mapped segment of this form; nothing of it is reserved. SHC_ERR_NOSPACE, SHC_ERR_SYSTEM.
 * For SHC_FORM_NAMED the creator unlinks the name when all have attached. */
SHC_NODISCARD enum shc_status shc_segment_create(struct shc_segment *segment, uint32_t form,
                                                 size_t bytes, size_t guard_bytes,
                                                 const struct shc_os_process *self,
                                                 struct shc_mapping_cache *cache);

/* Opens and maps the file of this name. SHC_ERR_UNREACHABLE if it cannot be opened from here, or is
 * another file. The name comes from another process and is checked. */
SHC_NODISCARD enum shc_status shc_segment_attach(struct shc_segment *segment,
                                                 const struct shc_segment_name *name,
                                                 size_t guard_bytes,
                                                 struct shc_mapping_cache *cache);

/* Backs the range with memory, of these NUMA nodes (shc_os_place()). SHC_ERR_NOSPACE with the bytes
 * wanted and available. */
SHC_NODISCARD enum shc_status shc_segment_reserve(struct shc_segment *segment, size_t offset,
                                                  size_t bytes, uint64_t nodes);

/* All have attached: closes the file and, for the creator of a named one, removes the name. */
void shc_segment_settle(struct shc_segment *segment);

/* Unmaps. Safe on a zeroed segment, and twice. */
void shc_segment_detach(struct shc_segment *segment);
