// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The initial state of the models that run the real pair.c; included after it.

// Sets all words of these mailboxes to zero, and gives each rank a seat and its pairs.
template <typename Mailbox, int kRanks>
void begin_mailboxes(Mailbox (&mailboxes)[kRanks], shc_seat (&seats)[kRanks],
                     shc_pairs (&pairs)[kRanks], const shc_mail_geometry &mail)
{
    for (int rank = 0; rank < kRanks; rank++) {
        Mailbox &mailbox = mailboxes[rank];
        for (shc_line_shm &line : mailbox.lines)
            line.number.v_.store(0, rl::mo_relaxed, $);
        for (shc_line_shm &line : mailbox.hand_off_lines)
            line.number.v_.store(0, rl::mo_relaxed, $);
        for (shc_ack_shm &ack : mailbox.acks) {
            ack.taken.v_.store(0, rl::mo_relaxed, $);
            for (shc_a32 &word : ack.eager)
                word.v_.store(0, rl::mo_relaxed, $);
            ack.pool.v_.store(0, rl::mo_relaxed, $);
            ack.credit.v_.store(0, rl::mo_relaxed, $);
            ack.aside.v_.store(0, rl::mo_relaxed, $);
        }
        seats[rank].segment.base = reinterpret_cast<char *>(mailboxes);
        seats[rank].rank = rank;
        seats[rank].world_size = kRanks;
        seats[rank].mail = mail;
        pairs[rank] = {};
        RL_ASSERT(shc_pairs_init(&pairs[rank], &seats[rank]) == SHC_OK);
    }
}
