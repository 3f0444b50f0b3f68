// SPDX-License-Identifier: BSD-3-Clause

// Tensors between zones that nothing may touch. With the address
// sanitizer a store there ends the test at once. A store that it does not see, a copy by the kernel, is
// found in the zone's bytes.
#pragma once

extern "C" {
#include "shm/shmcoll.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)0)
#endif

namespace shmcoll::test
{

// Bytes with a zone on either side.
class Guarded
{
  public:
    static constexpr size_t kZone = 8192;
    static constexpr unsigned char kUntouched = 0xa5;

    explicit Guarded(size_t bytes) : bytes_(bytes), all_(bytes + 2 * kZone, kUntouched)
    {
        poison();
    }
    Guarded(const Guarded &) = delete;
    ~Guarded() { unpoison(); }

    unsigned char *data() { return all_.data() + kZone; }
    const unsigned char *data() const { return all_.data() + kZone; }
    size_t bytes() const { return bytes_; }

    void expect_zones() const
    {
        unpoison();
        EXPECT_TRUE(is_whole(all_.data())) << "bytes before a tensor have changed";
        EXPECT_TRUE(is_whole(data() + bytes_)) << "bytes after a tensor have changed";
        poison();
    }

  private:
    static bool is_whole(const unsigned char *zone)
    {
        return zone[0] == kUntouched && memcmp(zone, zone + 1, kZone - 1) == 0;
    }
    void poison() const
    {
        ASAN_POISON_MEMORY_REGION(all_.data(), kZone);
        ASAN_POISON_MEMORY_REGION(data() + bytes_, kZone);
    }
    void unpoison() const { ASAN_UNPOISON_MEMORY_REGION(all_.data(), all_.size()); }

    size_t bytes_;
    std::vector<unsigned char> all_;
};

// A list of tensors of one dimension.
class GuardedList
{
  public:
    // Elements of that many bytes, filled so that they identify their giver; salt < 0: untouched.
    void add(size_t count, size_t elem, int salt)
    {
        tensors_.push_back(std::make_unique<Guarded>(count * elem));
        sizes_.push_back(std::make_unique<int64_t>(static_cast<int64_t>(count)));
        Guarded &one = *tensors_.back();
        for (size_t i = 0; salt >= 0 && i < one.bytes(); i++)
            one.data()[i] = byte_of(salt, i);
        list_.push_back({one.data(), 1, sizes_.back().get(), nullptr});
    }
    shc_tensors view() const { return {list_.data(), static_cast<uint32_t>(list_.size())}; }

    void expect_zones() const
    {
        for (const auto &one : tensors_)
            one->expect_zones();
    }
    void expect(size_t index, int salt) const
    {
        const Guarded &one = *tensors_[index];
        for (size_t i = 0; i < one.bytes(); i++)
            ASSERT_EQ(one.data()[i], byte_of(salt, i)) << "byte " << i << " of tensor " << index;
    }

  private:
    static unsigned char byte_of(int salt, size_t i)
    {
        return static_cast<unsigned char>(static_cast<size_t>(salt) + i * 3);
    }

    std::vector<std::unique_ptr<Guarded>> tensors_;
    std::vector<std::unique_ptr<int64_t>> sizes_;
    std::vector<shc_tensor> list_;
};

} // namespace shmcoll::test
