// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A group over several hosts (src/hosts): what ProcessGroupShm asks in the place of the core's group.

#include "backend/fabric.hpp"
#include "backend/work_shm.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace shmcoll
{

// What a rank knows and wants before hosts meet: struct shc_hosts_wish.
struct HostsWish {
    std::vector<std::string> words;
    int rails = 0; // -1: this rank refuses such a group
    std::chrono::milliseconds late{0};
    std::string engine;
    bool byRank = false; // order="rank"
    bool wide = false;   // partials="wide"
    bool inFile = false; // the store is a FileStore
};

class HostsSide
{
  public:
    HostsSide() = default;
    ~HostsSide();
    HostsSide(const HostsSide &) = delete;
    HostsSide &operator=(const HostsSide &) = delete;

    // Meets the other ranks and finds out which of them share memory; blocks. `error`: of SHC_HOSTS_ERROR_BYTES.
    // pre, of all others: SHC_OK.
    shc_status meet(const shc_comm_config &config, const HostsWish &wish, char *error);

    // Lines of key=value: prefix, host, hosts, local, rails, and ranks.<host> of each host.
    std::string place() const;

    // Takes the engines that this rank needs, and tries them, except that for messages. Collective.
    void connect(c10::intrusive_ptr<c10d::Backend> line, c10::intrusive_ptr<c10d::Backend> rail,
                 c10::intrusive_ptr<c10d::Backend> mesh);

    // The group that orders the operations; keeps the side alive.
    static Group sequencerOf(const std::shared_ptr<HostsSide> &side);

    // Throws what is wrong with the operation on this rank alone. Like the next two, for collectives only.
    void check(const shc_op &op);
    shc_status run(const shc_op &op);
    // `text`: why not.
    shc_status submit(const shc_op &op, const shc_request_hooks &hooks, shc_request **request,
                      std::string &text);

    // The group of this host's ranks, which matches all messages; `op` names its peer there afterwards. Throws if the
    // peer is no rank.
    static Group islandFor(const std::shared_ptr<HostsSide> &side, shc_op &op);

    // The rank with that number there.
    int peerOf(int number) const { return shc_hosts_peer_rank(hosts_, number); }

    shc_status error();
    void abort(const char *reason);
    void close();
    static void closeAll(); // of this process
    void describe(const char *words);

    // As shc_comm_info().
    std::string info() const;

  private:
    shc_hosts *hosts_ = nullptr;
    shc_hosts_place place_{};
    HostsWish wish_;
    Engine *line_ = nullptr;
    Engine *rail_ = nullptr;
    std::unique_ptr<P2pEngine> mesh_;
};

} // namespace shmcoll
