// SPDX-License-Identifier: BSD-3-Clause
// Messages between ranks: sizes around the slot's, orders, ends that differ, and what happens to a
// message that is in flight.
#include "tests/cuda/box.h"

namespace shmcoll::test
{
namespace
{

// Every rank sends to every rank, also to itself. Returns "" if all is right.
std::string exchange(Rank &rank, Boxes &out, Boxes &in, const Type &type, uint64_t count,
                     uint64_t number)
{
    auto bytes_of = [&](int from, int to) {
        return type.elem_bytes * (count + (from == to ? 1 : 0));
    };
    for (int peer = 0; peer < rank.world; peer++) {
        const auto p = static_cast<size_t>(peer);
        out[p]->put(content(rank.rank, peer, number, bytes_of(rank.rank, peer)));
        in[p]->clear(bytes_of(peer, rank.rank));
    }
    for (bool sends : {number % 2 == 0, number % 2 != 0})
        for (int peer = 0; peer < rank.world; peer++) {
            const uint64_t elements = count + (peer == rank.rank ? 1 : 0);
            Box &box = *(sends ? out : in)[static_cast<size_t>(peer)];
            const auto kind = sends ? SHC_SEND : SHC_RECV;
            if (box.enqueue(box.call(kind, peer, type, elements, 7)) != SHC_OK)
                return shc_cuda_failure();
        }
    for (size_t p = 0; p < out.size(); p++)
        if (!out[p]->sync() || !in[p]->sync())
            return "a stream broke";
    if (shc_cuda_comm_error(rank.cuda) != SHC_OK)
        return shc_cuda_failure();
    for (int peer = 0; peer < rank.world; peer++)
        if (!in[static_cast<size_t>(peer)]->holds(
                content(peer, rank.rank, number, bytes_of(peer, rank.rank))))
            return "other data from rank " + std::to_string(peer);
    return "";
}

} // namespace

void mail_sweep(Rank &rank)
{
    const size_t slot =
        shc_mail_slot_bytes(static_cast<size_t>(rank.settings.number("half", 4096)), rank.world);
    const auto n = static_cast<size_t>(rank.world);
    Boxes out = boxes(rank, n, 40 * slot), in = boxes(rank, n, 40 * slot);
    uint64_t number = 0, wrong = 0;
    for (const Type &type : {kByte, kLong, kOpaque}) {
        const size_t one = slot / type.elem_bytes;
        for (uint64_t count : {size_t{0}, size_t{1}, one - 1, one, one + 1, 2 * one, 2 * one + 1,
                               3 * one, 9 * one + 5}) {
            const std::string what = exchange(rank, out, in, type, count, ++number);
            wrong += !what.empty();
            if (!what.empty())
                report("what",
                       std::to_string(count) + " " + shc_dtype_name(type.dtype) + ": " + what);
        }
    }
    report("cases", std::to_string(number));
    report("wrong", std::to_string(wrong));
}

// On one stream: first sends, then receives. A message that fits two slots needs no receiver.
void mail_ring(Rank &rank)
{
    const size_t slot = shc_mail_slot_bytes(4096, rank.world);
    Box out(rank, 2 * slot), in(rank, 2 * slot);
    const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
    bool right = true;
    for (uint64_t turn = 0; turn < 20 && right; turn++) {
        const size_t bytes = turn % 3 == 0 ? 2 * slot : turn % 3 == 1 ? slot / 2 : 0;
        out.put(content(rank.rank, next, turn, bytes));
        in.clear(bytes);
        in.enqueue(out.call(SHC_SEND, next, kByte, bytes));
        in.enqueue(in.call(SHC_RECV, last, kByte, bytes));
        right = in.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK &&
                in.holds(content(last, rank.rank, turn, bytes));
    }
    report("right", right ? "yes" : shc_cuda_failure());
}

// Messages go round: each rank passes on what came, more often than there are records; with collectives
// on another stream.
void mail_chain(Rank &rank)
{
    constexpr size_t kBytes = 1400;
    constexpr int kTurns = 3 * SHC_RECORDS / 2;
    Boxes box = boxes(rank, 2, kBytes);
    const shc_cu_address sum = rank.allocate(kBytes);
    const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
    rank.put(sum, Bytes(kBytes, 1));
    box[0]->put(content(rank.rank, 0, 0, kBytes));
    box[1]->clear(kBytes);
    uint8_t want = 1;
    bool ok = true;
    for (int turn = 0; turn < kTurns && ok; turn++) {
        Box &out = *box[static_cast<size_t>(turn % 2)],
            &in = *box[static_cast<size_t>(1 - turn % 2)];
        Call send = out.call(SHC_SEND, next, kByte, kBytes);
        Call receive = in.call(SHC_RECV, last, kByte, kBytes);
        Call all = simple_call(SHC_ALL_REDUCE, SHC_UINT8, sum, kBytes, sum, kBytes);
        // The box is not written before it has been sent: both are on its stream.
        ok = shc_cuda_comm_enqueue(rank.cuda, send.ready(), box[0]->stream) == SHC_OK &&
             shc_cuda_comm_enqueue(rank.cuda, receive.ready(), box[0]->stream) == SHC_OK &&
             shc_cuda_comm_enqueue(rank.cuda, all.ready(), rank.streams[0]) == SHC_OK;
        want = static_cast<uint8_t>(want * rank.world);
    }
    ok = ok && box[0]->sync() && rank.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    const int first = (rank.rank + kTurns * (rank.world - 1)) % rank.world;
    const bool right = ok && rank.get(sum, kBytes) == Bytes(kBytes, want) &&
                       box[kTurns % 2]->get(kBytes) == content(first, 0, 0, kBytes);
    report("right", right ? "yes" : ok ? "other data" : shc_cuda_failure());
}

// More messages on their way to a slow rank than there are records, on two streams in turn.
void mail_ahead(Rank &rank)
{
    constexpr int kMessages = 3 * SHC_RECORDS;
    const int last = rank.world - 1;
    const size_t bytes = 96;
    Boxes box = boxes(rank, kMessages, bytes);
    bool right = true;
    for (int i = 0; i < kMessages && rank.rank != last; i++) {
        Box &one = *box[static_cast<size_t>(i)];
        one.put(content(rank.rank, last, static_cast<uint64_t>(i), bytes));
        Call call = one.call(SHC_SEND, last, kByte, bytes, i);
        right =
            right && shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[i % 2]) == SHC_OK;
    }
    for (int from = 0; from < last && rank.rank == last; from++) {
        for (int i = 0; i < kMessages; i++) {
            Box &one = *box[static_cast<size_t>(i)];
            one.clear(bytes);
            Call call = one.call(SHC_RECV, from, kByte, bytes, i);
            right = right &&
                    shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[i % 2]) == SHC_OK;
        }
        right = right && rank.sync(0) && rank.sync(1);
        for (int i = 0; i < kMessages; i++)
            right = right && box[static_cast<size_t>(i)]->holds(
                                 content(from, last, static_cast<uint64_t>(i), bytes));
    }
    right = right && rank.sync(0) && rank.sync(1) && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    report("right", right ? "yes" : shc_cuda_failure());
}

