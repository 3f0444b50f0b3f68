# SPDX-License-Identifier: BSD-3-Clause
"""Groups of shmcoll over several hosts: right results on any map, and an end in time whatever fails."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import time
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from hosts import Hosts
from job import Job, Rank, leftovers, wait_for

import shmcoll

LAYOUTS = {
    "2x2": [0, 0, 1, 1],
    "3+1": [0, 0, 0, 1],
    "cyclic": [0, 1, 0, 1],
    "1+1+1": [0, 1, 2],
    "backwards": [2, 1, 0, 1],
}
BIG = 700_001  # elements; several chunks
IN_TIME_S = 40.0  # a bound for what is no promise in milliseconds, on a busy machine


def operations(rank: Rank) -> dict[str, Any]:
    """Sums and broadcasts, in both forms, and all that moves blocks; returns what must agree on all ranks."""
    rank.init()
    move_blocks(rank.rank, rank.world)
    exchange_messages(rank.rank, rank.world)
    world = rank.world
    total = world * (world + 1) // 2
    dist.barrier()
    for count in (1, 1000, BIG):
        whole = torch.arange(count) * (rank.rank + 1)
        dist.all_reduce(whole)
        assert torch.equal(whole, torch.arange(count) * total), count
        largest = torch.full((count,), float(rank.rank))
        work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
        for root in range(world):
            said = torch.arange(count) + (0 if root == rank.rank else 7)
            dist.broadcast(said, root)
            assert torch.equal(said, torch.arange(count)), (count, root)
        work.wait()
        assert (largest == world - 1).all()
    mean = torch.full((3,), rank.rank + 1.0)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert (mean == total / world).all()
    noise = torch.randn(BIG, generator=torch.Generator().manual_seed(rank.rank))
    exact = noise.double()
    dist.all_reduce(noise)
    dist.all_reduce(exact)
    assert torch.allclose(noise.double(), exact, atol=1e-5)
    about: Any = shmcoll.describe()
    return {
        "bits": hash(noise.numpy().tobytes()),
        "about": (about["hosts"], about["host"], about["rank"], about["world_size"]),
        "hosts": [about[f"host.{number}"] for number in range(about["hosts"])],
    }


def move_blocks(me: int, world: int) -> None:
    """A block holds 100 times its sender and its receiver, or what all receivers share."""
    everyone = torch.arange(world)
    for count in (3, 50_001):
        own, out = torch.full((count,), me), torch.empty(world * count, dtype=torch.int64)
        dist.all_gather_into_tensor(out, own)
        assert torch.equal(out, everyone.repeat_interleave(count))
        blocks = (100 * me + everyone).repeat_interleave(count)
        dist.all_to_all_single(out, blocks)
        assert torch.equal(out, (100 * everyone + me).repeat_interleave(count))
        part = torch.empty(count, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, blocks)
        assert (part == 100 * sum(range(world)) + me * world).all()
        for root in range(world):
            rooted = torch.full((count,), me + 1)
            dist.reduce(rooted, root)
            assert me != root or (rooted == world * (world + 1) // 2).all()
            found = [torch.empty_like(own) for _ in range(world)] if me == root else None
            dist.gather(own, found, root)
            assert found is None or [t.unique().item() for t in found] == everyone.tolist()
            dist.scatter(part, list(blocks.view(world, count)) if me == root else None, root)
            assert (part == 100 * root + me).all()
    said: list[Any] = [None] * world
    dist.all_gather_object(said, {"rank": me, "text": "x" * me})
    assert [one["rank"] for one in said] == list(range(world))


def exchange_messages(me: int, world: int, group: Any = None) -> None:
    """Round a ring, short and long, and to rank 0, which does not know from whom."""
    after, before = (me + 1) % world, (me - 1) % world
    for count in (0, 3, 50_001, BIG):
        own, found = torch.full((count,), me), torch.full((count,), -1)
        sends = dist.P2POp(dist.isend, own, after, group)
        takes = dist.P2POp(dist.irecv, found, before, group)
        for work in dist.batch_isend_irecv([sends, takes]):
            work.wait()
        assert (found == before).all(), count
    t = torch.tensor([me])
    if me > 0:
        dist.send(t, 0, group=group)
        return
    senders = []
    for _ in range(world - 1):
        senders.append(dist.recv(t, group=group))
        assert t.item() == senders[-1]
    assert sorted(senders) == list(range(1, world))


def check(job: Job, limit_s: float = 60.0) -> None:
    """All operations are right on all ranks, and describe() knows the map."""
    seen = job.run(operations, limit_s=limit_s)
    assert len({one["bits"] for one in seen}) == 1
    order = sorted(
        set(job.layout), key=job.layout.index
    )  # hosts in the order of their smallest ranks
    of_hosts = [[r for r, on in enumerate(job.layout) if on == host] for host in order]
    for number, one in enumerate(seen):
        place = (len(order), order.index(job.layout[number]), number, len(job.layout))
        assert one["about"] == place, one
        assert [numbers(text) for text in one["hosts"]] == of_hosts, one
    for host in order:
        assert leftovers(job.hosts, host) == []


def numbers(text: str) -> list[int]:
    """[0, 1, 2, 6] of "ranks 0-2, 6"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def cases(*names: Any, short: set[Any]) -> list[Any]:
    """Parameters, of which the default lane has only the `short` ones."""
    return [pytest.param(*n, marks=[] if n in short else pytest.mark.long) for n in names]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operations_are_right_on_any_map(layout: str) -> None:
    with Hosts(max(LAYOUTS[layout]) + 1) as hosts:
        check(Job(hosts, LAYOUTS[layout], "shmcoll"))


