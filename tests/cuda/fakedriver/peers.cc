// SPDX-License-Identifier: BSD-3-Clause
// What a stand-in GPU gets wrong with memory that is not its own: the knobs p2p and host.
#include "tests/cuda/fakedriver/fake.h"

#include <cstring>
#include <map>

namespace fake
{
namespace
{

[[noreturn]] void never()
{
    for (;;)
        std::this_thread::sleep_for(std::chrono::seconds(1));
}

// What was read there first.
const char *as_it_was(shc_cu_address from, size_t bytes)
{
    static std::mutex *lock = new std::mutex;
    static auto *seen = new std::map<std::pair<shc_cu_address, size_t>, std::vector<char>>;
    std::lock_guard<std::mutex> guard(*lock);
    std::vector<char> &first = (*seen)[{from, bytes}];
    if (first.empty())
        first.assign(reinterpret_cast<const char *>(from),
                     reinterpret_cast<const char *>(from) + bytes);
    return first.data();
}

} // namespace

void await_peers(shc_cu_address to, shc_cu_address from, int device)
{
    shc_cu_address base;
    size_t bytes;
    for (shc_cu_address one : {to, from})
        if (fault_at(one, device, &base, &bytes) == P2p::kHangs)
            never();
}

void copy_between(shc_cu_address to, shc_cu_address from, size_t bytes, int device)
{
    shc_cu_address base = 0;
    size_t size = 0;
    const P2p fault = fault_at(from, device, &base, &size);
    const char *source = reinterpret_cast<const char *>(from);
    if (fault == P2p::kStale)
        source = as_it_was(from, bytes);
    if (fault == P2p::kWraps && from - base >= size / 2)
        source -= size / 2;
    memmove(reinterpret_cast<void *>(to), source, bytes);
    if (fault == P2p::kLies)
        reinterpret_cast<unsigned char *>(to)[bytes / 2] ^= 1;
}

PeerLoads::PeerLoads(std::vector<std::vector<char>> &parameters, int device)
{
    if (knobs().p2p != P2p::kLoadsLie && knobs().p2p != P2p::kLoadsHang)
        return;
    for (auto &one : parameters)
        for (size_t at = 0; at + sizeof(shc_cu_address) <= one.size(); at += sizeof at) {
            shc_cu_address address, base;
            size_t bytes;
            memcpy(&address, &one[at], sizeof address);
            const P2p fault = fault_at(address, device, &base, &bytes);
            if (fault == P2p::kLoadsHang)
                never();
            if (fault != P2p::kLoadsLie)
                continue;
            const char *from = reinterpret_cast<const char *>(address);
            std::vector<char> &wrong = held_.emplace_back(from, from + (base + bytes - address));
            for (size_t i = 0; i < wrong.size(); i += 64)
                wrong[i] ^= 1;
            char *instead = wrong.data();
            memcpy(&one[at], &instead, sizeof instead);
        }
}

} // namespace fake
