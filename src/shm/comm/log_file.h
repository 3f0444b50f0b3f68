/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The file of SHMCOLL_LOG_FILE. In its name %h, %r, %p and %% stand for the host, the rank of the job, the pid and
 * a percent sign.
 */

/* From now on lines of the log go there, if the variable is set. */
void shc_log_file_use(void);
