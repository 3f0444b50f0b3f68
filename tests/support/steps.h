// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A signal (SIGTRAP) after each single instruction of the calling thread, to test what a handler may find
// anywhere.

namespace shmcoll::test
{

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SHMCOLL_SINGLE_STEPS

inline void begin_steps()
{
    __asm__ __volatile__("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
}

inline void end_steps()
{
    __asm__ __volatile__("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}
#endif

} // namespace shmcoll::test
