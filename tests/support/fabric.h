// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Engines between the "hosts" of one process: each line and each rail is a set of calls that meet by their number.
// A thread of its own ends them, as an engine's does; but exchanges of the lines of odd hosts go on in the thread that
// waits for them. An even number of hosts has messages, too. They can be told to misbehave.

extern "C" {
#include "hosts/hosts.h"
}

#include <functional>
#include <memory>

namespace shmcoll::test
{

class Network
{
  public:
    // What becomes of a call, by the number of its rail (-1: the line), its host and its number there.
    // kLate: it ends when release_late() is called, or the network goes.
    // kBroken: it fails at once, whether the other hosts call or not.
    enum class Fate { kGood, kRefused, kFails, kLate, kBroken };
    using Chooser = std::function<Fate(int rail, int host, int call)>;

    explicit Network(int hosts, Chooser fate = nullptr);
    Network(const Network &) = delete;
    ~Network();

    shc_fabric line(int host);
    shc_fabric rail(int rail, int host);

    // Ends all calls that are kLate, or still wait for another host: their memory must be there.
    void release_late();

    // From now on no call monitors a host; `fails`: it is refused, else there is no such call.
    void refuse_monitors(bool fails);

    // From now on what that host exchanges on its line has this byte in that place, for all hosts.
    void change(int host, size_t place, char byte);

    // Lines that are made from now on have no messages: more calls are long ones.
    void refuse_messages();

    // From now on no message between leaders comes.
    void lose_messages();

    // The connections of that host end, for those who monitor it; also for those who begin to.
    void lose(int host);

    bool monitors(int host, int of);
    int calls();

  private:
    class Switch;
    const std::unique_ptr<Switch> switch_;
};

} // namespace shmcoll::test
