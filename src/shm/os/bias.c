/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/os/bias.h"

bool shc_bias_revoke(struct shc_bias *bias, uint64_t me)
{
    shc_lock_take(&bias->lock);
    /* relaxed: only the holder of the word stores it. */
    const uint64_t biased = shc_a64_load_relaxed(&bias->whose);
    /* relaxed: the heavy fence orders it before the look. */
    shc_a64_store_relaxed(&bias->whose, 0);
    bias->last = 0;
    if (biased != me) {
        shc_os_fence_heavy();
        bias->pay *= bias->pay < SHC_BIAS_LAST_PAY ? 2 : 1;
    }
    /* acquire bias/inside <- release in shc_bias_leave(): what was done inside. */
    const bool left = shc_a32_load_acquire(&bias->inside) != 0;
    bias->left = left;
    shc_lock_drop(&bias->lock);
    return !left;
}

bool shc_bias_leave_late(struct shc_bias *bias)
{
    shc_lock_take(&bias->lock);
    const bool left = bias->left;
    bias->left = false;
    shc_lock_drop(&bias->lock);
    return left;
}
