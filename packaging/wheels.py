# SPDX-License-Identifier: BSD-3-Clause
"""Builds one wheel with a glue for each minor version of torch: `make wheels`.

    python packaging/wheels.py [--torch "2.8 2.13"] [--out dist]

The glue is compiled with the headers of each torch, and linked with its libraries. They come from torch's
wheels, which are downloaded one at a time; these parts of them stay in build/torch. The module shmcoll._C
is for the Python and the torch that run this program. zig links for an older C library than the one here
(docs/internals/adr/0019-glibc-2.28.md).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import elf

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "torch"
WORK = ROOT / "build" / "wheels"
MINORS = "2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15"
GLIBC = "2.28"  # torch's wheels need it, too
MOST_BYTES = 6 << 20
# Headers and libraries hardly depend on Python. The first of these that torch has a wheel for is taken.
PYTHONS = [".".join(platform.python_version_tuple()[:2]), "3.12", "3.11", "3.10"]
PARTS = re.compile(r"torch/(version\.py|include/.*|lib/lib(torch_cpu|c10)\.so)$")


def run(*command: object, **more: str) -> None:
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT, env={**os.environ, **more})


def download(minor: str, folder: str) -> pathlib.Path | None:
    """The wheel of the newest torch of that minor version, or None."""
    for python in PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary=:all:", f"--python-version={python}", "-d", folder]
        done = subprocess.run(
            [*command, f"torch=={minor}.*"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return next(pathlib.Path(folder).glob("torch-*.whl"))
    print(f"torch {minor}: no wheel to be had; pip says: {done.stderr.strip()}", flush=True)
    return None


def torch_folder(minor: str) -> pathlib.Path | None:
    """A folder with the parts of that torch that the glue is built with; from the cache, or downloaded."""
    folder = CACHE / minor
    if (folder / "complete").exists():
        print(f"torch {minor}: in {folder}", flush=True)
        return folder / "torch"
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as there:
        print(f"torch {minor}: downloading its wheel (up to 900 MB)", flush=True)
        file = download(minor, there)
        if file is None:
            return None
        with zipfile.ZipFile(file) as wheel:
            parts = [item for item in wheel.infolist() if PARTS.match(item.filename)]
            wheel.extractall(folder, parts)
        kept = sum(item.file_size for item in parts) >> 20
        print(f"torch {minor}: {file.name}, {file.stat().st_size >> 20} MiB, of which {kept} stay")
    (folder / "complete").touch()
    return folder / "torch"


def sources() -> pathlib.Path:
    """A copy of the sources. A file that is as it was stays, and what was made of it: the next build is short."""
    tree = WORK / "tree"
    shutil.rmtree(WORK / "sdist", ignore_errors=True)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", WORK / "sdist")
    (archive,) = (WORK / "sdist").iterdir()
    kept = set()
    with tarfile.open(archive) as files:
        for member in filter(tarfile.TarInfo.isfile, files):
            path, content = tree / member.name.partition("/")[2], files.extractfile(member).read()
            kept.add(path)
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(member.mode)
    for name in ("src", "python"):
        for path in (tree / name).rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()
    return tree


def linker() -> str:
    try:
        import ziglang
    except ImportError:
        sys.exit("packaging/wheels.py: there is no zig. Run: python -m pip install ziglang")
    zig = pathlib.Path(ziglang.__file__).parent / "zig"
    return f"{zig} cc -target {platform.machine()}-linux-gnu.{GLIBC}"


def build(folders: list[pathlib.Path], gpus: str, out: pathlib.Path) -> pathlib.Path:
    """The wheel for those versions of torch, with kernels for those GPUs."""
    tree, made = sources(), WORK / "made"
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(tree / "build/lib", ignore_errors=True)
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-lib", "build/lib"]
        + ["bdist_wheel", "--plat-name", tag, "-d", str(made)],
        check=True,
        cwd=tree,
        env={
            **os.environ,
            "SHMCOLL_TORCH": ":".join(map(str, folders)),
            "SHMCOLL_LINKER": linker(),
            "SHMCOLL_CUDA_ARCHS": gpus,
        },
    )
    (file,) = made.iterdir()
    out.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(shutil.copy(file, out))


def check(file: pathlib.Path) -> None:
    """Ends the program if the wheel would not load everywhere, or is too large."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(file) as wheel:
        libraries = [name for name in wheel.namelist() if re.search(r"\.so(\.\d+)?$", name)]
        for name in libraries:
            path = pathlib.Path(wheel.extract(name, folder))
            if path.read_bytes()[:4] == b"\x7fELF":
                asks = sorted(elf.too_new(path, *elf.NEWEST) | elf.foreign(path))
                wrong += [f"{name} asks for {', '.join(asks)}"] if asks else []
    if file.stat().st_size > MOST_BYTES:
        wrong.append(f"it is larger than {MOST_BYTES >> 20} MiB")
    if wrong:
        sys.exit(f"packaging/wheels.py: {file}: " + "; ".join(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default=MINORS, help=f"minor versions, by default {MINORS}")
    parser.add_argument("--gpus", default="", help="kernels for them (80 90), by default for all")
    parser.add_argument("--out", default="dist", type=pathlib.Path, help="folder for the wheel")
    options = parser.parse_args()
    found = {minor: torch_folder(minor) for minor in options.torch.split()}
    file = build([folder for folder in found.values() if folder], options.gpus, options.out)
    missing = [minor for minor, folder in found.items() if folder is None]
    size = f"{file.stat().st_size / 2**20:.2f} MiB"
    print(f"{file}: {size}" + (f"; no glue for {missing}" if missing else ""))
    print(f"debug information: {WORK}/tree/build/debug")
    check(file)


if __name__ == "__main__":
    main()