def test_hosts_without_ipv4_make_a_group() -> None:
    with Hosts(2, ipv6=True) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll")
        check(job)
        assert " hosts (boot ids differ): " in job.processes[0].output()


def test_hosts_of_one_boot_make_a_group() -> None:
    """Containers of one machine have its boot id, and share no memory."""
    with Hosts(2, own_boot_ids=False) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll")
        check(job)
        assert " hosts (pid namespaces differ, /dev/shm differs): " in job.processes[0].output()


@pytest.mark.parametrize(
    "state", ["ro", "size=4k", pytest.param("size=64k", marks=pytest.mark.long)]
)
def test_a_host_with_a_bad_shm_makes_a_group(state: str) -> None:
    with Hosts(2) as hosts:
        remount = hosts.run(1, ["mount", "-o", f"remount,{state}", "/dev/shm"])
        assert remount.wait(30) == 0, remount.output()
        check(Job(hosts, LAYOUTS["2x2"], "shmcoll"))


def first_sum(rank: Rank) -> float:
    rank.init(timeout_s=8.0)
    t = torch.ones(BIG)
    dist.all_reduce(t)
    return float(t.sum()) / BIG


SETTINGS = [
    ("SHMCOLL_TUNING=turn=64k",),
    ("SHMCOLL_RAILS=1",),
    ("SHMCOLL_HOSTS=one",),
    ("SHMCOLL_ARENA_KIB=64",),
]


@pytest.mark.parametrize(
    "variable", cases(*SETTINGS, short={("SHMCOLL_RAILS=1",), ("SHMCOLL_HOSTS=one",)})
)
def test_a_host_with_other_settings_is_right_or_an_error_on_all(variable: str) -> None:
    """Which of both is a matter of the setting; that all ranks see the same is not."""
    name, _, value = variable.partition("=")
    with Hosts(2) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll", env_of={1: {name: value}})
        ended = job.start(first_sum).outcomes(IN_TIME_S)
    if any(outcome.ok for outcome in ended):
        assert [outcome.value for outcome in ended] == [4.0] * 4, list(map(ranks.describe, ended))
    for outcome in ended:
        assert outcome.ok or outcome.text, ranks.describe(outcome)
    if name == "SHMCOLL_RAILS":
        assert all("wants 1 rails, rank 0 wants 0" in outcome.text for outcome in ended)
    if name == "SHMCOLL_HOSTS":
        assert all("refuses a group over several hosts" in outcome.text for outcome in ended[:2])
        assert all("cannot open the segment" in outcome.text for outcome in ended[2:])


