# SPDX-License-Identifier: BSD-3-Clause
"""What a waiting stream holds up: other streams of the process, and who enqueues behind it.

    python benchmarks/gpu/queues.py [--driver LIBRARY] [--most STREAMS] [--depth OPERATIONS]

Streams of a process share hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, preset 8). First: beside
how many streams that wait for a word does one that waits for nothing go on? Then: how many
operations can be enqueued behind a wait, before the driver keeps the caller? Both decide how many
messages a rank may have under way. Lines are JSON.

exit code: 0; 1 if a wait could not be ended
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
import threading
import time
from typing import Any

PRESET = "preset"
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

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.driver.cuStreamCreateWithPriority(ctypes.byref(made), NON_BLOCKING, 0)
        return made

    def wait(self, stream: ctypes.c_void_p) -> None:
        self.driver.cuStreamWaitValue64_v2(stream, self.words.at(0), ctypes.c_uint64(1), WAIT_GEQ)

    def write(self, stream: ctypes.c_void_p, value: int) -> None:
        self.driver.cuStreamWriteValue64_v2(stream, self.words.at(1), ctypes.c_uint64(value), 0)

    def release(self, streams: list[ctypes.c_void_p]) -> bool:
        """By a store of this CPU. False: somebody still waits."""
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
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", PRESET)
    print(json.dumps({"queues": what, "connections": queues, **facts}), flush=True)


def beside(machine: Machine, most: int) -> bool:
    """Doubles the waiting streams until one that does not wait is held up."""
    waiting, count = [], 1
    while count <= most:
        waiting += [machine.stream() for _ in range(count - len(waiting))]
        machine.words.set(0, 0)
        for stream in waiting:
            machine.wait(stream)
        others = [machine.stream() for _ in range(4)]
        for number, stream in enumerate(others):
            machine.write(stream, number)
        took = machine.idle(others, HELD_UP_S)
        held = sum(not machine.driver.is_idle(stream) for stream in others)
        us = None if took is None else round(took * 1e6)
        show("four streams beside waiting ones", waiting=count, held_up=held, us=us)
        if not machine.release([*waiting, *others]):
            return False
        if held:
            break
        count *= 2
    return True


def behind(machine: Machine, depth: int) -> bool:
    """Enqueues behind a wait, from another thread, until that thread stands still."""
    stream, done = machine.stream(), [0]
    machine.words.set(0, 0)
    machine.wait(stream)

    def enqueue() -> None:
        machine.enter()
        for number in range(depth):
            machine.write(stream, number)
            done[0] = number + 1

    thread = threading.Thread(target=enqueue, daemon=True)
    thread.start()
    seen, since = -1, time.monotonic()
    while thread.is_alive() and time.monotonic() - since < HELD_UP_S:
        if done[0] != seen:
            seen, since = done[0], time.monotonic()
        time.sleep(0.01)
    held = thread.is_alive()
    show("word writes behind a wait", enqueued=done[0], caller="held" if held else "goes on")
    machine.words.set(0, 1)
    thread.join(END_S)
    return not thread.is_alive() and machine.release([stream])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--most", type=int, default=64, metavar="STREAMS")
    parser.add_argument("--depth", type=int, default=8192, metavar="OPERATIONS")
    options = parser.parse_args(argv)
    machine = Machine(options.driver)
    ended = beside(machine, options.most) and behind(machine, options.depth)
    if not ended:
        show("a wait that the CPU's store did not end: this process leaves")
    sys.stdout.flush()
    os._exit(0 if ended else 1)  # what may still wait is not waited for


if __name__ == "__main__":
    sys.exit(main())
