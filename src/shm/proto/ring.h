/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lock-free ring for one producer and one consumer, between threads or between processes.
 *
 *   off   0  tail   W: producer, after the slot's words
 *   off 128  head   W: consumer, after its reads
 *   off 256  slots  W: producer; slot_words words each
 *
 * Invariant: tail - head <= slot_count. Both counters run freely and wrap; they are compared only
 * by unsigned difference. A producer that dies inside a push has not moved tail: its half-written
 * slot is never seen.
 *
 * Concurrency: one thread at a time on each side; the two sides keep a shc_ring each. When a side
 * changes hands, the hand-over itself must order the old holder before the new one.
 */

#include "shm/base/atomic.h"

struct shc_ring_shm {
    shc_a64 tail;
    uint8_t pad_tail[SHC_LINE_BYTES - 8];
    shc_a64 head;
    uint8_t pad_head[SHC_LINE_BYTES - 8];
};

/* One side's view. */
struct shc_ring {
    struct shc_ring_shm *shm;
    shc_word *slots;
    uint32_t slot_words;
    uint32_t slot_count; /* a power of two */
    uint64_t seen;       /* the other side's counter when it was last read: it may have moved on */
};

/* Bytes of memory a ring needs, zeroed, aligned to SHC_LINE_BYTES. */
SHC_INLINE size_t shc_ring_bytes(uint32_t slot_count, uint32_t slot_words)
{
    return sizeof(struct shc_ring_shm) + (size_t)slot_count * slot_words * sizeof(shc_word);
}

/* One side's view of the ring in this memory. */
SHC_INLINE struct shc_ring shc_ring_view(void *memory, uint32_t slot_count, uint32_t slot_words)
{
    struct shc_ring ring;
    ring.shm = (struct shc_ring_shm *)memory;
    ring.slots = (shc_word *)(void *)((char *)memory + sizeof(struct shc_ring_shm));
    ring.slot_words = slot_words;
    ring.slot_count = slot_count;
    /* relaxed: an old head is a safe start for both sides. */
    ring.seen = shc_a64_load_relaxed(&ring.shm->head);
    return ring;
}

SHC_INLINE shc_word *shc_ring_slot(const struct shc_ring *ring, uint64_t index)
{
    return ring->slots + (index & (ring->slot_count - 1)) * ring->slot_words;
}

/* Producer: copies slot_words words in; false when the ring is full. */
SHC_INLINE bool shc_ring_push(struct shc_ring *ring, const uint64_t *words)
{
    /* relaxed: only the producer writes tail. */
    uint64_t tail = shc_a64_load_relaxed(&ring->shm->tail);
    if (tail - ring->seen >= ring->slot_count) {
        /* acquire ring/retire <- release in shc_ring_pop(): the slot has been read. */
        ring->seen = shc_a64_load_acquire(&ring->shm->head);
        if (tail - ring->seen >= ring->slot_count)
            return false;
    }
    shc_word *slot = shc_ring_slot(ring, tail);
    for (uint32_t i = 0; i < ring->slot_words; i++)
        shc_word_put(&slot[i], words[i]);
    /* release ring/publish -> acquire in shc_ring_empty(): the slot's words. */
    shc_a64_store_release(&ring->shm->tail, tail + 1);
    return true;
}

/* Consumer: is there nothing to pop? */
SHC_INLINE bool shc_ring_empty(struct shc_ring *ring)
{
    /* relaxed: only the consumer writes head. */
    uint64_t head = shc_a64_load_relaxed(&ring->shm->head);
    if (ring->seen != head)
        return false;
    /* acquire ring/publish <- release in shc_ring_push(): the slot's words. */
    ring->seen = shc_a64_load_acquire(&ring->shm->tail);
    return ring->seen == head;
}

/* Consumer: copies the oldest slot's words out; false when the ring is empty. */
SHC_INLINE bool shc_ring_pop(struct shc_ring *ring, uint64_t *words)
{
    if (shc_ring_empty(ring))
        return false;
    /* relaxed: only the consumer writes head. */
    uint64_t head = shc_a64_load_relaxed(&ring->shm->head);
    const shc_word *slot = shc_ring_slot(ring, head);
    for (uint32_t i = 0; i < ring->slot_words; i++)
        words[i] = shc_word_get(&slot[i]);
    /* release ring/retire -> acquire in shc_ring_push(): the slot may be written again. */
    shc_a64_store_release(&ring->shm->head, head + 1);
    return true;
}
