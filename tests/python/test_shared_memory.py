# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in shared memory: who gets them, how long they live, and that torch gives the same results with them."""

from __future__ import annotations

import copy
import io
import os
import pickle
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import glues
import shmcoll
from ranks import Rank, outcomes, run
from shmcoll import is_shared

LARGE = 1 << 20  # elements


def alone(body: Callable[[Rank], Any], **options: Any) -> Any:
    """In a process of its own: the memory is the process's."""
    return run(1, body, **options)[0]


# ---- who gets it ----


def test_made_tensors_are_torchs_except_for_where_they_lie() -> None:
    def body(rank: Rank) -> None:
        strided = torch.ones(4, 3).t()
        for made, want in (
            (shmcoll.empty(3, 4), torch.empty(3, 4)),
            (shmcoll.empty((2, 5), dtype=torch.int16), torch.empty((2, 5), dtype=torch.int16)),
            (shmcoll.zeros([70_000]), torch.zeros([70_000])),
            (shmcoll.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)),
            (shmcoll.zeros_like(strided), torch.zeros_like(strided)),
            (shmcoll.empty_like(strided, dtype=torch.int8), strided.to(torch.int8)),
        ):
            assert is_shared(made) and not is_shared(want)
            assert made.size() == want.size() and made.stride() == want.stride()
            assert made.dtype == want.dtype and made.requires_grad == want.requires_grad
        assert shmcoll.empty(70_000).fill_(1).sum() == 70_000 and shmcoll.zeros(70_000).sum() == 0
        nhwc = shmcoll.empty(2, 3, 4, 5, memory_format=torch.channels_last)
        assert is_shared(nhwc) and nhwc.is_contiguous(memory_format=torch.channels_last)
        assert is_shared(nhwc[1:, ::2]) and not is_shared(nhwc[:0]) and not is_shared(nhwc.clone())
        # Their memory is used again, and not while somebody has it.
        first, second = shmcoll.zeros(LARGE), shmcoll.zeros(LARGE)
        second.fill_(2)
        place = first.data_ptr()
        del first
        third = shmcoll.empty(LARGE)
        assert third.data_ptr() == place
        third.fill_(3)
        assert second.eq(2).all()

    alone(body)


