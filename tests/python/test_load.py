# SPDX-License-Identifier: BSD-3-Clause
"""An installation that does not fit this torch or this system: one error says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import warnings
from pathlib import Path

import pytest
import torch

from test_register import INIT, PACKAGE, Site, site, succeed  # noqa: F401

COMMAND = "pip install --no-build-isolation --force-reinstall --no-deps ."


def test_a_build_for_another_torch_is_one_error_before_anything_is_loaded(site: Site) -> None:
    package = site.link("_build_info.json", "lib")
    (package / "lib").mkdir()
    (package / "lib/libshmcoll_c10d-2.7.so").touch()
    (package / "_build_info.json").write_text(
        json.dumps({"version": "0.1.0", "torch": "2.7.1+cu126", "python": "3.11.7"})
    )
    script = """
import sys, torch, torch.distributed as dist
for attempt in (lambda: __import__("shmcoll"), lambda: dist.init_process_group(
        "shmcoll", store=dist.HashStore(), rank=0, world_size=1)):
    try:
        attempt()
    except ImportError as error:
        print(str(error).replace(chr(10), "|"))
    assert "shmcoll._C" not in sys.modules
    assert "libshmcoll" not in open("/proc/self/maps").read()
"""
    lines = succeed(site.python(script)).splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    assert "built for torch 2.7 " in lines[0] and "2.7.1+cu126" in lines[0]
    assert f"torch {torch.__version__} is installed" in lines[0] and COMMAND in lines[0]


class Torch:
    distributed = torch.distributed

    def __init__(self, version: str) -> None:
        self.__version__ = version


@pytest.fixture()
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which glues for two versions of torch have been built; neither loads."""
    from shmcoll import _load

    minor = _load.minor(torch.__version__)
    monkeypatch.setattr(_load, "_HERE", tmp_path)
    monkeypatch.setattr(_load, "build_facts", _load.build_facts.__wrapped__)
    facts = {"version": "0.1.0", "torch": torch.__version__, "python": "3.11.7"}
    (tmp_path / "_build_info.json").write_text(json.dumps(facts))
    (tmp_path / "lib").mkdir()
    for version in ("2.4", minor):
        (tmp_path / f"lib/libshmcoll_c10d-{version}.so").write_text("planted")
    return tmp_path


def test_only_the_minor_version_of_torch_has_to_fit(built: Path) -> None:
    from shmcoll._load import find_glue

    for fits in ("2.4.0+cpu", "2.4.1+cu130"):
        assert find_glue(Torch(fits)) == built / "lib/libshmcoll_c10d-2.4.so"
    for other in ("2.40.0", "2.3.0", "2.5.0+cpu", "3.4.0"):
        with pytest.raises(ImportError, match=r"was built for torch 2\.\d+, 2\.\d+ ") as caught:
            find_glue(Torch(other))
        text = str(caught.value)
        assert f"torch {other} is installed" in text and COMMAND in text and "make clean" in text


def test_a_package_that_is_not_built_says_how_to_build_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from shmcoll import _load

    monkeypatch.setattr(_load, "_HERE", tmp_path)
    monkeypatch.setattr(_load, "build_facts", _load.build_facts.__wrapped__)
    with pytest.raises(ImportError, match="(?s)not built.*make clean build.*" + re.escape(COMMAND)):
        _load.load_glue.__wrapped__()


def test_a_glue_that_does_not_load_says_how_to_build_it(built: Path) -> None:
    from shmcoll import _load

    with pytest.raises(ImportError, match="does not load: .*c10d-.*" + re.escape(COMMAND)):
        _load.load_glue.__wrapped__()


def test_a_glue_for_another_c_library_names_both(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was linked with a later glibc, and none; no warning says that another glue is used."""
    from shmcoll import _load

    for name, text in {
        "later.map": "GLIBC_2.99 { later; };",
        "later.c": "int later(void) { return 0; }",
        "glue.c": "int later(void); int glue(void) { return later(); }",
    }.items():
        (tmp_path / name).write_text(text)
    stand_in = tmp_path / "stand-in/libc.so.6"
    stand_in.parent.mkdir()
    shared = ["cc", "-shared", "-fPIC", "-nostdlib"]
    later = [f"-Wl,--version-script={tmp_path}/later.map", "-Wl,-soname,libc.so.6"]
    subprocess.run([*shared, *later, tmp_path / "later.c", "-o", stand_in], check=True)
    glue = built / f"lib/libshmcoll_c10d-{_load.minor(torch.__version__)}.so"
    for file in (glue, built / "lib" / _load._LIBRARY):
        command = [*shared, tmp_path / "glue.c", stand_in, "-o", file]
        subprocess.run(command, check=True)
    monkeypatch.setattr(_load, "_warn_of_two", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImportError, match="does not load: .*GLIBC_2.99.*") as caught:
            _load.load_glue.__wrapped__()
        here = os.confstr("CS_GNU_LIBC_VERSION")
        assert f"library here is {here}; a wheel needs glibc 2.28" in str(caught.value)
        assert COMMAND in str(caught.value)
        glue.write_text("planted")
        monkeypatch.delattr(os, "confstr")
        with pytest.raises(ImportError, match="library here is not glibc; a wheel needs"):
            _load.load_glue.__wrapped__()


@pytest.mark.long
def test_a_module_that_does_not_load_says_how_to_build_it(site: Site) -> None:
    package = site.link(*(file.name for file in PACKAGE.glob("_C.*.so")))
    (package / "_C.abi3.so").write_text("planted")
    script = """
import shmcoll
try:
    shmcoll.Options
except ImportError as error:
    print(error)
"""
    said = succeed(site.python(script))
    assert "does not load: " in said and "_C.abi3.so" in said and COMMAND in said


@pytest.mark.long
def test_two_installations_on_the_path_work_and_are_named(
    site: Site,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The package is of one, the module that registers its name of the other."""
    other = Site(tmp_path_factory.mktemp("other"))
    site.link()
    (site.path / "_shmcoll_autoload.py").unlink()
    paths = (site.path, other.path, Path(torch.__file__).parents[1])
    script = "import torch, torch.distributed as dist" + INIT
    done = site.python(script, PYTHONPATH=os.pathsep.join(map(str, paths)))
    assert succeed(done) == "initialized\n"
    said = f"two installations: {site.path} is used, and its name is registered by {other.path}."
    assert done.stderr.count(said) == 1 and "pip uninstall shmcoll" in done.stderr
