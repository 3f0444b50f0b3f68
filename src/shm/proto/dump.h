/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Dumps: a copy of this process's board in a file, for `shmcoll postmortem`. SHMCOLL_DUMP names the folder
 * that gets one when a group fails. The file is the board without the parts that no group has, and its
 * header says when it was written and why. Plain system calls, no lock, no memory of malloc(): so it is
 * also written where other threads of the process are stuck. docs/internals/protocol/board.md has the rules.
 */

#include "shm/proto/board.h"

/* The group has failed, and its part has the reason. If a folder is set: writes the dump there, or warns
 * once per process. Any thread. */
SHC_COLD void shc_dump_failure(const struct shc_board *board);

/* The same for a group without a part: it can only warn. */
SHC_COLD void shc_dump_lacks_board(void);

/* At the process's first group: warns if a folder is set that takes no files. */
void shc_dump_check_folder(void);

/* Writes the board to that file, or of its parts only that of the group that has failed. NULL: none has. 0 or
 * an errno. Any thread. */
SHC_NODISCARD int shc_dump_write(const struct shc_board_header_shm *header,
                                 const struct shc_board_group_shm *failed, bool whole,
                                 const char *path);
