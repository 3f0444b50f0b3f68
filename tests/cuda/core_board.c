/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/cuda/core_board.h"

#include "shm/comm/comm.h"
#include "shm/proto/board.h"

#include <stdio.h>
#include <string.h>

void core_board_device(const struct shc_comm *comm, char *text, size_t capacity)
{
    const struct shc_board_device_shm *device = &comm->seat.board.shm->device;
    char call[sizeof device->call], whom[sizeof device->whom];
    memcpy(call, device->call, sizeof call);
    memcpy(whom, device->whom, sizeof whom);
    text[0] = '\0';
    if (whom[0])
        snprintf(text, capacity, "%s waits for %s", call, whom);
}
