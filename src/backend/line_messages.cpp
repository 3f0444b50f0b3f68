// SPDX-License-Identifier: BSD-3-Clause
#include "backend/line_messages.hpp"

#include "backend/engine_work.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

namespace shmcoll
{

namespace
{

struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::shared_ptr<MessageWaits> waits;
    LineMessages::Done done;
};

// gloo lets go of the memory with the work.
void end(void *arg, const char *error)
{
    const std::unique_ptr<Message> message(static_cast<Message *>(arg));
    message->work.reset();
    message->done(error);
}

void carryOn(void *arg)
{
    const auto *message = static_cast<Message *>(arg);
    try {
        if (message->waits->await(*message->work))
            end(arg, nullptr);
        else if (message->waits->isStopped())
            end(arg, MessageWaits::kClosing);
    } catch (const std::exception &error) {
        end(arg, wordsOf(error).c_str());
    }
}

void abandon(void *arg)
{
    end(arg, "nobody waits for it");
}

// Records, which are shorter, and monitors have smaller tags.
int tagOf(size_t bytes)
{
    return static_cast<int>(SHC_HOSTS_MESSAGE_BYTES + bytes);
}

} // namespace

LineMessages::LineMessages(c10::intrusive_ptr<c10d::Backend> backend,
                           std::shared_ptr<MessageWaits> waits)
    : backend_(std::move(backend)), waits_(std::move(waits))
{
}

template <class Start>
void LineMessages::begin(Start start, shc_ticket *ticket, Done done)
{
    static const shc_ticket_hooks hooks = {carryOn, abandon};
    try {
        const at::NoGradGuard guard;
        const at::DisableRecordFunctionGuard unseen; // a profile shows the group's calls
        auto message = std::make_unique<Message>(Message{start(), waits_, done});
        shc_ticket_set_hooks(ticket, &hooks, message.release());
    } catch (const std::exception &error) {
        done(wordsOf(error).c_str());
    }
}

void LineMessages::send(const void *data, size_t bytes, int host, shc_ticket *ticket, Done done)
{
    const auto start = [&] {
        std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
        return backend_->send(tensors, host, tagOf(bytes));
    };
    begin(start, ticket, std::move(done));
}

void LineMessages::receive(void *data, size_t bytes, int host, shc_ticket *ticket, Done done)
{
    const auto start = [&] {
        std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
        return backend_->recv(tensors, host, tagOf(bytes));
    };
    begin(start, ticket, std::move(done));
}

} // namespace shmcoll
