/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Messages between hosts (docs/internals/protocol/remote.md). The group of the island matches them with those of its own
 * ranks (shm/p2p/remote.h); a thread of this rank carries frames and bytes between that group and an engine.
 */

#include "hosts/hosts.h"

#include "shm/base/attrs.h"

struct shc_hosts_p2p;

/* Prepares: ranks of other hosts get their numbers in the island's group. SHC_ERR_NOMEM. */
SHC_NODISCARD enum shc_status shc_hosts_p2p_create(struct shc_hosts *hosts,
                                                   const struct shc_p2p_fabric *engine,
                                                   struct shc_hosts_p2p **p2p);

/* Makes sure that the thread runs. An errno. */
SHC_NODISCARD int shc_hosts_p2p_start(struct shc_hosts_p2p *p2p);

/* The number of a rank of another host in the island's group, and the rank with such a number. */
int shc_hosts_p2p_index(const struct shc_hosts_p2p *p2p, int rank);
int shc_hosts_p2p_rank(const struct shc_hosts_p2p *p2p, int index);

/* Does a message of this rank wait? Any thread. */
bool shc_hosts_p2p_waits(const struct shc_hosts_p2p *p2p);

/* After this the thread uses the group no longer. */
void shc_hosts_p2p_close(struct shc_hosts_p2p *p2p);

/* pre: closed. */
void shc_hosts_p2p_free(struct shc_hosts_p2p *p2p);
