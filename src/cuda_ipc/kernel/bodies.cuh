/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernels, once for GPUs (kernels.cu) and for their twins on the CPU
 * (tests/cuda/twins.cc). Include a machine before this: device.cuh, or the twins' own.
 *
 * A kernel is a struct: Args, what a block's threads share, and steps. All threads of a block have
 * done a step before one begins the next. No thread waits for another block, or for another rank.
 */
#pragma once

#include "cuda_ipc/kernel/combine.cuh"

namespace shmcoll::kernel
{

struct Nothing {
};

SHC_DEVICE bool is_open(const uint32_t *gate)
{
    return load<uint32_t>(gate) == SHC_GATE_OPEN;
}

SHC_DEVICE uint64_t address_of(const void *p)
{
    return reinterpret_cast<uint64_t>(p);
}

/* ---- the gate ---- */

struct Gate {
    using Args = shc_gate_args;
    struct Shared {
        uint32_t late;    /* the lowest rank that has not arrived ... */
        uint32_t differs; /* ... and that made another call */
        uint32_t passes;  /* a captured round is completed */
    };
    static constexpr int kSteps = 5;
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr uint32_t kWords = 1 + SHC_RECORD_CALL_WORDS; /* that must be the same */

    SHC_DEVICE static void arrivals(const Lane &lane, const Args &args, Shared &shared)
    {
        for (uint32_t r = lane.thread; r < uint32_t(args.world); r += lane.threads) {
            const uint64_t round = load_acquire(args.arrived + r * args.arrived_stride);
            if (round < args.round || round >= args.poison)
                lower(&shared.late, r);
        }
    }

    SHC_DEVICE static void captured_arrivals(const Lane &lane, const Args &args, Shared &shared)
    {
        for (uint32_t r = lane.thread; r < uint32_t(args.world); r += lane.threads) {
            if (r == uint32_t(args.rank))
                continue;
            const uint64_t word = load_acquire(args.arrived + r * args.arrived_stride);
            if (word == 0 || word >= args.poison)
                lower(&shared.late, r);
            else if (word != args.round)
                lower(&shared.differs, r);
        }
    }

    /* A thread compares a word, not a record: so all loads are on their way at once. */
    SHC_DEVICE static void records(const Lane &lane, const Args &args, Shared &shared)
    {
        for (uint32_t i = lane.thread; i < uint32_t(args.world) * kWords; i += lane.threads) {
            const uint32_t r = i / kWords, w = i % kWords;
            const char *first = args.records + w * sizeof(uint64_t);
            const uint64_t theirs = load_relaxed(first + r * args.record_stride);
            if (theirs != (w == 0 ? args.sequence : load_relaxed(first)))
                lower(&shared.differs, r);
        }
    }

    SHC_DEVICE static void decide(const Args &args, Shared &shared)
    {
        uint64_t state = SHC_GATE_OPEN, rank = 0;
        const uint32_t before = load<uint32_t>(args.gate);
        if (before != SHC_GATE_UNSET && before != SHC_GATE_OPEN)
            return; /* shut for good: later work is of a failed group */
        const bool aborted = load_acquire(args.aborted) != 0;
        if (shared.late != kNone) {
            state = SHC_GATE_ABORTED;
            rank = shared.late;
        } else if (shared.differs != kNone && (args.passed == nullptr || !aborted)) {
            state = SHC_GATE_MISMATCH;
            rank = shared.differs;
        } else if (aborted) {
            state = SHC_GATE_ABORTED;
            rank = uint64_t(args.rank);
        }
        shared.passes = args.passed != nullptr && state == SHC_GATE_OPEN && is_open(args.gate);
        if (args.records == nullptr && (state == SHC_GATE_OPEN || !is_open(args.gate)))
            return;
        store<uint32_t>(args.gate, uint32_t(state));
        if (state == SHC_GATE_OPEN || load_relaxed(args.verdict) != 0)
            return;
        if (args.passed != nullptr && state == SHC_GATE_MISMATCH)
            store_release(args.verdict + 1,
                          load_relaxed(args.arrived + rank * args.arrived_stride));
        store_release(args.verdict, SHC_VERDICT(args.sequence, rank, state));
    }

