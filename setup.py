# SPDX-License-Identifier: BSD-3-Clause
"""Builds the C core and the glue for the torch that is installed with CMake, then the module shmcoll._C.

torch is no requirement in the metadata, neither to build nor to run: pip would fetch another one, and
the glue fits only the minor version that it was compiled against. Install torch first, then
``pip install --no-build-isolation .``. An archive of the sources is made without torch.
"""

import functools
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:  # an archive of the sources needs no torch
    torch = None
    NO_TORCH = (
        f"shmcoll's setup.py: {error}\n"
        "Building needs the torch it is to run with. Install torch, then:\n"
        "    pip install --no-build-isolation .\n"
        "(pip's isolated builds cannot see the installed torch.)"
    )
    BuildExtension, CppExtension = build_ext, Extension

ROOT = pathlib.Path(__file__).parent.resolve()
PACKAGE = ROOT / "python" / "shmcoll"
CORE_BUILD = ROOT / "build" / "core"
LIBRARY_FOLDERS = [CORE_BUILD / "src" / part for part in ("shm", "cuda_ipc", "backend")]
GLUE = "shmcoll_c10d-" + ".".join(torch.__version__.split(".")[:2]) if torch else ""


def version() -> str:
    """The version, from the public header, where it stands."""
    text = (ROOT / "src/shm/shmcoll.h").read_text()
    numbers = re.findall(r"^#define SHC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    return ".".join(numbers) + re.findall(r'^#define SHC_VERSION_PRE +"(.*?)"', text, re.M)[0]


def check_tools() -> None:
    """Ends the program if a tool is missing, before minutes are spent. CMake names a missing compiler."""
    if torch is None:
        sys.exit(NO_TORCH)
    if shutil.which("cmake") is None:
        sys.exit(
            "shmcoll's setup.py: there is no cmake. Install 3.20 or later, and compilers for C and C++:\n"
            "    apt-get install cmake build-essential      (or: pip install cmake)"
        )
    folders = [sysconfig.get_path("include"), *os.environ.get("CPATH", "").split(os.pathsep)]
    if not any(pathlib.Path(folder, "Python.h").exists() for folder in folders if folder):
        sys.exit(
            f"shmcoll's setup.py: there is no Python.h in {folders[0]}. Install Python's headers:\n"
            "    apt-get install python3-dev      (or name their folder in CPATH)"
        )


def build_core() -> None:
    """Builds libshmcoll.so.N, libshmcoll_cuda.so.N and the glue into the package.

    Only that name is installed, the one that linked programs look for: a wheel would store a symbolic
    link as a second copy.

    If there is an nvcc, it compiles the GPU kernels for every GPU it knows, which takes a minute.
    SHMCOLL_CUDA_ARCHS="80 90" compiles them for those GPUs, and as PTX for others.
    """
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    configure = ["cmake", "-S", str(ROOT), "-B", str(CORE_BUILD), "-DCMAKE_BUILD_TYPE=Release"]
    gpus = os.environ.get("SHMCOLL_CUDA_ARCHS", "").replace(",", " ").split()
    configure += [f"-DSHMCOLL_CUDA_ARCHS={';'.join(gpus)}"]
    configure += [f"-DSHMCOLL_TORCH={pathlib.Path(torch.__file__).parent}"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    # Only the libraries that are shipped.
    build = ["cmake", "--build", str(CORE_BUILD), "-j", jobs]
    subprocess.run([*build, "--target", "shmcoll", "shmcoll_cuda", "shmcoll_c10d"], check=True)
    shutil.rmtree(PACKAGE / "lib", ignore_errors=True)
    (PACKAGE / "lib").mkdir()
    for folder in LIBRARY_FOLDERS:
        for library in folder.glob("libshmcoll*.so.*"):
            if len(library.suffixes) == 2:
                shutil.copy(library, PACKAGE / "lib")
    shutil.copy(CORE_BUILD / f"src/backend/lib{GLUE}.so", PACKAGE / "lib")


def write_build_info() -> None:
    """Writes the versions that _load.py compares before it loads the extension, and the library's own."""
    facts = {
        "version": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cxx11_abi": str(torch.compiled_with_cxx11_abi()),
    }
    (PACKAGE / "_build_info.json").write_text(json.dumps(facts, indent=2) + "\n")


@functools.cache
def prepare() -> None:
    """Builds once what both commands below need: one links with the libraries, the other copies them."""
    check_tools()
    build_core()
    write_build_info()


class Build(BuildExtension):
    def finalize_options(self) -> None:
        super().finalize_options()
        # Objects that were built for another torch would look up to date: its headers may be older.
        if torch:
            self.build_temp = os.path.join(self.build_temp, f"torch-{torch.__version__}")
        self.force = True  # ninja then decides; without ninja everything is compiled

    def run(self) -> None:
        prepare()
        super().run()


class BuildPackage(build_py):
    """Runs before build_ext, and copies the package's data files that are there."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Older setuptools compare whole seconds: a file built twice in one second would look old.
        self.force = True

    def run(self) -> None:
        # An editable installation copies nothing, and shows a failure here only as a warning.
        if not self.editable_mode:
            prepare()
            # The glue of a build for another torch would go along.
            shutil.rmtree(pathlib.Path(self.build_lib, "shmcoll/lib"), ignore_errors=True)
        super().run()


class Wheel(bdist_wheel):
    """The glue fits every Python, so the wheel does. Another Python than this one ignores shmcoll._C."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    version=version(),
    license="BSD-3-Clause",
    ext_modules=[
        CppExtension(
            "shmcoll._C",
            ["src/backend/bindings.cpp", "src/backend/single_threaded.cpp"],
            include_dirs=[str(ROOT / "src")],
            library_dirs=list(map(str, LIBRARY_FOLDERS)),
            libraries=[GLUE, "shmcoll", "shmcoll_cuda"],
            extra_compile_args=[
                "-O2",
                "-g1",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
            ],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib"],
        )
    ],
    cmdclass={"build_ext": Build, "build_py": BuildPackage, "bdist_wheel": Wheel},
)
