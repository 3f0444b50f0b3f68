// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The functions of the interpreter that the glue calls, found when it runs. So one build of the glue
// fits every Python, and Python.h is not included: none of these has changed since Python 3.10.

namespace shmcoll
{

struct Object; // a PyObject
struct Thread; // a PyThreadState

// The members have the names of the functions.
struct PythonApi {
    int (*Py_IsInitialized)();
    void (*Py_DecRef)(Object *);
    unsigned long (*PyThread_get_thread_ident)();
    Thread *(*PyGILState_GetThisThreadState)();
    Thread *(*PyThreadState_GetUnchecked)(); // before 3.13 its name was _PyThreadState_UncheckedGet
    int (*PyGILState_Ensure)();
    void (*PyGILState_Release)(int);
    Thread *(*PyEval_SaveThread)();
    void (*PyEval_RestoreThread)(Thread *);
    int (*PyErr_CheckSignals)();
    int (*PyErr_SetInterruptEx)(int);
    Object *(*PyErr_Occurred)();
    void (*PyErr_Clear)();
    void (*PyErr_Fetch)(Object **, Object **, Object **);
    void (*PyErr_Restore)(Object *, Object *, Object *);
    Object *(*PyImport_ImportModule)(const char *);
    Object *(*PyObject_GetAttrString)(Object *, const char *);
    Object *(*PyObject_CallFunction)(Object *, const char *, ...);
    int (*PyCallable_Check)(Object *);
};

// nullptr in a process without an interpreter.
const PythonApi *pythonApi();

} // namespace shmcoll
