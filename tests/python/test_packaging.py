# SPDX-License-Identifier: BSD-3-Clause
"""What setup.py puts where, and in which order. Nothing is compiled: torch's part of it and cmake are
stand-ins that write a word where the real ones write a library. `make wheel` builds a real one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests/lint"), str(ROOT / "packaging")]

import elf  # noqa: E402
import groups  # noqa: E402
import release  # noqa: E402
import shmcoll  # noqa: E402
from common import repo_files  # noqa: E402

VERSION = release.current()
MAJOR = VERSION.partition(".")[0]
FILES = repo_files(ROOT)
NEEDED = re.compile(
    r"(python|src/backend)/|(src/shm/shmcoll.h|setup.py|pyproject.toml|README.md|LICENSE)$"
)

TORCH = """
import os
__version__ = os.environ["STAND_IN_TORCH"]
"""
CPP_EXTENSION = """
import pathlib
from setuptools import Extension as CppExtension
from setuptools.command.build_ext import build_ext

class BuildExtension(build_ext):
    def build_extension(self, ext):
        for name in ext.libraries:  # the linker's view
            assert any((pathlib.Path(d) / f"lib{name}.so").exists() for d in ext.library_dirs)
        path = pathlib.Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of the objects in {self.build_temp}, {self.force=}")
"""
CMAKE = """#!/bin/sh
echo "$@" >>"$STAND_IN_LOG"
echo "-- GPU kernels: a stand-in"
if [ "$1" = --install ]; then
    for file in $STAND_IN_FOR_C; do
        mkdir -p "$(dirname "$4/$file")"
        echo a stand-in >"$4/$file"
    done
fi
[ "$1" = --build ] || exit 0
mkdir -p "$2/src/backend"
major=$(sed -n 's/^#define SHC_VERSION_MAJOR //p' src/shm/shmcoll.h)
for torch in $STAND_IN_TORCH $STAND_IN_MORE_TORCH; do
    echo "$STAND_IN_CORE" >"$2/src/backend/libshmcoll_c10d-${torch%.*}.so"
done
for library in shm/libshmcoll cuda_ipc/libshmcoll_cuda; do
    mkdir -p "$2/src/${library%/*}"
    echo "$STAND_IN_CORE" >"$2/src/$library.so.$major.1"
    ln -sf "${library##*/}.so.$major.1" "$2/src/$library.so.$major"
    ln -sf "${library##*/}.so.$major" "$2/src/$library.so"
