/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * shmcoll: collectives for ranks that share one machine. THE public header of libshmcoll, for C11
 * and C++17 callers; it needs no torch.
 *
 * Life of a group: every rank fills a shc_comm_config (its rank, the world size, a key-value store
 * all ranks reach), calls shc_comm_create, runs operations, and calls shc_comm_free.
 *
 * Rules that hold for every function:
 *   - A function that can fail returns a shc_status. The text that explains it is the calling
 *     thread's shc_error_text(), until that thread's next failing call.
 *   - Every call finishes, fails, or logs whom it waits for (after 5 s, then 10, 20, ...).
 *   - Output parameters are set only on SHC_OK.
 *   - In a forked child every call on a group of the parent fails with SHC_ERR_FORKED.
 *   - Sizes are in bytes where the name says so, else in elements; times are in nanoseconds.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define SHC_VERSION_MAJOR 0
#define SHC_VERSION_MINOR 1
#define SHC_VERSION_PATCH 0
#define SHC_VERSION_PRE   "" /* "rc1" in the first candidate of a release */

/* The layout of the shared segment has room for this many ranks in one group. */
#define SHC_MAX_WORLD 256

enum shc_status {
    SHC_OK = 0,
    SHC_ERR_INVALID,     /* an argument is wrong; nothing was published, the group is usable */
    SHC_ERR_NOMEM,       /* this process is out of memory */
    SHC_ERR_NOSPACE,     /* no shared memory left: /dev/shm or the memory cgroup */
    SHC_ERR_SYSTEM,      /* a system call failed */
    SHC_ERR_STORE,       /* a callback of the store failed */
    SHC_ERR_UNREACHABLE, /* ranks cannot reach one another's memory (not one host, or namespaces) */
    SHC_ERR_VERSION,     /* ranks run incompatible builds of this library */
    SHC_ERR_UNSUPPORTED, /* this combination is not offered; nothing was published */
    SHC_ERR_TIMEOUT,     /* the deadline passed */
    SHC_ERR_MISMATCH,    /* ranks made different calls */
    SHC_ERR_PEER_DEAD,   /* a rank died */
    SHC_ERR_PEER_LEFT,   /* a rank left the group before this operation */
    SHC_ERR_ABORTED,     /* the group failed before, or was aborted; it stays unusable */
    SHC_ERR_INTERRUPTED, /* the caller's interrupt callback said so */
    SHC_ERR_CLOSED,      /* this rank has closed the group */
    SHC_ERR_FORKED,      /* the group belongs to the parent process */
    SHC_ERR_DEADLOCK,    /* ranks wait in a cycle; only with SHMCOLL_ON_DEADLOCK=raise */
    SHC_STATUS_COUNT
};

enum shc_dtype {
    SHC_INT8 = 0,
    SHC_INT16,
    SHC_INT32,
    SHC_INT64,
    SHC_UINT8,
    SHC_UINT16,
    SHC_UINT32,
    SHC_UINT64,
    SHC_BOOL,
    SHC_FLOAT16,
    SHC_BFLOAT16,
    SHC_FLOAT8_E4M3FN,
    SHC_FLOAT8_E5M2,
    SHC_FLOAT8_E4M3FNUZ,
    SHC_FLOAT8_E5M2FNUZ,
    SHC_FLOAT32,
    SHC_FLOAT64,
    SHC_COMPLEX64,
    SHC_COMPLEX128,
    SHC_OPAQUE, /* bytes that are moved, never reduced; shc_op.elem_bytes says how many */
    SHC_DTYPE_COUNT
};

enum shc_redop {
    SHC_SUM = 0,
    SHC_AVG,
    SHC_PRODUCT,
    SHC_MIN,
    SHC_MAX,
    SHC_BAND,
    SHC_BOR,
    SHC_BXOR,
    SHC_PREMUL_SUM,
    SHC_REDOP_COUNT
};

