# SPDX-License-Identifier: BSD-3-Clause
"""SHMCOLL_FOR_GLOO and use_for_gloo(): what asks for gloo meets what it expects.

The same probes run with torch's gloo and with the switch. The fall-back of ranks that share no memory is in
tests/proc/test_segment.py, torch's own tests under the switch in tests/torch_suite.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import _shmcoll_autoload
import ranks
import shmcoll
from ranks import Rank, seconds

CPU = torch.device("cpu")
WORLD = 4

Probe = Callable[[Rank], Any]
PROBES: dict[str, Probe] = {}


def probe(function: Probe) -> Probe:
    PROBES[function.__name__] = function
    return function


def backend_of(group: Any = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(CPU)


def summed(group: Any = None) -> list[float]:
    t = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(t, group=group)
    return t.tolist()


def by_hand(rank: Rank, name: str, *more: Any, **named: Any) -> Any:
    store = dist.PrefixStore(name, rank.store)
    return dist.ProcessGroupGloo(store, rank.rank, rank.world, *more, **named)


# ---- the name and the type ----


@probe
def the_names_of_the_default_group(rank: Rank) -> Any:
    group: Any = dist.group.WORLD
    return (
        dist.get_backend(),
        dist.get_backend_config(),
        group.name(),
        group._get_backend_name(),
        backend_of().name(),
        sorted(device.type for device in group._device_types),
    )


@probe
def the_type_of_a_backend(rank: Rank) -> Any:
    gloo = dist.ProcessGroupGloo
    return (
        isinstance(backend_of(), gloo),
        isinstance(backend_of(), dist.distributed_c10d.ProcessGroupGloo),
        isinstance(dist.group.WORLD, gloo),
        isinstance(3, gloo),
        gloo.__module__,
        gloo.__name__,
    )


@probe
def the_class_is_pickled_by_its_name(rank: Rank) -> Any:
    gloo = dist.ProcessGroupGloo
    return pickle.loads(pickle.dumps(gloo)) is gloo and copy.deepcopy(gloo) is gloo


@probe
def options_know_the_group(rank: Rank) -> Any:
    group = dist.new_group([1, 3])
    if rank.rank not in (1, 3):
        return None
    options = backend_of(group).options
    return options.group_name, options.global_ranks_in_group, options.backend, options._timeout


@probe
def a_name_written_into_the_options_stays(rank: Rank) -> Any:
    made = by_hand(rank, "renamed", seconds(20))
    made.options.group_name = "another"
    made.options.global_ranks_in_group = [4, 5, 6, 7]
    rank.sync()  # gloo fails where a rank drops its group while another one still connects
    return made.options.group_name, made.options.global_ranks_in_group


# ---- groups made in other ways ----


@probe
def groups_by_hand(rank: Rank) -> Any:
    sums = []
    for name, more, named in (
        ("positional", (seconds(20),), {}),
        ("by_name", (), {"timeout": seconds(20)}),
        ("default", (), {}),
    ):
        made = by_hand(rank, name, *more, **named)
        t = torch.full((2,), float(rank.rank))
        made.allreduce([t]).wait()
        sums.append((t.tolist(), isinstance(made, dist.ProcessGroupGloo), made.name()))
        sums.append((made.rank(), made.size()))
    return sums


@probe
def a_group_by_hand_is_gloo_to_object_collectives(rank: Rank) -> Any:
    from torch.distributed.distributed_c10d import _get_object_coll_device

    return _get_object_coll_device(by_hand(rank, "objects", seconds(20)))


@probe
def a_group_with_devices_is_real(rank: Rank) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface="lo")]
    options._timeout = seconds(20)
    made = by_hand(rank, "devices", options)
    t = torch.ones(2)
    made.allreduce([t]).wait()
    return t.tolist(), type(made).__name__, len(made.options._devices)


@probe
def a_subclass_is_real(rank: Rank) -> Any:
    class Mine(dist.ProcessGroupGloo):  # type: ignore[misc]
        def allreduce(self, *arguments: Any) -> str:
            return "mine"

    made = Mine(dist.PrefixStore("mine", rank.store), rank.rank, rank.world, seconds(20))
    rank.sync()  # or one that is gone breaks gloo's connections to those that still make theirs
    return made.allreduce(), isinstance(made, Mine), isinstance(backend_of(), Mine)


@probe
def wrong_arguments(rank: Rank) -> Any:
    said = []
    for arguments in ((), (rank.store, 0, 1, "soon"), (rank.store, 0, 1, seconds(1), 5)):
        try:
            dist.ProcessGroupGloo(*arguments)  # type: ignore[call-arg]
        except TypeError as error:
            said.append(str(error).splitlines()[0])
    return said


@probe
def groups_of_some_ranks(rank: Rank) -> Any:
    group = dist.new_group([0, 2], backend="gloo")
    other = dist.new_group([1, 3])
    mine = group if rank.rank % 2 == 0 else other
    return summed(mine), dist.get_backend(mine), isinstance(backend_of(mine), dist.ProcessGroupGloo)


@probe
def a_device_mesh(rank: Rank) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    return summed(mesh.get_group("a")), summed(mesh.get_group("b"))


@probe
def one_backend_for_each_device(rank: Rank) -> Any:
    group = dist.new_group(backend="cpu:gloo")
    return summed(group), dist.get_backend_config(group)


@probe
def the_newer_interface(rank: Rank) -> Any:
    try:
        from torch.distributed import _dist2
    except ImportError:  # torch 2.15 has it no more
        return None
    factory: Any = _dist2._BACKENDS["gloo"]
    store = dist.PrefixStore("dist2", rank.store)
    group = factory(store, rank.rank, rank.world, seconds(20), CPU)
    t = torch.full((2,), 2.0)
    group.allreduce(t).wait()
    return t.tolist(), group.name()


# ---- what a group does ----


@probe
def collectives(rank: Rank) -> Any:
    mine = torch.arange(4.0) + rank.rank
    every = [torch.zeros(4) for _ in range(WORLD)]
    dist.all_gather(every, mine)
    block = torch.zeros(1)
    dist.reduce_scatter_tensor(block, mine.clone())
    dist.broadcast(mine, 2)
    whole: list[Any] = [None] * WORLD
    dist.all_gather_object(whole, {"rank": rank.rank})
    work = dist.all_reduce(block, dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()
    return [t.tolist() for t in (mine, block, *every)], whole


@probe
def messages(rank: Rank) -> Any:
    got = torch.zeros(2)
    right, left = (rank.rank + 1) % WORLD, (rank.rank - 1) % WORLD
    sent = dist.isend(torch.full((2,), float(rank.rank)), right)
    source = dist.recv(got)  # from any rank
    assert sent is not None
    sent.wait()
    return source == left, got.tolist()


@probe
def the_barrier_that_names_ranks(rank: Rank) -> Any:
    dist.monitored_barrier(timeout=seconds(20), wait_all_ranks=True)
    dist.group.WORLD.monitored_barrier(seconds(20))  # type: ignore[union-attr]
    return True


@probe
def the_barrier_that_names_who_is_missing(rank: Rank) -> Any:
    group = dist.new_group()
    if rank.rank in (1, 2):
        return None
    with pytest.raises(RuntimeError) as error:
        dist.monitored_barrier(group, seconds(0.3), wait_all_ranks=True)
    words = ("Ranks 1, 2 failed to pass monitoredBarrier", "Rank 3 successfully reached monitored")
    return [word in str(error.value) for word in words]


@probe
def time_outs_can_be_changed(rank: Rank) -> Any:
    group = dist.new_group()
    before = backend_of(group).options._timeout
    dist.distributed_c10d._set_pg_timeout(seconds(7), group)
    after = backend_of(group).options._timeout
    backend_of(group)._set_default_timeout(seconds(8))
    return before, after, backend_of(group).options._timeout


@probe
def the_sequence_number(rank: Rank) -> Any:
    group = dist.new_group()
    backend_of(group)._set_sequence_number_for_group()
    before = backend_of(group)._get_sequence_number_for_group()
    summed(group)
    return backend_of(group)._get_sequence_number_for_group() - before


@probe
def the_names_in_a_profile(rank: Rank) -> Any:
    with torch.autograd.profiler.profile() as profile:
        summed()
        dist.barrier()
    names = {event.name for event in profile.function_events}
    return sorted(name for name in names if name.startswith(("gloo:", "shmcoll:")))


@probe
def a_group_again_on_the_same_store(rank: Rank) -> Any:
    store = dist.PrefixStore("again", rank.store)
    dist.destroy_process_group()
    sums = []
    for turn in range(2):
        rank.init("gloo", store=dist.PrefixStore(str(turn), store))
        sums.append(summed())
        dist.destroy_process_group()
    rank.init("gloo", store=dist.PrefixStore("last", store))
    return sums


@probe
def the_log_of_a_model(rank: Rank) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    log = model._get_ddp_logging_data()
    return log["backend_name"], log["gloo_num_threads"], log["gloo_device_transport"]


def run_probes(env: dict[str, str], switch: bool) -> tuple[list[dict[str, Any]], int]:
    """What each rank saw, and how many backends were shmcoll's."""

    def body(rank: Rank) -> tuple[dict[str, Any], int]:
        if switch:
            shmcoll.use_for_gloo()
        made = []
        real_make = shmcoll._backend.make
        shmcoll._backend.make = lambda *some: made.append(some) or real_make(*some)  # type: ignore
        rank.init("gloo")
        found = {}
        for name, function in PROBES.items():
            found[name] = function(rank)
        return found, len(made)

    ended = ranks.run(WORLD, body, env=env)
    return [found for found, _ in ended], ended[0][1]


