// SPDX-License-Identifier: BSD-3-Clause
// A part of shmcoll._C. pybind11 would take as long for a call as the operation: it looks for a method that
// fits the arguments, and converts each. So the type here is one of Python's C API, with methods that take
// their arguments as they lie on the caller's stack.
//
// A method returns True when the operation is done, and False, with nothing done, for arguments that are
// not plain. _direct.py then calls the function of torch.distributed, which says what is wrong, or does
// more than call the backend.
#include "backend/direct.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cxxabi.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace shmcoll
{

namespace
{

using RedOp = c10d::ReduceOp::RedOpType;

struct Direct {
    PyObject_HEAD struct Parts {
        c10::intrusive_ptr<ProcessGroupShm> backend;
        std::vector<long> members; // numbered as in the whole job
    } * parts;
};

ProcessGroupShm &backendOf(PyObject *self)
{
    return *reinterpret_cast<Direct *>(self)->parts->backend;
}

// Other Python threads run meanwhile, and signal handlers find the lock free.
class LockReleased
{
  public:
    LockReleased() : state_(PyEval_SaveThread()) {}
    ~LockReleased() { PyEval_RestoreThread(state_); }
    LockReleased(const LockReleased &) = delete;
    LockReleased &operator=(const LockReleased &) = delete;

  private:
    PyThreadState *const state_;
};

// Sets Python's error from the exception that is being handled.
PyObject *raise() noexcept
{
    try {
        throw;
    } catch (py::error_already_set &error) {
        error.restore();
    } catch (const py::builtin_exception &error) {
        error.set_error();
    } catch (const std::exception &) {
        torch::translate_exception_to_python(std::current_exception());
    }
    return nullptr;
}

template <class Operation>
PyObject *call(Operation &&operation)
{
    try {
        const LockReleased released;
        operation();
    } catch (abi::__forced_unwind &) { // the thread is being ended
        throw;
    } catch (...) {
        return raise();
    }
    Py_RETURN_TRUE;
}

// What the dispatcher would pass over on its way to the backend: nothing that tracks, traces, wraps or
// moves the tensor.
const uint64_t kPassedOver =
    (c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                          c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect}) |
     c10::autocast_dispatch_keyset)
        .raw_repr();

// Null if the argument is not a tensor with which torch.distributed would do nothing but call the backend.
const at::Tensor *plain(PyObject *argument)
{
    if (!THPVariable_CheckExact(argument))
        return nullptr;
    const at::Tensor &tensor = THPVariable_Unpack(argument);
    const uint64_t keys =
        tensor.key_set().raw_repr() | c10::impl::tls_local_dispatch_key_set().included_.raw_repr();
    if ((keys & ~kPassedOver) != 0 || tensor.is_complex() ||
        (tensor.requires_grad() && c10::GradMode::is_enabled()))
        return nullptr;
    return &tensor;
}

// torch's objects for the reductions without a parameter. Never destructed.
struct Named {
    PyObject *object;
    RedOp value;
};
std::array<Named, 8> *named = nullptr;

void nameReductions()
{
    const py::object names = py::module_::import("torch._C._distributed_c10d").attr("ReduceOp");
    const auto find = [&](const char *name, RedOp value) {
        return Named{py::object(names.attr(name)).release().ptr(), value};
    };
    named = new std::array<Named, 8>{
        find("SUM", RedOp::SUM), find("AVG", RedOp::AVG),   find("PRODUCT", RedOp::PRODUCT),
        find("MIN", RedOp::MIN), find("MAX", RedOp::MAX),   find("BAND", RedOp::BAND),
        find("BOR", RedOp::BOR), find("BXOR", RedOp::BXOR),
    };
}

// Calls run(reduceOp). False if the argument is no reduction.
template <class Run>
PyObject *withReduction(PyObject *argument, Run &&run)
{
    for (const Named &one : *named)
        if (one.object == argument)
            return run(c10d::ReduceOp(one.value));
    if (!py::isinstance<c10d::ReduceOp>(argument)) // with a parameter
        Py_RETURN_FALSE;
    return run(py::handle(argument).cast<c10d::ReduceOp>());
}

PyObject *wrongCount()
{
    PyErr_SetString(PyExc_TypeError, "shmcoll: a direct call with too few or too many arguments");
    return nullptr;
}

