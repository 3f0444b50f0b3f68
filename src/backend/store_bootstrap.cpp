// SPDX-License-Identifier: BSD-3-Clause
#include "backend/store_bootstrap.hpp"

#include <cerrno>
#include <cstring>

namespace shmcoll
{

template <class Call>
int StoreBootstrap::guarded(void *ctx, Call call) noexcept
{
    auto *self = static_cast<StoreBootstrap *>(ctx);
    try {
        return call(*self->store_);
    } catch (...) {
        self->error_ = std::current_exception();
        return EIO;
    }
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

} // namespace

shc_store StoreBootstrap::view()
{
    shc_store view{};
    view.ctx = this;
    view.set = [](void *ctx, const char *key, const void *value, size_t bytes) {
        return guarded(ctx, [&](c10d::Store &store) {
            store.set(key, bytesOf(value, bytes));
            return 0;
        });
    };
    // A get of an absent key would wait inside the store, and hold its client's lock meanwhile. An
    // exchange of a value that is nobody's for itself changes nothing, and says in one round trip
    // what is there: if nothing, that value. (check, and get, which waits first, are three.)
    view.get = [](void *ctx, const char *key, void *value, size_t capacity, size_t *bytes) {
        return guarded(ctx, [&](c10d::Store &store) {
            static const std::string &text = *new std::string("shmcoll: nothing");
            static const auto &nothing = *new std::vector<uint8_t>(text.begin(), text.end());
            const std::vector<uint8_t> now = store.compareSet(key, nothing, nothing);
            return now == nothing ? ENOENT : copyOut(now, value, capacity, bytes);
        });
    };
    view.check = [](void *ctx, const char *const *keys, size_t count) {
        return guarded(ctx, [&](c10d::Store &store) {
            return store.check({keys, keys + count}) ? 0 : ENOENT;
        });
    };
    view.add = [](void *ctx, const char *key, int64_t delta, int64_t *value) {
        return guarded(ctx, [&](c10d::Store &store) {
            *value = store.add(key, delta);
            return 0;
        });
    };
    view.put_first = [](void *ctx, const char *key, const void *value, size_t bytes, void *now,
                        size_t capacity, size_t *nowBytes) {
        return guarded(ctx, [&](c10d::Store &store) {
            std::vector<uint8_t> absent;
            return copyOut(store.compareSet(key, absent, bytesOf(value, bytes)), now, capacity,
                           nowBytes);
        });
    };
    return view;
}

} // namespace shmcoll
