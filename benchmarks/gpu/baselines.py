# SPDX-License-Identifier: BSD-3-Clause
"""all_reduce of CUDA tensors between ranks that share one GPU: what each backend needs.

    python benchmarks/gpu/baselines.py [--backends gloo,nccl,shmcoll] [--worlds 2,4,8] [--max 1G]
    python benchmarks/gpu/baselines.py --device cpu --backends gloo,shmcoll --max 1M

"shmcoll rounds" is shmcoll without the relay (SHMCOLL_RELAY=off, which a group reads at its
first CUDA tensor). NCCL is no default: before 2.30 it refuses several ranks on a GPU, and the part
"nccl" tells what it says. A backend that raises at its first call is a row "offered" that says why,
and is left out. The others take turns in one run. A round is some calls in a loop, from a meeting of all
ranks until the slowest one's GPU is done; medians over rounds. The sums are checked at every size. A
backend that would need more time than is left is not asked for the larger sizes, and the row says
so. One that raises later, hangs or ends its process is a row, too; the others go on without it, from
that size on, in new processes, since nobody knows what state it has left.

exit code: 0; 1 if a sum was wrong or a run failed
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import json
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))

import about
import parts

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 64, 512, 4 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, 512 * KIB)
SIZES += (MIB, 2 * MIB, 4 * MIB, 16 * MIB, 128 * MIB, 1024 * MIB)
ROUNDS, LONG_ROUNDS = 7, 3
ROUND_S = 0.02
LONG_S = 0.25  # a call that takes so long has fewer rounds
STALL_S = 45.0  # without a step that ends; the groups' own time-out is 30 s
END_S = 10  # for processes whose time is over
NO_TIME = "no time"
LATE = "the time was over"
FAILED = 3  # the status of a rank that has said why
FIRST_COUNT = 1000  # elements of a backend's first call

# What torch calls the backend of a side, and the environment in which it sees its first tensor. A
# side that is not here is the backend of that name.
SIDES: dict[str, tuple[str, dict[str, str]]] = {
    "shmcoll rounds": ("shmcoll", {"SHMCOLL_RELAY": "off"})
}

Row = dict[str, Any]


def size_of(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: a size is a number, with K, M or G after it")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


@contextlib.contextmanager
def variables(told: dict[str, str]) -> Iterator[None]:
    """Sets variables for the block, also for code that is not Python, and restores them."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Rank:
    """One process: the meeting is gloo's, on CPU tensors."""

    def __init__(self, rank: int, world: int, folder: str, device: str) -> None:
        self.rank, self.world, self.device = rank, world, torch.device(device)
        self.folder = Path(folder)
        faulthandler.register(signal.SIGUSR2, all_threads=True)  # says where it stands
        torch.set_num_threads(1)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if "shmcoll" not in dist.Backend.backend_list:
            try:
                import shmcoll  # noqa: F401
            except ImportError:
                pass
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=120),
        )

    def group(self, backend: str) -> Any:
        return dist.new_group(backend=backend, timeout=datetime.timedelta(seconds=30))

    def step(self, backend: str, size: int) -> None:
        """Tells the parent what this rank does now."""
        if self.rank == 0:
            new = self.folder / "step.new"
            new.write_text(json.dumps([backend, size]))
            new.replace(self.folder / "step")

    def done(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def worst(self, value: float) -> float:
        t = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return float(t.item())

    def tensor(self, count: int) -> torch.Tensor:
        t = torch.arange(count, device=self.device, dtype=torch.float32)
        return t.remainder_(7).add_(self.rank)

    def is_wrong(self, group: Any, count: int) -> bool:
        t, ranks = self.tensor(count), self.world * (self.world - 1) / 2
        want = torch.arange(count, device=self.device, dtype=torch.float32)
        want = want.remainder_(7).mul_(self.world).add_(ranks)
        dist.all_reduce(t, group=group)
        self.done()
        return self.worst(float((t != want).any().item())) != 0

    def seconds(self, group: Any, t: torch.Tensor, calls: int) -> float:
        """Returns the seconds of one call, at the slowest rank."""
        self.done()
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(t, group=group)
        self.done()
        return self.worst((time.perf_counter() - begun) / calls)


def first_call(team: Rank, side: str) -> tuple[Any, str]:
    """The group, and "" or why it does not do it."""
    backend, env = SIDES.get(side, (side, {}))
    group = None
    try:
        with variables(env):
            group = team.group(backend)
            t = team.tensor(FIRST_COUNT)
            dist.all_reduce(t, group=group)
            team.done()
        want = torch.arange(FIRST_COUNT, device=team.device, dtype=torch.float32).remainder_(7)
        want.mul_(team.world).add_(team.world * (team.world - 1) / 2)
        return group, "" if bool((t == want).all()) else "wrong sums"
    except Exception as error:
        traceback.print_exc()
        return group, told(error)


def offered(team: Rank, sides: Sequence[str], size: int) -> dict[str, Any]:
    """The groups of those that work on all ranks. A row for each."""
    groups = {}
    for place, side in enumerate(sides):
        team.step(side, size)
        group, why = first_call(team, side)
        if why:
            Path(team.folder, f"refused.{place}.{team.rank}").write_text(why)
        if team.worst(float(bool(why))) == 0:
            groups[side] = group
        if team.rank == 0:
            row = {
                "bench": "offered",
                "ranks": team.world,
                "backend": side,
                "works": side in groups,
            }
            print(json.dumps(row | {"why": refusal(team.folder, place)}), flush=True)
    return groups


def refusal(folder: Path, place: int) -> str:
    """Returns the most informative refusal that the ranks have written."""
    said = [file.read_text() for file in sorted(folder.glob(f"refused.{place}.*"))]
    return max(said, key=lambda text: "uplicate" in text, default="")


def told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "uplicate GPU" in line] or lines[:2]
    return f"{type(error).__name__}: {' '.join(lines)}"[:500]


