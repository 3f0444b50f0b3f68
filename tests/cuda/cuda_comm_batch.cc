// SPDX-License-Identifier: BSD-3-Clause
// Messages in batches, each on one stream: all to all, several on a channel, together with single calls,
// and batches that are refused or fail in the middle.
#include "tests/cuda/box.h"
#include "tests/cuda/graphs.h"

#include <atomic>
#include <thread>

namespace shmcoll::test
{
namespace
{

// Calls that go into one batch.
class Batch
{
  public:
    void add(Call call) { calls_.push_back(std::move(call)); }
    shc_status enqueue(Rank &rank, shc_cu_stream *stream)
    {
        std::vector<shc_op> ops;
        for (Call &call : calls_)
            ops.push_back(*call.ready());
        return shc_cuda_comm_enqueue_batch(rank.cuda, ops.data(), static_cast<int>(ops.size()),
                                           stream);
    }

  private:
    std::vector<Call> calls_;
};

// One message of a turn.
struct Message {
    shc_op_kind kind;
    int peer;
    uint64_t number; // of its channel, in this turn
    size_t bytes;
    Box *box;
};

size_t slot_of(Rank &rank)
{
    return shc_mail_slot_bytes(static_cast<size_t>(rank.settings.number("half", 4096)), rank.world);
}

// The messages from one rank to another in a turn: no two channels have the same sizes.
std::vector<size_t> sizes_of(int from, int to, uint64_t turn, size_t slot)
{
    const std::vector<size_t> all = {0,        9 * slot + 5, 1,           2 * slot,
                                     slot - 1, 14 * slot,    2 * slot + 1};
    const size_t at = static_cast<size_t>(from) * 3 + static_cast<size_t>(to) + turn;
    return {all[at % all.size()], all[(at + 3) % all.size()]};
}

// Two messages from every rank to every rank, itself too.
std::vector<Message> messages_of(Rank &rank, Boxes &boxes, uint64_t turn)
{
    std::vector<Message> messages;
    size_t used = 0;
    for (shc_op_kind kind : {SHC_SEND, SHC_RECV})
        for (int peer = 0; peer < rank.world; peer++) {
            const bool sends = kind == SHC_SEND;
            const int from = sends ? rank.rank : peer, to = sends ? peer : rank.rank;
            uint64_t number = 0;
            for (size_t bytes : sizes_of(from, to, turn, slot_of(rank))) {
                Box *box = boxes[used++].get();
                if (sends)
                    box->put(content(from, to, 2 * turn + number, bytes));
                else
                    box->clear(bytes);
                messages.push_back({kind, peer, number++, bytes, box});
            }
        }
    return messages;
}

// A different order in each turn, and on each rank; the order within a channel stays.
void mix(std::vector<Message> &messages, uint64_t turn, int rank)
{
    const uint64_t seed = turn * 7 + static_cast<uint64_t>(rank);
    std::stable_sort(messages.begin(), messages.end(), [seed](const Message &a, const Message &b) {
        auto place = [seed](const Message &p) {
            const uint64_t receives = p.kind == SHC_RECV ? seed % 3 : 1;
            return receives * 100 + (static_cast<uint64_t>(p.peer) * 5 + seed) % 11;
        };
        return place(a) < place(b);
    });
}

bool all_right(Rank &rank, const std::vector<Message> &messages, uint64_t turn)
{
    for (const Message &p : messages)
        if (p.kind == SHC_RECV &&
            !p.box->holds(content(p.peer, rank.rank, 2 * turn + p.number, p.bytes)))
            return false;
    return true;
}

shc_status enqueue_in_batch(Rank &rank, const std::vector<Message> &messages)
{
    Batch batch;
    for (const Message &p : messages)
        batch.add(p.box->call(p.kind, p.peer, kByte, p.bytes, 3));
    return batch.enqueue(rank, rank.streams[0]);
}

// Each channel on a stream of its own.
shc_status enqueue_alone(const std::vector<Message> &messages,
                         std::map<std::pair<shc_op_kind, int>, Box *> &streams)
{
    shc_status st = SHC_OK;
    for (const Message &p : messages) {
        Box *on = streams.try_emplace({p.kind, p.peer}, p.box).first->second;
        Call call = p.box->call(p.kind, p.peer, kByte, p.bytes, 3);
        if (st == SHC_OK)
            st = on->enqueue(call);
    }
    return st;
}

} // namespace

// All to all, one turn after the other; with `single` the odd ranks make single calls.
void batch_all(Rank &rank)
{
    const bool alone = rank.settings.number("single", 0) && rank.rank % 2 != 0;
    Boxes all = boxes(rank, 4 * static_cast<size_t>(rank.world), 14 * slot_of(rank) + 5);
    uint64_t turn = 0, wrong = 0;
    for (; turn < 8 && wrong == 0; turn++) {
        std::vector<Message> messages = messages_of(rank, all, turn);
        mix(messages, turn, rank.rank);
        std::map<std::pair<shc_op_kind, int>, Box *> streams;
        const shc_status st =
            alone ? enqueue_alone(messages, streams) : enqueue_in_batch(rank, messages);
        for (auto &entry : streams)
            entry.second->sync();
        rank.sync();
        wrong += st != SHC_OK || shc_cuda_comm_error(rank.cuda) != SHC_OK ||
                 !all_right(rank, messages, turn);
        if (wrong)
            report("what", std::to_string(turn) + ": " + shc_cuda_failure());
    }
    report("wrong", std::to_string(wrong));
}

// More messages of a channel than there are records, both ways at once.
void batch_many(Rank &rank)
{
    constexpr uint64_t kMessages = 2 * SHC_RECORDS + 30;
    const size_t bytes = 96;
    const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
    Boxes out = boxes(rank, kMessages, bytes), in = boxes(rank, kMessages, bytes);
    Batch batch;
    for (uint64_t i = 0; i < kMessages; i++) {
        out[i]->put(content(rank.rank, next, i, bytes));
        in[i]->clear(bytes);
        batch.add(out[i]->call(SHC_SEND, next, kByte, bytes, static_cast<int>(i)));
    }
    for (uint64_t i = 0; i < kMessages; i++)
        batch.add(in[i]->call(SHC_RECV, last, kByte, bytes, static_cast<int>(i)));
    bool right = batch.enqueue(rank, rank.streams[0]) == SHC_OK && rank.sync() &&
                 shc_cuda_comm_error(rank.cuda) == SHC_OK;
    for (uint64_t i = 0; i < kMessages; i++)
        right = right && in[i]->holds(content(last, rank.rank, i, bytes));
    report("right", right ? "yes" : shc_cuda_failure());
}

// A batch waits for records while another thread sends on the same channel: the batch then takes new
// numbers.
void batch_beside(Rank &rank)
{
    constexpr uint64_t kMessages = 2 * SHC_RECORDS + 30, kSingle = 40;
    const size_t bytes = 96;
    const Bytes all_alike = content(0, 1, 0, bytes);
    Boxes boxes_used = boxes(rank, kMessages + kSingle, bytes);
    bool right = true;
    if (rank.rank == 0) {
        Batch batch;
        for (auto &box : boxes_used)
            box->put(all_alike);
        for (uint64_t i = 0; i < kMessages; i++)
            batch.add(boxes_used[i]->call(SHC_SEND, 1, kByte, bytes));
        std::atomic<bool> singles_right{true};
        std::thread singles([&] {
            rank.driver.cuCtxPushCurrent(rank.gpu.context);
            for (uint64_t i = 0; i < kSingle; i++) {
                Box &box = *boxes_used[kMessages + i];
                if (box.enqueue(box.call(SHC_SEND, 1, kByte, bytes)) != SHC_OK)
                    singles_right = false;
                usleep(1000);
            }
        });
        right = batch.enqueue(rank, rank.streams[0]) == SHC_OK;
        singles.join();
        right = right && singles_right;
    } else {
        usleep(20000); // the records are used up
        for (auto &box : boxes_used) {
            box->clear(bytes);
            Call call = box->call(SHC_RECV, 0, kByte, bytes);
            right =
                right && shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]) == SHC_OK;
            usleep(500);
        }
    }
    right = rank.sync() && right && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    for (auto &box : boxes_used)
        right = right && box->sync() && (rank.rank == 0 || box->holds(all_alike));
    report("right", right ? "yes" : shc_cuda_failure());
}