# ---- training ----


def train(rank: Rank) -> list[torch.Tensor]:
    rank.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    own = torch.Generator().manual_seed(10 + rank.rank)
    for _ in range(4):
        model.zero_grad()
        inputs, labels = torch.randn(8, 20, generator=own), torch.randint(3, (8,), generator=own)
        torch.nn.functional.cross_entropy(parallel(inputs), labels).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
    return [p.detach() for p in model.parameters()] + [p.grad for p in model.parameters()]


def test_training_gives_what_it_gives_over_gloo() -> None:
    import torch._dynamo  # here, once, and not in each rank: DDP imports it

    trained = {}
    for backend in ("gloo", "shmcoll"):
        with Hosts(2) as hosts:
            trained[backend] = Job(hosts, [0, 0, 0, 1], backend).run(train)
    ours, theirs = trained["shmcoll"], trained["gloo"]
    for number in range(1, 4):
        assert all(torch.equal(a, b) for a, b in zip(ours[0], ours[number]))
    for mine, its in zip(ours[0], theirs[0]):
        assert torch.allclose(mine, its, atol=1e-6), (mine - its).abs().max()


# ---- failures ----


def sum_on(rank: Rank, timeout_s: float, count: int) -> tuple[str, str, float]:
    """Sums until an error: its type, its text, and when it came by the machine's clock."""
    rank.init(timeout_s=timeout_s)
    t = torch.zeros(count)
    try:
        for number in range(10**9):
            dist.all_reduce(t)
            if number % 20 == 10:
                print("under way", flush=True)
    except BaseException as error:
        return type(error).__name__, str(error), time.time()
    return "", "", 0.0


def progress(job: Job) -> list[int]:
    return [process.output().count("under way") for process in job.processes]


def summing(hosts: Hosts, timeout_s: float, count: int = 1000) -> Job:
    job = Job(hosts, LAYOUTS["2x2"], "shmcoll").start(sum_on, timeout_s, count)
    try:
        wait_for(lambda: min(progress(job)) > 0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.stacks()}") from None
    return job


def survivors(job: Job, dead: list[int], limit_s: float = IN_TIME_S) -> dict[int, str]:
    """What the others said, each of which has raised and ended with 0."""
    said = {}
    for outcome in job.outcomes(limit_s):
        if outcome.rank in dead:
            assert outcome.exit == -signal.SIGKILL, outcome
        else:
            assert outcome.ok and outcome.value[0], ranks.describe(outcome)
            said[outcome.rank] = f"{outcome.value[0]}: {outcome.value[1]}"
    return said


KILLED = [(victim, count) for victim in range(4) for count in (1000, BIG)]


@pytest.mark.parametrize("victim,count", cases(*KILLED, short={(1, BIG), (2, 1000)}))
def test_a_killed_rank_fails_all_others(victim: int, count: int) -> None:
    """All others name its host, its rank and its pid, also on the other host."""
    with Hosts(2) as hosts:
        job = summing(hosts, 10.0, count)
        pid = job.processes[victim].pid
        job.processes[victim].signal(signal.SIGKILL)
        said = survivors(job, [victim])
        named = re.compile(rf"host {victim // 2} .*rank {victim} .*pid {pid}\) died.*in all_reduce")
        assert all(named.search(text) for text in said.values()), said
        for host in range(2):
            assert leftovers(hosts, host) == []