enum shc_op_kind {
    SHC_BARRIER = 0,
    SHC_BROADCAST,
    SHC_ALL_REDUCE,
    SHC_ALL_GATHER,
    SHC_REDUCE,
    SHC_GATHER,
    SHC_SCATTER,
    SHC_REDUCE_SCATTER,
    SHC_ALL_TO_ALL,
    SHC_ALL_GATHER_UNEVEN,
    SHC_REDUCE_SCATTER_UNEVEN,
    SHC_ALL_REDUCE_SPARSE,
    SHC_SEND, /* this and the next one: messages, which are not part of the collectives' order */
    SHC_RECV,
    SHC_CALL, /* a collective of one rank */
    SHC_OP_KIND_COUNT
};

/* The peer of a SHC_RECV that takes a message from any rank. */
#define SHC_ANY_SOURCE (-1)

/* User memory: element (i0, i1, ...) is at data + elem_bytes * (i0*strides[0] + i1*strides[1] ...). Elements
 * are taken in row-major (logical) order, so ranks may differ in strides. strides NULL means contiguous. An
 * output must not overlap itself, nor may two tensors of an output: no byte may be two elements
 * (SHC_ERR_INVALID). Interleaved views that share none are fine. */
struct shc_tensor {
    void *data;
    int32_t ndim;
    const int64_t *sizes;
    const int64_t *strides;
};

/* A list of tensors, taken as one vector: the elements of list[0], then those of list[1], ... */
struct shc_tensors {
    const struct shc_tensor *list;
    uint32_t count;
};

/* A tensor that is zero except for some entries. The first sparse_ndim of its ndim dimensions are
 * indexed; an entry is an index into them, and a value over the others. Entries may come in any
 * order, and may share an index: then their values are added. */
struct shc_sparse {
    int32_t ndim, sparse_ndim;
    const int64_t *sizes;
    uint64_t count;            /* of entries */
    struct shc_tensor indices; /* int64, of sizes (sparse_ndim, count) */
    struct shc_tensor values;  /* of sizes (count, the sizes of the other dimensions ...) */
    /* Set on SHC_OK: the result, each index once, in ascending order; both arrays contiguous, and
     * the caller's to free(). */
    uint64_t sum_count;
    int64_t *sum_indices;
    void *sum_values;
};

/* What the function of a SHC_CALL is told. */
struct shc_turn {
    uint64_t timeout_ns; /* that it may take */
    bool interruptible;  /* a caller's thread: it asks the config's `interrupted` while it waits */
    char error[1024];    /* set by one that fails; "": the thread's shc_error_text() says why */
};

/* It may wait while shc_comm_error(), asked every 10 ms, is SHC_OK. If it fails, so does the group, with that text. */
struct shc_function {
    enum shc_status (*run)(void *ctx, struct shc_turn *turn);
    void *ctx;
    const struct shc_call *said; /* of this project's own callers (src/hosts); NULL */
};

/*
 * One operation. Fields that an operation does not use are ignored. An input may share memory with an
 * output only where this table says so, and then element by element; anything else is
 * SHC_ERR_INVALID. Inputs may share memory with one another.
 *
 *   kind        input                         output                              uses
 *   BARRIER     -                             -
 *   BROADCAST   root only: N elements         others: N elements                  root
 *   ALL_REDUCE  N elements                    N elements, may be the input        redop
 *   ALL_GATHER  N elements                    world_size * N, ordered by rank;
 *                                             rank r's input may be block r of it
 *   REDUCE      N elements                    root only: N, may be the input      root, redop
 *   GATHER      N elements                    root only: world_size * N; its      root
 *                                             input may be its block of it
 *   SCATTER     root only: world_size * N     N elements; the root's may be its   root
 *                                             block of the input
 *   REDUCE_     world_size * N elements       N elements: block r of the result;  redop
 *     SCATTER                                 may be a block of the input
 *   ALL_TO_ALL  world_size tensors, the       world_size tensors, the i-th from
 *               j-th for rank j               rank i; may be the i-th of the input
 *   ALL_GATHER_ N_r elements                  world_size tensors, the r-th of N_r;
 *     UNEVEN                                  rank r's input may be the r-th
 *   REDUCE_     world_size tensors, the       N_r elements: the r-th of the         redop
 *     SCATTER_  r-th of N_r elements          result; may be the r-th of the input
 *     UNEVEN
 *   ALL_REDUCE_ `sparse`                      in `sparse`; the tensor itself is     redop: SUM, AVG
 *     SPARSE                                  only read
 *   SEND        N elements                    -                                   peer, tag
 *   RECV        -                             N elements                          peer, tag
 *   CALL        -; groups of one rank only    -                                   function
 *
 * N, the N_r, the sizes of a sparse tensor, dtype, redop and root are the same on all ranks, else
 * every rank gets SHC_ERR_MISMATCH and no output has changed; so it is when a rank sends another
 * number of elements than the receiver has room for. N may be 0.
 *
 * A SEND is matched by the RECV that its receiver posted first among those that name this sender,
 * or any, and this tag; messages of one sender with one tag arrive in order. It is over when the
 * tensor may be reused: at once if the message finds room, else when the receive is posted and has
 * taken it. N and dtype are the same on both sides, else both get SHC_ERR_MISMATCH (a sender whose
 * message found room has been told that it is over), the message is dropped, and the group goes on.
 * A RECV that times out without a message is withdrawn; any other time-out fails the group.
 */
