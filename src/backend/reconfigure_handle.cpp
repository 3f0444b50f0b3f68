// SPDX-License-Identifier: BSD-3-Clause
#include "backend/reconfigure_handle.hpp"

#include "shm/shmcoll.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <charconv>
#include <random>

namespace shmcoll
{

namespace
{

constexpr size_t kMost = SHC_MAX_WORLD;
constexpr size_t kMostBytes = 256; // of a handle
constexpr size_t kMostOfHost = 64; // bytes of its name
constexpr size_t kFields = 7;

bool isPlain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

// What is left of any text for an error: short, and without control characters.
std::string shown(const std::string &text)
{
    std::string some = text.substr(0, 80);
    for (char &c : some)
        if (c < ' ' || c > '~')
            c = '?';
    return "\"" + some + (text.size() > some.size() ? "...\"" : "\"");
}

std::string plainHost(const std::string &host)
{
    std::string plain = host.empty() ? "unknown" : host.substr(0, kMostOfHost);
    for (char &c : plain)
        if (!isPlain(c))
            c = '_';
    return plain;
}

std::vector<std::string> fieldsOf(const std::string &text)
{
    std::vector<std::string> fields(1);
    for (const char c : text)
        if (c == ':')
            fields.emplace_back();
        else
            fields.back() += c;
    return fields;
}

bool readNumber(const std::string &field, int base, uint64_t &value)
{
    const char *end = field.data() + field.size();
    const auto result = std::from_chars(field.data(), end, value, base);
    return result.ec == std::errc() && result.ptr == end;
}

ReconfigureHandle parse(size_t index, const std::string &text)
{
    const std::vector<std::string> fields = fieldsOf(text.substr(0, kMostBytes));
    TORCH_CHECK_VALUE(fields[0] == "shmcoll", "shmcoll: reconfigure: handle ", index,
                      " is not one of shmcoll's: ", shown(text));
    TORCH_CHECK_VALUE(fields.size() < 2 || fields[1] == "1", "shmcoll: reconfigure: handle ", index,
                      " is of another version of shmcoll: ", shown(text));
    ReconfigureHandle handle;
    bool good = text.size() <= kMostBytes && fields.size() == kFields;
    if (good) {
        handle.host = fields[3];
        good = readNumber(fields[2], 10, handle.number) && !handle.host.empty() &&
               handle.host.size() <= kMostOfHost &&
               std::all_of(handle.host.begin(), handle.host.end(), isPlain) &&
               readNumber(fields[4], 10, handle.pid) && readNumber(fields[5], 16, handle.nonce) &&
               readNumber(fields[6], 10, handle.generation);
    }
    TORCH_CHECK_VALUE(good && handle.text() == text, "shmcoll: reconfigure: handle ", index,
                      " is damaged: ", shown(text));
    return handle;
}

// FNV-1a. (std::hash may differ between two processes' libraries.)
void mix(uint64_t &hash, const std::string &text)
{
    for (const char c : text + "\n")
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
}

} // namespace

ReconfigureHandle ReconfigureHandle::make(uint64_t number, const std::string &host, uint64_t pid)
{
    std::random_device random;
    const uint64_t high = random();
    return {number, plainHost(host), pid, (high << 32) | random(), 0};
}

std::string ReconfigureHandle::text() const
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(nonce));
    return "shmcoll:1:" + std::to_string(number) + ":" + host + ":" + std::to_string(pid) + ":" +
           hex + ":" + std::to_string(generation);
}

std::string ReconfigureHandle::name() const
{
    return "rank " + std::to_string(number) + " (pid " + std::to_string(pid) + " on host " + host +
           ")";
}

ReconfigureHandles ReconfigureHandles::read(const std::vector<std::string> &texts, bool ordered)
{
    TORCH_CHECK_VALUE(!texts.empty(), "shmcoll: reconfigure: no handles; this rank's own is needed "
                                      "in any case");
    TORCH_CHECK_VALUE(texts.size() <= kMost, "shmcoll: reconfigure: ", texts.size(),
                      " handles; a group has ", kMost, " ranks at most");
    ReconfigureHandles all;
    all.hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < texts.size(); i++)
        all.handles.push_back(parse(i, texts[i]));
    if (!ordered) // their order is nobody's, and must be the same on all ranks
        std::sort(all.handles.begin(), all.handles.end(), [](const auto &a, const auto &b) {
            return a.number != b.number ? a.number < b.number : a.text() < b.text();
        });
    for (const ReconfigureHandle &handle : all.handles) {
        const auto same = [&](const ReconfigureHandle &other) {
            return other.nonce == handle.nonce;
        };
        TORCH_CHECK_VALUE(std::count_if(all.handles.begin(), all.handles.end(), same) == 1,
                          "shmcoll: reconfigure: two handles are of ", handle.name());
        mix(all.hash, handle.text());
    }
    return all;
}

int ReconfigureHandles::placeOf(const ReconfigureHandle &own) const
{
    const auto isOwn = [&](const ReconfigureHandle &other) { return other.nonce == own.nonce; };
    const auto found = std::find_if(handles.begin(), handles.end(), isOwn);
    TORCH_CHECK_VALUE(found != handles.end(),
                      "shmcoll: reconfigure: the handles do not name this "
                      "rank, ",
                      own.name(), ": a rank that is left out does not call it");
    TORCH_CHECK_VALUE(
        found->text() == own.text(), "shmcoll: reconfigure: this rank's handle is an old one: ",
        found->generation < own.generation ? "the group has been reconfigured since. " : "",
        "Ask all ranks for their handles after every reconfigure");
    return static_cast<int>(found - handles.begin());
}

} // namespace shmcoll