PyObject *allReduce(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2)
        return wrongCount();
    const at::Tensor *tensor = plain(arguments[0]);
    if (tensor == nullptr)
        Py_RETURN_FALSE;
    return withReduction(arguments[1], [&](const c10d::ReduceOp &op) {
        return call([&, kept = *tensor] { backendOf(self).allReduceNow(kept, op); });
    });
}

// The number in the group of a rank of the job; -1: it is not in the group.
int rankInGroup(PyObject *self, PyObject *argument)
{
    if (!PyLong_CheckExact(argument))
        return -1;
    int overflow = 0;
    const long rank = PyLong_AsLongAndOverflow(argument, &overflow);
    if (rank < 0 || overflow != 0)
        return -1;
    const std::vector<long> &members = reinterpret_cast<Direct *>(self)->parts->members;
    if (static_cast<size_t>(rank) < members.size() && members[static_cast<size_t>(rank)] == rank)
        return static_cast<int>(rank);
    const auto found = std::find(members.begin(), members.end(), rank);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

PyObject *broadcast(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2)
        return wrongCount();
    const at::Tensor *tensor = plain(arguments[0]);
    const int root = rankInGroup(self, arguments[1]);
    if (tensor == nullptr || root < 0)
        Py_RETURN_FALSE;
    return call([&, kept = *tensor] { backendOf(self).broadcastNow(kept, root); });
}

PyObject *allGather(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2)
        return wrongCount();
    const at::Tensor *output = plain(arguments[0]), *input = plain(arguments[1]);
    if (output == nullptr || input == nullptr)
        Py_RETURN_FALSE;
    return call([&, out = *output, in = *input] { backendOf(self).allGatherNow(out, in); });
}

PyObject *reduceScatter(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3)
        return wrongCount();
    const at::Tensor *output = plain(arguments[0]), *input = plain(arguments[1]);
    if (output == nullptr || input == nullptr)
        Py_RETURN_FALSE;
    return withReduction(arguments[2], [&](const c10d::ReduceOp &op) {
        return call(
            [&, out = *output, in = *input] { backendOf(self).reduceScatterNow(out, in, op); });
    });
}

PyObject *allToAll(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2)
        return wrongCount();
    const at::Tensor *output = plain(arguments[0]), *input = plain(arguments[1]);
    if (output == nullptr || input == nullptr || output->scalar_type() != input->scalar_type())
        Py_RETURN_FALSE;
    return call(
        [&, out = *output, in = *input]() mutable { backendOf(self).allToAllNow(out, in); });
}

PyObject *barrier(PyObject *self, PyObject *const *, Py_ssize_t count)
{
    if (count != 0)
        return wrongCount();
    return call([&] { backendOf(self).barrierNow(); });
}

template <class Method>
constexpr PyMethodDef method(const char *name, Method function)
{
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
            METH_FASTCALL, nullptr};
}

void destroy(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    delete reinterpret_cast<Direct *>(self)->parts; // the last owner of the group closes it
    type->tp_free(self);
    Py_DECREF(type);
}

PyTypeObject *type = nullptr; // of Direct; never destructed

void makeType(py::module_ &m)
{
    static PyMethodDef methods[] = {
        method("all_reduce", allReduce),      method("broadcast", broadcast),
        method("all_gather_into", allGather), method("reduce_scatter_into", reduceScatter),
        method("all_to_all", allToAll),       method("barrier", barrier),
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_methods, methods},
        {Py_tp_dealloc, reinterpret_cast<void *>(destroy)},
        {0, nullptr},
    };
    static PyType_Spec spec = {"shmcoll._C._Direct", sizeof(Direct), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    PyObject *const made = PyType_FromSpec(&spec);
    if (made == nullptr)
        throw py::error_already_set();
    type = reinterpret_cast<PyTypeObject *>(made);
    m.attr("_Direct") = py::handle(made);
}

py::object make(c10::intrusive_ptr<ProcessGroupShm> backend, std::vector<long> members)
{
    auto parts = std::make_unique<Direct::Parts>();
    *parts = {std::move(backend), std::move(members)};
    PyObject *const self = type->tp_alloc(type, 0);
    if (self == nullptr)
        throw py::error_already_set();
    reinterpret_cast<Direct *>(self)->parts = parts.release();
    return py::reinterpret_steal<py::object>(self);
}

} // namespace

void bindDirect(py::module_ &m)
{
    nameReductions();
    makeType(m);
    m.def("_direct", make, py::arg("backend"), py::arg("members"));
}

} // namespace shmcoll