struct shc_op {
    enum shc_op_kind kind;
    enum shc_dtype dtype;
    uint32_t elem_bytes; /* SHC_OPAQUE only: bytes of one element */
    uint32_t dtype_tag;  /* SHC_OPAQUE only: the caller's number of the type, compared over ranks */
    uint64_t reserved;   /* for options of later versions: 0, else SHC_ERR_INVALID */
    enum shc_redop redop;
    int root;
    int peer; /* a rank, also the caller's own; RECV: or SHC_ANY_SOURCE */
    int32_t tag;
    double premul;       /* SHC_PREMUL_SUM only: this rank's factor; ranks may differ */
    uint64_t timeout_ns; /* 0: the group's */
    struct shc_tensors input;
    struct shc_tensors output;
    union {                                  /* must live until `retire`, as memory does */
        struct shc_sparse *sparse;           /* SHC_ALL_REDUCE_SPARSE */
        const struct shc_function *function; /* SHC_CALL */
    };
};

/*
 * The rendezvous: a key-value store that all ranks of the group reach, and that only groups of this
 * name use under this prefix. Used by shc_comm_create only. A callback returns 0 or a positive errno
 * (retain and release nothing), and must not throw.
 *
 * With `retain` and `release` the callbacks run one after another on a thread of the library, so that a
 * store that does not answer holds up no rank beyond its time-out: the last call, and `release`, may
 * then come after shc_comm_create has returned. Without them all run in the thread that calls
 * shc_comm_create, which cannot return before they do.
 */
struct shc_store {
    void *ctx;
    int (*set)(void *ctx, const char *key, const void *value, size_t bytes);
    /* Never waits: ENOENT when the key is absent, EMSGSIZE when the value does not fit. */
    int (*get)(void *ctx, const char *key, void *value, size_t capacity, size_t *bytes);
    /* 0 when all keys exist, ENOENT when one does not. */
    int (*check)(void *ctx, const char *const *keys, size_t count);
    int (*add)(void *ctx, const char *key, int64_t delta, int64_t *value);
    /* Stores the value if the key is absent (the first put wins); gives back the stored value. */
    int (*put_first)(void *ctx, const char *key, const void *value, size_t bytes, void *now,
                     size_t capacity, size_t *now_bytes);
    void (*retain)(void *ctx); /* NULL, or `ctx` and what it needs live until `release` */
    void (*release)(void *ctx);
    const char *server; /* "TCPStore at 127.0.0.1:29500", for messages; NULL: not told */
    int server_port;    /* the TCP port at which a process of this machine may serve it; 0: none */
};

