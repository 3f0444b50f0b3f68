#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Goes on with training when a rank dies, with the ranks that are left.

    shmcoll run --survive -n 3 examples/survive.py                      rank 1 is killed at step 50
    shmcoll run --survive -n 8 examples/survive.py --kill 3@20 5@60     others are

torchrun would end all ranks when one has died.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import shmcoll
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """A part of this step's data, for this rank."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(64, 16, generator=generator)
    return inputs, inputs.square().sum(1, keepdim=True).sqrt()


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.step = 0
        self.loss = torch.zeros(())
        self.parallel = DistributedDataParallel(self.model)

    def run_step(self) -> None:
        inputs, wanted = batch_of(self.step)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.parallel(inputs), wanted)
        loss.backward()  # raises on all ranks when one has died
        self.optimizer.step()
        self.loss = loss.detach()
        self.step += 1

    def go_on(self) -> None:
        """After a death: some ranks may have made the last step, and others not. Rank 0's state holds."""
        shmcoll.shrink_group()
        state: list[Any] = [self.step, self.model.state_dict(), self.optimizer.state_dict()]
        dist.broadcast_object_list(state, 0)
        self.step = state[0]
        self.model.load_state_dict(state[1])
        self.optimizer.load_state_dict(state[2])
        self.parallel = DistributedDataParallel(self.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="of training (default 100)")
    parser.add_argument(
        "--kill",
        nargs="*",
        default=["1@50"],
        metavar="RANK@STEP",
        help="which rank is killed, and when (default 1@50)",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("shmcoll")
    rank, ranks = dist.get_rank(), dist.get_world_size()  # as the job has begun
    training = Training()
    lost = False
    while training.step < args.steps:
        if f"{rank}@{training.step}" in args.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if lost:
                training.go_on()  # a rank may die in the middle of this, too
            lost = False
            training.run_step()
        except dist.DistBackendError as error:
            print(f"rank {rank}, step {training.step}: {error}", flush=True)
            lost = True
    loss = training.loss.clone()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} of {ranks} ranks, {args.steps} steps, loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
