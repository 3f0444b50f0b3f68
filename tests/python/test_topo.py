# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll topo`: what it says about prepared trees, and about this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trees import GPU, TREE, plant, process
from shmcoll.watch import topo


def test_the_distance_of_ranks(tmp_path: Path) -> None:
    placed = {  # rank: CPU that it ran on last, CPUs that it may use
        0: (0, "0"),
        1: (4, "0-7"),
        2: (1, "0-7"),
        3: (2, "0-7"),
        4: (0, "0"),
    }
    files: dict[str, str | None] = {**TREE, **GPU}
    for rank, (last, allowed) in placed.items():
        stat = process(5).rsplit(" 5 0", 1)[0] + f" {last} 0\n"
        files |= {f"proc/{rank + 20}/stat": stat}
        files |= {f"proc/{rank + 20}/status": f"Cpus_allowed_list:\t{allowed}\n"}
    root = plant(tmp_path, files)
    pids = {rank: rank + 20 for rank in placed}
    text = "\n".join(topo.group_lines(root, "0", pids, 100))
    assert "rank 3  pid 23  ran last on CPU 2 (node 1), may use 0-7" in text, text
    assert "-> ranks 0, 4 are all bound to CPU 0" in text, text
    assert text.splitlines()[-5].split() == ["0", "-", "core", "L3", "far", "CPU"], text
    few = "\n".join(topo.group_lines(root, "0", pids, 40)[-1:])
    many = topo.group_lines(root, "0", pids, 30)[-1]
    assert few.split()[-1] == "-" and many.strip() == "pairs of ranks: CPU 1, core 2, L3 3, far 4"
    assert "has ended" in "\n".join(topo.group_lines(root, "0", {0: 99, 1: 20}, 100))


def test_the_machine_as_topo_shows_it(tmp_path: Path) -> None:
    root = plant(tmp_path, {**TREE, **GPU})
    assert topo.machine_lines(root, 100) == [
        "CPUs  1 package, 4 cores, 8 CPUs (0-7) · Test CPU",
        "cache L2 1 MiB, 4 of them: 0,4; 1,5; 2,6; 3,7",
        "cache L3 32 MiB, 2 of them: 0-1,4-5; 2-3,6-7",
        "node  0: CPUs 0-1,4-5, 16.0 GiB",
        "node  1: CPUs 2-3,6-7",
    ]
    assert topo.gpu_lines(root) == [
        "GPUs  driver 570.86.15",
        "GPU   0: NVIDIA H100, 0000:17:00.0, node 1, near CPUs 2-3,6-7",
    ]
    (tmp_path / "empty").mkdir()
    assert topo.machine_lines(tmp_path / "empty", 80) == ["CPUs: /sys says nothing"]


def test_it_shows_this_machine() -> None:
    for columns in (80, 200):
        command = [sys.executable, "-m", "shmcoll", "topo"]
        env = {**os.environ, "COLUMNS": str(columns)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("CPUs"), done
        assert max(map(len, done.stdout.splitlines())) <= columns, done.stdout
    assert subprocess.run([*command, "more"], capture_output=True, check=False).returncode == 64
