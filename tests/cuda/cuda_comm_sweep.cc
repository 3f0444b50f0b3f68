// SPDX-License-Identifier: BSD-3-Clause
// Every operation, several dtypes, sizes around the chunk's, compared with a plain reference.
#include "tests/cuda/cuda_comm_rank.h"
#include "tests/support/ref.h"

#include <algorithm>
#include <numeric>

namespace shmcoll::test
{
namespace
{

constexpr uint8_t kGuard = 0xa5;
constexpr size_t kGuardBytes = 64;

struct Kind {
    shc_dtype dtype;
    shc_redop redop;
    uint32_t elem_bytes; // SHC_OPAQUE
};

size_t elem_bytes(const Kind &kind)
{
    return kind.dtype == SHC_OPAQUE ? kind.elem_bytes : shc_dtype_bytes(kind.dtype);
}

void put_value(shc_dtype dtype, int value, uint8_t *to)
{
    const auto f = static_cast<float>(value);
    const auto d = static_cast<double>(value);
    const uint32_t code = ref::is_narrow(dtype) ? ref::narrow(dtype).code(d) : 0;
    const auto narrow = static_cast<uint16_t>(code);
    switch (dtype) {
    case SHC_FLOAT32:
        memcpy(to, &f, sizeof f);
        break;
    case SHC_FLOAT64:
        memcpy(to, &d, sizeof d);
        break;
    case SHC_INT32:
        memcpy(to, &value, sizeof value);
        break;
    case SHC_BFLOAT16:
        memcpy(to, &narrow, sizeof narrow);
        break;
    default:
        *to = static_cast<uint8_t>(value);
    }
}

// The input of rank r, element by element: values that repeat late, and no NaN.
Bytes input_of(const Kind &kind, int rank, uint64_t count)
{
    const size_t bytes = elem_bytes(kind);
    Bytes all(count * bytes);
    for (uint64_t i = 0; i < count; i++) {
        const int value =
            static_cast<int>((i * 13 + i / 97 + static_cast<uint64_t>(rank) * 7) % 31);
        if (kind.dtype == SHC_OPAQUE)
            for (size_t b = 0; b < bytes; b++)
                all[i * bytes + b] = static_cast<uint8_t>(value * 3 + static_cast<int>(b));
        else
            put_value(kind.dtype, value - 9, &all[i * bytes]);
    }
    return all;
}

double factor_of(int rank)
{
    return 0.5 + rank;
}

struct Shape {
    shc_op_kind kind;
    Kind type;
    int root = 0;
    uint64_t count = 0;                            // elements
    std::vector<uint64_t> blocks = {};             // uneven
    std::vector<std::vector<uint64_t>> pairs = {}; // all_to_all
};

std::string text_of(const Shape &s)
{
    return std::string(shc_op_kind_name(s.kind)) + " of " + std::to_string(s.count) + " " +
           shc_dtype_name(s.type.dtype) + " root " + std::to_string(s.root);
}

class Case
{
  public:
    Case(Rank &rank, Shape shape) : rank_(rank), s_(std::move(shape)), size_(elem_bytes(s_.type)) {}

    // Returns "" if the result is right.
    std::string run(shc_cu_address in, shc_cu_address out)
    {
        const Bytes input = input_of(s_.type, rank_.rank, sum(in_counts()));
        const Bytes want = expected();
        Call call;
        call.op.kind = s_.kind;
        call.op.dtype = s_.type.dtype;
        call.op.redop = s_.type.redop;
        call.op.elem_bytes = s_.type.elem_bytes;
        call.op.root = s_.root;
        call.op.premul = factor_of(rank_.rank);
        add_tensors(call.in, call.in_sizes, in, in_counts(), size_);
        add_tensors(call.out, call.out_sizes, out + kGuardBytes, out_counts(), size_);
        rank_.put(in, input);
        rank_.put(out, Bytes(want.size() + 2 * kGuardBytes, kGuard));
        if (shc_cuda_comm_enqueue(rank_.cuda, call.ready(), rank_.streams[0]) != SHC_OK)
            return shc_cuda_failure();
        if (!rank_.sync() || shc_cuda_comm_error(rank_.cuda) != SHC_OK)
            return shc_cuda_failure();
        return compare(rank_.get(out, want.size() + 2 * kGuardBytes), want);
    }

