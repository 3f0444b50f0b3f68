# SPDX-License-Identifier: BSD-3-Clause
"""The name "shmcoll": known without import, harmless when broken, clear when it does not fit.

What an installation looks like to Python is made by hand in a directory: links to the modules, and
metadata with the entry points that pyproject.toml declares.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import importlib
import os
import pickle
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

import _shmcoll_autoload
import shmcoll
import system_calls
from ranks import Rank, run

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shmcoll.__file__).parent

INIT = """
dist.init_process_group("shmcoll", store=dist.HashStore(), rank=0, world_size=1)
mine = torch.full((3,), 2.0)
dist.all_reduce(mine, dist.ReduceOp.AVG)
assert mine.tolist() == [2.0] * 3 and dist.get_backend() == "shmcoll"
dist.destroy_process_group()
print("initialized")
"""


class Site:
    """A site-packages directory with shmcoll in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "_shmcoll_autoload.py").symlink_to(PACKAGE.parent / "_shmcoll_autoload.py")
        declared = re.findall(
            r'\[project\.entry-points\."([\w.]+)"\]\n(.+) = "(.+)"',
            (ROOT / "pyproject.toml").read_text(),
        )
        assert [group for group, _, _ in declared] == [
            "torch.distributed.backends",
            "torch.backends",
            "vllm.general_plugins",
        ]
        info = path / "shmcoll-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shmcoll\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(
            "".join(f"[{group}]\n{name} = {target}\n" for group, name, target in declared)
        )

    def link(self, *without: str) -> Path:
        """The real package's files, but some."""
        package = self.path / "shmcoll"
        package.mkdir()
        for file in PACKAGE.iterdir():
            if file.name not in (*without, "__pycache__"):
                (package / file.name).symlink_to(file)
        return package

    def python(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs Python without site, so that no other installation of shmcoll is seen."""
        paths = [str(self.path), str(Path(torch.__file__).parents[1])]
        return subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **env},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.fixture()
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- entry points ----


def test_the_name_is_known_without_an_import_and_nothing_is_loaded_before_its_use(
    site: Site,
) -> None:
    site.link()
    script = """
import sys, torch, torch.distributed as dist
assert "SHMCOLL" in dist.Backend._plugins or hasattr(dist.Backend, "_ensure_backend_registered")
assert "shmcoll" not in sys.modules and "libshmcoll" not in open("/proc/self/maps").read()
"""
    script += INIT + f'assert sys.modules["shmcoll"].__file__.startswith({str(site.path)!r})\n'
    script += 'assert "shmcoll._describe" not in sys.modules, "it takes as long as the rest"'
    assert succeed(site.python(script)) == "initialized\n"


def test_no_name_loads_dynamo(site: Site) -> None:
    """It takes seconds, and it loads triton, which turns the lock of a free-threaded Python on."""
    site.link()
    script = """
import sys, torch, torch.distributed as dist, shmcoll
for name in shmcoll.__all__:
    getattr(shmcoll, name)
dist.init_process_group("shmcoll", store=dist.HashStore(), rank=0, world_size=1)
shmcoll.all_reduce(torch.ones(2))
assert "torch._dynamo" not in sys.modules
dist.destroy_process_group()
"""
    succeed(site.python(script))


def test_the_entry_point_of_newer_torch_registers_too(site: Site) -> None:
    """The other hook is off. torch 2.14 asks by name."""
    site.link()
    script = """
import importlib.metadata, sys, torch, torch.distributed as dist
assert "SHMCOLL" not in dist.Backend._plugins
found = [e for e in importlib.metadata.entry_points(group="torch.distributed.backends")
         if e.name == "shmcoll"]
assert len(found) == 1
found[0].load()()
assert "SHMCOLL" in dist.Backend._plugins and "shmcoll" not in sys.modules
"""
    assert succeed(site.python(script + INIT, SHMCOLL_AUTOLOAD="0")) == "initialized\n"


def test_the_older_hook_leaves_a_torch_that_asks_by_name_alone() -> None:
    def body(rank: Rank) -> None:
        del dist.Backend._plugins["SHMCOLL"]
        dist.Backend._ensure_backend_registered = lambda name: None
        _shmcoll_autoload.autoload()
        assert "SHMCOLL" not in dist.Backend._plugins
        del dist.Backend._ensure_backend_registered
        _shmcoll_autoload.autoload()
        assert "SHMCOLL" in dist.Backend._plugins

    run(1, body)


BROKEN = {"raises": {"__init__.py": "raise SystemError('planted')"}, "is gone": {}}


@pytest.mark.parametrize("what", [pytest.param("raises", marks=pytest.mark.long), "is gone"])
def test_a_package_that_is_broken_does_not_break_torch(site: Site, what: str) -> None:
    for name, text in BROKEN[what].items():
        (site.path / "shmcoll").mkdir(exist_ok=True)
        (site.path / "shmcoll" / name).write_text(text)
    script = """
import torch, torch.distributed as dist
print(torch.ones(2).sum().item())
try:
    dist.init_process_group("shmcoll", store=dist.HashStore(), rank=0, world_size=1)
except Exception as error:
    print(type(error).__name__, error)
"""
    lines = succeed(site.python(script)).splitlines()
    assert lines[0] == "2.0"
    assert ("planted" if what == "raises" else "No module named 'shmcoll'") in lines[1]


def test_a_hook_that_fails_inside_does_not_break_torch() -> None:
    def body(rank: Rank) -> None:
        del dist.Backend._plugins["SHMCOLL"]

        def refuse(*args: object, **kwargs: object) -> None:
            raise TypeError("another torch's register_backend")

        dist.Backend.register_backend = refuse
        _shmcoll_autoload.autoload()  # what `import torch` calls: swallows
        with pytest.raises(TypeError):
            _shmcoll_autoload.register()  # what the user asks for: says so
        dist.Backend = None
        _shmcoll_autoload.autoload()

    run(1, body)


# ---- import shmcoll ----

LAZY = """
import sys, time
begun = time.process_time()
import shmcoll
seconds = time.process_time() - begun
assert not {"torch", "numpy", "shmcoll._C", "json", "typing", "importlib.metadata"} & sys.modules.keys()
assert set(shmcoll.__all__) <= set(dir(shmcoll)) and not hasattr(shmcoll, "torch")
"""


def test_an_import_loads_neither_torch_nor_the_library(site: Site) -> None:
    site.link()
    # The least of several: a busy machine adds to a process's CPU time what it is interrupted for.
    said = [
        succeed(site.python(LAZY + "print(seconds)", PYTHONDONTWRITEBYTECODE="1")) for _ in "1234"
    ]
    assert min(map(float, said)) < 0.03, f"import shmcoll took {said} s"


# A torch that never asks for entry points: the import alone has to do it.
ALONE = {"SHMCOLL_AUTOLOAD": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.parametrize("first", [pytest.param("shmcoll", marks=pytest.mark.long), "torch"])
def test_an_import_registers_before_and_after_torchs(site: Site, first: str) -> None:
    site.link()
    if first == "shmcoll":
        script = LAZY + "import torch, torch.distributed as dist\n"
    else:
        script = "import sys, torch, torch.distributed as dist\nimport shmcoll\n"
    script += """
assert "SHMCOLL" in dist.Backend._plugins and "shmcoll._C" not in sys.modules
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Watch"]
"""
    assert succeed(site.python(script + INIT, **ALONE)) == "initialized\n"


@pytest.mark.long
def test_an_import_that_cannot_register_does_not_break_torchs(site: Site) -> None:
    site.link()
    script = """
import shmcoll, _shmcoll_autoload
def refuse(): raise SystemError("planted")
_shmcoll_autoload.register = refuse
import torch, torch.distributed as dist
assert "SHMCOLL" not in dist.Backend._plugins
print(torch.ones(2).sum().item())
"""
    assert succeed(site.python(script, **ALONE)) == "2.0\n"


def test_options_are_unpickled_where_nothing_has_been_loaded(site: Site) -> None:
    site.link()
    [pickled] = run(1, lambda rank: pickle.dumps(shmcoll.Options(tuning="depth=4")).hex())
    text = f"import pickle; print(pickle.loads(bytes.fromhex('{pickled}')).tuning)"
    assert succeed(site.python(text)) == "depth=4\n"


def test_the_names_are_those_of_the_type_checker() -> None:
    """What it sees is in the branch for it; what a program sees is in a table."""
    text = (PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:\n", 1)[1]
    said = re.findall(r"^    from shmcoll\.(\w+) import (.+)$", text.split("\n\n", 1)[0], re.M)
    homes = {name: home for home, names in said for name in names.split(", ")}
    assert homes == {**shmcoll._HOMES, "Options": "_C"}  # its stub, for either glue
    assert {*homes, "build_info", "use_for_gloo", "__version__"} == set(shmcoll.__all__)


@pytest.mark.parametrize("use", ["shmcoll.Options", "shmcoll.build_info()", "shmcoll.describe"])
def test_without_torch_the_import_works_and_a_use_says_what_is_missing(
    site: Site, use: str
) -> None:
    site.link()
    script = """
import sys
sys.modules["torch"] = None
import shmcoll, shmcoll.cli
assert shmcoll.cli.main(["--version"]) == 0
try:
    USE
except ImportError as error:
    print(error)
"""
    lines = succeed(site.python(script.replace("USE", use))).splitlines()
    assert lines[0] == f"shmcoll {shmcoll.__version__}"
    assert lines[1].startswith("shmcoll needs torch, and this Python (") and "torch 2." in lines[1]


# ---- without the module shmcoll._C ----


@pytest.mark.parametrize("module", [pytest.param("with", marks=pytest.mark.long), "without"])
def test_describe_and_the_log_say_which_glue_is_used(site: Site, module: str) -> None:
    from shmcoll._load import minor

    left_out = [] if module == "with" else [file.name for file in PACKAGE.glob("_C.*.so")]
    site.link(*left_out)
    script = """
import datetime, torch, torch.distributed as dist, shmcoll
options = shmcoll.Options(datetime.timedelta(seconds=7), tuning="depth=4")
dist.init_process_group("shmcoll", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)
in_gloos_place = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=9))
assert shmcoll.describe(in_gloos_place)["timeout_s"] == 9
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=8), in_gloos_place)
assert shmcoll.describe(in_gloos_place)["timeout_s"] == 8
in_gloos_place._get_backend(torch.device("cpu")).perform_nocolor_split(torch.device("cpu"))
said = shmcoll.describe(internals=True)
assert said["timeout_s"] == 7 and said["tuning.depth"] == "4" and said["name"] == "0"
print(said["glue"])
dist.destroy_process_group()
"""
    done = site.python(script, SHMCOLL_LOG="info", SHMCOLL_FOR_GLOO="1")
    name = f"{minor(torch.__version__)}, {module} shmcoll._C"
    assert succeed(done) == name + "\n"
    assert done.stderr.count(f"] info: glue for torch {name}\n") == 1, done.stderr


WITHOUT = """
import copy, datetime, os, pickle, signal, sys, threading, time
import torch, torch.distributed as dist, torch.nn.parallel
import shmcoll

