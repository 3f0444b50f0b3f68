/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/p2p/protocols.h"

#include <stdio.h>

enum { LINE = SHC_LINE_DATA_BYTES, EAGER = SHC_EAGER_BYTES };

/* Messages of 8 KiB and more. Few eager buffers are in use at a time, so the nearest caches of their reader still
 * hold them when they are stored to again. The pool has more memory, and copy modes. */
#define BELOW_POOL (((size_t)8 << 10) - 1)

const struct shc_protocol_row shc_protocols[SHC_PROTOCOLS] = {
    /* In a buffer of the pair that its last reader fills. */
    [SHC_PROTOCOL_HAND_OFF] = {"hand-off", 0, EAGER, false},
    /* In the pair's next line. */
    [SHC_PROTOCOL_LINE] = {"line", 0, LINE, false},
    /* In a large buffer that its last reader fills, read while it is stored. */
    [SHC_PROTOCOL_LONG_HAND_OFF] = {"long hand-off", EAGER, SHC_LONG_HAND_OFF_BYTES, true},
    /* Its first bytes in a large hand-off buffer, the rest by rendezvous. */
    [SHC_PROTOCOL_HAND_OFF_PREFIX] = {"hand-off prefix", SHC_WHOLE_BYTES, SIZE_MAX, true},
    /* In buffers of the pool one after the other, read while they are stored. */
    [SHC_PROTOCOL_POOL] = {"eager pool", BELOW_POOL, SHC_UNASKED_BYTES, true},
    /* In an eager buffer of the sender, which a credit gives back. */
    [SHC_PROTOCOL_EAGER] = {"eager", LINE, EAGER, false},
    /* A header with what finds room, and the rest when its receiver asks for it. */
    [SHC_PROTOCOL_RENDEZVOUS] = {"rendezvous", LINE, SIZE_MAX, false},
};

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
