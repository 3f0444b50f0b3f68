# SPDX-License-Identifier: BSD-3-Clause
"""A training step under DistributedDataParallel: shmcoll, gloo, and its computation alone.

    python benchmarks/ddp_step.py [--json out.json] [--models digits,mlp] [--buckets 1,4,16,64]
                                  [--hook] [--shared]

Two ranks; the network of examples/digits_ddp.py and one of linear layers with 20 million
parameters; gradients in buckets of so many MiB. All take turns in one run, with the same
data: a step lasts until the slower rank has updated its parameters. Afterwards the parameters of
the two backends must have the same bits. `alone` is DistributedDataParallel over a process group
that does nothing: its buckets, hooks and divisions, which no backend can be faster than. `hook` is
shmcoll with a communication hook whose all_reduce averages, which spares the divisions. `shared` is
shmcoll with the buckets in its shared memory, by torch's switch DDP_DISABLE_COMM_MEM=0. `last` is
an all_reduce of the last bucket by shmcoll, with nothing at the same time: its gradients are there when
the computation ends, so that no backend can hide it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shmcoll.bench.run.mpirun import TUNABLES

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

BACKENDS = ("shmcoll", "gloo")
CONTENDERS = (*BACKENDS, "compute", "alone")  # and those that are asked for
WARMUP_STEPS = 5  # DDP orders its buckets anew, and the heap grows


@dataclass(frozen=True)
class Job:
    """A model and what it learns from."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    steps: int  # of a round


def digits(rank: int) -> Job:
    import digits_ddp

    images, labels, _, _ = digits_ddp.load_data()
    mine = slice(32 * rank, 32 * rank + 32)
    return Job("digits CNN", digits_ddp.make_model(0), images[mine], labels[mine], 10)


def mlp(rank: int) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 3072),
        nn.ReLU(),
        nn.Linear(3072, 4096),
        nn.ReLU(),
        nn.Linear(4096, 1024),
    )
    torch.manual_seed(1 + rank)
    return Job("MLP of 20 M", model, torch.randn(16, 1024), torch.randint(1024, (16,)), 1)


JOBS = {"digits": digits, "mlp": mlp}


def done(tensors: Any) -> dist.Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


class NoBackend(dist.ProcessGroup):
    """Each rank keeps what it has."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.sizes: list[int] = []  # elements of what was reduced

    def allreduce(self, tensors: list[Tensor], options: Any) -> dist.Work:
        self.sizes += [tensor.numel() for tensor in tensors]
        return done(tensors)

    def broadcast(self, tensors: list[Tensor], options: Any) -> dist.Work:
        return done(tensors)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any
    ) -> dist.Work:
        for parts, mine in zip(outputs, inputs):
            for part in parts:
                part.copy_(mine)
        return done(outputs)


def averaged(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The gradients' average, by one all_reduce and no division before it."""
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@contextlib.contextmanager
def buckets(shared: bool) -> Iterator[None]:
    """DDP reads torch's switch when it makes its buckets, and in the first steps makes them anew."""
    os.environ["DDP_DISABLE_COMM_MEM"] = "0" if shared else "1"
    yield
    del os.environ["DDP_DISABLE_COMM_MEM"]


class Contender:
    """A copy of the job's model that trains on its own."""

    def __init__(
        self, job: Job, bucket_mb: int, group: dist.ProcessGroup | None, hook: Any = None
    ) -> None:
        self.job = job
        if group is None:
            self.model: nn.Module = job.model
        else:
            self.model = DistributedDataParallel(
                job.model,
                process_group=group,
                bucket_cap_mb=bucket_mb,
                gradient_as_bucket_view=True,
            )
            if hook:
                # torch wants the annotation as a class, and here it is a string: a lambda has none.
                self.model.register_comm_hook(group, lambda group, bucket: hook(group, bucket))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.job.inputs), self.job.labels)
        loss.backward()
        self.optimizer.step()

    def step_ms(self, everyone: dist.ProcessGroup) -> float:
        """The mean of a round, at the slower rank."""
        dist.barrier(group=everyone)
        begun = time.perf_counter()
        for _ in range(self.job.steps):
            self.step()
        took = torch.tensor([(time.perf_counter() - begun) * 1e3 / self.job.steps])
        dist.all_reduce(took, op=dist.ReduceOp.MAX, group=everyone)
        return took.item()