class Told(Exception):
    pass

def interrupt(*_):
    raise Told("by a handler")

def expect(error, text, function):
    try:
        function()
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(f"no {error.__name__}")

rank, path = int(os.environ["RANK"]), os.environ["STORE"]
dist.init_process_group("shmcoll", store=dist.FileStore(path, 2), rank=rank, world_size=2)
assert "shmcoll._C" not in sys.modules
mine = torch.full((3,), rank + 1.0)
dist.all_reduce(mine, dist.ReduceOp.AVG)
assert mine.tolist() == [1.5] * 3
work = dist.all_reduce(mine, async_op=True)
work.wait()
assert work.get_future().value()[0].tolist() == [3.0] * 3

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), rank + 1.0)).sum().backward()
assert model.module.weight.grad.tolist() == [[1.5, 1.5]]

expect(ValueError, "rails=9", lambda: shmcoll.Options(rails=9))
expect(TypeError, "arguments", lambda: shmcoll.Options(rails="9"))
options = shmcoll.Options(datetime.timedelta(seconds=9), "depth=4", order="rank")
for twin in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
    assert isinstance(twin, shmcoll.Options) and twin.tuning == "depth=4", twin
    assert twin.order == "rank"
    assert repr(twin) == repr(options) and twin._timeout == options._timeout