// Rank 0 sends, the last rank receives: four messages, and in the fourth they differ.
void mail_differ(Rank &rank)
{
    const std::string field = rank.settings.word("field", "");
    const int last = rank.world - 1;
    const bool sends = rank.rank == 0;
    Box box(rank, 1 << 16);
    box.clear(1 << 16);
    shc_status st = SHC_OK;
    for (int i = 0; i < 8 && st == SHC_OK && (sends || rank.rank == last); i++) {
        const bool odd = !sends && i == 3;
        Type type = field == "elem" || field == "type" ? kOpaque : kLong;
        uint64_t count = i == 3 ? 48 : 0;
        if (odd && field == "dtype")
            type.dtype = SHC_FLOAT64;
        if (odd && field == "elem") {
            type.elem_bytes = 24;
            count = 24;
        }
        if (odd && field == "count")
            count++;
        if (odd && field == "pieces")
            count = 4000;
        Call call = box.call(sends ? SHC_SEND : SHC_RECV, sends ? last : 0, type, count,
                             odd && field == "tag" ? 9 : 5);
        call.op.dtype_tag = odd && field == "type" ? 3 : 2;
        st = box.enqueue(call);
    }
    // The sender has only its own record.
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    box.sync();
    report("changed", box.holds(Bytes(1 << 16, kGuard)) ? "no" : "yes");
    report_failure(rank, st);
}

