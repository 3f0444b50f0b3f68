# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench with MPI in its table: with a made-up MPI, and with those that are here."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from bench_runs import TINY, ranks_of, rows_of, run_bench, start_bench, wait_until_gone

from shmcoll.bench import options
from shmcoll.bench.run import mpirun, started_by
from shmcoll.bench.run.torch_team import Refused
from shmcoll.bench.run.mpi_team import MpiTeam
from shmcoll.bench.ops import OPS
from shmcoll.bench.results import read

pytestmark = pytest.mark.timeout(120)

# What mpi4py has, over gloo.
FAKE_MPI = """
import ctypes, os
import torch, torch.distributed as dist
FLOAT = INT8_T = UINT8_T = INT16_T = UINT16_T = INT32_T = UINT32_T = INT64_T = torch.float32
DOUBLE = UINT64_T = C_FLOAT_COMPLEX = C_DOUBLE_COMPLEX = C_BOOL = torch.float32
IN_PLACE, SUM, LOR = "in place", "sum", "lor"
class Datatype: pass
class Op: pass
class Request: pass
class buffer:
    @staticmethod
    def fromaddress(address, count):
        return (ctypes.c_byte * count).from_address(address)
def tensor(spec):
    memory, count, dtype = spec
    return torch.frombuffer(memory, dtype=dtype, count=count)
def get_vendor():
    return os.environ.get("FAKE_VENDOR", "Open MPI"), (4, 1, 4)
def Finalize():
    dist.destroy_process_group()
class COMM_WORLD:
    def __init__(self):
        rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
        dist.init_process_group("gloo", store=dist.FileStore(os.environ["FAKE_STORE"], size),
                                rank=rank, world_size=size)
        self.Get_rank, self.Get_size, self.Barrier = dist.get_rank, dist.get_world_size, dist.barrier
    def Allreduce(self, given, got, op):
        assert (given, op) == (IN_PLACE, SUM)
        dist.all_reduce(tensor(got))
        if "FAKE_SPOIL" in os.environ and dist.get_rank() == 1:
            tensor(got)[5] += 1
    def Bcast(self, data, root):
        dist.broadcast(tensor(data), root)
COMM_WORLD = COMM_WORLD()
"""

FAKE_MPIRUN = f"""#!{sys.executable}
import os, subprocess, sys
if "--version" in sys.argv:
    sys.exit(print("mpirun (Open MPI) 4.1.4"))
count = int(sys.argv[sys.argv.index("-n") + 1])
program = sys.argv[sys.argv.index("-n") + 2:]
def start(rank):
    told = {{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(count)}}
    return subprocess.Popen(program, env={{**os.environ, **told}})
sys.exit(max(rank.wait() for rank in [start(rank) for rank in range(count)]))
"""


@pytest.fixture(name="made_up")
def fixture_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, programs = tmp_path / "mpi4py", tmp_path / "bin"
    for folder in (package, programs):
        folder.mkdir()
    (package / "__init__.py").write_text("class rc: thread_level = None\n")
    (package / "MPI.py").write_text(FAKE_MPI)
    (programs / "mpirun.openmpi").write_text(FAKE_MPIRUN)
    (programs / "mpirun.openmpi").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE_STORE", str(tmp_path / "fake_store"))


OPENMPI = ("--backends", "openmpi,gloo", "-g", "2", "-b", "4K")


