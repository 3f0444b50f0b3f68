/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Groups over several hosts, for C11 and C++17 callers: shared memory on each host ("island"), and between hosts an
 * engine of the caller's, which moves bytes and never adds. The rules of shmcoll.h hold.
 *
 * Life of a group: shc_hosts_create() on all ranks, then the caller makes its engines by shc_hosts_get_place() and hands
 * them over with shc_hosts_connect(), then shc_hosts_prove(), operations, and shc_hosts_free().
 *
 * A failure's text is written to a caller's buffer of SHC_HOSTS_ERROR_BYTES, or is shc_error_text().
 */

#include "shm/shmcoll.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHC_HOSTS_ERROR_BYTES  1024
#define SHC_HOSTS_PREFIX_BYTES 64

/* The longest message between leaders. */
#define SHC_HOSTS_MESSAGE_BYTES ((size_t)256 << 10)

/* One call of an engine in flight. */
struct shc_ticket;

/* The call has ended: well (NULL), or with this error. Once, from any thread, also inside of the call that began it,
 * and also long after the group is gone. */
void shc_ticket_done(struct shc_ticket *ticket, const char *error);

/* Of a call that goes on in the thread that waits for it. */
struct shc_ticket_hooks {
    /* Returns after shc_ticket_done(), or after some 10 ms; then it is called again. */
    void (*carry_on)(void *arg);
    /* Nobody waits any longer: calls shc_ticket_done(). */
    void (*abandon)(void *arg);
};

/* By the function that begins the call. The struct is not copied. */
void shc_ticket_set_hooks(struct shc_ticket *ticket, const struct shc_ticket_hooks *hooks,
                          void *arg);

/*
 * One engine among the ranks with the same number on each host, at most one for each host; a rank's place in it is its
 * host's number. A function begins a call and returns 0, and the memory stays until shc_ticket_done(); or it returns
 * an errno, and there is no call. Calls of one fabric begin in the same order on all hosts, two or more may be in
 * flight. No function waits for another host. The memory is never the caller's own.
 */
struct shc_fabric {
    void *ctx;
    /* `out` gets `bytes` of each host, in the order of hosts. */
    int (*gather)(void *ctx, const void *in, size_t bytes, void *out, struct shc_ticket *ticket);
    /* Block h of `in`, of in_bytes[h], goes to host h; block h of `out`, of out_bytes[h], comes from it. Blocks lie one
     * after the other, and may be empty, also all of them. Both arrays are read before the call returns. */
    int (*exchange)(void *ctx, const void *in, const uint64_t *in_bytes, void *out,
                    const uint64_t *out_bytes, struct shc_ticket *ticket);
    /* `data` of host `root` goes to all others. */
    int (*broadcast)(void *ctx, void *data, size_t bytes, int root, struct shc_ticket *ticket);
    /* Of a line, and both NULL if the engine cannot: `bytes` go to that host, or come from it, after a first exchange.
     * Those of one size come in the order in which they were sent; hosts that disagree on it wait for one another. At
     * most SHC_HOSTS_MESSAGE_BYTES. */
    int (*send)(void *ctx, const void *data, size_t bytes, int host, struct shc_ticket *ticket);
    int (*receive)(void *ctx, void *data, size_t bytes, int host, struct shc_ticket *ticket);
    /* Of a line, or NULL: a call of the group has ended. The engine may prepare the next one. */
    void (*rest)(void *ctx);
    /* Of a line, and NULL if the engine cannot: a call that ends when the connection to that host does, with an error,
     * and at once if it has ended before. */
    int (*monitor)(void *ctx, int host, struct shc_ticket *ticket);
    /* As `monitor`. No such call begins any more, and those that are under way end soon, with an error. */
    void (*stop)(void *ctx);
};

/*
 * One engine among all ranks of the group, for messages; a rank's place in it is its number. As for struct shc_fabric: a
 * function begins a call and returns 0, or an errno. Between two ranks at most one call each way is under way on one
 * slot, so calls may begin in any order; those that meet are of one size.
 */
