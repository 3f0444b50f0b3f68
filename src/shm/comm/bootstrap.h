/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How ranks that know only a key-value store come to share a segment. Fails on all ranks or on
 * none. See docs/PROTOCOL.md, "Bootstrap".
 */

#include "shm/comm/comm.h"

/* post: comm->seat is taken, the others are there, the members' life words are linked. */
SHC_NODISCARD enum shc_status shc_bootstrap(struct shc_comm *comm,
                                            const struct shc_comm_config *config,
                                            const struct shc_knobs *knobs);