struct shc_comm_config {
    int rank;
    int world_size;   /* 1 .. SHC_MAX_WORLD */
    const char *name; /* shows in every message about the group; may be NULL */
    /* Which rank of the whole job each rank is (world_size entries, each once). Only ranks with the same
     * list, in the same order, make a group; groups of disjoint lists may share a name and a store. And
     * a process that has died in one group is not waited for by the next one. NULL: 0, 1, 2, ... */
    const int32_t *global_ranks;
    uint64_t timeout_ns; /* of the rendezvous and of every operation; 0: 30 minutes */
    struct shc_store store;
    /* Asked by threads that wait inside a call, at least once a second and after a signal that ends their
     * sleep; true gives the call up with SHC_ERR_INTERRUPTED. As long as it takes the operation stands
     * still, for all ranks. Never asked by the library's own threads. May be NULL. */
    bool (*interrupted)(void *ctx);
    void *interrupted_ctx;
    /* Which algorithm and which chunks for which size, in the form of SHMCOLL_TUNING
     * (docs/reference/tuning-keys.md). NULL: the variable's. Must be the same on all ranks. */
    const char *tuning;
    /* A rank of the group that does not use this library sets the key "<outsider_prefix><rank>" of the store,
     * with its rank in the group. It will not come, so all other ranks fail with SHC_ERR_MISMATCH, and
     * `outsider_text` says what to do. Not looked at if this rank's own key is there when it begins: then the
     * keys are of an earlier group. NULL: no such key. */
    const char *outsider_prefix;
    const char *outsider_text;
    /* Shows in messages in the place of the name, as the words that the user has for the group. NULL: none
     * yet; shc_comm_describe() adds one. */
    const char *description;
    uint64_t reserved[4]; /* for options of later versions: 0, else SHC_ERR_INVALID */
};

/* What a request tells its submitter. Neither may throw.
 *   complete: once, after the operation has ended, if shc_request_notify asked for it. Runs on a
 *             thread of the library that holds nothing, and may submit and wait.
 *   retire:   once, when the library has let go of the operation's memory and of ctx. Runs on a
 *             thread that is inside a call of this header on the same group (or in
 *             shc_comm_free), never on a thread of the library. */
struct shc_request_hooks {
    void *ctx;
    void (*complete)(void *ctx, enum shc_status status, const char *error);
    void (*retire)(void *ctx);
};

struct shc_comm;
struct shc_request;

/* ---- versions, names, errors: any thread, never block ---- */

const char *shc_version(void);

/* Lines of `key=value`: what the library was built with, and what the machine offers of it. */
const char *shc_build_info(void);

const char *shc_status_name(enum shc_status status);
const char *shc_dtype_name(enum shc_dtype dtype);
const char *shc_redop_name(enum shc_redop redop);
const char *shc_op_kind_name(enum shc_op_kind kind);

/* Bytes of one element; 0 for SHC_OPAQUE. */
size_t shc_dtype_bytes(enum shc_dtype dtype);

/* Does the reduction exist for this dtype? (docs/reference/support.md has the table.) */
bool shc_reduction_supported(enum shc_dtype dtype, enum shc_redop redop);

/* Checks a text for shc_comm_config.tuning. SHC_ERR_INVALID: the error names the key, the value and its range. */
enum shc_status shc_tuning_check(const char *tuning);

/* Reduces arrays of this process, as the collectives do: to the bit what all_reduce gives ranks with these
 * inputs. `sources`: `count` arrays of `elements` elements, in rank order; `out` may be one of them, and
 * overlaps no other. `factors`: SHC_PREMUL_SUM only, one per source. Waits for no rank.
 * SHC_ERR_UNSUPPORTED: the reduction does not exist. SHC_ERR_INVALID: count < 1, or no factors. */
enum shc_status shc_reduce_local(enum shc_dtype dtype, enum shc_redop redop,
                                 const void *const *sources, int count, void *out, size_t elements,
                                 const double *factors);

/* The same where each source is a sum of several ranks' inputs, of `parts` in all: SHC_AVG divides by that,
 * and SHC_PREMUL_SUM adds. SHC_ERR_INVALID: count < 1, or parts < 1. */
enum shc_status shc_fold(enum shc_dtype dtype, enum shc_redop redop, const void *const *sources,
                         int count, void *out, size_t elements, uint32_t parts);

/* Narrow floats into float32 and back with one rounding; integers of up to 32 bits into int64 and back, cut to
 * their width. The arrays do not overlap. SHC_ERR_UNSUPPORTED: another pair of types. */
enum shc_status shc_convert(enum shc_dtype from, const void *in, enum shc_dtype to, void *out,
                            size_t elements);

