/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Every system call of the core, with one contract. Functions return 0 or a positive errno, and set
 * outputs only on 0. They know nothing of ranks or groups, keep no state except what is documented
 * here, and may be called from any thread. The layer above decides what an errno means.
 */

#include "shm/base/atomic.h"
#include "shm/base/attrs.h"
#include <stdbool.h>

/* ---- memory files (os_memory.c) ---- */

#define SHC_OS_NAME_BYTES 64
#define SHC_OS_PATH_BYTES 4096 /* the kernel's PATH_MAX */

/* The identity of a file, independent of its name. */
struct shc_os_file_id {
    uint64_t device;
    uint64_t inode;
};

/* Takes over a descriptor, and returns one of the same file that has not the number of a standard stream; -1, with
 * errno: there is none. What a program prints that has closed these would go into the file. Those of the functions
 * below are such. */
SHC_NODISCARD int shc_os_off_standard(int fd);

/* post: *fd is an empty, close-on-exec, read-write file of mode 0600 in /dev/shm without a name.
 * EROFS, ENOENT, EACCES if /dev/shm cannot be used. */
SHC_NODISCARD int shc_os_shm_create_unnamed(int *fd);

/* The same with a random name under /dev/shm, which the caller must unlink. */
SHC_NODISCARD int shc_os_shm_create_named(int *fd, char name[SHC_OS_NAME_BYTES]);

/* Opens / removes a name made by shc_os_shm_create_named. The name comes from another process. So
 * only that form is accepted (EINVAL otherwise), and no link is followed. */
SHC_NODISCARD int shc_os_shm_open(const char *name, int *fd);
void shc_os_shm_unlink(const char *name);

/* post: *fd is an empty memfd that takes seals. ENOSYS, EPERM if the kernel does not offer it. */
SHC_NODISCARD int shc_os_memfd_create(const char *name, int *fd);

/* After this no process can change the size of a memfd. */
SHC_NODISCARD int shc_os_memfd_seal(int fd);

/* And after this only mappings that exist can write to it (Linux 5.1; EINVAL before). */
SHC_NODISCARD int shc_os_memfd_seal_for_readers(int fd);

/* After this no process can make a memfd shorter, nor seal it against growing. */
SHC_NODISCARD int shc_os_memfd_seal_against_shrinking(int fd);

/* Is that so, and has it ordinary pages? A huge page may be missing when it is touched, which is a SIGBUS. */
bool shc_os_memfd_is_sealed_against_shrinking(int fd);

/* Makes a file so long, also one that is mapped; no page is reserved. EFBIG: RLIMIT_FSIZE forbids it (no
 * signal comes). */
SHC_NODISCARD int shc_os_file_grow(int fd, size_t bytes);

/* post: every page of the range is backed by memory. ENOSPC if there is none. Signals are blocked
 * meanwhile; EINTR is retried. */
SHC_NODISCARD int shc_os_file_reserve(int fd, size_t offset, size_t bytes);

/* Bytes of memory that this machine can still give without swapping; SIZE_MAX: not known. */
size_t shc_os_memory_available(void);

/* Gives these whole pages back to the system; they read as zero after that. Best effort. */
void shc_os_file_punch(int fd, size_t offset, size_t bytes);

SHC_NODISCARD int shc_os_file_stat(int fd, struct shc_os_file_id *id, size_t *bytes);

/* Is that descriptor open, for that very file? A program that closes descriptors that it does not know may have
 * closed it; then its number may be that of a file of the program's. */
bool shc_os_file_is(int fd, const struct shc_os_file_id *id);

/* Is it a plain file of this user, and, if asked, without a name in a folder? Another user could
 * shorten his file under our mapping. */
bool shc_os_file_is_ours(int fd, bool nameless);

/* Bytes that can still be reserved on the file's file system; SIZE_MAX if it has no limit. */
SHC_NODISCARD int shc_os_file_space(int fd, size_t *available);

/* Writes to it, if so, as much as there is room for. */
void shc_os_file_tell_own(int fd, const struct shc_os_file_id *id, const void *bytes, size_t count);

void shc_os_file_close(int fd);

/* The same for a descriptor that was open for long: if it is not for that file, nothing is closed. */
void shc_os_file_close_own(int fd, const struct shc_os_file_id *id);

/*
 * Maps `bytes` of the file, with at least `guard_bytes` of private zero memory directly before it.
 * post: *base is the first shared byte.
 */
SHC_NODISCARD int shc_os_map(int fd, size_t bytes, size_t guard_bytes, void **base);
void shc_os_unmap(void *base, size_t bytes, size_t guard_bytes);

/* Maps the file over that many bytes of addresses, which may be more than it has: what lies after its end can
 * be used as soon as it has grown. Nothing is reserved, and nothing of it is in a core of this process: a program
 * that a core is piped to would be sent the whole range. */
