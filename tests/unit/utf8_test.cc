// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/utf8.h"
}

#include <gtest/gtest.h>
#include <string>

static std::string mended(std::string text)
{
    shc_utf8_mend(text.data());
    return text;
}

static std::string name(const std::string &text, size_t capacity = 64)
{
    std::string copy(capacity + 1, '#');
    shc_utf8_copy_name(copy.data(), capacity, text.c_str());
    EXPECT_EQ(copy[capacity], '#');
    return copy.c_str();
}

TEST(Utf8, EveryCharacterOfUnicodeStays)
{
    for (unsigned code = 1; code <= 0x10ffff; code++) {
        if (code >= 0xd800 && code < 0xe000)
            continue;
        char at[5] = {};
        if (code < 0x80) {
            at[0] = static_cast<char>(code);
        } else if (code < 0x800) {
            at[0] = static_cast<char>(0xc0 | code >> 6);
            at[1] = static_cast<char>(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            at[0] = static_cast<char>(0xe0 | code >> 12);
            at[1] = static_cast<char>(0x80 | (code >> 6 & 0x3f));
            at[2] = static_cast<char>(0x80 | (code & 0x3f));
        } else {
            at[0] = static_cast<char>(0xf0 | code >> 18);
            at[1] = static_cast<char>(0x80 | (code >> 12 & 0x3f));
            at[2] = static_cast<char>(0x80 | (code >> 6 & 0x3f));
            at[3] = static_cast<char>(0x80 | (code & 0x3f));
        }
        ASSERT_EQ(shc_utf8_bytes(at), std::string(at).size()) << code;
    }
}

TEST(Utf8, WhatIsNoCharacterIsReplacedByteByByte)
{
    EXPECT_EQ(mended(""), "");
    EXPECT_EQ(mended("a\xff\xfe"
                     "b"),
              "a??b");
    EXPECT_EQ(mended("\xc3\xa4\xc3"), "\xc3\xa4?"); // cut
    EXPECT_EQ(mended("\xe2\x82"), "??");            // cut
    EXPECT_EQ(mended("\xf0\x9d\x84"
                     "x"),
              "???x");                                                          // cut
    EXPECT_EQ(mended("\xc0\xaf|\xe0\x80\xaf|\xf0\x80\x80\xaf"), "??|???|????"); // too long
    EXPECT_EQ(mended("\xed\xa0\x80|\xf4\x90\x80\x80|\x80"), "???|????|?");
    EXPECT_EQ(mended("two\nlines"), "two\nlines");
}

TEST(Utf8, ANameIsCutBetweenCharacters)
{
    EXPECT_EQ(name("abc"), "abc");
    EXPECT_EQ(name("abcdef", 4), "abc");
    EXPECT_EQ(name("a\xc3\xa4z", 4), "a\xc3\xa4");
    EXPECT_EQ(name("ab\xc3\xa4", 4), "ab");
    EXPECT_EQ(name("\xe2\x82\xac\xe2\x82\xac", 6), "\xe2\x82\xac");
    EXPECT_EQ(name("abc", 1), "");
    EXPECT_EQ(name("\xff\xff\xff", 3), "??");
}

TEST(Utf8, ANameHasOneLine)
{
    EXPECT_EQ(name("a\nb\tc\x7f\x1b"), "a?b?c??");
}