// In a batch of many the last rank's second message from rank 0 has another tag, and more elements.
void batch_differ(Rank &rank)
{
    const int last = rank.world - 1;
    Boxes all = boxes(rank, 4 * static_cast<size_t>(rank.world), 14 * slot_of(rank) + 5);
    std::vector<Message> messages = messages_of(rank, all, 0);
    Batch batch;
    Box *odd = nullptr;
    for (const Message &p : messages) {
        const bool here = rank.rank == last && p.kind == SHC_RECV && p.peer == 0 && p.number == 1;
        if (here)
            odd = p.box;
        batch.add(p.box->call(p.kind, p.peer, kByte, p.bytes + (here ? 1 : 0), here ? 9 : 3));
    }
    shc_status st = batch.enqueue(rank, rank.streams[0]);
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    rank.sync();
    report("changed", odd == nullptr || odd->holds(Bytes(1, kGuard)) ? "no" : "yes");
    report_failure(rank, st);
}

// Batches until the group fails; a batch that ends without a failure must have the right results.
void batch_endless(Rank &rank)
{
    Boxes all = boxes(rank, 4 * static_cast<size_t>(rank.world), 14 * slot_of(rank) + 5);
    shc_status st = SHC_OK;
    uint64_t wrong = 0, turn = 0;
    for (; st == SHC_OK; turn++) {
        std::vector<Message> messages = messages_of(rank, all, turn);
        if (turn == 3)
            report("ready", "yes");
        st = enqueue_in_batch(rank, messages);
        rank.sync();
        if (st == SHC_OK)
            st = shc_cuda_comm_error(rank.cuda);
        if (st == SHC_OK)
            wrong += !all_right(rank, messages, turn);
    }
    report("wrong", std::to_string(wrong));
    report("turns", std::to_string(turn));
    report_failure(rank, st);
    close_timed(rank);
}