def receive_on(rank: Rank, timeout_s: float) -> tuple[str, str, float]:
    """All others wait for a message of rank 2, which never uses messages: as sum_on()."""
    rank.init(timeout_s=timeout_s)
    dist.barrier()
    print("under way", flush=True)
    try:
        if rank.rank == 2:
            time.sleep(10**6)
        dist.recv(torch.zeros(1), 2)
    except BaseException as error:
        return type(error).__name__, str(error), time.time()
    return "", "", 0.0


def receiving(hosts: Hosts, timeout_s: float) -> Job:
    job = Job(hosts, [0, 0, 1], "shmcoll").start(receive_on, timeout_s)
    wait_for(lambda: min(progress(job)) > 0)
    return job


def test_a_rank_killed_alone_on_its_host_fails_those_who_wait_for_its_message() -> None:
    """It has sent nothing, nobody is in a call, and no rank of its host is left."""
    with Hosts(2) as hosts:
        job = receiving(hosts, 10 * IN_TIME_S)
        job.processes[2].signal(signal.SIGKILL)
        said = survivors(job, [2])
        assert all(re.search(r"host 1 \(rank 2\): rank 2 has died", t) for t in said.values()), said
        assert leftovers(hosts, 0) == []


LOST = [(host, how) for host in (0, 1) for how in ("kill", "power_off")]


@pytest.mark.parametrize("host,how", cases(*LOST, short={(0, "kill"), (1, "power_off")}))
def test_a_lost_host_fails_all_ranks_of_the_other(host: int, how: str) -> None:
    """Host 0 has the store, too. Its ranks have told nobody: all name the host, and none a rank that died."""
    with Hosts(2) as hosts:
        job = summing(hosts, 5.0)
        getattr(hosts, how)(host)
        lost = [rank for rank, on in enumerate(job.layout) if on == host]
        said = survivors(job, lost)
        assert len(said) == 2
        lost_host = rf"host {host} \(.*has died|(joins|waiting for) .*host {host}"
        assert all(re.search(lost_host, text) for text in said.values()), said
        assert leftovers(hosts, 1 - host) == []


def test_a_dead_link_fails_all_ranks_at_the_deadline() -> None:
    with Hosts(2) as hosts:
        job = summing(hosts, 3.0)
        hosts.link_down(1)
        said = survivors(job, [])
        assert len(said) == 4 and all(re.search("(?i)timed out", text) for text in said.values()), (
            said
        )
        assert leftovers(hosts, 0) == leftovers(hosts, 1) == []


def test_a_stopped_host_is_waited_for() -> None:
    with Hosts(2) as hosts:
        job = summing(hosts, 30.0)
        hosts.stop(1)
        before = max(progress(job)) + 1
        time.sleep(0.5)
        assert max(progress(job)) <= before
        hosts.cont(1)
        wait_for(lambda: min(progress(job)) > before)
        hosts.kill(1)
        assert len(survivors(job, [2, 3])) == 2


@pytest.mark.long
def test_a_host_that_is_stopped_for_too_long_fails_all() -> None:
    with Hosts(2) as hosts:
        job = summing(hosts, 3.0)
        hosts.stop(1)
        for process in job.processes[:2]:
            assert process.wait(IN_TIME_S) == 0
        hosts.cont(1)
        assert len(survivors(job, [])) == 4


def test_the_end_of_the_store_fails_all_and_is_named() -> None:
    """The process of the store is the launcher's. Without it no host can tell another why it has failed, so the second
    host may learn only that its connections to the first one have ended."""
    with Hosts(2) as hosts:
        job = summing(hosts, 5.0)
        job.store.signal(signal.SIGKILL)
        said = survivors(job, [])
        gone, closed = "the store of .* is gone", "the engine between the hosts of .* failed"
        assert any(re.search(gone, text) for text in said.values()), said
        assert all(re.search(f"{gone}|{closed}", text) for text in said.values()), said
        for host in range(2):
            assert leftovers(hosts, host) == []


