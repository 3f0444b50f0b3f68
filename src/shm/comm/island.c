/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/island.h"

#include "shm/comm/comm.h"
#include "shm/proto/board.h"

void shc_island_join(struct shc_comm *island, struct shc_comm *sequencer,
                     const struct shc_island *facts)
{
    const struct shc_board_over over = {facts->hosts, facts->host, facts->world, facts->ranks,
                                        facts->id};
    island->seat.plain_names = sequencer->seat.plain_names = true;
    shc_board_share(&island->seat.board, &sequencer->seat.board, &over);
}

void shc_island_use(struct shc_comm *island)
{
    if (shc_process_is(&island->mark))
        shc_board_use(&island->seat.board, shc_thread_number());
}

void shc_island_say(struct shc_comm *island, const struct shc_call *call)
{
    island->said = call;
    island->kept.valid = false; /* it says another call */
}

void shc_island_await(struct shc_comm *island, uint64_t number, bool awaits)
{
    shc_board_await(&island->seat.board, number, awaits ? shc_clock_ns() : 0);
}

void shc_island_missing(struct shc_comm *island, uint64_t number, const char *whom)
{
    if (shc_process_is(&island->mark))
        shc_board_missing(&island->seat.board, number, whom);
}
