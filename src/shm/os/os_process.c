/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/os/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The kernel's PF_EXITING; PF_POSTCOREDUMP, of threads that wait until the dump is written (before Linux 5.16 these are
 * EXITING); PF_DUMPCORE, of the thread that writes it. */
#define EXITING 0x4u
#define ENDING  (EXITING | 0x8u | 0x200u)

struct stat_line {
    char state; /* of the thread; for a process, of its first thread */
    long threads;
    uint64_t start_time;
    uint64_t flags, pending; /* of the thread: the kernel's, and signals */
    int cpu;                 /* of the thread */
    int exit_status;         /* as waitpid() has it; 0: none, or not for this user to see */
};

/* The field of that number in a line that begins with its third field; NULL: the line ends before it. */
static const char *field_of(const char *third, int number)
{
    const char *at = third;
    for (int field = 3; at && field < number; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at;
}

/* Its value; 0: the line ends before it. */
static uint64_t value_of(const char *third, int number)
{
    const char *at = field_of(third, number);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* /proc/<pid>/stat, or a thread's. The second field, the command name, may contain anything, also blanks
 * and parentheses, but it ends at the last ')'. */
static int read_stat(const char *path, struct stat_line *line)
{
    char text[1024];
    int error = shc_os_read_text(path, text, sizeof text);
    if (error != 0)
        return error;
    const char *second = strrchr(text, ')');
    if (!second || second[1] != ' ' || !field_of(second + 2, 22))
        return EPROTO;
    const char *third = second + 2;
    *line = (struct stat_line){
        .state = *third,
        .flags = value_of(third, 9),
        .threads = (long)value_of(third, 20),
        .start_time = value_of(third, 22),
        .pending = value_of(third, 31),
        .cpu = field_of(third, 39) ? (int)value_of(third, 39) : -1,
        .exit_status = (int)value_of(third, 52),
    };
    return 0;
}

static uint64_t boot_hash(void)
{
    char text[64];
    if (shc_os_read_text("/proc/sys/kernel/random/boot_id", text, sizeof text) != 0)
        return 0;
    uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
    for (const char *c = text; *c && *c != '\n'; c++)
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3ULL;
    return hash;
}

int shc_os_process_allow_tracing(void)
{
    return prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0 ? 0 : errno;
}

int shc_os_process_self(struct shc_os_process *self)
{
    char link[32];
    ssize_t length = readlink("/proc/self", link, sizeof link - 1);
    if (length < 0)
        return errno;
    link[length] = '\0';
    struct shc_os_process found = {.pid = (int32_t)strtol(link, NULL, 10), .boot = boot_hash()};
    struct stat_line line;
    int error = read_stat("/proc/self/stat", &line);
    if (error != 0)
        return error;
    found.start_time = line.start_time;
    struct stat ns;
    if (found.pid == getpid() && stat("/proc/self/ns/pid", &ns) == 0)
        found.pid_namespace = ns.st_ino;
    if (stat("/proc/self/ns/time", &ns) == 0)
        found.time_namespace = ns.st_ino;
    *self = found;
    return 0;
}

/* Does this process's pid mean the same in its own pid namespace and in the mounted /proc? */
static bool is_visible(const struct shc_os_process *self, const struct shc_os_process *process)
{
    return process->boot == self->boot && process->pid_namespace != 0 &&
           process->pid_namespace == self->pid_namespace;
}

/* ESRCH: the process has ended, also if its pid belongs to another one now. Start times count from
 * the beginning of the reader's time namespace, so those of two namespaces cannot be compared. */
static int stat_of(const struct shc_os_process *self, const struct shc_os_process *process,
                   struct stat_line *line)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process->pid);
    int error = read_stat(path, line);
    if (error == ENOENT) /* or hidden: /proc may be mounted so that it shows only some processes */
        error = kill(process->pid, 0) != 0 && errno == ESRCH ? ESRCH : EACCES;
    if (error != 0)
        return error;
    const bool comparable = process->time_namespace == self->time_namespace;
    return !comparable || line->start_time == process->start_time ? 0 : ESRCH;
}

uint64_t shc_os_cpu_awaited_ns(void)
{
    char text[96];
    unsigned long long awaited_ns = 0;
    if (shc_os_read_text("/proc/self/schedstat", text, sizeof text) != 0 ||
        sscanf(text, "%*u %llu", &awaited_ns) != 1)
        return 0;
    return awaited_ns;
}

int shc_os_process_cpu(const struct shc_os_process *self, const struct shc_os_process *process)
{
    struct stat_line line;
    return is_visible(self, process) && stat_of(self, process, &line) == 0 ? line.cpu : -1;
}

/* The state is that of the first thread: if it has ended before the others, it is a zombie next to
 * them. */
static bool has_ended(const struct stat_line *line)
{
    return line->state == 'X' || (line->state == 'Z' && line->threads <= 1);
}

enum shc_os_life shc_os_process_life(const struct shc_os_process *self,
                                     const struct shc_os_process *process)
{
    if (!is_visible(self, process))
        return SHC_OS_UNKNOWN;
    struct stat_line line;
    int error = stat_of(self, process, &line);
    if (error == ESRCH)
        return SHC_OS_DEAD;
    if (error != 0)
        return SHC_OS_UNKNOWN;
    return has_ended(&line) ? SHC_OS_DEAD : SHC_OS_ALIVE;
}

bool shc_os_thread_is_ending(const struct shc_os_process *self,
                             const struct shc_os_process *process, int32_t thread)
{
    char path[64];
    struct stat_line line;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)process->pid, (int)thread);
    return is_visible(self, process) && read_stat(path, &line) == 0 &&
           ((line.flags & ENDING) != 0 || (line.pending >> (SIGKILL - 1) & 1) != 0);
}

