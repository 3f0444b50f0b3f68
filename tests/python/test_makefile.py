# SPDX-License-Identifier: BSD-3-Clause
"""What `make build` does again, and when. Its Python is a stand-in that writes down what it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import python_lacks

ROOT = Path(__file__).parents[2]

# $GIVEN: the version that `pip install` gives. It makes its own copy in .venv, as venv does.
PYTHON = f"""#!/bin/sh
echo "$@" >>log
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    *" numpy") mkdir -p site/torch; touch site/torch/__init__.py
        echo "__version__ = '$GIVEN'" >site/torch/version.py ;;
    *" -e .") sed "s/.* = '\\(.*\\)'/{{\\"torch\\": \\"\\1\\"}}/" site/torch/version.py \\
        >python/shmcoll/_build_info.json ;;
    tests/*) PYTHONPATH=site exec {sys.executable} "$@" ;;
esac
"""
SOURCES = ("src/a/b.c", "src/kernels.cu", "src/bodies.cuh", "src/image.cmake", "CMakeLists.txt")
VENV, FETCH, BUILD = "-m venv", "numpy", "-e ."


class Tree:
    def __init__(self, path: Path) -> None:
        self.path = path
        files = (*SOURCES, "setup.py", "pyproject.toml", "python/_shmcoll_autoload.py")
        for file in (*files, "python/shmcoll/__init__.py"):
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).touch()
        shutil.copy(ROOT / "Makefile", path)
        shutil.copytree(
            ROOT / "tests/support",
            path / "tests/support",
            ignore=lambda folder, names: [name for name in names if not name.endswith(".py")],
        )
        (path / "tools").mkdir()
        self.tool("python3", PYTHON)

    def tool(self, name: str, text: str) -> None:
        (self.path / "tools" / name).write_text(text)
        (self.path / "tools" / name).chmod(0o755)

    def make(self, *arguments: str, torch: str = "9.8.0") -> subprocess.CompletedProcess[str]:
        tools = f"{self.path / 'tools'}{os.pathsep}{os.environ['PATH']}"
        left_out = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "TORCH", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return subprocess.run(
            ["make", "--no-print-directory", *arguments],
            cwd=self.path,
            env={**kept, "PATH": tools, "GIVEN": torch},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def build(self, *arguments: str, torch: str = "9.8.0") -> list[str]:
        """Builds, and returns the lines of the log that matter."""
        log = self.path / "log"
        log.unlink(missing_ok=True)
        done = self.make("build", "PACKAGES_BUILD=", *arguments, torch=torch)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = log.read_text().splitlines()
        return [line for line in lines if any(part in line for part in (VENV, FETCH, BUILD))]


@pytest.fixture()
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def kinds(lines: list[str]) -> list[str]:
    return [next(part for part in (VENV, FETCH, BUILD) if part in line) for line in lines]


def test_a_second_build_does_nothing(tree: Tree) -> None:
    assert kinds(tree.build()) == [VENV, FETCH, BUILD]
    assert tree.build() == []


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_that_is_edited_is_built_again(tree: Tree, source: str) -> None:
    tree.build()
    (tree.path / source).write_text("edited")
    assert kinds(tree.build()) == [BUILD]


def test_another_torch_that_is_asked_for_is_fetched_and_stays(tree: Tree) -> None:
    tree.build()
    wanted = "TORCH=torch==2.11.0 --index-url https://example.org"
    lines = tree.build(wanted, torch="2.11.0")
    assert kinds(lines) == [VENV, FETCH, BUILD]
    assert "install -q torch==2.11.0 --index-url https://example.org numpy" in lines[1]
    assert tree.build(wanted) == [] and tree.build() == []


def test_another_torch_that_somebody_has_installed_is_built_for(tree: Tree) -> None:
    tree.build()
    (tree.path / "site/torch/version.py").write_text("__version__ = '9.9.0+cpu'")
    assert kinds(tree.build()) == [BUILD]
    assert "9.9.0+cpu" in (tree.path / "python/shmcoll/_build_info.json").read_text()
    assert tree.build() == []
    (tree.path / "python/shmcoll/_build_info.json").unlink()
    assert kinds(tree.build()) == [BUILD]


@pytest.mark.parametrize("prefix", ["/usr", "/opt/python"])
def test_what_debians_python_lacks_is_asked_for(tree: Tree, prefix: str) -> None:
    poor = f"""#!/bin/sh
exec {sys.executable} -c 'import importlib.util, runpy, sys, sysconfig
sys.base_prefix = "{prefix}"
sys.version_info = type("V", (), dict(major=3, minor=77))
sysconfig.get_path = lambda name: "/nowhere"
importlib.util.find_spec = lambda name: None
runpy.run_path(sys.argv[1], run_name="__main__")' "$@"
"""
    tree.tool("python3", poor)
    tree.tool("dpkg-query", "#!/bin/sh\nexit 1\n")
    tree.tool("id", "#!/bin/sh\necho 1000\n")
    tree.tool("sudo", "#!/bin/sh\nexit 1\n")
    done = tree.make("packages")
    assert done.returncode != 0
    lacks = "python3.77-dev python3.77-venv"
    assert "apt-get install build-essential cmake " in done.stdout, done.stdout
    assert (lacks in done.stdout) == (prefix == "/usr"), done.stdout
    assert "python3-dev python3-venv" not in done.stdout
    done = tree.make("packages", "PYTHON=python3-of-nobody")
    assert "python3-of-nobody-dev python3-of-nobody-venv" in done.stdout


def test_the_python_that_shmcoll_was_built_with_lacks_nothing() -> None:
    assert python_lacks.lacking() == []
