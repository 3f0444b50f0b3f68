// SPDX-License-Identifier: BSD-3-Clause
// A c10d backend that does nothing and returns a null Work: what torch itself costs per call. The
// floor under every latency that is measured from Python.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

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

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    pybind11::module_::import("torch.distributed");
    pybind11::class_<NullBackend, c10d::Backend, c10::intrusive_ptr<NullBackend>>(m, "NullBackend")
        .def(pybind11::init<int, int>());
}
