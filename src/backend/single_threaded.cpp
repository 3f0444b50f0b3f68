// SPDX-License-Identifier: BSD-3-Clause
// The headers of C++ ask this variable of glibc 2.32 whether shared_ptr may count without atomic operations.
// This one is not exported; it says no, and lets the glue load with an older glibc.

extern "C" char __libc_single_threaded;
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
