# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll stacks``: where the ranks are in their Python programs, those that are waited for first."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shmcoll.watch import board, machine, status, text
from shmcoll.watch.blame import Verdict, judge
from shmcoll.watch.groups import Group, gather
from shmcoll.watch.machine import TOOLS_LINE, find_tool
from shmcoll.watch.parser import EXIT_USAGE, Parser
from shmcoll.watch.status import EXIT_FAILED, EXIT_LATE, EXIT_MOVES, EXIT_NOTHING

EXIT_NO_STACKS = 4  # not one stack could be read

_LIMIT_S = 30  # of py-spy for one process
_AT_ONCE = 4
_ROOT = Path("/")

__all__ = [
    "EXIT_FAILED",
    "EXIT_LATE",
    "EXIT_MOVES",
    "EXIT_NOTHING",
    "EXIT_NO_STACKS",
    "EXIT_USAGE",
    "main",
]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    groups, pids, unknown = _chosen(options.what, gather(board.look()))
    for word in unknown:
        what = "is neither the name of a group that is to be seen, nor a process"
        print(f"shmcoll stacks: {board.printable(word)} {what}", file=sys.stderr)
    if not pids:
        if not unknown:
            print("\n".join(text.nothing([])))
        return EXIT_NOTHING
    verdict = judge(groups, options.late)
    for index, group in enumerate(groups):
        print("\n".join([status.title(index, group), *status.group_verdict(group, options.late)]))
    for line in status.verdict_lines(verdict):
        print(line)
    if groups:
        print()
    code = _print_stacks(groups, _in_order(pids, verdict), options)
    if code or not groups:
        return code
    return status.exit_code(groups, verdict, options.late)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shmcoll stacks",
        description="Shows where the ranks of running groups are in their Python programs: first the ranks "
        "that others wait for. It needs py-spy and the right to trace the processes.",
        epilog="exit codes: those of shmcoll status, but 0 for a process that has no group; 4 if not one "
        "stack could be read",
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="GROUP|PID",
        help="a group's name, or a process (default: all groups)",
    )
    parser.add_argument("--native", action="store_true", help="also show the frames of C and C++")
    text.add_late_option(parser)
    return parser


def _chosen(words: Sequence[str], groups: list[Group]) -> tuple[list[Group], list[int], list[str]]:
    """The groups and the processes that are meant, and the words that mean nothing.

    A word that is the name of a group is the group, also if it is a number: torch counts groups.
    """
    if not words:
        return groups, _members(groups), []
    pids: list[int] = []
    unknown = []
    for word in words:
        named = [group for group in groups if group.name == word]
        if named:
            pids += _members(named)
        elif re.fullmatch("[0-9]{1,10}", word) and machine.start_time(_ROOT, int(word)) is not None:
            pids.append(int(word))
        else:
            unknown.append(word)
    pids = list(dict.fromkeys(pids))
    meant = [
        group
        for group in groups
        if group.name in words or not set(pids).isdisjoint(_members([group]))
    ]
    return meant, pids, unknown


def _members(groups: Iterable[Group]) -> list[int]:
    return list(
        dict.fromkeys(
            group.members[rank].process.pid for group in groups for rank in sorted(group.members)
        )
    )


def _in_order(pids: Sequence[int], verdict: Verdict) -> list[int]:
    """Those first that others wait for."""
    first: list[int | None] = [culprit.group.pid(culprit.rank) for culprit in verdict.culprits]
    first += [wait.waiter[1] for cycle in verdict.cycles for wait in cycle]
    return [pid for pid in dict.fromkeys([*first, *pids]) if pid is not None and pid in pids]


# ---- stacks ----


@dataclass(frozen=True)
class Stack:
    pid: int
    text: str  # of py-spy; "": none
    problem: str = ""


def _print_stacks(groups: Sequence[Group], pids: Sequence[int], options: argparse.Namespace) -> int:
    tool = find_tool("py-spy")
    if tool is None:
        print("\n".join(_without_tool(groups, pids)))
        return EXIT_NO_STACKS
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        stacks = list(pool.map(lambda pid: _dump(tool, pid, options.native), pids))
    for line in _lines(groups, stacks):
        print(line)
    return 0 if any(stack.text for stack in stacks) else EXIT_NO_STACKS