@pytest.mark.long
@pytest.mark.usefixtures("made_up")
def test_mpi_has_a_column_and_what_it_has_no_type_for_is_no_fault(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ops = ("-o", "all_reduce,broadcast,barrier", "-d", "float32,bfloat16", "--json", str(out))
    done = run_bench(tmp_path, *OPENMPI, *ops, *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert [(row[0], row[3]) for row in rows] == [
        ("all_reduce", "float32"),
        ("all_reduce", "bfloat16"),
        ("broadcast", "float32"),
        ("broadcast", "bfloat16"),
        ("barrier", "-"),
    ]
    assert [row[6] == "-" for row in rows] == [False, True, False, True, False]
    assert [row[10] == "-" for row in rows] == [False, True, False, True, False]
    assert "# openmpi: all_reduce: MPI has no type for bfloat16\n" in done.stdout
    cells = [row["backends"]["openmpi"] for row in json.loads(out.read_text())["results"]]
    assert [cell["unsupported"] for cell in cells] == [False, True, False, True, False]
    assert all(len(cell["rounds"]) == 2 for cell in cells if not cell["unsupported"])


@pytest.mark.long
@pytest.mark.usefixtures("made_up")
def test_a_run_of_nothing_but_unsupported_is_good(tmp_path: Path) -> None:
    done = run_bench(tmp_path, *OPENMPI, "-o", "all_reduce", "-d", "bfloat16", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("made_up")
def test_wrong_values_of_mpi_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SPOIL", "1")
    done = run_bench(tmp_path, *OPENMPI, "-o", "all_reduce", *TINY)
    assert done.returncode == 1
    assert "# WRONG: openmpi: all_reduce: 2 elements in 1 row\n" in done.stdout


@pytest.mark.usefixtures("made_up")
def test_another_mpi_than_the_one_asked_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VENDOR", "MPICH")
    done = run_bench(tmp_path, *OPENMPI, "-o", "barrier", *TINY)
    assert "backend 'openmpi' cannot be used: this mpi4py uses MPICH, not Open MPI" in done.stderr
    done = run_bench(tmp_path, "--backends", "mpich", "-g", "2", *TINY)
    assert done.returncode == 2
    assert "backend 'mpich' cannot be used: no mpirun of MPICH: neither mpiexec" in done.stderr


def test_without_mpi4py_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    settings, _ = options.parse(["--backends", "openmpi"])
    with pytest.raises(Refused, match=r"^mpi4py is not installed: pip install shmcoll\[mpi\]$"):
        MpiTeam("openmpi", "openmpi", settings, tmp_path).start()


def test_a_rank_that_is_not_started_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such host')"]
    monkeypatch.setattr(mpirun, "command", lambda *_, **__: command)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    team = MpiTeam("mpich", "mpich", options.parse(["--backends", "mpich"])[0], tmp_path)
    team.start()
    with pytest.raises(Exception, match="ended with exit code 1; its last line: no such host"):
        team.join()
    team.stop(at_once=True)


def test_no_mpirun_hears_of_the_launcher_of_this_process() -> None:
    under = {"PMI_RANK": "1", "PMI_SIZE": "2", "OMPI_MCA_btl": "self", "HOME": "/"}
    assert started_by.without(under) == {"HOME": "/"}
    alone = {"OMPI_MCA_btl": "self", "HOME": "/"}
    assert started_by.without(alone) == alone
    assert started_by.rank_of({"RANK": "5", "PMI_RANK": "1"}) == 1


def test_a_launcher_is_known_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two MPIs have programs of one name. That of a wheel is on no PATH, and has its library next to it."""

    def plant(path: Path, says: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)

    plant(tmp_path / "system" / "mpiexec.hydra", "HYDRA build details:")
    plant(tmp_path / "bin" / "mpiexec.hydra", "Intel(R) MPI Library for Linux* OS")
    monkeypatch.setenv("PATH", str(tmp_path / "system"))  # without this machine's MPIs
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    assert mpirun.command("intelmpi", 2, bind=True) is None
    assert mpirun.MPIS["openmpi"].launcher() is None
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert mpirun.MPIS["mpich"].launcher() == "mpiexec.hydra"
    for path in (f"{tmp_path}/system", f"{tmp_path}/bin:{tmp_path}/system"):  # or activated
        monkeypatch.setenv("PATH", path)
        assert mpirun.command("intelmpi", 2, bind=True) == [
            f"{tmp_path}/bin/mpiexec.hydra",
            *("-genv", "LD_LIBRARY_PATH", f"{tmp_path}/lib", "-genv", "I_MPI_FABRICS", "shm"),
            *("-n", "2"),
        ]


# ---- those that are here ----


def here(name: str) -> str:
    if importlib.util.find_spec("mpi4py") is None or mpirun.MPIS[name].launcher() is None:
        pytest.skip(f"no mpi4py or no mpirun of {name}")
    return name


@pytest.mark.parametrize("name", mpirun.MPIS)
def test_every_operation_of_an_mpi_is_right(tmp_path: Path, name: str) -> None:
    dtypes = ("-d", "float32,int8,uint64,complex64,bool", "--place", "both")
    args = ("--backends", here(name), "-g", "2", "-o", "all", *dtypes, "-n", "3")
    done = run_bench(tmp_path, *args, *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row[0] for row in rows_of(done.stdout) if row[6] != "-"} == set(OPS)
    assert "# wrong values: 0 OK" in done.stdout
    wait_until_gone(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", mpirun.MPIS)
@pytest.mark.parametrize("mode", ["--overlap", "--mode throughput", "--groups 2 -g 4"])
def test_an_mpi_is_measured_in_all_ways(tmp_path: Path, name: str, mode: str) -> None:
    args = ("--backends", here(name), "-g", "2", "-o", "all", "-b", "4K", "-n", "2")
    done = run_bench(tmp_path, *args, *mode.split(), *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([row for row in rows_of(done.stdout) if row[6] != "-"]) == len(OPS)


@pytest.mark.long
@pytest.mark.parametrize("name", mpirun.MPIS)
def test_each_pair_of_an_mpi_is_measured(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.json"
    args = ("--backends", here(name), "-g", "3", "--matrix", "-n", "2", "--rounds", "1")
    done = run_bench(tmp_path, *args, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# wrong values: 0 OK" in done.stdout
    assert len(read(out).rows) == 12


@pytest.mark.parametrize("name", mpirun.MPIS)
def test_a_rank_of_an_mpi_that_dies_ends_its_column(tmp_path: Path, name: str) -> None:
    args = ("--backends", here(name), "-g", "2", "-o", "all_reduce", "-f", "64", "--rounds", "2")
    bench = start_bench(tmp_path, *args, "--point-time", "0.5")
    assert bench.stdout is not None
    for line in bench.stdout:
        if line.startswith("all_reduce"):
            break
    os.kill(ranks_of(tmp_path)[-1], signal.SIGKILL)
    rest, errors = bench.communicate(timeout=60)
    assert bench.returncode == 1, rest + errors
    assert f"backend '{name}' failed: rank" in errors
    wait_until_gone(tmp_path)
