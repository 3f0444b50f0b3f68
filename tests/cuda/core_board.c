/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/cuda/core_board.h"

#include "shm/comm/comm.h"
#include "shm/proto/board.h"

#include <stdio.h>
#include <string.h>

static void load_text(const shc_a64 *words, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = shc_a64_load_acquire(&words[i]);
        memcpy(text + i * sizeof word, &word, sizeof word);
    }
}

void core_board_device(const struct shc_comm *comm, char *text, size_t capacity)
{
    const struct shc_board_device_shm *device = &comm->seat.board.shm->device;
    char call[sizeof device->call], whom[sizeof device->whom];
    load_text(device->call, SHC_BOARD_CALL_WORDS, call);
    load_text(device->whom, SHC_BOARD_WHOM_WORDS, whom);
    text[0] = '\0';
    if (whom[0])
        snprintf(text, capacity, "%s waits for %s: %llx", call, whom,
                 (unsigned long long)shc_a64_load_acquire(&device->missing[0]));
}
