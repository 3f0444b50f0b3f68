# SPDX-License-Identifier: BSD-3-Clause
"""A script under torchrun, as users start theirs, over both kinds of store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shmcoll

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
import shmcoll

assert shmcoll.__file__ == sys.argv[1], shmcoll.__file__
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = {} if sys.argv[2] == "env" else dict(
    init_method="file://" + sys.argv[2], rank=rank, world_size=world)
lines = []
for turn in range(2):  # the store of torchrun outlives a world: the second meets the first's keys
    dist.init_process_group("shmcoll", **where)
    other = dist.new_group(backend="shmcoll")
    mine, more = torch.arange(5000.0) + rank, torch.tensor([rank + 10 * turn])
    works = [dist.all_reduce(mine, async_op=True), dist.all_reduce(more, group=other, async_op=True)]
    for work in reversed(works):
        work.wait()
    assert torch.equal(mine, world * torch.arange(5000.0) + sum(range(world)))
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "turn": turn}, group=other)
    lines.append(f"{int(more)} {[one['rank'] for one in objects]} {objects[0]['turn']}")
    if turn == 0 or sys.argv[3] == "destroy":
        dist.destroy_process_group()
    where and where.update(init_method=where["init_method"] + "x")
open(f"{sys.argv[4]}/{rank}", "w").write(chr(10).join(lines))
"""


@pytest.mark.parametrize(
    ("store", "end"),
    [("env", "just end"), pytest.param("file", "destroy", marks=pytest.mark.long)],
)
def test_a_script_runs_under_torchrun(tmp_path: Path, store: str, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    where = "env" if store == "env" else str(tmp_path / "store")
    results = tmp_path / "results"
    results.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), shmcoll.__file__, where, end, str(results)]
    paths = [str(Path(shmcoll.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[shmcoll" not in done.stderr, "the library complains"
    for rank in range(2):
        text = (results / str(rank)).read_text()
        assert text == "1 [0, 1] 0\n21 [0, 1] 1"


def test_torch_has_not_been_asked_for_threads() -> None:
    """ranks.py forks: a test that makes torch's thread pool here breaks the tests after it."""
    assert torch.get_num_threads() == 1
