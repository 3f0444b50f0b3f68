// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/fabric.h"

#include "tests/support/ends.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace shmcoll::test
{

// Each call goes to the port of its host, and meets those of its number from the other hosts.
class Network::Switch
{
  public:
    Switch(int hosts, Chooser fate) : hosts_(hosts), fate_(std::move(fate)) {}
    Switch(const Switch &) = delete;

    ~Switch() { release_late(); }

    shc_fabric line(int host) { return fabric(-1, host); }
    shc_fabric rail(int rail, int host) { return fabric(rail, host); }

    void release_late()
    {
        std::lock_guard<std::mutex> guard(lock_);
        for (const End &end : late_)
            add_end(end);
        late_.clear();
        for (auto &meeting : meetings_)
            for (const Part &part : meeting.second)
                add_end({[part] { memset(part.out, 0x5a, part.out_bytes); }, part.ticket,
                         "the connection was closed"});
        meetings_.clear();
        for (auto &way : messages_)
            for (const Receive &one : way.second.receives) {
                const size_t bytes = std::get<2>(way.first);
                add_end({[one, bytes] { memset(one.out, 0x5a, bytes); }, one.ticket,
                         "the connection was closed"});
            }
        messages_.clear();
    }

    void refuse_monitors(bool fails)
    {
        refuses_ = fails;
        has_monitors_ = fails;
    }

    void change(int host, size_t place, char byte) { changed_ = {host, place, byte}; }

    void refuse_messages() { has_messages_ = false; }

    void lose_messages() { loses_messages_ = true; }

    void lose(int host)
    {
        std::lock_guard<std::mutex> guard(lock_);
        lost_.insert(host);
        end_monitors([host](const Monitor &one) { return one.of == host; });
    }

    bool monitors(int host, int of)
    {
        std::lock_guard<std::mutex> guard(lock_);
        return std::any_of(monitors_.begin(), monitors_.end(),
                           [&](const Monitor &one) { return one.by == host && one.of == of; });
    }

    int calls()
    {
        std::lock_guard<std::mutex> guard(lock_);
        return calls_;
    }

  private:
    enum class Kind { kGather, kExchange, kBroadcast };
    struct Part {
        int host;
        Kind kind;
        const void *in;
        size_t bytes;
        void *out;
        size_t out_bytes;
        int root;
        shc_ticket *ticket;
        Fate fate;
        std::vector<uint64_t> gives = {}, takes = {}; // of kExchange, by host
        std::shared_ptr<std::vector<char>> copy = {}; // of `in`, of a call that may be dropped
        bool is_line = false;
    };
    // A call that goes on in the thread that waits for it.
    struct Carried {
        Switch *network;
        shc_ticket *ticket;
        std::optional<End> end;
    };
    struct Sent {
        std::vector<char> bytes;
        std::vector<uint64_t> blocks;
    };
    using Way = std::tuple<int, int, size_t>; // from a host to a host, bytes
    struct Receive {
        void *out;
        shc_ticket *ticket;
    };
    struct Messages {
        std::deque<std::vector<char>> sent;
        std::deque<Receive> receives;
    };
    struct Monitor {
        int by, of; // hosts
        shc_ticket *ticket;
    };
    struct Port {
        Switch *network;
        int rail, host, calls;
    };

    shc_fabric fabric(int rail, int host)
    {
        std::lock_guard<std::mutex> guard(lock_);
        ports_.push_back(Port{this, rail, host, 0});
        return {&ports_.back(),
                gather,
                exchange,
                broadcast,
                has_messages_ ? send : nullptr,
                has_messages_ ? receive : nullptr,
                nullptr,
                has_monitors_ ? monitor : nullptr,
                stop};
    }

    static int monitor(void *ctx, int host, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        Switch *network = port->network;
        if (network->refuses_)
            return ENOTSUP;
        std::lock_guard<std::mutex> guard(network->lock_);
        network->monitors_.push_back({port->host, host, ticket});
        if (network->lost_.count(host))
            network->end_monitors([&](const Monitor &one) { return one.ticket == ticket; });
        return 0;
    }

    static void stop(void *ctx)
    {
        auto *port = static_cast<Port *>(ctx);
        Switch *network = port->network;
        std::lock_guard<std::mutex> guard(network->lock_);
        network->end_monitors([port](const Monitor &one) { return one.by == port->host; });
    }

    void end_monitors(const std::function<bool(const Monitor &)> &which)
    {
        for (const Monitor &one : monitors_)
            if (which(one))
                ends_.add({[] {}, one.ticket, "Connection closed by peer"});
        monitors_.erase(std::remove_if(monitors_.begin(), monitors_.end(), which), monitors_.end());
    }

    static int gather(void *ctx, const void *in, size_t bytes, void *out, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        const size_t all = bytes * static_cast<size_t>(port->network->hosts_);
        return port->network->post(
            port, {port->host, Kind::kGather, in, bytes, out, all, 0, ticket, Fate::kGood});
    }

    static int exchange(void *ctx, const void *in, const uint64_t *in_bytes, void *out,
                        const uint64_t *out_bytes, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        const int hosts = port->network->hosts_;
        Part part = {port->host,
                     Kind::kExchange,
                     in,
                     0,
                     out,
                     0,
                     0,
                     ticket,
                     Fate::kGood,
                     {in_bytes, in_bytes + hosts},
                     {out_bytes, out_bytes + hosts}};
        part.bytes = before(part.gives, hosts);
        part.out_bytes = before(part.takes, hosts);
        part.is_line = port->rail < 0;
        const bool is_carried = part.is_line && port->host % 2 == 1;
        if (is_carried) {
            const auto *bytes = static_cast<const char *>(in);
            part.copy = std::make_shared<std::vector<char>>(bytes, bytes + part.bytes);
            part.in = part.copy->data();
            port->network->carry(ticket);
        }
        const int failed = port->network->post(port, part);
        if (failed && is_carried)
            port->network->forget(ticket);
        return failed;
    }

    void carry(shc_ticket *ticket)
    {
        static const shc_ticket_hooks hooks = {
            [](void *arg) {
                static_cast<Carried *>(arg)->network->carry_on(static_cast<Carried *>(arg));
            },
            [](void *arg) {
                static_cast<Carried *>(arg)->network->drop(static_cast<Carried *>(arg));
            },
        };
        std::lock_guard<std::mutex> guard(lock_);
        carried_[ticket] = {this, ticket, std::nullopt};
        shc_ticket_set_hooks(ticket, &hooks, &carried_[ticket]);
    }

    static int send(void *ctx, const void *data, size_t bytes, int host, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        const auto *from = static_cast<const char *>(data);
        std::lock_guard<std::mutex> guard(port->network->lock_);
        if (!port->network->loses_messages_)
            port->network->messages_[{port->host, host, bytes}].sent.emplace_back(from,
                                                                                  from + bytes);
        port->network->match({port->host, host, bytes});
        port->network->add_end({[] {}, ticket, nullptr});
        return 0;
    }

    static int receive(void *ctx, void *data, size_t bytes, int host, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        if (port->host % 2 == 1)
            port->network->carry(ticket);
        std::lock_guard<std::mutex> guard(port->network->lock_);
        port->network->messages_[{host, port->host, bytes}].receives.push_back({data, ticket});
        port->network->match({host, port->host, bytes});
        return 0;
    }

    void match(const Way &way)
    {
        Messages &here = messages_[way];
        while (!here.sent.empty() && !here.receives.empty()) {
            void *out = here.receives.front().out;
            const std::vector<char> sent = std::move(here.sent.front());
            add_end({[out, sent] { memcpy(out, sent.data(), sent.size()); },
                     here.receives.front().ticket, nullptr});
            here.receives.pop_front();
            here.sent.pop_front();
        }
    }

    void forget(shc_ticket *ticket)
    {
        std::lock_guard<std::mutex> guard(lock_);
        carried_.erase(ticket);
    }

    // The waiter ends its call, and the thread of the network all others.
    void add_end(const End &end)
    {
        const auto at = carried_.find(end.ticket);
        if (at == carried_.end()) {
            if (end.ticket) // else it was dropped
                ends_.add(end);
            return;
        }
        at->second.end = end;
        ended_.notify_all();
    }

    void carry_on(const Carried *carried)
    {
        std::unique_lock<std::mutex> guard(lock_);
        if (!ended_.wait_for(guard, std::chrono::milliseconds(10),
                             [carried] { return carried->end.has_value(); }))
            return;
        const End end = *carried->end;
        carried_.erase(end.ticket);
        guard.unlock();
        end.first();
        shc_ticket_done(end.ticket, end.error);
    }

    // What it gives reaches the others, and nothing of theirs reaches it.
    void drop(const Carried *carried)
    {
        shc_ticket *ticket = carried->ticket;
        {
            std::lock_guard<std::mutex> guard(lock_);
            for (auto &meeting : meetings_)
                for (Part &part : meeting.second)
                    part.ticket = part.ticket == ticket ? nullptr : part.ticket;
            for (auto &way : messages_)
                for (Receive &one : way.second.receives)
                    one.ticket = one.ticket == ticket ? nullptr : one.ticket;
            for (End &end : late_)
                end.ticket = end.ticket == ticket ? nullptr : end.ticket;
            carried_.erase(ticket);
        }
        shc_ticket_done(ticket, "nobody waits for it");
    }

    // Where a host's block begins.
    static size_t before(const std::vector<uint64_t> &blocks, int host)
    {
        return std::accumulate(blocks.begin(), blocks.begin() + host, size_t{0});
    }

    static int broadcast(void *ctx, void *data, size_t bytes, int root, shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        return port->network->post(port, {port->host, Kind::kBroadcast, data, bytes, data, bytes,
                                          root, ticket, Fate::kGood});
    }

    int post(Port *port, Part part)
    {
        std::lock_guard<std::mutex> guard(lock_);
        const int number = port->calls++;
        part.fate = fate_ ? fate_(port->rail, port->host, number) : Fate::kGood;
        calls_++;
        if (part.fate == Fate::kRefused)
            return ENOTCONN;
        if (part.fate == Fate::kBroken) {
            add_end({[] {}, part.ticket, "Connection closed by peer"});
            return 0;
        }
        std::vector<Part> &parts = meetings_[{port->rail, number}];
        parts.push_back(part);
        if (parts.size() < static_cast<size_t>(hosts_))
            return 0;
        const std::vector<Part> all = std::move(parts);
        meetings_.erase({port->rail, number});
        move(all);
        return 0;
    }

    // A real engine ends the process when sizes differ; here the call fails, and the test with it.
    static bool agree(const std::vector<Part> &all)
    {
        for (const Part &part : all) {
            if (part.kind != all[0].kind || part.root != all[0].root)
                return false;
            if (part.kind != Kind::kExchange && part.bytes != all[0].bytes)
                return false;
            for (const Part &from : all)
                if (part.kind == Kind::kExchange && from.gives[static_cast<size_t>(part.host)] !=
                                                        part.takes[static_cast<size_t>(from.host)])
                    return false;
        }
        return true;
    }

    void move(const std::vector<Part> &all)
    {
        const bool good = agree(all);
        auto sent = std::make_shared<std::map<int, Sent>>();
        for (const Part &part : all) {
            const auto *in = static_cast<const char *>(part.in);
            (*sent)[part.host] = {std::vector<char>(in, in + part.bytes), part.gives};
            for (const uint64_t bytes : part.gives)
                if (part.host == changed_.host && part.is_line && bytes > changed_.place)
                    (*sent)[part.host].bytes[changed_.place] = changed_.byte;
        }
        for (const Part &part : all) {
            const End end = {[part, sent, good] {
                                 if (good)
                                     deliver(part, *sent);
                             },
                             part.ticket,
                             !good                       ? "hosts made different calls"
                             : part.fate == Fate::kFails ? "Connection closed by peer"
                                                         : nullptr};
            if (part.fate == Fate::kLate)
                late_.push_back(end);
            else
                add_end(end);
        }
    }

    static void deliver(const Part &part, const std::map<int, Sent> &sent)
    {
        auto *out = static_cast<char *>(part.out);
        for (const auto &from : sent) {
            const char *bytes = from.second.bytes.data();
            if (part.kind == Kind::kGather)
                memcpy(out + static_cast<size_t>(from.first) * part.bytes, bytes, part.bytes);
            else if (part.kind == Kind::kExchange)
                std::copy_n(bytes + before(from.second.blocks, part.host),
                            part.takes[static_cast<size_t>(from.first)],
                            out + before(part.takes, from.first));
            else if (from.first == part.root && part.host != part.root)
                memcpy(out, bytes, part.bytes);
        }
    }

    const int hosts_;
    const Chooser fate_;
    std::mutex lock_;
    std::deque<Port> ports_;
    std::map<std::pair<int, int>, std::vector<Part>> meetings_;
    std::vector<End> late_;
    std::map<shc_ticket *, Carried> carried_;
    std::condition_variable ended_;
    std::vector<Monitor> monitors_;
    std::set<int> lost_;
    struct {
        int host;
        size_t place;
        char byte;
    } changed_ = {-1, 0, 0};
    bool refuses_ = false, has_monitors_ = true, loses_messages_ = false;
    bool has_messages_ = hosts_ % 2 == 0;
    std::map<Way, Messages> messages_;
    int calls_ = 0;
    Ends ends_; // last: it ends what uses the rest
};

Network::Network(int hosts, Chooser fate)
    : switch_(std::make_unique<Switch>(hosts, std::move(fate)))
{
}

Network::~Network() = default;

shc_fabric Network::line(int host)
{
    return switch_->line(host);
}

shc_fabric Network::rail(int rail, int host)
{
    return switch_->rail(rail, host);
}

void Network::release_late()
{
    switch_->release_late();
}

void Network::refuse_monitors(bool fails)
{
    switch_->refuse_monitors(fails);
}

void Network::change(int host, size_t place, char byte)
{
    switch_->change(host, place, byte);
}

void Network::refuse_messages()
{
    switch_->refuse_messages();
}

void Network::lose_messages()
{
    switch_->lose_messages();
}

void Network::lose(int host)
{
    switch_->lose(host);
}

bool Network::monitors(int host, int of)
{
    return switch_->monitors(host, of);
}

int Network::calls()
{
    return switch_->calls();
}

} // namespace shmcoll::test
