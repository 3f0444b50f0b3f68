#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tokens that have one home, or none. One table; a new rule is a new row."""

import re
from typing import NamedTuple

from common import C_FAMILY, Finding, find_files, line_of, main, matches, read
from csource import Source

C_CODE = tuple("*" + suffix for suffix in C_FAMILY)
PYTHON = ("*.py", "*.pyi")
EVERYTHING = ("*",)
THIS = "tests/lint/*"  # names what it forbids


class Rule(NamedTuple):
    token: str  # a regular expression
    message: str  # why; what to do instead
    where: tuple  # the files looked at ...
    allowed: tuple = ()  # ... but these
    view: str = "code"  # C: code (no comments, no strings), strings (no comments), text


def calls(names):
    """Calls of plain functions: not of members, not of other namespaces."""
    return rf"(?<![\w.])(?<!->)(?<!\w::)(?:{'|'.join(names.split())})\s*\("


SYSTEM_CALLS = calls(
    r"""mmap mmap64 munmap mremap mprotect madvise msync mlock2? munlock mlockall mbind move_pages
    [gs]et_mempolicy open64 openat creat close_range preadv?2? readv pwritev?2? writev lseek
    f?truncate
    fallocate posix_fallocate posix_madvise posix_fadvise shm_open shm_unlink memfd_create linkat
    symlink unlink unlinkat renameat mkdir mkdirat rmdir mkstemp mkdtemp [fl]stat fstatat statx
    f?statfs readlink readlinkat faccessat f?chmod f?chown fopen fdopen opendir fdopendir fcntl
    flock ioctl dup dup2 dup3 pipe2? futex syscall v?fork clone3 exec[lv]p?e? fexecve posix_spawn
    waitpid waitid kill tgkill pidfd_\w+ process_vm_\w+ pthread_create pthread_kill
    pthread_[gs]etaffinity_np sched_\w+ getcpu [gs]etpriority [gs]etrlimit prlimit prctl ppoll
    pselect epoll_\w+ eventfd timerfd_\w+ signalfd inotify_\w+ u?sleep nanosleep clock_nanosleep
    getrandom getentropy getppid gettid geteuid getuid gethostname uname sysconf sysinfo
    membarrier userfaultfd socket socketpair sendto sendmsg recvfrom recvmsg accept4
    [gs]etsockopt io_uring_\w+ numa_\w+"""
)
# Names that methods of C++ classes have too.
SYSTEM_CALLS_OF_C = calls(
    "open close read write link rename access stat poll select send recv bind listen connect "
    "accept shutdown clone"
)
# The libraries do not see each other's inside.
OS = ("src/shm/os/*", "src/cuda_ipc/sys.*", "src/hosts/hosts_sys.*")
HOME_OF_ATOMICS = ("src/shm/base/atomic.h",)
# Of a CUDA group: who may enqueue, and what its threads and its callers both know.
CUDA_STATE = tuple(
    f"src/cuda_ipc/{name}.*"
    for name in (
        "capture",
        "cuda_comm",
        "enqueue",
        "failure",
        "lane",
        "mail",
        "mailwatch",
        "relay",
        "watch",
    )
)
PRIVATE_STATE = (
    *(
        "src/shm/comm/*",
        "src/shm/exec/*.c",
        "src/shm/proto/*.c",
        "src/hosts/flights.c",
        "src/hosts/gate.c",
        "src/hosts/oob.c",
    ),
    *CUDA_STATE,
    *OS,
)