  private:
    static uint64_t sum(const std::vector<uint64_t> &counts)
    {
        return std::accumulate(counts.begin(), counts.end(), uint64_t(0));
    }
    bool is_root() const { return s_.root == rank_.rank; }
    size_t me() const { return static_cast<size_t>(rank_.rank); }
    size_t world() const { return static_cast<size_t>(rank_.world); }
    std::vector<uint64_t> column() const
    {
        std::vector<uint64_t> counts;
        for (auto &row : s_.pairs)
            counts.push_back(row[me()]);
        return counts;
    }

    std::vector<uint64_t> in_counts() const
    {
        switch (s_.kind) {
        case SHC_BARRIER:
            return {};
        case SHC_BROADCAST:
            return is_root() ? std::vector<uint64_t>{s_.count} : std::vector<uint64_t>{};
        case SHC_SCATTER:
            return is_root() ? std::vector<uint64_t>(world(), s_.count) : std::vector<uint64_t>{};
        case SHC_REDUCE_SCATTER:
            return {s_.count * world()};
        case SHC_REDUCE_SCATTER_UNEVEN:
            return s_.blocks;
        case SHC_ALL_GATHER_UNEVEN:
            return {s_.blocks[me()]};
        case SHC_ALL_TO_ALL:
            return s_.pairs[me()];
        default:
            return {s_.count};
        }
    }

    std::vector<uint64_t> out_counts() const
    {
        switch (s_.kind) {
        case SHC_BARRIER:
            return {};
        case SHC_BROADCAST:
            return is_root() ? std::vector<uint64_t>{} : std::vector<uint64_t>{s_.count};
        case SHC_REDUCE:
            return is_root() ? std::vector<uint64_t>{s_.count} : std::vector<uint64_t>{};
        case SHC_GATHER:
            return is_root() ? std::vector<uint64_t>(world(), s_.count) : std::vector<uint64_t>{};
        case SHC_ALL_GATHER:
            return {s_.count * world()};
        case SHC_ALL_GATHER_UNEVEN:
            return s_.blocks;
        case SHC_REDUCE_SCATTER_UNEVEN:
            return {s_.blocks[me()]};
        case SHC_ALL_TO_ALL:
            return column();
        default:
            return {s_.count};
        }
    }

    Bytes reduced(uint64_t total, uint64_t from, uint64_t count) const
    {
        std::vector<Bytes> inputs;
        std::vector<double> factors;
        for (int r = 0; r < rank_.world; r++) {
            inputs.push_back(input_of(s_.type, r, total));
            factors.push_back(factor_of(r));
        }
        std::vector<const uint8_t *> sources;
        for (auto &one : inputs)
            sources.push_back(one.data());
        Bytes out(count * size_);
        for (uint64_t i = 0; i < count; i++)
            ref::reduce(s_.type.dtype, s_.type.redop, sources, from + i, factors.data(),
                        &out[i * size_]);
        return out;
    }

    void append(Bytes &out, int r, uint64_t total, uint64_t from, uint64_t count) const
    {
        const Bytes all = input_of(s_.type, r, total);
        out.insert(out.end(), all.begin() + static_cast<long>(from * size_),
                   all.begin() + static_cast<long>((from + count) * size_));
    }

    Bytes expected() const
    {
        Bytes out;
        const uint64_t n = world();
        const auto &b = s_.blocks;
        switch (s_.kind) {
        case SHC_ALL_REDUCE:
            return reduced(s_.count, 0, s_.count);
        case SHC_REDUCE:
            return is_root() ? reduced(s_.count, 0, s_.count) : out;
        case SHC_REDUCE_SCATTER:
            return reduced(n * s_.count, me() * s_.count, s_.count);
        case SHC_REDUCE_SCATTER_UNEVEN:
            return reduced(sum(b), sum({b.begin(), b.begin() + rank_.rank}), b[me()]);
        case SHC_BROADCAST:
            if (!is_root())
                append(out, s_.root, s_.count, 0, s_.count);
            return out;
        case SHC_SCATTER:
            append(out, s_.root, n * s_.count, me() * s_.count, s_.count);
            return out;
        case SHC_ALL_TO_ALL:
            for (size_t r = 0; r < world(); r++)
                append(out, static_cast<int>(r), sum(s_.pairs[r]),
                       sum({s_.pairs[r].begin(), s_.pairs[r].begin() + rank_.rank}),
                       s_.pairs[r][me()]);
            return out;
        case SHC_GATHER:
        case SHC_ALL_GATHER:
        case SHC_ALL_GATHER_UNEVEN:
            for (size_t r = 0; r < world() && (is_root() || s_.kind != SHC_GATHER); r++)
                append(out, static_cast<int>(r), b.empty() ? s_.count : b[r], 0,
                       b.empty() ? s_.count : b[r]);
            return out;
        default:
            return out;
        }
    }