SHC_NODISCARD int shc_os_map_range(int fd, size_t bytes, void **base);

/* A forked child will not have this mapping. */
void shc_os_keep_from_children(void *memory, size_t bytes);

/* Puts private copies in the place of these whole pages of a shared mapping, at the same address. No other
 * process's later store arrives there. The file keeps its pages. */
SHC_NODISCARD int shc_os_make_private(void *memory, size_t bytes);

/* Gives the memory of these private pages back; they read as zero after that. */
void shc_os_drop_private(void *memory, size_t bytes);

/* The length of a page of this kernel. */
size_t shc_os_page_bytes(void);

/* post: every page that holds a byte of this part of a shared mapping is backed by memory. The part
 * need not begin with a page, because pages may be of 64 KiB. ENOSPC if there is no memory, EINVAL
 * if the kernel cannot do it (before 5.14): shc_os_can_populate() is false. */
SHC_NODISCARD int shc_os_populate(void *memory, size_t bytes);
bool shc_os_can_populate(void);

/* Private zero memory. A forked child finds it zeroed again. It is never unmapped. */
SHC_NODISCARD int shc_os_wipe_on_fork_page(void **page);

/* Where the memory of these pages comes from once it is reserved: from that NUMA node if it has some; of several
 * nodes, from each in turn. Bits: nodes; 0: anywhere. Best effort: a refusal is no error. */
void shc_os_place(void *memory, size_t bytes, uint64_t nodes);

/* ---- processes (os_process.c) ---- */

/* A process as others can find it: its number in the /proc that is mounted here. */
struct shc_os_process {
    int32_t pid;
    uint64_t start_time;     /* clock ticks since boot: tells a recycled pid from the old one */
    uint64_t pid_namespace;  /* inode of its pid namespace; 0 if its /proc shows another one: then
                              * its pid means nothing to a process with another /proc */
    uint64_t boot;           /* hash of the boot id: two machines differ */
    uint64_t time_namespace; /* its inode, 0: none; start times count there */
};

/* post: *self describes this process. ENOENT if no /proc is mounted. */
SHC_NODISCARD int shc_os_process_self(struct shc_os_process *self);

/* Lets each process that may otherwise do so trace this one, also if that is none of its ancestors. EINVAL: the kernel
 * has no Yama, which alone would forbid it. A forked child does not inherit that. */
SHC_NODISCARD int shc_os_process_allow_tracing(void);

enum shc_os_life {
    SHC_OS_ALIVE,
    SHC_OS_DEAD,    /* gone, a zombie, or the pid belongs to another process now */
    SHC_OS_UNKNOWN, /* not visible from here (another pid namespace, no /proc) */
};
enum shc_os_life shc_os_process_life(const struct shc_os_process *self,
                                     const struct shc_os_process *process);

/* Has the kernel told that thread of the process to end, or is the thread ending? After a process
 * is killed, some of its threads may end later than others; and none of them ends before the core dump is written.
 * False if that cannot be seen. */
bool shc_os_thread_is_ending(const struct shc_os_process *self,
                             const struct shc_os_process *process, int32_t thread);

/* How a process has ended. Boards and dumps have these numbers. */
enum shc_os_end_kind { SHC_OS_END_UNKNOWN = 0, SHC_OS_END_EXIT, SHC_OS_END_SIGNAL };
struct shc_os_end {
    enum shc_os_end_kind kind;
    int code; /* the exit code, or the number of the signal */
};

/* Of a process that ends or that nobody has waited for yet. UNKNOWN: of any other one, and for the exit code 0.
 * dies: it is known to end. Its first thread may not have begun to, as long as the system looks for memory for it. */
struct shc_os_end shc_os_process_end(const struct shc_os_process *self,
                                     const struct shc_os_process *process, bool dies);

/* The state letter of /proc (R, S, D, T, t, Z, X), or '?', and whether it is writing a core dump.
 * pre: the process is visible from here. */
char shc_os_process_state(const struct shc_os_process *self, const struct shc_os_process *process,
                          bool *dumping_core);

/* Does the process listen at this TCP port? Also false if that cannot be seen. Slow: it looks at
 * all descriptors of the process. */
bool shc_os_process_listens(const struct shc_os_process *process, int port);

/* The letter in words: 'T' is "stopped". */
const char *shc_os_state_word(char state);

/* The CPU on which the process's first thread runs, or ran last; -1 if that cannot be seen. */
int shc_os_process_cpu(const struct shc_os_process *self, const struct shc_os_process *process);

/* For how long this process's first thread has waited for a CPU since it began; 0 if the kernel does not say. */
uint64_t shc_os_cpu_awaited_ns(void);

/* Copies memory of the process that has that thread, which may be this process. ESRCH: there is no
 * such thread. EPERM: this process may not. EFAULT: the kernel cannot copy from or to that memory.
 * ENOSYS. */