@pytest.fixture(scope="module")
def real() -> list[dict[str, Any]]:
    try:
        found, ours = run_probes({}, False)
    except ranks.Hang:  # seen once, with nothing of shmcoll's in it
        found, ours = run_probes({}, False)
    assert ours == 0
    return found


def test_probes_see_the_same_with_the_switch(real: list[dict[str, Any]]) -> None:
    found, ours = run_probes({}, True)
    assert ours >= 15
    assert len(real[0]) >= 20
    for rank in range(WORLD):
        differing = {name for name in PROBES if found[rank][name] != real[rank][name]}
        assert not differing, [(found[rank][name], real[rank][name]) for name in differing]


# ---- which groups get what ----


def test_a_line_says_what_each_group_got() -> None:
    def body(rank: Rank) -> None:
        shmcoll.use_for_gloo()
        rank.init("gloo")
        for members in ([0, 1], [1]):
            dist.new_group(members)
        assert shmcoll.describe()["world_size"] == 2

    def lines(**env: str) -> list[list[str]]:
        ended = ranks.outcomes(2, body, env=env)
        assert all(one.ok for one in ended), [ranks.describe(one) for one in ended]
        return [[line for line in one.output.splitlines() if "for gloo" in line] for one in ended]

    first = 'group "0" asked for gloo; its 2 ranks get shmcoll'
    assert [len(found) for found in lines(SHMCOLL_LOG="off")] == [0, 0]
    told = lines()
    assert len(told[0]) == 1 and told[0][0].endswith(f"warn: {first}"), told
    assert not told[1]
    told = lines(SHMCOLL_LOG="info")
    assert [len(found) for found in told] == [2, 3], told
    assert told[1][0].endswith(f"info: {first}"), told


