# SPDX-License-Identifier: BSD-3-Clause
"""Groups over several hosts, which SHMCOLL_FAKE_HOSTS makes of one machine: shared memory in each, gloo between them.

What the library does between hosts is in tests/conformance/hosts*_test.cc; here is what a user of torch sees of it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import shmcoll
from shmcoll import _hosts
import features
import glues
from ranks import Rank, outcomes, run, seconds

WORLD = 4
FAKE = {"SHMCOLL_FAKE_HOSTS": "2x2", "GLOO_SOCKET_IFNAME": "lo"}
NOT_YET = 0xA55A7E1DC3B29F01 - (1 << 64)  # arrival.hpp
ON_2_HOSTS = 'group "default_pg" is on 2 hosts'
ONE_LINE = (
    f"warn: {ON_2_HOSTS} (SHMCOLL_FAKE_HOSTS): host 0 (ranks 0-1), host 1 (ranks 2-3); "
    "gloo between them, 2 rails"
)


def check_all_reduce(rank: int) -> None:
    for count in (0, 1, 1000, 300_007):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            for asynchronous in (False, True):
                t = torch.full((count,), rank + 1, dtype=dtype)
                work = dist.all_reduce(t, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                    assert work.is_completed() and work.result()[0].data_ptr() == t.data_ptr()
                assert (t == 10).all()
    strided = torch.full((600, 500), float(rank)).t()
    dist.all_reduce(strided, dist.ReduceOp.AVG)
    assert (strided == 1.5).all()
    several = [torch.full((n,), rank + 1.0) for n in (3, 70_000, 1)]
    dist.all_reduce_coalesced(several)
    assert all((t == 10).all() for t in several)
    for count in (10, 5000):  # each index is in one rank of each host
        indices = torch.arange(count).mul(2).add(rank % 2).unsqueeze(0)
        for dtype in (torch.float32, torch.float16):
            values = torch.full((count, 3), rank + 1, dtype=dtype)
            sparse = torch.sparse_coo_tensor(indices, values, (2 * count, 3))
            work = dist.all_reduce(sparse, async_op=rank % 2 == 1)
            if work:
                work.wait()
            wanted = torch.tensor([[4.0], [6.0]]).expand(2, 3).repeat(count, 1).to(dtype)
            assert torch.equal(sparse.to_dense(), wanted)


def check_broadcast(rank: int) -> None:
    for source in range(WORLD):
        for count in (5, 400_001):
            t = torch.arange(count) * (rank == source)
            dist.broadcast(t, source)
            assert torch.equal(t, torch.arange(count))
    for count in (511, 512):  # records that end with the mark of one that has not come yet
        t = torch.full((count,), NOT_YET if rank == 1 else 0)
        dist.broadcast(t, 1)
        assert (t == NOT_YET).all()


def check_blocks(rank: int) -> None:
    """Operations whose ranks have blocks, short and long, also of different sizes."""
    for count in (3, 60_000):
        parts = [torch.full((count,), float(r)) for r in range(WORLD)]
        got = [torch.zeros(count) for _ in range(WORLD)]
        dist.all_gather(got, parts[rank])
        assert all(map(torch.equal, got, parts))
        one = torch.zeros(count)
        dist.reduce_scatter(one, [torch.full((count,), float(10 * r + rank)) for r in range(WORLD)])
        assert (one == 40 * rank + 6).all()
        dist.scatter(one, parts if rank == 2 else None, 2)
        assert torch.equal(one, parts[rank])
        dist.gather(one, got if rank == 1 else None, 1)
        assert rank != 1 or all(map(torch.equal, got, parts))
        dist.reduce(one, 3)
        assert rank != 3 or (one == 6).all()
        sizes = [count + 10 * r for r in range(WORLD)]  # rank r gets so many of each
        given = [torch.full((sizes[r],), float(10 * rank + r)) for r in range(WORLD)]
        taken = [torch.zeros(sizes[rank]) for _ in range(WORLD)]
        dist.all_to_all(taken, given)
        assert all((taken[r] == 10 * r + rank).all() for r in range(WORLD))


def check_objects(rank: int) -> None:
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 5000 * rank})
    assert [entry["rank"] for entry in objects] == list(range(WORLD))
    some: list[Any] = [{"a": 1}, "b" * 20_000] if rank == 3 else [None, None]
    dist.broadcast_object_list(some, 3)
    assert some == [{"a": 1}, "b" * 20_000]


def check_training(rank: int) -> None:
    """DDP, FSDP2 over both hosts, HSDP over them, and a DTensor have the gradients of one process."""
    rows = torch.arange(4 * 32.0).reshape(4, 32).sin()
    flat = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "ranks"))

    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Linear(32, 32)

    alone = model()
    alone(rows).square().mean().backward()
    wanted = alone.weight.grad
    assert isinstance(wanted, torch.Tensor)
    ddp = DistributedDataParallel(model())
    ddp(rows[rank : rank + 1]).square().mean().backward()
    assert torch.allclose(ddp.module.weight.grad, wanted, atol=1e-6)
    for mesh in (flat, square):
        sharded: Any = fully_shard(model(), mesh=mesh)
        sharded(rows[rank : rank + 1]).square().mean().backward()
        assert torch.allclose(sharded.weight.grad.full_tensor(), wanted, atol=1e-6)
    spread: Any = distribute_tensor(rows, flat, [Shard(0)])
    assert torch.equal(spread.redistribute(flat, [Shard(1)]).full_tensor(), rows)


def check_order(rank: int) -> None:
    """Asynchronous calls run in the order of their submission, and futures hold results."""
    tensors = [torch.full((size,), rank + 1.0) for size in (10, 100_000) * 10]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    futures = [work.get_future().then(lambda f: f.value()[0][0].item()) for work in works]
    assert torch.futures.wait_all(futures) == [10.0] * len(works)


def check_groups(rank: int) -> None:
    """A group whose members share a host is an ordinary one; another one maps its own members."""
    here = [0, 1] if rank < 2 else [2, 3]
    mine = [dist.new_group(ranks, timeout=seconds(20)) for ranks in ([0, 1], [2, 3])][rank // 2]
    about: Any = shmcoll.describe(mine)
    assert about["hosts"] == 1 and "host.0" not in about
    t = torch.tensor([rank])
    dist.all_reduce(t, group=mine)
    assert t.item() == sum(here)
    uneven = dist.new_group([0, 1, 3], timeout=seconds(20))
    if rank == 2:
        return
    about = shmcoll.describe(uneven)
    assert about["hosts"] == 2 and about["members"] == "0,1,3" and about["world_size"] == 3
    assert (about["host.0"], about["host.1"], about["rails"]) == ("ranks 0-1", "rank 3", 1)
    t = torch.tensor([1.0])
    dist.all_reduce(t, group=uneven)
    assert t.item() == 3


def check_messages(rank: int) -> None:
    """Messages between ranks of one host and of two, short and long, named and from any rank, and their errors."""
    after, before = (rank + 1) % WORLD, (rank - 1) % WORLD
    for count in (0, 1, 200, 3000, 400_001):
        given, taken = torch.full((count,), float(rank)), torch.zeros(count, 2)[:, 0]
        ops = [
            dist.P2POp(dist.isend, given, after, tag=3),
            dist.P2POp(dist.irecv, taken, before, tag=3),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert (taken == before).all()
    t = torch.full((5,), float(rank))
    if rank == 2:
        senders = [dist.recv(t) for _ in range(WORLD - 1)]
        assert sorted(senders) == [0, 1, 3] and t[0] == senders[-1]
        works: list[Any] = [dist.irecv(t, source, tag=1) for source in (0, 1)]
        assert [work.wait() and work._source_rank() for work in works] == [0, 1]
    else:
        dist.send(t, 2)
        if rank != 3:
            dist.send(t, 2, tag=1)
    if rank == 0:
        with pytest.raises(ValueError, match="7"):
            dist.send(t, 7)
        with pytest.raises(
            RuntimeError, match=r"the recv of rank 3 \(host 1\) that matches it is of another"
        ):
            dist.send(torch.ones(5000), 3)
    if rank == 3:
        with pytest.raises(
            RuntimeError, match=r"the send of rank 0 \(host 0\) that matches it is of another"
        ):
            dist.recv(t, 0)
    if rank == 1:
        late: Any = dist.irecv(t, 3)
        with pytest.raises(RuntimeError, match=r"the matching send of rank 3 \(host 1\)"):
            late.wait(seconds(0.1))
    dist.barrier()
    if rank == 3:
        dist.send(t, 1)
        dist.send_object_list([{"a": 1}, "x" * 5000], 1)
    if rank == 1:
        late.wait()
        objects: list[Any] = [None, None]
        dist.recv_object_list(objects, 3)
        assert objects == [{"a": 1}, "x" * 5000]


def check_describe(rank: int) -> None:
    about: Any = shmcoll.describe()
    assert about["hosts"] == 2 and about["host"] == rank // 2 and about["rails"] == 2
    assert (about["host.0"], about["host.1"]) == ("ranks 0-1", "ranks 2-3")
    assert about["rank"] == about["global_rank"] == rank and about["world_size"] == WORLD
    assert about["members"] == "0,1,2,3" and about["timeout_s"] == 20 and about["name"] == "0"
    assert not any(key.startswith("path.") for key in about)


def check_profile(rank: int) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert sum(event.name == "shmcoll:all_reduce" for event in prof.events()) == 2


def check_bad_input(rank: int) -> None:
    """A refusal leaves the group usable."""
    with pytest.raises(TypeError):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(TypeError):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, async_op=True)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == WORLD


def check_again(rank: int) -> None:
    """A group of the same members, in the same store, after the first one is gone."""
    for _ in range(3):
        group = dist.new_group(timeout=seconds(20))
        t = torch.ones(2)
        dist.all_reduce(t, group=group)
        assert t[0] == WORLD
        dist.destroy_process_group(group)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def test_a_group_over_hosts_does_what_a_group_of_one_host_does() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        wrong = []
        for check in CHECKS:
            try:
                check(rank.rank)
            except AssertionError as error:
                wrong.append(f"{check.__name__}: {error!r}")
            dist.barrier()
        return wrong

    ended = outcomes(WORLD, body, env=FAKE)
    assert [outcome.error + outcome.text for outcome in ended] == [""] * WORLD
    assert [outcome.value for outcome in ended] == [[]] * WORLD
    assert ONE_LINE in ended[0].output
    assert not any(ON_2_HOSTS in outcome.output for outcome in ended[1:])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a", "b"], "boot ids differ"),
        (["a 4:1 0:7", "a 4:2 0:7"], "pid namespaces differ"),
        (["a 4:1 0:7", "b", "a 4:1 0:8"], "boot ids differ, /dev/shm differs"),
        (["", "", "b"], "memory cannot be mapped"),
    ],
)
def test_the_line_says_what_the_words_of_hosts_differ_in(words: list[str], why: str) -> None:
    assert _hosts._why(words) == why


def test_calls_that_differ_between_hosts_are_named_on_all_ranks() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        t = torch.ones(1000 if rank.rank < 2 else 1001)
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(t)
        assert (t == 1).all()
        return str(caught.value).splitlines()[0]

    words = (
        'shmcoll: calls of "default_pg" differ: all_reduce #2 (float32[1000], sum) on host 0 (ranks 0-1), '
        "all_reduce #2 (float32[1001], sum) on host 1 (ranks 2-3)"
    )
    assert run(WORLD, body, env=FAKE) == [words] * WORLD


def test_a_late_call_says_which_host_it_waits_for() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 3:
            time.sleep(2)
        dist.all_reduce(torch.ones(3))

    ended = outcomes(WORLD, body, env={**FAKE, "SHMCOLL_LATE_MS": "300"})
    assert all(outcome.ok for outcome in ended), ended
    line = r'all_reduce #2 \(float32\[3\], sum\) on "default_pg" has waited .* for host 1 \(ranks 2-3\)'
    assert re.search(line, ended[0].output), ended[0].output


def test_a_group_names_the_rank_of_the_job_and_not_its_own() -> None:
    """Ranks 1 to 3 are 0 to 2 of the group: a late line, the error after an abort, wishes that differ."""

    def body(rank: Rank) -> str:
        rank.init()
        group = dist.new_group([1, 2, 3], group_desc="permuted")
        if rank.rank == 0:
            return ""
        dist.all_reduce(torch.ones(3), group=group)
        if rank.rank == 1:
            time.sleep(2)
        dist.all_reduce(torch.ones(3), group=group)
        if rank.rank == 3:
            group._get_backend(torch.device("cpu")).abort()
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(3), group=group)
        wish = {"order": "rank" if rank.rank == 3 else "host"}
        with pytest.raises(RuntimeError) as differs:
            dist.new_group([1, 2, 3], pg_options=wish, use_local_synchronization=True)
        return f"{caught.value}\n{differs.value}"

    ended = outcomes(WORLD, body, env={**FAKE, "SHMCOLL_LATE_MS": "300"})
    assert all(outcome.ok for outcome in ended), ended
    line = r'rank (\d): all_reduce #\d \(float32\[3\], sum\) on "permuted" has waited .* for host 0 \(rank 1\)'
    assert set(re.findall(line, ended[2].output)) == {"2"}, ended[2].output
    assert "rank 3 aborted the group" in ended[1].value, ended[1].value
    differs = r'rank 3 of ".*" wants sums in the order of ranks, rank 1 wants that of hosts'
    assert all(re.search(differs, each.value) for each in ended[1:]), ended[1].value


def test_groups_that_ask_for_gloo_may_be_over_hosts() -> None:
    """If ranks differ about it, the first one's word holds for all; without it they get gloo."""

    def body(rank: Rank, modes: str) -> list[Any]:
        shmcoll.use_for_gloo(hosts=modes[rank.rank] == "h")
        rank.init("gloo")
        t = torch.ones(3)
        dist.all_reduce(t)
        assert t[0] == WORLD
        backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        return [type(backend).__name__, backend.name()]

    ours, gloos = [glues.BACKEND, "gloo"], ["ProcessGroupGloo", "gloo"]
    assert run(WORLD, body, "hhhh", env=FAKE) == [ours] * WORLD
    assert run(WORLD, body, "1111", env=FAKE) == [gloos] * WORLD
    mixed = outcomes(WORLD, body, "1hhh", env=FAKE)
    assert [outcome.value for outcome in mixed] in ([ours] * WORLD, [gloos] * WORLD), mixed
    assert any("the ranks differ about SHMCOLL_FOR_GLOO" in outcome.output for outcome in mixed)


