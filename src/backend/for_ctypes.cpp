// SPDX-License-Identifier: BSD-3-Clause
// What the glue in Python (python/shmcoll/_python_glue.py) needs of the interpreter inside a wait. Together
// with python.cpp, python_api.cpp and signals.cpp this is a library that knows neither torch nor one
// version of Python. Python holds the interpreter's lock in all calls except shmcoll_interrupted().
#include "backend/api.hpp"
#include "backend/python.hpp"
#include "backend/python_api.hpp"

#include <utility>

namespace
{

struct Error {
    shmcoll::Object *type = nullptr;
    shmcoll::Object *value = nullptr;
    shmcoll::Object *trace = nullptr;
};

thread_local Error raised; // by a handler, inside the wait that this thread has just given up

} // namespace

extern "C" {

// From now on shmcoll_interrupted() knows of signals. Raises what a handler raises that is due by now.
SHMCOLL_EXPORT void shmcoll_watch_signals()
{
    shmcoll::setPythonErrorThrower([] {}); // the error stays pending, and ctypes raises it
    shmcoll::watchSignals();
}

// For shc_comm_config.interrupted.
SHMCOLL_EXPORT bool shmcoll_interrupted(void *)
{
    if (!shmcoll::pythonInterrupted(nullptr))
        return false;
    // ctypes takes a pending error for one of its own call.
    const int state = shmcoll::pythonApi()->PyGILState_Ensure();
    shmcoll::pythonApi()->PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
    shmcoll::pythonApi()->PyGILState_Release(state);
    return true;
}

// Raises what made this thread's last wait give up; returns if a handler has raised nothing.
SHMCOLL_EXPORT void shmcoll_raise()
{
    const Error error = std::exchange(raised, Error());
    if (error.type != nullptr)
        shmcoll::pythonApi()->PyErr_Restore(error.type, error.value, error.trace);
}

void shmcoll_set_main_thread(unsigned long ident)
{
    shmcoll::setMainThread(ident);
}

void shmcoll_after_fork_in_child()
{
    shmcoll::renewPythonInChild();
}

void shmcoll_leave(int forget_python)
{
    shmcoll::leaveProcess(forget_python != 0, [] {});
}
}
