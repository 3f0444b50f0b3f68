# SPDX-License-Identifier: BSD-3-Clause
"""torch's FileStore, in which torch reads for ever once a process has ended in the middle of a write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW_WRITE = Path(__file__).with_name("slow_write.c")
LIMIT_S = 60.0

# Rank 1 ends while its thread says in the store that a call is late. It is a process of multiprocessing: one that ends by
# os._exit, without the destructor of the store, which would wait, too.
RANK = """
import ctypes, multiprocessing, sys, time
import torch
import torch.distributed as dist

def be_rank(path, rank):
    store = dist.FileStore(path, 2)
    dist.init_process_group("shmcoll", store=store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        print("met", flush=True)
        sys.stdin.readline()
        store.set("read by", "rank 0")
        print("rank 0 has read all", flush=True)
        return
    slow = {name: ctypes.c_int.in_dll(ctypes.CDLL(None), f"slow_write_{name}")
            for name in ("armed", "begun", "go_on")}
    slow["armed"].value = 1
    late = dist.all_reduce(torch.ones(4), async_op=True)
    while not slow["begun"].value:
        time.sleep(0.001)
    print("rank 1 ends", flush=True)
    slow["go_on"].value = 1
    raise ValueError("as it should be")

path, rank = sys.argv[1], int(sys.argv[2])
if rank == 0:
    sys.exit(be_rank(path, rank))
process = multiprocessing.get_context("fork").Process(target=be_rank, args=(path, rank))
process.start()
process.join()
sys.exit(process.exitcode)
"""


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_process_ends_after_the_write_that_a_thread_is_in(tmp_path: Path) -> None:
    library, path = tmp_path / "slow_write.so", tmp_path / "store"
    build = ["cc", f"-I{ROOT}/src", "-shared", "-fPIC", "-o", library, SLOW_WRITE, "-ldl"]
    subprocess.run(build, check=True)
    env = {**os.environ, "SHMCOLL_FAKE_HOSTS": "2x1", "GLOO_SOCKET_IFNAME": "lo"}
    env["SHMCOLL_LATE_MS"] = "100"
    slow = {**env, "LD_PRELOAD": str(library), "SLOW_WRITE": str(path)}
    command = [sys.executable, "-c", RANK, str(path)]
    with subprocess.Popen(
        [*command, "0"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            writer = subprocess.run(
                [*command, "1"], env=slow, capture_output=True, text=True, timeout=LIMIT_S
            )
            assert writer.returncode == 1 and "as it should be" in writer.stderr, writer.stderr
            assert writer.stdout == "rank 1 ends\nthe write goes on\n"
            said, _ = reader.communicate("\n", timeout=LIMIT_S)
            assert said == "met\nrank 0 has read all\n"
        finally:
            reader.kill()


# Rank 0 prints how long the file is, at first and after many looks for late calls and for ranks that have left.
IDLE = """
import os, sys, time
import torch
import torch.distributed as dist

path, rank = sys.argv[1], int(sys.argv[2])
store = dist.FileStore(path, 2)
dist.init_process_group("shmcoll", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
time.sleep(1)
before = os.path.getsize(path)
time.sleep(2)
after = os.path.getsize(path)
dist.all_reduce(torch.ones(4))
if rank == 0:
    print(before, after, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_file_of_a_store_does_not_grow_while_a_group_is_idle(tmp_path: Path) -> None:
    env = {**os.environ, "SHMCOLL_FAKE_HOSTS": "2x1", "GLOO_SOCKET_IFNAME": "lo"}
    env["SHMCOLL_LATE_MS"] = "100"
    command = [sys.executable, "-c", IDLE, str(tmp_path / "store")]
    with subprocess.Popen([*command, "1"], env=env) as other:
        try:
            said = subprocess.run(
                [*command, "0"], env=env, capture_output=True, text=True, timeout=LIMIT_S
            )
            assert said.returncode == 0, said.stderr
            before, after = map(int, said.stdout.split())
            assert before == after > 0
            assert other.wait(LIMIT_S) == 0
        finally:
            other.kill()