def test_groups_made_before_the_switch_stay_what_they_are() -> None:
    def body(rank: Rank) -> Any:
        rank.init("gloo")
        before = dist.new_group()
        shmcoll.use_for_gloo()
        chosen = dist.ProcessGroupGloo
        shmcoll.use_for_gloo()
        assert dist.ProcessGroupGloo is chosen
        after = dist.new_group()
        with pytest.raises(ValueError, match="backend is gloo; nothing of shmcoll"):
            shmcoll.describe(before)
        assert isinstance(backend_of(before), dist.ProcessGroupGloo)
        ours = shmcoll.describe(after)["world_size"]
        # A second making on the same store: gloo's keys of the first are still there.
        dist.destroy_process_group()
        rank.init("gloo")
        return ours, shmcoll.describe()["world_size"], summed()

    assert ranks.run(2, body) == [(2, 2, [3.0] * 3)] * 2


def test_more_ranks_than_shmcoll_takes_get_real_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: Rank) -> str:
        shmcoll.use_for_gloo()
        shmcoll._for_gloo._most_ranks = lambda: 1
        rank.init("gloo")
        assert summed() == [3.0] * 3
        return type(backend_of()).__name__

    assert ranks.run(2, body) == ["ProcessGroupGloo"] * 2


def test_a_rank_that_cannot_load_shmcoll_takes_all_to_real_gloo() -> None:
    def body(rank: Rank) -> Any:
        shmcoll.use_for_gloo()
        if rank.rank == 1:
            del shmcoll._glue.Options._for_gloo
        rank.init("gloo")
        return summed(), type(backend_of()).__name__

    ended = ranks.outcomes(3, body)
    assert [one.value for one in ended] == [([6.0] * 3, "ProcessGroupGloo")] * 3
    assert "get real gloo, because rank 0 of" in ended[0].output
    assert "rank 1 cannot load shmcoll" in ended[0].output


