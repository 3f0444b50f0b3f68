# SPDX-License-Identifier: BSD-3-Clause
"""CUDA tensors on a machine without a GPU: torch's CUDA side over the stand-in for the driver.

    faketorch.build()             # in the process that forks ranks, once

    def body(rank):
        gpu = faketorch.enter()   # in a rank: for the life of its process
        rank.init()
        t = torch.arange(4.0).to("cuda:0")
        dist.all_reduce(t)
        gpu.synchronize(0)
        return t.cpu().tolist()

What exists of torch's CUDA is what tests/cuda/faketorch/faketorch.cpp registers: memory, views,
copies, streams, events. The library under test finds the stand-in under the driver's name, because
it has been loaded under that name before.

The kernels are their twins on the CPU (tests/cuda/twins.cc). Where no nvcc has compiled any, the
library under test refuses CUDA tensors; then lend_kernels() loads it with an image in which the
stand-in finds the twins, as tests/cuda/CMakeLists.txt links it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "faketorch"
STANDIN = FOLDER / "libcuda.so.1"
CUDA = ROOT / "tests" / "cuda"
STANDIN_SOURCES = [
    CUDA / "fakedriver" / f"{name}.cc"
    for name in ("captures", "machine", "memory", "peers", "streams")
]
STANDIN_SOURCES += [CUDA / "twins.cc", CUDA / "faketorch" / "standin.cc"]
INCLUDES = (str(ROOT), str(ROOT / "src"))

SHIPPED = ROOT / "python/shmcoll/lib"
CORE = next(SHIPPED.glob("libshmcoll.so.*"), SHIPPED / "libshmcoll.so.0")  # of this major version
LENT = FOLDER / f"libshmcoll_cuda.so{CORE.suffix}"
CUDA_SIDE = ROOT / "src/cuda_ipc"
LENT_SOURCES = [
    *(path for path in CUDA_SIDE.rglob("*.c") if path.name != "image.c"),
    CUDA / "fakedriver" / "no_image.c",
]


def newest(paths: list[Path]) -> float:
    return max(path.stat().st_mtime for path in paths)


def build_standin() -> None:
    sources = [
        *STANDIN_SOURCES,
        CUDA / "fakedriver" / "fake.h",
        *(ROOT / "src/cuda_ipc").rglob("*.h"),
    ]
    if STANDIN.exists() and STANDIN.stat().st_mtime > newest(sources):
        return
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-pthread"]
    command += [f"-I{folder}" for folder in INCLUDES]
    command += ["-Wl,-soname,libcuda.so.1", "-o", str(STANDIN), *map(str, STANDIN_SOURCES)]
    subprocess.run(command, check=True)


def build_lent() -> None:
    headers = [path for side in (CUDA_SIDE, ROOT / "src/shm") for path in side.rglob("*.h")]
    if LENT.exists() and LENT.stat().st_mtime > newest([*LENT_SOURCES, *headers]):
        return
    command = ["gcc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    command += ["-ffp-contract=off", "-D_GNU_SOURCE"]
    command += [f"-I{folder}" for folder in INCLUDES]
    command += [f"-Wl,-soname,{LENT.name}", f"-Wl,--version-script={CUDA_SIDE}/shmcoll_cuda.map"]
    command += ["-o", str(LENT), *map(str, LENT_SOURCES)]
    command += [f"-L{SHIPPED}", f"-l:{CORE.name}", f"-Wl,-rpath,{SHIPPED}", "-ldl"]
    subprocess.run(command, check=True)


def build_extension() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load(
        "faketorch",
        [str(CUDA / "faketorch" / "faketorch.cpp")],
        extra_include_paths=list(INCLUDES),
        extra_cflags=["-O0", "-g0"],
        build_directory=str(FOLDER),
    )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One process builds, the others wait for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lend_kernels() -> None:
    """Puts kernels in place if the build has none. Call it before anything imports shmcoll, which loads
    the library that is there."""
    shipped = SHIPPED / LENT.name
    if not shipped.exists() or b"shc_kernel_image_bytes" in shipped.read_bytes():
        return
    with alone():
        build_lent()
    ctypes.CDLL(str(LENT))


def build() -> None:
    """Half a minute when nothing is there. In a process of its own: loading has effects."""
    with alone():
        # torch 2.14 does not remove the file of its own lock; an older one would wait until it is gone.
        (FOLDER / "lock").unlink(missing_ok=True)
        # torch's compiler asks for ninja, which lies next to this Python.
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run([sys.executable, __file__], env={**os.environ, "PATH": tools}, check=True)


def enter(knobs: str = "") -> Any:
    """This process has GPUs from here on; `knobs` as tests/cuda/fakedriver/fake.h has them."""
    import torch

    # A torch with CUDA keeps the answer. Its runtime would take the stand-in for a driver otherwise,
    # which does not have what it calls.
    torch.cuda.is_available()
    if knobs:
        os.environ["FAKE_CUDA"] = knobs
    spec = importlib.util.spec_from_file_location("faketorch", FOLDER / "faketorch.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load(str(STANDIN))
    torch.cuda._initialized = True  # else torch asks its own CUDA, which is not there
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # broadcast() asks it
    return module


if __name__ == "__main__":
    build_standin()
    build_extension()