    std::string compare(const Bytes &got, const Bytes &want) const
    {
        for (size_t i = 0; i < kGuardBytes; i++)
            if (got[i] != kGuard || got[got.size() - 1 - i] != kGuard)
                return "wrote outside of the output";
        const uint8_t *inside = got.data() + kGuardBytes;
        if (want.empty() || memcmp(inside, want.data(), want.size()) == 0)
            return "";
        for (size_t i = 0; i < want.size(); i += size_)
            if (s_.type.dtype == SHC_OPAQUE ? memcmp(inside + i, &want[i], size_) != 0
                                            : !ref::same(s_.type.dtype, inside + i, &want[i]))
                return "element " + std::to_string(i / size_) + " differs";
        return "";
    }

    Rank &rank_;
    Shape s_;
    size_t size_;
};

struct Sweep {
    Rank &rank;
    shc_cu_address in, out;
    int cases = 0, wrong = 0;

    void one(const Shape &shape)
    {
        const std::string what = Case(rank, shape).run(in, out);
        cases++;
        if (what.empty())
            return;
        if (wrong++ == 0)
            report("wrong_first", text_of(shape) + ": " + what);
    }
};

std::vector<uint64_t> counts_around(size_t chunk_bytes, size_t elem, bool few)
{
    const uint64_t chunk = chunk_bytes / elem;
    if (few)
        return {0, 1, chunk + 1, 3 * chunk + 5};
    return {0, 1, 7, 33, chunk - 1, chunk, chunk + 1, 3 * chunk + 5};
}

void even_operations(Sweep &sweep, size_t half, bool few)
{
    const Kind moved[] = {
        {SHC_FLOAT32, SHC_SUM, 0}, {SHC_UINT8, SHC_SUM, 0}, {SHC_OPAQUE, SHC_SUM, 12}};
    const Kind summed[] = {{SHC_FLOAT32, SHC_SUM, 0},
                           {SHC_BFLOAT16, SHC_AVG, 0},
                           {SHC_INT32, SHC_MAX, 0},
                           {SHC_FLOAT64, SHC_PREMUL_SUM, 0},
                           {SHC_UINT8, SHC_BXOR, 0}};
    const int last = sweep.rank.world - 1;
    const size_t n = static_cast<size_t>(sweep.rank.world);
    for (const Kind &kind : moved) {
        const size_t elem = elem_bytes(kind);
        for (uint64_t count : counts_around(half, elem, few)) {
            sweep.one({SHC_BROADCAST, kind, last, count});
            sweep.one({SHC_ALL_GATHER, kind, 0, count});
            sweep.one({SHC_GATHER, kind, last, count});
        }
        for (uint64_t count : counts_around(half / n / 128 * 128, elem, few))
            sweep.one({SHC_SCATTER, kind, last, count});
    }
    for (const Kind &kind : summed) {
        const size_t elem = elem_bytes(kind);
        for (uint64_t count : counts_around(half, elem, few)) {
            sweep.one({SHC_ALL_REDUCE, kind, 0, count});
            sweep.one({SHC_REDUCE, kind, last, count});
        }
        for (uint64_t count : counts_around(half / n / 128 * 128, elem, few))
            sweep.one({SHC_REDUCE_SCATTER, kind, 0, count});
    }
    sweep.one({SHC_BARRIER, {SHC_UINT8, SHC_SUM, 0}});
}

void uneven_operations(Sweep &sweep, size_t half)
{
    const size_t n = static_cast<size_t>(sweep.rank.world);
    const Kind kind = {SHC_FLOAT32, SHC_SUM, 0};
    for (uint64_t turn = 0; turn < 3; turn++) {
        std::vector<uint64_t> blocks;
        std::vector<std::vector<uint64_t>> pairs(n);
        for (uint64_t r = 0; r < n; r++) {
            blocks.push_back((r + turn) % 3 == 0 ? 0 : (r * 331 + turn * 57) % (half / 2));
            for (uint64_t to = 0; to < n; to++)
                pairs[r].push_back(turn == 0 ? 11 : (r * 7 + to * 131 + turn) % (half / 8));
        }
        sweep.one({SHC_ALL_GATHER_UNEVEN, kind, 0, 0, blocks});
        sweep.one({SHC_REDUCE_SCATTER_UNEVEN, kind, 0, 0, blocks});
        sweep.one({SHC_ALL_TO_ALL, kind, 0, 0, {}, pairs});
    }
}

} // namespace

void sweep(Rank &rank)
{
    const auto half = static_cast<size_t>(rank.settings.number("half", 4096));
    const size_t room = 16 * half * static_cast<size_t>(rank.world) + (1 << 16);
    Sweep sweep{rank, rank.allocate(room), rank.allocate(room)};
    even_operations(sweep, half, rank.settings.number("few", 0) != 0);
    uneven_operations(sweep, half);
    report("cases", std::to_string(sweep.cases));
    report("wrong", std::to_string(sweep.wrong));
}

// Which operations go by the relay: its limit is what the largest cell of any rank has to hold; each one
// by as many of its rounds.
void limits(Rank &rank)
{
    const auto limit = rank.cuda->relay.limit, n = static_cast<size_t>(rank.world),
               each = limit / n;
    const Kind bytes = {SHC_UINT8, SHC_SUM, 0};
    const size_t room = 2 * n * limit;
    Sweep sweep{rank, rank.allocate(room), rank.allocate(room)};
    int strayed = 0;
    const auto one = [&](const Shape &shape, uint64_t rounds) {
        const uint64_t before = rank.cuda->relay.round;
        sweep.one(shape);
        if (rank.cuda->relay.round - before != rounds && strayed++ == 0)
            report("strayed_first", text_of(shape));
    };
    const auto pairs = [&](size_t from, size_t to, uint64_t count) {
        std::vector<std::vector<uint64_t>> all(n, std::vector<uint64_t>(n, 3));
        all[from][to] = count;
        return Shape{SHC_ALL_TO_ALL, bytes, 0, 0, {}, all};
    };
    for (uint64_t over : {0, 1}) {
        one({SHC_BROADCAST, bytes, 1, limit + over}, 1 - over);
        one({SHC_ALL_REDUCE, bytes, 0, limit + over}, (n > 2 ? 2 : 1) * (1 - over));
        one({SHC_REDUCE, bytes, 1, limit + over}, 1 - over);
        for (shc_op_kind kind : {SHC_ALL_GATHER, SHC_GATHER, SHC_SCATTER, SHC_REDUCE_SCATTER})
            one({kind, bytes, 0, each + over}, 1 - over);
        std::vector<uint64_t> blocks(n, 7);
        blocks[n - 1] = each + over;
        one({SHC_ALL_GATHER_UNEVEN, bytes, 0, 0, blocks}, 1 - over);
        one({SHC_REDUCE_SCATTER_UNEVEN, bytes, 0, 0, blocks}, 1 - over);
        one(pairs(0, 1, each + over), 1 - over);
        one(pairs(1, 1, each + over), 1 - over); // for itself
    }
    one(pairs(1, 1, 2 * limit), 0);
    one({SHC_ALL_REDUCE, bytes, 0, 32 << 10}, 1);
    one({SHC_BARRIER, bytes}, 1);
    report("wrong", std::to_string(sweep.wrong));
    report("strayed", std::to_string(strayed));
}

// In two rounds a chunk, like large sums where each rank has a GPU of its own; a chunk is a half, and
// there are three chunks, of which the last one is short.
void large(Rank &rank)
{
    const uint64_t half = rank.cuda->half_bytes, bytes = 2 * half + half / 8;
    Sweep sweep{rank, rank.allocate(bytes), rank.allocate(bytes + 2 * kGuardBytes)};
    sweep.one({SHC_ALL_REDUCE, {SHC_INT32, SHC_SUM, 0}, 0, bytes / 4});
    report("cases", std::to_string(sweep.cases));
    report("wrong", std::to_string(sweep.wrong));
    report("rounds", std::to_string(rank.cuda->round));
}

} // namespace shmcoll::test