@pytest.mark.parametrize("outsiders", [(0,), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("late", ["switch", "outsiders"])
def test_a_mixed_setting_is_told_to_all_ranks(outsiders: tuple[int, ...], late: str) -> None:
    def body(rank: Rank) -> tuple[str, float]:
        inside = rank.rank not in outsiders
        if inside:
            shmcoll.use_for_gloo()
        if inside == (late == "switch"):
            time.sleep(0.4)
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as error:
            rank.init("gloo", timeout=seconds(50))
        return str(error.value), time.monotonic() - begun

    for rank, (said, took) in enumerate(ranks.run(3, body)):
        assert took < 5, (rank, took, said)
        if rank not in outsiders:
            assert f"rank {outsiders[0]} makes the group" in said or "without shmcoll" in said, said
            assert "SHMCOLL_FOR_GLOO" in said and "on all ranks or on none" in said, said


def test_a_rank_that_died_in_one_group_is_not_waited_for_in_the_next() -> None:
    """The groups have different ranks, so this needs the ranks of the job."""

    def body(rank: Rank) -> str:
        shmcoll.use_for_gloo()
        rank.init("gloo")
        if rank.rank == 2:
            os._exit(3)
        time.sleep(0.3)
        with pytest.raises(RuntimeError) as error:
            dist.new_group([1, 2] if rank.rank == 1 else [0, 2])
        return str(error.value)

    ended = ranks.outcomes(3, body)
    for one in ended[:2]:
        assert "rank 2 (pid" in one.value and "has died or ended" in one.value, one


# ---- how it is switched on ----

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(2)
dist.all_reduce(t)
import shmcoll
line = f'{t.tolist()} {shmcoll.describe()["world_size"]}\\n'
print(line, end="", flush=True)  # one write: torchrun starts Python with -u
dist.destroy_process_group()
"""


def alone(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.long
def test_the_variable_switches_it_on_under_torchrun(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(script)],
        env={**os.environ, "SHMCOLL_FOR_GLOO": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2.0, 2.0] 2\n" * 2


def test_values_of_the_variable() -> None:
    def body(rank: Rank) -> list[tuple[str, str]]:
        found = []
        complaints: list[str] = []
        _shmcoll_autoload._complain = complaints.append
        for value in ("", "0", "yes", "1"):
            os.environ["SHMCOLL_FOR_GLOO"] = value
            _shmcoll_autoload.autoload()
            found.append((type(dist.ProcessGroupGloo).__name__, " ".join(complaints)))
            complaints.clear()
        return found

    off = "pybind11_type"
    wrong = "SHMCOLL_FOR_GLOO=yes is not one of 0|1|hosts; ignored"
    assert ranks.run(1, body) == [[(off, ""), (off, ""), (off, wrong), ("_Chooser", "")]]


def test_what_cannot_work_breaks_no_import_of_torch() -> None:
    def body(rank: Rank) -> None:
        sys.modules["shmcoll._for_gloo"] = None  # type: ignore[assignment]
        os.environ["SHMCOLL_FOR_GLOO"] = "1"
        _shmcoll_autoload.autoload()
        rank.init("gloo")
        assert type(backend_of()).__name__ == "ProcessGroupGloo"

    (ended,) = ranks.outcomes(1, body)
    assert ended.ok, ranks.describe(ended)
    assert ended.output.startswith("shmcoll: SHMCOLL_FOR_GLOO=1 has no effect: "), ended.output


def test_a_wrong_value_is_named_once_and_shmcoll_may_come_before_torch() -> None:
    script = """
import os, shmcoll
os.environ["SHMCOLL_FOR_GLOO"] = "1"
import torch, torch.distributed as dist, _shmcoll_autoload
print(type(dist.ProcessGroupGloo).__name__)
os.environ["SHMCOLL_FOR_GLOO"] = "yes"
_shmcoll_autoload.autoload()
_shmcoll_autoload.register_now_or_later()
"""
    done = alone(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout == "_Chooser\n", done.stderr
    assert done.stderr == "shmcoll: SHMCOLL_FOR_GLOO=yes is not one of 0|1|hosts; ignored\n"


def test_without_torch_or_gloo_it_says_so() -> None:
    def without(name: str) -> str:
        def body(rank: Rank) -> str:
            sys.modules["torch"] = None if name == "torch" else torch  # type: ignore[assignment]
            dist.is_gloo_available = lambda: name != "gloo"
            dist.is_available = lambda: name != "distributed"
            with pytest.raises(ImportError) as error:
                shmcoll.use_for_gloo()
            return str(error.value)

        return str(ranks.run(1, body)[0])

    assert "use_for_gloo() needs torch" in without("torch")
    assert "needs a torch with gloo" in without("gloo")
    assert "needs a torch with torch.distributed" in without("distributed")


def test_the_debug_level_that_wraps_groups() -> None:
    def body(rank: Rank) -> Any:
        shmcoll.use_for_gloo()
        rank.init("gloo")
        backend = backend_of()
        assert not isinstance(backend, dist.ProcessGroupGloo)
        assert isinstance(backend.wrapped_pg, dist.ProcessGroupGloo)
        return summed(), shmcoll.describe()["world_size"]

    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}

    def with_level(rank: Rank) -> Any:
        dist.set_debug_level_from_env()
        return body(rank)

    assert ranks.run(2, with_level, env=env) == [([3.0] * 3, 2)] * 2