def test_a_scope_is_this_threads_and_ends_in_any_case() -> None:
    def shared(elements: int) -> bool:
        return is_shared(torch.ones(elements))

    def body(rank: Rank) -> None:
        other: list[bool] = []
        with shmcoll.shared_memory():
            assert not shared((64 << 10) // 4 - 1) and shared((64 << 10) // 4)
            assert is_shared(torch.ones(LARGE // 2) + 1)  # an operator's result
            thread = threading.Thread(target=lambda: other.append(shared(LARGE)))
            thread.start()
            thread.join()
            with pytest.raises(KeyError), shmcoll.shared_memory(min_bytes=1):
                assert shared(1)
                raise KeyError
            assert not shared(1) and shared(LARGE)
            with shmcoll.shared_memory("1g"):
                assert not shared(LARGE)
            x = torch.ones(LARGE, requires_grad=True)
            (x * 2).sum().backward()
            assert x.grad is not None and is_shared(x.grad.contiguous())
        assert other == [False] and not shared(LARGE)

    alone(body)


def test_wrong_arguments_are_refused_with_a_sentence() -> None:
    def body(rank: Rank) -> None:
        for error, words, call in (
            (TypeError, "tuple of ints", lambda: shmcoll.empty("x")),
            (RuntimeError, "negative dimension -1", lambda: shmcoll.empty(-1)),
            (TypeError, "unexpected keyword.*device", lambda: shmcoll.zeros(3, device="cpu")),
            (TypeError, "takes a dense tensor, got list", lambda: shmcoll.empty_like([1])),
            (TypeError, "takes a dense", lambda: shmcoll.zeros_like(torch.ones(2).to_sparse())),
            (TypeError, "takes a tensor, got int", lambda: is_shared(3)),
            (ValueError, "'64q' is not a size", lambda: shmcoll.shared_memory("64q").__enter__()),
            (ValueError, "from 1 to 2", lambda: shmcoll.shared_memory(0).__enter__()),
            (TypeError, "got float", lambda: shmcoll.shared_memory(0.5).__enter__()),
        ):
            with pytest.raises(error, match=words):
                call()
        assert not is_shared(torch.ones(3, device="meta"))
        assert not is_shared(torch.ones(3).to_sparse()) and not is_shared(torch.empty(0))

    alone(body)


def test_the_glue_in_python_says_that_it_has_none() -> None:
    def body(rank: Rank) -> None:
        glues.use_python()
        assert not shmcoll.is_shared(torch.ones(3))
        for call in (
            lambda: shmcoll.zeros(3),
            lambda: shmcoll.empty_like(torch.ones(3)),
            lambda: shmcoll.share(torch.ones(3)),
            lambda: shmcoll.shared_memory().__enter__(),
        ):
            with pytest.raises(NotImplementedError, match="SHMCOLL_GLUE=build"):
                call()

    alone(body)


def test_without_room_tensors_are_private_and_one_line_says_so() -> None:
    def body(rank: Rank) -> None:
        small = shmcoll.empty(1000)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, limits[1]))
        large = [shmcoll.zeros(8 << 20) for _ in range(4)]  # 128 MiB
        assert is_shared(small) and not is_shared(large[-1])
        assert large[-1].sum() == 0
        del large, small
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert is_shared(shmcoll.zeros(8 << 20))

    (done,) = outcomes(1, body)
    assert done.ok, done
    assert done.output.count("are in private memory") == 1, done.output


# ---- how torch treats it ----


def test_what_torch_does_with_a_tensor_leaves_its_values_right() -> None:
    def body(rank: Rank) -> None:
        t = shmcoll.empty(LARGE)
        t.copy_(torch.arange(LARGE))
        for copied in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
            assert torch.equal(copied, t) and not is_shared(copied)
        file = io.BytesIO()
        torch.save(t, file)
        file.seek(0)
        assert torch.equal(torch.load(file), t)
        t.resize_(2 * LARGE)  # by the allocator that it came from
        assert is_shared(t) and t[LARGE - 1] == LARGE - 1
        t.share_memory_()
        assert not is_shared(t) and t.is_shared() and t[LARGE - 1] == LARGE - 1
        kept = shmcoll.zeros(LARGE).numpy()  # the array alone has it
        with shmcoll.shared_memory():
            others = [torch.full((LARGE,), 5.0) for _ in range(3)]
            grown = torch.ones(LARGE)
        assert kept.sum() == 0 and all(is_shared(other) for other in others)
        grown.resize_(2 * LARGE)  # outside of the scope
        assert not is_shared(grown) and grown[:LARGE].eq(1).all()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            with shmcoll.shared_memory():
                torch.ones(LARGE)
        moved = [event.cpu_memory_usage for event in seen.events()]
        assert 4 * LARGE in moved and -4 * LARGE in moved
        assert isinstance(kept, numpy.ndarray)

    alone(body)


def test_sharing_moves_what_exists_with_its_views() -> None:
    def body(rank: Rank) -> None:
        t = torch.arange(float(LARGE))
        rows, place = t.view(-1, 2), t.data_ptr()
        assert shmcoll.share(rows[1:]) and is_shared(t) and is_shared(rows)
        assert t.data_ptr() != place and t.data_ptr() == rows.data_ptr()
        assert torch.equal(t, torch.arange(float(LARGE))) and shmcoll.share(t)
        t.resize_(2 * LARGE)
        assert is_shared(t) and t[LARGE - 1] == LARGE - 1

        model = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40))
        model(torch.ones(3, 50)).sum().backward()
        before = copy.deepcopy(model.state_dict())
        assert shmcoll.share(model)
        parts = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        assert len(parts) == 4 + 3 + 4 and all(map(is_shared, parts))
        assert all(torch.equal(before[name], found) for name, found in model.state_dict().items())
        model(torch.ones(3, 50)).sum().backward()
        model.register_buffer("nothing", torch.empty(0))
        assert shmcoll.share(model)

        with_numpy, elsewhere = torch.ones(9), torch.ones(9).share_memory_()
        array = with_numpy.numpy()
        for kept in (with_numpy, elsewhere, torch.from_numpy(numpy.ones(9)), torch.empty(0)):
            assert not shmcoll.share(kept) and not is_shared(kept)
        with_numpy.fill_(2)
        assert array.sum() == 18 and elsewhere.is_shared()
        assert not shmcoll.share(torch.nn.ParameterList([with_numpy, torch.ones(5)]))
        for error, words, wrong in (
            (TypeError, "takes a tensor or a module, got int", 3),
            (TypeError, "dense CPU tensors, not one of", torch.ones(3).to_sparse()),
            (TypeError, "dense CPU tensors, not one of", torch.ones(3, device="meta")),
        ):
            with pytest.raises(error, match=words):
                shmcoll.share(wrong)

    alone(body)


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_loader_gives_rows_of_shared_memory(method: str) -> None:
    def body(rank: Rank) -> Any:
        with shmcoll.shared_memory(1):
            rows = torch.arange(80.0).reshape(8, 10)
            assert is_shared(rows)
            loader = DataLoader(
                Rows(rows), batch_size=2, num_workers=1, multiprocessing_context=method
            )
            return torch.cat([batch.clone() for batch in loader]).tolist()

    assert alone(body) == torch.arange(80.0).reshape(8, 10).tolist()