def stop_others(rank: Rank, times: int) -> None:
    """Stops one rank after the other for longer than a wait for a message lasts before it begins again."""
    for i in range(times):
        pid = rank.board[1 + i % (WORLD - 1)]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)


def test_data_are_right_while_ranks_are_stopped_for_moments() -> None:
    """Each size is of another way: in the record, as a message, over the rails."""

    def body(rank: Rank) -> int:
        rank.init()
        rank.board[rank.rank] = os.getpid()
        dist.barrier()
        stopper = threading.Thread(target=stop_others, args=(rank, 30), daemon=True)
        if rank.rank == 0:
            stopper.start()
        calls, goes_on = 0, torch.ones(1)
        while goes_on.item():
            for count in (1000, 15_000, 16_384, 16_385, 60_000):
                root, calls = calls % WORLD, calls + 1
                t = torch.full((count,), float(calls if rank.rank == root else 0))
                dist.broadcast(t, root)
                assert (t == calls).all()
                dist.all_reduce(t)
                assert (t == WORLD * calls).all()
                given = [torch.full((count,), calls + 10.0 * rank.rank + r) for r in range(WORLD)]
                taken = [torch.zeros(count) for _ in range(WORLD)]
                dist.all_to_all(taken, given)
                assert all((taken[r] == calls + 10 * r + rank.rank).all() for r in range(WORLD))
            goes_on.fill_(float(stopper.is_alive()))
            dist.broadcast(goes_on, 0)
        return calls

    assert min(run(WORLD, body, env=FAKE)) > 0


