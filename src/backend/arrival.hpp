// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A look at whether a message has come, where the engine has none: its wait puts the thread to sleep at once.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shmcoll
{

// A mark at the end of the memory that a receive fills. It goes when the message comes. Only a hint: the message may
// have the mark's own bytes, and the engine may still be busy with it.
class Arrival
{
  public:
    // Before the receive is posted.
    void mark(char *memory, size_t bytes)
    {
        word_ = nullptr;
        if (bytes < sizeof kMark)
            return;
        char *last = memory + bytes - sizeof kMark;
        std::memcpy(last, &kMark, sizeof kMark);
        word_ = last;
    }

    // For once: a message that did not come soon may be hours late.
    void forget() { word_ = nullptr; }

    // The kernel writes these bytes, for another thread. What they say is used for nothing else. A caller in a loop makes
    // a system call between two looks, so the compiler keeps both.
    bool isAwaited() const
    {
        return word_ != nullptr && std::memcmp(word_, &kMark, sizeof kMark) == 0;
    }

  private:
    static constexpr uint64_t kMark = 0xa55a'7e1d'c3b2'9f01;

    const char *word_ = nullptr; // nullptr: nobody looks
};

} // namespace shmcoll
