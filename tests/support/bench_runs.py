# SPDX-License-Identifier: BSD-3-Clause
"""Whole runs of ``python -m shmcoll.bench`` in a folder of their own."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, NoReturn

import torch  # noqa: F401 (what is forked has it)
from processes import processes_where

from shmcoll.bench import cli

RUN_LIMIT_S = 100
_PR_SET_PDEATHSIG = 1

TINY = ("-e", "4K", "-f", "512", "--rounds", "2", "--point-time", "0.02")


def bench_command(*args: str) -> list[str]:
    return [sys.executable, "-m", "shmcoll.bench", *args]


def bench_environment(tmp_path: Path) -> dict[str, str]:
    package_root = Path(cli.__file__).parents[2]
    path = [str(package_root), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(tmp_path)}


def run_bench(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the bench in a forked process: an import of torch takes longer than most runs."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_bench(tmp_path, args, out, err)
        code = _ended(pid, args, time.monotonic() + RUN_LIMIT_S)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(args, code, out.read(), err.read())


def _be_bench(tmp_path: Path, args: tuple[str, ...], out: IO[str], err: IO[str]) -> NoReturn:
    code: object = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        with open(os.devnull) as nothing:
            for fd, file in enumerate((nothing, out, err)):
                os.dup2(file.fileno(), fd)
        os.closerange(3, 1 << 16)
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))
        os.environ.update(bench_environment(tmp_path))
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)[:2]
        tempfile.tempdir = None  # TMPDIR is another one now
        code = cli.main(args)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _ended(pid: int, args: tuple[str, ...], deadline: float) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise subprocess.TimeoutExpired(args, RUN_LIMIT_S)
        time.sleep(0.01)


def start_bench(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        bench_command(*args),
        env=bench_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(tmp_path: Path) -> list[int]:
    """The rank processes of a run, whose TMPDIR that is."""

    def fits(entry: Path) -> bool:
        is_rank = (entry / "comm").read_text().startswith("bench rank ")
        return is_rank and f"TMPDIR={tmp_path}\0" in (entry / "environ").read_text(errors="replace")

    return processes_where(fits)


def wait_until_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 10
    while ranks_of(tmp_path):
        assert time.monotonic() < deadline, f"still there: {ranks_of(tmp_path)}"
        time.sleep(0.05)


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]
