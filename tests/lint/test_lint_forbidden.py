# SPDX-License-Identifier: BSD-3-Clause
"""forbidden.py can fail."""

import unittest

import forbidden
from planting import LintTest, make_repository

HOME = "/" + "home/somebody/x"  # in pieces: this file is looked at too
OS, PROTO, BACKEND = "src/shm/os/x.c", "src/shm/proto/x.c", "src/backend/x.cpp"

# (a line, where it is wrong, where it is right or None for nowhere)
PLANTS = (
    *(
        (f"x = {name}(1);", PROTO, OS)
        for name in "mmap munmap open close read shm_open fallocate posix_fallocate "
        "ftruncate futex syscall fork kill pthread_create sched_setaffinity sched_yield poll "
        "eventfd getrandom mbind madvise memfd_create linkat pidfd_open io_uring_setup "
        "numa_available fopen nanosleep gettid".split()
    ),
    ("x = mmap(1);", BACKEND, OS),
    ("x = ::eventfd(1);", "src/cuda_ipc/x.c", OS),
    ("x = socket(1);", "src/shm/base/x.h", OS),
    ("x = getpid();", PROTO, "src/shm/base/log.c"),
    ("clock_gettime(1, &x);", PROTO, "src/shm/base/clock.h"),
    ("clock_gettime(1, &x);", PROTO, "src/shm/base/log.c"),
    ("__atomic_load_n(p, 0);", "tests/unit/x.cc", "src/shm/base/atomic.h"),
    ("#include <stdatomic.h>", PROTO, "src/shm/base/atomic.h"),
    ("_Atomic int x;", BACKEND, "src/shm/base/atomic.h"),
    ("x.load(std::memory_order_relaxed);", BACKEND, None),
    ("__sync_synchronize();", PROTO, None),
    ("std::atomic_thread_fence(0);", "tests/unit/x.cc", "tests/models/relacy/x.h"),
    ("atomic_signal_fence(0);", PROTO, "src/shm/base/atomic.h"),
    ("std::atomic<int> x;", "src/cuda_ipc/x.cpp", BACKEND),
    ("volatile int x;", PROTO, "src/shm/base/once.h"),
    ("volatile int x;", BACKEND, None),
    ('x = getenv("X");', BACKEND, "src/shm/base/config.c"),
    ("try { x(); }", "src/cuda_ipc/x.cpp", BACKEND),
    ("throw x;", "src/shm/proto/x.h", BACKEND),
    ("x = MADV_DONTFORK;", OS, None),
    ("signal(1, x);", OS, None),
    ("sigaction(1, x, 0);", BACKEND, None),
    ("pthread_mutex_t x;", "src/shm/proto/layout.h", "src/shm/comm/x.h"),
    ("pthread_cond_wait(x, y);", "src/shm/coll/x.c", PROTO),
    ("pthread_once(x, y);", PROTO, "src/shm/base/config.c"),
    ('printf("x");', PROTO, "src/shm/base/status.c"),
    ('fprintf(stderr, "x");', OS, "src/shm/base/config.c"),
    ('x = "Timed out after ";', "src/cuda_ipc/x.c", "src/shm/base/lateness.h"),
    ('x = "LOCAL_WORLD_SIZE";', BACKEND, "tests/unit/x.cc"),
    ('x = os.environ["LOCAL_WORLD_SIZE"]', "python/shmcoll/x.py", "tests/python/x.py"),
    ("from multiprocessing import shared_memory", "tests/python/x.py", None),
    ("import multiprocessing.shared_memory", "python/shmcoll/x.py", None),
    ("#if 0", PROTO, None),
    ("/* TODO: x */", PROTO, None),
    ("# FIXME x", "python/shmcoll/x.py", None),
    (f'x = "{HOME}"', "tests/python/x.py", None),
    (f"See {HOME}.", "docs/x.md", None),
    (f"-I{HOME}", "x.cmake", None),
)

# Lines that look like faults and are none.
INNOCENT = (
    (PROTO, 'x = "mmap(1)"; /* open() is elsewhere, LOCAL_WORLD_SIZE is never read */'),
    (PROTO, "x = shc_os_open(1) + s->read(1) + s.poll(1) + shc_time(2);"),
    (PROTO, "snprintf(x, 1, y); vsnprintf(x, 1, y, z);"),
    (PROTO, '__asm__ __volatile__("");'),
    (PROTO, "/* TODO(#12): x */"),
    (PROTO, "pthread_mutex_lock(&x);"),
    ("src/shm/proto/x.h", "int x __attribute__((format(printf, 1, 2)));"),
    ("src/cuda_ipc/x.cu", 'asm volatile("");'),
    ("tests/unit/x.cc", "std::atomic<int> x; kill(1, 9); try { } catch (...) { }"),
    (BACKEND, '#include "backend/work.hpp"'),
    (BACKEND, "void Backend::send(int x); auto y = z.clone();"),
    ("docs/x.md", "TODO is a word; build/home, ../root/x and https://a.b/root/x are fine"),
)

COMMENTED_OUT = (
    "// x = f(1);",
    "/* shc_ring_push(r, 1); */",
    "// if (a == 1) {",
    "// else {",
    "/* return -1; */",
    "int y; /* uint32_t old; */",
    "/* a->b += 2; */",
)
NOT_CODE = (
    "/* The owner writes; the others read; */",
    "/* returns early; see f(). */",
    "/*\n * shc_comm_create(&config, &comm);\n */",
    "/* W: the producer; */",
    "// the owner;",
    "/* x == y; */",
)


class Forbidden(LintTest):
    def test_every_row_of_the_table_finds_its_plant(self):
        met = set()
        for line, wrong, right in PLANTS:
            with self.subTest(line):
                start = "x\n\n" if not wrong.endswith(".md") else "\n\n"
                mended = {right: start + line + "\n"} if right else {wrong: "x\n"}
                faulty = {wrong: f"{start}{line}@@\n"}
                self.expect(forbidden.check, faulty, mended)
                root, _ = self.plant(faulty)
                met.update(str(finding).split(": ", 2)[2] for finding in forbidden.check(root))
        self.assertEqual({rule.message for rule in forbidden.RULES}, met)

    def test_innocent_lines(self):
        for path, line in INNOCENT:
            with self.subTest(line):
                self.expect_clean(forbidden.check, {path: line + "\n"})

    def test_commented_out_code(self):
        for line in COMMENTED_OUT:
            with self.subTest(line):
                faulty = {PROTO: f"int x;\n{line}@@\n"}
                self.expect(forbidden.check, faulty, {PROTO: "int x;\n"}, "commented-out")
        for line in NOT_CODE:
            with self.subTest(line):
                self.expect_clean(forbidden.check, {PROTO: f"int x;\n{line}\n"})

    def test_generated_and_binary_files_are_not_looked_at(self):
        cache = {"out-2/CMakeCache.txt": HOME + "\n", "out-2/a/x.md": HOME + "\n"}
        other = {"build/x.md": HOME + "\n", "x.bin": "\0" + HOME}
        self.expect_clean(forbidden.check, {**cache, **other})

    def test_command(self):
        self.expect_command("forbidden", {PROTO: "\nint x = open(y);@@\n"})

    def test_a_git_tree_is_what_git_would_add(self):
        files = {".gitignore": "/out/\n", "out/x.md": HOME + "\n", "new.md": HOME + "@@\n"}
        root, places = self.plant(files)
        make_repository(root)
        self.assertEqual(places, {(f.path, f.line) for f in forbidden.check(root)})


if __name__ == "__main__":
    unittest.main()
