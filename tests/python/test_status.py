# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll status` looks at ranks from outside: who is late, stopped, dead, or waits in a cycle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, Run, outcomes, run
from shmcoll.watch import layout
from tools import run_and_look_at_modules

LIMIT_S = 40.0
LATE = ("--late", "0.2")
Answer = tuple[int, dict[str, Any]]


def status(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmcoll", "status", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def look_until(
    pids: dict[int, int], wanted: Callable[[int, dict[str, Any]], Any], *words: str
) -> Answer:
    """The exit code and the JSON, once they are what the test waits for."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        done = status("--json", *LATE, *words, *pids.values())
        assert done.stderr == "", done.stderr
        answer = done.returncode, json.loads(done.stdout)
        try:
            if wanted(*answer):
                return answer
        except (IndexError, KeyError, TypeError):
            pass  # the group is not there yet
        assert time.monotonic() < deadline, f"exit {done.returncode}: {done.stdout}"
        time.sleep(0.05)


def release(run: Run) -> None:
    """The ranks may go on: see wait_for_release()."""
    run.board[0] = 1


def wait_for_release(rank: Rank) -> None:
    while not rank.board[0]:
        time.sleep(0.01)


def observe(look: Callable[[Run], Answer], found: list[Answer]) -> Callable[[Run], None]:
    def meanwhile(run: Run) -> None:
        try:
            found.append(look(run))
        finally:
            release(run)

    return meanwhile


def test_a_late_rank_and_a_stopped_one() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        tensor = torch.ones(1000, dtype=torch.float64)
        dist.all_reduce(tensor)
        if rank.rank == 2:
            wait_for_release(rank)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    def look(run: Run) -> Answer:
        return look_until(run.pids, lambda code, said: said["waited_for"][0]["waited_for_by"] == 2)

    def look_stopped(run: Run) -> Answer:
        answer = look(run)
        os.kill(run.pids[2], signal.SIGSTOP)
        try:
            look_until(
                run.pids,
                lambda _, said: said["groups"][0]["ranks"][2]["process_state"] == "stopped",
            )
            text = status(*LATE, *run.pids.values()).stdout
        finally:
            os.kill(run.pids[2], signal.SIGCONT)
        assert f"which is stopped: kill -CONT {run.pids[2]}" in text, text
        assert 'of "default_pg"' in text and "not in a call for" in text, text
        return answer

    found: list[Answer] = []
    run(3, body, meanwhile=observe(look_stopped, found))
    ((code, said),) = found
    assert code == 2
    assert said["deadlock"] == [] and len(said["waited_for"]) == 1
    assert said["waited_for"][0]["rank"] == 2
    (group,) = said["groups"]
    assert (group["name"], group["world_size"], group["state"]) == ("default_pg", 3, "made")
    first, _, last = group["ranks"]
    assert first["in_call"] and first["waits_for"] == [2] and first["waits_s"] > 0.1
    assert first["call"] == "all_reduce #2 (float64[1000], max)"
    assert not last["in_call"] and last["number"] == 1
    assert last["call"] == "all_reduce #1 (float64[1000], sum)"
    done = first["operations"]["all_reduce"]
    assert done["count"] == 1 and done["bytes"] == 8000 and done["seconds"] > 0


def test_a_killed_rank_and_the_reason_that_the_others_know() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
        wait_for_release(rank)

    def look(run: Run) -> Answer:
        return look_until(run.pids, lambda code, said: said["groups"][0]["state"] == "failed")

    found: list[Answer] = []
    ended = outcomes(3, body, meanwhile=observe(look, found))
    assert [each.exit for each in ended] == [0, -9, 0], ended
    ((code, said),) = found
    assert code == 1
    (group,) = said["groups"]
    assert "rank 1 (pid" in group["reason"] and "died" in group["reason"]
    assert not group["ranks"][1]["board"] and group["ranks"][1]["pid"] is not None


def test_a_message_that_nobody_takes() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 0:
            dist.recv(torch.zeros(6), 1, tag=9)
            late = dist.irecv(torch.zeros(3), 1, tag=7)
            other = dist.irecv(torch.zeros(5), 1, tag=8)
            late.wait()
            other.wait()
        else:
            dist.send(torch.ones(6), 0, tag=9)
            wait_for_release(rank)
            dist.send(torch.ones(3), 0, tag=7)
            dist.send(torch.ones(5), 0, tag=8)

    def look(run: Run) -> Answer:
        return look_until(
            run.pids,
            lambda code, said: (
                code == 2
                and said["groups"][0]["ranks"][0]["pending_receives"]
                and said["groups"][0]["ranks"][1]["operations"]["send"]
            ),
        )

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    rank = said["groups"][0]["ranks"][0]
    assert rank["pending_receives"] == 2 and rank["pending_sends"] == 0
    oldest = rank["oldest_message"]
    assert (oldest["operation"], oldest["peer"], oldest["tag"]) == ("recv", 1, 7)
    assert oldest["bytes"] == 12 and oldest["age_s"] >= 0.2
    assert [each["rank"] for each in said["waited_for"]] == [1]
    sent = said["groups"][0]["ranks"][1]["operations"]["send"]
    assert (sent["count"], sent["bytes"]) == (1, 24)


def test_a_cycle_over_two_groups_is_a_deadlock() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        one, two = dist.new_group([0, 1]), dist.new_group([1, 2])
        pair = dist.new_group([0, 2])
        # 0 waits in `one` for 1, 1 in `two` for 2, 2 in `pair` for 0.
        dist.barrier((one, two, pair)[rank.rank])

    def look(run: Run) -> Answer:
        answer = look_until(run.pids, lambda code, said: len(said["deadlock"]) == 3)
        text = status(*LATE, *run.pids.values()).stdout
        for pid in run.pids.values():
            os.kill(pid, signal.SIGKILL)
        assert "DEADLOCK: each of these waits for the next" in text, text
        return answer

    found: list[Answer] = []
    ended = outcomes(3, body, meanwhile=observe(look, found))
    # Killed, or told of another's death before its turn came.
    assert all(each.exit == -9 or "died" in each.text for each in ended), ended
    ((code, said),) = found
    assert code == 2
    edges = {(text.split(" waits in ")[0], text.rsplit(" for ", 1)[1]) for text in said["deadlock"]}
    assert len(edges) == 3 and all("barrier #1" in text for text in said["deadlock"])
    # Ranks are those of the job first, and of the group where that differs.
    assert ("rank 2 (1 here)", "rank 0") in edges, said["deadlock"]


def test_a_group_that_is_being_made() -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 1:
            wait_for_release(rank)
        rank.init()
        dist.barrier()

    def look(run: Run) -> Answer:
        return look_until(run.pids, lambda code, said: code == 2)

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    (group,) = said["groups"]
    assert group["state"] == "making" and group["ranks"][1]["text"] == "has not come"


def test_closed_groups_and_forked_children_do_not_show() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        other = dist.new_group()
        dist.destroy_process_group(other)
        child = os.fork()
        if child == 0:
            while os.getppid() != 1 and not rank.board[0]:
                time.sleep(0.01)
            os._exit(0)
        rank.board[1 + rank.rank] = child
        rank.sync()
        wait_for_release(rank)
        os.waitpid(child, 0)

    def look(run: Run) -> Answer:
        answer = look_until(run.pids, lambda code, said: all(run.board[1:3]))
        inherited = status("--json", *run.board[1:3])
        assert inherited.returncode == 3, inherited.stdout
        assert json.loads(inherited.stdout) == {
            "schema": 1,
            "problems": [],
            "waited_for": [],
            "deadlock": [],
            "groups": [],
        }
        return answer

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((code, said),) = found
    assert code == 0 and [group["name"] for group in said["groups"]] == ["default_pg"]


@pytest.mark.parametrize("level", ["off", "counts"])
def test_less_is_kept_on_demand(level: str) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        rank.board[1 + rank.rank] = 1
        wait_for_release(rank)

    def look(run: Run) -> Answer:
        while not all(run.board[1:3]):
            time.sleep(0.01)
        done = status("--json", *run.pids.values())
        return done.returncode, json.loads(done.stdout)

    found: list[Answer] = []
    run(2, body, env={"SHMCOLL_BOARD": level}, meanwhile=observe(look, found))
    ((code, said),) = found
    if level == "off":
        assert (code, said["groups"]) == (3, [])
        return
    rank = said["groups"][0]["ranks"][0]
    assert code == 0 and rank["level"] == "counts" and rank["call"] is None
    assert rank["operations"]["barrier"]["count"] == 1 and rank["number"] == 1


ALONE = """
import subprocess, sys, torch.distributed as dist
dist.init_process_group("shmcoll", rank=0, world_size=1, store=dist.HashStore())
dist.barrier()
import os
sys.exit(subprocess.run([sys.executable, "-m", "shmcoll", "status", str(os.getpid())]).returncode)
"""


def test_it_needs_no_capabilities() -> None:
    tool = shutil.which("setpriv")
    if os.geteuid() != 0 or tool is None:
        pytest.skip("needs root and setpriv")
    drop = (tool, "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs")
    command = [*drop, sys.executable, "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "not in a call for" in done.stdout and "last barrier #1" in done.stdout, done.stdout


def foreign_board(version: int) -> int:
    """A descriptor of this process that looks like a board."""
    fd = os.memfd_create("shmcoll:board")
    start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    header = layout.Header(
        magic=layout.MAGIC,
        version=version,
        pid=os.getpid(),
        start_time=int(start),
        library=b"9.9.9",
    )
    os.write(fd, bytes(header))
    return fd


def test_a_board_of_another_version_is_a_sentence() -> None:
    fd = foreign_board(layout.VERSION + 1)
    try:
        done = status(os.getpid())
    finally:
        os.close(fd)
    assert done.returncode == 3 and done.stderr == ""
    assert f"process {os.getpid()} has a board of version {layout.VERSION + 1}" in done.stdout
    assert "shmcoll 9.9.9" in done.stdout


def test_it_says_how_it_looked_when_there_is_nothing() -> None:
    done = status(os.getpid())
    assert done.returncode == 3 and done.stderr == ""
    assert f"no shmcoll group in process {os.getpid()}" in done.stdout
    wrong = status("--lat")
    assert wrong.returncode == 64 and "usage:" in wrong.stderr and wrong.stdout == ""


def test_it_loads_neither_torch_nor_the_library() -> None:
    done = run_and_look_at_modules("status")
    assert done.returncode == 0, done.stderr


def test_the_names_are_those_of_the_library() -> None:
    import ctypes

    import shmcoll

    library = ctypes.CDLL(str(Path(shmcoll.__file__).parent / "lib/libshmcoll.so.0"))
    for function, names in (
        ("op_kind", layout.OPERATIONS),
        ("dtype", layout.DTYPES),
        ("redop", layout.REDUCTIONS),
        ("status", layout.STATUSES),
    ):
        name = getattr(library, f"shc_{function}_name")
        name.restype = ctypes.c_char_p
        assert [name(index).decode() for index in range(len(names))] == names
        assert name(len(names)).decode() not in names
