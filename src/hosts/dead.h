/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How the ranks of all hosts learn of a failure, and of a host that has left
 * (docs/internals/protocol/hosts.md).
 */

#include "hosts/oob.h"

#include "shm/base/lateness.h"

struct shc_hosts;
struct shc_hosts_call;
struct shc_hosts_wish;

/* Why a group has failed: the value of <g>/dead, where the first put wins. */
struct shc_hosts_reason {
    uint64_t magic;
    uint64_t number; /* of the first call that fails; earlier ones may end well */
    uint32_t status; /* SHC_OK: none */
    int32_t host, rank;
    uint32_t unused;
    char text[SHC_HOSTS_ERROR_BYTES - 32];
};

/* What a rank of a group of several hosts knows of the others. All zero: the group has one host, or no engines. */
struct shc_dead {
    struct shc_oob *oob;

    /* Under the lock of the channel. */
    const struct shc_hosts_call *call; /* that runs; NULL: none */
    uint64_t number;                   /* of the last call that began */
    uint64_t completed;                /* of the last call that ended well */
    bool awaits;                       /* the call waits for other hosts */
    bool gone;                         /* the store is */
    bool tells;                        /* it was when the call began, which fails by itself */
    bool sleeps;                       /* this rank's thread, for long: the next call wakes it */
    bool is_lost;                      /* the connection to the host `lost` has ended (HOST-34) */
    int lost;
    bool settled; /* this rank has put a reason */
    bool watched; /* there is a thread that is told of reasons */
    struct shc_hosts_reason reason;
    struct shc_lateness lateness; /* of the call */
    uint64_t late_ns;             /* when a line about it is due; does not change */
    bool in_file;                 /* the store is a file; does not change */

    /* Of the thread that runs the call. */
    struct shc_work_item *departures; /* under way: which hosts have left? */
    uint64_t asked_ns, again_ns;      /* when it was asked, and after how long it is asked again */
};

/* ---- dead.c ---- */

/* The group of several hosts is made: `store` tells of failures. */
SHC_NODISCARD enum shc_status shc_dead_init(struct shc_hosts *hosts, const struct shc_store *store,
                                            const struct shc_hosts_wish *wish);

/* The engines are there: from now on failures of other hosts are told. */
SHC_NODISCARD enum shc_status shc_dead_start(struct shc_hosts *hosts,
                                             const struct shc_watch *watch);

/* The same on a rank that has messages with other hosts: it must be told, too, while it is in no call. */
SHC_NODISCARD enum shc_status shc_dead_watch(struct shc_hosts *hosts);

/* A call begins, and ends. The begin fails if the group has failed on another host. */
SHC_NODISCARD enum shc_status shc_dead_begin(const struct shc_hosts_call *call);
void shc_dead_end(struct shc_hosts *hosts, enum shc_status st);

/* The host whose monitor has ended, and that has not left, as far as is known now; -1: none. */
SHC_NODISCARD int shc_dead_lost_host(const struct shc_hosts *hosts);

/* The sentence of a store that is gone, and its status. lost: a host that has died with it; -1: none. */
enum shc_status shc_dead_store_text(const struct shc_hosts *hosts, int lost, char *text,
                                    size_t capacity);

/* A call begins or ceases to wait for other hosts. */
void shc_dead_await(struct shc_hosts *hosts, bool awaits);

/* Called while it waits: has the group failed on another host, or has a host left? */
SHC_NODISCARD enum shc_status shc_dead_look(struct shc_hosts *hosts);

/* The call has failed with that status and the turn's text, and all hosts are told. If another failure was first, its
 * text takes the place of this one's, and its status is returned. `looks`: how often a reason of another rank is looked
 * for first, where this one is only a hint. */
SHC_NODISCARD enum shc_status shc_dead_settle(struct shc_hosts *hosts, enum shc_status st,
                                              int looks);
#define SHC_DEAD_LOOK_NS (10 * SHC_NS_PER_MS) /* between two of them */

/* Outside of the group, by a thread that may wait for the store: does a reason stand, or is the store gone? */
SHC_NODISCARD bool shc_dead_stands(struct shc_oob *oob);

/* As shc_dead_stands(): puts a reason, and takes the one that stands. */
void shc_dead_put(struct shc_oob *oob, const struct shc_hosts_reason *wish);

/* This rank aborts the group. Waits for nothing. */
void shc_dead_tell_abort(struct shc_hosts *hosts, const char *reason);

void shc_dead_free(struct shc_hosts *hosts);

/* ---- leaving.c ---- */

/* Then a rank that waits for other hosts asks which of them have left, and after twice that again. */
#define SHC_LEAVING_LATE_NS (100 * SHC_NS_PER_MS)

/* Called while a call waits for other hosts: has one of them left before it? */
SHC_NODISCARD enum shc_status shc_leaving_look(struct shc_hosts *hosts);

/* The same at once, for a call whose engine has failed: the connection may be that of a host that has left. */
SHC_NODISCARD enum shc_status shc_leaving_ask(struct shc_hosts *hosts);

/* The call has ended. */
void shc_leaving_forget(struct shc_dead *dead);

/* Asks whether the rank has left (HOST-27). The item is the caller's to wait for and to drop; NULL: no memory. */
SHC_NODISCARD struct shc_work_item *shc_dead_ask_gone(const struct shc_hosts *hosts, int rank);

/* The answer. pre: the work item is done. */
bool shc_dead_is_gone(struct shc_work_item *item);

/* Outside of the group, by a thread that may wait for the store: has that host left? */
SHC_NODISCARD bool shc_leaving_is_left(struct shc_oob *oob, int host);

/* The group is closed. If it `says` so: this rank has left, and if it leads, its host takes part in no later call. */
void shc_dead_close(struct shc_hosts *hosts, bool says);
/* ---- hosts_monitor.c ---- */

/* A leader monitors the next host from now on, if its engine can. pre: the engine has been proved. */
void shc_monitor_start(struct shc_hosts *hosts);

/* pre: shc_oob_close(). */
void shc_monitor_stop(struct shc_hosts *hosts);

/* ---- reason.c ---- */

/* Is the value one that a rank of this group could have written? Then it is copied; its text can be printed. */
SHC_NODISCARD bool shc_reason_read(const struct shc_hosts *hosts, const void *value, size_t bytes,
                                   struct shc_hosts_reason *reason);

/* This rank's reason, from a text of the core or of this library: "host 1 (ranks 2-3): rank 3 (pid 57) died; ...; in
 * all_reduce #12 (float32[4], sum) on "0"". `call`: NULL: none runs. */
struct shc_hosts_reason shc_reason_make(const struct shc_hosts *hosts, enum shc_status st,
                                        uint64_t number, const struct shc_hosts_call *call,
                                        const char *text);

/* "rank 0 (host 0), rank 2 (host 1)": the ranks that this rank's engine joins. */
void shc_reason_joined_text(const struct shc_hosts *hosts, char *text, size_t capacity);
