/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/cma.h"

#include "shm/proto/member.h"

#include <stdio.h>
#include <string.h>

/* The bytes of one system call. Between two of them a failure of the group is noticed. */
#define PIECE_BYTES ((size_t)1 << 20)

/* A process that is killed for lack of memory loses its memory a little before its death shows. */
#define GRACE_LOOKS 10
#define GRACE_NS    (5 * SHC_NS_PER_MS)

void shc_cma_tell(struct shc_seat *seat, struct shc_identity *identity)
{
    const bool known = shc_os_random(&seat->key, sizeof seat->key) == 0;
    identity->key = seat->key;
    identity->key_address = known ? (uint64_t)(uintptr_t)&seat->key : 0;
}

/* A thread of the rank's process that lives as long as the process. */
static int32_t thread_of(const struct shc_seat *seat, int rank)
{
    /* acquire life/own <- release in shc_os_robust_link(): the liveness thread's thread id; 0: it has ended. */
    const uint32_t life = shc_a32_load_acquire(&shc_seat_member(seat, rank)->life);
    return (int32_t)(life & SHC_OS_OWNER_MASK);
}

bool shc_cma_reaches(const struct shc_seat *seat, int rank)
{
    const struct shc_identity identity = shc_seat_identity(seat, rank);
    uint64_t found = 0;
    return identity.key_address != 0 &&
           shc_os_process_read(thread_of(seat, rank), identity.key_address, &found, sizeof found) ==
               0 &&
           found == identity.key;
}

bool shc_cma_is_readable(const void *memory, size_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)memory;
    const int32_t self = shc_os_thread_id();
    char byte;
    return bytes == 0 || (shc_os_process_read(self, address, &byte, 1) == 0 &&
                          shc_os_process_read(self, address + bytes - 1, &byte, 1) == 0);
}

struct giver {
    const struct shc_wait *wait;
    int rank;
    bool in_vain; /* its process could not be found, or the group has failed */
};

bool shc_cma_has_withdrawn(const struct shc_seat *seat, int rank, uint64_t epoch)
{
    /* acquire cma/withdrawn <- acq_rel in shc_cma_withdraw(): that it may change its memory. */
    return shc_a64_load_acquire(&shc_seat_cma(seat, rank, epoch)->withdrawn) == epoch;
}

/* Has that rank's memory held what it offered until now? The copy before this call is complete: the
 * system call ends with a barrier (it drops a reference to that process's memory). */
static bool has_kept(void *arg)
{
    const struct giver *giver = arg;
    const struct shc_seat *seat = giver->wait->seat;
    return !giver->in_vain && !shc_cma_has_withdrawn(seat, giver->rank, giver->wait->epoch) &&
           shc_member_has_memory(seat, giver->rank);
}

/* The rank has published, or the wait finds out what has become of it. */
static enum shc_status confirm(struct shc_wait *wait, struct giver *giver)
{
    const struct shc_target target = {
        .ready = has_kept,
        .arg = giver,
        .bell = shc_seat_bell(wait->seat, giver->rank),
        .peer = giver->rank,
        .shared = true,
    };
    return shc_wait_for(wait, &target);
}

enum shc_status shc_cma_find_out(struct shc_wait *wait, int giver)
{
    struct giver lost = {.wait = wait, .rank = giver, .in_vain = true};
    return confirm(wait, &lost);
}

bool shc_cma_has_failed(const struct shc_wait *wait)
{
    const struct shc_seat *seat = wait->seat;
    /* acquire seat/closed <- acq_rel in close_comm(): no other data. */
    return shc_group_failed_at(seat, wait->epoch) || shc_a32_load_acquire(&seat->closed);
}

static enum shc_status fail_copy(struct shc_wait *wait, int giver, int error)
{
    struct giver whole = {.wait = wait, .rank = giver};
    char reason[512];
    bool over = false;
    for (int look = 0; !over && look < GRACE_LOOKS; look++) {
        over = !has_kept(&whole) || shc_cma_has_failed(wait);
        if (!over)
            shc_os_sleep_ns(GRACE_NS);
    }
    if (over)
        return shc_cma_find_out(wait, giver);
    snprintf(reason, sizeof reason,
             "%s could not copy its block from the memory of %s to its own output "
             "(process_vm_readv: %s); with SHMCOLL_CMA=off it does not try to",
             shc_seat_rank_name(wait->seat, wait->seat->rank).text,
             shc_seat_rank_name(wait->seat, giver).text, strerror(error));
    return shc_wait_give_up(wait, SHC_ERR_SYSTEM, reason);
}

enum shc_status shc_cma_copy(struct shc_wait *wait, int giver, void *to, size_t bytes)
{
    const struct shc_seat *seat = wait->seat;
    const uint64_t from =
        SHC_READ_ONCE(shc_seat_cma(seat, giver, wait->epoch)->address[seat->rank]);
    struct giver whole = {.wait = wait, .rank = giver};
    for (size_t done = 0; done < bytes; done += PIECE_BYTES) {
        if (shc_cma_has_failed(wait))
            return shc_cma_find_out(wait, giver);
        const int error =
            shc_os_process_read(thread_of(seat, giver), from + done, (char *)to + done,
                                shc_min_size(PIECE_BYTES, bytes - done));
        if (error != 0)
            return fail_copy(wait, giver, error);
    }
    return confirm(wait, &whole);
}

void shc_cma_withdraw(const struct shc_seat *seat, uint64_t epoch)
{
    /* acq_rel cma/withdrawn: before the caller gets its memory back. */
    (void)shc_a64_cas_acq_rel(&shc_seat_cma(seat, seat->rank, epoch)->withdrawn, 0, epoch);
}
