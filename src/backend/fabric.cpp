// SPDX-License-Identifier: BSD-3-Clause
#include "backend/fabric.hpp"

#include "backend/condition.hpp"
#include "backend/engine_work.hpp"
#include "backend/line_messages.hpp"
#include "backend/posted_exchange.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <algorithm>
#include <deque>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

namespace shmcoll
{

namespace
{

size_t sumOf(const std::vector<int64_t> &counts)
{
    return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

} // namespace

// gloo alone is known to end a receive with its connection. Another engine may not have it at all, and an error of
// that would look like a host that is lost. Nor may it wait again for a message after a wait was called off.
Engine::Engine(c10::intrusive_ptr<c10d::Backend> backend, Use use) : backend_(std::move(backend))
{
    if (use != Use::kLine || backend_->getBackendName() != "gloo")
        return;
    monitor_ = std::make_unique<P2pEngine>(backend_);
    waits_ = MessageWaits::make();
    posted_ = std::make_unique<PostedExchange>(backend_, waits_);
    messages_ = std::make_unique<LineMessages>(backend_, waits_);
}

Engine::~Engine()
{
    if (waits_ == nullptr)
        return;
    waits_->stop();
    if (posted_->wasUsed() || messages_->wasUsed())
        endConnections(*backend_);
}

// Never destructed: a call may end at any time.
struct Engine::Kept {
    std::mutex lock;
    std::vector<Engine *> engines;
};

Engine::Kept *Engine::kept_ = new Kept;

void Engine::forgetParents()
{
    kept_ = new Kept; // the threads of the parent's engines are not here
}

void Engine::release(Engine *engine)
{
    std::vector<Engine *> idle;
    {
        const std::lock_guard<std::mutex> own(kept_->lock);
        std::vector<Engine *> &all = kept_->engines;
        if (engine != nullptr)
            all.push_back(engine);
        const auto busy = std::partition(all.begin(), all.end(),
                                         [](Engine *one) { return one->underWay_.load() > 0; });
        idle.assign(busy, all.end());
        all.erase(busy, all.end());
    }
    for (Engine *one : idle)
        delete one;
}

void Engine::count(uint64_t bytes)
{
    underWay_++;
    calls_++;
    bytes_ += bytes;
}

// What ends a call that begins now.
std::function<void(const char *)> Engine::counted(uint64_t bytes, shc_ticket *ticket)
{
    count(bytes);
    return [this, ticket](const char *error) {
        shc_ticket_done(ticket, error);
        underWay_--;
    };
}

// The future holds the work until the call has ended: torch's Work may be all that knows of it.
template <class Start>
int Engine::begin(uint64_t bytes, shc_ticket *ticket, Start start)
{
    count(bytes);
    try {
        const at::NoGradGuard guard;
        const at::DisableRecordFunctionGuard unseen; // a profile shows the group's calls
        const c10::intrusive_ptr<c10d::Work> work = start(*backend_);
        work->getFuture()->addCallback([this, ticket, work](c10::ivalue::Future &future) {
            if (future.hasError())
                shc_ticket_done(ticket,
                                withoutDecoration(future.tryRetrieveErrorMessage()).c_str());
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
        return self->begin(bytes, ticket, [&](c10d::Backend &backend) {
            at::Tensor input = bytesAt(in, bytes);
            at::Tensor output = bytesAt(out, bytes * static_cast<size_t>(backend.getSize()));
            return backend._allgather_base(output, input);
        });
    };
    view.exchange = [](void *ctx, const void *in, const uint64_t *inBytes, void *out,
                       const uint64_t *outBytes, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        const auto hosts = static_cast<size_t>(self->backend_->getSize());
        std::vector<int64_t> gives(inBytes, inBytes + hosts), gets(outBytes, outBytes + hosts);
        if (self->posted_ != nullptr && self->posted_->carries(gives, gets)) {
            self->posted_->begin(in, out, gives, ticket, self->counted(sumOf(gives), ticket));
            return 0;
        }
        return self->begin(sumOf(gives), ticket, [&](c10d::Backend &backend) {
            at::Tensor input = bytesAt(in, sumOf(gives)), output = bytesAt(out, sumOf(gets));
            return backend.alltoall_base(output, input, gets, gives);
        });
    };
    view.broadcast = [](void *ctx, void *data, size_t bytes, int root, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        const bool gives = self->backend_->getRank() == root;
        return self->begin(gives ? bytes : 0, ticket, [&](c10d::Backend &backend) {
            std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
            c10d::BroadcastOptions options;
            options.rootRank = root;
            return backend.broadcast(tensors, options);
        });
    };
    if (monitor_ != nullptr)
        addLine(view);
    return view;
}

void Engine::addLine(shc_fabric &view)
{
    view.monitor = [](void *ctx, int host, shc_ticket *ticket) {
        static uint64_t nothing; // is what comes
        const shc_p2p_fabric receives = static_cast<Engine *>(ctx)->monitor_->view();
        return receives.receive(receives.ctx, &nothing, sizeof nothing, host, 0, ticket);
    };
    view.send = [](void *ctx, const void *data, size_t bytes, int host, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        self->messages_->send(data, bytes, host, ticket, self->counted(bytes, ticket));
        return 0;
    };
    view.receive = [](void *ctx, void *data, size_t bytes, int host, shc_ticket *ticket) {
        auto *self = static_cast<Engine *>(ctx);
        self->messages_->receive(data, bytes, host, ticket, self->counted(0, ticket));
        return 0;
    };
    view.rest = [](void *ctx) { static_cast<Engine *>(ctx)->posted_->rest(); };
    view.stop = [](void *ctx) {
        const auto *self = static_cast<Engine *>(ctx);
        const shc_p2p_fabric receives = self->monitor_->view();
        receives.stop(receives.ctx);
        self->waits_->stop();
    };
}

// ---- messages ----

// What the threads share with the engine. The last of them frees it.
struct P2pEngine::Shared {
    using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend &)>;
    struct Call {
        Start start;
        shc_ticket *ticket;
    };

    c10::intrusive_ptr<c10d::Backend> backend;
    Condition lock; // guards what follows
    std::deque<Call> calls;
    std::set<c10d::Work *> underWay;
    size_t idle = 0; // threads that wait for a call
    bool stopped = false;

    bool await(c10d::Work &work);
    void carryOut(const Call &call);
    bool take(Call &call);
    void serve();
};

namespace
{

// A thread that has had no call for so long ends.
constexpr std::chrono::seconds kIdle{10};

} // namespace

// Waits for the end of a call that has begun. False: it was ended because the engine is being stopped.
bool P2pEngine::Shared::await(c10d::Work &work)
{
    struct Listed {
        Listed(Shared &all, c10d::Work &one) : shared(all), work(one)
        {
            const Condition::Guard own(shared.lock);
            goesOn = !shared.stopped;
            shared.underWay.insert(&work);
        }
        ~Listed()
        {
            const Condition::Guard own(shared.lock);
            shared.underWay.erase(&work);
        }
        Shared &shared;
        c10d::Work &work;
        bool goesOn;
    };
    const Listed listed(*this, work);
    return listed.goesOn && work.wait();
}

void P2pEngine::Shared::carryOut(const Call &call)
{
    try {
        const at::NoGradGuard guard;
        const at::DisableRecordFunctionGuard unseen;
        const c10::intrusive_ptr<c10d::Work> work = call.start(*backend);
        const bool ended = await(*work);
        if (!ended)
            timeOut(*work);
        shc_ticket_done(call.ticket, ended ? nullptr : "the group is being closed");
    } catch (const std::exception &error) {
        shc_ticket_done(call.ticket, wordsOf(error).c_str());
    } catch (...) {
        shc_ticket_done(call.ticket, "");
    }
}

// Waits for a call. False: none has come.
bool P2pEngine::Shared::take(Call &call)
{
    const Condition::Guard own(lock);
    idle++;
    lock.waitFor(kIdle, [this] { return stopped || !calls.empty(); });
    idle--;
    if (calls.empty())
        return false;
    call = std::move(calls.front());
    calls.pop_front();
    return true;
}

void P2pEngine::Shared::serve()
{
    for (;;) {
        Call call;
        if (!take(call))
            return;
        carryOut(call);
    }
}

P2pEngine::P2pEngine(c10::intrusive_ptr<c10d::Backend> backend)
    : shared_(std::make_shared<Shared>())
{
    shared_->backend = std::move(backend);
}

P2pEngine::~P2pEngine()
{
    shc_p2p_fabric own = view();
    own.stop(own.ctx);
}

shc_p2p_fabric P2pEngine::view()
{
    static const auto post = [](void *ctx, Shared::Start start, shc_ticket *ticket) {
        const std::shared_ptr<Shared> shared = static_cast<P2pEngine *>(ctx)->shared_;
        const Condition::Guard own(shared->lock);
        if (shared->stopped)
            return ESHUTDOWN;
        try {
            if (shared->idle <= shared->calls.size())
                std::thread([shared] { shared->serve(); }).detach();
            shared->calls.push_back({std::move(start), ticket});
        } catch (...) {
            return EAGAIN;
        }
        shared->lock.wake();
        return 0;
    };
    shc_p2p_fabric view{};
    view.ctx = this;
    view.send = [](void *ctx, const void *data, size_t bytes, int rank, uint32_t slot,
                   shc_ticket *ticket) {
        return post(
            ctx,
            [=](c10d::Backend &backend) {
                std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
                return backend.send(tensors, rank, static_cast<int>(slot));
            },
            ticket);
    };
    view.receive = [](void *ctx, void *data, size_t bytes, int rank, uint32_t slot,
                      shc_ticket *ticket) {
        return post(
            ctx,
            [=](c10d::Backend &backend) {
                std::vector<at::Tensor> tensors{bytesAt(data, bytes)};
                return rank < 0 ? backend.recvAnysource(tensors, static_cast<int>(slot))
                                : backend.recv(tensors, rank, static_cast<int>(slot));
            },
            ticket);
    };
    view.stop = [](void *ctx) {
        Shared &shared = *static_cast<P2pEngine *>(ctx)->shared_;
        const Condition::Guard own(shared.lock);
        shared.stopped = true;
        for (c10d::Work *work : shared.underWay)
            work->abort();
        shared.lock.wake();
    };
    return view;
}

} // namespace shmcoll
