# SPDX-License-Identifier: BSD-3-Clause
"""Direct calls: they give what torch.distributed gives, also its errors; in a compiled graph, too."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

import glues
import shmcoll
from ranks import Rank, describe, outcomes, run, seconds

Op = dist.ReduceOp


def calls_of(group: Any = None, comm: Any = None) -> Any:
    """The six calls: of a bound object, or of the module with that group."""
    if comm is not None:
        return comm

    class Module:
        all_reduce = staticmethod(lambda t, op=Op.SUM: shmcoll.all_reduce(t, op, group))
        broadcast = staticmethod(lambda t, src: shmcoll.broadcast(t, src, group))
        all_gather_into = staticmethod(lambda o, i: shmcoll.all_gather_into(o, i, group))
        reduce_scatter_into = staticmethod(
            lambda o, i, op=Op.SUM: shmcoll.reduce_scatter_into(o, i, op=op, group=group)
        )
        all_to_all = staticmethod(lambda o, i: shmcoll.all_to_all(o, i, group))
        barrier = staticmethod(lambda: shmcoll.barrier(group))

    return Module


def torchs(group: Any = None) -> Any:
    """The same calls of torch.distributed."""

    class Torch:
        all_reduce = staticmethod(lambda t, op=Op.SUM: dist.all_reduce(t, op, group))
        broadcast = staticmethod(lambda t, src: dist.broadcast(t, src, group))
        all_gather_into = staticmethod(lambda o, i: dist.all_gather_into_tensor(o, i, group))
        reduce_scatter_into = staticmethod(
            lambda o, i, op=Op.SUM: dist.reduce_scatter_tensor(o, i, op, group)
        )
        all_to_all = staticmethod(lambda o, i: dist.all_to_all_single(o, i, group=group))
        barrier = staticmethod(lambda: dist.barrier(group))

    return Torch


def everything(calls: Any, rank: int, world: int, root: int = 0) -> list[torch.Tensor]:
    """The results of all calls, of some sizes, types, reductions and layouts."""
    found = []
    for count in (0, 1, 5, 2000, 70_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            mine = (torch.arange(count * world) % 7 + rank).to(dtype).reshape(world, count)
            for op in (Op.SUM, Op.SUM if dtype.is_complex else Op.PRODUCT):
                t = mine[0].clone()
                calls.all_reduce(t, op)
                out = torch.empty_like(mine[0])
                calls.reduce_scatter_into(out, mine.clone(), op)
                found += [t, out]
            sent = mine[0].clone()
            calls.broadcast(sent, root)
            rows = torch.empty_like(mine)
            calls.all_gather_into(rows, mine[0].clone())
            swapped = torch.empty_like(mine)
            calls.all_to_all(swapped, mine.clone())
            found += [sent, rows, swapped]
    wide = torch.arange(60.0).reshape(6, 10) * (rank + 1)
    calls.all_reduce(wide.t()[2:7], Op.MAX)
    calls.all_reduce(wide, op=Op.AVG)
    strided = torch.zeros(2 * world, 3)
    calls.all_to_all(strided[::2], torch.full((3, world), float(rank)).t())
    calls.barrier()
    return [*found, wide, strided]


def compare(rank: Rank, group: Any = None, root: int = 0) -> None:
    me, world = dist.get_rank(group), dist.get_world_size(group)
    want = everything(torchs(group), me, world, root)
    for calls in (calls_of(group), shmcoll.direct(group)):
        found = everything(calls, me, world, root)
        assert len(found) == len(want)
        assert all(torch.equal(a, b) for a, b in zip(found, want))


def test_direct_calls_give_what_torch_gives() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        compare(rank)
        comm = shmcoll.direct()
        assert shmcoll.direct(dist.group.WORLD) is comm
        if rank.world == 1:
            return
        part = dist.new_group([1, 2], timeout=seconds(20))
        if rank.rank in (1, 2):
            compare(rank, part, root=2)  # a rank of the job, in a group that numbers it 1
        else:
            t = torch.full((3,), 7.0)
            for call in (
                shmcoll.direct(part).all_reduce,
                lambda t: shmcoll.all_reduce(t, group=part),
            ):
                with pytest.warns(UserWarning, match="default group|not in|does not belong"):
                    call(t)
            assert t.tolist() == [7.0] * 3

    run(3, body)
    run(1, body)


@pytest.mark.parametrize(
    ("backend", "env"),
    [
        ("gloo", {}),
        ("cpu:shmcoll,cuda:gloo", {}),
        ("shmcoll", {"SHMCOLL_FAKE_HOSTS": "2x1", "GLOO_SOCKET_IFNAME": "lo"}),
        ("shmcoll", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
        ("shmcoll", {"SHMCOLL_GLUE": "python"}),
    ],
    ids=["gloo", "mixed", "two hosts", "torch's checks", "glue in Python"],
)
def test_they_fall_back_where_there_is_no_direct_form(backend: str, env: dict[str, str]) -> None:
    def body(rank: Rank) -> list[bool]:
        if "SHMCOLL_GLUE" in env:
            glues.use_python()
        if "TORCH_DISTRIBUTED_DEBUG" in env:
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        rank.init(backend)
        if backend == "gloo":
            for calls in (calls_of(), shmcoll.direct()):
                t = torch.full((3,), rank.rank + 1.0)
                calls.all_reduce(t)
                calls.broadcast(t[1:], 1)
                calls.barrier()
                assert t.tolist() == [3.0] * 3
        else:
            compare(rank)
        comm = shmcoll.direct()
        return [comm._all_reduce(torch.zeros(1), Op.SUM), comm._barrier()]

    at_once = [backend != "gloo" and "TORCH_DISTRIBUTED_DEBUG" not in env]
    assert run(2, body, env=env) == [at_once + [at_once[0] and "cuda" not in backend]] * 2


class Wrapped(torch.Tensor):
    pass


def unusual() -> dict[str, torch.Tensor]:
    """Tensors with which torch.distributed does more than to call the backend."""
    with FakeTensorMode():
        fake = torch.ones(4)
    return {
        "gradient": torch.ones(4, requires_grad=True),
        "complex": torch.ones(4, dtype=torch.complex64),
        "meta": torch.ones(4, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "subclass": torch.ones(4).as_subclass(Wrapped),
        "fake": fake,
        "conjugate": torch.ones(4, dtype=torch.complex64).conj(),
        "negative": torch.full((3,), 1 + 2j).conj().imag,
    }


def test_only_plain_tensors_skip_the_dispatcher() -> None:
    def body(rank: Rank) -> dict[str, bool]:
        rank.init()
        comm = shmcoll.direct()
        if rank.rank == 0:
            for name, tensor in unusual().items():
                assert not comm._all_reduce(tensor, Op.SUM), name
                assert not comm._broadcast(tensor, 0), name
                for pair in ((tensor, torch.ones(2)), (torch.ones(8), tensor)):
                    assert not comm._all_gather_into(*pair), name
                    assert not comm._all_to_all(*pair), name
                    assert not comm._reduce_scatter_into(*pair, Op.SUM), name
            with FakeTensorMode():
                assert not comm._all_reduce(tensor, Op.SUM)
            for op in (None, 3, "sum"):
                assert not comm._all_reduce(torch.ones(4), op)
            for src in (2, -1, 1 << 80, "0", None, True):
                assert not comm._broadcast(torch.ones(4), src)
        parameter = torch.nn.Parameter(torch.full((4,), rank.rank + 1.0))
        with torch.no_grad():
            assert comm._all_reduce(parameter, Op.SUM)
        with torch.inference_mode():
            inner = parameter * 1
            assert comm._all_reduce(inner, Op.SUM)
        with torch.autocast("cpu"):
            assert comm._all_reduce(inner, Op.SUM)  # an inference tensor outside of that mode
        assert inner.tolist() == [12.0] * 4
        assert comm._all_reduce(inner, dist._make_nccl_premul_sum(0.5))
        assert inner.tolist() == [12.0] * 4
        return {}

    run(2, body)


def overlapping() -> torch.Tensor:
    return torch.zeros(3).as_strided((3, 3), (1, 1))


def freed() -> torch.Tensor:
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(8)
    return tensor


one, six = torch.zeros(4), torch.zeros(6)
WRONG: dict[str, Callable[[Any], object]] = {
    "meta": lambda calls: calls.all_reduce(torch.zeros(3, device="meta")),
    "sparse": lambda calls: calls.broadcast(torch.eye(2).to_sparse_csr(), 0),
    "conjugate": lambda calls: calls.all_reduce(torch.full((3,), 1 + 2j).conj()),
    "overlapping": lambda calls: calls.all_reduce(overlapping()),
    "freed": lambda calls: calls.all_reduce(freed()),
    "no tensor": lambda calls: calls.all_reduce([torch.zeros(3)]),
    "no tensor to gather": lambda calls: calls.all_gather_into(torch.zeros(6), None),
    "only moved": lambda calls: calls.all_reduce(torch.zeros(3, dtype=torch.float8_e8m0fnu)),
    "bits of floats": lambda calls: calls.all_reduce(torch.zeros(3), Op.BXOR),
    "complex maximum": lambda calls: calls.all_reduce(torch.zeros(3) * 1j, Op.MAX),
    "no reduction": lambda calls: calls.all_reduce(torch.zeros(3), "sum"),
    "no reduction to scatter": lambda calls: calls.reduce_scatter_into(one[:2], one, 3),
    "root": lambda calls: calls.broadcast(torch.zeros(3), 2),
    "no root": lambda calls: calls.broadcast(torch.zeros(3), None),
    "small output": lambda calls: calls.all_gather_into(torch.zeros(5), torch.zeros(3)),
    "small input": lambda calls: calls.reduce_scatter_into(torch.zeros(3), torch.zeros(5)),
    "other type": lambda calls: calls.all_gather_into(torch.zeros(6).int(), torch.zeros(3)),
    "another type": lambda calls: calls.reduce_scatter_into(torch.zeros(3).int(), torch.zeros(6)),
    "a third type": lambda calls: calls.all_to_all(torch.zeros(4).int(), torch.zeros(4)),
    "in place, shifted": lambda calls: calls.all_gather_into(one, one[1:3]),
    "all_to_all, shifted": lambda calls: calls.all_to_all(six[:4], six[2:]),
    "rows": lambda calls: calls.all_to_all(torch.zeros(5), torch.zeros(5)),
    "no rows": lambda calls: calls.all_to_all(torch.zeros(()), torch.zeros(())),
}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return re.sub("0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")
    return "none"


def test_the_errors_are_torchs_or_the_backends() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        comm = shmcoll.direct()
        for name, wrong in WRONG.items():
            if rank.rank == 0:  # had anything been published, the group would break
                texts = [error_of(lambda: wrong(c)) for c in (torchs(), calls_of(), comm)]
                assert len(set(texts)) == 1 and (texts[0] != "none" or name == "meta"), (
                    name,
                    texts,
                )
            comm.barrier()
        for call in (comm.all_reduce, shmcoll.all_reduce):
            with pytest.raises(TypeError):
                call()
            with pytest.raises(TypeError):
                call(torch.zeros(1), tag=3)
        with pytest.raises(TypeError, match="too few or too many arguments"):
            comm._all_reduce(torch.zeros(1))
        with pytest.raises(ValueError, match="was freed"):  # torch says so of a split that it makes
            comm.all_to_all(freed(), torch.zeros(100))
        for group in ("0", 3, comm):
            with pytest.raises(TypeError, match="direct: group must be a"):
                shmcoll.direct(group)
        with pytest.raises(TypeError, match="cannot create"):
            type(comm._all_reduce.__self__)()
        if rank.rank == 0:
            comm.all_reduce(torch.zeros(3))
        else:
            with pytest.raises(
                dist.DistBackendError, match="all_reduce.*broadcast|broadcast.*all_"
            ):
                comm.broadcast(torch.zeros(3), 0)

    ended = outcomes(2, body)
    assert [found.error for found in ended] == ["DistBackendError", ""], describe(ended[0])


def test_a_group_that_has_ended_is_said_and_let_go() -> None:
    def body(rank: Rank) -> str:
        with pytest.raises(ValueError, match="[Dd]efault process group"):
            shmcoll.direct()
        with pytest.raises(ValueError, match="[Dd]efault process group"):
            shmcoll.barrier()
        rank.init(store=dist.PrefixStore("first", rank.store))
        comm = shmcoll.direct()
        part = dist.new_group([0, 1], timeout=seconds(20))
        of_part = shmcoll.direct(part)
        of_part.barrier()
        backend = part._get_backend(torch.device("cpu"))
        rank.sync()
        backend.abort()
        said = error_of(lambda: of_part.all_reduce(torch.zeros(2)))
        assert said == error_of(lambda: dist.all_reduce(torch.zeros(2), group=part))  # noqa: F821
        assert re.match('DistBackendError: .*the group "1" is closed', said), said
        comm.barrier()
        rank.sync()
        dist.destroy_process_group()
        said = error_of(comm.barrier)
        assert re.match("DistBackendError: .*is closed", said), said
        assert error_of(lambda: shmcoll.all_reduce(torch.zeros(1))).startswith("ValueError")
        gone = weakref.ref(part)
        del part, backend
        gc.collect()
        assert gone() is None and error_of(
            lambda: of_part.all_reduce(torch.eye(2).to_sparse())
        ) == ("ValueError: shmcoll: a direct call of a group that has been destroyed")
        rank.init(store=dist.PrefixStore("second", rank.store))
        t = torch.ones(3)
        shmcoll.all_reduce(t)
        assert t.tolist() == [2.0] * 3 and len(shmcoll._direct._made) == 1
        return said

    run(2, body)


def test_calls_of_both_kinds_keep_their_order() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        comm = shmcoll.direct()
        t = torch.full((5,), rank.rank + 1.0)
        works, want = [], [1.0, 2.0]
        for _ in range(50):
            works.append(dist.all_reduce(t, async_op=True))  # both have the sum,
            comm.all_reduce(t, Op.AVG)  # which this leaves,
            dist.all_reduce(t)  # and this doubles
            t += rank.rank  # not before the call has ended
            shmcoll.broadcast(t, 1)
            t = t / 4 + rank.rank
            want = [(2 * sum(want) + 1) / 4 + r for r in (0, 1)]
            if rank.rank == 0 and len(works) % 7 == 0:
                time.sleep(0.002)
        for work in works:
            work.wait()
        with dist._coalescing_manager(device=torch.device("cpu")):
            comm.all_reduce(t)
        assert t.tolist() == [sum(want)] * 5
        return t.tolist()

    first, second = run(2, body)
    assert first == second


def test_a_profile_shows_them_and_a_gradient_is_what_it_is_in_torch() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        comm = shmcoll.direct()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            comm.all_reduce(torch.ones(3))
            comm.all_to_all(torch.ones(4), torch.ones(4))
        names = [event.name for event in seen.events() if event.name.startswith("shmcoll:")]
        results = []
        for call in (dist.all_reduce, comm.all_reduce):
            weight = torch.full((3,), 2.0, requires_grad=True)
            out = weight * (rank.rank + 1)
            call(out)
            out.sum().backward()
            results.append(
                (out.tolist(), weight.grad.tolist() if weight.grad is not None else None)
            )
        assert results[0] == results[1] and results[0][0] == [6.0] * 3
        return names

    assert run(2, body)[0] == ["shmcoll:all_reduce", "shmcoll:all_to_all_single"]


def test_other_threads_run_and_ctrl_c_ends_the_wait() -> None:
    """Rank 1 comes late. Meanwhile a thread of rank 0 counts, and then sends it a signal."""

    def body(rank: Rank) -> int:
        rank.init()
        comm = shmcoll.direct()
        comm.barrier()
        rank.sync()
        if rank.rank == 1:
            while not rank.board[1]:
                time.sleep(0.001)
            with pytest.raises(dist.DistBackendError, match="interrupted by a signal; in rank 0"):
                comm.all_reduce(torch.ones(3))
            return 0
        counted = 0

        def count() -> None:
            nonlocal counted
            while counted < 200:
                time.sleep(0.0001)
                counted += 1
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=count)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(torch.ones(3))
        rank.board[1] = 1
        thread.join()
        return counted

    assert run(2, body)[0] == 200


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        comm = shmcoll.direct()
        comm.barrier()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            calls = (comm.barrier, shmcoll.barrier, lambda: comm.all_reduce(torch.ones(2)))
            texts = [error_of(call) for call in calls]
            os._exit(0 if all("parent process" in text for text in texts) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        t = torch.ones(2)
        comm.all_reduce(t)
        assert t.tolist() == [2.0] * 2

    run(2, body)


def in_a_graph(rank: int, comm: Any, part: Any) -> Callable[[torch.Tensor], Any]:
    """A function with direct calls of both forms, on two groups, and more work on rank 1 than on rank 0."""

    def step(t: torch.Tensor) -> Any:
        a, b = t * 2, t + 1
        comm.all_reduce(a)
        if rank == 1:
            b = torch.sin(torch.cos(b).exp()).relu() * 0 + b
        shmcoll.all_reduce(b, dist.ReduceOp.MAX, part)  # depends on nothing that is before it
        comm.barrier()
        view = a[0]
        comm.broadcast(view, 1)  # writes into a part of another tensor
        row = b[:1].expand(2, -1) if rank == 1 else torch.empty_like(b)
        comm.broadcast(row, 1)  # of the root, it has elements in one place
        c = torch.empty(2 * t.shape[0], t.shape[1])
        shmcoll.all_gather_into(c, b.t().contiguous().t())
        d = torch.empty_like(t[:1])
        comm.reduce_scatter_into(d, a + rank, dist.ReduceOp.AVG)
        e = torch.empty_like(t)
        shmcoll.all_to_all(e, a * (rank + 1))
        t.mul_(0)
        comm.all_reduce(t)  # an argument of the function
        shmcoll.barrier()
        return a, b, c, d, e, row + 0

    return step


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_torch_compile_has_one_graph_and_the_same_results(backend: str) -> None:
    def body(rank: Rank) -> list[str]:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        rank.init()
        part = dist.new_group([0, 1], timeout=seconds(60))
        step = in_a_graph(rank.rank, shmcoll.direct(), part)
        operators = []

        def remember(graph: Any, inputs: Any) -> Any:
            for node in graph.graph.nodes:  # made functional: without what nothing depends on
                named = (str(part) for part in (node.target, *node.args))
                operators.extend(n.split(".")[1] for n in named if n.startswith("shmcoll."))
            return make_boxed_func(graph.forward)

        if backend == "aot_eager":
            compiled = torch.compile(
                step, fullgraph=True, backend=aot_autograd(fw_compiler=remember)
            )
        else:
            compiled = torch.compile(step, fullgraph=True, backend=backend)
        start = torch.arange(6.0).reshape(2, 3) + rank.rank
        contexts = (torch.inference_mode, torch.no_grad, torch.enable_grad)
        for context in contexts if backend == "aot_eager" else contexts[:1]:
            with context():
                one, two = start.clone(), start.clone()
                want = step(one)
                rank.sync()
                found = compiled(two)
            assert all(torch.equal(a, b) for a, b in zip((*found, two), (*want, one)))
        return operators

    found = run(2, body, limit=250.0, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
    moves = ["broadcast_", "broadcast_", "all_gather_into_", "reduce_scatter_into_", "all_to_all_"]
    names = ["all_reduce_", "all_reduce_", "barrier_", *moves, "all_reduce_", "barrier_"]
    for operators in found if backend == "aot_eager" else ():
        assert len(operators) >= 10 and operators == names * (len(operators) // 10)


def in_views(comm: Any) -> Callable[[torch.Tensor], Any]:
    """A function whose direct calls write to parts of tensors; it begins where the sizes of the input say."""

    def step(t: torch.Tensor) -> Any:
        rows = torch.zeros(3, *t.shape)
        for i in range(3):
            rows[i] = t * i
            comm.all_reduce(rows[i])
        left, right = rows[0].chunk(2, dim=1)
        comm.broadcast(left, 1)
        comm.all_to_all(right, t[:, t.shape[1] // 2 :])
        both = torch.zeros(4 * t.shape[0], t.shape[1])
        comm.all_gather_into(both[t.shape[0] : 3 * t.shape[0]], t)
        comm.reduce_scatter_into(t[1:], both[: 2 * (t.shape[0] - 1)])
        shmcoll.all_gather_into(everyone := t.new_zeros(2 * t.shape[0], t.shape[1]), t)
        copy = everyone[1:].clone()
        comm.all_reduce(copy)
        comm.all_reduce(everyone[1:])
        return rows, both, everyone, copy

    return step


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_graph_has_the_gradients_that_it_has_without_a_compiler(backend: str) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        comm = shmcoll.direct()

        def saved(w: torch.Tensor) -> torch.Tensor:
            o = w.exp()
            comm.all_reduce(o)  # autograd keeps it for exp
            return (o * w).sum()

        def part(w: torch.Tensor) -> torch.Tensor:
            o = w * (rank.rank + 1)
            comm.broadcast(o[1:], 1)
            return (o * o).sum()

        def leaf(w: torch.Tensor) -> torch.Tensor:
            comm.all_reduce(w)
            return (w * w).sum()

        def gathered(w: torch.Tensor) -> torch.Tensor:
            o = torch.zeros(6)
            comm.all_gather_into(o, w.sin())
            return (o * torch.cat([w, w])).sum()

        for step in (saved, part, leaf, gathered):
            found = []
            for call in (step, torch.compile(step, fullgraph=True, backend=backend)):
                w = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
                total = call(w)
                total.backward()
                found += [total, w.grad]
            torch.testing.assert_close(found[2:], found[:2])

    run(2, body, limit=250.0, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_graph_of_any_size_writes_to_parts_of_tensors(backend: str) -> None:
    """Inductor may forget where a part begins, so no operator may write to one."""

    def body(rank: Rank) -> list[str]:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        rank.init()
        step = in_views(shmcoll.direct())
        offsets: list[str] = []

        def remember(graph: Any, inputs: Any) -> Any:
            for node in graph.graph.nodes:
                offsets.extend(name for name in node.kwargs if name.endswith("_storage_offset"))
            return make_boxed_func(graph.forward)

        chosen: Any = aot_autograd(fw_compiler=remember) if backend == "aot_eager" else backend
        compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=chosen)
        for rows, columns in ((2, 4), (6, 6)):
            one = torch.arange(float(rows * columns)).reshape(rows, columns) + rank.rank
            two = one.clone()
            want = step(one)
            rank.sync()
            found = compiled(two)
            assert all(torch.equal(a, b) for a, b in zip((*found, two), (*want, one)))
        return offsets

    assert run(2, body, limit=250.0, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"}) == [[], []]


def test_a_graph_reduces_complex_numbers_as_torch_does() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        comm = shmcoll.direct()
        start = torch.tensor([1 + 2j, 3 - 1j]) * (rank.rank + 1j)

        def scattered(t: torch.Tensor, op: Any) -> torch.Tensor:
            part = torch.empty_like(t[:1])
            comm.reduce_scatter_into(part, t, op)
            return part

        def reduced(t: torch.Tensor, op: Any) -> torch.Tensor:
            t = t + 0
            comm.all_reduce(t, op)
            return t

        for step in (scattered, reduced):
            compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
            for op in (Op.SUM, Op.AVG, Op.PRODUCT, Op.MAX, Op.BAND):
                try:
                    want = step(start, op)
                except (TypeError, ValueError) as error:
                    with pytest.raises(type(error)):
                        compiled(start, op)
                else:
                    assert torch.equal(compiled(start, op), want), op
        if rank.rank == 0:
            with pytest.raises(TypeError, match="None is no tensor"):
                torch.ops.shmcoll.all_gather_into_(start, None, shmcoll._graph._ORDER, "0")

    run(2, body)


@pytest.mark.timeout(300)
def test_a_graph_does_nothing_for_a_group_of_other_ranks() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        part: Any = dist.new_group([0])
        comm = shmcoll.direct(part)

        def step(t: torch.Tensor) -> torch.Tensor:
            comm.all_reduce(t)
            shmcoll.all_reduce(t, dist.ReduceOp.MAX, part)
            comm.broadcast(t, 0)
            a, b, c = torch.zeros(3, 2)
            shmcoll.all_gather_into(a, t, part)
            comm.reduce_scatter_into(b, t)
            shmcoll.all_to_all(c, t, part)
            comm.barrier()
            return torch.cat([t, a, b, c])

        start = torch.arange(2.0)
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(start.clone()), step(start.clone()))
        return compiled(start).tolist()

    assert run(2, body) == [[0.0, 1.0] * 4, [0.0, 1.0] + [0.0] * 6]


@pytest.mark.timeout(300)
def test_a_program_with_direct_calls_can_be_exported() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        comm = shmcoll.direct()

        class Model(torch.nn.Module):
            def forward(self, t: torch.Tensor) -> torch.Tensor:
                t = t * 2
                comm.all_reduce(t)
                everyone = torch.empty(2 * t.shape[0])
                shmcoll.all_gather_into(everyone, t + rank.rank)
                part = torch.empty_like(t)
                comm.reduce_scatter_into(part, everyone)
                return part

        start = torch.arange(3.0) + rank.rank
        for strict in (True, False):
            exported = torch.export.export(Model(), (start,), strict=strict)
            assert torch.equal(exported.module()(start), Model()(start))

    run(2, body)


@pytest.mark.parametrize("backend", ["shmcoll", "gloo"])
def test_a_call_that_torch_makes_warns_of_nothing(backend: str) -> None:
    def body(rank: Rank) -> list[list[float]]:
        rank.init(backend)
        comm = shmcoll.direct()
        mine = torch.full((2,), rank.rank + 1.0, requires_grad=backend == "shmcoll")
        found = [torch.zeros(n) for n in (4, 4, 1, 1)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            comm.all_gather_into(found[0], mine)
            shmcoll.all_gather_into(found[1], mine)
            comm.reduce_scatter_into(found[2], mine)
            shmcoll.reduce_scatter_into(found[3], mine)
        return [t.tolist() for t in found]

    assert run(2, body) == [[[1.0, 1.0, 2.0, 2.0]] * 2 + [[3.0]] * 2] * 2


@pytest.mark.timeout(300)
def test_a_graph_without_operators_has_what_torch_puts_there() -> None:
    def body(rank: Rank) -> list[float]:
        glues.use_python()
        rank.init()
        comm = shmcoll.direct()

        def double(t: torch.Tensor) -> torch.Tensor:
            comm.all_reduce(t)
            shmcoll.all_reduce(t, dist.ReduceOp.MAX)
            return t + 1

        found = torch.compile(double, fullgraph=True, backend="aot_eager")(torch.ones(2))
        return found.tolist()

    assert run(2, body) == [[3.0, 3.0]] * 2


@pytest.mark.timeout(300)
def test_a_reduction_that_no_operator_knows_is_done_between_two_graphs() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        comm = shmcoll.direct()
        total = dist.ReduceOp(dist.ReduceOp.SUM)
        doubled: Any = torch.distributed._make_nccl_premul_sum(2.0)  # type: ignore[attr-defined]

        def step(t: torch.Tensor) -> torch.Tensor:
            a, part = t + rank.rank, torch.empty(1)
            comm.all_reduce(a, total)
            shmcoll.all_reduce(a, doubled)
            shmcoll.reduce_scatter_into(part, a, doubled)
            return torch.cat([a, part])

        return torch.compile(step, backend="aot_eager")(torch.ones(2)).tolist()

    assert run(2, body) == [[12.0, 12.0, 48.0]] * 2
