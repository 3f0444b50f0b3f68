// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// An exchange of short blocks by messages whose receives are posted before, and which the caller's thread awaits. A
// collective of gloo passes through a thread of its own twice, and each change of threads takes as long as the network.

#include "backend/message_waits.hpp"
#include "hosts/hosts.h"

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace shmcoll
{

// All blocks are of one size, which is the messages' tag too: hosts that disagree wait for one another, and no engine
// gets another size than it expects. One thread at a time begins calls and waits for them. Before the end of this:
// endConnections(), if wasUsed().
class PostedExchange
{
  public:
    using Done = std::function<void(const char *error)>; // nullptr: well

    PostedExchange(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<MessageWaits> waits);
    ~PostedExchange();
    PostedExchange(const PostedExchange &) = delete;
    PostedExchange &operator=(const PostedExchange &) = delete;

    // Are all blocks between two hosts of the size that the first call had? The same answer on all hosts. The first call
    // itself is not carried: gloo connects hosts in their first call, and a message would wait for that.
    bool carries(const std::vector<int64_t> &gives, const std::vector<int64_t> &gets);

    // Has a call been carried? Then the hosts are connected.
    bool wasUsed() const { return !peers_.empty(); }

    // Begins a call, as struct shc_fabric's exchange. The ticket's hooks carry it on, and `done` comes once: from them,
    // or from here. pre: carries().
    void begin(const void *in, void *out, const std::vector<int64_t> &blocks, shc_ticket *ticket,
               Done done);

    // Posts receives for the next call, which would do it otherwise: while the engine delivers what has just come, its
    // lock is held.
    void rest();

  private:
    struct Call;
    struct Peer;
    void prepare();
    void post(Peer &peer);
    Call copied(const void *in, void *out, const std::vector<int64_t> &blocks) const;
    void send(Call &call);
    bool advance();
    void carryOn();
    void finish(const char *error);
    template <class Step>
    void tried(Step step);

    c10::intrusive_ptr<c10d::Backend> backend_;
    size_t block_ = 0; // bytes
    std::vector<Peer> peers_;
    std::vector<Call> calls_; // the one that runs comes last; those before it were abandoned
    Done done_;               // of the one that runs; empty: it is over
    std::shared_ptr<MessageWaits> waits_;
};

} // namespace shmcoll
