/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/peer_heaps.h"

#include "shm/base/log.h"

#include <stdlib.h>
#include <string.h>

bool shc_peer_heaps_say_own(struct shc_seat *seat)
{
    struct shc_peer_heaps *heaps = seat->heaps;
    struct shc_heap_shm *own = shc_seat_heap(seat, seat->rank);
    struct shc_heap_name name;
    if (heaps->named)
        return true;
    if (!heaps->of)
        heaps->of = calloc((size_t)seat->world_size, sizeof *heaps->of);
    if (!heaps->of || !heaps->hooks->name(&name))
        return false;
    own->name = name;
    /* release heap/name -> acquire in open_one(): the name. */
    shc_a32_store_release(&own->named, 1);
    heaps->named = true;
    return true;
}

static void open_one(struct shc_seat *seat, int rank)
{
    const struct shc_heap_shm *theirs = shc_seat_heap(seat, rank);
    struct shc_peer_heap *heap = &seat->heaps->of[rank];
    struct shc_heap_name name;
    char why[SHC_STRERROR_BYTES];
    /* acquire heap/name <- release in shc_peer_heaps_say_own(): the name. */
    if (heap->tried || shc_a32_load_acquire(&theirs->named) == 0)
        return;
    heap->tried = true;
    shc_copy_once(&name, &theirs->name, sizeof name);
    const struct shc_os_process owner = shc_seat_process(seat, rank);
    const int error = seat->heaps->hooks->open(&owner, &name, &heap->view);
    if (error != 0) {
        shc_log(SHC_LOG_INFO,
                "%s cannot map the tensors that %s has in shared memory (%s): large sums in this "
                "group go through staging memory",
                shc_seat_member_name(seat, seat->rank).text, shc_seat_process_name(seat, rank).text,
                strerror_r(error, why, sizeof why));
        return;
    }
    /* relaxed: only the runner stores to it. */
    shc_a32_store_relaxed(&seat->heaps->mapped, shc_a32_load_relaxed(&seat->heaps->mapped) + 1);
}

void shc_peer_heaps_open(struct shc_seat *seat)
{
    for (int turn = 1; turn < seat->world_size; turn++)
        open_one(seat, shc_seat_peer(seat, turn));
}

char *shc_peer_heaps_at(struct shc_seat *seat, int rank, uint64_t offset, uint64_t bytes)
{
    struct shc_heap_view *view = &seat->heaps->of[rank].view;
    return view->base ? shc_heap_at(view, offset, bytes) : NULL;
}

void shc_peer_heaps_fini(struct shc_seat *seat)
{
    struct shc_peer_heaps *heaps = seat->heaps;
    for (int rank = 0; heaps->of && rank < seat->world_size; rank++)
        if (heaps->of[rank].view.base)
            heaps->hooks->close(&heaps->of[rank].view);
    free(heaps->of);
    heaps->of = NULL;
}
