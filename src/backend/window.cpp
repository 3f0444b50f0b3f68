// SPDX-License-Identifier: BSD-3-Clause
#include "backend/window.hpp"

#include "backend/error.hpp"
#include "backend/forks.hpp"
#include "backend/memory.hpp"
#include "backend/reconfigurable.hpp"
#include "shm/shmcoll_memory.h"

#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#if SHMCOLL_TORCH_AT_LEAST(2, 15)
#include <torch/csrc/distributed/c10d/Window.hpp>
#endif

namespace shmcoll
{

namespace
{

constexpr char kMagic[8] = "shcwin1";
constexpr int kMostDimensions = 16;
constexpr const char *kRegister = "tensor_register";
constexpr const char *kMap = "map_remote_tensor";

bool isIn(const at::Tensor &tensor, size_t bytes)
{
    return shc_memory_is_shared(tensor.const_data_ptr(), bytes);
}

} // namespace

// What a rank tells the others of its tensor. All of it is checked before it is used.
struct Window::Said {
    char magic[sizeof kMagic];
    char error[232]; // why it has none; "": it has
    shc_memory_handle handle;
    int64_t sizes[kMostDimensions];
    int32_t dimensions;
    int32_t dtype;

    Said() : error{}, handle{}, sizes{}, dimensions(0), dtype(0)
    {
        std::memcpy(magic, kMagic, sizeof magic);
    }

    void fail(const std::string &why) { std::snprintf(error, sizeof error, "%s", why.c_str()); }

    void describe(const at::Tensor &tensor)
    {
        TORCH_CHECK_TYPE(tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided,
                         "the tensor is not a dense CPU tensor");
        TORCH_CHECK_VALUE(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(),
                          "the tensor is not contiguous");
        TORCH_CHECK_VALUE(tensor.dim() <= kMostDimensions, "the tensor has ", tensor.dim(),
                          " dimensions; ", kMostDimensions, " at most");
        dimensions = static_cast<int32_t>(tensor.dim());
        std::copy(tensor.sizes().begin(), tensor.sizes().end(), sizes);
        dtype = static_cast<int32_t>(tensor.scalar_type());
        const size_t bytes = tensor.nbytes();
        if (bytes == 0)
            return;
        TORCH_CHECK_VALUE(isIn(tensor, bytes) || (moveToShared(tensor) && isIn(tensor, bytes)),
                          "the tensor cannot be moved into shared memory; make it with "
                          "shmcoll.empty()");
        check(shc_memory_export(tensor.const_data_ptr(), bytes, &handle));
    }

    at::Tensor map() const
    {
        TORCH_CHECK_VALUE(std::memcmp(magic, kMagic, sizeof magic) == 0 && dimensions >= 0 &&
                              dimensions <= kMostDimensions && dtype >= 0 &&
                              dtype < static_cast<int32_t>(at::ScalarType::NumOptions),
                          "it has described no tensor");
        const at::IntArrayRef shape(sizes, static_cast<size_t>(dimensions));
        const auto type = static_cast<at::ScalarType>(dtype);
        size_t bytes = c10::elementSize(type), there = 0;
        bool overflows = false;
        for (const int64_t size : shape)
            overflows |=
                size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes);
        TORCH_CHECK_VALUE(!overflows, "it has described a tensor that is too large");
        if (bytes == 0)
            return at::empty(shape, at::device(at::kCPU).dtype(type));
        void *memory = nullptr;
        check(shc_memory_import(&handle, &memory, &there));
        const auto release = [](void *address) { shc_memory_release(address); };
        at::Tensor made = at::from_blob(memory, shape, release, at::device(at::kCPU).dtype(type));
        TORCH_CHECK_VALUE(there == bytes, "it has described ", bytes, " bytes, and shares ", there);
        return made;
    }
};

Window::Window(c10::intrusive_ptr<ProcessGroupShm> group)
    : group_(std::move(group)), number_(group_->numberWindow()), forks_(forks.load())
{
}

void Window::checkProcess(const char *what) const
{
    TORCH_CHECK_WITH(DistBackendError, forks_ == forks.load(), "shmcoll: ", what,
                     ": the window belongs to the parent process");
}

void Window::checkRank(int64_t rank, const char *what) const
{
    checkProcess(what);
    TORCH_CHECK_VALUE(rank >= 0 && rank < group_->getSize(), "shmcoll: ", what, ": rank ", rank,
                      " is not a rank of the group, which has ", group_->getSize());
}

