/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/seat.h"

#include "shm/base/log.h"

#include <string.h>

void shc_seat_lacks_thread(const struct shc_seat *seat, int error)
{
    static shc_a32 said;
    /* acq_rel seat/said: only the first thread says it; no other data. */
    if (shc_a32_exchange_acq_rel(&said, 1) != 0)
        return;
    char why[SHC_STRERROR_BYTES];
    shc_log(SHC_LOG_WARN,
            "rank %d of \"%s\": cannot start another thread (%s). Asynchronous operations go on "
            "only while a thread waits for one, or calls the group; callbacks wait for the threads "
            "there are. Is there a limit of processes (ulimit -u, pids of a container) or of "
            "memory (ulimit -v)? (Said once.)",
            seat->rank, seat->group, strerror_r(error, why, sizeof why));
}
