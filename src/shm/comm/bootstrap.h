/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How ranks that know only a key-value store come to share a segment. Fails on all ranks or on
 * none. See docs/internals/protocol/rendezvous.md.
 */

#include "shm/comm/comm.h"

/* This rank cannot even begin (no memory, no descriptor, ...): tells the others why, so that they do
 * not wait for it. Returns `status` with the text that is recorded now. */
SHC_NODISCARD enum shc_status shc_bootstrap_refuse(struct shc_comm *comm,
                                                   const struct shc_comm_config *config,
                                                   enum shc_status status);

/* post: comm->seat is taken, the others are there, the members' life words are linked. */
SHC_NODISCARD enum shc_status shc_bootstrap(struct shc_comm *comm,
                                            const struct shc_comm_config *config,
                                            const struct shc_knobs *knobs);
