// SPDX-License-Identifier: BSD-3-Clause

// What a hostile or damaged peer does to the shared memory, next to a
// thread that keeps to the protocol.
#pragma once

#include "tests/support/ranks.h"

#include <atomic>
#include <cstdint>

namespace shmcoll::test
{

enum class Lies { kOfCalls, kOfMessages, kOfHeaps };

// Changes words of the group's segments, and mostly changes them back, until `over`: tables of sizes, the
// words of a call line, lines and words of messages, places in heaps and their names, offers, identities,
// reasons. In this rank's own memory, or `everywhere`. The seed decides which words and values.
void tell_lies(shc_comm *comm, Lies lies, bool everywhere, uint64_t seed,
               const std::atomic<bool> &over);

// SHMCOLL_LIES_SEED, or any number.
uint64_t first_seed();

// If a signal or a sanitizer ends the process, it prints this first.
void note_seed(uint64_t seed);

} // namespace shmcoll::test