SHC_NODISCARD int shc_os_process_read(int32_t thread, uint64_t address, void *to, size_t bytes);

/* Opens the file that the process holds as `its_fd`, if it is the file described. ESTALE if it is
 * another one; ENOENT, EACCES, EPERM if it cannot be reached. Never opens a stranger's file. */
SHC_NODISCARD int shc_os_process_open_fd(const struct shc_os_process *process, int its_fd,
                                         const struct shc_os_file_id *id, int *fd);

/* Opens the index-th memfd of that name that the process holds, to read it. ENOENT: it has no more of them. EACCES,
 * EPERM: it cannot be looked at. */
SHC_NODISCARD int shc_os_process_open_memfd(int32_t pid, const char *name, int index, int *fd);

/* Reads that many bytes at that offset. EIO: the file ends before them. */
SHC_NODISCARD int shc_os_file_read(int fd, size_t offset, void *to, size_t bytes);

/* ---- threads and futexes (os_thread.c) ---- */

struct shc_os_thread_control;

struct shc_os_thread {
    uint64_t handle;
    struct shc_os_thread_control *control; /* NULL: not started, or ended */
};

/* post: runs entry(arg), with all signals blocked. The name shows in ps -L. */
SHC_NODISCARD int shc_os_thread_start(struct shc_os_thread *thread, const char *name,
                                      void (*entry)(void *), void *arg);

/* ETIMEDOUT if the thread has not ended by then; it may be joined again. EDEADLK for the calling
 * thread itself. */
SHC_NODISCARD int shc_os_thread_join(struct shc_os_thread *thread, uint64_t timeout_ns);

/* The thread will not be joined. */
void shc_os_thread_detach(struct shc_os_thread *thread);

int32_t shc_os_thread_id(void);
void shc_os_thread_yield(void);
void shc_os_sleep_ns(uint64_t ns);

/* Called once in a process, before its first heavy fence. Takes 15 ms in a process with several
 * threads. False: there are no heavy fences here (an old kernel, or a container's filter). */
SHC_NODISCARD bool shc_os_fence_prepare(void);

/* A full fence in every thread of the process, wherever that thread is between two instructions.
 * Takes some 10 us if others run. The other side of shc_fence_light(). pre: prepared. */
void shc_os_fence_heavy(void);

/* Sleeps while *word == expected, at most timeout_ns. 0 after a wake-up, EAGAIN if the word
 * differed, ETIMEDOUT, EINTR. `shared`: the word is in memory that processes share. */
int shc_os_futex_wait(shc_a32 *word, uint32_t expected, uint64_t timeout_ns, bool shared);
void shc_os_futex_wake_all(shc_a32 *word, bool shared);

/* One of several words that a thread sleeps on: the kernel's struct futex_waitv. */
struct shc_os_futex {
    uint64_t expected;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};

#define SHC_OS_FUTEXES 128 /* the kernel's limit for one sleep */

struct shc_os_futex shc_os_futex_of(shc_a32 *word, uint32_t expected, bool shared);

/* Sleeps while all words are as expected. 0 after a wake-up on any of them; otherwise as shc_os_futex_wait(), but a
 * signal whose handler restarts system calls does not end it. pre: shc_os_futex_waits_for_any(). */
int shc_os_futex_wait_any(const struct shc_os_futex *words, int count, uint64_t timeout_ns);

/* Has this kernel (5.16) that call, and does no filter refuse it? Asked once. */
bool shc_os_futex_waits_for_any(void);

/*
 * The calling thread's list of robust futexes (docs: the kernel's robust-futex ABI). An entry is
 * private memory exactly SHC_OS_ROBUST_DISTANCE bytes before its word. When the thread ends in any
 * way, the kernel sets SHC_OS_OWNER_DIED in each linked word that holds the thread's id. Where the word has
 * SHC_OS_OWNER_AWAITED too, the kernel then wakes one of the threads that sleep on it.
 */
#define SHC_OS_ROBUST_DISTANCE 4096
#define SHC_OS_OWNER_DIED      0x40000000u
#define SHC_OS_OWNER_AWAITED   0x80000000u
#define SHC_OS_OWNER_MASK      0x3fffffffu

struct shc_os_robust_entry {
    struct shc_os_robust_entry *next;
};

struct shc_os_robust_list { /* the kernel's struct robust_list_head */
    struct shc_os_robust_entry *first;
    long distance;
    struct shc_os_robust_entry *pending;
};

/* pre: `list` outlives the thread. post: it is empty, and belongs to the calling thread. */
SHC_NODISCARD int shc_os_robust_init(struct shc_os_robust_list *list);

/* pre: the calling thread owns the list. post: the word holds the thread's id and is linked.
 * awaited: the kernel wakes a thread that sleeps on the word. */
