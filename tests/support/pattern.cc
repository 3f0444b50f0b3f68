// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/pattern.h"

#include <regex.h>
#include <stdexcept>

namespace shmcoll::test
{

std::vector<std::string> find_pattern(const std::string &text, const std::string &pattern)
{
    regex_t compiled;
    if (regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NEWLINE) != 0)
        throw std::invalid_argument("no regular expression: " + pattern);
    std::vector<regmatch_t> parts(compiled.re_nsub + 1);
    std::vector<std::string> found;
    if (regexec(&compiled, text.c_str(), parts.size(), parts.data(), 0) == 0)
        for (const regmatch_t &part : parts)
            found.push_back(part.rm_so < 0
                                ? ""
                                : text.substr(static_cast<size_t>(part.rm_so),
                                              static_cast<size_t>(part.rm_eo - part.rm_so)));
    regfree(&compiled);
    return found;
}

bool has_pattern(const std::string &text, const std::string &pattern)
{
    return !find_pattern(text, pattern).empty();
}

// The first part is the longest one there.
bool fits_pattern(const std::string &text, const std::string &pattern)
{
    const std::vector<std::string> found = find_pattern(text, pattern);
    return !found.empty() && found[0] == text;
}

} // namespace shmcoll::test
