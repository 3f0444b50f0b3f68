# SPDX-License-Identifier: BSD-3-Clause
"""A Multi-Process Service of NVIDIA for our processes alone: it has folders of its own, so no other
process uses it, and it ends with the block that started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
START_S = 20
QUIT_S = 15


def processes_of(folder: str) -> list[int]:
    """The daemon and its servers, by the folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name = (entry / "comm").read_text()
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode() in variables
        if ours and name.startswith(CONTROL[:15]):
            found.append(int(entry.name))
    return found


def tell(words: list[str], env: dict[str, str], limit_s: float, text: str = "") -> str:
    """Returns the output of the control program, also if it fails or does not end."""
    with tempfile.TemporaryFile("w+") as out:  # a daemon would keep a pipe open
        try:
            done = subprocess.run(
                words,
                input=text,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
                env={**os.environ, **env},
                start_new_session=True,
            )
            why = f" (exit code {done.returncode})" if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f" (no end within {limit_s:g} s)"
        out.seek(0)
        return out.read().strip() + why


def wait_until_gone(folder: str, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while processes_of(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def stop(tool: str, folder: str, env: dict[str, str]) -> str:
    """ "" if it has ended as it was asked to."""
    if not processes_of(folder):
        return ""
    said = tell([tool], env, QUIT_S, "quit\n")
    if wait_until_gone(folder, QUIT_S):
        return ""
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gone = wait_until_gone(folder, QUIT_S)
    return f"MPS {'was killed' if gone else 'CANNOT BE KILLED'}: it did not quit. {said}".rstrip()


@contextlib.contextmanager
def running(tool: str, note: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """The environment of its clients. OSError if it does not start. `note` gets what it logged."""
    folder = tempfile.mkdtemp(prefix="shmcoll-mps-")
    env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        said = tell([tool, "-d"], env, START_S)
        if not processes_of(folder):
            raise OSError(f"{CONTROL} -d: {said or 'it is not there'}")
        yield env
    finally:
        note(f"{stop(tool, folder, env)}\n")
        for log in sorted(Path(folder).glob("*.log")):
            note(f"---- {log.name}\n{log.read_text(errors='replace')[-4000:]}\n")
        shutil.rmtree(folder, ignore_errors=True)
