# SPDX-License-Identifier: BSD-3-Clause
"""Any Python object, over collectives."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def train(backend: str) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = {
        "rank": rank,
        "name": "r" * (rank + 1),
        "data": torch.full((100 * rank + 1,), 1.0 + rank),
    }

    everyone = [None] * world
    dist.all_gather_object(everyone, mine)
    at_last = [None] * world if rank == world - 1 else None
    dist.gather_object(mine, at_last, dst=world - 1)
    from_first = [mine, [rank] * 1000]
    dist.broadcast_object_list(from_first, src=0)
    got = [None]
    dist.scatter_object_list(got, everyone[::-1] if rank == 1 else None, src=1)
    found = {
        **{f"all {i}": one["data"] for i, one in enumerate(everyone)},
        **{f"gathered {i}": one["data"] for i, one in enumerate(at_last or ())},
        "names": torch.tensor([len(one["name"]) for one in everyone]),
        "first": from_first[0]["data"],
        "list": torch.tensor(from_first[1]),
        "scattered": got[0]["data"],
    }
    return found


if __name__ == "__main__":  # torchrun --nproc-per-node 2 objects.py gloo
    print(train(sys.argv[1])["names"])
    dist.destroy_process_group()
