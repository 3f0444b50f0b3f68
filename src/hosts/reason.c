/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reasons: one sentence that all ranks of all hosts raise. The core words a failure of an island as one of the island's
 * operations, "rank 2: all_gather #9 (uint8[128]) on group "0 on host 1" failed: rank 3 (pid 57) died; ...;
 * in rank 1: ...". What a user has called is known here, and takes the place of that.
 */
#include "hosts/dead.h"
#include "hosts/group.h"

#include "shm/base/once.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define MAGIC      UINT64_C(0x31646165642d6873) /* "sh-dead1" */
#define RANKS_TEXT 96
#define CALL_TEXT  128
#define GROUP_TEXT 256
#define LISTED     8

_Static_assert(sizeof(struct shc_hosts_reason) == SHC_HOSTS_ERROR_BYTES, "its bytes are compared");

bool shc_reason_read(const struct shc_hosts *hosts, const void *value, size_t bytes,
                     struct shc_hosts_reason *reason)
{
    struct shc_hosts_reason read;
    const struct shc_hosts_plan *plan = &hosts->plan;
    if (bytes != sizeof read)
        return false;
    memcpy(&read, value, sizeof read);
    if (read.magic != MAGIC || read.status == SHC_OK || read.status >= SHC_STATUS_COUNT)
        return false;
    if (read.rank < 0 || read.rank >= plan->world || plan->host_of[read.rank] != read.host)
        return false;
    if (memchr(read.text, '\0', sizeof read.text) == NULL || read.number == 0)
        return false;
    *reason = read;
    shc_copy_text_once(reason->text, read.text, sizeof reason->text);
    return true;
}

/* Does the text say which host it is about? */
static bool names_hosts(const char *text)
{
    if (strncmp(text, "host ", 5) == 0)
        return isdigit((unsigned char)text[5]);
    return strncmp(text, "calls of ", 9) == 0 && strstr(text, " on host ") != NULL;
}

/* Does the text begin with the name of an operation? */
static bool is_operation(const char *text)
{
    for (int kind = 0; kind < SHC_OP_KIND_COUNT; kind++) {
        const char *name = shc_op_kind_name((enum shc_op_kind)kind);
        const size_t length = strlen(name);
        if (strncmp(text, name, length) == 0 && text[length] == ' ')
            return true;
    }
    return false;
}

/* Cuts what the core says of the island's operation before the reason: "rank 2: all_gather #9 (...) failed: ". */
static const char *after_operation(const char *text)
{
    const char *const group = "the group failed: ";
    const char *failed = strstr(text, " failed: "), *operation = NULL;
    if (strncmp(text, group, strlen(group)) == 0)
        return text + strlen(group);
    for (const char *at = text; failed && (at = strstr(at, ": ")) != NULL && at < failed; at += 2)
        operation = at + 2;
    return operation && is_operation(operation) ? failed + strlen(" failed: ") : text;
}

/* Leaves the reason alone. */
static void strip(const struct shc_hosts *hosts, const char *text, char *bare, size_t capacity)
{
    const char *const aborted = " aborted the group: ";
    char group[GROUP_TEXT];
    snprintf(group, sizeof group, "group \"%s\"", shc_comm_group_name(hosts->island));
    text = after_operation(text);
    const char *found = strstr(text, aborted);
    if (found && names_hosts(found + strlen(aborted)))
        text = found + strlen(aborted);
    snprintf(bare, capacity, "%s", text);
    char *finder = strstr(bare, " (found by rank ");
    if (finder && finder[strlen(finder) - 1] == ')')
        *finder = '\0';
    char *last = NULL;
    for (char *at = bare; (at = strstr(at, "; in ")) != NULL; at++)
        last = at;
    if (last && strstr(last, group))
        *last = '\0';
}

void shc_reason_joined_text(const struct shc_hosts *hosts, char *text, size_t capacity)
{
    const struct shc_hosts_plan *plan = &hosts->plan;
    size_t used = 0;
    for (int host = 0; host < plan->hosts && used < capacity; host++) {
        const char *comma = host > 0 ? ", " : "";
        if (host == LISTED) {
            snprintf(text + used, capacity - used, " and %d more", plan->hosts - LISTED);
            return;
        }
        used += (size_t)snprintf(
            text + used, capacity - used, "%srank %d (host %d)", comma,
            (int)plan->name_of[plan->rank_at[plan->first[host] + hosts->local]], host);
    }
}

struct shc_hosts_reason shc_reason_make(const struct shc_hosts *hosts, enum shc_status st,
                                        uint64_t number, const struct shc_hosts_call *call,
                                        const char *text)
{
    char bare[SHC_HOSTS_ERROR_BYTES], ranks[RANKS_TEXT], what[CALL_TEXT], on[80];
    struct shc_hosts_reason reason = {
        .magic = MAGIC, .number = number, .status = st, .host = hosts->host, .rank = hosts->rank};
    strip(hosts, text, bare, sizeof bare);
    if (names_hosts(bare)) {
        snprintf(reason.text, sizeof reason.text, "%.*s", (int)sizeof reason.text - 1, bare);
        return reason;
    }
    shc_hosts_plan_text(&hosts->plan, hosts->host, ranks, sizeof ranks);
    what[0] = '\0';
    snprintf(on, sizeof on, " on \"%s\"", shc_hosts_group_name(hosts));
    if (call && !call->proves && st != SHC_ERR_MISMATCH)
        shc_hosts_call_text(call, what, sizeof what);
    /* The longest texts are cut. */
    (void)snprintf(reason.text, sizeof reason.text, "host %d (%s): %.640s%s%s%s", hosts->host,
                   ranks, bare, what[0] ? "; in " : "", what, what[0] ? on : "");
    return reason;
}
