/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Memory that another process may change at any time, also between two loads of one field. What is
 * read there is copied once into memory of this process, checked, and then used; the compiler must
 * not load it again, which it may do with a plain load. docs/internals/protocol/trust.md
 * says which values these are; tests/lint/once.py finds reads that do not come through here.
 *
 * Neither orders anything: the edge that makes a value visible is the caller's.
 */

#include "shm/base/attrs.h"

/* One field of 1, 2, 4 or 8 bytes, by one load. */
#define SHC_READ_ONCE(field) (*(const volatile __typeof__(field) *)&(field))

/* That many bytes. They may be from different moments, so the copy is checked: no other process can change
 * it. */
SHC_INLINE void shc_copy_once(void *to, const void *from, size_t bytes)
{
    __builtin_memcpy(to, from, bytes);
    /* The copy is read back, so that no later use of it is a load from the source. */
    __asm__ __volatile__("" : : "r"(to) : "memory");
}

/* The length in bytes of the UTF-8 sequence that begins there, as its first bytes give it; 0: no sequence
 * begins there. */
SHC_INLINE size_t shc_text_sequence(const unsigned char *text)
{
    const size_t bytes = text[0] < 0x80   ? 1
                         : text[0] < 0xc2 ? 0
                         : text[0] < 0xe0 ? 2
                         : text[0] < 0xf0 ? 3
                                          : 4;
    if (text[0] > 0xf4 || (bytes == 1 && (text[0] < ' ' || text[0] == 0x7f) && text[0] != '\n'))
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if (text[i] < 0x80 || text[i] > 0xbf)
            return 0;
    return bytes;
}

/* A text of at most capacity - 1 bytes, for messages. Each byte that cannot be printed becomes '?'. */
SHC_INLINE void shc_copy_text_once(char *to, const char *from, size_t capacity)
{
    shc_copy_once(to, from, capacity - 1);
    to[capacity - 1] = '\0';
    for (size_t bytes = 0; *to; to += bytes ? bytes : 1) {
        bytes = shc_text_sequence((const unsigned char *)to);
        if (bytes == 0)
            *to = '?';
    }
}
