// SPDX-License-Identifier: BSD-3-Clause
#include "backend/hosts_side.hpp"

#include "backend/error.hpp"
#include "backend/python.hpp"

#include <algorithm>
#include <mutex>
#include <set>
#include <sstream>

namespace shmcoll
{

namespace
{

using ErrorText = char[SHC_HOSTS_ERROR_BYTES];

// Throws here what nothing else has recorded: the descriptor was refused. Everything else is the thread's record.
shc_status checked(shc_status status, const char *error)
{
    if (status == SHC_ERR_INVALID || status == SHC_ERR_UNSUPPORTED)
        throwStatus(status, error);
    return status;
}

std::string infoOf(shc_comm *comm)
{
    char text[8192];
    check(shc_comm_info(comm, text, sizeof text));
    return text;
}

// Of the line "key=..." the text after "=".
std::string valueOf(const std::string &lines, const std::string &key)
{
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);)
        if (line.rfind(key + "=", 0) == 0)
            return line.substr(key.size() + 1);
    return "";
}

// What of an island's lines does not hold for the whole group.
bool isOfIsland(const std::string &line)
{
    for (const char *key : {"name=", "id=", "desc=", "rank=", "global_rank=", "members=", "gone=",
                            "world_size=", "timeout_s=", "path."})
        if (line.rfind(key, 0) == 0)
            return true;
    return false;
}

struct Registry {
    std::mutex lock; // guards the set, and what is in it from its end
    std::set<HostsSide *> sides;
};

// Never destructed: a group may outlive everything.
Registry &registry()
{
    static auto *const one = new Registry;
    return *one;
}

} // namespace

shc_status HostsSide::meet(const shc_comm_config &config, const HostsWish &wish, char *error)
{
    std::vector<const char *> words;
    for (const std::string &word : wish.words)
        words.push_back(word.c_str());
    shc_hosts_wish view{};
    view.words = words.data();
    view.word_count = static_cast<int>(words.size());
    view.rails = std::max(wish.rails, 0);
    view.refuses = wish.rails < 0;
    view.engine = wish.engine.c_str();
    view.by_rank = wish.byRank;
    view.wide = wish.wide;
    view.in_file = wish.inFile;
    wish_ = wish;
    view.late_ns = static_cast<uint64_t>(wish.late.count()) * 1000000;
    GilRelease release;
    const shc_status status = shc_hosts_create(&config, &view, &hosts_, error);
    if (status != SHC_OK)
        return status;
    shc_hosts_get_place(hosts_, &place_);
    const std::lock_guard<std::mutex> own(registry().lock);
    registry().sides.insert(this);
    return status;
}

HostsSide::~HostsSide()
{
    GilRelease release;
    const bool isForked = hosts_ != nullptr && shc_hosts_error(hosts_) == SHC_ERR_FORKED;
    if (hosts_ != nullptr && !isForked) { // a thread of the parent may have held the lock
        const std::lock_guard<std::mutex> own(registry().lock);
        registry().sides.erase(this);
    }
    if (hosts_ != nullptr)
        shc_hosts_free(hosts_);
    if (isForked) { // the engines' threads are the parent's, and may have held a lock
        mesh_.release();
        return;
    }
    Engine::release(line_);
    Engine::release(rail_);
}

std::string HostsSide::place() const
{
    std::string text =
        c10::str("prefix=", place_.prefix, "\nhosts=", place_.hosts, "\nhost=", place_.host,
                 "\nlocal=", place_.local, "\nrails=", place_.rails);
    for (int host = 0; host < place_.hosts; host++) {
        char ranks[256];
        shc_hosts_ranks_text(hosts_, host, ranks, sizeof ranks);
        text += c10::str("\nranks.", host, "=", ranks);
        text += c10::str("\nword.", host, "=", shc_hosts_word(hosts_, host));
    }
    return text;
}