struct shc_p2p_fabric {
    void *ctx;
    int (*send)(void *ctx, const void *data, size_t bytes, int rank, uint32_t slot,
                struct shc_ticket *ticket);
    int (*receive)(void *ctx, void *data, size_t bytes, int rank, uint32_t slot,
                   struct shc_ticket *ticket); /* rank -1: from any */
    /* No further call begins; receives that are under way end soon, with an error. */
    void (*stop)(void *ctx);
};

/*
 * Waits for a key of the group's store, on a connection of its own: a clone, say. One thread of the library at a time
 * uses it, and the first one begins in shc_hosts_connect().
 */
struct shc_watch {
    void *ctx;
    /* 0: the key is there, whatever its value. ETIMEDOUT: it is not, after about that time. Another errno: the store is
     * gone. Keys are those that the group's `store` gets. */
    int (*wait)(void *ctx, const char *key, uint64_t timeout_ns);
    /* Once, after the last wait: by any thread, also after shc_hosts_free(), which does not wait for it. NULL: `ctx`
     * lives until shc_hosts_free() has returned, which then waits for the end of a wait (of at most 1 s). */
    void (*release)(void *ctx);
};

/* Where a rank is, and what it carries. */
struct shc_hosts_place {
    int hosts, host;  /* how many, and this rank's */
    int ranks, local; /* how many on this host, and this rank among them; local 0 leads the host */
    int rails; /* the ranks with local < rails carry one, to those with the same `local` on other hosts */
    /* All keys of this group in its store begin so; those of its engines may follow after "/". */
    char prefix[SHC_HOSTS_PREFIX_BYTES];
};

struct shc_hosts;

/* What a rank knows about where it is. */
struct shc_hosts_wish {
    /* Ranks with equal words may share memory; the likeliest come first: the boot id, say, and then that with the pid
     * namespace and the device of /dev/shm. Words are not believed: see below. At most 240 bytes each. */
    const char *const *words;
    int word_count;
    /* The most rails that are wanted; 0: as many as there may be. The same on all ranks. */
    int rails;
    /* After so many nanoseconds a line says which host a call waits for; 0: 5 s. */
    uint64_t late_ns;
    /* This rank wants no such group: all ranks get SHC_ERR_MISMATCH, which names it. */
    bool refuses;
    /* Sums are added in the order of all ranks, as on one host. The same on all ranks. */
    bool by_rank;
    /* Sums of bfloat16 go between hosts as float32, and are rounded once. The same on all ranks. */
    bool wide;
    /* The caller's word for the engine: at most 31 bytes, without spaces. The same on all ranks. */
    const char *engine;
    /* The store is a file, which half a write damages: a close waits for its writes, 10 s at most. */
    bool in_file;
    /* Bytes per second of this host's link; 0: it is measured. */
    uint64_t rate;
};

/*
 * Finds out which ranks share memory, and makes the islands. Collective, and fails on all ranks or on none. `config`
 * is that of a group of all ranks; its world may be larger than SHC_MAX_WORLD. Ranks with equal words that cannot make
 * a group try their next words; a rank that has no more is alone on its host.
 *
 * The group uses `store` as long as it lives: for failures and late calls alone. A call of the store may come from any
 * thread, also two at once. With `retain` and `release` the last one may come after shc_hosts_free(); without them that
 * waits for it.
 */
enum shc_status shc_hosts_create(const struct shc_comm_config *config,
                                 const struct shc_hosts_wish *wish, struct shc_hosts **hosts,
                                 char *error);

void shc_hosts_get_place(const struct shc_hosts *hosts, struct shc_hosts_place *place);

/* "ranks 0-3, 6": the ranks of a host, by their numbers in the job; cut with "..." if they do not fit. */
void shc_hosts_ranks_text(const struct shc_hosts *hosts, int host, char *text, size_t capacity);

/* On rank 0: the word by which the ranks of that host found each other. "": a rank is alone there, because no word helped,
 * or this is not rank 0. */
const char *shc_hosts_word(const struct shc_hosts *hosts, int host);

