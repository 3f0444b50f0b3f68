# SPDX-License-Identifier: BSD-3-Clause
"""What docs/guide/hosts.md tells a user to type, on two hosts."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from hosts import Hosts, Process
from job import INTERFACE

GUIDE = Path(__file__).parents[2] / "docs/guide/hosts.md"
LIMIT_S = 120.0
RANKS = 2  # on each host, where the guide has more

# One write for each line: print() of an unbuffered Python makes several, between which other ranks write.
TRAIN = """
import sys
import torch
import torch.distributed as dist

{init}
rank = dist.get_rank()
t = torch.full((300_000,), rank + 1.0)
dist.all_reduce(t)
everyone = [torch.empty(1) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, torch.tensor([float(rank)]))
values = [one.item() for one in everyone]
sys.stdout.write(f"rank {{rank}} {{t.unique().item()}} {{values}}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def typed(beginning: str) -> list[str]:
    """The lines that the guide says to type, which begin so."""
    return [
        line[4:] for line in GUIDE.read_text().splitlines() if line.startswith(f"    {beginning}")
    ]


def on_both(hosts: Hosts, line: str, folder: Path) -> list[Process]:
    """Types the line on both hosts, as its comment says."""
    line = line.replace("10.0.0.1", hosts.address(0))
    line = re.sub(r"--nproc-per-node=\d+", f"--nproc-per-node={RANKS}", line)
    assert line.count("--node-rank=0") == 1, line
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**INTERFACE, "PATH": path, "OMP_NUM_THREADS": "1"}
    words = [shlex.split(line.replace("--node-rank=0", f"--node-rank={node}")) for node in (0, 1)]
    script = 'cd "$0" && exec "$@"'
    return [
        hosts.run(node, ["sh", "-c", script, str(folder), *words[node]], env=env) for node in (0, 1)
    ]


def test_the_recipe_for_two_hosts_is_right(tmp_path: Path) -> None:
    (command,) = [line for line in typed("torchrun") if "train.py" in line]
    (init,) = typed('dist.init_process_group("shmcoll")')
    (tmp_path / "train.py").write_text(TRAIN.format(init=init))
    with Hosts(2) as hosts:
        both = on_both(hosts, command, tmp_path)
        for process in both:
            assert process.wait(LIMIT_S) == 0, "".join(one.output() for one in both)
        said = "".join(process.output() for process in both)
    for rank in range(2 * RANKS):
        assert f"rank {rank} 10.0 [0.0, 1.0, 2.0, 3.0]" in said, said
    (told,) = re.findall('group "default_pg" is on .*', said)
    assert told.startswith(typed('group "default_pg" is on')[0].partition(":")[0]), told


@pytest.mark.long
def test_the_benchmark_compares_over_hosts(tmp_path: Path) -> None:
    (command,) = [line for line in typed("torchrun") if "shmcoll.bench" in line]
    command = command.partition(" -o ")[0]
    few = f"{command} -o all_reduce,barrier,sendrecv -b 8 -e 64K -f 8192 --rounds 2 --json out.json"
    with Hosts(2) as hosts:
        both = on_both(hosts, few, tmp_path)
        for process in both:
            assert process.wait(LIMIT_S) == 0, "".join(one.output() for one in both)
        said, silent = (process.output() for process in both)
    assert "vs gloo" not in silent and "hosts x ranks: 2 x 2" in said, said
    assert "shmcoll: 2 hosts that share no memory, engine gloo, 2 rails" in said, said
    assert re.search("link: rank 0 to rank 2: [0-9.]+ GB/s .*one connection of gloo", said), said
    for row in ("all_reduce +8 ", "all_reduce +65536 ", "barrier", "sendrecv +65536 "):
        assert re.search(rf"^{row}.*x\)? +0$", said, re.M), said
    assert re.search("(busy|quiet) machine: other processes used", said), said
    assert "wrong values: 0 OK" in said and (tmp_path / "out.json").exists(), said
