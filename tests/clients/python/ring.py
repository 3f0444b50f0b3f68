# SPDX-License-Identifier: BSD-3-Clause
"""Point-to-point by hand: halos of a heat equation, attention whose keys go round, objects."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

COLUMNS = 12  # of each rank's part of the field
TOKENS, WIDTH = 5, 4


def field_of(rank: int, rows: int) -> torch.Tensor:
    return torch.rand(rows, COLUMNS, generator=torch.Generator().manual_seed(rank))


def words_of(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values."""
    return torch.randn(
        3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(50 + rank)
    ).unbind()


def heated(field: torch.Tensor) -> torch.Tensor:
    """One step of a field for all columns but the outermost two; the rows' ends stay as they are."""
    middle = field[1:-1, 1:-1]
    around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
    inner = middle + 0.2 * (around - 4 * middle)
    return torch.cat([field[:1, 1:-1], inner, field[-1:, 1:-1]])


def heat(steps: int, rows: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    field = field_of(rank, rows)
    for _ in range(steps):
        halos = [torch.empty(rows), torch.empty(rows)]
        works = [
            dist.irecv(halos[0], left, tag=1),
            dist.irecv(halos[1], right, tag=2),
            dist.isend(field[:, -1].contiguous(), right, tag=1),
            dist.isend(field[:, 0].contiguous(), left, tag=2),
        ]
        for work in works:
            work.wait()
        field = heated(torch.cat([halos[0][:, None], field, halos[1][:, None]], 1))
    return field


def attention() -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    queries, *block = words_of(rank)
    block = torch.stack(block)
    scores, values = [block[0]] * world, [block[1]] * world
    for turn in range(world):
        owner = (rank - turn) % world
        scores[owner], values[owner] = queries @ block[0].T, block[1]
        following = torch.empty_like(block)
        operations = [
            dist.P2POp(dist.isend, block, (rank + 1) % world),
            dist.P2POp(dist.irecv, following, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        block = following
    return torch.cat(scores, 1).softmax(1) @ torch.cat(values)


def letters() -> torch.Tensor:
    """Each rank adds its own to what it got, and sends it on."""
    rank, world = dist.get_rank(), dist.get_world_size()
    got = [None, None]
    if rank > 0:
        dist.recv_object_list(got, src=rank - 1)
    mine = [(got[0] or []) + [rank] * 1000, {"from": rank}]
    if rank < world - 1:
        dist.send_object_list(mine, dst=rank + 1)
    return torch.tensor(mine[0] + [mine[1]["from"], (got[1] or {}).get("from", -1)])


def collected(part: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rank 0 takes what comes first."""
    if dist.get_rank() > 0:
        dist.send(part, 0)
        return {}
    found = {}
    for _ in range(dist.get_world_size() - 1):
        part = torch.empty_like(part)
        found[f"0: from {dist.recv(part)}"] = part
    return found


def train(backend: str, steps: int = 20, rows: int = 9) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    rank = dist.get_rank()
    field = heat(steps, rows)
    out = {f"{rank}: heat": field, f"{rank}: attention": attention(), f"{rank}: letters": letters()}
    return {**out, **collected(field[:, 1].contiguous())}


def alone(world: int, steps: int = 20, rows: int = 9) -> dict[str, torch.Tensor]:
    """What all ranks together have, from one process."""
    field = torch.cat([field_of(rank, rows) for rank in range(world)], 1)
    for _ in range(steps):
        field = heated(torch.cat([field[:, -1:], field, field[:, :1]], 1))
    words = [words_of(rank) for rank in range(world)]
    keys, values = torch.cat([w[1] for w in words]), torch.cat([w[2] for w in words])
    out = {}
    for rank, part in enumerate(field.chunk(world, 1)):
        out[f"{rank}: heat"] = part
        out[f"{rank}: attention"] = (words[rank][0] @ keys.T).softmax(1) @ values
        passed = [owner for owner in range(rank + 1) for _ in range(1000)]
        out[f"{rank}: letters"] = torch.tensor([*passed, rank, rank - 1])
        if rank > 0:
            out[f"0: from {rank}"] = part[:, 1]
    return out


if __name__ == "__main__":  # torchrun --nproc-per-node 3 ring.py gloo
    print(train(sys.argv[1]))
    dist.destroy_process_group()