RULES = (
    Rule(
        SYSTEM_CALLS,
        "system calls are made in src/shm/os and cuda_ipc/sys.c alone; use or add a function there",
        ("src/*",),
        OS,
    ),
    Rule(
        calls("getpid"),
        "after a fork a kept pid is stale; use the functions of shm/os/os.h",
        ("src/*",),
        OS + ("src/shm/base/log.c",),
    ),
    Rule(
        SYSTEM_CALLS_OF_C,
        "system calls are made in src/shm/os and cuda_ipc/sys.c alone; use or add a function there",
        ("src/shm/*", "src/cuda_ipc/*"),
        OS,
    ),
    Rule(
        calls(r"clock_gettime gettimeofday time"),
        "clocks are read in base/clock.h alone; use shc_clock_ns()",
        ("src/shm/*", "src/cuda_ipc/*"),
        ("src/shm/base/clock.h", "src/shm/base/log.c", *OS),
    ),
    Rule(
        r"\b__atomic_\w+|\b_Atomic\b|\bstdatomic\b",
        "the only home of atomics is base/atomic.h; use its operations",
        C_CODE,
        HOME_OF_ATOMICS,
    ),
    Rule(
        r"\bmemory_order\w*|\b__sync_\w+",
        "the order is in the name of base/atomic.h's operations; use those",
        C_CODE,
    ),
    Rule(
        r"\b(?:__)?atomic_thread_fence\b",
        "thread sanitizers do not model fences; order the accesses themselves",
        C_CODE,
        ("tests/models/relacy/*",),
    ),
    Rule(
        r"\b(?:__)?atomic_signal_fence\b",
        "thread sanitizers do not model fences; order the accesses themselves",
        C_CODE,
        HOME_OF_ATOMICS,  # half of an asymmetric one
    ),
    Rule(
        r"\bstd\s*::\s*atomic\w*",
        "only src/backend may use it, for its own state; use base/atomic.h",
        ("src/*",),
        ("src/backend/*",),
    ),
    Rule(
        r"(?<!asm )(?<!asm__ )\bvolatile\b",
        "volatile orders nothing between threads; use base/atomic.h",
        C_CODE,
        ("src/shm/base/once.h",),  # one load, which the compiler does not repeat
    ),
    Rule(
        calls("getenv secure_getenv"),
        "the environment is read once, by the table in base/config.c; add a row there",
        ("src/*",),
        ("src/shm/base/config.c",),
    ),
    Rule(
        r"\b(?:throw|try|catch)\b",
        "exceptions live in src/backend alone; return a shc_status",
        ("src/*",),
        ("src/backend/*",),
    ),
    Rule(
        r"\bMADV_DONTFORK\b",
        "a forked child that touches such a page dies; use MADV_WIPEONFORK or a pid check",
        C_CODE,
        (
            "src/shm/os/os_memory.c",
        ),  # HEAP-6: other processes' heaps, which no child has any business with
    ),
    Rule(
        calls("signal sigaction"),
        "signals belong to the application; poll, or use a pidfd",
        ("src/*",),
        (
            "src/backend/signals.cpp",  # ADR 15
            "src/backend/window.cpp",  # a method of torch's windows
        ),
    ),
    Rule(
        r"\bpthread_(?:mutex|cond|rwlock|spin|barrier)\w*",
        "nothing shared has a lock; for private state use one in comm/, or a .c of proto/ or exec/",
        ("src/*",),
        (*PRIVATE_STATE, "src/backend/condition.hpp"),
    ),
    Rule(
        r"\bpthread_once\w*",
        "what a process does once is done in base and the files named here; a group is a value",
        ("src/*",),
        (
            "src/shm/base/*",
            "src/shm/os/numa.c",
            "src/shm/comm/process.c",
            "src/shm/comm/info.c",
            "src/cuda_ipc/nvtx.c",  # a tool is loaded into the process
        ),
    ),
    Rule(
        calls("v?f?printf vdprintf dprintf f?puts f?putc putchar perror"),
        "the library speaks through base/log.h alone; use shc_log() or shc_fail()",
        ("src/shm/*",),
        ("src/shm/base/log.c", "src/shm/base/config.c", "src/shm/base/status.c"),
    ),
    Rule(
        r"Timed out after",
        "the words of a deadline that is over have one home; use SHC_TIMED_OUT of base/lateness.h",
        ("src/*",),
        ("src/shm/base/lateness.h",),
        view="strings",
    ),
    Rule(
        r"\bLOCAL_WORLD_SIZE\b",
        "locality is proved by the memory itself; never read a launcher's variable",
        ("src/*", "python/*", "setup.py"),
        # The bench's processes ask who started them; a launcher sets it.
        ("python/shmcoll/bench/run/started_by.py", "python/shmcoll/_launch.py"),
        view="strings",
    ),
    Rule(
        r"\bmultiprocessing\.shared_memory\b|\bmultiprocessing import .*\bshared_memory\b",
        "its resource tracker unlinks other processes' segments; use the C core",
        PYTHON,
        (THIS,),
    ),
    Rule(r"^[ \t]*#[ \t]*if[ \t]+0\b", "dead code; delete it, git remembers", C_CODE),
    Rule(
        r"\b(?:TODO|FIXME)\b(?!\(#\d+\))",
        "a task without an issue is forgotten; write TODO(#n)",
        C_CODE + PYTHON + ("*.cmake", "*CMakeLists.txt", "*.sh", "*.yml"),
        (THIS,),
        view="text",
    ),
    Rule(
        r"(?:(?<=-[IL])|(?<![\w.)}>~*/-]))/(?:" + "|".join(("work", "root", "home")) + r")\b",
        "a path of one machine; make it relative, or an argument",
        EVERYTHING,
        view="text",
    ),
)

CODE_LINE = re.compile(
    r"""(?:return(?:\s*[-(\d].*|\s+\w+\(.*\)|\s+(?:[A-Z_]+|true|false|st))?;
      | (?:if|for|while|switch)\s*\(.*\)\s*\{
      | (?:else|do)\s*\{
      | (?:[\w*&]+\s+)*[\w.\[\]>*&-]+\s*[-+*/|&^]?=\s*[^=.].*;   # an assignment
      | [\w.>:-]+\([^.]*\);                                      # a call and nothing else
      | (?:(?:const|static|unsigned)\s+)*(?:int|char|bool|float|double|size_t|u?int\d+_t|
            (?:struct|enum)\s+\w+)\s+\**\w+(?:\[\w*\])?;
      )$""",
    re.X,
)


def commented_out(source):
    """Lines of comments that are C. Lines that begin with `*` are documentation: left alone."""
    for comment in source.comments():
        for number, line in enumerate(comment.text.split("\n"), comment.first):
            line = re.sub(r"^\s*(?:/\*+|//+)|\*/\s*$", "", line).strip()
            if CODE_LINE.match(line):
                yield Finding(source.path, number, "commented-out code; delete it, git remembers")


def seen(rule, path, source, text):
    """The part of a file's text that a rule looks at."""
    if source:
        return getattr(source, rule.view)
    return text if rule.view == "text" or matches(path, PYTHON) else ""


def check(root):
    for path in find_files(root, *EVERYTHING):
        text = read(root, path)
        if text is None:
            continue
        source = Source(path, text) if path.endswith(C_FAMILY) else None
        for rule in RULES:
            if not matches(path, rule.where) or matches(path, rule.allowed):
                continue
            for match in re.finditer(rule.token, seen(rule, path, source, text), re.M):
                found = match.group().strip().rstrip("( ")
                yield Finding(path, line_of(text, match.start()), f"{found}: {rule.message}")
        if source:
            yield from commented_out(source)


if __name__ == "__main__":
    main(check, __doc__)