    /* A CPU that sees the count sees that the operation waits no more. */
    SHC_DEVICE static void pass(const Lane &lane, const Args &args)
    {
        for (uint32_t r = lane.thread; r < uint32_t(args.world); r += lane.threads)
            if (r != uint32_t(args.rank))
                store_release(const_cast<char *>(args.arrived) + r * args.arrived_stride, 0);
        if (lane.thread != 0)
            return;
        if (args.busy != nullptr)
            store_release(args.busy, args.busy_value);
        store_release(args.passed, load_relaxed(args.passed) + 1);
    }

    SHC_DEVICE static void step(int step, const Lane &lane, const Args &args, Shared &shared)
    {
        if (step == 0 && lane.thread == 0) {
            shared.late = shared.differs = kNone;
            shared.passes = 0;
        }
        if (step == 1 && args.passed == nullptr)
            arrivals(lane, args, shared);
        if (step == 1 && args.passed != nullptr)
            captured_arrivals(lane, args, shared);
        if (step == 2 && args.records != nullptr && shared.late == kNone)
            records(lane, args, shared);
        if (step == 3 && lane.thread == 0)
            decide(args, shared);
        if (step == 4 && shared.passes != 0)
            pass(lane, args);
    }
};

/* ---- the copy ---- */

/* A run of a piece, by words of type T: both addresses are equally far from a word's beginning. */
template <class T>
SHC_DEVICE void copy_run(const Lane &lane, const shc_copy_piece &piece, uint64_t run)
{
    constexpr uint64_t kAtOnce = 4, kRun = SHC_COPY_RUN_BYTES / sizeof(T);
    char *to = static_cast<char *>(piece.to);
    const char *from = static_cast<const char *>(piece.from);
    const uint64_t ahead = -address_of(to) % sizeof(T);
    const uint64_t head = ahead < piece.bytes ? ahead : piece.bytes;
    const uint64_t words = (piece.bytes - head) / sizeof(T), tail = head + words * sizeof(T);
    const uint64_t first = run * kRun, end = first + kRun < words ? first + kRun : words;
    if (run == 0) {
        for (uint64_t i = lane.thread; i < head; i += lane.threads)
            store(to + i, load<char>(from + i));
        for (uint64_t i = tail + lane.thread; i < piece.bytes; i += lane.threads)
            store(to + i, load<char>(from + i));
    }
    to += head;
    from += head;
    for (uint64_t i = first + lane.thread; i < end; i += kAtOnce * lane.threads) {
        T word[kAtOnce];
        for (uint64_t k = 0; k < kAtOnce; k++)
            if (i + k * lane.threads < end)
                word[k] = load<T>(from + (i + k * lane.threads) * sizeof(T));
        for (uint64_t k = 0; k < kAtOnce; k++)
            if (i + k * lane.threads < end)
                store(to + (i + k * lane.threads) * sizeof(T), word[k]);
    }
}

struct Copy {
    using Args = shc_copy_args;
    using Shared = Nothing;
    static constexpr int kSteps = 1;

    SHC_DEVICE static void copy(const Lane &lane, const shc_copy_piece &piece, uint64_t run)
    {
        const uint64_t apart = address_of(piece.to) ^ address_of(piece.from);
        if (apart % 16 == 0)
            copy_run<Word>(lane, piece, run);
        else if (apart % 8 == 0)
            copy_run<uint64_t>(lane, piece, run);
        else if (apart % 4 == 0)
            copy_run<uint32_t>(lane, piece, run);
        else if (apart % 2 == 0)
            copy_run<uint16_t>(lane, piece, run);
        else
            copy_run<char>(lane, piece, run);
    }

    /* The runs of all pieces, one after another, go to the blocks in turn. */
    SHC_DEVICE static void step(int, const Lane &lane, const Args &args, Shared &)
    {
        if (!is_open(args.gate))
            return;
        uint64_t run = lane.block; /* this block's next, counted in the piece */
        for (uint32_t i = 0; i < args.count; i++) {
            const uint64_t runs =
                (args.piece[i].bytes + SHC_COPY_RUN_BYTES - 1) / SHC_COPY_RUN_BYTES;
            for (; run < runs; run += lane.grid)
                copy(lane, args.piece[i], run);
            run -= runs;
        }
    }
};

/* ---- reductions ---- */

/* An element that may lie anywhere. */
template <class T>
SHC_DEVICE T load_any(const char *from, bool aligned)
{
    if (aligned)
        return load<T>(from);
    T value;
    for (size_t i = 0; i < sizeof(T); i++)
        reinterpret_cast<char *>(&value)[i] = load<char>(from + i);
    return value;
}

template <class T>
SHC_DEVICE void store_any(char *to, T value, bool aligned)
{
    if (aligned) {
        store(to, value);
        return;
    }
    for (size_t i = 0; i < sizeof(T); i++)
        store(to + i, reinterpret_cast<const char *>(&value)[i]);
}

/* How (combine.cuh) says what one element is, and what is done with it. */
template <class How>
struct Reduce {
    using Args = shc_reduce_args;
    using Mem = typename How::Mem;
    using Acc = typename How::Acc;
    struct Factors {
        double of[SHC_MAX_WORLD];
    };
    using Shared = typename If<How::kScaled, Factors, Nothing>::Type;
    static constexpr int kSteps = How::kScaled ? 2 : 1;
    static constexpr uint64_t kElems = sizeof(Word) / sizeof(Mem);