// Throws on all ranks alike if one of them has failed.
std::vector<Window::Said> Window::exchange(const Said &own) const
{
    const auto size = static_cast<int64_t>(sizeof own), ranks = int64_t{group_->getSize()};
    std::vector<Said> all(static_cast<size_t>(ranks));
    group_->allGatherNow(at::from_blob(all.data(), {ranks * size}, at::kByte),
                         at::from_blob(const_cast<Said *>(&own), {size}, at::kByte));
    for (size_t rank = 0; rank < all.size(); rank++) {
        all[rank].error[sizeof own.error - 1] = '\0';
        TORCH_CHECK_VALUE(all[rank].error[0] == '\0', "shmcoll: ", kRegister, ": rank ", rank, ": ",
                          all[rank].error);
    }
    return all;
}

std::vector<at::Tensor> Window::mapAll(const std::vector<Said> &said) const
{
    std::vector<at::Tensor> mapped;
    Said own;
    for (size_t rank = 0; rank < said.size(); rank++)
        try {
            mapped.push_back(said[rank].map());
        } catch (const c10::Error &error) {
            own.fail(c10::str("the tensor of rank ", rank, ": ", error.what_without_backtrace()));
            break;
        }
    exchange(own);
    return mapped;
}

void Window::registerTensor(const at::Tensor &tensor, bool owning)
{
    checkProcess(kRegister);
    const c10::InferenceMode normal(false);
    Said own;
    try {
        TORCH_CHECK_VALUE(!hasTensor(), "the window has a tensor; deregister that one before");
        own.describe(tensor);
    } catch (const c10::Error &error) {
        own.fail(error.what_without_backtrace());
    }
    std::vector<at::Tensor> mapped = mapAll(exchange(own));
    if (owning)
        group_->keepForWindow(number_, tensor);
    const std::lock_guard<std::mutex> guard(lock_);
    mapped_ = std::move(mapped);
}

bool Window::hasTensor() const
{
    const std::lock_guard<std::mutex> guard(lock_);
    return !mapped_.empty();
}

void Window::deregister()
{
    checkProcess("tensor_deregister");
    std::vector<at::Tensor> mapped; // are freed without the lock: that may want Python's
    {
        const std::lock_guard<std::mutex> guard(lock_);
        mapped.swap(mapped_);
    }
    TORCH_CHECK_VALUE(!mapped.empty(), "shmcoll: tensor_deregister: the window has no tensor");
    mapped.clear();
    group_->barrierNow();
    group_->keepForWindow(number_, {});
}

at::Tensor Window::map(int64_t rank, const char *what) const
{
    checkRank(rank, what);
    const std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK_VALUE(!mapped_.empty(), "shmcoll: the window has no tensor; register one before");
    return mapped_[static_cast<size_t>(rank)];
}

void Window::put(const at::Tensor &tensor, int64_t rank, int64_t offset)
{
    const at::Tensor there = map(rank, "put");
    TORCH_CHECK_TYPE(tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided,
                     "shmcoll: put takes dense CPU tensors");
    TORCH_CHECK_TYPE(tensor.scalar_type() == there.scalar_type(), "shmcoll: put: a tensor of ",
                     tensor.scalar_type(), ", and the window of rank ", rank, " is of ",
                     there.scalar_type());
    TORCH_CHECK_VALUE(offset >= 0 && offset <= there.numel() &&
                          tensor.numel() <= there.numel() - offset,
                      "shmcoll: put: ", tensor.numel(), " elements from element ", offset,
                      " on; the window of rank ", rank, " has ", there.numel());
    const at::Tensor flat = tensor.contiguous().resolve_conj().resolve_neg();
    if (flat.nbytes() > 0)
        std::memmove(static_cast<char *>(there.mutable_data_ptr()) +
                         static_cast<size_t>(offset) * there.itemsize(),
                     flat.const_data_ptr(), flat.nbytes());
}

Window::WorkPtr Window::sendSignal(int64_t rank, Milliseconds timeout)
{
    checkRank(rank, "signal");
    return group_->signalWindow(SHC_SEND, number_, static_cast<int>(rank), timeout);
}

Window::WorkPtr Window::waitSignal(int64_t rank, Milliseconds timeout)
{
    checkRank(rank, "wait_signal");
    return group_->signalWindow(SHC_RECV, number_, static_cast<int>(rank), timeout);
}

/* ---- what a group does for its windows ---- */

