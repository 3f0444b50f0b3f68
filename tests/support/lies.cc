// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/lies.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include "shm/proto/call.h"
}

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace shmcoll::test
{

namespace
{

using Random = std::mt19937_64;

// A word that is lied about: where it is in an operation, by its epoch; and perhaps in the memory of several ranks.
struct Word {
    std::vector<std::array<void *, 4>> places;
    unsigned bytes, shift; // 1, of the 4 there, so far up; 4; 8
};

class Liar
{
  public:
    Liar(shc_comm *comm, Lies lies, bool everywhere, uint64_t seed)
        : seat_(comm->seat), lies_(lies), everywhere_(everywhere),
          random_(seed * 2654435761u + 12345)
    {
        const int me = seat_.rank, world = seat_.world_size;
        const int first =
            everywhere ? static_cast<int>(random_() % static_cast<unsigned>(world)) : me;
        ranks_.push_back(first);
        for (int turn = 1; everywhere && random_() % 3 == 0 && turn < world; turn++)
            ranks_.push_back((first + turn) % world); // all tell the same lie
        for (int turns = 1 + static_cast<int>(random_() % 2); turns > 0; turns--)
            draw();
    }

    // In the operation that this rank is in, or in the next one.
    void lie_once()
    {
        shc_call call;
        const uint64_t epoch = shc_call_latest(&seat_, seat_.rank, &call) + random_() % 2;
        const Word &word = words_[random_() % words_.size()];
        const uint64_t truth = load(word, word.places[0][epoch % 4]), lie = lie_for(truth, epoch);
        for (const auto &place : word.places)
            store(word, place[epoch % 4], lie);
        for (uint64_t turns = random_() % (1 << random_() % 12); turns > 0; turns--)
            shc_cpu_relax();
        if (random_() % 8 == 0)
            return;
        for (const auto &place : word.places)
            store(word, place[epoch % 4], truth);
        for (uint64_t turns = random_() % (1 << random_() % 12); turns > 0; turns--)
            shc_cpu_relax();
    }

  private:
    // relaxed: these races are meant.
    static uint64_t load(const Word &word, void *place)
    {
        if (word.bytes == 8)
            return shc_a64_load_relaxed(static_cast<shc_a64 *>(place));
        const uint32_t all = shc_a32_load_relaxed(static_cast<shc_a32 *>(place));
        return word.bytes == 4 ? all : all >> word.shift & 255;
    }
    static void store(const Word &word, void *place, uint64_t value)
    {
        if (word.bytes == 8) {
            shc_a64_store_relaxed(static_cast<shc_a64 *>(place), value);
            return;
        }
        auto *at = static_cast<shc_a32 *>(place);
        uint32_t now = static_cast<uint32_t>(value);
        if (word.bytes == 1) {
            now = (now & 255) << word.shift;
            now |= shc_a32_load_relaxed(at) & ~(255u << word.shift);
        }
        shc_a32_store_relaxed(at, now);
    }

    // Plausible: near the truth, another word's truth; or at an edge of what fits.
    uint64_t lie_for(uint64_t truth, uint64_t epoch)
    {
        static const uint64_t edges[] = {0,          1,          UINT64_MAX, 1ULL << 63, 1ULL << 32,
                                         1ULL << 40, UINT32_MAX, 8192,       1ULL << 31, 255};
        switch (random_() % 8) {
        case 0:
        case 1:
            return edges[random_() % std::size(edges)];
        case 2:
            return truth + 4 * (1 + random_() % 4);
        case 3:
            return truth - 4 * (1 + random_() % 4);
        case 4:
            return truth + (random_() % 2 ? 1 : UINT64_MAX);
        case 5:
            return truth * 2;
        case 6:
            return random_() % 100000;
        default:
            return another(epoch);
        }
    }

    uint64_t another(uint64_t epoch)
    {
        const Word &word = words_[random_() % words_.size()];
        return load(word, word.places[0][epoch % 4]);
    }

    // A word at that offset of what `where` gives for a rank and an epoch.
    template <typename Where>
    void add(Where where, size_t offset, unsigned bytes, unsigned shift = 0)
    {
        Word word = {{}, bytes, shift};
        for (int rank : ranks_) {
            std::array<void *, 4> place;
            for (uint64_t epoch = 0; epoch < 4; epoch++)
                place[epoch] = reinterpret_cast<char *>(where(rank, epoch)) + offset;
            word.places.push_back(place);
        }
        words_.push_back(word);
    }
    // So many words of 8 bytes in a row.
    template <typename Where>
    void add_row(Where where, size_t count)
    {
        for (size_t i = 0; i < count; i++)
            add(where, 8 * i, 8);
    }

    void draw()
    {
        const uint64_t what = random_() % 100;
        if (lies_ == Lies::kOfMessages && random_() % 4 != 0)
            draw_mail();
        else if (lies_ == Lies::kOfHeaps && random_() % 4 != 0)
            draw_heaps();
        else if (what < 50)
            draw_slots();
        else if (what < 65)
            draw_calls();
        else if (what < 70)
            draw_mail();
        else if (what < 78)
            draw_cma();
        else if (what < 85 && everywhere_) // ranks that are told different verdicts cannot see that
            draw_offer();
        else if (what < 94)
            draw_words();
        else
            draw_state();
    }

    void draw_slots()
    {
        const size_t world = static_cast<size_t>(seat_.world_size);
        const auto slot = [this](int rank, uint64_t epoch) {
            return shc_seat_small_slot(&seat_, rank, epoch);
        };
        switch (random_() % 4) {
        case 0: // one number: of a sparse tensor's entries, for one
            add(slot, 8 * (random_() % 2 * random_() % world), 8);
            break;
        case 1: // sparse: the first positions
            for (size_t i = 0; i < 4; i++)
                add(slot, 528 + 8 * i, 8);
            break;
        default:
            add_row(slot, 2 * world);
        }
    }
    void draw_calls()
    {
        const auto call = [this](int rank, uint64_t epoch) {
            return shc_seat_call(&seat_, rank, epoch);
        };
        for (size_t i = 0; i < SHC_INLINE_BYTES; i += 4)
            add(call, offsetof(shc_call_shm, payload) + i, 4);
        if (random_() % 8 == 0)
            add_row(call, 2);
    }
    // Where the tensors lie, and whether they do; or, at the begin of a group, which file the heap is.
    void draw_heaps()
    {
        const auto call = [this](int rank, uint64_t epoch) {
            return shc_seat_call(&seat_, rank, epoch);
        };
        for (size_t i = 8; i < 32; i += 8)
            add(call, offsetof(shc_call_shm, payload) + i, 8);
        if (random_() % 4 == 0)
            add_row([this](int rank, uint64_t) { return shc_seat_heap(&seat_, rank); },
                    sizeof(shc_heap_shm) / 8);
    }
    void draw_cma()
    {
        add_row([this](int rank, uint64_t epoch) { return shc_seat_cma(&seat_, rank, epoch); },
                2 + static_cast<size_t>(seat_.world_size));
        const auto block = [this](int rank, uint64_t) { return shc_seat_block(&seat_, rank); };
        for (size_t i = 1; i <= 2; i++) // the key, and where it is
            add(block, SHC_IDENTITY_OFFSET + sizeof(shc_identity_shm) - 8 * i, 8);
        add([this](int rank, uint64_t) { return shc_seat_member(&seat_, rank); }, 0, 4);
    }
    void draw_offer()
    {
        add_row([this](int rank, uint64_t) { return shc_seat_offer(&seat_, rank); },
                sizeof(shc_offer_shm) / 8);
    }
    // What is read for messages.
    void draw_words()
    {
        add_row([this](int rank, uint64_t) { return shc_seat_block(&seat_, rank); },
                sizeof(shc_identity_shm) / 8);
        add_row([this](int rank, uint64_t) { return shc_seat_call_record(&seat_, rank, 0); },
                2 * sizeof(shc_call_record_shm) / 8);
        add_row([this](int rank, uint64_t) { return shc_seat_reason(&seat_, rank); },
                sizeof(shc_reason_shm) / 8);
    }
    void draw_state()
    {
        const auto member = [this](int rank, uint64_t) { return shc_seat_member(&seat_, rank); };
        add(member, 0, 4);
        add(member, 4, 4);
        add([this](int rank, uint64_t) { return shc_seat_progress(&seat_, rank); }, 0, 8);
        add([this](int rank, uint64_t) { return shc_seat_bell(&seat_, rank); }, 0, 8);
        add([this](int, uint64_t) { return shc_seat_abort(&seat_); }, 0, 4);
        add([this](int, uint64_t) { return shc_seat_header(&seat_); }, 8, 8);
    }
    void draw_mail()
    {
        const auto mail = [this](int rank, uint64_t) { return shc_seat_mail_bell(&seat_, rank); };
        const size_t world = static_cast<size_t>(seat_.world_size);
        for (size_t i = 0; i < world * sizeof(shc_ack_shm); i += 8)
            add(mail, SHC_LINE_BYTES + i, 8);
        for (size_t i = 0; i < world * (seat_.mail.lines + 1); i++) {
            const size_t line = seat_.mail.lines_offset + i * sizeof(shc_line_shm);
            for (unsigned shift = 0; shift < 32; shift += 8) // kind, type, bytes, window
                add(mail, line + 8, 1, shift);
            for (size_t at = 12; at < 32; at += 4)
                add(mail, line + at, 4);
            add(mail, line + 32, 8);
        }
    }

    shc_seat &seat_;
    const Lies lies_;
    const bool everywhere_;
    Random random_;
    std::vector<int> ranks_; // in whose memory
    std::vector<Word> words_;
};

uint64_t noted;

void say_seed()
{
    char text[64];
    const int bytes = snprintf(text, sizeof text, "SHMCOLL_LIES_SEED=%llu\n",
                               static_cast<unsigned long long>(noted));
    (void)!write(2, text, static_cast<size_t>(bytes));
}

} // namespace

void tell_lies(shc_comm *comm, Lies lies, bool everywhere, uint64_t seed,
               const std::atomic<bool> &over)
{
    Liar liar(comm, lies, everywhere, seed);
    while (!over)
        liar.lie_once();
}

uint64_t first_seed()
{
    const char *wish = getenv("SHMCOLL_LIES_SEED");
    return wish ? strtoull(wish, nullptr, 0) : std::random_device()();
}

void note_seed(uint64_t seed)
{
    noted = seed;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(say_seed);
#else
    (void)say_seed;
#endif
}

} // namespace shmcoll::test
