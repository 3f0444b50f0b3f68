// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A c10d Store as the core's struct shc_store.

#include "shm/shmcoll.h"

#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shmcoll
{

// Lives as long as the rendezvous. What the store threw is kept, to be thrown again behind the C
// code.
class StoreBootstrap
{
  public:
    explicit StoreBootstrap(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
    StoreBootstrap(const StoreBootstrap &) = delete;
    StoreBootstrap &operator=(const StoreBootstrap &) = delete;

    shc_store view();
    void rethrow() const
    {
        if (error_)
            std::rethrow_exception(error_);
    }

  private:
    template <class Call>
    static int guarded(void *ctx, Call call) noexcept;

    c10::intrusive_ptr<c10d::Store> store_;
    std::exception_ptr error_;
};

} // namespace shmcoll
