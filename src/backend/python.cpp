// SPDX-License-Identifier: BSD-3-Clause
#include "backend/python.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <torch/csrc/utils/pybind.h>

namespace shmcoll
{

namespace
{

std::atomic<bool> forgotten{false};
std::thread::id forgetter; // set before `forgotten`
std::atomic<unsigned long> mainThread{0};

bool hasPython()
{
    return !forgotten.load() && Py_IsInitialized() != 0;
}

} // namespace

GilRelease::GilRelease()
    : state_(hasPython() && PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr)
{
}

GilRelease::~GilRelease()
{
    if (state_ == nullptr)
        return;
    stayOutOfDyingPython();
    PyEval_RestoreThread(static_cast<PyThreadState *>(state_));
}

void setMainThread(unsigned long ident)
{
    mainThread.store(ident);
}

bool pythonInterrupted(void *)
{
    // Only the main thread runs handlers; another must not wait here for a lock that a third holds.
    if (!hasPython() || PyThread_get_thread_ident() != mainThread.load())
        return false;
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised;
}

void throwPendingPythonError()
{
    if (!hasPython())
        return;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_Occurred() != nullptr)
        throw pybind11::error_already_set();
}

void stayOutOfDyingPython()
{
    if (!forgotten.load() || std::this_thread::get_id() == forgetter)
        return;
    for (;;)
        std::this_thread::sleep_for(std::chrono::hours(1));
}

void forgetPython()
{
    if (!forgotten.load())
        forgetter = std::this_thread::get_id();
    forgotten.store(true);
}

} // namespace shmcoll
