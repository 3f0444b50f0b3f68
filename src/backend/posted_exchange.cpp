// SPDX-License-Identifier: BSD-3-Clause
#include "backend/posted_exchange.hpp"

#include "backend/engine_work.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <cstring>

namespace shmcoll
{

struct PostedExchange::Call {
    // A copy: a message may be under way when nobody waits for it any longer.
    std::vector<char> given;
    std::vector<size_t> at; // where a host's block begins, in `given` and in `out`
    char *out = nullptr;
    std::vector<c10::intrusive_ptr<c10d::Work>> sends;
    size_t sent = 0; // of these are known to have ended
};

struct PostedExchange::Peer {
    int host;
    std::vector<char> block; // the engine writes here
    Arrival arrival;
    c10::intrusive_ptr<c10d::Work> receive;
    bool isTaken; // by the newest call
};

PostedExchange::PostedExchange(c10::intrusive_ptr<c10d::Backend> backend,
                               std::shared_ptr<MessageWaits> waits)
    : backend_(std::move(backend)), waits_(std::move(waits))
{
}

PostedExchange::~PostedExchange() = default;

bool PostedExchange::carries(const std::vector<int64_t> &gives, const std::vector<int64_t> &gets)
{
    if (gives.size() < 2)
        return false;
    const auto own = static_cast<size_t>(backend_->getRank());
    const auto first = static_cast<size_t>(gives[own == 0 ? 1 : 0]);
    const size_t connected = block_;
    if (connected == 0)
        block_ = first;
    for (size_t host = 0; host < gives.size(); host++)
        if (host != own && (gives[host] != gets[host] || static_cast<size_t>(gives[host]) != first))
            return false;
    return first == connected && gives[own] == gets[own];
}

void PostedExchange::post(Peer &peer)
{
    std::vector<at::Tensor> tensors{bytesAt(peer.block.data(), block_)};
    peer.arrival.mark(peer.block.data(), block_);
    peer.receive = backend_->recv(tensors, peer.host, static_cast<int>(block_));
}

void PostedExchange::send(Call &call)
{
    for (const Peer &peer : peers_) {
        const char *from = call.given.data() + call.at[static_cast<size_t>(peer.host)];
        std::vector<at::Tensor> tensors{bytesAt(from, block_)};
        call.sends.push_back(backend_->send(tensors, peer.host, static_cast<int>(block_)));
    }
}

void PostedExchange::begin(const void *in, void *out, const std::vector<int64_t> &blocks,
                           shc_ticket *ticket, Done done)
{
    static const shc_ticket_hooks hooks = {
        [](void *arg) { static_cast<PostedExchange *>(arg)->carryOn(); },
        [](void *arg) { static_cast<PostedExchange *>(arg)->finish("nobody waits for it"); },
    };
    shc_ticket_set_hooks(ticket, &hooks, this);
    done_ = std::move(done);
    tried([&] {
        prepare();
        calls_.push_back(copied(in, out, blocks));
        send(calls_.back());
    });
}

PostedExchange::Call PostedExchange::copied(const void *in, void *out,
                                            const std::vector<int64_t> &blocks) const
{
    const auto own = static_cast<size_t>(backend_->getRank());
    const auto *bytes = static_cast<const char *>(in);
    Call call;
    size_t all = 0;
    for (const int64_t block : blocks) {
        call.at.push_back(all);
        all += static_cast<size_t>(block);
    }
    call.given.assign(bytes, bytes + all);
    call.out = static_cast<char *>(out);
    std::memcpy(call.out + call.at[own], bytes + call.at[own], static_cast<size_t>(blocks[own]));
    return call;
}

// Before a call's messages: receives for those of the others.
void PostedExchange::prepare()
{
    if (peers_.empty()) {
        for (int host = 0; host < backend_->getSize(); host++)
            if (host != backend_->getRank())
                peers_.push_back({host, std::vector<char>(block_), {}, nullptr, false});
    }
    for (Peer &peer : peers_) {
        peer.isTaken = false;
        if (!peer.receive)
            post(peer);
    }
}

// False: the wait was called off.
bool PostedExchange::advance()
{
    Call &call = calls_.back();
    for (Peer &peer : peers_) {
        if (peer.isTaken)
            continue;
        if (!waits_->await(*peer.receive, &peer.arrival))
            return false;
        std::memcpy(call.out + call.at[static_cast<size_t>(peer.host)], peer.block.data(), block_);
        peer.isTaken = true;
        peer.receive.reset();
    }
    for (; call.sent < call.sends.size(); call.sent++)
        if (!waits_->await(*call.sends[call.sent]))
            return false;
    calls_.pop_back();
    return true;
}

void PostedExchange::rest()
{
    const at::NoGradGuard guard;
    const at::DisableRecordFunctionGuard unseen;
    for (Peer &peer : peers_) {
        try {
            if (!peer.receive)
                post(peer);
        } catch (...) { // the host has left, or been lost: the next call's error
        }
    }
}

void PostedExchange::carryOn()
{
    tried([this] {
        if (advance())
            finish(nullptr);
        else if (waits_->isStopped())
            finish(MessageWaits::kClosing);
    });
}

// An error ends the call.
template <class Step>
void PostedExchange::tried(Step step)
{
    try {
        const at::NoGradGuard guard;
        const at::DisableRecordFunctionGuard unseen; // a profile shows the group's calls
        step();
    } catch (const std::exception &error) {
        finish(wordsOf(error).c_str());
    } catch (...) {
        finish("");
    }
}

void PostedExchange::finish(const char *error)
{
    Done done;
    std::swap(done, done_);
    if (done)
        done(error);
}

} // namespace shmcoll
