/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Lines about calls that wait for other hosts. A leader's thread writes them. Hosts tell one another through the store
 * what they are at, and only when one of them is late (docs/internals/protocol/hosts.md).
 */

#include "hosts/oob.h"

struct shc_hosts;

#define SHC_AT_CALL_BYTES 128

/* What a host is at: the value of <g>/at/<host>. */
struct shc_hosts_at {
    uint64_t magic;
    uint64_t moves;  /* how often its leader has written it */
    uint64_t number; /* of the call that runs, or of the last one */
    int32_t host;
    uint32_t state;               /* SHC_AT_... */
    char call[SHC_AT_CALL_BYTES]; /* that runs, or "" */
};
enum { SHC_AT_NONE = 1, SHC_AT_ISLAND, SHC_AT_HOSTS };

/* What was read of a host while a call waited for it. */
struct shc_late_seen {
    struct shc_hosts_at at;
    uint64_t first_moves; /* at the first look: what was written before may be old */
    uint64_t moved_ns;    /* when `moves` was seen to change */
};

/* What a leader's thread knows of lateness. */
struct shc_late {
    uint64_t moves, asked, asked_ns;
    struct shc_hosts_at own;
    uint64_t waited_ns;
    bool due;                   /* a line is */
    struct shc_late_seen *seen; /* of each host; NULL: nothing yet */
    uint64_t seen_number;       /* in which call */
};

/* In the group: what is this host at, and is a line due? */
void shc_late_look(struct shc_late *late, struct shc_hosts *hosts, uint64_t now_ns);

/* Outside of it: tells the others, if one has asked or a line is due; asks them if one is. Returns an errno of the
 * store. */
int shc_late_exchange(struct shc_late *late, struct shc_oob *oob, int hosts, uint64_t now_ns,
                      uint64_t late_ns);

/* In the group: writes the line, if it still holds. */
void shc_late_say(struct shc_late *late, struct shc_hosts *hosts, uint64_t now_ns);

void shc_late_fini(struct shc_late *late);

/* The hosts that the call waits for, by what the others have said of themselves, for a time-out: "host 1 (ranks 2-3)".
 * Waits at most 200 ms for the store. */
void shc_late_missing_text(struct shc_hosts *hosts, char *text, size_t capacity);