def come_late(rank: Rank) -> str:
    """Only three ranks make the group."""
    if rank.rank == 3:
        rank.store()
        return ""
    try:
        rank.init(timeout_s=4.0)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_that_never_comes_is_an_error_of_all_others() -> None:
    with Hosts(2) as hosts:
        said = Job(hosts, LAYOUTS["2x2"], "shmcoll").run(come_late, limit_s=IN_TIME_S)
    assert said[3] == "" and all("rank 3" in text for text in said[:3]), said


def test_an_interface_that_is_not_there_is_an_error_of_all() -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll", env_of={1: {"GLOO_SOCKET_IFNAME": "eth7"}})
        ended = job.start(first_sum).outcomes(IN_TIME_S)
    for outcome in ended:
        assert outcome.error and "cannot make the engine gloo" in outcome.text, ranks.describe(
            outcome
        )
        assert "eth7" in outcome.text, outcome.text


def differ(rank: Rank, what: str) -> str:
    rank.init(timeout_s=10.0)
    dist.barrier()
    try:
        if what == "size":
            dist.all_reduce(torch.ones(1000 if rank.host else BIG))
        elif what == "operation" and rank.host:
            dist.broadcast(torch.ones(1000), 0)
        elif what == "operation":
            dist.all_reduce(torch.ones(1000))
        else:
            dist.all_reduce(torch.ones(1000, dtype=torch.int32 if rank.host else torch.float32))
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", ["size", "operation", "dtype"])
def test_hosts_that_call_different_things_are_all_told(what: str) -> None:
    with Hosts(2) as hosts:
        said = Job(hosts, LAYOUTS["2x2"], "shmcoll").run(differ, what, limit_s=IN_TIME_S)
    assert all("differ" in text for text in said), said


def wait_for_host_1(rank: Rank) -> float:
    """Host 1 does not come. Rank 0 is interrupted; returns for how long it waited after that."""
    rank.init(timeout_s=30.0)
    dist.barrier()
    if rank.host == 1:
        time.sleep(3)
        return 0.0
    print("under way", flush=True)
    try:
        dist.all_reduce(torch.ones(1000))
    except (KeyboardInterrupt, RuntimeError) as error:
        return time.time() if rank.rank == 0 and isinstance(error, KeyboardInterrupt) else 1.0
    return 0.0


def test_an_interrupt_ends_a_wait_for_another_host() -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll").start(wait_for_host_1)
        wait_for(lambda: min(progress(job)[:2]) > 0)
        time.sleep(0.3)  # into the wait; earlier is no error, and no test of it
        began = time.time()
        job.processes[0].signal(signal.SIGINT)
        ended = job.outcomes(IN_TIME_S)
        assert [outcome.error for outcome in ended] == [""] * 4, list(map(ranks.describe, ended))
        assert 0 <= ended[0].value - began < 2, "rank 0 waited on"
        assert ended[1].value == 1.0, "its mate knows nothing of it"


