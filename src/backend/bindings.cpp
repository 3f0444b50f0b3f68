// SPDX-License-Identifier: BSD-3-Clause
// The module shmcoll._C: the glue's classes for one version of Python and one of torch. Without it the
// operators of api.cpp do the same.
#include "backend/direct.hpp"
#include "backend/python.hpp"
#include "backend/reconfigurable.hpp"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace
{

template <class T>
using IntrusiveClass = c10::intrusive_ptr<T>;

constexpr const char *optionsDoc = R"(Options of one group, for ``pg_options=``.

Args:
    timeout: a datetime.timedelta, the time limit of each operation. The default of 30 minutes means
        the timeout given to init_process_group or new_group.
    tuning: "key=value,key=value", or "@" and the name of a file. It replaces SHMCOLL_TUNING for this
        group, and must be the same on all ranks. "" means what SHMCOLL_TUNING says.
    hosts: "one": ranks that do not all share memory are an error; "auto": they make a group over several
        hosts. "" means what SHMCOLL_HOSTS says, or "auto".
    engine: what moves bytes between hosts: "gloo", or another backend of torch.distributed for CPU tensors.
        "" means what SHMCOLL_ENGINE says, or "gloo".
    rails: how many ranks of each host move data to other hosts, 1 to 8. 0 means what SHMCOLL_RAILS says, or
        as many as there can be.
    order: "host": sums of each host's ranks are added in the order of hosts; "rank": all ranks' inputs are
        added in the order of ranks, as on one host.
    partials: "narrow": a host's sum of bfloat16 is rounded before it goes to other hosts; "wide": it goes as
        float32.

All but the first two are for groups over several hosts, and must be the same on all ranks.

Raises:
    ValueError: a negative timeout; an unknown key, a bad value or an unreadable file in tuning; a value of
        another option that does not exist.
    TypeError: an argument of another type.

Example:
    >>> dist.new_group([0, 1], pg_options=shmcoll.Options(tuning="depth=4"))
)";

// The one place that knows their values.
void checkHosts(const shmcoll::GroupOptions &options)
{
    py::module_::import("shmcoll._options")
        .attr("check_hosts")(options.hosts, options.engine, options.rails, options.order,
                             options.partials);
}

// A bool is an int for Python, but no number of anything.
int number(const py::int_ &value)
{
    py::detail::make_caster<int> number;
    if (PyBool_Check(value.ptr()) || !number.load(value, false))
        throw py::type_error("shmcoll.Options: incompatible constructor arguments: rails must be a "
                             "small number, got " +
                             py::repr(value).cast<std::string>());
    return number;
}

IntrusiveClass<shmcoll::GroupOptions> makeOptions(std::chrono::milliseconds timeout,
                                                  std::string tuning, std::string hosts,
                                                  std::string engine, const py::int_ &rails,
                                                  std::string order, std::string partials)
{
    auto self = c10::make_intrusive<shmcoll::GroupOptions>(timeout);
    self->tuning = std::move(tuning);
    self->hosts = std::move(hosts);
    self->engine = std::move(engine);
    self->rails = number(rails);
    self->order = std::move(order);
    self->partials = std::move(partials);
    self->check();
    checkHosts(*self);
    return self;
}

using OptionsClass = py::class_<shmcoll::GroupOptions, c10d::Backend::Options,
                                IntrusiveClass<shmcoll::GroupOptions>>;

void bindHostsOptions(OptionsClass &options)
{
    using shmcoll::GroupOptions;
    options.def_readwrite("hosts", &GroupOptions::hosts)
        .def_readwrite("engine", &GroupOptions::engine)
        .def_readwrite("rails", &GroupOptions::rails)
        .def_readwrite("order", &GroupOptions::order)
        .def_readwrite("partials", &GroupOptions::partials);
}