def test_a_forked_child_uses_its_own_memory_and_takes_none_away() -> None:
    def body(rank: Rank) -> None:
        mine = shmcoll.zeros(LARGE)
        with shmcoll.shared_memory():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    made = [torch.ones(LARGE), shmcoll.zeros(LARGE)]
                    place = mine.data_ptr()
                    del mine  # its parent's: it is not given out again here
                    made += [torch.ones(LARGE) for _ in range(3)]
                    assert place not in {t.data_ptr() for t in made}
                    assert [t.sum() for t in made] == [LARGE, 0, LARGE, LARGE, LARGE]
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            torch.ones(LARGE)
        assert is_shared(mine) and mine.eq(0).all()

    alone(body)


END = """
import threading, torch, torch.distributed as dist, shmcoll
dist.init_process_group("shmcoll", store=dist.HashStore(), rank=0, world_size=1)
kept = shmcoll.zeros(1 << 20)
with shmcoll.shared_memory():
    held = [torch.ones(1 << 20) for _ in range(3)]
dist.all_reduce(kept)
dist.destroy_process_group()
kept += 1
class Late:
    def __del__(self, kept=kept):
        assert kept.sum() == 1 << 20
late = Late()
threading.local().held = held
"""


def test_a_process_ends_well_with_tensors_that_live() -> None:
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done


# ---- training ----


def train(rank: Rank, steps: int = 4, **options: Any) -> list[torch.Tensor]:
    """The parameters and gradients after some steps of DDP, with several buckets."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(200, 200), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.2, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.Generator().manual_seed(rank.rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 200, generator=data)).square().mean().backward()
        optimizer.step()
    parameters = list(model.parameters())
    grads = [p.grad.clone() for p in parameters if p.grad is not None]
    assert len(grads) == 6
    return [p.detach() for p in parameters] + grads


def reduced_places(rank: Rank, **options: Any) -> list[bool]:
    """Of each bucket that DDP reduces: does it lie in shared memory?"""
    places: list[bool] = []
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200)), bucket_cap_mb=0.1, **options
    )

    def hook(state: Any, bucket: dist.GradBucket) -> Any:
        places.append(is_shared(bucket.buffer()))
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model.register_comm_hook(None, hook)
    for _ in range(3):
        model(torch.randn(4, 200)).sum().backward()
    return places


def test_ddp_gives_the_same_bits_with_its_buckets_in_shared_memory() -> None:
    """By the scope, and by torch's own switch, which it reads when buckets are made."""

    def body(rank: Rank) -> None:
        rank.init()
        for options in (
            {"gradient_as_bucket_view": True},
            {"gradient_as_bucket_view": False},
            {"static_graph": True},
            {"find_unused_parameters": True},
        ):
            pushed = [shmcoll.describe()["pushed"]]
            want = train(rank, **options)
            pushed.append(shmcoll.describe()["pushed"])
            with shmcoll.shared_memory("4k"):
                scoped = train(rank, **options)
            pushed.append(shmcoll.describe()["pushed"])
            os.environ["DDP_DISABLE_COMM_MEM"] = "0"
            switched, places = train(rank, **options), reduced_places(rank)
            pushed.append(shmcoll.describe()["pushed"])
            assert pushed[0] == pushed[1] and pushed[1] + 4 < pushed[2] < pushed[3] - 4, pushed
            del os.environ["DDP_DISABLE_COMM_MEM"]
            assert len(places) > 3 and all(places) and not any(reduced_places(rank)), places
            for found in (scoped, switched):
                assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))

    run(2, body)