done
"""
FOR_C = (
    "include/shm/shmcoll.h",
    "include/shm/shmcoll_memory.h",
    "lib/pkgconfig/shmcoll.pc",
    "lib/cmake/shmcoll/shmcollConfig.cmake",
)
# Splits off debug information, of files that are none of its own.
OBJCOPY = """#!/bin/sh
echo objcopy "$@" >>"$STAND_IN_LOG"
"""


def libraries(*torches: str, major: str = MAJOR) -> set[str]:
    names = ["shmcoll.so", f"shmcoll.so.{major}", f"shmcoll_cuda.so.{major}"]
    names += [f"shmcoll_c10d-{torch.rpartition('.')[0]}.so" for torch in torches]
    return {f"shmcoll/lib/lib{name}" for name in names}


class Tree:
    """A checkout in which nothing has been built."""

    def __init__(self, path: Path) -> None:
        self.path, self.tools = path / "tree", path / "tools"
        self.copy(filter(NEEDED.match, FILES))
        for file, text in {
            "torch/__init__.py": TORCH,
            "torch/utils/__init__.py": "",
            "torch/utils/cpp_extension.py": CPP_EXTENSION,
            "bin/cmake": CMAKE,
            "bin/objcopy": OBJCOPY,
        }.items():
            (self.tools / file).parent.mkdir(parents=True, exist_ok=True)
            (self.tools / file).write_text(text)
            (self.tools / file).chmod(0o755)
        self.log = self.tools / "log"

    def copy(self, files: Iterable[str]) -> None:
        for file in files:
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.path / file)

    def python(
        self, *arguments: str, core: str = "core", torch: str = "9.8.0", **env: str
    ) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        (self.tools / "torch/version.py").write_text(f"__version__ = '{torch}+cpu'\n")
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={
                **os.environ,
                "PYTHONPATH": str(self.tools),
                "PATH": f"{self.tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "STAND_IN_CORE": core,
                "STAND_IN_TORCH": torch,
                "STAND_IN_LOG": str(self.log),
                "STAND_IN_FOR_C": " ".join(FOR_C),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def wheel(self, core: str = "core", torch: str = "9.8.0", **env: str) -> dict[str, str]:
        """The files of a wheel that is built now."""
        shutil.rmtree(self.path / "dist", ignore_errors=True)
        done = self.python("setup.py", "-q", "bdist_wheel", core=core, torch=torch, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        (file,) = (self.path / "dist").iterdir()
        assert re.fullmatch(r"shmcoll-[\d.]+(rc\d+)?-py3-none-linux_\w+\.whl", file.name), file.name
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name).decode() for name in wheel.namelist()}

    def built(self) -> None:
        """Asserts that the tree itself has been built, once."""
        package = self.path / "python/shmcoll"
        there = {f"shmcoll/lib/{file.name}" for file in (package / "lib").glob("lib*")}
        assert there == libraries("9.8.0")
        assert json.loads((package / "_build_info.json").read_text())["torch"] == "9.8.0"
        assert len(list(package.glob("_C.*.so"))) == 1
        assert self.log.read_text().count("--build") == 1


@pytest.fixture()
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_wheel_has_the_libraries_that_were_built_for_it(tree: Tree) -> None:
    for core, torch in (("first", "9.8.0"), ("second", "9.9.0")):  # in a tree that was built before
        files = tree.wheel(core, torch)
        assert {name for name in files if "/lib/lib" in name} == libraries(torch)
        link = files["shmcoll/lib/libshmcoll.so"]  # a wheel has no links
        assert link == f"INPUT(libshmcoll.so.{MAJOR})\n"
        assert {files[name] for name in libraries(torch)} == {link, core + "\n"}
        assert {f"shmcoll/{name}" for name in FOR_C} <= files.keys()
        assert json.loads(files["shmcoll/_build_info.json"])["torch"] == torch
        extensions = [name for name in files if name.startswith("shmcoll/_C.") and "py" in name]
        assert "shmcoll/_C.pyi" in extensions and len(extensions) == 2, extensions
        (metadata,) = (files[name] for name in files if name.endswith(".dist-info/METADATA"))
        assert "\nLicense: BSD-3-Clause\n" in metadata
        assert "\nLicense-File: LICENSE\n" in metadata
        assert {"_shmcoll_autoload.py", "shmcoll/py.typed", "shmcoll/bench/cli.py"} <= files.keys()
        assert tree.log.read_text().count("--build") == 1


def test_the_built_libraries_ask_for_nothing_that_torch_does_without() -> None:
    package = Path(shmcoll.__file__).parent
    built = [*package.glob("lib/lib*.so.*"), *package.glob("lib/lib*c10d*.so")]
    assert len(built) >= 3, built
    for library in (*built, *package.glob("_C.*.so")):
        assert elf.foreign(library) == set(), library
        assert elf.missing(library) == set(), library
        if not library.name.startswith(("libshmcoll.", "libshmcoll_cuda.")):  # those are C
            assert elf.too_new(library, "GLIBCXX", "CXXABI", "GCC") == set(), library


def test_the_version_is_that_of_the_header(tree: Tree) -> None:
    header = tree.path / "src/shm/shmcoll.h"
    for name, value in (("MAJOR", "23"), ("PRE", '"rc4"')):
        text = header.read_text()
        changed = re.sub(rf"^(#define SHC_VERSION_{name} +)\S+", rf"\g<1>{value}", text, flags=re.M)
        assert changed != text
        header.write_text(changed + "#define A_VERSION 4\n")
    version = re.sub(r"^\d+(\.\d+\.\d+).*", r"23\1rc4", VERSION)
    files = tree.wheel()
    assert {name for name in files if "/lib/lib" in name} == libraries("9.8.0", major="23")
    assert files["shmcoll/lib/libshmcoll.so"] == "INPUT(libshmcoll.so.23)\n"
    (metadata,) = (files[name] for name in files if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {version}\n" in metadata
    assert json.loads(files["shmcoll/_build_info.json"])["version"] == version


def test_what_the_workflows_and_the_extras_name_is_there() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = re.findall(r"^make [\w-]+", said.stdout, re.M)
    used = [
        command
        for file in (ROOT / ".github/workflows").iterdir()
        for command in re.findall(r"run: (make [\w-]+)", file.read_text())
    ]
    assert "make test" in used and set(used) <= set(commands), used
    text = (ROOT / "pyproject.toml").read_text()
    extras = text.split("[project.optional-dependencies]\n")[1].split("\n\n")[0]
    assert re.findall(r"^(\w+) = ", extras, re.M) == ["bench", "tools", "mpi"]
    for name in ("docs", "examples", "dev", "release", "wheels"):  # the Makefile's
        assert groups.group(name)
    assert groups.group("release")[-1] == "reuse"  # after one with an extra in brackets


@pytest.mark.long
def test_objects_of_another_torch_are_not_used_again(tree: Tree) -> None:
    def extension(torch: str) -> str:
        files = tree.wheel(torch=torch)
        return next(files[name] for name in files if name.startswith("shmcoll/_C.cpython"))

    first, second = extension("9.8.0"), extension("9.9.0")
    assert first != second
    assert "force=True" in first and "torch-9.8.0" in first, first


@pytest.mark.long
def test_what_was_built_before_the_tree_was_moved_is_not_used(tree: Tree) -> None:
    cache = tree.path / "build/core/CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    for home, stays in ((tree.path, True), (tree.path.parent / "tree.old", False)):
        cache.write_text(f"# by CMake\nCMAKE_HOME_DIRECTORY:INTERNAL={home}\nA:STRING=b\n")
        tree.wheel()
        assert cache.exists() == stays, home


def test_in_place_and_editable_builds_leave_everything_in_the_tree(tree: Tree) -> None:
    done = tree.python("setup.py", "-q", "build_ext", "--inplace")
    assert done.returncode == 0, done.stdout + done.stderr
    tree.built()
    for file in (tree.path / "python/shmcoll").glob("_C.*.so"):
        file.unlink()
    build = "import setuptools.build_meta as b; print(b.build_editable('.'))"
    done = tree.python("-c", build)
    assert done.returncode == 0, done.stdout + done.stderr
    tree.built()


def test_an_archive_of_the_sources_has_every_file_of_the_tree_and_nothing_built(tree: Tree) -> None:
    tree.copy(FILES)
    package = tree.path / "python/shmcoll"
    (package / "lib").mkdir()
    (package / "include").mkdir()
    for built in (f"lib/libshmcoll.so.{MAJOR}", "_build_info.json", "_C.cpython.so", "include/x.h"):
        (package / built).touch()
    done = tree.python("setup.py", "-q", "sdist")
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next((tree.path / "dist").iterdir())) as archive:
        names = {
            name.partition("/")[2]
            for name in archive.getnames()
            if archive.getmember(name).isfile()
        }
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert sorted(names - made) == FILES


def test_without_torch_there_is_no_glue(tree: Tree) -> None:
    tree.copy(FILES)
    (tree.tools / "torch/__init__.py").write_text("raise ImportError('no torch: planted')")
    files = tree.wheel()
    assert {name for name in files if "/lib/lib" in name} == libraries()
    assert not [name for name in files if re.search(r"_C\..*\.so$", name)]
    assert json.loads(files["shmcoll/_build_info.json"])["torch"] == "none"
    build = (
        "import setuptools.build_meta as b; print(b.build_sdist('dist'), b.build_editable('dist'))"
    )
    done = tree.python("-c", build)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"shmcoll-{VERSION}.tar.gz" in {file.name for file in (tree.path / "dist").iterdir()}


def test_a_wheel_has_a_glue_for_each_torch_that_is_named(tree: Tree) -> None:
    folders = []
    for torch in ("9.1.0", "9.8.3"):  # parts of unpacked wheels
        folders.append(tree.tools / torch / "torch")
        folders[-1].mkdir(parents=True)
        (folders[-1] / "version.py").write_text(f"a = '1.0'\n__version__ = '{torch}'\n")
    files = tree.wheel(SHMCOLL_TORCH=":".join(map(str, folders)), STAND_IN_MORE_TORCH="9.1.0")
    assert {name for name in files if "/lib/lib" in name} == libraries("9.8.0", "9.1.0")
    log = tree.log.read_text()
    (given,) = re.findall(r"-DSHMCOLL_TORCH=(\S+)", log)
    assert sorted(given.split(";")) == sorted(map(str, folders)), (
        "the one that is named comes first"
    )
    split = re.findall(r"^objcopy --strip-unneeded .*/(\S+)$", log, re.M)
    assert {f"libshmcoll.so.{MAJOR}", "libshmcoll_c10d-9.1.so", "libshmcoll_c10d-9.8.so"} <= set(
        split
    )
    assert json.loads(files["shmcoll/_build_info.json"])["gpu_kernels"] == "a stand-in"


def test_without_cmake_or_headers_a_build_says_what_to_install(tree: Tree) -> None:
    done = tree.python("setup.py", "build_ext", PATH=str(tree.path))
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "no cmake" in done.stderr and "3.20" in done.stderr and "apt-get" in done.stderr
    elsewhere = "import sysconfig; sysconfig.get_path = lambda *_, **__: '/nowhere'\n"
    (tree.path / "elsewhere.py").write_text(elsewhere + (tree.path / "setup.py").read_text())
    done = tree.python("elsewhere.py", "build_ext")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "no Python.h in /nowhere" in done.stderr and "python3-dev" in done.stderr
    assert "--build" not in tree.log.read_text(), "it is said before anything is built"
    done = tree.python("elsewhere.py", "build_ext", CPATH=sysconfig.get_path("include"))
    assert done.returncode == 0, done.stdout + done.stderr
