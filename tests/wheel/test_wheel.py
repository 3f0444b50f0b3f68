# SPDX-License-Identifier: BSD-3-Clause
"""From the archive of the sources to a wheel, and from there to a sum of two ranks, all of it real.

Minutes, for everything is compiled. tests/python/test_packaging.py has the parts, with stand-ins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/lint"))

from common import repo_files  # noqa: E402

SUM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("shmcoll")  # found by its entry point
mine = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(mine)
assert mine.tolist() == [3.0] * 1000
import os, shmcoll
if os.environ["RANK"] == "0":
    print(f"sum by {shmcoll.__file__}, glue {shmcoll.describe()['glue']}")
dist.destroy_process_group()
"""


def run(*command: object, folder: Path, **env: str) -> str:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja is there
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**kept, "PATH": tools, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check_no_debug(package: Path) -> None:
    """Debug information is elsewhere, and the libraries name its files."""
    libraries = [*package.glob("lib/lib*.so.*"), *package.glob("lib/lib*c10d*.so")]
    assert len(libraries) >= 3, libraries
    command = ["readelf", "-SW", *libraries, *package.glob("_C.*.so")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ".debug_line" not in said
    assert said.count(".gnu_debuglink") == len(command) - 2


def check_c_program(site: Path, folder: Path) -> None:
    """A C program is built with what the wheel has, by a compiler and by CMake."""
    source = ROOT / "examples/c/mean_of_ranks.c"

    def tell(option: str) -> list[str]:
        return run("-m", "shmcoll", option, folder=folder, PYTHONPATH=str(site)).split()

    flags = [*tell("--cflags"), *tell("--libs")]
    (cmakedir,) = tell("--cmakedir")
    build, project = folder / "user", ROOT / "tests/clients/find_package"
    for command in (
        ["cc", source, *flags, "-o", folder / "by_flags"],
        ["cmake", "-S", project, "-B", build, f"-DSOURCE={source}", f"-Dshmcoll_DIR={cmakedir}"],
        ["cmake", "--build", build],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for program in (folder / "by_flags", build / "program"):
        said = subprocess.run([program, "2"], capture_output=True, text=True, check=True).stdout
        assert said.startswith("2 ranks, mean of element 10: 10.5"), said


@pytest.mark.timeout(3000)
def test_the_archive_becomes_a_wheel_that_works_anywhere(tmp_path: Path) -> None:
    tree, out, site = tmp_path / "tree", tmp_path / "out", tmp_path / "site"
    for file in repo_files(ROOT):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    run("setup.py", "-q", "sdist", "-d", out, folder=tree)
    (archive,) = out.iterdir()
    pip = ("-m", "pip", "--disable-pip-version-check")
    build = ("--no-build-isolation", "--no-deps", "--no-index")
    # Kernels for one kind of GPU: for all they take minutes.
    run(*pip, "wheel", *build, "-w", out, archive, folder=tmp_path, SHMCOLL_CUDA_ARCHS="90")
    (wheel,) = out.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel, folder=tmp_path)
    shutil.rmtree(tree)
    check_no_debug(site / "shmcoll")
    check_c_program(site, tmp_path)

    (tmp_path / "sum.py").write_text(SUM)
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "sum.py")
    minor = ".".join(torch.__version__.split(".")[:2])
    for module in ("with", "without"):  # the second: as on another Python than this one
        said = run(*start, folder=tmp_path, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
        glue = f"{minor}, {module} shmcoll._C"
        assert f"sum by {site}/shmcoll/__init__.py, glue {glue}" in said, said
        for file in (site / "shmcoll").glob("_C.*.so"):
            file.unlink()
