# SPDX-License-Identifier: BSD-3-Clause
"""What a program asks to be called when a group fails, or around its calls."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
import shmcoll
from features import needs
from ranks import Rank, run, seconds, told, wait_until

needs_hooks = needs(hasattr(dist.ProcessGroup, "register_abort_hook"), "abort hooks")
needs_call_hooks = needs(hasattr(dist.ProcessGroup, "register_pre_hook"), "pre and post hooks")


def sum_now(backend: Any) -> None:
    options = dist.AllreduceOptions()
    options.asyncOp = False
    work = backend.allreduce([torch.ones(4)], options)
    if work is not None:
        work.wait()


@pytest.mark.parametrize("how", ["now", "work", "barrier"])
def test_they_run_once_when_a_call_fails(how: str) -> None:
    def body(rank: Rank) -> Any:
        backend = rank.group(timeout=1.0)
        seen: list[tuple[str, bool]] = []
        main = threading.current_thread()
        for number, name in ((7, "b"), (3, "a"), (9, "gone")):
            backend._add_abort_hook(
                number,
                lambda name=name: seen.append((name, threading.current_thread() is not main)),
            )
        backend._remove_abort_hook(9)
        backend._remove_abort_hook(1000)
        sum_now(backend)
        assert seen == []
        calls = {
            "now": lambda: sum_now(backend),
            "work": lambda: backend.allreduce([torch.ones(4)]).wait(),
            "barrier": lambda: backend.monitored_barrier(),
        }
        if rank.rank == 0:
            assert "waiting for rank 1" in told(calls[how])
            wait_until(lambda: len(seen) == 2)
            assert seen == [("a", True), ("b", True)]
            told(calls["now"])
            backend.abort()
            assert len(seen) == 2
        rank.sync()
        return len(seen)

    assert run(2, body)[0] == 2


def test_they_run_when_a_rank_dies_and_tell_the_error_all_the_same() -> None:
    def body(rank: Rank) -> Any:
        backend = rank.group()
        seen: list[int] = []
        backend._add_abort_hook(0, lambda: seen.append(1))
        sum_now(backend)
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        text = told(lambda: sum_now(backend))
        wait_until(lambda: bool(seen))
        return text, seen

    ended = ranks.outcomes(3, body)
    for outcome in ended[::2]:
        text, seen = outcome.value
        assert "rank 1" in text and "died" in text and seen == [1]


def test_abort_calls_them_and_other_ends_do_not() -> None:
    def body(rank: Rank) -> Any:
        seen: list[str] = []
        backends = {name: rank.group(name) for name in ("abort", "shutdown", "recv", "wrong")}
        for name, backend in backends.items():
            backend._add_abort_hook(0, lambda name=name: seen.append(name))
        backends["shutdown"].shutdown()
        told(lambda: sum_now(backends["shutdown"]))
        with pytest.raises(dist.DistBackendError):
            backends["recv"].recv([torch.ones(1)], 1 - rank.rank, 0).wait(seconds(0.05))
        with pytest.raises(ValueError):
            backends["wrong"].broadcast([torch.ones(1)] * 2)
        rank.sync()
        backends["abort"].abort()
        assert seen == ["abort"]
        return seen

    run(2, body)


def test_one_that_throws_hides_nothing() -> None:
    def body(rank: Rank) -> Any:
        backend = rank.group(timeout=1.0)
        seen: list[int] = []

        def throws() -> None:
            seen.append(1)
            raise LookupError("lost")

        backend._add_abort_hook(0, throws)
        backend._add_abort_hook(1, lambda: seen.append(2))
        text = told(lambda: sum_now(backend)) if rank.rank == 0 else ""
        wait_until(lambda: rank.rank == 1 or len(seen) == 2)
        rank.sync()
        return text, seen

    ended = ranks.outcomes(2, body)
    text, seen = ended[0].value
    assert "waiting for rank 1" in text and seen == [1, 2]
    assert 'an abort hook of the group "test" has thrown: LookupError: lost' in ended[0].output


def test_one_may_end_its_group() -> None:
    def body(rank: Rank) -> float:
        backend = rank.group()
        backend._add_abort_hook(0, backend.abort)
        began = time.monotonic()
        if rank.rank == 0:
            backend.abort()
        rank.sync()
        return time.monotonic() - began

    assert max(run(2, body)) < 5


def test_a_second_thread_waits_for_those_that_run() -> None:
    def body(rank: Rank) -> list[str]:
        backend = rank.group()
        seen: list[str] = []
        begun, may_end = threading.Event(), threading.Event()

        def hook() -> None:
            begun.set()
            assert may_end.wait(ranks.LIMIT_S)
            seen.append("hook")

        def abort() -> None:
            backend.abort()
            seen.append("abort")

        backend._add_abort_hook(0, hook)
        threads = [threading.Thread(target=abort) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert begun.wait(ranks.LIMIT_S)
        assert seen == []
        may_end.set()
        for thread in threads:
            thread.join()
        return seen

    assert run(1, body) == [["hook", "abort", "abort"]]


def test_one_that_blocks_holds_up_no_call_that_fails() -> None:
    def body(rank: Rank) -> float:
        backend = rank.group(timeout=1.0)
        over = threading.Event()
        backend._add_abort_hook(0, over.wait)
        began = time.monotonic()
        if rank.rank == 0:
            told(lambda: sum_now(backend))
        took = time.monotonic() - began
        rank.sync()
        over.set()
        return took

    assert max(run(2, body)) < 8


ENDS_AT_ONCE = """
import os, pathlib, sys, time, torch, torch.distributed as dist, shmcoll
from shmcoll import _backend
rank, directory = int(sys.argv[1]), pathlib.Path(sys.argv[2])
store = dist.FileStore(str(directory / "store"), 2)
backend = _backend.make_anywhere(store, rank, 2, shmcoll.Options())
if rank == 1:
    os._exit(0)