// Each batch has one good message, and is refused because of another one; nothing of it is sent.
void batch_refuse(Rank &rank)
{
    const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
    Box out(rank, 64), in(rank, 64);
    auto try_one = [&](const char *name, const Call &bad) {
        Batch batch;
        batch.add(out.call(SHC_SEND, next, kByte, 64));
        batch.add(bad);
        const shc_status st = batch.enqueue(rank, rank.streams[0]);
        report(name, std::string(shc_status_name(st)) + ": " + shc_cuda_failure());
    };
    Call nobody = in.call(SHC_RECV, last, kByte, 64);
    nobody.op.peer = rank.world;
    try_one("nobody", nobody);
    nobody.op.peer = SHC_ANY_SOURCE;
    try_one("any", nobody);
    char here[64];
    Call host = simple_call(SHC_SEND, SHC_UINT8, reinterpret_cast<shc_cu_address>(here), 8, 0, 0);
    host.op.peer = next;
    try_one("host", host);
    try_one("collective", simple_call(SHC_BROADCAST, SHC_UINT8, 0, 0, 0, 0));
    Graph graph(rank.streams[0]);
    try_one("captured", in.call(SHC_RECV, last, kByte, 64));
    report("graph", std::to_string(graph.end()));
    char info[4096];
    const bool none = shc_cuda_comm_info(rank.cuda, info, sizeof info) == SHC_OK &&
                      strstr(info, "messages=0\n") != nullptr;
    report("enqueued", none && rank.cuda->mail.count == 0 ? "no" : "yes");
    out.put(content(rank.rank, next, 0, 64));
    in.clear(64);
    Batch good;
    good.add(out.call(SHC_SEND, next, kByte, 64));
    good.add(in.call(SHC_RECV, last, kByte, 64));
    const bool right = Batch().enqueue(rank, rank.streams[0]) == SHC_OK &&
                       good.enqueue(rank, rank.streams[0]) == SHC_OK && rank.sync() &&
                       in.holds(content(last, rank.rank, 0, 64));
    report("goes_on", right ? "yes" : shc_cuda_failure());
}

// The last rank's driver refuses a wait in the middle of a batch: all its messages still end.
void batch_broken(Rank &rank)
{
    Boxes all = boxes(rank, 4 * static_cast<size_t>(rank.world), 14 * slot_of(rank) + 5);
    std::vector<Message> messages = messages_of(rank, all, 0);
    if (rank.rank == rank.world - 1)
        refuse_waits_behind(rank, rank.settings.number("waits", 0));
    shc_status st = enqueue_in_batch(rank, messages);
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    report_failure(rank, st);
    pthread_mutex_lock(&rank.cuda->state_lock);
    report("messages", std::to_string(shc_mail_count(rank.cuda)));
    report("done", std::to_string(shc_mail_done(rank.cuda)));
    pthread_mutex_unlock(&rank.cuda->state_lock);
    close_timed(rank);
}

// Rank 0 receives from all, each message on a stream of its own or all in a batch; the others come late.
void batch_late(Rank &rank)
{
    const auto n = static_cast<size_t>(rank.world);
    Boxes in = boxes(rank, n, 64);
    Batch batch;
    bool right = true;
    if (rank.rank != 0)
        await_report(rank, 0, "said=");
    for (int peer = 1; peer < rank.world && rank.rank == 0; peer++) {
        Box &box = *in[static_cast<size_t>(peer)];
        Call call = box.call(SHC_RECV, peer, kByte, 64);
        if (rank.settings.number("batched", 0))
            batch.add(call);
        else
            right = right && box.enqueue(call) == SHC_OK;
    }
    if (rank.rank != 0)
        right = in[0]->enqueue(in[0]->call(SHC_SEND, 0, kByte, 64)) == SHC_OK && in[0]->sync();
    right = right && batch.enqueue(rank, rank.streams[0]) == SHC_OK && rank.sync();
    for (auto &box : in)
        right = right && box->sync();
    report("right", right && shc_cuda_comm_error(rank.cuda) == SHC_OK ? "yes" : shc_cuda_failure());
}

} // namespace shmcoll::test
