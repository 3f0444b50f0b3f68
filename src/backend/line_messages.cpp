// SPDX-License-Identifier: BSD-3-Clause
#include "backend/line_messages.hpp"

#include "backend/engine_work.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <cstring>

namespace shmcoll
{

namespace
{

// Records, which are shorter, and monitors have smaller tags.
int tagOf(size_t bytes)
{
    return static_cast<int>(SHC_HOSTS_MESSAGE_BYTES + bytes);
}

} // namespace

// Its memory is its own: the message may be under way when nobody waits for it any longer.
struct LineMessages::Message {
    LineMessages *all;
    std::vector<char> memory;
    void *out; // of a receive
    Done done;
    c10::intrusive_ptr<c10d::Work> work;
};

LineMessages::LineMessages(c10::intrusive_ptr<c10d::Backend> backend,
                           std::shared_ptr<MessageWaits> waits)
    : backend_(std::move(backend)), waits_(std::move(waits))
{
}

LineMessages::~LineMessages() = default;

void LineMessages::end(std::unique_ptr<Message> message, const char *error)
{
    const Done done = std::move(message->done);
    message.reset();
    done(error);
}

void LineMessages::carryOn(Message *message)
{
    try {
        if (message->all->waits_->await(*message->work)) {
            if (message->out != nullptr)
                std::memcpy(message->out, message->memory.data(), message->memory.size());
            end(std::unique_ptr<Message>(message), nullptr);
        } else if (message->all->waits_->isStopped()) {
            abandon(message);
        }
    } catch (const std::exception &error) { // its connection has ended
        end(std::unique_ptr<Message>(message), wordsOf(error).c_str());
    } catch (...) {
        end(std::unique_ptr<Message>(message), "");
    }
}

void LineMessages::abandon(Message *message)
{
    const Done done = std::move(message->done);
    message->all->abandoned_.emplace_back(message);
    done("nobody waits for it");
}

template <class Start>
void LineMessages::begin(std::unique_ptr<Message> message, Start start, shc_ticket *ticket)
{
    wasUsed_ = true;
    static const shc_ticket_hooks hooks = {
        [](void *arg) { carryOn(static_cast<Message *>(arg)); },
        [](void *arg) { abandon(static_cast<Message *>(arg)); },
    };
    try {
        const at::NoGradGuard guard;
        const at::DisableRecordFunctionGuard unseen; // a profile shows the group's calls
        std::vector<at::Tensor> tensors{bytesAt(message->memory.data(), message->memory.size())};
        message->work = start(tensors, tagOf(message->memory.size()));
        shc_ticket_set_hooks(ticket, &hooks, message.release());
    } catch (const std::exception &error) {
        end(std::move(message), wordsOf(error).c_str());
    } catch (...) {
        end(std::move(message), "");
    }
}

void LineMessages::send(const void *data, size_t bytes, int host, shc_ticket *ticket, Done done)
{
    const auto *from = static_cast<const char *>(data);
    auto message = std::make_unique<Message>(
        Message{this, {from, from + bytes}, nullptr, std::move(done), {}});
    begin(
        std::move(message),
        [&](std::vector<at::Tensor> &tensors, int tag) {
            return backend_->send(tensors, host, tag);
        },
        ticket);
}

void LineMessages::receive(void *data, size_t bytes, int host, shc_ticket *ticket, Done done)
{
    auto message = std::make_unique<Message>(
        Message{this, std::vector<char>(bytes), data, std::move(done), {}});
    begin(
        std::move(message),
        [&](std::vector<at::Tensor> &tensors, int tag) {
            return backend_->recv(tensors, host, tag);
        },
        ticket);
}

} // namespace shmcoll
