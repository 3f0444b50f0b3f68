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


@pytest.mark.timeout(1200)
def test_the_archive_becomes_a_wheel_that_works_anywhere(tmp_path: Path) -> None:
    tree, out, site = tmp_path / "tree", tmp_path / "out", tmp_path / "site"
    for file in repo_files(ROOT):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    run("setup.py", "-q", "sdist", "-d", out, folder=tree)
    (archive,) = out.iterdir()
    pip = ("-m", "pip", "--disable-pip-version-check")
    build = ("--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "wheel", *build, "-w", out, archive, folder=tmp_path)
    (wheel,) = out.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel, folder=tmp_path)
    shutil.rmtree(tree)

    (tmp_path / "sum.py").write_text(SUM)
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "sum.py")
    minor = ".".join(torch.__version__.split(".")[:2])
    for module in ("with", "without"):  # the second: as on another Python than this one
        said = run(*start, folder=tmp_path, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
        glue = f"{minor}, {module} shmcoll._C"
        assert f"sum by {site}/shmcoll/__init__.py, glue {glue}" in said, said
        for file in (site / "shmcoll").glob("_C.*.so"):
            file.unlink()
