// SPDX-License-Identifier: BSD-3-Clause
// What a call from Python is made of, for benchmarks/python_floor.py: a c10d backend that does
// nothing and returns a null Work (what torch itself costs per call), one that calls the C library
// and checks nothing, and the C library's own time from a loop in C.
#include <shm/shmcoll.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>

namespace
{

class NullBackend : public c10d::Backend
{
  public:
    NullBackend(int rank, int size) : Backend(rank, size) { init(); }
    const std::string getBackendName() const override { return "null"; }
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor> &,
                                             const c10d::AllreduceOptions &) override
    {
        return nullptr;
    }
    c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions &) override
    {
        return nullptr;
    }
};

void demand(shc_status status)
{
    TORCH_CHECK(status == SHC_OK, shc_error_text());
}

// A group of the C library, met in a directory.
class Core
{
  public:
    Core(int rank, int size, const std::string &directory)
    {
        shc_comm_config config = {};
        config.rank = rank;
        config.world_size = size;
        config.name = "core";
        demand(shc_store_dir_open(directory.c_str(), &config.store));
        demand(shc_comm_create(&config, &comm_));
        shc_store_dir_close(&config.store);
    }
    ~Core() { shc_comm_free(comm_); }
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    // An all_reduce in place of dense float32, which is not checked.
    void sum(const at::Tensor &tensor)
    {
        shc_tensor data = {};
        data.data = tensor.data_ptr();
        data.ndim = 1;
        data.sizes = tensor.sizes().data();
        shc_op op = {};
        op.kind = SHC_ALL_REDUCE;
        op.dtype = SHC_FLOAT32;
        op.redop = SHC_SUM;
        op.input = op.output = {&data, 1};
        demand(shc_run(comm_, &op));
    }

    // Microseconds of an all_reduce in place: the median over batches, because reading the clock
    // takes a good part of a small one.
    double median_us(const at::Tensor &tensor, int calls)
    {
        const int batches = 25, batch = std::max(1, calls / batches);
        std::vector<double> times;
        for (int i = 0; i < batches; i++) {
            const auto begun = std::chrono::steady_clock::now();
            for (int k = 0; k < batch; k++)
                sum(tensor);
            const std::chrono::duration<double, std::micro> took =
                std::chrono::steady_clock::now() - begun;
            times.push_back(took.count() / batch);
        }
        std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
        return times[batches / 2];
    }

  private:
    shc_comm *comm_ = nullptr;
};

// The least that a backend over the C library can be.
class BareBackend : public c10d::Backend
{
  public:
    BareBackend(int rank, int size, const std::string &directory)
        : Backend(rank, size), core_(rank, size, directory)
    {
        init();
    }
    const std::string getBackendName() const override { return "bare"; }
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor> &tensors,
                                             const c10d::AllreduceOptions &) override
    {
        core_.sum(tensors[0]);
        return nullptr;
    }

  private:
    Core core_;
};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    pybind11::module_::import("torch.distributed");
    pybind11::class_<NullBackend, c10d::Backend, c10::intrusive_ptr<NullBackend>>(m, "NullBackend")
        .def(pybind11::init<int, int>());
    pybind11::class_<BareBackend, c10d::Backend, c10::intrusive_ptr<BareBackend>>(m, "BareBackend")
        .def(pybind11::init<int, int, const std::string &>());
    pybind11::class_<Core>(m, "Core")
        .def(pybind11::init<int, int, const std::string &>())
        .def("median_us", &Core::median_us, pybind11::call_guard<pybind11::gil_scoped_release>());
}