// Messages go round until the group fails; a turn that ends without a failure must be right.
void mail_endless(Rank &rank)
{
    const std::string act = rank.settings.word("act", "");
    const bool actor = rank.rank == rank.world - 1;
    const size_t slot = shc_mail_slot_bytes(4096, rank.world), bytes = 5 * slot + 24;
    const int next = (rank.rank + 1) % rank.world, last = (rank.rank + rank.world - 1) % rank.world;
    Box out(rank, bytes), in(rank, bytes);
    shc_status st = SHC_OK;
    uint64_t wrong = 0, turn = 0;
    for (; st == SHC_OK; turn++) {
        out.put(content(rank.rank, next, turn, bytes));
        in.clear(bytes);
        if (turn == 3)
            report("ready", "yes");
        if (actor && turn == 4 && act == "close")
            break;
        if (actor && turn == 4 && act == "idle") { // never comes
            idle_until_failed(rank);
            break;
        }
        if (!actor && turn == 4 && act == "half") { // no rank receives
            while (st == SHC_OK)
                st = shc_cuda_comm_error(rank.cuda);
            break;
        }
        st = out.enqueue(out.call(SHC_SEND, next, kByte, bytes));
        if (st == SHC_OK && actor && turn == 4 && act == "abort")
            shc_cuda_comm_abort(rank.cuda, "enough");
        if (st == SHC_OK && actor && turn == 4 &&
            act == "half") // and leaves with a message in flight
            break;
        if (st == SHC_OK)
            st = in.enqueue(in.call(SHC_RECV, last, kByte, bytes));
        out.sync();
        in.sync();
        if (st == SHC_OK)
            st = shc_cuda_comm_error(rank.cuda);
        if (st == SHC_OK)
            wrong += !in.holds(content(last, rank.rank, turn, bytes));
    }
    report("wrong", std::to_string(wrong));
    report("turns", std::to_string(turn));
    if (st != SHC_OK)
        report_failure(rank, st);
    close_timed(rank);
    out.sync();
    in.sync();
    report("closed_ns", std::to_string(shc_clock_ns()));
}

// Rank 0 sends slow rank 1 more than the slots hold. Rank 2 aborts when rank 1 has taken a piece and is
// about to copy the next one: rank 0's wait ends, and rank 0 must not write over that piece.
void mail_poison(Rank &rank)
{
    const size_t slot = shc_mail_slot_bytes(4096, rank.world), pieces = 6, bytes = pieces * slot;
    Box box(rank, bytes);
    const Bytes sent = content(0, 1, 3, bytes);
    shc_status st = SHC_OK;
    box.clear(bytes);
    if (rank.rank == 0)
        box.put(sent);
    barrier_of_cpus(rank);
    if (rank.rank < 2)
        st = box.enqueue(
            box.call(rank.rank == 0 ? SHC_SEND : SHC_RECV, 1 - rank.rank, kByte, bytes));
    // acquire cuda/mail <- release in the device.
    while (rank.rank == 2 &&
           shc_a64_load_acquire(&shc_host_word(&rank.cuda->host, 0, SHC_ROW_TAKEN, 1)->word) < 1)
        usleep(100);
    if (rank.rank == 2) {
        usleep(static_cast<useconds_t>(rank.settings.number("after_us", 0)));
        shc_cuda_comm_abort(rank.cuda, "enough");
    }
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    report("ended", box.sync() ? "yes" : "no");
    int whole = 0, torn = 0;
    const Bytes found = box.get(bytes);
    for (size_t p = 0; p < pieces && rank.rank == 1; p++) {
        const Bytes piece(found.begin() + static_cast<ptrdiff_t>(p * slot),
                          found.begin() + static_cast<ptrdiff_t>((p + 1) * slot));
        const bool right =
            std::equal(piece.begin(), piece.end(), sent.begin() + static_cast<ptrdiff_t>(p * slot));
        whole += right;
        torn += !right && piece != Bytes(slot, kGuard);
    }
    report("whole", std::to_string(whole));
    report("torn", std::to_string(torn));
}

// The last rank sends two messages that fit the slots, and leaves. Rank 0 receives them after that,
// and then wants one more, or sends one.
void mail_leave(Rank &rank)
{
    const int last = rank.world - 1;
    const size_t bytes = 100;
    Boxes box = boxes(rank, 3, bytes);
    for (uint64_t i = 0; i < 2 && rank.rank == last; i++) {
        box[i]->put(content(last, 0, i, bytes));
        if (box[i]->enqueue(box[i]->call(SHC_SEND, 0, kByte, bytes)) != SHC_OK)
            die("send");
    }
    if (rank.rank == last) {
        close_timed(rank);
        report("right", shc_cuda_comm_error(rank.cuda) == SHC_ERR_CLOSED ? "yes" : "no");
        return;
    }
    // acquire cuda/left <- release in shc_cuda_comm_close().
    while (shc_a64_load_acquire(&shc_host_part(&rank.cuda->host, last)->left.word) == 0)
        usleep(1000);
    bool right = true;
    for (uint64_t i = 0; i < 2 && rank.rank == 0; i++) {
        box[i]->clear(bytes);
        right = right && box[i]->enqueue(box[i]->call(SHC_RECV, last, kByte, bytes)) == SHC_OK &&
                box[i]->sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK &&
                box[i]->holds(content(last, 0, i, bytes));
    }
    report("right", right ? "yes" : shc_cuda_failure());
    const bool sends = rank.settings.word("then", "") == "send";
    shc_status st = SHC_OK;
    if (rank.rank == 0)
        st = box[2]->enqueue(box[2]->call(sends ? SHC_SEND : SHC_RECV, last, kByte, bytes));
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    report_failure(rank, st);
}

} // namespace shmcoll::test