def hook():
    time.sleep(0.5)
    (directory / "written").write_text("")
backend._add_abort_hook(0, hook)
try:
    backend.allreduce([torch.ones(4)]).wait()
except dist.DistBackendError:
    sys.exit(5)
"""


def test_a_process_that_ends_waits_for_those_that_run(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", ENDS_AT_ONCE]
    both = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [one.wait(60) for one in both] == [5, 0]
    assert (tmp_path / "written").exists()


@pytest.mark.long
def test_one_that_blocks_holds_up_an_abort_for_ten_seconds_at_most() -> None:
    def body(rank: Rank) -> float:
        backend = rank.group()
        backend._add_abort_hook(0, threading.Event().wait)
        began = time.monotonic()
        backend.abort()
        return time.monotonic() - began

    ended = ranks.outcomes(1, body)
    assert 9.5 < ended[0].value < 20
    assert "has not returned after 10 s; the call ends without it" in ended[0].output


def test_a_future_that_fails_calls_them() -> None:
    def body(rank: Rank) -> int:
        backend = rank.group(timeout=1.0)
        seen: list[int] = []
        backend._add_abort_hook(0, lambda: seen.append(1))
        if rank.rank == 0:
            future = backend.allreduce([torch.ones(4)]).get_future()
            wait_until(future.done)
            wait_until(lambda: seen == [1])
        rank.sync()
        return len(seen)

    assert run(2, body)[0] == 1


def test_they_stay_with_a_group_that_is_configured_anew() -> None:
    def body(rank: Rank) -> list[int]:
        options = shmcoll.Options(seconds(ranks.TIMEOUT_S))
        backend = shmcoll._backend.make_reconfigurable(rank.store, 0, 1, options)
        seen: list[int] = []
        backend._add_abort_hook(0, lambda: seen.append(0))
        backend.abort()
        counts = [len(seen)]
        for uuid in range(3):
            backend._change(uuid, [backend._handle()])
            backend._add_abort_hook(1, lambda: seen.append(1))
            if uuid == 2:
                backend._remove_abort_hook(0)
            backend.abort()
            backend.abort()
            counts.append(len(seen))
        return counts

    assert run(1, body) == [[0, 2, 4, 5]]


# ---- torch's own functions ----


@needs_hooks
def test_torchs_functions_add_and_remove_them() -> None:
    def body(rank: Rank) -> Any:
        rank.init()
        group: Any = dist.group.WORLD
        assert group.supports_abort_hooks and not group.supports_completion_hooks
        seen: list[str] = []
        group.register_abort_hook(1, lambda: seen.append("kept"))
        group.register_abort_hook(2, lambda: seen.append("gone"))
        group.unregister_abort_hook(2)
        dist.barrier()
        group.abort()
        return seen

    assert run(2, body) == [["kept"]] * 2


@needs_call_hooks
def test_torchs_pre_and_post_hooks_see_each_call() -> None:
    def body(rank: Rank) -> Any:
        rank.init()
        group: Any = dist.group.WORLD
        seen: list[tuple[str, int, bool]] = []
        group.register_pre_hook(1, lambda args: seen.append(("pre", args.op_id, args.async_op)))
        group.register_post_hook(1, lambda args: seen.append(("post", args.op_id, args.async_op)))
        dist.all_reduce(torch.ones(3))
        work = dist.all_reduce(torch.ones(3), async_op=True)
        work.wait()
        dist.barrier()
        group.unregister_pre_hook(1)
        group.unregister_post_hook(1)
        dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        first = seen[0][1]
        return [(when, number - first, asynchronous) for when, number, asynchronous in seen]

    expected = [("pre", 0, False), ("post", 0, False), ("pre", 1, True), ("post", 1, True)]
    expected += [("pre", 2, False), ("post", 2, False)]
    assert run(2, body) == [expected] * 2
