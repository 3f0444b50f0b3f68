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
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

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


def build_extension() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load(
        "faketorch",
        [str(CUDA / "faketorch" / "faketorch.cpp")],
        extra_include_paths=list(INCLUDES),
        extra_cflags=["-O1", "-g0"],
        build_directory=str(FOLDER),
    )


def build() -> None:
    """Half a minute when nothing is there. In a process of its own: loading has effects."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # torch 2.14 leaves its own lock's file behind; an older one would wait until it is gone.
        (FOLDER / "lock").unlink(missing_ok=True)
        subprocess.run([sys.executable, __file__], check=True)


def enter(knobs: str = "") -> Any:
    """This process has GPUs from here on; `knobs` as tests/cuda/fakedriver/fake.h has them."""
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