expect(ValueError, "is negative", lambda: shmcoll.Options(datetime.timedelta(seconds=-1)))
expect(ValueError, "nonsense", lambda: shmcoll.Options(tuning="nonsense=1"))
group = dist.new_group([0, 1], pg_options=options)
assert shmcoll.describe(group, internals=True)["tuning.depth"] == "4"

shmcoll.monitored_barrier()
if rank == 0:  # what a handler raises inside a wait is what the caller gets
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    expect(Told, "by a handler", lambda: dist.recv(mine, 1))
    assert not sys.exc_info()[0]
other = torch.ones(2 + rank)
expect(dist.DistBackendError, "rank", lambda: dist.all_reduce(other, group=group))
print("done")
"""


def test_two_ranks_do_by_operators_what_the_module_does(site: Site, tmp_path: Path) -> None:
    site.link(*(file.name for file in PACKAGE.glob("_C.*.so")))
    store = tmp_path / "store"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(site.python, WITHOUT, RANK=str(rank), STORE=str(store)) for rank in range(2)
        ]
    assert [succeed(one.result()) for one in runs] == ["done\n"] * 2


# ---- in this process ----


def test_registration_warns_of_nothing_and_twice_is_harmless() -> None:
    def body(rank: Rank) -> None:
        warnings.simplefilter("error")
        del dist.Backend._plugins["SHMCOLL"]
        for _ in range(2):
            _shmcoll_autoload.register()
            _shmcoll_autoload.autoload()
        creator = dist.Backend._plugins["SHMCOLL"].creator_fn
        assert creator is _shmcoll_autoload.create
        assert dist.Backend.backend_list.count("shmcoll") == 1
        importlib.reload(shmcoll)
        rank.init()
        dist.barrier()

    run(2, body)


def test_a_rank_that_cannot_load_the_library_tells_the_others() -> None:
    # Not in this process: the library would read the variables of all later tests.
    (layout,) = run(1, lambda rank: shmcoll.build_info()["layout"])
    assert layout == str(_shmcoll_autoload.LAYOUT)

    def body(rank: Rank) -> str:
        del dist.Backend._plugins["SHMCOLL"]
        _shmcoll_autoload.register()
        if rank.rank == 1:
            sys.modules["shmcoll"] = None  # type: ignore[assignment]
        error = ImportError if rank.rank == 1 else dist.DistBackendError
        with pytest.raises(error) as caught:
            rank.init()
        rank.sync()
        return str(caught.value)

    texts = run(3, body)
    for text in (texts[0], texts[2]):
        assert "could not be made: rank 1 cannot load shmcoll: " in text and texts[1] in text


@pytest.mark.parametrize("name", ["shmcoll", "SHMCOLL", "cpu:shmcoll", "cpu:shmcoll,cuda:shmcoll"])
def test_every_spelling_initializes(name: str) -> None:
    def body(rank: Rank) -> tuple[float, str]:
        warnings.simplefilter("error")
        rank.init(name)
        mine = torch.tensor([rank.rank + 1.0])
        dist.all_reduce(mine)
        return mine.item(), dist.group.WORLD._get_backend(torch.device("cpu")).name()

    assert run(2, body) == [(3.0, "shmcoll")] * 2


def test_strings_with_devices_are_understood() -> None:
    def devices(text: str) -> dict[str, str]:
        return dict(dist.BackendConfig(dist.Backend(text)).get_device_backend_map())

    assert devices("cpu:shmcoll,cuda:nccl") == {"cpu": "shmcoll", "cuda": "nccl"}
    assert devices("cuda:nccl,cpu:shmcoll") == {"cpu": "shmcoll", "cuda": "nccl"}
    assert devices("cpu:shmcoll") == {"cpu": "shmcoll"}
    assert devices("shmcoll") == {"cpu": "shmcoll", "cuda": "shmcoll"}
    assert dist.Backend("shmcoll") == "shmcoll"
    assert dist.Backend.backend_capability["shmcoll"] == ["cpu", "cuda"]


def test_torchs_own_defaults_stay_as_they_are() -> None:
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.get_default_backend_for_device("cuda") == "nccl"


def test_build_info_says_what_was_built_and_what_is_here() -> None:
    def body(rank: Rank) -> dict[str, str]:
        return shmcoll.build_info()

    (info,) = run(1, body)
    (base,) = run(1, body, env={"SHMCOLL_CPU": "base"})
    for key in (
        "version",
        "layout",
        "max_world",
        "compiler",
        "built_with_numa",
        "built_with_uring",
        "built_with_probes",
        "numa",
        "numa_use",
        "uring",
        "uring_use",
        "futex_waitv",
        "isa",
        "isa_usable",
        "torch",
        "python",
    ):
        assert info[key] != "", key
    assert info["version"] == shmcoll.__version__
    assert info["torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert info["max_world"] == "256"
    assert info["isa"] in info["isa_usable"] and base["isa"] == "base"
    setup = system_calls.IO_URING_SETUP
    works = ctypes.CDLL(None).syscall(setup, 2, ctypes.create_string_buffer(120)) >= 0
    assert (info["uring"] == "yes") == (works and info["built_with_uring"] == "yes")
    assert (info["numa_use"] == "none") == (info["numa"] == "no")
    assert info["uring_use"] == "none"


def test_what_a_filter_refuses_is_not_missed() -> None:
    def body(rank: Rank) -> dict[str, str]:
        for number in (system_calls.IO_URING_SETUP, system_calls.FUTEX_WAITV):
            system_calls.refuse(number)
        rank.init()
        tensor = torch.ones(2)
        if rank.rank == 0:
            time.sleep(0.05)  # the other one sleeps by then
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2]
        return shmcoll.build_info()

    for info in run(2, body):
        assert (info["uring"], info["futex_waitv"]) == ("no", "no")


def test_options_can_be_copied_as_torch_does_and_pickled() -> None:
    import copy
    import datetime
    import pickle

    options = shmcoll.Options(datetime.timedelta(seconds=7))
    options.group_name = "a"
    options.global_ranks_in_group = [3, 5]
    pickled = pickle.loads(pickle.dumps(options))
    for twin in (copy.copy(options), copy.deepcopy(options), pickled):
        assert isinstance(twin, shmcoll.Options) and isinstance(twin, Backend.Options)
        assert (twin._timeout, twin.group_name, twin.backend) == (
            datetime.timedelta(seconds=7),
            "a",
            "shmcoll",
        )
        assert twin.global_ranks_in_group == [3, 5]
        twin.group_name = "b"
        assert options.group_name == "a"
    assert shmcoll.Options()._timeout == datetime.timedelta(minutes=30)
