// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Extended regular expressions of POSIX, regex(7), in which a dot is no end of a line. <regex> takes each file that
// uses it two seconds to compile.

#include <string>
#include <vector>

namespace shmcoll::test
{

// The first part of the text that the pattern fits, and after it the pattern's groups; nothing if it fits none.
std::vector<std::string> find_pattern(const std::string &text, const std::string &pattern);

bool has_pattern(const std::string &text, const std::string &pattern);  // anywhere in it
bool fits_pattern(const std::string &text, const std::string &pattern); // all of it

} // namespace shmcoll::test
