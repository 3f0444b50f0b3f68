/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/copies.h"
#include "shm/base/num.h"

enum shc_status shc_copies_flush(struct shc_copies *copies)
{
    if (copies->args.count == 0)
        return SHC_OK;
    SHC_TRY(shc_kernels_copy(copies->kernels, copies->stream, &copies->args));
    copies->args.count = 0;
    return SHC_OK;
}

enum shc_status shc_copies_add(struct shc_copies *copies, void *to, const void *from,
                               uint64_t bytes)
{
    if (to == from)
        return SHC_OK;
    if (copies->args.count == SHC_COPY_PIECES)
        SHC_TRY(shc_copies_flush(copies));
    copies->args.piece[copies->args.count++] =
        (struct shc_copy_piece){.to = to, .from = from, .bytes = bytes};
    return SHC_OK;
}

enum shc_status shc_copies_add_flat(struct shc_copies *copies, struct shc_flat *flat, uint64_t at,
                                    shc_cu_address memory, uint64_t bytes, bool out)
{
    for (uint64_t moved = 0, run; moved < bytes; moved += run) {
        char *users = shc_flat_at(flat, at + moved, &run);
        void *other = shc_cu_pointer(memory + moved);
        run = shc_min_size(run, bytes - moved);
        SHC_TRY(out ? shc_copies_add(copies, other, users, run)
                    : shc_copies_add(copies, users, other, run));
    }
    return SHC_OK;
}