def _dump(tool: str, pid: int, native: bool) -> Stack:
    command = [tool, "dump", "--pid", str(pid)]
    if native:
        command.append("--native")
    elif (machine.stat_of(_ROOT, pid) or [""])[0] in "Tt":
        command.append("--nonblocking")  # a stopped process cannot be stopped once more
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return Stack(pid, "", f"py-spy has no answer after {_LIMIT_S} s")
    except OSError as error:
        return Stack(pid, "", f"py-spy cannot be started: {error}")
    # Names of functions, files and threads are another program's.
    said, why = (board.printable(text, keep="\n") for text in (done.stdout, done.stderr))
    if done.returncode == 0 and said.strip():
        return Stack(pid, said)
    return Stack(pid, "", _why(_ROOT, pid, why.strip()))


def _why(root: Path, pid: int, said: str) -> str:
    """Why there is no stack, and what gives one."""
    if machine.start_time(root, pid) is None:
        return f"process {pid} has ended"
    if not re.search(r"permission denied|not permitted|EPERM", said, re.I):
        said = said.partition("Stack backtrace:")[0].strip()  # py-spy's own
        return f"py-spy: {said.splitlines()[-1].removeprefix('Error: ') if said else 'no output'}"
    scope = machine.read(root / "proc/sys/kernel/yama/ptrace_scope") or "0"
    owner = machine.status_of(root, pid).get("Uid", "").split()
    ways = f"sudo shmcoll stacks {pid}"
    if owner and owner[0] != str(os.geteuid()):
        return f"the process belongs to user {owner[0]}: run as that user, or {ways}"
    if scope not in ("0", ""):
        return (
            f"Yama (ptrace_scope {scope}) does not let this user trace it: {ways}, or sysctl "
            "kernel.yama.ptrace_scope=0, or start the ranks with SHMCOLL_TRACEABLE=1"
        )
    if machine.has_more_rights(root, pid):
        return f"the process holds more rights than this one: {ways}, or run with the same rights"
    if machine.in_container(root):
        return "this container may not trace: docker run --cap-add SYS_PTRACE, or run on the host as root"
    return f"the kernel does not let this user trace it: {ways}, or run as root"


def _without_tool(groups: Sequence[Group], pids: Sequence[int]) -> list[str]:
    gdb = shutil.which("gdb")
    lines = [f"No stacks: py-spy is not installed.   {TOOLS_LINE}"]
    if gdb:
        lines.append("The frames of C and C++, which seldom name a line of the program:")
        for pid in pids[:4]:
            command = f"gdb -p {pid} -batch -ex 'thread apply all backtrace'"
            lines.append(f"  {command}   # {_names(groups, pid)}")
    return lines


def _names(groups: Sequence[Group], pid: int) -> str:
    """ "rank 1 of "0", rank 0 of "tp""."""
    names = [
        f'{group.name_rank(rank)} of "{group.name}"'
        for group in groups
        for rank, member in group.members.items()
        if member.process.pid == pid
    ]
    return ", ".join(names) or f"process {pid}"


def _lines(groups: Sequence[Group], stacks: Sequence[Stack]) -> list[str]:
    lines: list[str] = []
    alike: dict[str, list[Stack]] = {}
    for stack in stacks:
        alike.setdefault(_frames(stack), []).append(stack)
    for index, same in enumerate(alike.values()):
        lines += [""] * (index > 0)
        for stack in same:
            lines += _heads(groups, stack.pid)
        lines += _body(same[0])
    return lines


def _frames(stack: Stack) -> str:
    """The stack without what differs between processes that are at the same place."""
    if not stack.text:
        return stack.problem or str(stack.pid)
    return "\n".join(re.sub(r"^Thread \d+", "", line) for line in _kept(stack))


def _kept(stack: Stack) -> list[str]:
    """py-spy begins with the process's number and command, and Python's version."""
    lines = [line.rstrip() for line in stack.text.splitlines()]
    first = next((at for at, line in enumerate(lines) if line.startswith("Thread ")), 0)
    return [line for line in lines[first:] if line]


def _heads(groups: Sequence[Group], pid: int) -> list[str]:
    """What the rank does: in the groups in which it is busy, or else in all of its groups."""
    parts = [
        (group, member)
        for group in groups
        for member in group.members.values()
        if member.process.pid == pid
    ]
    busy = [one for one in parts if one[1].in_call or one[1].making or one[1].pending]
    busy += [one for one in parts if one not in busy and one[1].on_gpu]
    heads = [
        f'{group.name_rank(member.rank)} of "{group.name}", pid {pid}: '
        f"{status._what(group, member.rank)}"
        for group, member in busy or parts
    ]
    if heads:
        return heads
    state = (machine.stat_of(_ROOT, pid) or [""])[0]
    return ["; ".join([f"process {pid}: no group to be seen", *status.state_texts(state)])]


def _body(stack: Stack) -> list[str]:
    if not stack.text:
        return [f"  no stack: {stack.problem}"]
    return [f"  {line}" for line in _kept(stack)]