def measure(
    name: str, bucket_mb: int, rounds: int, rank: int, groups: dict[str, Any], more: list[str]
) -> dict[str, Any]:
    sides = {side: Contender(JOBS[name](rank), bucket_mb, groups.get(side)) for side in BACKENDS}
    sides["compute"] = Contender(JOBS[name](rank), bucket_mb, None)
    nobody = NoBackend(rank, 2)
    sides["alone"] = Contender(JOBS[name](rank), bucket_mb, nobody)
    if "hook" in more:
        sides["hook"] = Contender(JOBS[name](rank), bucket_mb, groups["shmcoll"], averaged)
    if "shared" in more:
        with buckets(shared=True):
            sides["shared"] = Contender(JOBS[name](rank), bucket_mb, groups["shmcoll"])
    contenders = (*CONTENDERS, *more)
    ms: dict[str, list[float]] = {side: [] for side in contenders}
    for _ in range(WARMUP_STEPS):
        for place, side in sides.items():
            with buckets(shared=place == "shared"):
                side.step()
    for turn in range(rounds):
        for place in range(len(contenders)):
            side = contenders[(turn + place) % len(contenders)]
            ms[side].append(sides[side].step_ms(groups["everyone"]))
    last = last_ms(nobody.sizes[-1], rounds, groups)
    alike = [side for side in (*BACKENDS, "shared") if side in sides]
    trained = [list(sides[side].model.parameters()) for side in alike]
    wrong = torch.tensor(
        [sum(int((a != b).sum()) for other in trained[1:] for a, b in zip(trained[0], other))]
    )
    dist.all_reduce(wrong, group=groups["everyone"])
    job = sides["compute"].job
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    return {
        "model": job.name,
        "parameters": parameters,
        "bucket_mib": bucket_mb,
        "step_ms": ms,
        "last_ms": last,
        "wrong": int(wrong.item()),
    }


def last_ms(count: int, rounds: int, groups: dict[str, Any]) -> list[float]:
    """Returns the times of an all_reduce of the last bucket, at the slower rank."""
    bucket, found = torch.ones(count), []
    for _ in range(rounds):
        bucket.fill_(1)
        dist.barrier(group=groups["everyone"])
        begun = time.perf_counter()
        dist.all_reduce(bucket, group=groups["shmcoll"])
        took = torch.tensor([(time.perf_counter() - begun) * 1e3])
        dist.all_reduce(took, op=dist.ReduceOp.MAX, group=groups["everyone"])
        found.append(took.item())
    return found


def print_row(row: dict[str, Any]) -> None:
    ms = row["step_ms"]
    over_gloo = statistics.median(b / a for a, b in zip(ms["shmcoll"], ms["gloo"]))
    over_compute = statistics.median(a / b for a, b in zip(ms["shmcoll"], ms["compute"]))
    times = "  ".join(f"{side} {statistics.median(ms[side]):7.2f}" for side in ms)
    times += f"  last {statistics.median(row['last_ms']):5.2f}"
    text = f"{row['model']:12} buckets of {row['bucket_mib']:2} MiB   ms a step: {times}"
    wrong = f"  {row['wrong']} parameters WRONG" if row["wrong"] else ""
    text += f"   gloo/shmcoll {over_gloo:.2f}  shmcoll/compute {over_compute:.2f}"
    if "shared" in ms:
        over_shared = statistics.median(a / b for a, b in zip(ms["shmcoll"], ms["shared"]))
        text += f"  shmcoll/shared {over_shared:.2f}"
    print(text + wrong)
    sys.stdout.flush()


def run_rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    groups: dict[str, Any] = {name: dist.new_group(backend=name) for name in BACKENDS}
    groups["everyone"] = dist.group.WORLD
    rows = []
    for name in options.models.split(","):
        for bucket in options.buckets.split(","):
            more = [side for side in ("hook", "shared") if getattr(options, side)]
            row = measure(name, int(bucket), options.rounds, rank, groups, more)
            rows.append(row)
            if rank == 0:
                print_row(row)
    if rank == 0 and options.json:
        pathlib.Path(options.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="digits,mlp", help="default: digits,mlp")
    parser.add_argument("--buckets", default="1,4,16,64", help="MiB (default: 1,4,16,64)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hook", action="store_true", help="also shmcoll with an averaging hook")
    parser.add_argument("--shared", action="store_true", help="also with buckets in shared memory")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    # Else each step has its gradients' pages anew from the kernel, which, in a virtual machine, may
    # have to ask its host for them: 60 or 250 ms for a step, with every backend.
    os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, options), nprocs=2)


if __name__ == "__main__":
    main()
