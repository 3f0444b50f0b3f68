# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll doctor``: is this machine, and this installation, fit for ranks? A verdict for each check."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from shmcoll.bench import machine as bench_machine
from shmcoll.bench.topology import read as read_topology
from shmcoll.watch import board, gpu_links, load, machine
from shmcoll.watch.checks import FAIL, OK, WARN, Numbers, RunningRank, Verdict, run
from shmcoll.watch.groups import Group, gather
from shmcoll.watch.parser import EXIT_USAGE, Parser
from shmcoll.watch.trial import attempt

EXIT_FIT = 0  # also with warnings
EXIT_FAILURE = 1

_ROOT = Path("/")
_TOOLS = ("py-spy", "gdb", "lstopo")
_MOST_RANKS = 256
__all__ = ["EXIT_FAILURE", "EXIT_FIT", "EXIT_USAGE", "main"]

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}  # the number of the system call


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    numbers = _numbers(options)
    verdicts = run(_ROOT, numbers)
    if options.json:
        print(json.dumps(_as_json(verdicts, numbers), indent=2))
    else:
        print("\n".join(_lines(verdicts, _width())))
        if options.paste:
            print("\n".join(["", *_paste(numbers, verdicts)]))
    return EXIT_FAILURE if any(one.state == FAIL for one in verdicts) else EXIT_FIT


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shmcoll doctor",
        description="Looks at this machine, this installation and the limits of this shell, and says what "
        "must be changed for ranks to run well. Two ranks really meet and sum.",
        epilog="exit codes: 0 no failure, 1 a failure, 64 bad usage. It changes nothing.",
    )
    parser.add_argument(
        "-g",
        "--nproc",
        type=_ranks,
        metavar="N",
        help="ranks to judge by (default: usable CPUs, 2 to 8)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--paste",
        action="store_true",
        help="also print a block for a bug report: versions, machine",
    )
    parser.add_argument(
        "--no-torch", action="store_true", help="do not import torch, and let no ranks meet"
    )
    return parser


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {_MOST_RANKS}")
    return int(text)


# ---- what no file says ----


def _numbers(options: argparse.Namespace) -> Numbers:
    before = machine.read(_ROOT / "proc/stat")
    running = _running(gather(board.look()))
    cpus = frozenset(os.sched_getaffinity(0))
    # Before two ranks meet: their processes are no load of others.
    others = load.of_others(_ROOT, cpus, {one.pid for one in running})
    ranks = options.nproc or min(8, max(2, bench_machine.usable_cpus()))
    return Numbers(
        ranks=ranks,
        cpus=cpus,
        shm_free=_shm_free(),
        shm_writable=os.access("/dev/shm", os.W_OK | os.X_OK),
        others=others,
        trial=None if options.no_torch else attempt(),
        calls=kernel_calls(),
        links=gpu_links.ask() if machine.gpus(_ROOT) else None,
        running=running,
        installations=installations(sys.path),
        variables={k: v for k, v in os.environ.items() if k.startswith("SHMCOLL_")},
        tools=frozenset(name for name in _TOOLS if machine.find_tool(name)),
        stat_before=before,
    )


def _shm_free() -> int | None:
    try:
        system = os.statvfs("/dev/shm")
    except OSError:
        return None
    return system.f_bavail * system.f_frsize


def _running(groups: Sequence[Group]) -> list[RunningRank]:
    return [
        RunningRank(group.name, rank, member.process.pid)
        for group in groups
        for rank, member in sorted(group.members.items())
    ]


def installations(paths: Sequence[str]) -> list[str]:
    """The folders of ``sys.path`` that have a shmcoll."""
    folders = dict.fromkeys(os.path.realpath(path or ".") for path in paths)
    return [one for one in folders if os.path.isfile(os.path.join(one, "shmcoll/__init__.py"))]