char shc_os_process_state(const struct shc_os_process *self, const struct shc_os_process *process,
                          bool *dumping_core)
{
    char path[64], text[16384]; /* one line contains all supplementary groups */
    struct stat_line line;
    *dumping_core = false;
    if (stat_of(self, process, &line) != 0)
        return '?';
    if (line.state == 'Z' && !has_ended(&line))
        line.state = 'S';
    snprintf(path, sizeof path, "/proc/%d/status", (int)process->pid);
    if (shc_os_read_text(path, text, sizeof text) == 0)
        *dumping_core = strstr(text, "\nCoreDumping:\t1") != NULL;
    return line.state;
}

struct shc_os_end shc_os_process_end(const struct shc_os_process *self,
                                     const struct shc_os_process *process, bool dies)
{
    const struct shc_os_end unknown = {.kind = SHC_OS_END_UNKNOWN};
    struct stat_line line;
    if (!is_visible(self, process) || stat_of(self, process, &line) != 0 || line.exit_status == 0)
        return unknown;
    /* A process that is merely stopped has the signal there. */
    if (!dies && line.state != 'Z' && line.state != 'X' && (line.flags & EXITING) == 0)
        return unknown;
    if (WIFSIGNALED(line.exit_status))
        return (struct shc_os_end){SHC_OS_END_SIGNAL, WTERMSIG(line.exit_status)};
    return (struct shc_os_end){SHC_OS_END_EXIT, WEXITSTATUS(line.exit_status)};
}

const char *shc_os_state_word(char state)
{
    switch (state) {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "in an uninterruptible sleep";
    case 'T':
        return "stopped";
    case 't':
        return "stopped by a debugger";
    case 'Z':
    case 'X':
        return "dead";
    default:
        return "state not visible";
    }
}

/* A line of /proc/<pid>/net/tcp: number: local address:port, remote one, state (0A: listens),
 * queues, timer, retransmits, uid, timeout, inode. Returns the inode, or 0 if the line is not a
 * listener at that port. */
static uint64_t listener_of(const char *line, int port)
{
    unsigned int local = 0, state = 0;
    unsigned long inode = 0;
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u %lu",
               &local, /* NOLINT */
               &state, &inode) != 3)
        return 0;
    return state == 0x0a && (int)local == port ? inode : 0;
}

/* What that entry of /proc/<pid>/fd is a link to; "" if that cannot be seen. */
static void read_link(DIR *folder, const char *entry, char *text, size_t capacity)
{
    const ssize_t length = readlinkat(dirfd(folder), entry, text, capacity - 1);
    text[length > 0 ? length : 0] = '\0';
}

static bool has_socket(const struct shc_os_process *process, uint64_t inode)
{
    char path[64], wanted[48], link[48];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)process->pid);
    snprintf(wanted, sizeof wanted, "socket:[%llu]", (unsigned long long)inode);
    DIR *folder = opendir(path);
    if (!folder)
        return false;
    for (struct dirent *entry = readdir(folder); entry && !found; entry = readdir(folder)) {
        read_link(folder, entry->d_name, link, sizeof link);
        found = strcmp(link, wanted) == 0;
    }
    closedir(folder);
    return found;
}

bool shc_os_process_listens(const struct shc_os_process *process, int port)
{
    static const char *const tables[] = {"tcp", "tcp6"};
    bool found = false;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && !found; i++) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/net/%s", (int)process->pid, tables[i]);
        FILE *file = fopen(path, "re");
        while (file && !found && fgets(line, sizeof line, file)) {
            const uint64_t inode = listener_of(line, port);
            found = inode != 0 && has_socket(process, inode);
        }
        if (file)
            fclose(file);
    }
    return found;
}

int shc_os_process_read(int32_t thread, uint64_t address, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct iovec here = {(char *)to + done, bytes - done};
        struct iovec there = {(void *)(uintptr_t)(address + done), bytes - done}; /* NOLINT */
        const ssize_t copied = process_vm_readv(thread, &here, 1, &there, 1, 0);
        if (copied <= 0)
            return copied < 0 ? errno : EFAULT;
        done += (size_t)copied;
    }
    return 0;
}

int shc_os_process_open_fd(const struct shc_os_process *process, int its_fd,
                           const struct shc_os_file_id *id, int *fd)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process->pid, its_fd);
    /* In another pid namespace this path is a stranger's file. So look before opening it: opening
     * alone can have effects (a FIFO, a device). */
    if (stat(path, &st) != 0)
        return errno;
    if (st.st_dev != id->device || st.st_ino != id->inode)
        return ESTALE;
    int new_fd = shc_os_off_standard(open(path, O_RDWR | O_CLOEXEC));
    if (new_fd < 0)
        return errno;
    if (!shc_os_file_is(new_fd, id)) {
        close(new_fd);
        return ESTALE;
    }
    *fd = new_fd;
    return 0;
}

int shc_os_process_open_memfd(int32_t pid, const char *name, int index, int *fd)
{
    char path[64], wanted[64], link[64];
    int error = ENOENT;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", name);
    DIR *folder = opendir(path);
    if (!folder)
        return errno;
    for (struct dirent *entry = readdir(folder); entry && error == ENOENT;
         entry = readdir(folder)) {
        read_link(folder, entry->d_name, link, sizeof link);
        if (strcmp(link, wanted) != 0 || index-- > 0)
            continue;
        *fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
        error = *fd < 0 ? errno : 0;
    }
    closedir(folder);
    return error;
}

int shc_os_file_read(int fd, size_t offset, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t count = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (count < 0)
            return errno;
        if (count == 0)
            return EIO;
        done += (size_t)count;
    }
    return 0;
}
