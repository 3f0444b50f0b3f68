/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/park.h"

/* Has the rank gone for good? The caller looks at that after shc_park_begin(). */
static bool is_gone(struct shc_member_shm *member)
{
    /* acquire member/state <- acq_rel in shc_member_leave(): all the member published before. */
    const uint32_t state = shc_a32_load_acquire(&member->state);
    return state == SHC_MEMBER_LEFT || state == SHC_MEMBER_DEAD;
}

void shc_park_begin(struct shc_park *park, const struct shc_seat *seat, struct shc_bell_shm *bell)
{
    park->quiet = true;
    park->count = 1;
    for (int turn = 1; turn < seat->world_size && park->quiet; turn++) {
        struct shc_member_shm *member = shc_seat_member(seat, shc_seat_peer(seat, turn));
        /* acquire life/own <- release in shc_os_robust_link(): the kernel may have marked it. */
        const uint32_t life = shc_a32_load_acquire(&member->life);
        const bool wakes = (life & SHC_OS_OWNER_AWAITED) != 0 && (life & SHC_OS_OWNER_DIED) == 0;
        if (!wakes)
            park->quiet = is_gone(member);
        else if (park->count < SHC_OS_FUTEXES)
            park->words[park->count++] = shc_os_futex_of(&member->life, life, true);
    }
    if (!park->quiet)
        return;
    park->heard = shc_bell_listen(bell);
    park->words[0] = shc_os_futex_of(&bell->count, park->heard, true);
}

/* The kernel wakes one thread for a life word that it marks. */
static void pass_on(const struct shc_park *park)
{
    for (int i = 1; i < park->count; i++) {
        shc_a32 *word = (shc_a32 *)(uintptr_t)park->words[i].address;
        /* acquire life/own <- release in shc_os_robust_link(): the kernel may have marked it. */
        if (shc_a32_load_acquire(word) != (uint32_t)park->words[i].expected)
            shc_os_futex_wake_all(word, true);
    }
}

int shc_park_sleep(const struct shc_park *park, uint64_t timeout_ns)
{
    const int error = shc_os_futex_wait_any(park->words, park->count, timeout_ns);
    pass_on(park);
    return error;
}