/* The calling thread's last failure: one paragraph, no newline at its end. */
const char *shc_error_text(void);

/* The status of that failure; SHC_OK: there has been none. */
enum shc_status shc_error_status(void);

/* ---- the group ---- */

/* Meets the other ranks and makes the group. Collective: fails on all ranks or on none.
 * Blocks until all ranks are there, at most timeout_ns; asks config->interrupted.
 * SHC_ERR_STORE: a callback failed, or the store holds what no rank wrote. SHC_ERR_MISMATCH: ranks differ
 * about the members. SHC_ERR_TIMEOUT names the ranks that are missing, or the store that is silent.
 * The config is not used after the return, nor is the store unless it can be retained. */
enum shc_status shc_comm_create(const struct shc_comm_config *config, struct shc_comm **comm);

/* Leaves the group: says so to the others, ends this process's calls that are still inside
 * (SHC_ERR_CLOSED), stops the group's threads. Needs no peer; takes at most about two seconds, if
 * a thread of the caller is stuck inside. Any thread; a second call does nothing. */
void shc_comm_close(struct shc_comm *comm);

/* Every call on any rank, also one that waits, ends with SHC_ERR_ABORTED and this reason. Any thread. */
void shc_comm_abort(struct shc_comm *comm, const char *reason);

/* Closes the group if it is open, retires what is left, and frees. No thread may use the group any
 * more. */
void shc_comm_free(struct shc_comm *comm);

int shc_comm_rank(const struct shc_comm *comm);
int shc_comm_world_size(const struct shc_comm *comm);

/* How many collectives this rank has started on the group. */
uint64_t shc_comm_sequence(struct shc_comm *comm);

/* SHC_OK while the group is usable, else why not. */
enum shc_status shc_comm_error(struct shc_comm *comm);

/* Work of this rank on a GPU, whose calls return before it is carried out, for tools. One thread at a time. */
struct shc_device_work {
    bool messages;                        /* it is messages; else collectives */
    uint64_t called, done;                /* so many were enqueued, so many of them are over */
    uint64_t since_ns;                    /* of the oldest one that is not over; monotonic */
    const char *call, *whom;              /* that one, and the ranks that it waits for; or "" */
    uint64_t missing[SHC_MAX_WORLD / 64]; /* a bit for each of these ranks */
};
void shc_comm_show_device(struct shc_comm *comm, const struct shc_device_work *work);
/* One that has ended, as its call; `number`: its own among the collectives, or of its two ranks' messages. */
void shc_comm_keep_device(struct shc_comm *comm, const struct shc_op *op, uint64_t number,
                          uint64_t count, uint64_t begun_ns);

/* 1 while the process of that rank ends. A wait that ends because the rank has left ends after that. */
int shc_comm_is_ending(struct shc_comm *comm, int rank);

/* How messages name a rank of the group: "rank 2", or, where the job numbers it otherwise, "rank 5 (rank 2 of
 * group "tp")"; and the group: by its description, or its name. Any thread. */
struct shc_rank_name {
    char text[128];
};
struct shc_rank_name shc_comm_rank_name(const struct shc_comm *comm, int rank);
const char *shc_comm_group_name(const struct shc_comm *comm);

/* Words for the group that messages show in the place of its name, as of a group that gets them only after it
 * was made. Only the first description counts. */
void shc_comm_describe(struct shc_comm *comm, const char *description);

/* The time-out of the operations that start from now on. */
void shc_comm_set_timeout(struct shc_comm *comm, uint64_t timeout_ns);

/* Lines of `key=value` about this group: kind and bytes of its memory, kernels, waiting. */
enum shc_status shc_comm_info(struct shc_comm *comm, char *text, size_t capacity);

/* ---- operations ---- */

/* Runs the operation in the calling thread and returns when its output is complete. If an earlier operation of
 * the group is still under way, the call takes its turn after it. */
enum shc_status shc_run(struct shc_comm *comm, const struct shc_op *op);

/* Checks what can be wrong with the operation on this rank alone, as both of the others do before they publish
 * anything. Any thread; waits for no rank. */
enum shc_status shc_check(struct shc_comm *comm, const struct shc_op *op);

