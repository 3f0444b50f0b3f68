// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// What the glue exports: to shmcoll._C (classes), and to Python by ctypes (functions).

#define SHMCOLL_EXPORT __attribute__((visibility("default")))

extern "C" {

// The thread that runs Python's signal handlers, as threading.get_ident() returns it.
SHMCOLL_EXPORT void shmcoll_set_main_thread(unsigned long ident);

// In a forked child, whose only thread this is.
SHMCOLL_EXPORT void shmcoll_after_fork_in_child();

// This process says goodbye to its groups. After that the interpreter may end, if `forget_python` is not
// 0. The interpreter's lock is held.
SHMCOLL_EXPORT void shmcoll_leave(int forget_python);

// From now on, this thread's CPU tensors of so many bytes and more lie in shared memory; 0: none do. Returns
// what held before, or -1, with nothing changed, if another allocator keeps its place in torch.
SHMCOLL_EXPORT long long shmcoll_share_allocations(long long bytes);
}
