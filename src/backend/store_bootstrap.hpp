// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A c10d Store as the core's struct shc_store.

#include "shm/shmcoll.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shmcoll
{

// Its calls may block for ever, so the core makes them on a thread. This object, and the store, live
// until both the rendezvous and that thread have released it. An exception of the store is kept, to be
// thrown again after the C code.
class StoreBootstrap
{
  public:
    // The caller's reference; the caller must release() it.
    static StoreBootstrap *create(c10::intrusive_ptr<c10d::Store> store);
    StoreBootstrap(const StoreBootstrap &) = delete;
    StoreBootstrap &operator=(const StoreBootstrap &) = delete;

    shc_store view();
    void release();

    bool isFile() const { return isFile_; }

    // Throws what the store threw, if anything, with the core's error text as its context.
    void rethrow(const char *text);

    // The process ends: returns when no thread is in a write to a file, after 10 s at most. From now on such
    // writes fail.
    static void finishFileWrites();

    // In a forked child, whose only thread this is.
    static void forgetParentsFileWrites();

  private:
    explicit StoreBootstrap(c10::intrusive_ptr<c10d::Store> store);
    ~StoreBootstrap() = default;
    template <class Call>
    static int guarded(void *ctx, Call call) noexcept;
    template <class Call>
    static int guardedWrite(void *ctx, Call call) noexcept;

    c10::intrusive_ptr<c10d::Store> store_;
    std::string server_; // "TCPStore at host:port", if it is one
    int port_ = 0;
    bool isFile_ = false;
    std::atomic<int> references_{1};
    std::mutex lock_; // guards error_: a late answer may be an error
    std::exception_ptr error_;
};

} // namespace shmcoll