def kernel_calls() -> dict[str, str]:
    """Which of the optional calls of the kernel are allowed: "ok", an error's name, or "killed".

    Each is tried in a child: a filter may kill it.
    """
    return {
        "process_vm_readv": _tried(_read_parent),
        "membarrier": _tried(_ask_membarrier),
    }


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


def _read_parent(libc: ctypes.CDLL) -> int:
    """A process may always read itself, if no filter forbids the call."""
    source, target = ctypes.create_string_buffer(b"x", 8), ctypes.create_string_buffer(8)
    pieces = [_Piece(ctypes.addressof(one), 1) for one in (target, source)]
    local, remote = map(ctypes.byref, pieces)
    done: int = libc.process_vm_readv(os.getpid(), local, 1, remote, 1, 0)
    return done


def _ask_membarrier(libc: ctypes.CDLL) -> int:
    number = _MEMBARRIER.get(platform.machine())
    done: int = libc.syscall(number, 0, 0, 0) if number else 0
    return done


def _tried(call: Callable[[ctypes.CDLL], int]) -> str:
    child = os.fork()
    if child == 0:
        code = 255
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            code = 0 if call(libc) >= 0 else ctypes.get_errno()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        return "killed"
    return "ok" if code == 0 else os.strerror(code)


# ---- text ----


def _width() -> int:
    return min(120, max(40, shutil.get_terminal_size((100, 24)).columns))


def _lines(verdicts: Sequence[Verdict], width: int) -> list[str]:
    lines = []
    for one in verdicts:
        head = f"{one.state:4}  {one.check:10}  "
        text = one.text
        if one.fix and len(head + text) + 2 + len(one.fix) <= width:
            text = f"{text}{one.fix:>{width - len(head + text)}}"
            lines.append(head + text)
            continue
        gap = " " * len(head)
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=head,
            subsequent_indent=gap,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if one.fix:  # whole, so that it can be copied
            lines.append(f"{gap}-> {one.fix}")
    return [*lines, _total(verdicts)]


def _total(verdicts: Sequence[Verdict]) -> str:
    counts = []
    for state, name in ((FAIL, "failure"), (WARN, "warning")):
        number = sum(one.state == state for one in verdicts)
        if number:
            counts.append(f"{number} {name}{'s' if number > 1 else ''}")
    return ", ".join(counts) or "all well"


def _paste(numbers: Numbers, verdicts: Sequence[Verdict]) -> list[str]:
    """For a bug report: no name of a host, a user or a folder of a user."""
    facts = [f"{key}: {value}" for key, value in _facts(numbers).items()]
    bad = [f"{one.state} {one.check}: {one.text}" for one in verdicts if one.state in (WARN, FAIL)]
    return ["```", *facts, *bad, "```"]


def _facts(numbers: Numbers) -> dict[str, str]:
    here = bench_machine.gather()
    trial = numbers.trial
    quota = "" if here.cpu_quota is None else f", quota of {here.cpu_quota:g}"
    facts = {
        "shmcoll": here.versions["shmcoll"] or "not installed (run from its sources)",
        "torch": (trial.torch if trial else "") or here.versions["torch"] or "none",
        "glue": trial.glue if trial else "",
        "Python": here.python,
        "kernel": f"{here.kernel} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "CPU": here.cpu,
        "CPUs": f"{read_topology(_ROOT, numbers.cpus).text()}{quota}",
        "driver": machine.driver_version(_ROOT),
        "variables": ", ".join(f"{k}={v}" for k, v in sorted(numbers.variables.items())),
        "build_info": ", ".join(f"{k}={v}" for k, v in trial.build_info.items()) if trial else "",
    }
    return {key: value for key, value in facts.items() if value}


def _as_json(verdicts: Sequence[Verdict], numbers: Numbers) -> dict[str, object]:
    return {
        "schema": 1,
        "state": "failure" if any(one.state == FAIL for one in verdicts) else OK,
        "ranks": numbers.ranks,
        "checks": [{**dataclasses.asdict(one), "state": one.state.lower()} for one in verdicts],
        "facts": _facts(numbers),
    }
