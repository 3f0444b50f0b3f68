/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Texts from outside, such as names and values of variables, may be no UTF-8, and a cut at a number of bytes may go
 * through a character. Python then raises an error of its own in the place of ours.
 */

#include "shm/base/attrs.h"
#include <stdbool.h>

#define SHC_NO_CHARACTER '?'

/* The bytes of the character at `at`, in a text that ends with 0; 0: it is none (RFC 3629). */
SHC_INLINE size_t shc_utf8_bytes(const char *at)
{
    const unsigned char first = (unsigned char)at[0];
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    for (size_t i = 1; i < bytes; i++) {
        if (((unsigned char)at[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Longer than its value needs; a surrogate; above U+10FFFF. */
    const unsigned char second = (unsigned char)at[1];
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
        return 0;
    return bytes;
}

/* Makes a text UTF-8, in place. */
SHC_INLINE void shc_utf8_mend(char *text)
{
    while (*text) {
        const size_t bytes = shc_utf8_bytes(text);
        if (bytes == 0)
            *text = SHC_NO_CHARACTER;
        text += bytes ? bytes : 1;
    }
}

/* Copies as many characters of a name as there is room for. Those that would end or move a line are none. */
SHC_INLINE void shc_utf8_copy_name(char *to, size_t capacity, const char *from)
{
    size_t used = 0;
    while (*from) {
        const size_t bytes = shc_utf8_bytes(from);
        const bool shows = bytes > 1 || (bytes == 1 && *from >= ' ' && *from != 0x7f);
        if (used + (shows ? bytes : 1) >= capacity)
            break;
        if (shows) {
            for (size_t i = 0; i < bytes; i++)
                to[used++] = from[i];
        } else {
            to[used++] = SHC_NO_CHARACTER;
        }
        from += bytes ? bytes : 1;
    }
    to[used] = '\0';
}
