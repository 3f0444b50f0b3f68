# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll stacks` shows where ranks are: with a made-up py-spy, and with the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, Run, run
from shmcoll.watch import machine, stacks

LIMIT_S = 40.0

# A py-spy whose stack depends on the process: $ODD has another one, $REFUSED none.
FAKE = """#!/bin/sh
pid=$3
if [ "$pid" = "$REFUSED" ]; then echo "Error: Permission Denied: Try running again" >&2; exit 1; fi
line=14
[ "$pid" = "$ODD" ] && line=13
printf 'Process %s: python train.py\\nPython v3.11.7 (/usr/bin/python3.11)\\n\\n' "$pid"
printf 'Thread %s (idle): "MainThread"\\n    work (train.py:%s)\\n' "$pid" "$line"
printf '    <module> (\\033[2Jtrain.py:20)\\n    option %s\\n' "$4"
"""


def tool(*words: object, path: Path | None = None, **variables: object) -> tuple[int, str]:
    """The exit code and the text."""
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    if path is not None:
        env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    command = [sys.executable, "-m", "shmcoll", "stacks", "--late", "0.2", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def late_rank(rank: Rank) -> None:
    rank.init()
    dist.barrier()
    if rank.rank == 2:
        while not rank.board[0]:
            time.sleep(0.01)
    dist.all_reduce(torch.ones(2))


def until_both_wait(*words: object, **options: Any) -> str:
    """The text, once two ranks have waited for long enough for the third one."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        code, text = tool(*words, **options)
        if code == 2 and "2 ranks wait for rank 2" in text:
            return text
        assert time.monotonic() < deadline, f"exit {code}: {text}"


def test_a_late_rank_comes_first_and_equal_stacks_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text(FAKE)
    (tmp_path / "py-spy").chmod(0o755)

    def look(run: Run) -> None:
        try:
            look_at(run.pids)
        finally:
            run.board[0] = 1

    def look_at(pids: dict[int, int]) -> None:
        options: dict[str, Any] = {"path": tmp_path, "ODD": pids[2]}
        text = until_both_wait(*pids.values(), **options)
        heads = [
            text.index(f'rank {rank} of "default_pg", pid {pids[rank]}: ') for rank in (2, 0, 1)
        ]
        assert heads == sorted(heads), text
        assert text.count("train.py:13") == 1 and text.count("train.py:14") == 1, text
        assert f'rank 2 of "default_pg", pid {pids[2]}: not in a call for' in text
        assert 'GROUP 0 "default_pg"' in text
        assert "--native" not in text and "Python v3.11" not in text

        # A process alone; its native frames; a stopped one.
        code, one = tool("--native", pids[0], **options)
        assert "option --native" in one and "train.py:13" not in one, one
        os.kill(pids[2], signal.SIGSTOP)
        try:
            while machine.stat_of(Path("/"), pids[2])[0] != "T":
                time.sleep(0.01)
            code, stopped = tool(pids[2], **options)
        finally:
            os.kill(pids[2], signal.SIGCONT)
        assert "option --nonblocking" in stopped, stopped
        # A group by its name, and a word that is none.
        code, named = tool("default_pg", "no-such-group", **options)
        assert f"pid {pids[1]}" in named and "no-such-group is neither the name of" in named, named

        # Without the right to trace: of one rank, and of all that were asked for.
        code, text = tool(*pids.values(), REFUSED=pids[1], **options)
        assert code == 2 and "no stack: " in text and "train.py:14" in text, text
        code, text = tool(pids[1], REFUSED=pids[1], **options)
        assert code == 4 and "no stack: " in text and "train.py" not in text, text

    run(3, late_rank, meanwhile=look)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"proc/sys/kernel/yama/ptrace_scope": "1"}, "Yama (ptrace_scope 1)"),
        ({"proc/5/status": "Uid:\t77777\t77777\n"}, "belongs to user 77777: run as that user, or"),
        ({".dockerenv": ""}, "--cap-add SYS_PTRACE"),
        ({".dockerenv": "", "proc/5/status": "CapPrm:\t0000000000000001\n"}, "holds more rights"),
        ({}, "the kernel does not let this user trace it"),
        ({"proc/5/stat": ""}, "process 5 has ended"),
    ],
)
def test_why_a_stack_is_refused(files: dict[str, str], text: str, tmp_path: Path) -> None:
    stat = "5 (python) S " + "0 " * 40
    for name, content in {"proc/5/stat": stat, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert text in stacks._why(tmp_path, 5, "Error: Permission Denied")
    if "ended" not in text:
        assert (
            stacks._why(tmp_path, 5, "a\nFailed to find Python") == "py-spy: Failed to find Python"
        )
        # Of a program that is not Python's, py-spy 0.4 also shows where it gave up itself.
        own = "Error: Failed to find Python\n\nStack backtrace:\n   0: anyhow\n  10: main"
        assert stacks._why(tmp_path, 5, own) == "py-spy: Failed to find Python"


def test_a_process_that_has_no_group(tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text(FAKE)
    (tmp_path / "py-spy").chmod(0o755)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            code, text = tool(process.pid, path=tmp_path)
            assert code == 0, text
            head, *stack = text.splitlines()
            assert head == f"process {process.pid}: no group to be seen"
            assert stack[0].startswith(f"  Thread {process.pid} (idle)"), text
            assert stack[2] == "      <module> (?[2Jtrain.py:20)", text

            process.send_signal(signal.SIGSTOP)
            while machine.stat_of(Path("/"), process.pid)[0] != "T":
                time.sleep(0.01)
            code, text = tool(process.pid, path=tmp_path)
            head = text.splitlines()[0]
            assert head == f"process {process.pid}: no group to be seen; process: stopped"
            assert "option --nonblocking" in text, text

            code, text = tool(process.pid, path=tmp_path, REFUSED=process.pid)
            assert code == 4 and "no stack: " in text, text
        finally:
            process.kill()


def test_without_py_spy_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(stacks, "find_tool", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert stacks.main([str(os.getpid())]) == 4
    said = capsys.readouterr().out
    assert 'pip install "shmcoll[tools]"' in said and f"gdb -p {os.getpid()} -batch" in said, said


def test_nothing_to_look_at() -> None:
    code, text = tool("no-such-group")
    assert code == 3 and text.startswith("shmcoll stacks: no-such-group is neither"), text
    assert tool("--lat")[0] == 64
    for word, shown in (("9" * 5000, "9" * 5000), ("\x1b[2J", "?[2J"), ("--\x1b[2J", "--?[2J")):
        assert f": {shown}" in tool(word)[1]


def test_the_real_py_spy() -> None:
    if machine.find_tool("py-spy") is None:
        pytest.skip("no py-spy here")

    def look(run: Run) -> None:
        try:
            text = until_both_wait("--native", *run.pids.values())
        finally:
            run.board[0] = 1
        first = text[text.index("rank 2 of") : text.index("rank 0 of")]
        assert "late_rank (" in first and "test_stacks.py" in first, text
        assert "all_reduce" not in first and "all_reduce" in text, text

    run(3, late_rank, meanwhile=look)
