# SPDX-License-Identifier: BSD-3-Clause
"""Builds the C core and the glue with CMake, then the module shmcoll._C.

torch is no requirement in the metadata, neither to build nor to run: pip would fetch another one, and
a glue fits only the minor version that it was compiled against. ``pip install --no-build-isolation .``
finds the torch that is installed, and builds a glue and shmcoll._C for it. Without torch, as in pip's
isolated builds, there are neither.

Variables:
    SHMCOLL_TORCH       folders of torch packages to build a glue for, separated by colons, in
                        addition to the installed torch (src/backend/CMakeLists.txt)
    SHMCOLL_LINKER      a command that links instead of the compiler (docs/internals/adr/0019)
    SHMCOLL_CUDA_ARCHS  "80 90": GPUs to compile kernels for; by default all that nvcc knows
    MAX_JOBS            compilers at once; by default one for each CPU
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

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError:
    torch, BuildExtension = None, build_ext

ROOT = pathlib.Path(__file__).parent.resolve()
PACKAGE = ROOT / "python" / "shmcoll"
CORE_BUILD = ROOT / "build" / "core"
LIBRARY_FOLDERS = [CORE_BUILD / "src" / part for part in ("shm", "cuda_ipc", "backend")]
LINKER = os.environ.get("SHMCOLL_LINKER", "")


def version() -> str:
    """The version, from the public header, where it stands."""
    text = (ROOT / "src/shm/shmcoll.h").read_text()
    numbers = re.findall(r"^#define SHC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    return ".".join(numbers) + re.findall(r'^#define SHC_VERSION_PRE +"(.*?)"', text, re.M)[0]


def glue_of(torch_folder: str) -> str:
    """The name of the glue for the torch in that folder, as src/backend/CMakeLists.txt makes it."""
    text = pathlib.Path(torch_folder, "version.py").read_text()
    return "shmcoll_c10d-" + re.search(r"^__version__ *=.*?(\d+\.\d+)", text, re.M)[1]


def glues() -> dict[str, str]:
    """Glue -> the folder of the torch package that it is built with."""
    folders = [folder for folder in os.environ.get("SHMCOLL_TORCH", "").split(":") if folder]
    folders += [str(pathlib.Path(torch.__file__).parent)] if torch else []
    return {glue_of(folder): folder for folder in reversed(folders)}  # the first of two counts


def check_tools() -> None:
    """Ends the program if a tool is missing, before minutes are spent. CMake names a missing compiler."""
    if shutil.which("cmake") is None:
        sys.exit(
            "shmcoll's setup.py: there is no cmake. Install 3.20 or later, and compilers for C and C++:\n"
            "    apt-get install cmake build-essential      (or: pip install cmake)"
        )
    folders = [sysconfig.get_path("include"), *os.environ.get("CPATH", "").split(os.pathsep)]
    if torch and not any(pathlib.Path(folder, "Python.h").exists() for folder in folders if folder):
        sys.exit(
            f"shmcoll's setup.py: there is no Python.h in {folders[0]}. Install Python's headers:\n"
            "    apt-get install python3-dev      (or name their folder in CPATH)"
        )


def drop_stale_build() -> None:
    """Removes what was built where this tree lay before it was moved or copied: CMake refuses it."""
    cache = CORE_BUILD / "CMakeCache.txt"
    if cache.exists() and f"\nCMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
        print(
            f"shmcoll's setup.py: {CORE_BUILD} is of another folder and is built again", flush=True
        )
        shutil.rmtree(CORE_BUILD)


def configure() -> str:
    """Configures CMake's build, and returns what it says."""
    drop_stale_build()
    gpus = os.environ.get("SHMCOLL_CUDA_ARCHS", "").replace(",", " ").split()
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "SHMCOLL_PYTHON": "ON",
        "SHMCOLL_TORCH": ";".join(glues().values()),
        "SHMCOLL_LINKER": LINKER,
        "SHMCOLL_CUDA_ARCHS": ";".join(gpus),
    }
    command = ["cmake", "-S", str(ROOT), "-B", str(CORE_BUILD)]
    command += [f"-D{name}={value}" for name, value in options.items()]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def build_libraries() -> None:
    """Builds libshmcoll.so.N, libshmcoll_cuda.so.N and the glues into the package.

    Only those names are installed, which linked programs look for: a wheel would store a symbolic link
    as a second copy.
    """
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    build = ["cmake", "--build", str(CORE_BUILD), "-j", jobs, "--target", "shmcoll_for_python"]
    subprocess.run(build, check=True)
    shutil.rmtree(PACKAGE / "lib", ignore_errors=True)
    (PACKAGE / "lib").mkdir()
    for folder in LIBRARY_FOLDERS:
        for library in folder.glob("libshmcoll*.so.*"):
            if len(library.suffixes) == 2:
                shutil.copy(library, PACKAGE / "lib")
    (PACKAGE / "lib/libshmcoll.so").write_text(
        f"INPUT(libshmcoll.so.{version().split('.')[0]})\n"
    )  # for -lshmcoll
    shutil.rmtree(PACKAGE / "include", ignore_errors=True)
    install = ["cmake", "--install", str(CORE_BUILD), "--prefix", str(PACKAGE)]
    subprocess.run([*install, "--component", "headers"], check=True, stdout=subprocess.DEVNULL)
    for glue in glues():
        shutil.copy(CORE_BUILD / f"src/backend/lib{glue}.so", PACKAGE / "lib")


