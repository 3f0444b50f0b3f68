/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/num.h"
#include "shm/os/numa.h"
#include "shm/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SHM_DIRECTORY "/dev/shm"
#define NAME_PREFIX   SHM_DIRECTORY "/shmcoll-"
#define NAME_DIGITS   32

int shc_os_off_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close(fd);
    errno = error;
    return higher;
}

/* A plain directory under that path would put the segment on a disk. */
static int check_is_memory(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return errno;
    return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC ? 0 : ENODEV;
}

/* Gives the new file its final mode whatever the umask was. Takes over the descriptor, or closes
 * it. */
static int keep_new_file(int new_fd, int *fd)
{
    new_fd = shc_os_off_standard(new_fd);
    if (new_fd < 0)
        return errno;
    int error = check_is_memory(new_fd);
    if (error == 0 && fchmod(new_fd, S_IRUSR | S_IWUSR) != 0)
        error = errno;
    if (error == 0)
        *fd = new_fd;
    else
        close(new_fd);
    return error;
}

int shc_os_shm_create_unnamed(int *fd)
{
    int new_fd = open(SHM_DIRECTORY, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (new_fd >= 0)
        return keep_new_file(new_fd, fd);
    if (errno != EOPNOTSUPP && errno != EISDIR)
        return errno;
    /* For a file system without O_TMPFILE: the file has a name during two system calls. */
    char name[SHC_OS_NAME_BYTES];
    int error = shc_os_shm_create_named(fd, name);
    if (error == 0)
        shc_os_shm_unlink(name);
    return error;
}

int shc_os_shm_create_named(int *fd, char name[SHC_OS_NAME_BYTES])
{
    uint8_t random[NAME_DIGITS / 2];
    int error = shc_os_random(random, sizeof random);
    if (error != 0)
        return error;
    int used = snprintf(name, SHC_OS_NAME_BYTES, "%s", NAME_PREFIX);
    for (size_t i = 0; i < sizeof random; i++)
        used += snprintf(name + used, SHC_OS_NAME_BYTES - (size_t)used, "%02x", random[i]);
    int new_fd = open(name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (new_fd < 0)
        return errno;
    error = keep_new_file(new_fd, fd);
    if (error != 0)
        unlink(name);
    return error;
}

static bool is_our_name(const char *name)
{
    size_t prefix = strlen(NAME_PREFIX);
    return strnlen(name, SHC_OS_NAME_BYTES) == prefix + NAME_DIGITS &&
           memcmp(name, NAME_PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == NAME_DIGITS;
}

int shc_os_shm_open(const char *name, int *fd)
{
    if (!is_our_name(name))
        return EINVAL;
    int new_fd = shc_os_off_standard(open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (new_fd < 0)
        return errno;
    *fd = new_fd;
    return 0;
}

void shc_os_shm_unlink(const char *name)
{
    if (is_our_name(name))
        unlink(name);
}

int shc_os_memfd_create(const char *name, int *fd)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
#ifdef MFD_NOEXEC_SEAL
    int new_fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (new_fd < 0 && errno == EINVAL) /* kernels before 6.3 */
        new_fd = memfd_create(name, flags);
#else
    int new_fd = memfd_create(name, flags);
#endif
    new_fd = shc_os_off_standard(new_fd);
    if (new_fd < 0)
        return errno;
    if (fchmod(new_fd, S_IRUSR | S_IWUSR) != 0) {
        int error = errno;
        close(new_fd);
        return error;
    }
    *fd = new_fd;
    return 0;
}

int shc_os_memfd_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? 0 : errno;
}

int shc_os_memfd_seal_against_shrinking(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0 ? 0 : errno;
}

bool shc_os_memfd_is_sealed_against_shrinking(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && check_is_memory(fd) == 0;
}

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int shc_os_memfd_seal_for_readers(int fd)
{
    const int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    return fcntl(fd, F_ADD_SEALS, seals) == 0 ? 0 : errno;
}

int shc_os_file_reserve(int fd, size_t offset, size_t bytes)
{
    if (bytes == 0)
        return 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error;
    do {
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    } while (error == EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int shc_os_file_grow(int fd, size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return EFBIG; /* the kernel would send SIGXFSZ, which ends the process */
    return ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
}

size_t shc_os_memory_available(void)
{
    static const char key[] = "\nMemAvailable:";
    char text[1024];
    unsigned long long kib = 0;
    if (shc_os_read_text("/proc/meminfo", text, sizeof text) != 0)
        return SIZE_MAX;
    const char *line = strstr(text, key);
    if (!line || sscanf(line + sizeof key - 1, "%llu", &kib) != 1)
        return SIZE_MAX;
    return (size_t)kib << 10;
}

void shc_os_file_punch(int fd, size_t offset, size_t bytes)
{
    (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

int shc_os_file_stat(int fd, struct shc_os_file_id *id, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return errno;
    *id = (struct shc_os_file_id){.device = st.st_dev, .inode = st.st_ino};
    *bytes = (size_t)st.st_size;
    return 0;
}

bool shc_os_file_is(int fd, const struct shc_os_file_id *id)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == id->device && st.st_ino == id->inode;
}

bool shc_os_file_is_ours(int fd, bool nameless)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           (!nameless || st.st_nlink == 0);
}

int shc_os_file_space(int fd, size_t *available)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return errno;
    *available = fs.f_blocks == 0 ? SIZE_MAX : (size_t)fs.f_bavail * (size_t)fs.f_bsize;
    return 0;
}

void shc_os_file_close(int fd)
{
    close(fd);
}

void shc_os_file_close_own(int fd, const struct shc_os_file_id *id)
{
    if (shc_os_file_is(fd, id))
        close(fd);
}

/* The length of the memory before a mapping, in whole pages of this kernel: 4 KiB, or up to 64 KiB. */
static size_t guard_pages(size_t guard_bytes)
{
    return shc_align_up(guard_bytes, shc_os_page_bytes());
}

int shc_os_map(int fd, size_t bytes, size_t guard_bytes, void **base)
{
    guard_bytes = guard_pages(guard_bytes);
    char *whole = mmap(NULL, guard_bytes + bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED)
        return errno;
    int error = 0;
    if (guard_bytes > 0 && mprotect(whole, guard_bytes, PROT_READ | PROT_WRITE) != 0)
        error = errno;
    else if (mmap(whole + guard_bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                  0) == MAP_FAILED)
        error = errno;
    if (error != 0) {
        munmap(whole, guard_bytes + bytes);
        return error;
    }
    *base = whole + guard_bytes;
    return 0;
}

void shc_os_unmap(void *base, size_t bytes, size_t guard_bytes)
{
    guard_bytes = guard_pages(guard_bytes);
    munmap((char *)base - guard_bytes, guard_bytes + bytes);
}

int shc_os_map_range(int fd, size_t bytes, void **base)
{
    void *range = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (range == MAP_FAILED)
        return errno;
    (void)!madvise(range, bytes, MADV_DONTDUMP);
    *base = range;
    return 0;
}

void shc_os_keep_from_children(void *memory, size_t bytes)
{
    (void)!madvise(memory, bytes, MADV_DONTFORK);
}

int shc_os_make_private(void *memory, size_t bytes)
{
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return errno;
    memcpy(copy, memory, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory) != MAP_FAILED)
        return 0;
    const int error = errno;
    munmap(copy, bytes);
    return error;
}

void shc_os_drop_private(void *memory, size_t bytes)
{
    (void)!madvise(memory, bytes, MADV_DONTNEED);
}

size_t shc_os_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Extends the part to the beginning of its first page. The system calls accept no other address,
 * and round the end up themselves. */
static void *begin_of_page(void *memory, size_t *bytes)
{
    size_t before = (uintptr_t)memory % shc_os_page_bytes();
    *bytes += before;
    return (char *)memory - before;
}

int shc_os_populate(void *memory, size_t bytes)
{
    memory = begin_of_page(memory, &bytes);
    while (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EFAULT || errno == ENOMEM) /* an access would have been SIGBUS */
            return ENOSPC;
        if (errno != EINTR && errno != EAGAIN)
            return errno;
    }
    return 0;
}

bool shc_os_can_populate(void)
{
    return madvise(NULL, 0, MADV_POPULATE_WRITE) == 0;
}

int shc_os_wipe_on_fork_page(void **page)
{
    void *memory =
        mmap(NULL, SHC_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return errno;
    if (madvise(memory, SHC_PAGE_BYTES, MADV_WIPEONFORK) != 0) {
        int error = errno;
        munmap(memory, SHC_PAGE_BYTES);
        return error;
    }
    *page = memory;
    return 0;
}

void shc_os_place(void *memory, size_t bytes, uint64_t nodes)
{
    const struct shc_numa *numa = shc_numa_get();
    const int mode = (nodes & (nodes - 1)) == 0 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
    const unsigned long mask = nodes;
    if (nodes == 0 || numa->mbind == NULL)
        return;
    memory = begin_of_page(memory, &bytes);
    /* The kernel looks at one bit less than it is told. */
    numa->mbind(memory, bytes, mode, &mask, SHC_NUMA_MAX_NODES + 1, 0);
}