void shc_os_robust_link(struct shc_os_robust_list *list, shc_a32 *word, bool awaited);

/* pre: the calling thread owns the list; the word was linked. post: it is not, and holds 0. */
void shc_os_robust_unlink(struct shc_os_robust_list *list, shc_a32 *word);

/* ---- the machine (os_machine.c) ---- */

#define SHC_OS_MAX_CPUS 1024

struct shc_os_cpus {
    uint64_t bits[SHC_OS_MAX_CPUS / 64];
};

/* A number out of range is in no set, and is not added to one. */
SHC_INLINE bool shc_os_cpus_have(const struct shc_os_cpus *cpus, int cpu)
{
    return cpu >= 0 && cpu < SHC_OS_MAX_CPUS && (cpus->bits[cpu / 64] >> (cpu % 64) & 1) != 0;
}

SHC_INLINE void shc_os_cpus_add(struct shc_os_cpus *cpus, int cpu)
{
    if (cpu >= 0 && cpu < SHC_OS_MAX_CPUS)
        cpus->bits[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

SHC_INLINE int shc_os_cpus_count(const struct shc_os_cpus *cpus)
{
    int count = 0;
    for (int i = 0; i < SHC_OS_MAX_CPUS / 64; i++)
        count += __builtin_popcountll(cpus->bits[i]);
    return count;
}

/* The CPUs this process may run on. */
SHC_NODISCARD int shc_os_cpus_allowed(struct shc_os_cpus *cpus);

/* The CPU time that the cgroup grants, in CPUs, rounded up; 0 if it sets no limit. */
int shc_os_cpu_quota(void);

/* The size of the cache that the first CPU shares with others; 0: not known. (On some machines
 * sysconf gives the sum of all such caches.) */
size_t shc_os_shared_cache_bytes(void);

/* Does shc_clock_ticks() run at one rate, the same on all CPUs? As the kernel's own clock uses it. */
bool shc_os_ticks_are_steady(void);

/* The CPU the calling thread runs on. */
int shc_os_cpu_current(void);

/* Pins the calling thread. EPERM, EINVAL if that is refused. */
SHC_NODISCARD int shc_os_thread_pin(const struct shc_os_cpus *cpus);

/* The first `capacity - 1` bytes of a small file, 0-terminated. EILSEQ: it contains a 0. */
SHC_NODISCARD int shc_os_read_text(const char *path, char *text, size_t capacity);

/* Adds the bytes to the end of that file, which is made if it does not exist. Waits for no reader of a pipe: ENXIO, EAGAIN.
 * (What writes is in os_write.c.) */
SHC_NODISCARD int shc_os_append(const char *path, const void *bytes, size_t count);

/* Writes a line to standard error. It is lost if the stream is closed, also if another file has its number since then,
 * and if nobody reads a full pipe for a tenth of a second. */
void shc_os_tell_stderr(const char *bytes, size_t count);

/* The name of this machine; "": not known. */
void shc_os_host_name(char *text, size_t capacity);

SHC_NODISCARD int shc_os_random(void *bytes, size_t count);

/* Run-time probes: the library is there, and the call works here (a container's filter answers EPERM). */
bool shc_os_has_numa(void);
bool shc_os_has_uring(void);

/* ---- small files for the directory store (os_machine.c, os_write.c) ---- */

/* Makes the directory (mode 0700) if it does not exist. */
SHC_NODISCARD int shc_os_directory_make(const char *path);

/* Replaces the file by these bytes, atomically for every reader. */
SHC_NODISCARD int shc_os_file_put(const char *path, const void *bytes, size_t count);

/* A file that is written piece by piece under another name, and gets its own when it is complete. */
struct shc_os_new_file {
    int fd;
    char temporary[SHC_OS_PATH_BYTES];
};

/* post: the file is empty, of mode 0600. */
SHC_NODISCARD int shc_os_file_begin(struct shc_os_new_file *file, const char *path);
SHC_NODISCARD int shc_os_file_add(const struct shc_os_new_file *file, const void *bytes,
                                  size_t count);

/* Gives it its name, in place of a file that has it. After an error, which is returned, removes it. */
SHC_NODISCARD int shc_os_file_end(struct shc_os_new_file *file, const char *path, int error);

/* May this process make files in that folder? 0, or why not. */
SHC_NODISCARD int shc_os_directory_check(const char *path);

/* EMSGSIZE if it does not fit. */
SHC_NODISCARD int shc_os_file_get(const char *path, void *bytes, size_t capacity, size_t *count);

/* Takes the lock of this file, and waits for other holders. */
SHC_NODISCARD int shc_os_lock(const char *path, int *lock);
void shc_os_unlock(int lock);

/* Runs `function` when the process ends by exit() or by returning from main. */
SHC_NODISCARD int shc_os_at_exit(void (*function)(void));
