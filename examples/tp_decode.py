#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tensor-parallel decoding of a small Llama-like model: what does each token spend in communication?

    torchrun --standalone --nproc-per-node 2 examples/tp_decode.py

The weights are random, so nothing is downloaded. Every rank holds a part of each matrix: two all_reduces
for each layer and one all_gather of the logits for each token. The same tokens are made

    gloo       through torch.distributed, with gloo,
    shmcoll    through torch.distributed, with shmcoll,
    direct     by shmcoll's direct calls (docs/guide/inference.md),
    vllm       by the shared memory operators of vLLM, where its package is installed.

The forms take turns, so a busy machine slows all of them. With two ranks the program fails if gloo and
shmcoll differ in a token. vLLM's operators may: they round sums of bf16 towards zero (--dtype fp32: equal).
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import shmcoll

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


# ---- the forms: all_reduce in place; all_gather of equal parts ----


class ThroughTorch:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)

    def all_gather(self, output: Tensor, part: Tensor) -> None:
        # Its name since torch 2.13, and before.
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        gather(output, part, group=self.group)


class Direct:
    def __init__(self, group: dist.ProcessGroup) -> None:
        bound = shmcoll.direct(group)
        self.all_reduce, self.all_gather = bound.all_reduce, bound.all_gather_into


