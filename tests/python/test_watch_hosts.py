# SPDX-License-Identifier: BSD-3-Clause
"""What tools outside show of a group over several hosts: the user's calls, and the ranks of all hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shmcoll
from ranks import Rank, Run, run
from shmcoll.watch import board, layout
from test_status import release, wait_for_release

pytestmark = pytest.mark.timeout(300)  # of a machine that is busy
LIMIT_S = 60.0
TWO_BY_TWO = {"SHMCOLL_FAKE_HOSTS": "2x2", "GLOO_SOCKET_IFNAME": "lo", "SHMCOLL_LATE_MS": "300"}
LATE = ("--late", "0.5")


def shown(run: Run | SimpleNamespace, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shmcoll", "status", *map(str, (*words, *run.pids.values()))],
        capture_output=True,
        text=True,
        check=False,
    )


def status_until(run: Run | SimpleNamespace, holds: Callable[[Any], bool]) -> Any:
    """What `status --json` says once that holds."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        said = json.loads(shown(run, "--json", *LATE).stdout)
        try:
            if holds(said):
                return said
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            pass  # not there yet
        assert time.monotonic() < deadline, json.dumps(said, indent=1)
        time.sleep(0.05)


def observed(body: Callable[[Rank], Any], look: Callable[[Run], None], **more: Any) -> None:
    def meanwhile(run: Run) -> None:
        try:
            look(run)
        finally:
            release(run)

    run(4, body, env=TWO_BY_TWO, meanwhile=meanwhile, limit=120, **more)


def test_a_rank_that_does_not_come_is_named_over_hosts() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(5), 3)
        if rank.rank == 1:
            wait_for_release(rank)
        dist.all_gather_into_tensor(torch.empty(12), torch.ones(3))

    def waits(said: Any) -> bool:
        (culprit,) = said["waited_for"]
        names = said["groups"][0]["over_hosts"]["waits_for"].startswith("host")
        return names and culprit["waited_for_by"] == 3

    def look(run: Run) -> None:
        said = status_until(run, waits)
        (group,) = said["groups"]  # not one for each part of it
        assert (group["name"], group["world_size"], group["state"]) == ("default_pg", 4, "made")
        over = group["over_hosts"]
        assert (over["hosts"], over["here"]) == (
            2,
            [{"host": 0, "ranks": [0, 1]}, {"host": 1, "ranks": [2, 3]}],
        )
        assert re.match(r"host 0 \(ranks 0-1\)", over["waits_for"])
        # The first call of a group over hosts is its own.
        numbers = [(each["rank"], each["number"], each["in_call"]) for each in group["ranks"]]
        assert numbers == [(0, 4, True), (1, 3, False), (2, 4, True), (3, 4, True)]
        assert [each["call"] for each in group["ranks"]] == [
            "all_gather #4 (float32[3])",
            "broadcast #3 (float32[5], root 3)",
            *["all_gather #4 (float32[3])"] * 2,
        ]
        assert group["ranks"][0]["waits_for"] == [1]
        assert any(each["waits_for_other_hosts_s"] for each in group["ranks"][2:])
        (culprit,) = said["waited_for"]
        assert (culprit["rank"], culprit["pid"]) == (1, run.pids[1])
        operations = group["ranks"][2]["operations"]
        assert {name: each["count"] for name, each in operations.items()} == {
            "barrier": 1,
            "all_reduce": 1,
            "broadcast": 1,
        }
        done = shown(run, *LATE)
        assert done.returncode == 2 and done.stderr == ""
        assert 'GROUP 0 "default_pg" · 4 ranks on 2 hosts' in done.stdout
        assert "in all_gather #4 (float32[3]) for other hosts" in done.stdout
        assert "-> it waits for host 0 (ranks 0-1)" in done.stdout
        assert "3 ranks wait for rank 1 of" in done.stdout

    observed(body, look)


