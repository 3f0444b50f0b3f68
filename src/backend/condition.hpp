// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A private lock with a condition. std::condition_variable would need a C library and a C++ library newer
// than those that torch itself needs.

#include <chrono>
#include <pthread.h>
#include <time.h>

namespace shmcoll
{

class Condition
{
  public:
    Condition()
    {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition_, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    Condition(const Condition &) = delete;
    Condition &operator=(const Condition &) = delete;

    // Holds the lock. What follows is called under one.
    class Guard
    {
      public:
        explicit Guard(Condition &of) : of_(of) { pthread_mutex_lock(&of_.lock_); }
        ~Guard() { pthread_mutex_unlock(&of_.lock_); }
        Guard(const Guard &) = delete;
        Guard &operator=(const Guard &) = delete;

      private:
        Condition &of_;
    };

    void wake() { pthread_cond_broadcast(&condition_); }

    template <class Predicate>
    void wait(Predicate isMet)
    {
        while (!isMet())
            pthread_cond_wait(&condition_, &lock_);
    }

    // Returns when `isMet()`, or after that time.
    template <class Predicate>
    void waitFor(std::chrono::nanoseconds time, Predicate isMet)
    {
        timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        const int64_t nanoseconds = until.tv_nsec + time.count();
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        while (!isMet() && pthread_cond_timedwait(&condition_, &lock_, &until) == 0) {
        }
    }

  private:
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition_;
};

} // namespace shmcoll
