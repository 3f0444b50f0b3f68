# SPDX-License-Identifier: BSD-3-Clause
"""The processes of the benchmark's ranks, which are forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shmcoll.bench.run.child import Child


def of(tmp_path: Path, program: object, *keep: int, **env: str) -> tuple[int, list[str]]:
    """How it ends, and what its log says then."""
    code = Child(program, env, tmp_path / "log", keep).wait(20)  # type: ignore[arg-type]
    return code, (tmp_path / "log").read_text().splitlines()


def test_it_has_no_files_but_its_own(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()

    def program() -> int:
        files = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != 3]
        print(sorted(files), os.readlink("/proc/self/fd/0"))
        return 0

    with ours, theirs, (tmp_path / "other").open("w") as other:
        kept = theirs.fileno()
        assert len({3, kept, ours.fileno(), other.fileno()}) == 4  # 3 is free there for the list
        assert of(tmp_path, program, kept) == (0, [f"[0, 1, 2, {kept}] /dev/null"])


def test_the_parent_sees_its_end_though_it_has_a_sister(tmp_path: Path) -> None:
    channels, children = [], []
    for rank in range(2):
        ours, theirs = socket.socketpair()
        channels.append(ours)

        def program(channel: socket.socket = theirs) -> int:
            return len(channel.recv(1))  # nothing, when the parent's end is closed

        with theirs:
            children.append(Child(program, {}, tmp_path / f"{rank}", (theirs.fileno(),)))
    for channel, child in zip(channels, children):
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.0)
        channel.close()
        assert child.wait(20) == 0


def test_its_environment_output_and_code_are_its_own(tmp_path: Path) -> None:
    def program() -> int:
        print(os.environ["SHMCOLL_TEST_OF_CHILD"])
        print("to stderr", file=sys.stderr)
        print(os.getsid(0) == os.getpid())
        return 3

    code, lines = of(tmp_path, program, SHMCOLL_TEST_OF_CHILD="heard")
    assert code == 3
    assert sorted(lines) == ["True", "heard", "to stderr"]
    assert "SHMCOLL_TEST_OF_CHILD" not in os.environ


def test_an_exception_is_in_its_log(tmp_path: Path) -> None:
    def program() -> int:
        raise ValueError("as it should be")

    code, lines = of(tmp_path, program)
    assert code == 1
    assert lines[-1] == "ValueError: as it should be"


def test_signals_do_to_it_what_they_do_to_a_new_process(tmp_path: Path) -> None:
    def program() -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(number) == signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        assert of(tmp_path, program) == (-signal.SIGTERM, [])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_torch_works_in_it(tmp_path: Path) -> None:
    def program() -> int:
        import torch

        torch.set_num_threads(1)
        print(torch.mm(torch.ones(300, 300), torch.ones(300, 300)).sum().item())
        return 0

    assert of(tmp_path, program) == (0, ["27000000.0"])