def test_one_host_shows_its_own_ranks_and_how_many_others_there_are() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank < 2:
            wait_for_release(rank)
        dist.barrier()

    def look(run: Run) -> None:
        status_until(run, lambda said: said["groups"][0]["ranks"][3]["in_call"])
        mine = SimpleNamespace(pids={rank: run.pids[rank] for rank in (2, 3)})
        said = status_until(
            mine, lambda said: said["groups"][0]["ranks"][0]["waits_for_other_hosts_s"] > 0.5
        )
        (group,) = said["groups"]
        assert [each["rank"] for each in group["ranks"]] == [2, 3]
        assert said["waited_for"] == []  # it is on the other host
        done = shown(mine, *LATE)
        assert done.returncode == 2 and "and 2 ranks on other hosts" in done.stdout, done.stdout
        assert "waits" in done.stdout and "in barrier #2 for other hosts" in done.stdout

    observed(body, look)


def test_messages_name_ranks_of_other_hosts() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 1:
            dist.recv(torch.empty(3), 2, tag=7)
        wait_for_release(rank)
        if rank.rank == 2:
            dist.send(torch.ones(3), 1, tag=7)

    def look(run: Run) -> None:
        said = status_until(run, lambda said: said["groups"][0]["ranks"][1]["pending_receives"])
        message = said["groups"][0]["ranks"][1]["oldest_message"]
        assert (message["operation"], message["peer"], message["tag"]) == ("recv", 2, 7)
        said = shown(run).stdout
        assert "12 bytes from rank 2, tag 7" in said, said

    observed(body, look)


def test_a_time_out_names_the_call_that_the_user_made() -> None:
    def body(rank: Rank) -> str:
        rank.init(timeout=timedelta(seconds=3))
        dist.all_reduce(torch.ones(8))
        if rank.rank == 3:
            wait_for_release(rank)
        with pytest.raises(RuntimeError) as failed:
            dist.all_to_all_single(torch.empty(8), torch.ones(8))
        rank.board[0] = 1
        return str(failed.value)

    (text,) = set(run(4, body, env=TWO_BY_TWO, limit=120))
    assert "waiting for rank 3 (" in text
    assert "last call: all_reduce #2 (float32[8], sum))" in text and "uint8" not in text
    assert "of group" not in text  # rank 3 has another number among the ranks of its host


def test_the_dumps_of_all_hosts_make_one_group(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.all_reduce(torch.ones(8))
        if rank.rank != 1:
            work = dist.all_reduce(torch.ones(4), async_op=True)
        wait_for_release(rank)
        shmcoll.dump(tmp_path / f"{rank.rank}.dump")
        rank.sync()
        if rank.rank == 1:
            work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()

    def look(run: Run) -> None:
        status_until(run, lambda said: [r["in_call"] for r in said["groups"][0]["ranks"]] == COME)

    observed(body, look)
    (group,) = json.loads(postmortem("--json", tmp_path))["groups"]
    assert group["world_size"] == 4 and group["not_come"] == [1]
    assert [each["number"] for each in group["ranks"]] == [3, 2, 3, 3]
    said = postmortem(tmp_path)
    assert "4 ranks on 2 hosts" in said and "rank 1 had not come to call #3" in said, said


def test_what_a_damaged_board_says_of_hosts_is_not_believed() -> None:
    def over(world: int, *ranks: int) -> board.Over | None:
        group = layout.Group(world_size=2)
        group.over.id, group.over.world = 7, world
        group.over.ranks[:2] = ranks
        return board._over(group)

    assert over(4, 2, 3) == board.Over(7, 0, 0, 4, (2, 3), None, "")
    assert over(2**32 - 1, 2, 3) is over(0, 0, 0) is over(4, 2, 2) is over(4, 2, 4) is None


COME = [True, False, True, True]


def postmortem(*words: object) -> str:
    command = [sys.executable, "-m", "shmcoll", "postmortem", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
