// SPDX-License-Identifier: BSD-3-Clause
#include "backend/python_api.hpp"

#include <dlfcn.h>

namespace shmcoll
{

namespace
{

template <class Function>
bool find(Function *&function, const char *name)
{
    function = reinterpret_cast<Function *>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
}

const PythonApi *findAll()
{
    auto *api = new PythonApi; // for ever: threads use it while the process ends
#define FIND(name) find(api->name, #name)
    const bool found =
        FIND(Py_IsInitialized) && FIND(Py_DecRef) && FIND(PyThread_get_thread_ident) &&
        (FIND(PyThreadState_GetUnchecked) ||
         find(api->PyThreadState_GetUnchecked, "_PyThreadState_UncheckedGet")) &&
        FIND(PyGILState_GetThisThreadState) && FIND(PyGILState_Ensure) &&
        FIND(PyGILState_Release) && FIND(PyEval_SaveThread) && FIND(PyEval_RestoreThread) &&
        FIND(PyErr_CheckSignals) && FIND(PyErr_SetInterruptEx) && FIND(PyErr_Occurred) &&
        FIND(PyErr_Clear) && FIND(PyErr_Fetch) && FIND(PyErr_Restore) &&
        FIND(PyImport_ImportModule) && FIND(PyObject_GetAttrString) &&
        FIND(PyObject_CallFunction) && FIND(PyCallable_Check);
#undef FIND
    return found ? api : nullptr;
}

} // namespace

const PythonApi *pythonApi()
{
    static const PythonApi *const api = findAll();
    return api;
}

} // namespace shmcoll