class Vllm:
    """The operators that vLLM's CPU communicator calls."""

    def __init__(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        found: list[Any] = [f"tp_decode_{os.environ['MASTER_PORT']}"]
        dist.broadcast_object_list(found)
        name = found[0]
        ops: Any = torch.ops._C
        self.handle = ops.init_shm_manager(name, world, rank, torch.get_num_threads())
        dist.barrier()
        ops.join_shm_manager(self.handle, name)
        dist.barrier()
        self.ops = ops

    @staticmethod
    def library() -> str | None:
        """The file with the operators, or None."""
        package = importlib.util.find_spec("vllm")
        folders = package.submodule_search_locations if package else None
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = ("_C_AVX512", "_C") if "avx512f" in file.read() else ("_C_AVX2", "_C")
        for folder in folders or ():
            for name in names:
                for path in glob.glob(f"{folder}/{name}.*so"):
                    return path
        return None

    def all_reduce(self, tensor: Tensor) -> None:
        self.ops.shm_allreduce(self.handle, tensor)

    def all_gather(self, output: Tensor, part: Tensor) -> None:
        self.ops.shm_all_gather(self.handle, part, output)


def forms_of_this_machine() -> dict[str, Any]:
    shm = dist.new_group(backend="shmcoll")
    forms: dict[str, Any] = {
        "gloo": ThroughTorch(dist.new_group(backend="gloo")),
        "shmcoll": ThroughTorch(shm),
        "direct": Direct(shm),
    }
    library = Vllm.library()
    if library is None:
        return forms
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        forms["vllm"] = Vllm()
    except (OSError, RuntimeError, AttributeError) as error:
        say(f"vllm is left out: {str(error).splitlines()[0]}")
    return forms


# ---- the model ----


@dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    batch: int
    tokens: int
    dtype: str

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def error(self, world: int) -> str:
        """Why it cannot be divided among so many ranks, or ""."""
        for name in ("layers", "hidden", "heads", "ffn", "vocab", "batch", "tokens"):
            if getattr(self, name) < 1:
                return f"--{name} must be at least 1"
        if self.hidden % self.heads or self.head % 2:
            return "--hidden must be an even multiple of --heads"
        for name in ("heads", "ffn", "vocab"):
            if getattr(self, name) % world:
                return f"--{name} {getattr(self, name)} cannot be divided among {world} ranks"
        return ""


@dataclass
class Layer:
    """This rank's rows of wq, wk, wv, gate and up, and its columns of out and down."""

    wqkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


def part(whole: Tensor, dim: int) -> Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


class Model:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        random = torch.Generator().manual_seed(1)
        dtype = DTYPES[shape.dtype]

        def weights(rows: int, columns: int) -> Tensor:
            made = torch.randn(rows, columns, generator=random) / math.sqrt(columns)
            return made.to(dtype)

        hidden, ffn = shape.hidden, shape.ffn
        self.embedding = weights(shape.vocab, hidden) * math.sqrt(hidden)
        self.layers = []
        for _ in range(shape.layers):
            qkv = torch.cat([part(weights(hidden, hidden), 0) for _ in range(3)])
            out = part(weights(hidden, hidden), 1)
            gate_up = torch.cat([part(weights(ffn, hidden), 0) for _ in range(2)])
            self.layers.append(Layer(qkv, out, gate_up, part(weights(hidden, ffn), 1)))
        self.head = part(weights(shape.vocab, hidden), 0)
        turns = 10000 ** (-torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.arange(shape.tokens)[:, None] * turns
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


@dataclass
class Run:
    """One sequence of tokens, with the seconds of each token and of each collective in it."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    calls: list[list[float]] = field(default_factory=list)


class Decoder:
    """Makes the tokens of one run. Its caches grow with each token."""

    def __init__(self, model: Model, form: Any) -> None:
        shape = model.shape
        self.model, self.form = model, form
        own = shape.heads // dist.get_world_size()
        size = (shape.layers, 2, shape.batch, own, shape.tokens, shape.head)
        self.cache = torch.zeros(size, dtype=DTYPES[shape.dtype])
        self.calls: list[float] = []

    def timed(self, call: Any, *tensors: Tensor) -> None:
        begun = time.perf_counter()
        call(*tensors)
        self.calls.append(time.perf_counter() - begun)

    def rotate(self, x: Tensor, at: int) -> Tensor:
        one, two = x.chunk(2, -1)
        cos, sin = self.model.cos[at], self.model.sin[at]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def attention(self, x: Tensor, index: int, at: int) -> Tensor:
        shape, layer = self.model.shape, self.model.layers[index]
        q, k, v = F.linear(norm(x), layer.wqkv).view(shape.batch, 3, -1, shape.head).unbind(1)
        keys, values = self.cache[index]
        keys[:, :, at] = self.rotate(k, at)
        values[:, :, at] = v
        q = self.rotate(q, at).unsqueeze(2)
        seen = F.scaled_dot_product_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1])
        return F.linear(seen.reshape(shape.batch, -1), layer.out)

    def token(self, previous: Tensor, at: int) -> Tensor:
        model = self.model
        x = model.embedding[previous]
        for index, layer in enumerate(model.layers):
            part_of_sum = self.attention(x, index, at)
            self.timed(self.form.all_reduce, part_of_sum)
            x = x + part_of_sum
            gate, up = F.linear(norm(x), layer.gate_up).chunk(2, -1)
            part_of_sum = F.linear(F.silu(gate) * up, layer.down)
            self.timed(self.form.all_reduce, part_of_sum)
            x = x + part_of_sum
        logits = F.linear(norm(x), model.head)
        world = dist.get_world_size()
        gathered = logits.new_empty((world * logits.shape[0], logits.shape[1]))
        self.timed(self.form.all_gather, gathered, logits)
        whole = gathered.view(world, *logits.shape).transpose(0, 1).flatten(1)
        return whole.argmax(-1)


def decode(model: Model, form: Any) -> Run:
    decoder, run = Decoder(model, form), Run()
    token = torch.arange(model.shape.batch) % model.shape.vocab
    dist.barrier()
    for at in range(model.shape.tokens):
        begun = time.perf_counter()
        decoder.calls = []
        token = decoder.token(token, at)
        run.seconds.append(time.perf_counter() - begun)
        run.calls.append(decoder.calls)
        run.tokens.append(token.tolist())
    return run


# ---- figures ----


@dataclass
class Figures:
    """Of all runs of a form, on all ranks: medians over the tokens, in milliseconds."""

    token_ms: float
    comm_ms: float


def figures(runs: list[Run]) -> Figures:
    """A collective's time is that of the rank that waits least in it: the others also wait for that rank."""
    mine = torch.tensor([run.calls for run in runs], dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MIN)
    # The first tokens of a run touch new memory.
    comm = mine.sum(-1)[:, 4:].flatten()
    whole = torch.tensor([run.seconds for run in runs], dtype=torch.float64)
    dist.all_reduce(whole, dist.ReduceOp.MAX)
    seconds = whole[:, 4:].flatten()
    return Figures(
        statistics.median(seconds.tolist()) * 1000, statistics.median(comm.tolist()) * 1000
    )


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def progress(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"# {text}", file=sys.stderr, flush=True)


def draw(found: dict[str, Figures], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(found)
    comm = [found[name].comm_ms for name in names]
    rest = [found[name].token_ms - found[name].comm_ms for name in names]
    figure, axes = plt.subplots(figsize=(7, 0.6 * len(names) + 1.6), layout="constrained")
    axes.barh(names, rest, color="#9aa5b1", label="computation, and waiting for slower ranks")
    axes.barh(names, comm, left=rest, color="#d1495b", label="communication")
    for row, name in enumerate(names):
        axes.annotate(
            f"{found[name].token_ms:.2f} ms", (found[name].token_ms, row), (4, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("time per token (ms)")
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value, what in (
        ("layers", 8, "layers of the model"),
        ("hidden", 512, "elements of a token's vector"),
        ("heads", 16, "heads of the attention"),
        ("ffn", 1536, "elements between the two halves of the feed-forward part"),
        ("vocab", 8192, "tokens that there are"),
        ("batch", 4, "sequences at once"),
        ("tokens", 64, "tokens of a run"),
        ("rounds", 5, "runs of each form"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what} ({value})")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--forms", default="", help="of these forms alone: gloo,direct")
    parser.add_argument("--json", type=Path, help="writes the figures to this file")
    parser.add_argument(
        "--chart", type=Path, help="draws them (.png, .svg, .pdf; needs matplotlib)"
    )
    return parser.parse_args()


def pin() -> None:
    """Each rank has its own CPUs, if there are enough."""
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) >= ranks:
        mine = cpus[rank * len(cpus) // ranks : (rank + 1) * len(cpus) // ranks]
        os.sched_setaffinity(0, mine)
        torch.set_num_threads(len(mine))
    else:
        torch.set_num_threads(1)


def main() -> int:
    options = arguments()
    if "LOCAL_RANK" not in os.environ:
        print("start me with: torchrun --standalone --nproc-per-node 2", __file__, file=sys.stderr)
        return 2
    pin()
    dist.init_process_group("shmcoll")
    shape = Shape(**{name: getattr(options, name) for name in Shape.__dataclass_fields__})
    error = shape.error(dist.get_world_size())
    forms = {} if error else forms_of_this_machine()
    wanted = [name for name in options.forms.split(",") if name] or list(forms)
    if not error and (unknown := [name for name in wanted if name not in forms]):
        error = f"there is no form {unknown[0]!r}; there are {', '.join(forms)}"
    if error:
        if dist.get_rank() == 0:
            print(f"tp_decode.py: {error}", file=sys.stderr)
        return 2

    runs: dict[str, list[Run]] = {name: [] for name in wanted}
    with torch.inference_mode():
        model = Model(shape)
        progress("warming up")
        for name in wanted:
            decode(model, forms[name])  # not counted
        for number in range(1, options.rounds + 1):
            progress(f"round {number} of {options.rounds}")
            for name in wanted:
                runs[name].append(decode(model, forms[name]))
    return report(options, shape, runs)


def report(options: argparse.Namespace, shape: Shape, runs: dict[str, list[Run]]) -> int:
    found = {name: figures(those) for name, those in runs.items()}
    first = next(iter(runs))
    reference = runs[first][0].tokens
    wrong = [name for name, those in runs.items() if any(run.tokens != reference for run in those)]
    world = dist.get_world_size()
    bytes_of_a_sum = shape.batch * shape.hidden * DTYPES[shape.dtype].itemsize
    title = (
        f"{world} ranks, {shape.layers} layers, batch {shape.batch}, {shape.dtype}: "
        f"{2 * shape.layers} all_reduces of {bytes_of_a_sum} bytes a token"
    )
    say(f"{title}\n\n{'form':10}{'ms per token':>14}{'communication':>16}{first + ' / form':>18}")
    for name, one in found.items():
        ratio = found[first].token_ms / one.token_ms
        say(f"{name:10}{one.token_ms:14.3f}{one.comm_ms:16.3f}{ratio:17.2f}x")
    load = os.getloadavg()[0]
    if load > world + 1:
        say(f"\nthe machine was busy: a load of {load:.0f}")
    said = f"those of {', '.join(wrong)} differ from {first}'s" if wrong else "all equal"
    if wrong == ["vllm"] and shape.dtype == "bf16":
        said += ": vLLM's operator rounds sums of bf16 towards zero"
    say(f"\ntokens: {said}")
    if dist.get_rank() == 0 and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: vars(one) for name, one in found.items()}
        text = {"schema": "shmcoll.tp_decode/1", "world_size": world, **vars(shape), "forms": rows}
        options.json.write_text(json.dumps(text, indent=1) + "\n")
    if dist.get_rank() == 0 and options.chart:
        draw(found, title, options.chart)
    dist.barrier()
    dist.destroy_process_group()
    # More than two ranks may be added in another order, and a rounded sum may choose another token.
    return 1 if world == 2 and set(wrong) - {"vllm"} else 0


if __name__ == "__main__":
    sys.exit(main())
