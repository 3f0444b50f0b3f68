/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Call lines: what a rank is about to do, and the comparison with the calls of the others.
 *
 * Two lines per rank, by parity of the epoch. A rank leaves operation k-1 only after all ranks have
 * published it, and a rank that has published k-1 has read all of k-2. So line k & 1 is free when k
 * begins. (With one line, a rank that returns from k and publishes k+1 would overwrite a k that
 * another rank has not read yet.) The same holds for the small slots, and for hand-off slots. It holds
 * for every rank. So in a world of two the rank that has read a line stores to it next
 * (shc_seat_host()).
 *
 * The words of a call lie elsewhere, always in the rank's own block: they are read for messages.
 */

#include "shm/base/agreed_call.h"
#include "shm/base/status.h"
#include "shm/proto/seat.h"

/* The call that texts and tools show: a user's, of which this one is a part, or itself. */
SHC_INLINE const struct shc_call *shc_call_shown(const struct shc_call *call)
{
    return SHC_UNLIKELY(call->said != NULL) ? call->said : call;
}

/* SHC_ERR_INVALID: the operation asks for what only a later version of the library knows. */
SHC_NODISCARD enum shc_status shc_op_check_reserved(const struct shc_op *op);

/* The length of an element of the operation's tensors. SHC_ERR_INVALID: no such dtype, or length. */
SHC_NODISCARD enum shc_status shc_op_elem_bytes(const struct shc_op *op, uint32_t *elem_bytes);

/* Once the other fields are set. */
void shc_call_settle(struct shc_call *call);

/* The words of a record: first the call; then a seal, the sum of the epoch and of a hash of the
 * call, which shows that the words belong together; then that hash, for their writer. */
enum { SHC_CALL_RECORD_SEAL = 4, SHC_CALL_RECORD_HASH = 5 };

/* Stores the words if the call differs from the one before. Cold: a training makes the same call
 * again and again. */
SHC_COLD void shc_call_rewrite(struct shc_call_record_shm *record, const struct shc_call *call);

/* Publishes the call in this rank's line. Does not ring the bell. pre: settled. */
SHC_INLINE void shc_call_publish(const struct shc_seat *seat, uint64_t epoch,
                                 const struct shc_call *call)
{
    struct shc_call_record_shm *record = shc_seat_call_record(seat, seat->rank, epoch);
    struct shc_call_shm *line = shc_seat_call(seat, seat->rank, epoch);
    /* relaxed: only this rank stores to it. */
    if (SHC_UNLIKELY(shc_a64_load_relaxed(&record->words[SHC_CALL_RECORD_HASH]) != call->hash))
        shc_call_rewrite(record, call);
    /* relaxed: the seal alone shows whether it fits the words. */
    shc_a64_store_relaxed(&record->words[SHC_CALL_RECORD_SEAL], call->hash + epoch);
    /* release call/record -> acquire in read_record(): the words. Before the line: a rank that sees the
     * line finds the call here, too. */
    shc_a64_store_release(&record->epoch, epoch);
    line->hash = call->agreed;
    /* release call/publish -> acquire in shc_wait_has_reached(): hash, payload, and the slot or
     * cell filled before; that all slots of the operation before have been read. */
    shc_a64_store_release(&line->epoch, epoch);
}

/* SHC_INLINE_BYTES in the rank's line of this epoch. The own bytes are filled before the line is
 * published, the others' are read after that. */
SHC_INLINE char *shc_call_payload(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    return shc_seat_call(seat, rank, epoch)->payload;
}

/* "all_reduce #412 (float32[1024], sum)"; without the number while epoch is 0. */
void shc_call_text(const struct shc_seat *seat, const struct shc_call *call, uint64_t epoch,
                   char *text, size_t capacity);

/* As other ranks' errors have it: "rank 0 called all_reduce #412 (float32[2], sum)". */
void shc_call_made_text(const struct shc_seat *seat, const struct shc_call *call, uint64_t epoch,
                        char *text, size_t capacity);

/* The newest call that the rank has published, or epoch 0. The rank may store at the same time. */
uint64_t shc_call_latest(const struct shc_seat *seat, int rank, struct shc_call *call);

/* The same in words: "broadcast #411 (...)". False, and "no call": it had not made any. */
bool shc_call_latest_text(const struct shc_seat *seat, int rank, char *text, size_t capacity);

/* The same as a clause: "its last call was broadcast #411 (...)" or "it had made no call yet". */
void shc_call_last_clause(const struct shc_seat *seat, int rank, char *text, size_t capacity);

/* What this rank alone filled in the operation before, if it will fill it again. NULL for a hand-off slot to
 * which the other one of two ranks stores in this operation. */
const char *shc_call_lent_slot(const struct shc_seat *seat, uint64_t before);