void HostsSide::connect(c10::intrusive_ptr<c10d::Backend> line,
                        c10::intrusive_ptr<c10d::Backend> rail,
                        c10::intrusive_ptr<c10d::Backend> mesh)
{
    ErrorText error;
    try {
        if (line)
            line_ = new Engine(std::move(line), Engine::Use::kLine);
        if (rail)
            rail_ = new Engine(std::move(rail), Engine::Use::kRail);
        mesh_ = std::make_unique<P2pEngine>(std::move(mesh));
    } catch (const std::exception &failure) { // no thread, say; the other ranks are to hear of it
        shc_hosts_abort(hosts_, failure.what());
        throw;
    }
    const shc_p2p_fabric meshView = mesh_->view();
    const shc_fabric lineView = line_ ? line_->view() : shc_fabric{};
    const shc_fabric railView = rail_ ? rail_->view() : shc_fabric{};
    GilRelease release;
    shc_status status = shc_hosts_connect_p2p(hosts_, &meshView, error);
    // No watch: torch's TCPStore writes a line to stderr for each wait for a key that times out.
    if (status == SHC_OK)
        status = shc_hosts_connect(hosts_, line_ ? &lineView : nullptr, rail_ ? &railView : nullptr,
                                   nullptr, error);
    if (status == SHC_OK)
        status = shc_hosts_prove(hosts_, error);
    if (status != SHC_OK)
        throwStatus(status, error);
}

Group HostsSide::sequencerOf(const std::shared_ptr<HostsSide> &side)
{
    return Group(side, shc_hosts_get_sequencer(side->hosts_));
}

void HostsSide::check(const shc_op &op)
{
    ErrorText error;
    const shc_status status = shc_hosts_check(hosts_, &op, error);
    if (status != SHC_OK)
        throwStatus(status, error);
}

shc_status HostsSide::run(const shc_op &op)
{
    ErrorText error;
    return checked(shc_hosts_run(hosts_, &op, error), error);
}

shc_status HostsSide::submit(const shc_op &op, const shc_request_hooks &hooks,
                             shc_request **request, std::string &text)
{
    ErrorText error;
    const shc_status status = shc_hosts_submit(hosts_, &op, &hooks, request, error);
    text = error;
    return status;
}

Group HostsSide::islandFor(const std::shared_ptr<HostsSide> &side, shc_op &op)
{
    ErrorText error;
    const shc_status status = shc_hosts_find_peer(side->hosts_, op.kind, &op.peer, error);
    if (status != SHC_OK)
        throwStatus(status, error);
    return Group(side, shc_hosts_get_island(side->hosts_));
}

shc_status HostsSide::error()
{
    return shc_hosts_error(hosts_);
}

void HostsSide::abort(const char *reason)
{
    shc_hosts_abort(hosts_, reason);
}

void HostsSide::close()
{
    shc_hosts_close(hosts_);
}

void HostsSide::closeAll()
{
    const std::lock_guard<std::mutex> own(registry().lock);
    for (HostsSide *side : registry().sides)
        side->close();
}

void HostsSide::describe(const char *words)
{
    shc_comm_describe(shc_hosts_get_sequencer(hosts_), words);
    shc_comm_describe(shc_hosts_get_island(hosts_), words);
}

std::string HostsSide::info() const
{
    const std::string own = infoOf(shc_hosts_get_sequencer(hosts_));
    const std::string islands = infoOf(shc_hosts_get_island(hosts_));
    std::istringstream island(islands), gone(valueOf(islands, "gone"));
    std::vector<int> left;
    for (std::string number; std::getline(gone, number, ',');)
        left.push_back(shc_hosts_peer_rank(hosts_, std::stoi(number)));
    const int lost = shc_hosts_lost_host(hosts_);
    std::vector<int> unsure;
    for (int rank = 0; rank < shc_hosts_world_size(hosts_); rank++)
        if (lost >= 0 && shc_hosts_host_of(hosts_, rank) == lost)
            unsure.push_back(rank);
    std::string text = c10::str("id=", place_.prefix, "\ngone=", c10::Join(",", left),
                                "\nunsure=", c10::Join(",", unsure), "\n");
    for (const char *key : {"name", "desc", "global_rank", "timeout_s"})
        text += c10::str(key, "=", valueOf(own, key), "\n");
    for (std::string line; std::getline(island, line);)
        if (!isOfIsland(line))
            text += line + "\n";
    text += c10::str("hosts=", place_.hosts, "\nhost=", place_.host, "\nrails=", place_.rails,
                     "\nengine=", wish_.engine, "\norder=", wish_.byRank ? "rank" : "host",
                     "\npartials=", wish_.wide ? "wide" : "narrow");
    text += c10::str("\nengine_calls=", Engine::calls(line_) + Engine::calls(rail_),
                     "\nengine_bytes=", Engine::bytes(line_) + Engine::bytes(rail_));
    for (int host = 0; host < place_.hosts; host++) {
        char ranks[256];
        shc_hosts_ranks_text(hosts_, host, ranks, sizeof ranks);
        text += c10::str("\nhost.", host, "=", ranks);
    }
    return text + "\n";
}

} // namespace shmcoll
