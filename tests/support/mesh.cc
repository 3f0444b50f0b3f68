// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/mesh.h"

#include "tests/support/ends.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>

namespace shmcoll::test
{

class Mesh::Slots
{
  public:
    explicit Slots(Spoiler spoils) : spoils_(std::move(spoils)) {}
    Slots(const Slots &) = delete;

    shc_p2p_fabric fabric(int rank)
    {
        std::lock_guard<std::mutex> guard(lock_);
        ports_.push_back({this, rank});
        return {&ports_.back(), send, receive, stop};
    }

    void cut(int rank)
    {
        std::lock_guard<std::mutex> guard(lock_);
        cut_.push_back(rank);
        end_if(sends_, [&](const Part &part) { return part.from == rank || part.to == rank; });
        end_if(receives_, [&](const Part &part) { return part.from == rank || part.to == rank; });
    }

  private:
    struct Port {
        Slots *mesh;
        int rank;
    };
    struct Part {
        int from, to; // from -1: any
        uint32_t slot;
        void *data;
        size_t bytes;
        shc_ticket *ticket;
    };

    static int send(void *ctx, const void *data, size_t bytes, int rank, uint32_t slot,
                    shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        port->mesh->post(port->mesh->sends_,
                         {port->rank, rank, slot, const_cast<void *>(data), bytes, ticket});
        return 0;
    }

    static int receive(void *ctx, void *data, size_t bytes, int rank, uint32_t slot,
                       shc_ticket *ticket)
    {
        auto *port = static_cast<Port *>(ctx);
        port->mesh->post(port->mesh->receives_, {rank, port->rank, slot, data, bytes, ticket});
        return 0;
    }

    static void stop(void *ctx)
    {
        auto *port = static_cast<Port *>(ctx);
        Slots *mesh = port->mesh;
        std::lock_guard<std::mutex> guard(mesh->lock_);
        mesh->end_if(mesh->receives_, [&](const Part &part) { return part.to == port->rank; });
        mesh->end_if(mesh->sends_, [&](const Part &part) { return part.from == port->rank; });
    }

    bool is_cut(int rank) const
    {
        for (int one : cut_)
            if (one == rank)
                return true;
        return false;
    }

    void end_if(std::list<Part> &parts, const std::function<bool(const Part &)> &which)
    {
        for (auto part = parts.begin(); part != parts.end();)
            if (which(*part)) {
                ends_.add({nullptr, part->ticket, "Connection closed by peer"});
                part = parts.erase(part);
            } else {
                ++part;
            }
    }

    void post(std::list<Part> &parts, const Part &part)
    {
        std::lock_guard<std::mutex> guard(lock_);
        const auto is_like = [&](const Part &other) {
            return other.from == part.from && other.to == part.to && other.slot == part.slot;
        };
        if (is_cut(part.from) || is_cut(part.to)) {
            ends_.add({nullptr, part.ticket, "Connection closed by peer"});
        } else if (std::any_of(parts.begin(), parts.end(), is_like)) {
            ends_.add(
                {nullptr, part.ticket, "two calls at once on one slot"}); // whose order is open
        } else {
            parts.push_back(part);
            match();
        }
    }

    void match()
    {
        for (auto send = sends_.begin(); send != sends_.end();) {
            auto to = receives_.begin();
            for (; to != receives_.end(); ++to)
                if (to->to == send->to && to->slot == send->slot &&
                    (to->from == -1 || to->from == send->from))
                    break;
            if (to == receives_.end()) {
                ++send;
                continue;
            }
            const bool good = to->bytes == send->bytes; // a real engine would end the process
            const char *error = good ? nullptr : "a message of another size";
            if (good) {
                const auto *data = static_cast<const char *>(send->data);
                std::vector<char> bytes(data, data + send->bytes);
                if (spoils_)
                    spoils_(send->from, send->to, send->slot, bytes);
                memcpy(to->data, bytes.data(), bytes.size());
            }
            ends_.add({nullptr, send->ticket, error});
            ends_.add({nullptr, to->ticket, error});
            receives_.erase(to);
            send = sends_.erase(send);
        }
    }

    const Spoiler spoils_;
    std::mutex lock_;
    std::deque<Port> ports_;
    std::list<Part> sends_, receives_;
    std::vector<int> cut_;
    Ends ends_; // last: it ends what uses the rest
};

Mesh::Mesh(Spoiler spoils) : slots_(std::make_unique<Slots>(std::move(spoils))) {}

Mesh::~Mesh() = default;

shc_p2p_fabric Mesh::fabric(int rank)
{
    return slots_->fabric(rank);
}

void Mesh::cut(int rank)
{
    slots_->cut(rank);
}

} // namespace shmcoll::test
