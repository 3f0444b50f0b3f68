// SPDX-License-Identifier: BSD-3-Clause
// A stand-in GPU's streams: each is a thread and a queue. Work of one stream is done in order, work of
// different streams in any order.
#include "tests/cuda/fakedriver/fake.h"

extern "C" {
#include "shm/base/atomic.h"
}

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <list>
#include <map>
#include <random>
#include <sys/file.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct shc_cu_function {
    const FakeKernel *kernel;
    bool loaded = false;
};

struct shc_cu_module {
    std::map<std::string, shc_cu_function> functions;
};

namespace fake
{
namespace
{

struct Streams {
    std::mutex lock;
    std::set<shc_cu_stream *> all;
    std::map<std::string, const FakeKernel *> kernels;
    int modules = 0;
};

Streams &streams()
{
    static Streams *s = new Streams;
    return *s;
}

void sleep_us(int us)
{
    std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// A delay of up to knobs().delay_us: tests must not rely on when a write or a wait happens.
void random_delay()
{
    static thread_local std::minstd_rand random(std::random_device{}());
    if (knobs().delay_us > 0)
        sleep_us(static_cast<int>(random() % static_cast<unsigned>(knobs().delay_us)));
}

// How many stream writes there have been, in all processes that name the same file.
shc_a64 *write_count()
{
    static shc_a64 own = {0};
    static shc_a64 *count = [] {
        if (knobs().state.empty())
            return &own;
        const int fd = open(knobs().state.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *page = MAP_FAILED;
        if (fd >= 0 && ftruncate(fd, 4096) == 0)
            page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
            abort();
        close(fd);
        return static_cast<shc_a64 *>(page);
    }();
    return count;
}

shc_a64 *word_at(shc_cu_address address)
{
    return reinterpret_cast<shc_a64 *>(address);
}

bool satisfied(shc_cu_address address, uint64_t value)
{
    return static_cast<int64_t>(shc_a64_load_acquire(word_at(address)) - value) >= 0;
}

void wait_for_value(shc_cu_address address, uint64_t value)
{
    random_delay();
    int us = 20;
    const auto nap = [&us] { // longer each time: the threads that it waits for need the CPU
        sleep_us(us);
        us = std::min(us + us / 2, 500);
    };
    for (uint64_t seen = shc_a64_load_acquire(write_count()); !satisfied(address, value);) {
        // A GPU may look again only after a stream has written.
        while (knobs().only_writes_wake && shc_a64_load_acquire(write_count()) == seen)
            nap();
        seen = shc_a64_load_acquire(write_count());
        nap();
    }
}

// While it lives, this process's context has its turn: contexts of one GPU take turns at kernels, fills
// and copies inside it. As seen on an H100, they also do at short copies to it, but not at copies by rows.
class Alone
{
  public:
    explicit Alone(bool needed = true)
    {
        if (!needed)
            return;
        turns()++;
        if (knobs().alone.empty())
            return;
        turn_.lock();
        fd_ = open(knobs().alone.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd_ < 0 || flock(fd_, LOCK_EX) != 0)
            abort();
    }
    ~Alone()
    {
        if (fd_ < 0)
            return;
        close(fd_);
        turn_.unlock();
    }

    static std::atomic<int> &turns()
    {
        static std::atomic<int> count{0};
        return count;
    }

  private:
    static std::mutex &the_turn()
    {
        static std::mutex *turn = new std::mutex;
        return *turn;
    }
    std::mutex &turn_ = the_turn();
    int fd_ = -1;
};

// Ends the process when a kernel does not end: the kernel waits for another one that may not be running.
// One thread checks all kernels of the process, and ends with it.
class Watchdog
{
  public:
    explicit Watchdog(const char *name)
    {
        const auto limit = Clock::now() + std::chrono::milliseconds(knobs().kernel_ms);
        std::lock_guard<std::mutex> guard(all().lock);
        at_ = all().running.insert(all().running.end(), {name, limit});
    }
    ~Watchdog()
    {
        std::lock_guard<std::mutex> guard(all().lock);
        all().running.erase(at_);
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Running {
        const char *name;
        Clock::time_point limit;
    };
    struct All {
        std::mutex lock;
        std::list<Running> running;
    };
    static All &all()
    {
        static All *one = [] {
            All *made = new All;
            std::thread(watch, made).detach();
            return made;
        }();
        return *one;
    }
    static void watch(All *all)
    {
        for (;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            std::lock_guard<std::mutex> guard(all->lock);
            for (const Running &kernel : all->running)
                if (Clock::now() >= kernel.limit)
                    give_up(kernel.name);
        }
    }
    [[noreturn]] static void give_up(const char *name)
    {
        fprintf(stderr, "the stand-in GPU: kernel %s waits for a peer, and holds the GPU\n", name);
        abort();
    }
    std::list<Running>::iterator at_;
};

void serve(shc_cu_stream *stream)
{
    std::unique_lock<std::mutex> guard(stream->lock);
    for (;;) {
        stream->changed.wait(guard, [&] { return !stream->queue.empty() || stream->closing; });
        if (stream->queue.empty())
            break;
        auto work = std::move(stream->queue.front());
        stream->queue.pop_front();
        guard.unlock();
        if (knobs().slow_us > 0)
            sleep_us(knobs().slow_us);
        if (sticky_error() == SHC_CU_SUCCESS)
            work();
        guard.lock();
        stream->finished++;
        stream->changed.notify_all();
    }
    stream->ended = true;
    stream->changed.notify_all();
}

// A hardware queue: its work is done in the order of submission, whichever streams it belongs to.
struct Hardware {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t submitted = 0, finished = 0;
};

std::function<void()> in_hardware_queue(const shc_cu_stream *stream, std::function<void()> work)
{
    if (knobs().queues == 0)
        return work;
    static Hardware *const all = new Hardware[static_cast<size_t>(knobs().queues)];
    Hardware &queue = all[stream->number % static_cast<unsigned>(knobs().queues)];
    std::lock_guard<std::mutex> guard(queue.lock);
    return [&queue, turn = queue.submitted++, work = std::move(work)] {
        {
            std::unique_lock<std::mutex> waiting(queue.lock);
            queue.changed.wait(waiting, [&] { return queue.finished == turn; });
        }
        work();
        std::lock_guard<std::mutex> done(queue.lock);
        queue.finished++;
        queue.changed.notify_all();
    };
}

int synchronize(shc_cu_stream *stream)
{
    std::unique_lock<std::mutex> guard(stream->lock);
    const uint64_t until = stream->submitted;
    stream->changed.wait(guard, [&] { return stream->finished >= until; });
    return sticky_error();
}

constexpr size_t kShort = 2048; // a copy to the GPU that the driver does without a copy engine

enum class By { kBytes, kRows };

void copy(shc_cu_address to, shc_cu_address from, size_t bytes, int device, By by)
{
    if (!may_touch(to, bytes, device) || !may_touch(from, bytes, device)) {
        break_context();
        return;
    }
    await_peers(to, from, device);
    Alone alone(is_gpu_memory(to) && (is_gpu_memory(from) || (by == By::kBytes && bytes < kShort)));
    copy_between(to, from, bytes, device);
}

} // namespace

int submit(shc_cu_stream *stream, const std::function<void()> &work)
{
    return current_device() < 0 ? SHC_CU_INVALID_CONTEXT : submit_anywhere(stream, work);
}

int submit_anywhere(shc_cu_stream *stream, const std::function<void()> &work)
{
    if (sticky_error() != SHC_CU_SUCCESS)
        return sticky_error();
    {
        std::lock_guard<std::mutex> guard(streams().lock);
        if (streams().all.count(stream) == 0)
            return SHC_CU_INVALID_HANDLE;
    }
    int result;
    if (captured_work(stream, work, &result))
        return result;
    std::lock_guard<std::mutex> guard(stream->lock);
    stream->queue.push_back(in_hardware_queue(stream, work));
    stream->submitted++;
    stream->changed.notify_all();
    return SHC_CU_SUCCESS;
}

void synchronize_all_streams()
{
    std::set<shc_cu_stream *> all;
    {
        std::lock_guard<std::mutex> guard(streams().lock);
        all = streams().all;
    }
    for (shc_cu_stream *stream : all)
        synchronize(stream);
}

// ---- streams ----

int cuStreamCreateWithPriority(shc_cu_stream **stream, unsigned flags, int)
{
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if ((flags & ~SHC_CU_STREAM_NON_BLOCKING) != 0)
        return SHC_CU_INVALID_VALUE;
    static std::atomic<unsigned> streams_made{0};
    auto *made = new shc_cu_stream;
    made->device = current_device();
    made->number = streams_made++;
    std::lock_guard<std::mutex> guard(streams().lock);
    streams().all.insert(made);
    made->thread = std::thread(serve, made);
    *stream = made;
    return SHC_CU_SUCCESS;
}

// Does not wait for a peer: what is queued is still done, and may wait for ever, as on a GPU. Such a
// stream stays; a thread that ends is joined, because leak checkers stumble over one that is ending.
int cuStreamDestroy(shc_cu_stream *stream)
{
    {
        std::lock_guard<std::mutex> guard(streams().lock);
        if (streams().all.erase(stream) == 0)
            return SHC_CU_INVALID_HANDLE;
    }
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->closing = true;
    stream->changed.notify_all();
    const auto has_ended = [&] { return stream->ended; };
    bool ended = stream->changed.wait_for(guard, std::chrono::milliseconds(1000), has_ended);
    if (!ended && stream->finished == stream->submitted) { // its thread only wants for a CPU
        stream->changed.wait(guard, has_ended);
        ended = true;
    }
    guard.unlock();
    if (ended) {
        stream->thread.join();
        delete stream;
    }
    return SHC_CU_SUCCESS;
}

int cuStreamQuery(shc_cu_stream *stream)
{
    if (sticky_error() != SHC_CU_SUCCESS)
        return sticky_error();
    if (const int error = forbidden(stream))
        return error;
    std::lock_guard<std::mutex> guard(stream->lock);
    return stream->finished == stream->submitted ? SHC_CU_SUCCESS : SHC_CU_NOT_READY;
}

int cuStreamSynchronize(shc_cu_stream *stream)
{
    if (const int error = forbidden(stream))
        return error;
    return current_device() < 0 ? SHC_CU_INVALID_CONTEXT : synchronize(stream);
}

int cuStreamWaitEvent(shc_cu_stream *stream, shc_cu_event *handle, unsigned)
{
    const std::shared_ptr<FakeEvent> event = handle->state;
    uint64_t until;
    int result;
    if (captured_wait(*event, stream, &result))
        return result;
    {
        std::lock_guard<std::mutex> guard(event->lock);
        until = event->recorded; // the latest record before this call
    }
    return submit(stream, [event, until] {
        std::unique_lock<std::mutex> guard(event->lock);
        event->changed.wait(guard, [&] { return event->reached >= until; });
    });
}

int cuStreamWriteValue64(shc_cu_stream *stream, shc_cu_address address, uint64_t value,
                         unsigned flags)
{
    if (flags != SHC_CU_WRITE_DEFAULT || address % 8 != 0 || !is_device_visible(address, 8))
        return SHC_CU_INVALID_VALUE;
    return submit(stream, [address, value] {
        random_delay();
        shc_a64_store_release(word_at(address), value);
        shc_a64_add_acq_rel(write_count(), 1);
    });
}

int cuStreamWaitValue64(shc_cu_stream *stream, shc_cu_address address, uint64_t value,
                        unsigned flags)
{
    if (flags != SHC_CU_WAIT_GEQ || address % 8 != 0 || !is_device_visible(address, 8))
        return SHC_CU_INVALID_VALUE;
    if (knobs().call_us > 0)
        sleep_us(knobs().call_us);
    return submit(stream, [address, value] { wait_for_value(address, value); });
}

// ---- events ----

int cuEventCreate(shc_cu_event **event, unsigned flags)
{
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if (flags != SHC_CU_EVENT_DISABLE_TIMING)
        return SHC_CU_NOT_SUPPORTED; // by the stand-in
    *event = new shc_cu_event;
    return SHC_CU_SUCCESS;
}

int cuEventDestroy(shc_cu_event *event)
{
    delete event;
    return SHC_CU_SUCCESS;
}

int cuEventRecord(shc_cu_event *handle, shc_cu_stream *stream)
{
    const std::shared_ptr<FakeEvent> event = handle->state;
    uint64_t number;
    int result;
    if (captured_record(*event, stream, &result))
        return result;
    {
        std::lock_guard<std::mutex> guard(event->lock);
        number = ++event->recorded;
    }
    return submit(stream, [event, number] {
        std::lock_guard<std::mutex> guard(event->lock);
        event->reached = std::max(event->reached, number);
        event->changed.notify_all();
    });
}

int cuEventQuery(shc_cu_event *handle)
{
    const std::shared_ptr<FakeEvent> event = handle->state;
    if (const int error = forbidden())
        return error;
    if (captured_event(*event))
        return SHC_CU_CAPTURED_EVENT;
    std::lock_guard<std::mutex> guard(event->lock);
    return event->reached == event->recorded ? sticky_error() : SHC_CU_NOT_READY;
}

// ---- work ----

int cuMemcpyAsync(shc_cu_address to, shc_cu_address from, size_t bytes, shc_cu_stream *stream)
{
    const int device = current_device();
    return submit(stream, [=] {
        if (bytes > 0)
            copy(to, from, bytes, device, By::kBytes);
    });
}

int cuMemcpy2DAsync(const shc_cu_copy_rows *rows, shc_cu_stream *stream)
{
    const shc_cu_copy_end &to = rows->to, &from = rows->from;
    const size_t bytes = rows->width * rows->height;
    if (to.type != SHC_CU_MEMORY_UNIFIED || from.type != SHC_CU_MEMORY_UNIFIED || to.x || to.y ||
        from.x || from.y || to.pitch != rows->width || from.pitch != rows->width)
        return SHC_CU_NOT_SUPPORTED; // by the stand-in
    const int device = current_device();
    return submit(stream, [=, there = to.device, here = from.device] {
        if (bytes > 0)
            copy(there, here, bytes, device, By::kRows);
    });
}

int cuMemsetD8Async(shc_cu_address to, unsigned char value, size_t bytes, shc_cu_stream *stream)
{
    const int device = current_device();
    return submit(stream, [=] {
        if (!may_touch(to, bytes, device)) {
            break_context();
            return;
        }
        Alone alone;
        memset(reinterpret_cast<void *>(to), value, bytes);
    });
}

int cuLaunchHostFunc(shc_cu_stream *stream, shc_cu_host_fn function, void *arg)
{
    return submit(stream, [=] { function(arg); });
}

// ---- kernels: their CPU twins, by name ----

namespace
{

// Compares enough of an image to see that it is one, or all of it if the test names the image.
bool is_image(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic != 0xba55ed50u) // of a fat binary
        return false;
    if (knobs().image.empty())
        return true;
    std::ifstream in(knobs().image, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    return !bytes.empty() && memcmp(image, bytes.data(), bytes.size()) == 0;
}

} // namespace

int cuModuleLoadData(shc_cu_module **module, const void *image)
{
    if (const int error = forbidden())
        return error;
    if (current_device() < 0)
        return SHC_CU_INVALID_CONTEXT;
    if (!is_image(image))
        return SHC_CU_INVALID_IMAGE;
    if (knobs().load_result != SHC_CU_SUCCESS)
        return knobs().load_result;
    auto *made = new shc_cu_module;
    std::lock_guard<std::mutex> guard(streams().lock);
    for (auto &[name, kernel] : streams().kernels)
        if (name != knobs().without)
            made->functions[name].kernel = kernel;
    streams().modules++;
    *module = made;
    return SHC_CU_SUCCESS;
}

int cuModuleUnload(shc_cu_module *module)
{
    std::lock_guard<std::mutex> guard(streams().lock);
    streams().modules--;
    delete module;
    return SHC_CU_SUCCESS;
}

int cuModuleGetFunction(shc_cu_function **function, shc_cu_module *module, const char *name)
{
    auto it = module->functions.find(name);
    if (it == module->functions.end())
        return SHC_CU_NOT_FOUND;
    *function = &it->second;
    return SHC_CU_SUCCESS;
}

int cuFuncLoad(shc_cu_function *function)
{
    function->loaded = true;
    return SHC_CU_SUCCESS;
}

int cuLaunchKernel(shc_cu_function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                   shc_cu_stream *stream, void **parameters, void **extra)
{
    const FakeKernel *kernel = function->kernel;
    if (grid_x == 0 || block_x == 0 || block_x > 1024 || extra != nullptr)
        return SHC_CU_INVALID_VALUE;
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1)
        return SHC_CU_NOT_SUPPORTED; // by the stand-in
    if (knobs().lazy && !function->loaded)
        return SHC_CU_NOT_READY; // a GPU would load it, and wait for others' kernels
    std::vector<std::vector<char>> copies;
    for (int i = 0; i < kernel->count; i++) {
        const char *from = static_cast<const char *>(parameters[i]);
        copies.emplace_back(from, from + kernel->sizes[i]);
    }
    return submit(stream, [=]() mutable {
        PeerLoads loads(copies, stream->device);
        std::vector<void *> pointers;
        for (auto &one : copies)
            pointers.push_back(one.data());
        Alone alone;
        Watchdog watchdog(kernel->name);
        kernel->run(pointers.data(), grid_x, block_x);
    });
}

} // namespace fake

extern "C" void fake_add_kernel(const FakeKernel *kernel)
{
    std::lock_guard<std::mutex> guard(fake::streams().lock);
    fake::streams().kernels[kernel->name] = kernel;
}

extern "C" int fake_turn_count()
{
    return fake::Alone::turns();
}

extern "C" int fake_module_count()
{
    std::lock_guard<std::mutex> guard(fake::streams().lock);
    return fake::streams().modules;
}
