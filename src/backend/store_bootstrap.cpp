// SPDX-License-Identifier: BSD-3-Clause
#include "backend/store_bootstrap.hpp"

#include "backend/condition.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <cxxabi.h>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace shmcoll
{

namespace
{

constexpr std::chrono::seconds kLastWrite{10}; // most that a process waits for it at its end

// The writes to files that threads of this process are in. If a process ends in the middle of one, torch
// waits in every other process for the rest of the record, with the file locked.
class FileWrites
{
  public:
    // False: the process ends, and nothing may be written any more.
    bool begin()
    {
        const Condition::Guard guard(change_);
        count_ += shut_ ? 0 : 1;
        return !shut_;
    }

    void end()
    {
        const Condition::Guard guard(change_);
        count_--;
        change_.wake();
    }

    void shut()
    {
        const Condition::Guard guard(change_);
        shut_ = true;
        change_.waitFor(kLastWrite, [this] { return count_ == 0; });
    }

  private:
    Condition change_; // guards what follows
    int count_ = 0;
    bool shut_ = false;
};

// Never destructed: a thread may be in a write.
FileWrites *fileWrites = new FileWrites;

} // namespace

void StoreBootstrap::finishFileWrites()
{
    fileWrites->shut();
}

void StoreBootstrap::forgetParentsFileWrites()
{
    fileWrites = new FileWrites; // another thread of the parent may have held its lock
}

StoreBootstrap *StoreBootstrap::create(c10::intrusive_ptr<c10d::Store> store)
{
    return new StoreBootstrap(std::move(store));
}

StoreBootstrap::StoreBootstrap(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store))
{
    c10::intrusive_ptr<c10d::Store> inner = store_;
    if (auto *prefixed = dynamic_cast<c10d::PrefixStore *>(inner.get()))
        inner = prefixed->getUnderlyingNonPrefixStore();
    if (const auto *tcp = dynamic_cast<const c10d::TCPStore *>(inner.get())) {
        port_ = tcp->getPort();
        server_ = "TCPStore at " + tcp->getHost() + ":" + std::to_string(port_);
    } else if (const auto *file = dynamic_cast<const c10d::FileStore *>(inner.get())) {
        server_ = "FileStore " + file->getPath();
        isFile_ = true;
    }
}

void StoreBootstrap::release()
{
    if (--references_ > 0)
        return;
    const bool counts = isFile_ && fileWrites->begin(); // a FileStore writes in its destructor, too
    delete this;
    if (counts)
        fileWrites->end();
}

void StoreBootstrap::rethrow(const char *text)
{
    const std::string context = text; // before anything else fails
    std::exception_ptr error;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        error = error_;
    }
    if (!error)
        return;
    try {
        std::rethrow_exception(error);
    } catch (c10::Error &e) {
        e.add_context(context);
        throw;
    }
}

template <class Call>
int StoreBootstrap::guarded(void *ctx, Call call) noexcept
{
    auto *self = static_cast<StoreBootstrap *>(ctx);
    try {
        return call(*self->store_);
    } catch (const abi::__forced_unwind &) {
        // With a store in Python, an interpreter that shuts down ends the threads that want its lock.
        // That must not pass through C, so this thread stays here and ends with the process.
        for (;;)
            std::this_thread::sleep_for(std::chrono::hours(1));
    } catch (...) {
        const std::lock_guard<std::mutex> guard(self->lock_);
        self->error_ = std::current_exception();
        return EIO;
    }
}

template <class Call>
int StoreBootstrap::guardedWrite(void *ctx, Call call) noexcept
{
    if (!static_cast<StoreBootstrap *>(ctx)->isFile_)
        return guarded(ctx, call);
    if (!fileWrites->begin())
        return ECANCELED;
    const int error = guarded(ctx, call);
    fileWrites->end();
    return error;
}

namespace
{

std::vector<uint8_t> bytesOf(const void *value, size_t bytes)
{
    const auto *begin = static_cast<const uint8_t *>(value);
    return {begin, begin + bytes};
}

int copyOut(const std::vector<uint8_t> &from, void *value, size_t capacity, size_t *bytes)
{
    if (from.size() > capacity)
        return EMSGSIZE;
    std::memcpy(value, from.data(), from.size());
    *bytes = from.size();
    return 0;
}

// A value that no rank writes.
const std::vector<uint8_t> &nothing()
{
    static const std::string &text = *new std::string("shmcoll: nothing");
    static const auto &bytes = *new std::vector<uint8_t>(text.begin(), text.end());
    return bytes;
}

// What is there. A get of an absent key would wait inside the store, and hold its client's lock meanwhile. Instead,
// nothing() is exchanged for itself. That changes nothing, and returns in one round trip what is there: if nothing, that
// value. (check, and get, which waits first, are three.)
std::vector<uint8_t> look(c10d::Store &store, const char *key)
{
    return store.compareSet(key, nothing(), nothing());
}

// The count that add() would return for 0.
int64_t lookAtCount(c10d::Store &store, const char *key)
{
    const std::vector<uint8_t> now = look(store, key);
    return now == nothing() ? 0 : std::stoll(std::string(now.begin(), now.end()));
}

} // namespace

shc_store StoreBootstrap::view()
{
    shc_store view{};
    view.ctx = this;
    view.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        return guardedWrite(ctx, [&](c10d::Store &store) {
            store.set(key, bytesOf(value, bytes));
            return 0;
        });
    };
    view.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        return guarded(ctx, [&](c10d::Store &store) {
            const std::vector<uint8_t> now = look(store, key);
            return now == nothing() ? ENOENT : copyOut(now, value, capacity, bytes);
        });
    };
    view.check = [](void *ctx, const char *const *keys, size_t count) {
        return guarded(ctx, [&](c10d::Store &store) {
            return store.check({keys, keys + count}) ? 0 : ENOENT;
        });
    };
    // A FileStore appends a record for each add, also of 0: its file would grow as long as the group lives.
    view.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        if (delta == 0 && static_cast<StoreBootstrap *>(ctx)->isFile_)
            return guarded(ctx, [&](c10d::Store &store) {
                *value = lookAtCount(store, key);
                return 0;
            });
        return guardedWrite(ctx, [&](c10d::Store &store) {
            *value = store.add(key, delta);
            return 0;
        });
    };
    view.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                        size_t capacity, size_t *nowBytes) {
        return guardedWrite(ctx, [&](c10d::Store &store) {
            std::vector<uint8_t> absent;
            return copyOut(store.compareSet(key, absent, bytesOf(value, bytes)), now, capacity,
                           nowBytes);
        });
    };
    view.retain = [](void *ctx) { static_cast<StoreBootstrap *>(ctx)->references_++; };
    view.release = [](void *ctx) { static_cast<StoreBootstrap *>(ctx)->release(); };
    view.server = server_.empty() ? nullptr : server_.c_str();
    view.server_port = port_;
    return view;
}

} // namespace shmcoll
