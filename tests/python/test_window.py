# SPDX-License-Identifier: BSD-3-Clause
"""Windows: ranks that read and store one another's tensors (docs/guide/windows.md)."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import glues
import pytest
import torch
import torch.distributed as dist

import shmcoll
from features import needs
from ranks import Rank, leftovers, outcomes, run, seconds


def after(rank: Rank) -> int:
    return (rank.rank + 1) % dist.get_world_size()


def before(rank: Rank) -> int:
    return (rank.rank - 1) % dist.get_world_size()


def told(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "nothing"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_was_put_is_there_after_the_signal(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        window = shmcoll.new_window(torch.full((4, 3), float(rank.rank)))
        for turn in range(500):
            window.put(torch.tensor([turn, rank.rank + 0.5]), after(rank), 2)
            window.signal(after(rank))
            window.wait_signal(before(rank))
            own = window.map_remote_tensor(rank.rank)
            assert own.flatten()[2:4].tolist() == [turn, before(rank) + 0.5]
            dist.barrier()
        assert own.shape == (4, 3) and own[0, 0] == rank.rank == own[3, 2]
        window.tensor_deregister()

    run(world, body)
    assert leftovers() == []


def test_ranks_load_and_store_where_a_tensor_lies() -> None:
    """Sizes and types differ; a tensor in private memory moves, with its views."""

    def body(rank: Rank) -> None:
        rank.init()
        dtype = (torch.float32, torch.int64, torch.bool)[rank.rank]
        own = torch.zeros(rank.rank, 5, dtype=dtype)  # that of rank 0 has no elements
        view = own.view(-1)
        window = shmcoll.new_window()
        window.tensor_register(own)
        assert window.map_remote_tensor(0).shape == (0, 5)
        there = window.map_remote_tensor(2)
        assert there.dtype == torch.bool and there.shape == (2, 5)
        there[1, rank.rank] = True
        dist.barrier()
        assert there.sum() == 3
        if rank.rank == 2:
            assert view.tolist() == [False] * 5 + [True] * 3 + [False] * 2
            assert shmcoll.is_shared(own)
        window.tensor_deregister()

    run(3, body)


def test_signals_count_and_are_no_messages() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        one, two = shmcoll.new_window(torch.zeros(1)), shmcoll.new_window(torch.zeros(1))
        if rank.rank == 0:
            for _ in range(3000):
                one.signal(1)
            two.signal(1)
            dist.send(torch.ones(0), 1)
            dist.recv(torch.zeros(1), 1)
        else:
            assert dist.recv(torch.ones(0)) == 0  # from any rank, and no signal
            two.wait_signal(0)
            for _ in range(3000):
                one.wait_signal(0)
            with pytest.raises(dist.DistBackendError, match="Timed out after 0.2"):
                one.wait_signal(0, timeout=seconds(0.2))
            dist.send(torch.ones(1), 0)

    run(2, body)


def test_what_is_wrong_on_one_rank_is_told_on_all() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        good = torch.zeros(4)
        kept = torch.zeros(4)
        views = [kept.numpy()]  # whose memory cannot move
        bad = [torch.zeros(4).to_sparse(), torch.zeros(4, 4).t(), torch.zeros([1] * 17), kept]
        said = [
            told(lambda one=one: shmcoll.new_window(one if rank.rank == 1 else good)) for one in bad
        ]
        window = shmcoll.new_window(good)
        said.append(told(lambda: window.tensor_register(good)))
        dist.barrier()
        assert len(views) == 1
        return said

    first, second = run(2, body)
    assert first == second
    for text, why in zip(first, ("a dense CPU", "not contiguous", "17 dim", "shmcoll.empty()")):
        assert text.startswith("ValueError: shmcoll: tensor_register: rank 1: the tensor "), text
        assert why in text
    assert first[4].endswith("rank 0: the window has a tensor; deregister that one before")


def test_bad_arguments_change_nothing() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        empty = shmcoll.new_window()
        window = shmcoll.new_window(torch.zeros(4))
        two = torch.ones(2)
        for call, error, text in (
            (lambda: window.put(two, 2, 0), ValueError, "rank 2 is not a rank of the group, which"),
            (lambda: window.put(two, -1, 0), ValueError, "rank -1 is not"),
            (lambda: window.put(two, 0, 3), ValueError, "2 elements from element 3 on; the window"),
            (lambda: window.put(two, 0, -1), ValueError, "from element -1 on"),
            (lambda: window.put(two, 0, 2**62), ValueError, "elements from element"),
            (lambda: window.put(two.double(), 0), TypeError, "of Double, and the window of rank 0"),
            (lambda: window.put(two.to_sparse(), 0), TypeError, "dense CPU tensors"),
            (lambda: window.put([1.0], 0), TypeError, "tensor must be"),
            (lambda: window.signal(2), ValueError, "signal: rank 2 is not"),
            (lambda: window.wait_signal(-1), ValueError, "wait_signal: rank -1 is not"),
            (lambda: window.wait_signal(0, timeout=seconds(-5)), ValueError, "is negative"),
            (lambda: window.map_remote_tensor(7), ValueError, "map_remote_tensor: rank 7 is not"),
            (lambda: empty.put(two, 0), ValueError, "the window has no tensor; register one"),
            (empty.tensor_deregister, ValueError, "the window has no tensor"),
            (lambda: shmcoll.new_window(group="world"), TypeError, "group must be"),  # type: ignore[arg-type]
        ):
            with pytest.raises(error, match=text):
                call()
        dist.barrier()
        assert window.map_remote_tensor(0).sum() == 0

    run(2, body)


def test_what_is_mapped_outlives_window_group_and_owner() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        window = shmcoll.new_window(torch.full((1000,), float(rank.rank)))
        there = window.map_remote_tensor(after(rank))
        dist.barrier()
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError, match="rank 1 .* died"):
            window.wait_signal(1)
        assert torch.all(there == 1)
        window.put(torch.zeros(1000), 1)
        assert torch.all(there == 0)
        dist.destroy_process_group()
        there += 5
        with pytest.raises(dist.DistBackendError, match="closed"):
            window.signal(1)
        del window
        assert torch.all(there == 5)

    ended = outcomes(2, body)
    assert ended[0].ok, ended[0].trace
    assert not ended[1].ok
    assert leftovers() == []


def test_the_group_keeps_a_tensor_that_nobody_else_has() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        window = shmcoll.new_window(torch.full((70000,), 7.0))
        there = window.map_remote_tensor(after(rank))
        del window
        other = shmcoll.zeros(70000)
        dist.barrier()
        assert torch.all(there == 7) and torch.all(other == 0)

    run(2, body)


def test_a_window_in_a_forked_child_says_so() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        window = shmcoll.new_window(torch.zeros(4))
        child = os.fork()
        if child == 0:
            calls = (lambda: window.put(torch.ones(1), 0), lambda: window.map_remote_tensor(0))
            os._exit(sum("belongs to the parent" not in told(call) for call in calls))
        assert os.waitpid(child, 0)[1] == 0

    run(2, body)


def test_a_thread_puts_while_another_one_waits() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        window = shmcoll.new_window(torch.zeros(8))

        def put_all() -> None:
            for turn in range(200):
                window.put(torch.tensor([float(turn)]), after(rank), rank.rank)
                window.signal(after(rank))

        thread = threading.Thread(target=put_all)
        thread.start()
        for turn in range(200):
            window.wait_signal(before(rank))
            # The other rank may be further on.
            assert window.map_remote_tensor(rank.rank)[before(rank)] >= turn
        thread.join()

    run(2, body)


def test_it_is_late_and_named() -> None:
    """A rank that waits for a signal says for whom, as one that waits for a message."""

    def body(rank: Rank) -> str:
        rank.init()
        window = shmcoll.new_window(torch.zeros(8))
        if rank.rank == 0:
            window.wait_signal(1)
        else:
            time.sleep(0.6)
            window.signal(0)
        return (rank.directory / f"out.{rank.rank}").read_text()

    assert "rank 1" in run(2, body, env={"SHMCOLL_LATE_MS": "200"})[0]


def test_a_sub_group_has_windows_of_its_own() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        pair = dist.new_group([0, 2])
        if rank.rank == 1:
            with pytest.raises(ValueError, match="not in that group"):
                shmcoll.new_window(torch.zeros(1), pair)
            return
        window = shmcoll.new_window(torch.zeros(1), pair)
        other = 1 - dist.get_group_rank(pair, rank.rank)
        window.put(torch.tensor([rank.rank + 1.0]), other)
        window.signal(other)
        window.wait_signal(other)
        own = window.map_remote_tensor(1 - other)
        assert own.item() == 3 - rank.rank

    run(3, body)


@needs(hasattr(dist, "_new_window"), "windows")
def test_torchs_own_door() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        opened: Any = dist
        assert opened._supports_window()
        window = opened._new_window(torch.zeros(2))
        window.put(torch.ones(1), after(rank), rank.rank, False)
        work = window.signal(after(rank), True)
        window.wait_signal(before(rank), False)
        work.wait()
        assert window.map_remote_tensor(rank.rank)[before(rank)] == 1
        assert window.get_attr(0).access_type.name == "UNIFIED"
        window.tensor_deregister()

    run(2, body)


def test_without_the_compiled_glue_it_says_what_to_do() -> None:
    def body(rank: Rank) -> str:
        glues.use_python()
        rank.init()
        return told(lambda: shmcoll.new_window(torch.zeros(2)))

    for text in run(2, body):
        assert text.startswith("NotImplementedError: shmcoll.new_window: the glue in Python has no")