/* Messages between hosts go by that engine, which is copied. Before shc_hosts_connect(), whose threads look at them.
 * Without it there are messages among the ranks of a host alone. SHC_ERR_INVALID: too late. SHC_ERR_NOMEM. */
enum shc_status shc_hosts_connect_p2p(struct shc_hosts *hosts, const struct shc_p2p_fabric *engine,
                                      char *error);

/* `line`: local 0 only, among the leaders; `rail`: of a rank that carries one. Both are copied, and used until
 * shc_hosts_close() has returned. `watch`: of local 0, which is told by it of failures of other hosts; it is copied, and
 * the group's on SHC_OK alone. NULL: the store is asked for them every 50 ms while a call is under way. Before any
 * operation. SHC_ERR_INVALID: an engine is missing. SHC_ERR_NOMEM. */
enum shc_status shc_hosts_connect(struct shc_hosts *hosts, const struct shc_fabric *line,
                                  const struct shc_fabric *rail, const struct shc_watch *watch,
                                  char *error);

/* Makes each call that an engine has, with a few bytes, and then a barrier: what an engine lacks is found now, and not
 * in the middle of a job. Collective; fails on all ranks or on none. */
enum shc_status shc_hosts_prove(struct shc_hosts *hosts, char *error);

/* As shc_check(). Any thread; waits for nobody. */
enum shc_status shc_hosts_check(struct shc_hosts *hosts, const struct shc_op *op, char *error);

/*
 * As shc_run(), for all collectives. Sums are added in the order of ranks on each host, and then in the order of hosts
 * (by their smallest ranks): the bits depend on which ranks share a host, and on nothing else. With `by_rank` they are
 * those of one host with all ranks. A reduce_scatter has those of a slice of the all_reduce, and a sparse all_reduce
 * those of the dense one; with `by_rank` there is none of floats.
 */
enum shc_status shc_hosts_run(struct shc_hosts *hosts, const struct shc_op *op, char *error);

/* As shc_submit(). The request is one of shc_hosts_get_sequencer()'s. */
enum shc_status shc_hosts_submit(struct shc_hosts *hosts, const struct shc_op *op,
                                 const struct shc_request_hooks *hooks,
                                 struct shc_request **request, char *error);

/* The group of this rank alone that orders the operations: its number of operations, time-out, requests. It lives as
 * long as `hosts`. */
struct shc_comm *shc_hosts_get_sequencer(const struct shc_hosts *hosts);

/* The group of the ranks of this host, which matches messages. */
struct shc_comm *shc_hosts_get_island(const struct shc_hosts *hosts);

/* For a SHC_SEND or SHC_RECV, which goes to shc_run() or shc_submit() of the island: *peer, a rank or SHC_ANY_SOURCE,
 * gets the number that it has there. SHC_ERR_INVALID: it is no rank. SHC_ERR_UNSUPPORTED: it is on another host, and
 * there is no engine for messages. SHC_ERR_SYSTEM: no thread. */
enum shc_status shc_hosts_find_peer(struct shc_hosts *hosts, enum shc_op_kind kind, int *peer,
                                    char *error);

/* The rank with that number in the island, as of shc_request_source(). */
int shc_hosts_peer_rank(const struct shc_hosts *hosts, int number);

int shc_hosts_world_size(const struct shc_hosts *hosts);

/* The host of a rank. */
int shc_hosts_host_of(const struct shc_hosts *hosts, int rank);

/* The host whose connection to this rank's host has ended: its leader has died, or the link is broken. -1: this rank
 * knows of none. */
int shc_hosts_lost_host(const struct shc_hosts *hosts);

/* As those of a group. A call of an engine that is in flight is not waited for. */
enum shc_status shc_hosts_error(struct shc_hosts *hosts);
void shc_hosts_abort(struct shc_hosts *hosts, const char *reason);
void shc_hosts_close(struct shc_hosts *hosts);
void shc_hosts_free(struct shc_hosts *hosts);

#ifdef __cplusplus
}
#endif
