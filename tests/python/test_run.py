# SPDX-License-Identifier: BSD-3-Clause
"""shmcoll run: starts ranks, serves their store, says how they have ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = """
import os, sys
words = ["rank", os.environ["RANK"], os.environ["WORLD_SIZE"], *sys.argv[1:]]
os.write(1, (" ".join(words) + "\\n").encode())
"""
MEETS = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("shmcoll")
t = torch.full((2,), 10.0 ** dist.get_rank())
dist.all_reduce(t)
os.write(1, f"{t[0].item()} {os.getpid()}\\n".encode())
"""
FAILS = MEETS + "if dist.get_rank() == 1: sys.exit(7)\n"

pytestmark = pytest.mark.timeout(120)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shmcoll", "run", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str | Path) -> tuple[int, str, str]:
    process = start(*arguments)
    out, said = process.communicate(timeout=100)
    # torch warns where a name of this machine cannot be looked up.
    return process.returncode, out, re.sub(r"^\[W.*\n", "", said, flags=re.M)


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_ranks_meet_and_each_has_its_number(tmp_path: Path) -> None:
    code, out, said = run("-n", "3", program(tmp_path, MEETS))
    assert (code, said) == (0, ""), said
    assert [line.split()[0] for line in out.splitlines()] == ["111.0"] * 3


def test_any_program_is_started_with_its_arguments(tmp_path: Path) -> None:
    whole = program(tmp_path, RANK)
    assert sorted(run("-n", "2", whole, "-n", "5")[1].splitlines()) == [
        "rank 0 2 -n 5",
        "rank 1 2 -n 5",
    ]
    assert run("-n", "2", "sh", "-c", "echo $OMP_NUM_THREADS")[1] == "1\n1\n"
    assert "usage" in run("-n", "1", "-m", "shmcoll", "--help")[1]


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (("-n", "2", "no-such-program"), 127, "no-such-program: No such file or directory"),
        (("-n", "2", "/etc"), 127, "/etc: Permission denied"),
        (("-n", "0", "true"), 64, "0 is not a number from 1 to 4096"),
        (("-n", "9" * 30, "true"), 64, "9 is not a number from 1 to 4096"),
        (("-n", "2", "no\x1b[2J\n"), 127, "no?[2J?: No such file or directory"),
        (("true",), 64, "the following arguments are required: -n/--nproc"),
        (("-n", "2"), 64, "the following arguments are required: PROGRAM"),
        (("-n", "2", "false"), 1, "ended with exit code 1"),
        (("-n", "1", "sh", "-c", "kill -9 $$"), 137, "rank 0 (pid"),
    ],
)
def test_what_cannot_be_run_and_what_fails_is_said(
    arguments: tuple[str, ...], code: int, says: str
) -> None:
    ended, _, said = run(*arguments)
    assert ended == code and says in said, said
    assert "Traceback" not in said


def test_the_others_say_why_they_fail_before_they_are_ended(tmp_path: Path) -> None:
    code, _, said = run("-n", "3", program(tmp_path, FAILS + "dist.barrier()\n"))
    assert code == 7
    assert re.search(r"shmcoll run: rank 1 \(pid \d+\) ended with exit code 7\n", said), said
    assert said.count("DistBackendError: shmcoll: rank ") == 2, said


@pytest.mark.long
def test_a_rank_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    code, out, said = run("-n", "2", program(tmp_path, FAILS + "time.sleep(100)\n"))
    assert code == 7 and time.monotonic() - began < 60
    assert re.search(r"rank 0 \(pid \d+\) was killed by signal 15\n", said), said
    wait_for_end([int(line.split()[1]) for line in out.splitlines()])


def test_the_others_may_survive(tmp_path: Path) -> None:
    whole = program(tmp_path, FAILS + "time.sleep(6)\nos.write(1, b'well ')\n")
    code, out, said = run("--survive", "-n", "3", whole)
    assert code == 0 and out.count("well") == 2
    assert re.fullmatch(
        r"shmcoll run: rank 1 \(pid \d+\) ended with exit code 7; 2 go on\n", said
    ), said
    assert run("--survive", "-n", "2", "false")[0] == 1


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_the_ranks_end_with_the_one_that_has_started_them(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start("-n", "2", program(tmp_path, MEETS + "time.sleep(100)\n"))
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    process.send_signal(number)
    code = process.wait(timeout=60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_for_end(pids)
    process.communicate()


def test_what_a_rank_has_started_ends_too() -> None:
    process = start("-n", "2", "sh", "-c", "sleep 100 & echo $!; wait")
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    wait_for_end(pids)
    process.communicate()


def test_a_signal_that_arrives_while_torch_is_loaded_is_not_lost(tmp_path: Path) -> None:
    """Torch, as other modules, swallows what is raised in some of its parts."""
    (tmp_path / "torch" / "_C").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_C" / "__init__.py").touch()
    (tmp_path / "torch" / "_C" / "_distributed_c10d.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException:\n    pass\n"
        "def TCPStore(*_, **__):\n    pass\n"
    )
    command = [sys.executable, "-m", "shmcoll", "run", "-n", "2", "sleep", "100"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done
    assert done.stderr.count(b"was killed by signal 15") == 2, done


def test_ranks_that_have_started_end_if_another_cannot(tmp_path: Path) -> None:
    code = """if True:
        import subprocess, sys
        from shmcoll import _launch
        real, started = subprocess.Popen, []
        def start(*arguments, **options):
            if len(started) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            started.append(real(*arguments, **options))
            return started[-1]
        _launch.subprocess.Popen = start
        code = _launch.main(["-n", "3", "sleep", "100"])
        print(code, *(process.returncode for process in started))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "127 -15 -15\n", done
    assert "run: after 2 of 3 ranks: sleep: Resource temporarily unavailable\n" in done.stderr, done


def test_survivors_go_on_if_nobody_reads_what_is_said_of_the_others(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "test $RANK = 1 && exit 3; sleep 1; echo well"
    command = [sys.executable, "-m", "shmcoll", "run", "--survive", "-n", "3", "sh", "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"well\nwell\n")


@pytest.mark.long
def test_ranks_that_ignore_the_end_are_killed(tmp_path: Path) -> None:
    text = (
        MEETS
        + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(100)\n"
    )
    process = start("-n", "1", program(tmp_path, text))
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    wait_for_end([pid])
    assert "was killed by signal 9" in process.communicate()[1]