@pytest.mark.parametrize("victim", [2, 3])
def test_a_death_ends_messages_on_the_other_host(victim: int) -> None:
    def body(rank: Rank) -> str:
        rank.init(timeout=seconds(60))
        if rank.rank == victim:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        while rank.rank > 1:  # it calls nothing
            time.sleep(0.05)
            if rank.store.add("ended", 0) == 2:
                return ""
        with pytest.raises(RuntimeError) as caught:
            dist.recv(torch.ones(3), victim)
        rank.store.add("ended", 1)
        return str(caught.value)

    ended = outcomes(WORLD, body, env=FAKE, limit=50)
    for outcome in ended[:2]:
        assert outcome.ok and f"rank {victim}" in outcome.value, outcome
        assert "died" in outcome.value, outcome.value


def test_a_message_to_a_rank_that_has_left_fails_soon() -> None:
    """Also if it has never used messages, so that no connection to it can end."""

    def body(rank: Rank) -> tuple[str, float]:
        rank.init(timeout=seconds(60))
        if rank.rank == 3:
            dist.destroy_process_group()
            rank.store.set("left", "")
        if rank.rank > 1:  # it lives on
            rank.store.wait(["ended0", "ended1"])
            return "", 0.0
        rank.store.wait(["left"])
        began = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            dist.recv(torch.ones(3), 3)
        took = time.monotonic() - began
        rank.store.set(f"ended{rank.rank}", "")
        return str(caught.value).splitlines()[0], took

    for text, took in run(WORLD, body, env=FAKE, limit=50)[:2]:
        # Or its connection, which had not been made before, cannot be.
        assert re.search(r"rank 3 \(host 1\) has (ended, so it has )?left the group", text), text
        assert took < 20


