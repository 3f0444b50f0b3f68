/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/runner.h"

bool shc_runner_revoke(struct shc_runner *runner, uint64_t me)
{
    shc_lock_take(&runner->lock);
    /* relaxed: stored to by who holds HELD. */
    const uint64_t biased = shc_a64_load_relaxed(&runner->bias);
    /* relaxed: the fence puts it in front of the look. */
    shc_a64_store_relaxed(&runner->bias, 0);
    runner->last = 0;
    if (biased != me) {
        shc_os_fence_heavy();
        runner->pay *= runner->pay < SHC_RUNNER_LAST_PAY ? 2 : 1;
    }
    /* acquire runner/inside <- release in shc_runner_leave_biased(): what was done inside. */
    const bool left = shc_a32_load_acquire(&runner->inside) != 0;
    runner->left = left;
    shc_lock_drop(&runner->lock);
    return !left;
}

bool shc_runner_leave_late(struct shc_runner *runner)
{
    shc_lock_take(&runner->lock);
    const bool left = runner->left;
    runner->left = false;
    shc_lock_drop(&runner->lock);
    return left && shc_runner_drop(runner);
}