/* shc_check() for a rank of a world of any size, which need not be a group: no messages. *count: the N of the
 * table above, or of several tensors the elements in all. */
enum shc_status shc_check_for(int rank, int world_size, const struct shc_op *op, uint64_t *count,
                              uint32_t *elem_bytes);

/* Starts the operation and returns. Operations of one group run in the order of submission on all ranks. The
 * tensors' memory must stay valid until `retire`, or, without hooks, until the request is done; the descriptor
 * is copied. The request proceeds without being waited for. */
enum shc_status shc_submit(struct shc_comm *comm, const struct shc_op *op,
                           const struct shc_request_hooks *hooks, struct shc_request **request);

/* Waits for the end of the operation and returns its status. timeout_ns 0: as long as the operation
 * itself may take. A wait with a time-out of its own fails with SHC_ERR_TIMEOUT and leaves the
 * operation in flight. SHC_ERR_INTERRUPTED takes a message back of which the peer knows nothing yet
 * (its request ends with that, too), fails the group where this thread was running a collective, and
 * leaves all else in flight. Any thread, several at once. */
enum shc_status shc_request_wait(struct shc_request *request, uint64_t timeout_ns);

/* True when the operation has ended; *status then has its result. Waits for no rank. Exception:
 * if the library could make no thread, and no other thread would run the operation, this call
 * runs it. */
bool shc_request_done(struct shc_request *request, enum shc_status *status);

/* Why it failed; "" while it has not. Valid until the release. */
const char *shc_request_error(struct shc_request *request);

/* The rank whose message a SHC_RECV got. pre: done, SHC_OK. */
int shc_request_source(struct shc_request *request);

/* Asks for hooks.complete. False: complete will not come, because the operation has already ended
 * (then shc_request_done() says so); or the process is leaving, or this is a forked child, or there is
 * no thread that could call it, as shc_error_text() says. */
bool shc_request_notify(struct shc_request *request);

/* The caller is done with the handle. The operation itself goes on. */
void shc_request_release(struct shc_request *request);

/* ---- the process ---- */

/* Why this process is about to end, as "KeyError: 'x' (train.py:41)", for ranks that find it gone. Only once. */
void shc_process_explain_end(const char *why);

/* Writes each text about a late wait of this process to that descriptor, too, with a newline at its end, also
 * where another rank logs it for all. A pipe that does not block: what finds no room is lost. -1: no more. */
void shc_late_pipe(int fd);

/* A warning of a library over this one, in the form of the log. Any thread. */
void shc_log_warning(const char *text);

/* The same of a call that is late, unless another rank has just said it; also to the pipe of shc_late_pipe().
 * `number`: the call's on all ranks; 0: none. `missing`: a hash of the missing ranks; 0: this rank speaks. */
void shc_comm_log_late(struct shc_comm *comm, uint64_t number, uint32_t missing, uint64_t waited_ns,
                       const char *text);

/* Writes what `shmcoll status` sees of this process to that file, for `shmcoll postmortem`: the last calls of
 * each group, what is pending, why groups have failed. SHMCOLL_DUMP does so when a group fails. Any thread.
 * SHC_ERR_UNSUPPORTED: nothing is kept (SHMCOLL_BOARD=off). SHC_ERR_INVALID: there has been no group.
 * SHC_ERR_SYSTEM: the file cannot be written; one that was there stays. */
enum shc_status shc_process_dump(const char *path);

/* Says in all groups that this process is about to end, and stops every callback for good: for the
 * moment before an interpreter, or the process, goes away. Waits at most 5 s for callbacks that have
 * begun. Every later call fails with SHC_ERR_CLOSED. The others are told that this rank has left when
 * the process has ended, so that a launcher finds its end before theirs; after 1 s if it takes longer.
 * shc_comm_close() tells them at once. */
void shc_process_leave(void);

/* ---- a store for programs that have none ---- */

/* A store in a directory that all ranks reach (made if absent, mode 0700). Free it after
 * shc_comm_create; remove the directory when all ranks have returned from it. */
enum shc_status shc_store_dir_open(const char *path, struct shc_store *store);
void shc_store_dir_close(struct shc_store *store);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
