/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A slab: memory of this rank's GPU that other processes map. Two kinds, because not every machine
 * lets both work:
 *
 *   FD      made by cuMemCreate, exported as a file descriptor. A process that has imported
 *           it holds the memory itself: it outlives its maker.
 *   LEGACY  made by cuMemAlloc, named by a handle. Freeing it while a process has it open is
 *           undefined, and so is what a handle names after that: once shown, it is never freed
 *           before the process ends.
 *
 * Users' tensors are never exported. Making and importing is for one thread; memory is anybody's.
 */

#include "cuda_ipc/control.h"
#include "cuda_ipc/gpu.h"

enum shc_slab_kind { SHC_SLAB_NONE = 0, SHC_SLAB_FD, SHC_SLAB_LEGACY, SHC_SLAB_KIND_COUNT };

const char *shc_slab_kind_name(enum shc_slab_kind kind);

/* A slab of this rank's, or with `imported` a view of another rank's. */
struct shc_slab {
    const struct shc_gpu *gpu;
    enum shc_slab_kind kind;
    bool imported;
    bool shown; /* LEGACY: its handle has left this process */
    shc_cu_address address;
    size_t bytes;    /* whole granules of the GPU's */
    uint64_t handle; /* FD: of the memory */
    int fd;          /* FD, not imported: the descriptor to send */
};

/* At least this many bytes of the GPU. SHC_ERR_UNSUPPORTED: this GPU or driver has not this kind.
 * SHC_ERR_NOMEM, SHC_ERR_SYSTEM: the driver says no; nothing remains. */
SHC_NODISCARD enum shc_status shc_slab_create(const struct shc_gpu *gpu, enum shc_slab_kind kind,
                                              size_t bytes, struct shc_slab *slab);

/* pre: nothing that is enqueued touches it. */
void shc_slab_destroy(struct shc_slab *slab);

/* The message that the others need to import it. The message's descriptor stays the slab's. */
SHC_NODISCARD enum shc_status shc_slab_show(struct shc_slab *slab,
                                            struct shc_control_message *message);

/* A view of the slab that another rank has shown; the message's descriptor stays the caller's.
 * SHC_ERR_VERSION: the message holds no slab. */
SHC_NODISCARD enum shc_status shc_slab_import(const struct shc_gpu *gpu,
                                              const struct shc_control_message *message,
                                              struct shc_slab *view);