def measure(
    rank: int,
    world: int,
    folder: str,
    device: str,
    backends: Sequence[str],
    sizes: Sequence[int],
    end: float,
) -> None:
    try:
        team = Rank(rank, world, folder, device)
        groups = offered(team, backends, sizes[0])
        if rank == 0 and team.device.type == "cuda":
            tell_routes(groups, world)
        last = dict.fromkeys(groups, (0.0, 1))  # the last call that was measured: seconds, bytes
        for size in sizes if groups else ():
            measure_size(team, groups, size, last, end)
        team.step("", 0)
    except Exception as error:
        traceback.print_exc()
        Path(folder, f"failed.{rank}").write_text(told(error))
        os._exit(FAILED)  # leaving a group that has failed may not end
    if len(groups) < len(backends):
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


def measure_size(
    team: Rank,
    groups: dict[str, Any],
    size: int,
    last: dict[str, tuple[float, int]],
    end: float,
) -> None:
    left = (end - time.time()) / max(len(groups), 1)
    needed = {
        name: call_s * size / bytes_ * (ROUNDS + 3) for name, (call_s, bytes_) in last.items()
    }
    slow = [name for name in groups if team.worst(float(needed[name] > left))]
    t = team.tensor(size // 4)
    calls, times, wrong = {}, {}, {}
    for name in (name for name in groups if name not in slow):
        team.step(name, size)
        wrong[name] = team.is_wrong(groups[name], size // 4)
        guess = team.seconds(groups[name], t, 2 if last[name][0] * 8 < LONG_S else 1)
        calls[name], times[name] = max(1, min(2000, int(ROUND_S / guess))), []
        last[name] = guess, size
    for turn in range(ROUNDS):
        order = [name for name in calls if turn < LONG_ROUNDS or last[name][0] < LONG_S]
        for place in range(len(order)):
            name = order[(turn + place) % len(order)]
            team.step(name, size)
            t.copy_(team.tensor(size // 4))
            times[name].append(team.seconds(groups[name], t, calls[name]))
    for name in groups:
        row = row_of(team.world, size, name)
        if name in slow:
            row["why"] = NO_TIME
        else:
            middle = statistics.median(times[name])
            last[name] = middle, size
            row |= {"us": round(middle * 1e6, 3), "best_us": round(min(times[name]) * 1e6, 3)}
            row |= {"gb_s": float(f"{size / middle / 1e9:.4g}"), "wrong": wrong[name]}
        if team.rank == 0:
            print(json.dumps(row), flush=True)


def tell_routes(groups: dict[str, Any], world: int) -> None:
    for side in (side for side in groups if side.startswith("shmcoll")):
        row = about.route_of(groups[side], world)
        if row:
            print(json.dumps(row | {"backend": side}), flush=True)


def row_of(world: int, size: int, backend: str) -> Row:
    row: Row = {"bench": "all_reduce", "ranks": world, "bytes": size, "backend": backend}
    return row | {"us": None, "best_us": None, "gb_s": None, "wrong": False, "why": ""}


# ---- the parent ----


def stamp(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def await_all(ranks: Sequence[Any], folder: Path, limit_s: float) -> str:
    """ "" when all have ended well; else why they are not waited for any more."""
    begun = time.time()
    first_bad = 0.0
    while any(one.exitcode is None for one in ranks):
        now = time.time()
        if now > begun + limit_s:
            return LATE
        if now > max(stamp(folder / "step"), begun) + STALL_S:
            return f"no step ended in {STALL_S:.0f} s"
        if any(one.exitcode for one in ranks):
            first_bad = first_bad or now
            if now > first_bad + END_S:
                break
        time.sleep(0.02)
    return ""


def end_all(ranks: Sequence[Any]) -> None:
    """Makes each running rank write its stacks, and ends it."""
    for one in (one for one in ranks if one.is_alive()):
        print(parts.stands(one.pid), file=sys.stderr, flush=True)
    for stop in ("terminate", "kill"):
        for one in ranks:
            if one.is_alive():
                getattr(one, stop)()
        end = time.monotonic() + END_S / 2
        for one in ranks:
            one.join(max(0.0, end - time.monotonic()))


def reasons(ranks: Sequence[Any], folder: Path) -> str:
    """The reasons of all ranks that did not end well, the first failure first."""
    found = []
    for said in folder.glob("refused.*"):
        found.append((said.stat().st_mtime, f"rank {said.suffix[1:]}: {said.read_text()}"))
    for rank, one in enumerate(ranks):
        said = folder / f"failed.{rank}"
        if said.exists():
            found.append((said.stat().st_mtime, f"rank {rank}: {said.read_text()}"))
        elif one.exitcode:
            found.append((0.0, f"rank {rank} ended with {one.exitcode}"))
    return "; ".join(text for _, text in sorted(found)[:3])


def run_ranks(
    world: int, limit_s: float, target: Callable[..., None], *args: Any
) -> tuple[str, str, int]:
    """("", "", 0) if all ended well in time; else why not, and the step that was the last: backend
    and size."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="shmcoll-bench-") as name:
        folder = Path(name)
        ranks = [
            context.Process(target=target, args=(rank, world, name, *args), daemon=True)
            for rank in range(world)
        ]
        for one in ranks:
            one.start()
        why = await_all(ranks, folder, limit_s)
        bad = why or any(one.exitcode for one in ranks)
        # Before those that wait are ended: they would end with a status, too.
        why = "; ".join(text for text in (why, reasons(ranks, folder) if bad else "") if text)
        end_all(ranks)
        if not why:
            return "", "", 0
        step = folder / "step"
        backend, size = json.loads(step.read_text()) if step.exists() else ("", 0)
        return why, backend, size


def run_world(world: int, options: argparse.Namespace, end: float) -> bool:
    """True if no run failed. Who fails is left out of the next one, which begins where this ended."""
    able = options.backends.split(",")
    sizes, good = [size for size in SIZES if size <= options.max], True
    while able and sizes and end - time.time() > 5:
        arguments = (options.device, able, sizes, end - 2)
        left = end - time.time() + END_S
        why, backend, size = run_ranks(world, left, measure, *arguments)
        if not why:
            return good
        good = False
        row = row_of(world, size or sizes[0], backend or "+".join(able)) | {"why": why}
        print(json.dumps(row), flush=True)
        able = [name for name in able if backend and name != backend]
        sizes = [one for one in sizes if one >= size]
    return good


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default="gloo,shmcoll,shmcoll rounds")
    parser.add_argument("--worlds", default="2,4,8")
    parser.add_argument("--max", type=size_of, default=size_of("1G"), metavar="SIZE")
    parser.add_argument("--seconds", type=float, default=150, help="for everything")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", action="store_true", help="the rows are JSON anyway")
    options = parser.parse_args(argv)
    good, begun = True, time.time()
    worlds = [int(world) for world in options.worlds.split(",")]
    for number, world in enumerate(worlds):
        left = begun + options.seconds - time.time()
        good &= run_world(world, options, time.time() + left / (len(worlds) - number))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
