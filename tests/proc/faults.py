# SPDX-License-Identifier: BSD-3-Clause
"""Shared by the tests here: the error of a call, its time, and making a group."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import ranks
from ranks import told  # noqa: F401
from metronome import beats, clock_ns

TOLD_MS = 100.0  # a death, to every survivor
INTERRUPTED_MS = 200.0  # from Ctrl-C to the exception
LEFT_MS = 1000.0  # destroy and abort, whatever the peers do

# Words of the board. A rank writes its pid where the parent, or its peers, look for it.
MOMENT = 0
READY = 1
FREE = 2
PID_OF = 16


def told_limit_ms() -> float:
    """TOLD_MS, plus the time for which a CPU of the machine stood still meanwhile. Compared with times of
    clock_ns(), which does not count what other processes took of the machine."""
    return TOLD_MS + beats.stall_ms()


def mark(rank: ranks.Rank) -> None:
    """The moment from which the others' milliseconds count."""
    rank.board[MOMENT] = clock_ns()


def since_ms(rank: ranks.Rank) -> float:
    return (clock_ns() - rank.board[MOMENT]) / 1e6


def took_ms(call: Callable[[], Any]) -> float:
    """With a CPU for each thread of the machine."""
    begun_ns = clock_ns()
    call()
    return (clock_ns() - begun_ns) / 1e6


def timed_out_after(said: str) -> float:
    """The seconds that the text of a time-out names; on a busy machine more than were asked for."""
    found = re.search(r"Timed out after ([\d.]+) s", said)
    assert found, said
    return float(found[1])


def all_reduce() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert torch.all(tensor == dist.get_world_size())


def meet(rank: ranks.Rank, **options: Any) -> None:
    """Makes the default group, and leaves every rank's pid on the board."""
    rank.board[PID_OF + rank.rank] = os.getpid()
    rank.init(**options)
    all_reduce()


def re_form(rank: ranks.Rank, name: str, survivors: list[int]) -> None:
    """The survivors' next group: another store prefix, a smaller world."""
    dist.destroy_process_group()
    dist.init_process_group(
        "shmcoll",
        store=dist.PrefixStore(name, rank.store),
        rank=survivors.index(rank.rank),
        world_size=len(survivors),
        timeout=ranks.seconds(ranks.TIMEOUT_S),
    )
    all_reduce()


def wait_for(rank_or_run: Any, word: int, value: int = 1, limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while rank_or_run.board[word] != value:
        assert time.monotonic() < deadline, f"word {word} of the board did not become {value}"
        time.sleep(0.001)


def info() -> dict[str, str]:
    """What describe() says of the default group."""
    group = dist.distributed_c10d._get_default_group()
    text = group._get_backend(torch.device("cpu"))._info()
    return dict(line.split("=", 1) for line in text.splitlines())


def stop_oneself_until_continued(rank: ranks.Rank) -> None:
    """SIGSTOP; the board says so, and another process sends SIGCONT."""
    rank.board[READY] = 1
    os.kill(os.getpid(), signal.SIGSTOP)