def make_groups(rank: Rank, count: int) -> list[tuple[int, int]]:
    """Threads and descriptors after some groups, and after many. Nothing waits for Python's collector."""
    gc.disable()
    rank.init()
    seen = []
    for number in range(count):
        group = dist.new_group()
        t = torch.ones(BIG)
        dist.all_reduce(t, group=group)
        assert (t == rank.world).all()
        exchange_messages(rank.rank, rank.world, group)
        dist.destroy_process_group(group)
        dist.barrier()
        if number in (count // 3, count - 1):
            time.sleep(0.5)
            seen.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    return seen


@pytest.mark.long
def test_groups_leave_no_threads_and_no_descriptors() -> None:
    with Hosts(2) as hosts:
        for early, late in Job(hosts, LAYOUTS["2x2"], "shmcoll").run(make_groups, 30):
            assert late[0] <= early[0] + 2 and late[1] <= early[1] + 4, (early, late)


def make_one(rank: Rank) -> str:
    print("here", flush=True)
    try:
        rank.init(timeout_s=8.0)
        dist.barrier()
    except RuntimeError as error:
        return str(error)
    return "made"


@pytest.mark.long
@pytest.mark.parametrize("number", range(12))
def test_a_death_in_the_making_is_an_error_of_all_in_time(number: int) -> None:
    """The group's time-out may be what finds it; it is not always named yet."""
    with Hosts(2) as hosts:
        job = Job(hosts, LAYOUTS["2x2"], "shmcoll").start(make_one)
        victim = job.processes[number % 4]
        wait_for(lambda: all("here" in process.output() for process in job.processes))
        time.sleep(number * 0.02)
        with contextlib.suppress(ProcessLookupError):  # it was done
            victim.signal(signal.SIGKILL)
        for outcome in job.outcomes(IN_TIME_S):
            assert outcome.ok or outcome.rank == number % 4, ranks.describe(outcome)


# ---- whole programs ----

PROGRAM = """
import os, sys, torch, torch.distributed as dist, datetime
dist.init_process_group("shmcoll", timeout=datetime.timedelta(seconds=20))
t = torch.ones(100000)
for _ in range(3):
    dist.all_reduce(t)
print(t[0].item(), flush=True)
if sys.argv[1] == "raise" and os.environ["RANK"] == "1":
    raise KeyError("planned")
if sys.argv[1] == "raise":
    dist.barrier()
if sys.argv[1] == "destroy":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("end", cases(("leave",), ("raise",), ("destroy",), short={("raise",)}))
def test_programs_end_with_the_right_code(end: str) -> None:
    """With a store in rank 0, by name, as torchrun without an agent's store has it."""
    with Hosts(2) as hosts:
        processes = []
        for rank in range(2):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "host-0"}
            env |= {"MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "eth0"}
            processes.append(hosts.run(rank, [sys.executable, "-c", PROGRAM, end], env))
        codes = [process.wait(90) for process in processes]
        shown = [process.output() for process in processes]
        assert codes == ([1, 1] if end == "raise" else [0, 0]), shown
        assert all("8.0" in text.splitlines() for text in shown), shown
        assert end != "raise" or "planned" in shown[1], shown
        for host in range(2):
            assert leftovers(hosts, host) == []


LEAVER = """
import datetime, os, time, torch, torch.distributed as dist
dist.init_process_group("shmcoll", timeout=datetime.timedelta(seconds=60))
again = dist.new_group(timeout=datetime.timedelta(seconds=60))
t = torch.ones(3)
dist.all_reduce(t)
dist.all_reduce(t, group=again)
if os.environ["RANK"] == "0":
    begun = time.monotonic()
    for call in (lambda: dist.recv(t, 1), lambda: dist.all_reduce(t, group=again)):
        try:
            call()
        except RuntimeError as error:
            print("told:", str(error).splitlines()[0], flush=True)
    print("in time" if time.monotonic() - begun < 50 else "late", flush=True)
"""


def test_a_process_that_ends_without_more_is_told_of_before_the_time_out() -> None:
    """It has closed nothing, sent nothing, and nobody else is on its host."""
    with Hosts(2) as hosts:
        processes = []
        for rank in range(2):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "host-0"}
            env |= {"MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "eth0"}
            processes.append(hosts.run(rank, [sys.executable, "-c", LEAVER], env))
        codes = [process.wait(90) for process in processes]
        said, silent = (process.output() for process in processes)
    assert codes == [0, 0] and "in time" in said, said + silent
    told = re.findall("told: (.*)", said)
    # Its goodbye waits 100 ms for the store. On a busy machine the end of its connections may come first.
    ends = ("rank 1 (host 1) has left the group", "rank 1 has died, or its connection")
    assert any(end in told[0] for end in ends), said
    assert re.search(r"host 1 \(rank 1\) has left the group|joins .*rank 1 \(host 1\)", told[1]), (
        said
    )
    assert "Exception" not in silent and "Error" not in silent, silent