int ProcessGroupShm::numberWindow()
{
    TORCH_CHECK_NOT_IMPLEMENTED(!hosts_, "shmcoll: new_window: the group is over several hosts, "
                                         "which share no memory");
    return windowCount_++;
}

void ProcessGroupShm::keepForWindow(int number, const at::Tensor &tensor)
{
    at::Tensor old; // is freed without the lock: that may want Python's
    const std::lock_guard<std::mutex> guard(windowsLock_);
    old = std::exchange(windowTensors_[number], tensor);
}

// A tag that is negative is no user's.
ProcessGroupShm::WorkPtr ProcessGroupShm::signalWindow(shc_op_kind kind, int number, int peer,
                                                       std::chrono::milliseconds timeout)
{
    Tensors nothing{at::empty({0}, at::kByte)};
    const bool sends = kind == SHC_SEND;
    return post(kind, nothing, peer, -1 - number, timeout,
                sends ? c10d::OpType::SEND : c10d::OpType::RECV,
                sends ? TITLE("signal") : TITLE("wait_signal"));
}

/* ---- for Python ---- */

namespace
{

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using WindowPtr = c10::intrusive_ptr<Window>;
using Milliseconds = std::chrono::milliseconds;

WindowPtr newWindow(const Group &group)
{
    auto ours = shmOf(group->getBackend(c10::DeviceType::CPU), "new_window");
    TORCH_CHECK_VALUE(ours, "shmcoll: new_window: the group's backend is another one");
    return c10::make_intrusive<Window>(std::move(ours));
}

} // namespace

TORCH_LIBRARY_FRAGMENT(shmcoll, m)
{
    m.class_<Window>("Window")
        .def(torch::init(newWindow))
        .def("register", [](const WindowPtr &window, const at::Tensor &tensor,
                            bool owning) { window->registerTensor(tensor, owning); })
        .def("deregister", [](const WindowPtr &window) { window->deregister(); })
        .def("put", [](const WindowPtr &window, const at::Tensor &tensor, int64_t rank,
                       int64_t offset) { window->put(tensor, rank, offset); })
        .def("map", [](const WindowPtr &window, int64_t rank) { return window->map(rank, kMap); })
        .def("signal", [](const WindowPtr &window, int64_t rank,
                          int64_t ms) { return window->sendSignal(rank, Milliseconds(ms)); })
        .def("wait_signal", [](const WindowPtr &window, int64_t rank, int64_t ms) {
            return window->waitSignal(rank, Milliseconds(ms));
        });
}

#if SHMCOLL_TORCH_AT_LEAST(2, 15)

namespace
{

class TorchsWindow : public c10d::Window
{
  public:
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;

    explicit TorchsWindow(WindowPtr window) : window_(std::move(window)) {}

    void tensor_register(const at::Tensor &tensor, bool owning) override
    {
        window_->registerTensor(tensor, owning);
    }
    void tensor_deregister() override { window_->deregister(); }
    WorkPtr put(const at::Tensor &tensor, int64_t rank, int64_t offset, bool,
                const c10d::PutOptions &) override
    {
        window_->put(tensor, rank, offset);
        return endedWork();
    }
    at::Tensor map_remote_tensor(int64_t rank) override { return window_->map(rank, kMap); }
    WorkPtr signal(int64_t rank, bool asyncOp, const c10d::SignalOptions &options) override
    {
        return finish(window_->sendSignal(rank, options.timeout), asyncOp);
    }
    WorkPtr wait_signal(int64_t rank, bool asyncOp, const c10d::WaitSignalOptions &options) override
    {
        return finish(window_->waitSignal(rank, options.timeout), asyncOp);
    }
    c10d::WindowAttr get_attr(int64_t) override { return {}; }

  private:
    static WorkPtr finish(WorkPtr work, bool asyncOp)
    {
        if (!asyncOp)
            work->wait();
        return work;
    }

    const WindowPtr window_;
};

} // namespace

c10::intrusive_ptr<c10d::Window>
ProcessGroupShm::new_window(const std::optional<at::Tensor> &tensor)
{
    auto self = c10::intrusive_ptr<ProcessGroupShm>::unsafe_reclaim_from_nonowning(this);
    const auto window = c10::make_intrusive<Window>(std::move(self));
    if (tensor)
        window->registerTensor(*tensor, true);
    return c10::make_intrusive<TorchsWindow>(window);
}

#endif

} // namespace shmcoll
