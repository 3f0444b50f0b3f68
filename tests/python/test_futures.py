# SPDX-License-Identifier: BSD-3-Clause
"""Futures and their callbacks, the profiler, and the end of the process under them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import features
from ranks import Rank, outcomes, run, seconds


def start(rank: Rank, value: float = 1.0, count: int = 4) -> dist.Work:
    return dist.all_reduce(torch.full((count,), value), async_op=True)


def test_a_futures_value_is_the_list_of_the_tensors_themselves() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.ones(3)
        future = dist.all_reduce(mine, async_op=True).get_future()
        value = future.wait()
        assert isinstance(value, list) and len(value) == 1
        assert value[0].data_ptr() == mine.data_ptr() and mine.tolist() == [2.0] * 3
        work = dist.all_reduce(mine, async_op=True)
        work.wait()
        assert work.get_future().done(), "asked for after the end, it is settled"
        assert work.get_future().value()[0].tolist() == [4.0] * 3
        assert dist.barrier(async_op=True).get_future().wait() == []

    run(2, body)


def test_callbacks_run_once_each_and_can_be_chained() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        calls = []
        for turn in range(200):
            future = start(rank, float(turn)).get_future()
            chained = future.then(lambda f: f.value()[0].sum().item()).then(
                lambda f: (calls.append(1), f.value() + 1)[1]
            )
            assert chained.wait() == turn * 8 + 1
        assert len(calls) == 200

    run(2, body)


def test_all_futures_can_be_collected() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        works = [start(rank, float(i), count=1 + 1000 * i) for i in range(30)]
        done = torch.futures.collect_all([work.get_future() for work in works]).wait()
        for i, future in enumerate(done):
            assert (future.value()[0] == 3 * i).all()

    run(3, body)


def test_a_callback_that_raises_fails_its_own_future_and_nothing_else() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        future = start(rank).get_future()
        bad = future.then(lambda f: 1 / 0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            bad.wait()
        assert future.value()[0].tolist() == [2.0] * 4
        start(rank).wait()
        dist.barrier()

    run(2, body)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_callback_may_run_collectives_and_wait_for_them(asynchronous: bool) -> None:
    def more(future: torch.futures.Future) -> float:
        mine = future.value()[0]
        work = dist.all_reduce(mine, async_op=asynchronous)
        if work is not None:
            work.wait()
        return mine[0].item()

    def body(rank: Rank) -> None:
        rank.init()
        for turn in range(50):
            assert start(rank, float(turn)).get_future().then(more).wait() == 4 * turn

    run(2, body)


def test_callbacks_may_nest() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        def deeper(future: torch.futures.Future, left: int) -> float:
            mine = future.value()[0]
            if left == 0:
                return mine[0].item()
            inner = dist.all_reduce(mine, async_op=True).get_future()
            return inner.then(lambda f: deeper(f, left - 1)).wait()

        assert start(rank).get_future().then(lambda f: deeper(f, 12)).wait() == 2.0**13

    run(2, body)


def test_operations_go_on_while_a_callback_is_slow() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        gate = threading.Event()
        if rank.rank == 1:
            rank.sync()
        first = start(rank).get_future()
        if rank.rank == 0:  # its peer is not there: the callback cannot run in this thread
            slow = first.then(lambda f: gate.wait(20))
            rank.sync()
        for _ in range(20):
            start(rank).wait()
        dist.barrier()
        if rank.rank == 0:
            assert not slow.done()
            gate.set()
            assert slow.wait() is True

    run(2, body)


def test_a_future_with_the_profiler_on_is_completed_once() -> None:
    """It was completed twice when it was asked for between the end and the notification."""

    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.zeros(4)
        with profile(activities=[ProfilerActivity.CPU]):
            for turn in range(3000):
                work = dist.all_reduce(mine, async_op=True)
                for _ in range(turn % 300):
                    pass
                work.is_completed()
                assert work.get_future().wait()[0] is not None

    run(2, body)


@pytest.mark.parametrize("how", ["profiler", "future"])
def test_a_wait_runs_nothing_that_may_want_this_ranks_next_call(how: str) -> None:
    """A wait with a callback ran the operation after its own, and a message's callback waited for one."""

    def body(rank: Rank) -> None:
        rank.init(timeout=seconds(6))
        mine, theirs = torch.ones(4), torch.zeros(4)

        def asked(work: dist.Work | None) -> dist.Work:
            assert work is not None
            if how == "future":
                work.get_future()
            return work

        def give() -> None:
            dist.send(mine, 1 - rank.rank)

        def get() -> None:
            dist.recv(theirs, 1 - rank.rank)

        profiler = profile(activities=[ProfilerActivity.CPU])
        with profiler if how == "profiler" else contextlib.nullcontext():
            for _ in range(20):
                if rank.rank == 0:
                    first = asked(dist.all_reduce(torch.ones(4), async_op=True))
                    second = asked(dist.all_reduce(torch.ones(4), async_op=True))
                    first.wait()
                    give()
                    asked(dist.irecv(theirs, 1)).wait()
                    give()
                    second.wait()
                else:
                    dist.all_reduce(torch.ones(4))
                    get()
                    give()
                    get()
                    dist.all_reduce(torch.ones(4))

    run(2, body)


