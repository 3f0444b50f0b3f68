# SPDX-License-Identifier: BSD-3-Clause
"""What a waiting stream holds up: other streams of the process, and a caller that enqueues after it.

    python benchmarks/gpu/queues.py [--driver LIBRARY] [--most STREAMS] [--depth OPERATIONS]

Streams of a process share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, default 8). First: next to
how many streams that wait for a word does one that waits for nothing go on, or is its caller kept
by the driver? The same with streams of the highest priority next to ordinary ones that wait. Then:
how many operations can be enqueued after a wait, before the driver keeps the caller? They decide
how many messages a rank may have under way. Lines are JSON.

exit code: 0; 1 if a wait could not be ended
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

DEFAULT = "default"
COUNTS = (1, 2, 4, 6, 7, 8, 12, 15, 16, 24, 31, 32, 48, 64)  # of waiting streams
HELD_UP_S = 0.5  # so long without an end is held up
END_S = 5.0
LINE = 128  # bytes between words
WAIT_GEQ, NON_BLOCKING, PORTABLE_MAPPED = 0, 1, 3


class Driver:
    """Functions of libcuda by name; a result that is no success is an error."""

    def __init__(self, library: str) -> None:
        self.cuda = ctypes.CDLL(library)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.cuda, name, None) or self.ask(name)

        def call(*arguments: Any) -> None:
            result = function(*arguments)
            if result:
                raise RuntimeError(f"{name}: CUDA error {result}")

        setattr(self, name, call)
        return call

    def ask(self, name: str) -> Any:
        found, why = ctypes.c_void_p(), ctypes.c_int()
        self.cuda.cuGetProcAddress_v2(
            name.removesuffix("_v2").encode(),
            ctypes.byref(found),
            12000,
            ctypes.c_uint64(0),
            ctypes.byref(why),
        )
        if not found.value:
            raise RuntimeError(f"the driver has no {name}")
        return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)

    def is_idle(self, stream: ctypes.c_void_p) -> bool:
        function = getattr(self.cuda, "cuStreamQuery", None) or self.ask("cuStreamQuery")
        return bool(function(stream) == 0)


class Words:
    """Host memory that the GPU sees: word 0 is waited for, word 1 written."""

    def __init__(self, driver: Driver) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.view = (ctypes.c_uint64 * (mmap.PAGESIZE // 8)).from_buffer(self.memory)
        address, device = ctypes.addressof(self.view), ctypes.c_uint64()
        size = ctypes.c_size_t(mmap.PAGESIZE)
        driver.cuMemHostRegister_v2(ctypes.c_void_p(address), size, PORTABLE_MAPPED)
        driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device), ctypes.c_void_p(address), 0)
        self.device = device.value

    def at(self, word: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.device + word * LINE)

    def set(self, word: int, value: int) -> None:
        self.view[word * LINE // 8] = value


class Machine:
    def __init__(self, library: str) -> None:
        self.driver = Driver(library)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.driver.cuInit(0)
        self.driver.cuDeviceGet(ctypes.byref(device), 0)
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.context = context
        self.enter()
        self.words = Words(self.driver)

    def enter(self) -> None:
        self.driver.cuCtxPushCurrent_v2(self.context)

    def highest(self) -> int:
        """Priority: the lower the number the higher."""
        least, most = ctypes.c_int(), ctypes.c_int()
        self.driver.cuCtxGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(most))
        return most.value

    def stream(self, priority: int = 0) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.driver.cuStreamCreateWithPriority(ctypes.byref(made), NON_BLOCKING, priority)
        return made

    def wait(self, stream: ctypes.c_void_p) -> None:
        self.driver.cuStreamWaitValue64_v2(stream, self.words.at(0), ctypes.c_uint64(1), WAIT_GEQ)

    def write(self, stream: ctypes.c_void_p, value: int) -> None:
        self.driver.cuStreamWriteValue64_v2(stream, self.words.at(1), ctypes.c_uint64(value), 0)

    def release(self, streams: list[ctypes.c_void_p]) -> bool:
        """Releases the streams by a store of this CPU. False: a stream still waits."""
        self.words.set(0, 1)
        return self.idle(streams, END_S) is not None

    def idle(self, streams: list[ctypes.c_void_p], limit_s: float) -> float | None:
        """Seconds until all were, or None."""
        begun = time.perf_counter()
        while not all(self.driver.is_idle(stream) for stream in streams):
            if time.perf_counter() - begun > limit_s:
                return None
        return time.perf_counter() - begun


def show(what: str, **facts: Any) -> None:
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", DEFAULT)
    print(json.dumps({"queues": what, "connections": queues, **facts}), flush=True)


class Caller:
    """Calls the driver from a thread of its own, since the driver may keep it until a wait ends."""

    def __init__(self, machine: Machine, body: Callable[[], None]) -> None:
        self.machine, self.body = machine, body
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.machine.enter()
            self.body()
        except Exception as error:
            self.error = error

    def is_kept(self, steps: Callable[[], int]) -> bool:
        """Once it has ended, or no step was done in HELD_UP_S."""
        seen, since = -1, time.monotonic()
        while self.thread.is_alive() and time.monotonic() - since < HELD_UP_S:
            if steps() != seen:
                seen, since = steps(), time.monotonic()
            time.sleep(0.001)
        return self.thread.is_alive()

    def ends(self) -> bool:
        self.thread.join(END_S)
        if self.error:
            raise self.error
        return not self.thread.is_alive()


def beside(machine: Machine, most: int, priority: int = 0) -> bool:
    """More and more waiting streams, until one that does not wait, or its caller, is held up."""
    what = "four streams next to waiting ones"
    what += f", of priority {priority}" if priority else ""
    waiting: list[Any] = []
    for count in (count for count in COUNTS if count <= most):
        waiting += [machine.stream() for _ in range(count - len(waiting))]
        machine.words.set(0, 0)
        steps: list[str] = []
        others: list[Any] = []

        def enqueue() -> None:
            for number, stream in enumerate(waiting):
                machine.wait(stream)
                steps.append(f"wait {number}")
            for number in range(4):
                others.append(machine.stream(priority))
                steps.append(f"stream {number}")
            for number, stream in enumerate(others):
                machine.write(stream, number)
                steps.append(f"write {number}")

        caller = Caller(machine, enqueue)
        if caller.is_kept(lambda: len(steps)):
            last = steps[-1] if steps else "nothing"
            show(what, waiting=count, held_up=4, us=None, caller=f"held after {last}")
            machine.words.set(0, 1)
            return caller.ends() and machine.release([*waiting, *others])
        if not caller.ends():
            return False
        took = machine.idle(others, HELD_UP_S)
        held = sum(not machine.driver.is_idle(stream) for stream in others)
        us = None if took is None else round(took * 1e6)
        show(what, waiting=count, held_up=held, us=us, caller="goes on")
        if not machine.release([*waiting, *others]):
            return False
        if held:
            break
    return True


def behind(machine: Machine, depth: int) -> bool:
    """Enqueues after a wait until the caller stands still."""
    stream, done = machine.stream(), [0]
    machine.words.set(0, 0)
    machine.wait(stream)

    def enqueue() -> None:
        for number in range(depth):
            machine.write(stream, number)
            done[0] = number + 1

    caller = Caller(machine, enqueue)
    held = caller.is_kept(lambda: done[0])
    show("word writes after a wait", enqueued=done[0], caller="held" if held else "goes on")
    machine.words.set(0, 1)
    return caller.ends() and machine.release([stream])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--most", type=int, default=64, metavar="STREAMS")
    parser.add_argument("--depth", type=int, default=8192, metavar="OPERATIONS")
    options = parser.parse_args(argv)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # says where it stands
    machine = Machine(options.driver)
    ended = behind(machine, options.depth) and beside(machine, options.most)
    ended = ended and beside(machine, options.most, machine.highest())
    if not ended:
        show("a wait that the CPU's store did not end: this process leaves")
    sys.stdout.flush()
    os._exit(0 if ended else 1)  # what may still wait is not waited for


if __name__ == "__main__":
    sys.exit(main())