def test_a_process_that_ends_without_a_farewell_prints_nothing() -> None:
    """The store's process may be gone by then, and torch would write a stack to stderr."""
    code = (
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('shmcoll')\n"
        "dist.all_reduce(torch.ones(3))\n"
        "time.sleep(float(os.environ['SLEEP']))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, **FAKE, "SHMCOLL_FAKE_HOSTS": "2x1", "SHMCOLL_LOG": "off"}
    common.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**common, "RANK": str(rank), "SLEEP": str(rank)},  # the store's process ends first
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for program in programs:
        _, said = program.communicate(timeout=100)
        assert program.returncode == 0 and "frame #" not in said, said


@pytest.mark.parametrize("bad", [0, 3])
def test_an_engine_that_cannot_be_made_is_told_on_all_ranks(bad: int) -> None:
    def body(rank: Rank) -> str:
        if rank.rank == bad:
            os.environ["GLOO_SOCKET_IFNAME"] = "no-such-device"
        with pytest.raises(RuntimeError) as caught:
            rank.init(timeout=seconds(10))
        return str(caught.value).splitlines()[0]

    said = run(WORLD, body, env=FAKE, limit=120)
    words = f"rank {bad} cannot make the engine gloo: Unable to find address for: no-such-device"
    assert said[bad] == f"shmcoll: {words}"
    assert words in said[bad ^ 1]