void bindOptions(py::module_ &m)
{
    using shmcoll::GroupOptions;
    OptionsClass options(m, "Options", optionsDoc);
    bindHostsOptions(options);
    // Where pickle looks for it: a process that unpickles may not have loaded this module yet.
    options.attr("__module__") = "shmcoll";
    options
        .def(py::init(&makeOptions), py::arg("timeout") = kBackendDefaultTimeout,
             py::arg("tuning") = "", py::kw_only(), py::arg("hosts") = "", py::arg("engine") = "",
             py::arg("rails") = 0, py::arg("order") = "host", py::arg("partials") = "narrow")
        .def_static("_for_gloo",
                    [](std::chrono::milliseconds timeout) {
                        return c10::make_intrusive<GroupOptions>(timeout, shmcoll::kGloo);
                    })
        .def("__repr__",
             [](const GroupOptions &self) {
                 const py::object more =
                     py::module_::import("shmcoll._options").attr("hosts_text")(py::cast(self));
                 return py::str("shmcoll.Options(timeout={!r}, tuning={!r}{})")
                     .format(self.timeout, self.tuning, more);
             })
        .def_readwrite("tuning", &GroupOptions::tuning)
        // This library's or torch's, depending on its version.
        .def_readwrite("group_name", &GroupOptions::group_name)
        .def_readwrite("group_desc", &GroupOptions::group_desc)
        .def_readwrite("global_ranks_in_group", &GroupOptions::global_ranks_in_group)
        // torch deep-copies options; their base class does not support it.
        .def("__copy__",
             [](const GroupOptions &self) { return c10::make_intrusive<GroupOptions>(self); })
        .def("__deepcopy__",
             [](const GroupOptions &self, const py::dict &) {
                 return c10::make_intrusive<GroupOptions>(self);
             })
        .def(py::pickle( // for programs that spawn their ranks
            [](const GroupOptions &self) {
                return py::make_tuple(self.timeout, self.group_name, self.group_desc,
                                      self.global_ranks_in_group, self.tuning, self.backend,
                                      self.hosts, self.engine, self.rails, self.order,
                                      self.partials);
            },
            [](const py::tuple &state) {
                auto self = c10::make_intrusive<GroupOptions>(
                    state[0].cast<std::chrono::milliseconds>(), state[5].cast<std::string>());
                self->group_name = state[1].cast<std::string>();
                self->group_desc = state[2].cast<std::string>();
                self->global_ranks_in_group = state[3].cast<std::vector<uint64_t>>();
                self->tuning = state[4].cast<std::string>();
                self->hosts = state[6].cast<std::string>();
                self->engine = state[7].cast<std::string>();
                self->rails = state[8].cast<int>();
                self->order = state[9].cast<std::string>();
                self->partials = state[10].cast<std::string>();
                return self;
            }));
}

void bindBackend(py::module_ &m)
{
    using shmcoll::GroupOptions;
    using shmcoll::ProcessGroupShm;
    py::class_<ProcessGroupShm, c10d::Backend, IntrusiveClass<ProcessGroupShm>>(m,
                                                                                "ProcessGroupShm")
        .def(py::init<const c10::intrusive_ptr<c10d::Store> &, int, int,
                      c10::intrusive_ptr<GroupOptions>>(),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"))
        .def_property_readonly("options", &ProcessGroupShm::options)
        // Each of torch's own backends has this method; _set_pg_timeout calls it.
        .def("_set_default_timeout", &ProcessGroupShm::changeTimeout, py::arg("timeout"),
             py::call_guard<py::gil_scoped_release>())
        .def("get_error", &ProcessGroupShm::getError) // torch has no binding for it
        // For a group with a device_id, torch calls this on ranks that are not in a new group, if its
        // backend can split. With NCCL they take part; here the members alone make the new group.
        .def("perform_nocolor_split", [](const ProcessGroupShm &, const c10::Device &) {})
        // For a torch whose class of backends has no hooks.
        .def("_add_abort_hook",
             [](ProcessGroupShm &self, int64_t id, std::function<void()> hook) {
                 self.abortHooks().add(
                     id, std::make_shared<const shmcoll::AbortHooks::Hook>(std::move(hook)));
             })
        .def("_remove_abort_hook",
             [](ProcessGroupShm &self, int64_t id) { self.abortHooks().remove(id); })
        .def("_info", &ProcessGroupShm::info);
}

void bindReconfigurable(py::module_ &m)
{
    using Group = shmcoll::ReconfigurableGroup;
    py::class_<Group, c10d::Backend, IntrusiveClass<Group>>(m, "ReconfigurableGroup")
        .def(py::init<const c10::intrusive_ptr<c10d::Store> &, int, int,
                      c10::intrusive_ptr<shmcoll::GroupOptions>, const std::string &, int64_t>(),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
             py::arg("host"), py::arg("pid"))
        .def_property_readonly("options", &Group::options)
        .def_property_readonly("_current", [](Group &self) { return self.current("the group"); })
        // For a torch whose class of backends has no reconfigure().
        .def("_add_abort_hook", &Group::addHook)
        .def("_remove_abort_hook", &Group::removeHook)
        .def("_handle", &Group::handle)
        .def("_change", &Group::change, py::arg("uuid"), py::arg("handles"),
             py::arg("ordered") = true, py::arg("timeout") = py::none(),
             py::call_guard<py::gil_scoped_release>())
        .def("_set_default_timeout", &Group::changeTimeout, py::arg("timeout"),
             py::call_guard<py::gil_scoped_release>())
        .def("get_error", &Group::getError)
        .def("perform_nocolor_split", [](const Group &, const c10::Device &) {});
}

} // namespace

// A free-threaded Python then keeps its lock off. What the threads of a program share here guards itself, as the
// methods of a backend always had to: torch calls them without the lock.
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, py::mod_gil_not_used())
{
    py::module_::import("torch.distributed"); // the base classes
    bindOptions(m);
    bindBackend(m);
    bindReconfigurable(m);
    shmcoll::bindDirect(m);
    shmcoll::setPythonErrorThrower([] { throw py::error_already_set(); });
}
