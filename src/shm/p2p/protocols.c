/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/p2p/protocols.h"

#include <stdio.h>

enum { LINE = SHC_LINE_DATA_BYTES, EAGER = SHC_EAGER_BYTES };

/* clang-format off */
const struct shc_protocol_row shc_protocols[SHC_PROTOCOLS] = {
    [SHC_PROTOCOL_HAND_OFF] = {
        "hand-off", "in a buffer of the pair that its last reader fills",
        0, EAGER, false},
    [SHC_PROTOCOL_LINE] = {
        "line", "in the pair's next line",
        0, LINE, false},
    [SHC_PROTOCOL_EAGER] = {
        "eager", "in an eager buffer of the sender, which a credit gives back",
        LINE, EAGER, false},
    [SHC_PROTOCOL_LONG_HAND_OFF] = {
        "long hand-off", "in a large buffer that its last reader fills, read while it is stored",
        EAGER, SHC_LONG_HAND_OFF_BYTES, true},
    [SHC_PROTOCOL_HAND_OFF_PREFIX] = {
        "hand-off prefix", "its first bytes in a large hand-off buffer, the rest by rendezvous",
        SHC_WHOLE_BYTES, SIZE_MAX, true},
    [SHC_PROTOCOL_POOL] = {
        "eager pool", "in buffers of the pool one after the other, read while they are stored",
        EAGER, SHC_UNASKED_BYTES, true},
    [SHC_PROTOCOL_RENDEZVOUS] = {
        "rendezvous", "a header with what finds room, and the rest when its receiver asks for it",
        LINE, SIZE_MAX, false},
};
/* clang-format on */

bool shc_protocol_fits(const struct shc_mail_geometry *mail, enum shc_protocol protocol,
                       size_t bytes)
{
    const struct shc_protocol_row *row = &shc_protocols[protocol];
    const size_t most = protocol == SHC_PROTOCOL_HAND_OFF ? mail->hand_off_bytes : row->most;
    if ((row->of_two && mail->pool_offset == 0) ||
        (protocol == SHC_PROTOCOL_HAND_OFF && mail->hand_offs == 0))
        return false;
    return (bytes > row->more_than || row->more_than == 0) && bytes <= most;
}

void shc_protocols_text(const struct shc_mail_geometry *mail, size_t bytes, char *text,
                        size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < SHC_PROTOCOLS && used < capacity; i++)
        if (shc_protocol_fits(mail, (enum shc_protocol)i, bytes))
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? ", " : "",
                                     shc_protocols[i].name);
}
