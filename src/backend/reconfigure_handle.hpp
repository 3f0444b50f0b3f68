// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The handle by which a process takes part in ReconfigurableGroup::reconfigure(). Programs carry handles from
// process to process, so nothing of one is believed before it was read here.

#include <cstdint>
#include <string>
#include <vector>

namespace shmcoll
{

// As text: "shmcoll:1:<number>:<host>:<pid>:<nonce>:<generation>"; 1 is the version of this form.
struct ReconfigureHandle {
    uint64_t number = 0; // the rank now; a set of handles is sorted by it
    std::string host;    // for messages
    uint64_t pid = 0;    // for messages
    uint64_t nonce = 0;  // of the group in this process, drawn at random
    uint64_t generation =
        0; // counts its reconfigurations, so that an old handle is told from a new one

    // `host` may be any text.
    static ReconfigureHandle make(uint64_t number, const std::string &host, uint64_t pid);
    std::string text() const;
    std::string name() const; // "rank 1 (pid 12 on host h)"
};

// Handles in the order of ranks, and a number that is the same only for the same texts in the same order.
struct ReconfigureHandles {
    std::vector<ReconfigureHandle> handles;
    uint64_t hash = 0;

    // Throws a ValueError: none, too many, one twice, or one that no shmcoll of this version made.
    static ReconfigureHandles read(const std::vector<std::string> &texts, bool ordered);

    // Throws a ValueError if `own` is not there, or there with another generation.
    int placeOf(const ReconfigureHandle &own) const;
};

} // namespace shmcoll
