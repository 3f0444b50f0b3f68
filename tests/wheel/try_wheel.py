# SPDX-License-Identifier: BSD-3-Clause
"""Tries a wheel as users do: in new virtual environments, without an index and without a compiler.

    python tests/wheel/try_wheel.py dist/shmcoll-*.whl --python "3.10 3.12" --torch "2.8 2.15"

For each Python and each torch: a new environment gets that torch by pip, then the wheel with --no-index.
The PATH has that environment alone. Two ranks run user_program.py. The last lines say what ran, and what
could not be run and why. It exits with 1 where something ran and failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = "3.10 3.11 3.12 3.13 3.14"
TORCHES = "2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15"
LIMIT_S = 300


def interpreter(version: str) -> str | None:
    """A Python of that version, from the PATH or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))
    for path in (*found, shutil.which(f"python{version}")):
        if (
            path
            and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
        ):
            return path
    return None


class Failed(Exception):
    """With the last lines of what a command said."""


def run(*command: object, **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        raise Failed("\n".join(done.stdout.strip().splitlines()[-8:]))
    return str(done.stdout)


def environment_of(python: str, torch: str, folder: Path) -> Path:
    """The Python of an environment with that torch; a new one, unless --folder has it."""
    made = folder / "bin/python"
    if not (folder / "ready").exists():
        run(python, "-m", "venv", folder)
        run(made, "-m", "pip", "install", "-q", "--no-cache-dir", f"torch=={torch}.*", "numpy")
        (folder / "ready").touch()
    return made


def attempt(wheel: Path, python: Path, folder: Path) -> str:
    """Installs the wheel and runs the program; what its rank 0 printed."""
    bare = {"PATH": str(python.parent), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    pip = (python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--force-reinstall")
    run(*pip, wheel.resolve(), env=bare, cwd=folder)
    assert shutil.which("cc", path=bare["PATH"]) is None, "no compiler may be there"
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    said = run(python, *start, HERE / "user_program.py", env=bare, cwd=folder, timeout=LIMIT_S)
    return next(line for line in said.splitlines() if line.startswith("right with "))


def tries(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """(what, how it went, what there is to say) of each Python and torch."""
    for version in options.python.split():
        python = interpreter(version)
        for torch in options.torch.split():
            what = f"Python {version}, torch {torch}"
            if python is None:
                yield what, "not run", "this machine has no such Python"
                continue
            with tempfile.TemporaryDirectory() as folder:
                place = Path(options.folder or folder).resolve() / f"{version}-{torch}"
                try:
                    made = environment_of(python, torch, place)
                except Failed as error:
                    yield what, "not run", f"torch is not to be had: {error}"
                    continue
                try:
                    yield what, "right", attempt(options.wheel, made, Path(folder))
                except (Failed, StopIteration, subprocess.TimeoutExpired) as error:
                    yield what, "FAILED", repr(error)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=PYTHONS, help=f"versions, by default {PYTHONS}")
    parser.add_argument("--torch", default=TORCHES, help=f"minor versions, by default {TORCHES}")
    parser.add_argument("--folder", help="keeps the environments there, up to 8 GB each")
    options = parser.parse_args()
    results = []
    for result in tries(options):
        results.append(result)
        print(*result, sep=": ", flush=True)
    count = {
        how: sum(result[1] == how for result in results) for how in ("right", "FAILED", "not run")
    }
    print(f"{count['right']} right, {count['FAILED']} failed, {count['not run']} not run")
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
