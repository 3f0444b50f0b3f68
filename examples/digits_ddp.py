#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small convolutional network on handwritten digits with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/digits_ddp.py --backend shmcoll

Any c10d backend for CPU tensors will do. The data are the 1797 images of 8x8 pixels that come with
scikit-learn. Two runs with the same seed and number of ranks do the same arithmetic, so the loss
curves of two backends can be compared: examples/compare_backends.py does that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SCHEMA = "shmcoll.digits/1"
TEST_IMAGES = 360
WARMUP_STEPS = 10  # left out of the times: buffers are allocated, DDP orders its buckets anew


def find_backend(name: str) -> None:
    """Imports shmcoll if it is asked for and torch does not know it by itself."""
    if "shmcoll" in name and not dist.is_backend_available("shmcoll"):
        import shmcoll  # noqa: F401


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train with, images and labels to test with: always the same ones."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=TEST_IMAGES, stratify=digits.target, random_state=0
    )
    return images[train], labels[train], images[test], labels[test]


def make_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class GradientClock:
    """Notes when this rank has computed the last of its gradients.

    Backward reaches the first layer last. Its gradients are seen here just before DDP hands the
    last bucket to the backend: what is left of backward() after that is communication.
    """

    def __init__(self, first_layer: nn.Module) -> None:
        self.time = 0.0
        for parameter in first_layer.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, _: Tensor) -> None:
        self.time = perf_counter()


class Training:
    """The model on one rank, and what its steps took."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.seed, self.batch = args.seed, args.batch
        self.images, self.labels, self.test_images, self.test_labels = load_data()
        model = make_model(args.seed)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.clock = GradientClock(model[0])
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.losses: list[float] = []  # of this rank's batches
        self.step_s: list[float] = []
        self.comm_s: list[float] = []

    def epoch(self, number: int) -> None:
        """All training images once, in an order of this epoch; every rank has its even share."""
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        order = torch.randperm(len(self.labels), generator=generator)
        mine = order[self.rank :: self.world_size][: len(order) // self.world_size]
        for chosen in mine.split(self.batch):
            if len(chosen) == self.batch:
                self.step(self.images[chosen], self.labels[chosen])

    def step(self, images: Tensor, labels: Tensor) -> None:
        begin = perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        averaged = perf_counter()
        self.optimizer.step()
        self.step_s.append(perf_counter() - begin)
        self.comm_s.append(averaged - self.clock.time)
        self.losses.append(loss.item())

    def accuracy(self) -> float:
        """Part of the test images that are recognised; every rank looks at its share."""
        mine = slice(self.rank, None, self.world_size)
        with torch.no_grad():
            answers = self.model.module(self.test_images[mine]).argmax(dim=1)
        right = (answers == self.test_labels[mine]).sum()
        dist.all_reduce(right)
        return int(right) / len(self.test_labels)

    def from_all_ranks(self, values: list[float]) -> list[list[float]]:
        """[rank][step]"""
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyone, mine)
        return [tensor.tolist() for tensor in everyone]


class Progress:
    """Rank 0's display: a bar on a terminal that has rich, else a line for each epoch.

    It moves between epochs only, so that drawing it never falls into the time of a step.
    """

    def __init__(self, epochs: int, title: str, shown: bool) -> None:
        self._epochs = epochs
        self._title = title
        self._shown = shown
        self._bar: Any = None
        if shown and sys.stdout.isatty():
            try:
                from rich.progress import Progress as Bar
            except ImportError:
                pass
            else:
                self._bar = Bar(auto_refresh=False)
                self._task = self._bar.add_task(title, total=epochs)

    def context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._bar is None else self._bar

    def epoch(self, number: int, loss: float, accuracy: float) -> None:
        text = f"{self._title}: loss {loss:.4f}, test accuracy {accuracy:.2%}"
        if self._bar is not None:
            self._bar.update(self._task, completed=number, description=text, refresh=True)
        elif self._shown:
            print(f"epoch {number:{len(str(self._epochs))}}/{self._epochs}  {text}", flush=True)


def train(args: argparse.Namespace) -> dict[str, Any]:
    begin = perf_counter()
    find_backend(args.backend)
    dist.init_process_group(args.backend)
    init_s = perf_counter() - begin
    training = Training(args)
    progress = Progress(args.epochs, args.backend, shown=training.rank == 0)
    accuracy = []
    begin = perf_counter()
    with progress.context():
        for number in range(1, args.epochs + 1):
            done = len(training.losses)
            training.epoch(number)
            accuracy.append(training.accuracy())
            loss = sum(training.losses[done:]) / (len(training.losses) - done)
            progress.epoch(number, loss, accuracy[-1])
    train_s = perf_counter() - begin
    return {
        "schema": SCHEMA,
        "backend": args.backend,
        "torch": torch.__version__,
        "world_size": training.world_size,
        "seed": args.seed,
        "epochs": args.epochs,
        "batch": args.batch,
        "parameters": training.parameters,
        "init_s": init_s,
        "train_s": train_s,
        "accuracy": accuracy,
        "test_accuracy": accuracy[-1],
        **curves(training, args.epochs),
    }


def curves(training: Training, epochs: int) -> dict[str, Any]:
    """Step by step over all ranks, and the medians. README.md defines each figure."""
    mean = [sum(step) / len(step) for step in zip(*training.from_all_ranks(training.losses))]
    step_ms = [1e3 * max(step) for step in zip(*training.from_all_ranks(training.step_s))]
    waits = list(zip(*training.from_all_ranks(training.comm_s)))
    comm_ms = [1e3 * min(step) for step in waits]
    wait_ms = [1e3 * max(step) for step in waits]
    last_epoch = mean[-(len(mean) // epochs) :]
    return {
        "steps": len(mean),
        "losses": mean,
        "final_loss": sum(last_epoch) / len(last_epoch),
        "step_ms": median(step_ms[WARMUP_STEPS:] or step_ms),
        "comm_ms": median(comm_ms[WARMUP_STEPS:] or comm_ms),
        "wait_ms": median(wait_ms[WARMUP_STEPS:] or wait_ms),
        "all_step_ms": step_ms,
        "all_comm_ms": comm_ms,
        "all_wait_ms": wait_ms,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="shmcoll", help="any c10d backend (default: shmcoll)")
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    parser.add_argument("--batch", type=int, default=32, help="images per rank (default: 32)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start me with: torchrun --standalone --nproc-per-node 2 {sys.argv[0]} ...")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    result = train(args)
    if dist.get_rank() == 0:
        print(
            f"{args.backend}: {result['steps']} steps, {result['step_ms']:.2f} ms each, "
            f"{result['comm_ms']:.2f} ms of it in communication; "
            f"test accuracy {result['test_accuracy']:.2%}, final loss {result['final_loss']:.4f}"
        )
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