    struct Elems {
        Mem of[kElems];
    };

    SHC_DEVICE static double factor(const Shared &shared, int rank)
    {
        if constexpr (How::kScaled)
            return shared.of[rank];
        else
            return 1;
    }

    SHC_DEVICE static void load_factors(const Lane &lane, const Args &args, Shared &shared)
    {
        if constexpr (How::kScaled)
            for (unsigned r = lane.thread; r < unsigned(args.world); r += lane.threads)
                shared.of[r] = shc_double_of(load_relaxed(args.factors + r * args.factor_stride));
    }

    SHC_DEVICE static const char *source(const Args &args, int rank)
    {
        return static_cast<const char *>(args.source[rank]);
    }

    SHC_DEVICE static Elems load_word(const char *from)
    {
        const Word word = load<Word>(from);
        Elems elems;
        memcpy(&elems, &word, sizeof elems);
        return elems;
    }

    /* All sources are read before the result is written: it may lie where one of them does. */
    SHC_DEVICE static void word_at(const Args &args, const Shared &shared, uint64_t offset)
    {
        Acc acc[kElems];
        const Elems first = load_word(source(args, 0) + offset);
        for (uint64_t k = 0; k < kElems; k++)
            acc[k] = How::take(first.of[k], factor(shared, 0));
        SHC_UNROLL(4) /* so many loads are on their way at once */
        for (int r = 1; r < args.world; r++) {
            const Elems next = load_word(source(args, r) + offset);
            for (uint64_t k = 0; k < kElems; k++)
                acc[k] = How::join(acc[k], How::take(next.of[k], factor(shared, r)));
        }
        Elems result;
        for (uint64_t k = 0; k < kElems; k++)
            result.of[k] = How::give(acc[k], args.world);
        Word word;
        memcpy(&word, &result, sizeof word);
        store(static_cast<char *>(args.out) + offset, word);
    }

    SHC_DEVICE static void element_at(const Args &args, const Shared &shared, uint64_t offset,
                                      bool aligned)
    {
        Acc acc = How::take(load_any<Mem>(source(args, 0) + offset, aligned), factor(shared, 0));
        SHC_UNROLL(1)
        for (int r = 1; r < args.world; r++)
            acc = How::join(acc, How::take(load_any<Mem>(source(args, r) + offset, aligned),
                                           factor(shared, r)));
        store_any(static_cast<char *>(args.out) + offset, How::give(acc, args.world), aligned);
    }

    SHC_DEVICE static void work(const Lane &lane, const Args &args, const Shared &shared)
    {
        const uint64_t index = uint64_t(lane.block) * lane.threads + lane.thread;
        const uint64_t stride = uint64_t(lane.grid) * lane.threads;
        const uint64_t count = args.count * How::kParts;
        uint64_t bits = address_of(args.out);
        for (int r = 0; r < args.world; r++)
            bits |= address_of(args.source[r]);
        const uint64_t words = bits % sizeof(Word) == 0 ? count / kElems : 0;
        for (uint64_t i = index; i < words; i += stride)
            word_at(args, shared, i * sizeof(Word));
        for (uint64_t i = words * kElems + index; i < count; i += stride)
            element_at(args, shared, i * sizeof(Mem), bits % alignof(Mem) == 0);
    }

    SHC_DEVICE static void step(int step, const Lane &lane, const Args &args, Shared &shared)
    {
        if (!is_open(args.gate))
            return;
        if (step + 1 < kSteps)
            load_factors(lane, args, shared);
        else
            work(lane, args, shared);
    }
};

} // namespace shmcoll::kernel
