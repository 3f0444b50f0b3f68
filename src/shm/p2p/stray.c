/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Unexpected messages (here: strays): the headers that no receive has taken, in the order in which
 * they came. Their bytes in the eager pool (here: bulk windows) are put aside: copied into memory
 * of this rank.
 */
#include "shm/kernel/copy.h"
#include "shm/p2p/internal.h"

#include <stdlib.h>
#include <string.h>

/* P2P-19: bytes in bulk windows are copied to memory of this rank, with room for chunks that will
 * follow unasked, as these windows are read in the order in which they were lent. The bytes in a
 * shuttle's line are in the stray already, so the shuttle is kept. False: no memory. */
static bool put_aside(struct shc_p2p *p2p, int peer, struct shc_stray *stray)
{
    struct shc_line_head *line = &stray->line;
    const bool open = line->kind == SHC_LINE_OPEN;
    stray->piece = NULL;
    if (shc_window_spares(line->window, line->piece)) {
        shc_shuttle_keep(&p2p->pairs, peer, line->window);
        line->window = SHC_NO_WINDOW;
    }
    if (!shc_line_is_in_bulk(line) && !open)
        return true;
    const size_t room = open ? line->bytes : line->piece;
    stray->piece = malloc(room > 0 ? room : 1);
    if (!stray->piece)
        return false;
    shc_copy(stray->piece, shc_p2p_piece(p2p, peer, line, stray->data), line->piece);
    shc_window_return(&p2p->pairs, peer, line->window, line->piece);
    line->window = SHC_NO_WINDOW;
    if (open) {
        shc_open_begin(&p2p->peers[peer].open, line, stray);
        shc_pair_tell_aside(&p2p->pairs, peer);
    }
    return true;
}

bool shc_stray_keep(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                    const uint8_t *data)
{
    struct shc_p2p_peer *from = &p2p->peers[peer];
    struct shc_stray *stray = malloc(sizeof *stray);
    if (!stray)
        return false;
    stray->next = NULL;
    stray->line = *line;
    memcpy(stray->data, data, sizeof stray->data);
    if (!put_aside(p2p, peer, stray)) {
        shc_stray_free(stray);
        return false;
    }
    stray->arrival = p2p->arrivals++;
    if (from->last_stray)
        from->last_stray->next = stray;
    else
        from->strays = stray;
    from->last_stray = stray;
    return true;
}

void shc_stray_free(struct shc_stray *stray)
{
    if (stray)
        free(stray->piece);
    free(stray);
}

struct shc_stray *shc_stray_take(struct shc_p2p *p2p, const struct shc_message *m, int *from)
{
    const int world = p2p->env.seat->world_size;
    const bool any = m->peer == SHC_ANY_SOURCE;
    struct shc_stray *best = NULL, *best_before = NULL;
    for (int peer = any ? 0 : m->peer; peer < (any ? world : m->peer + 1); peer++) {
        struct shc_stray *before = NULL, *stray = p2p->peers[peer].strays;
        for (; stray && stray->line.tag != m->tag; stray = stray->next)
            before = stray;
        if (!stray || (best && best->arrival < stray->arrival))
            continue;
        best = stray;
        best_before = before;
        *from = peer;
    }
    if (!best)
        return NULL;
    struct shc_p2p_peer *peer = &p2p->peers[*from];
    if (best_before)
        best_before->next = best->next;
    else
        peer->strays = best->next;
    if (peer->last_stray == best)
        peer->last_stray = best_before;
    if (best->line.kind == SHC_LINE_OPEN) /* with the chunks that have come after it */
        best->line.piece = (uint32_t)peer->open.moved;
    return best;
}

/* ---- after the header of an OPEN message ---- */

void shc_open_begin(struct shc_open *open, const struct shc_line_head *line,
                    struct shc_stray *stray)
{
    *open = (struct shc_open){
        .comes = true,
        .number = line->message,
        .elem_bytes = line->elem_bytes,
        .bytes = line->bytes,
        .moved = line->piece,
        .stray = stray,
    };
}

bool shc_open_take_chunk(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                         const uint8_t *data)
{
    struct shc_open *open = &p2p->peers[peer].open;
    if (!open->comes || open->number != line->message || open->moved != line->bytes ||
        line->piece > open->bytes - open->moved || line->piece % open->elem_bytes != 0)
        return false;
    if (open->stray)
        shc_copy(open->stray->piece + open->moved, shc_p2p_piece(p2p, peer, line, data),
                 line->piece);
    shc_window_return(&p2p->pairs, peer, line->window, line->piece);
    open->moved += line->piece;
    if (open->moved < open->bytes)
        return true;
    if (open->stray) { /* from now on it looks like an EAGER message */
        open->stray->line.kind = SHC_LINE_EAGER;
        open->stray->line.piece = (uint32_t)open->bytes;
    }
    *open = (struct shc_open){.comes = false};
    return true;
}