class Places(TorchDispatchMode):
    """Notes of each collective of FSDP2 whether its buffers lie in shared memory."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_allgather_base_" in str(func):
            self.found.append(is_shared(args[0]))
        elif "_reduce_scatter_base_" in str(func):
            self.found.append(is_shared(args[0]) and is_shared(args[1]))
        return func(*args, **kwargs or {})


def shard_and_train(rank: Rank, groups_memory: bool) -> tuple[list[torch.Tensor], list[bool]]:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(90, 91), nn.ReLU(), nn.Linear(91, 5))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
        part.set_allocate_memory_from_process_group_for_comm(groups_memory)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.Generator().manual_seed(rank.rank)
    with Places() as places:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 90, generator=data)).square().mean().backward()
            optimizer.step()
    return [p.to_local().detach() for p in model.parameters()], places.found


def test_fsdp2_gives_the_same_bits_with_the_groups_memory() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        want, private = shard_and_train(rank, groups_memory=False)
        found, shared = shard_and_train(rank, groups_memory=True)
        assert len(shared) > 8 and all(shared) and not any(private), (shared, private)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))

    run(2, body)


def test_large_sums_are_made_where_the_tensors_lie() -> None:
    def body(rank: Rank) -> list[int]:
        rank.init()
        counts = []
        for dtype in (torch.float32, torch.bfloat16):
            for reduce in (dist.all_reduce, shmcoll.all_reduce):
                t = shmcoll.empty(100_001, dtype=dtype)
                for view in (t, t[1:], t[: 1 << 15].view(256, 128).t().t()):
                    view.fill_(rank.rank + 1)
                    reduce(view)
                    assert view.eq(6).all()
                counts.append(shmcoll.describe()["pushed"])
        work = dist.all_reduce(t.zero_(), op=dist.ReduceOp.MAX, async_op=True)
        assert work is not None and work.wait() and t.eq(0).all()
        dist.all_reduce(t if rank.rank else t.clone())  # one is elsewhere
        dist.all_reduce(t[::2])
        with shmcoll.shared_memory():
            functional = functional_all_reduce(torch.ones(LARGE), "sum", dist.group.WORLD)
        assert functional.eq(3).all()
        counts.append(shmcoll.describe()["pushed"])
        assert "push" in shmcoll.describe()["path.all_reduce.1m"]
        return counts

    for counts in run(3, body):
        assert counts == [2, 5, 8, 11, 13], counts


def test_a_group_makes_tensors_for_the_cpu_alone() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.supports_tensor_alloc(torch.device("cpu"))
        assert not backend.supports_tensor_alloc(torch.device("cuda", 0))
        made = backend.allocate_tensor(70_000, dtype=torch.bfloat16, device=torch.device("cpu"))
        assert is_shared(made) and made.dtype == torch.bfloat16 and made.shape == (70_000,)
        told = shmcoll.describe()
        assert told["heap_bytes"] >= told["heap_used_bytes"] >= 140_000
        made.fill_(rank.rank + 1)
        dist.all_reduce(made)
        assert made.eq(3).all()
        with pytest.raises(ValueError, match="makes CPU tensors, and cuda:0 was asked for"):
            backend.allocate_tensor(1, dtype=torch.float32, device=torch.device("cuda", 0))
        with pytest.raises(ValueError, match="-1 elements"):
            backend.allocate_tensor(-1, dtype=torch.float32, device=torch.device("cpu"))
        dist.destroy_process_group()
        assert is_shared(made) and made.eq(3).all()

    run(2, body)


def test_functional_collectives_of_a_compiled_graph_fill_shared_memory() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return functional_all_reduce(x * 2, "sum", dist.group.WORLD) + 1, shmcoll.zeros(3)

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        with shmcoll.shared_memory():
            total, zeros = compiled(torch.full((LARGE,), float(rank.rank)))
        assert is_shared(total) and total.eq(3).all()
        assert zeros.tolist() == [0.0] * 3

    run(2, body)