def write_build_info(said: str) -> None:
    """Writes the versions that _load.py compares before it loads the extension, and the library's own."""
    kernels = re.search(r"GPU kernels: (.*)", said)
    facts = {
        "version": version(),
        "torch": torch.__version__ if torch else "none",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "gpu_kernels": kernels[1] if kernels else "unknown",
    }
    (PACKAGE / "_build_info.json").write_text(json.dumps(facts, indent=2) + "\n")


@functools.cache
def prepare() -> None:
    """Builds once what both commands below need: one links with the libraries, the other copies them."""
    check_tools()
    said = configure()
    build_libraries()
    write_build_info(said)


def split_off_debug(file: pathlib.Path) -> None:
    """Moves the debug information of an installed file to build/debug. gdb is told where by the user."""
    debug = ROOT / "build" / "debug" / f"{file.name}.debug"
    debug.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["objcopy", "--only-keep-debug", file, debug], check=True)
    subprocess.run(
        ["objcopy", "--strip-unneeded", f"--add-gnu-debuglink={debug}", file], check=True
    )


class Build(BuildExtension):
    def finalize_options(self) -> None:
        super().finalize_options()
        # Objects that were built for another torch would look up to date: its headers may be older.
        if torch:
            self.build_temp = os.path.join(self.build_temp, f"torch-{torch.__version__}")
        self.force = True  # ninja then decides; without ninja everything is compiled

    def run(self) -> None:
        prepare()
        if LINKER:
            os.environ["LDSHARED"] = os.environ["LDCXXSHARED"] = f"{LINKER} -shared"
        super().run()
        if not self.inplace and not self.editable_mode:
            for module in self.get_outputs():
                split_off_debug(pathlib.Path(module))


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
        for library in pathlib.Path(self.build_lib, "shmcoll/lib").glob("*.so*"):
            if library.name != "libshmcoll.so":  # a text
                split_off_debug(library)


class Wheel(bdist_wheel):
    """The glue fits every Python, so the wheel does. Another Python than this one ignores shmcoll._C."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Compiled(Distribution):
    """Is for one kind of machine also without shmcoll._C."""

    def has_ext_modules(self) -> bool:
        return True


def compilers_library(name: str) -> str:
    """The path of a library that g++ links by itself, and another linker does not."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def extension() -> object:
    """shmcoll._C, for this Python and the installed torch."""
    link = ["-Wl,-rpath,$ORIGIN/lib"]
    if LINKER:
        link += [compilers_library("libstdc++.so.6"), compilers_library("libgcc_s.so.1")]
    made = CppExtension(
        "shmcoll._C",
        [f"src/backend/{name}.cpp" for name in ("bindings", "direct", "single_threaded")],
        include_dirs=[str(ROOT / "src")],
        library_dirs=list(map(str, LIBRARY_FOLDERS)),
        libraries=[glue_of(str(pathlib.Path(torch.__file__).parent)), "shmcoll", "shmcoll_cuda"],
        extra_compile_args=[
            "-O2",
            "-g1",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
        ],
        extra_link_args=link,
    )
    if LINKER:
        made.language = "c"  # for C++ setuptools puts g++ in the place of a linker's first word
    return made


setup(
    version=version(),
    license="BSD-3-Clause",
    distclass=Compiled,
    ext_modules=[extension()] if torch else [],
    cmdclass={"build_ext": Build, "build_py": BuildPackage, "bdist_wheel": Wheel},
)