@pytest.mark.parametrize("one", [(0,), (3,), (0, 1, 2, 3)])
def test_a_rank_that_refuses_several_hosts_is_told_on_all_ranks(one: tuple[int, ...]) -> None:
    def body(rank: Rank) -> str:
        if rank.rank in one:
            os.environ["SHMCOLL_HOSTS"] = "one" if rank.rank else ""
        options = {"hosts": "one"} if rank.rank == 0 in one else None
        with pytest.raises(RuntimeError) as caught:
            rank.init(timeout=seconds(60), pg_options=options)
        return str(caught.value).splitlines()[0]

    own = "shmcoll: {} refuses a group over several hosts, which SHMCOLL_FAKE_HOSTS makes"
    told = f'rank {one[0]} of "0" refuses a group over several hosts (hosts="one")'
    for rank, text in enumerate(run(WORLD, body, env=FAKE, limit=40)):
        set_by = "SHMCOLL_HOSTS=one" if rank else 'hosts="one"'
        assert text == own.format(set_by) if rank in one else told in text


def test_what_variables_say_is_checked() -> None:
    def body(rank: Rank) -> list[str]:
        said = []
        for name, value in (
            ("SHMCOLL_FAKE_HOSTS", "2x"),
            ("SHMCOLL_FAKE_HOSTS", "0x2"),
            ("SHMCOLL_RAILS", "many"),
            ("SHMCOLL_HOSTS", "some"),
            ("SHMCOLL_ENGINE", "a b"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(name, value)
                with pytest.raises(ValueError) as caught:
                    rank.init()
                said.append(str(caught.value))
        return said

    (said,) = run(1, body, env={})
    assert said == [
        "shmcoll: SHMCOLL_FAKE_HOSTS=2x is not <hosts>x<ranks of each>",
        "shmcoll: SHMCOLL_FAKE_HOSTS=0x2 is not <hosts>x<ranks of each>",
        "shmcoll: SHMCOLL_RAILS=many is not a number from 0 to 8",
        "shmcoll: SHMCOLL_HOSTS=some is not one of auto|one",
        "shmcoll: SHMCOLL_ENGINE=a b is not the name of a backend",
    ]


def test_ranks_that_are_all_on_the_first_fake_host_are_told() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.new_group([0, 1])  # of a part of the job, which may be on one host

    first, second = outcomes(2, body, env={"SHMCOLL_FAKE_HOSTS": "2x2"})
    told = "warn: SHMCOLL_FAKE_HOSTS=2x2 leaves all 2 ranks of the job on one host"
    assert first.output.count("SHMCOLL_FAKE_HOSTS") == first.output.count(told) == 1, first.output
    assert "SHMCOLL_FAKE_HOSTS" not in second.output


# ---- options ----


def check_bits(over_hosts: Any, on_one: Any, rank: int, dtype: torch.dtype, count: int) -> None:
    """Sums over hosts have the bits of one host with the same ranks."""
    own = torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
        sums = []
        for group in (over_hosts, on_one):
            whole, part = own.clone(), torch.empty(count // WORLD, dtype=dtype)
            dist.all_reduce(whole, op, group=group)
            dist.reduce_scatter_tensor(part, own.clone(), op, group=group)
            rooted = own.clone()
            dist.reduce(rooted, 3, op, group=group)
            sums.append((whole, part, rooted if rank == 3 else whole))
        for mine, its in zip(*sums):
            assert torch.equal(mine.view(torch.uint8), its.view(torch.uint8)), (dtype, op, count)


def test_sums_in_the_order_of_ranks_have_the_bits_of_one_host() -> None:
    """The same ranks make a group over hosts, and one of shared memory alone."""

    def body(rank: Rank) -> tuple[Any, ...]:
        rank.init(timeout=seconds(60), pg_options=shmcoll.Options(order="rank", rails=1))
        narrow = dist.new_group(pg_options={"partials": "wide"}, timeout=seconds(60))
        about: Any = shmcoll.describe(internals=True)
        wide: Any = shmcoll.describe(narrow)
        calls = about["engine_calls"]
        del os.environ["SHMCOLL_FAKE_HOSTS"]
        on_one = dist.new_group(timeout=seconds(60))
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for count in (4, 200, 20_000, 600_004):
                check_bits(None, on_one, rank.rank, dtype, count)
        # A check that can fail: in the order of hosts there are other bits.
        own = torch.randn(20_000, generator=torch.Generator().manual_seed(rank.rank))
        sums = [own.clone(), own.clone()]
        dist.all_reduce(sums[0], group=narrow)
        dist.all_reduce(sums[1], group=on_one)
        differ = not torch.equal(*sums)
        moved: Any = shmcoll.describe(internals=True)
        assert moved["engine_calls"] > calls or rank.rank % 2 == 1
        sparse = torch.eye(3).to_sparse()
        with pytest.raises(TypeError, match="does not have it for sums in the order of ranks"):
            dist.all_reduce(sparse)
        return about["order"], about["rails"], about["engine"], wide["partials"], differ

    for seen in run(WORLD, body, env=FAKE, limit=120):
        assert seen == ("rank", 1, "gloo", "wide", True)


@features.needs_fake_group
def test_an_engine_is_one_that_the_program_has_registered() -> None:
    """Or it is a named error of all ranks when the group is made: one that does nothing, one that is not there on all
    ranks, one of which ranks think differently."""
    from torch._C._distributed_c10d import FakeProcessGroup, ProcessGroupGloo

    def other(store: Any, rank: int, size: int, timeout: Any) -> Any:
        options: Any = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(interface="lo", lazy_init=True)]
        return ProcessGroupGloo(store, rank, size, options)

    def idle(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return FakeProcessGroup._create_internal(rank, size)

    def body(rank: Rank) -> list[str]:
        for name, make in (("other", other), ("idle", idle)):
            if rank.rank != 2 or name != "idle":
                dist.Backend.register_backend(name, make, devices=["cpu"])
        rank.init(timeout=seconds(60), pg_options={"engine": "other"})
        check_all_reduce(rank.rank)
        t = torch.tensor([rank.rank])
        if rank.rank in (0, 3):
            dist.send(t, 3 - rank.rank) if rank.rank else dist.recv(t, 3)
        assert t.item() == (3 if rank.rank == 0 else rank.rank)
        said = [str(shmcoll.describe()["engine"])]
        for options in (
            {"engine": "idle"},
            {"engine": "nccl"},
            {"engine": "other" if rank.rank == 3 else ""},
            {"order": "rank" if rank.rank == 1 else "host"},
        ):
            with pytest.raises(RuntimeError) as caught:
                dist.new_group(timeout=seconds(20), pg_options=options)
            said.append(str(caught.value).splitlines()[0])
        if rank.rank == 2:
            dist.Backend.register_backend("idle", idle, devices=["cpu"])
        with pytest.raises(RuntimeError) as caught:
            dist.new_group(timeout=seconds(20), pg_options={"engine": "idle"})
        return [*said, str(caught.value).splitlines()[0]]

    for said in run(WORLD, body, env=FAKE, limit=120):
        for text, words in zip(
            said,
            (
                "other",
                "cannot make the engine idle: this process has none of that name; it has gloo, other"
                if "cannot make" in said[1]
                else "is not usable: its gather gave rank",  # a host with two that have it found that first
                "cannot make the engine nccl: it moves no CPU tensors between hosts",
                "wants the engine other, rank 0 wants gloo; all ranks must want the same",
                "wants sums in the order of ranks, rank 0 wants that of hosts",
                "is not usable: its gather gave rank",
            ),
            strict=True,
        ):
            assert words in text, said


def test_messages_that_come_when_nobody_waits_hold_up_no_end() -> None:
    """gloo's thread must not look for ever at bytes for memory that is gone: destroy would wait for it."""

    def differ(rank: Rank) -> str:
        rank.init()
        dist.barrier()
        time.sleep(0.05 * rank.rank)
        data = torch.ones(16384, dtype=torch.int32 if rank.rank else torch.float32)
        try:
            dist.broadcast(data, 0)
        except RuntimeError as error:
            return str(error)
        return ""

    def leave(rank: Rank) -> list[str]:
        rank.init()
        texts = []
        for turn in range(25):
            group: Any = dist.new_group()
            dist.all_reduce(torch.ones(2), group=group)
            if rank.rank == 1:
                time.sleep(turn * 0.001)
                with pytest.raises(RuntimeError) as raised:
                    dist.all_reduce(torch.ones(2), group=group)
                texts.append(str(raised.value))
            dist.destroy_process_group(group)
            del group  # and with it gloo's connections
        return texts

    env = {**FAKE, "SHMCOLL_FAKE_HOSTS": "2x1"}
    for text in run(2, differ, env=env, limit=60):
        assert "broadcast #3 (float32[16384], root 0) on host 0" in text
    texts = run(2, leave, env=env, limit=60)[1]
    wanted = r'host 0 \(rank 0\) has left the group "\d+" after its call #2'
    assert len(texts) == 25
    assert not (others := [text for text in texts if not re.search(wanted, text)]), others
