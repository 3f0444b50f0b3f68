// SPDX-License-Identifier: BSD-3-Clause
#include "backend/fabric.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <numeric>

namespace shmcoll
{

namespace
{

// The library's staging memory, which outlives the call.
at::Tensor bytesAt(const void *data, size_t count)
{
    return at::from_blob(const_cast<void *>(data), {static_cast<int64_t>(count)},
                         at::TensorOptions(at::kByte));
}

size_t sumOf(const std::vector<int64_t> &counts)
{
    return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

std::string wordsOf(const std::exception &error)
{
    const auto *torchs = dynamic_cast<const c10::Error *>(&error);
    return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
}

} // namespace

void Engine::release(Engine *engine)
{
    if (engine != nullptr && engine->underWay_.load() == 0)
        delete engine;
}

// The future holds the work until the call has ended: torch's Work may be all that knows of it.
template <class Start>
int Engine::begin(shc_ticket *ticket, Start start)
{
    underWay_++;
    try {
        const at::NoGradGuard guard;
        const c10::intrusive_ptr<c10d::Work> work = start(*backend_);
        work->getFuture()->addCallback([this, ticket, work](c10::ivalue::Future &future) {
            if (future.hasError())
                shc_ticket_done(ticket, future.tryRetrieveErrorMessage().c_str());
            else
                shc_ticket_done(ticket, nullptr);
            underWay_--;
        });
    } catch (const std::exception &error) {
        shc_ticket_done(ticket, wordsOf(error).c_str());
        underWay_--;
    } catch (...) {
        shc_ticket_done(ticket, "");
        underWay_--;
    }
    return 0;
}

shc_fabric Engine::view()
{
    shc_fabric view{};
    view.ctx = this;
    view.gather = [](void *ctx, const void *in, size_t bytes, void *out, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        return self->begin(ticket, [&](c10d::Backend &backend) {
            at::Tensor input = bytesAt(in, bytes);
            at::Tensor output = bytesAt(out, bytes * static_cast<size_t>(backend.getSize()));
            return backend._allgather_base(output, input);
        });
    };
    view.exchange = [](void *ctx, const void *in, const uint64_t *inBytes, void *out,
                       const uint64_t *outBytes, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        return self->begin(ticket, [&](c10d::Backend &backend) {
            const auto hosts = static_cast<size_t>(backend.getSize());
            std::vector<int64_t> gives(inBytes, inBytes + hosts), gets(outBytes, outBytes + hosts);
            at::Tensor input = bytesAt(in, sumOf(gives)), output = bytesAt(out, sumOf(gets));
            return backend.alltoall_base(output, input, gets, gives);
        });
    };
    view.broadcast = [](void *ctx, void *data, size_t bytes, int root, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        return self->begin(ticket, [&](c10d::Backend &backend) {
            std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
            c10d::BroadcastOptions options;
            options.rootRank = root;
            return backend.broadcast(tensors, options);
        });
    };
    return view;
}

} // namespace shmcoll