def test_a_profile_has_the_names_and_shapes_of_operations() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine, both = torch.ones(4), torch.ones(2, 4)
        calls = {
            "all_reduce": (lambda a: dist.all_reduce(mine, async_op=a), [[4]]),
            "broadcast": (lambda a: dist.broadcast(both, 0, async_op=a), [[2, 4]]),
            "all_gather": (lambda a: dist.all_gather(list(both), mine, async_op=a), [[4]]),
            "all_to_all_single": (
                lambda a: dist.all_to_all_single(mine.clone(), mine, async_op=a),
                [[4]],
            ),
            "barrier": (lambda a: dist.barrier(async_op=a), []),
        }
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            for asynchronous in (False, True):
                for call, _ in calls.values():
                    if work := call(asynchronous):
                        work.wait()
        events = [event for event in seen.events() if event.name.startswith("shmcoll:")]
        got = sorted((event.name, event.input_shapes) for event in events)
        assert got == sorted(
            2 * [(f"shmcoll:{name}", shapes) for name, (_, shapes) in calls.items()]
        )
        assert all(event.is_async for event in events)

    run(2, body)


@features.needs_param_comms
def test_a_trace_has_what_nccls_traces_say_of_each_operation(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        part = dist.new_group([0, 2], group_desc="part")
        mine = torch.ones(1000)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            dist.all_reduce(mine)
            dist.all_reduce(mine.double(), async_op=True).wait()
            if rank.rank != 1:
                dist.all_gather_into_tensor(torch.empty(8), mine[:4], group=part)
                message = dist.send if rank.rank == 0 else dist.recv
                message(mine[:7], 2 - rank.rank, part)
            dist.barrier()
        seen.export_chrome_trace(str(tmp_path / f"{rank.rank}.json"))

    run(3, body)
    for rank in range(3):
        trace = json.loads((tmp_path / f"{rank}.json").read_text())
        events = [e for e in trace["traceEvents"] if e["name"] == "record_param_comms"]
        said = [event["args"] for event in sorted(events, key=lambda event: event["ts"])]
        names = ["allreduce", "allreduce", "_allgather_base", "send" if rank == 0 else "recv"]
        names = [*(names[:2] if rank == 1 else names), "barrier"]
        assert [each["Collective name"] for each in said] == names, said
        keys = "Rank", "Group size", "In msg nelems", "Out msg nelems", "dtype"
        facts = [tuple(each[key] for key in keys) for each in said]
        assert facts[0] == (rank, 3, 1000, 1000, "Float")
        assert facts[1] == (rank, 3, 1000, 1000, "Double")
        assert said[0]["Process Group Ranks"] == "[0, 1, 2]"
        assert said[0]["Process Group Description"] == "default_pg"
        if rank != 1:
            assert facts[2] == (rank // 2, 2, 4, 8, "Float")
            assert facts[3] == (rank // 2, 2, 7, 7, "Float")
            assert said[2]["Process Group Ranks"] == "[0, 2]"
            assert said[2]["Process Group Description"] == "part"
        # The event of a synchronous call lasts as long as the call.
        calls = [e for e in trace["traceEvents"] if e["name"] == "shmcoll:all_reduce"]
        first = min(events, key=lambda event: event["ts"])
        assert any(
            e["ts"] <= first["ts"] and first["ts"] + first["dur"] <= e["ts"] + e["dur"]
            for e in calls
        ), (first, calls)


# ---- the end of the process ----

GOODBYE = """
import atexit, faulthandler
import torch, torch.distributed as dist

def late():
    mine = torch.ones(4)
    for what, call in {
        "sync": lambda: dist.all_reduce(mine),
        "async": lambda: dist.all_reduce(mine, async_op=True).wait(),
        "future": lambda: dist.all_reduce(mine, async_op=True).get_future().wait(),
    }.items():
        try:
            call()
            print(what, "worked")
        except dist.DistBackendError as error:
            print(what, "DistBackendError", "closed" in str(error) or "leav" in str(error))
    dist.destroy_process_group()
    print("destroyed")

faulthandler.dump_traceback_later(30, exit=True)
atexit.register(late)  # before ours, so it runs after the goodbye
import shmcoll
dist.init_process_group("shmcoll", store=dist.FileStore(path, 2), rank=rank, world_size=2)
dist.barrier()
"""

CALLBACK = """
import faulthandler, time
import torch, torch.distributed as dist
import shmcoll

faulthandler.dump_traceback_later(30, exit=True)
dist.init_process_group("shmcoll", store=dist.FileStore(path, 2), rank=rank, world_size=2)
time.sleep(0.5 * rank)  # rank 0's callbacks run in the library's thread
future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
future = future.then(lambda f: (time.sleep(1), print("slept")))
many = [dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: f.value()[0])
        for _ in range(50)]
time.sleep(0.7 * (1 - rank))
print("the end")
"""


def test_more_callbacks_at_once_than_a_group_has_threads_are_no_lack_of_threads() -> None:
    most, count = 64, 70

    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 1:  # comes when all callbacks are there
            rank.sync()
            for work in [start(rank) for _ in range(count)]:
                work.wait()
            return
        inside, go_on = threading.Semaphore(0), threading.Event()

        def wait(_: object) -> None:
            inside.release()
            go_on.wait()

        futures = [start(rank).get_future().then(wait) for _ in range(count)]
        rank.sync()
        for _ in range(most):
            assert inside.acquire(timeout=30)
        go_on.set()
        for future in futures:
            future.wait()

    first, second = outcomes(2, body, env={"SHMCOLL_LOG": "info"})
    assert first.ok and second.ok and "cannot start" not in first.output, first.output
    assert first.output.count("While all are inside callbacks, further ones wait") == 1


FORK = """
import os, sys
import torch, torch.distributed
script, directory = sys.argv[1:]
ranks = []
for rank in range(2):
    if (pid := os.fork()) == 0:
        os.dup2(os.open(f"{directory}/{rank}", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        path = f"{directory}/store"
        break
    ranks.append(pid)
else:
    print(*[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks], flush=True)
    os._exit(0)
exec(script)
"""


def two_processes(script: str, directory: Path) -> list[tuple[int, str]]:
    """Interpreters that end as they do outside: that is the point. Exit codes and output."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, script, str(directory)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    codes = [int(code) for code in done.stdout.split()]
    assert len(codes) == 2, done
    return [(code, (directory / str(rank)).read_text()) for rank, code in enumerate(codes)]


def test_after_the_goodbye_calls_fail_and_nothing_hangs(tmp_path: Path) -> None:
    for code, output in two_processes(GOODBYE, tmp_path):
        assert code == 0, output
        lines = output.splitlines()
        assert lines[-4:] == [
            "sync DistBackendError True",
            "async DistBackendError True",
            "future DistBackendError True",
            "destroyed",
        ]


def test_a_process_may_end_while_a_callback_runs(tmp_path: Path) -> None:
    first, second = two_processes(CALLBACK, tmp_path)
    # A peer that a busy machine keeps for five seconds is late, and said to be.
    said = [line for line in first[1].splitlines() if "has waited" not in line]
    assert (first[0], said) == (0, ["the end", "slept"]), first
    assert second[0] == 0 and "the end\n" in second[1]
