# SPDX-License-Identifier: BSD-3-Clause
"""The glue in Python: the same results, errors and texts, also in one group with the compiled glue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import glues
import shmcoll
from ranks import Rank, outcomes, run
from shmcoll.watch import layout
from test_load import Torch
from test_register import INIT, PACKAGE, Site, site, succeed  # noqa: F401

ROOT = Path(__file__).parents[2]
LONG = pytest.mark.long
# Of the tests that all glues share, the ones that a call's way through Python can break.
SLICE = {
    "test_collectives": "",
    "test_work": "future or completed",
    "test_p2p": "any_source",
}
LONGER = {
    "test_collectives": "5",  # ranks
    "test_work": "wait or dropped",
    "test_p2p": "tag",
    "test_sparse": "dense_tensors and 2",
    "test_monitored": "",
}


@pytest.mark.parametrize("part", [SLICE, pytest.param(LONGER, marks=LONG)], ids=["short", "long"])
def test_a_slice_of_the_tests_passes_over_it(part: dict[str, str]) -> None:
    chosen = (
        f"({name}.py and ({names}))" if names else f"{name}.py" for name, names in part.items()
    )
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", " or ".join(chosen)]
    command += ["-m=not long"] if part is SLICE else []
    command += [f"tests/python/{name}.py" for name in part]
    env = {**os.environ, "SHMCOLL_GLUE": "python"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]


def test_its_numbers_are_those_of_the_library() -> None:
    """test_status.py compares the names of layout.py with the library's."""
    expected = {"OPAQUE": layout.DTYPES.index("opaque")}
    for number, name in enumerate(layout.OPERATIONS):
        if name != "call":  # which this glue does not make
            expected["_".join(reversed(name.split())).upper()] = number
    for number, name in enumerate(layout.REDUCTIONS):
        expected[name.upper()] = number

    def body(rank: Rank) -> dict[str, Any]:
        glues.use_python()
        from shmcoll._python_glue import core

        return {name: getattr(core, name, None) for name in expected}

    assert run(1, body) == [expected]


def mixed(rank: Rank, **options: Any) -> str:
    """Odd ranks use the glue in Python. Returns which one this rank uses."""
    if rank.rank % 2:
        glues.use_python()
    rank.init(**options)
    return str(shmcoll.describe()["glue"])


def test_ranks_of_both_glues_make_one_group() -> None:
    def body(rank: Rank) -> str:
        glue = mixed(rank)
        world, me = rank.world, rank.rank
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            mine = torch.full((3, 5), me + 1, dtype=dtype)
            dist.all_reduce(mine.t())  # strided here, and everywhere
            assert mine.tolist() == torch.full((3, 5), 6, dtype=dtype).tolist()

        moved = torch.full((2,), me, dtype=torch.complex32)
        dist.broadcast(moved, 2)
        assert moved.real.tolist() == [2, 2]
        rows = [torch.zeros(me2 + 1) for me2 in range(world)]
        dist.all_gather(rows, torch.full((me + 1,), float(me)))  # uneven
        assert [row.tolist() for row in rows] == [[float(r)] * (r + 1) for r in range(world)]
        out = torch.zeros(2)
        dist.reduce_scatter_tensor(out, torch.arange(2.0 * world), dist.ReduceOp.AVG)
        assert out.tolist() == [2.0 * me, 2.0 * me + 1]
        got = torch.zeros(world, dtype=torch.int32)
        dist.all_to_all_single(got, torch.full((world,), me, dtype=torch.int32))
        assert got.tolist() == list(range(world))
        gathered = [torch.zeros(1) for _ in range(world)] if me == 1 else None
        dist.gather(torch.full((1,), float(me)), gathered, 1)
        assert gathered is None or [float(one) for one in gathered] == [0, 1, 2]
        objects: list[Any] = [None] * world
        dist.all_gather_object(objects, {"rank": me})
        assert objects == [{"rank": r} for r in range(world)]
        entry = torch.sparse_coo_tensor([[me, 3]], [1.0, 1.0], (5,))
        dist.all_reduce(entry)
        assert entry.to_dense().tolist() == [1, 1, 1, 3, 0]
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
        assert all(float(work.get_future().wait()[0][7]) == world for work in works)
        return glue

    said = run(3, body)
    assert said[1] == "Python" and "Python" not in said[0] + said[2]


def test_messages_pass_between_both_glues() -> None:
    def body(rank: Rank) -> None:
        mixed(rank)
        big = 300_000
        if rank.rank == 0:
            got, sources = torch.zeros(big), []
            for _ in range(2):
                sources.append(dist.recv(got, tag=5))
                assert got[0] == sources[-1] and got[-1] == sources[-1]
            assert sorted(sources) == [1, 2]
            dist.send(torch.tensor([9.0]), 1, tag=1)
            dist.send(torch.tensor([8.0]), 1, tag=2)
        else:
            dist.send(torch.full((big,), float(rank.rank)), 0, tag=5)
        if rank.rank == 1:
            second, first = torch.zeros(1), torch.zeros(1)
            dist.recv(second, 0, tag=2)
            dist.recv(first, 0, tag=1)
            assert (float(first), float(second)) == (9, 8)
        dist.barrier()

    run(3, body)


def test_calls_that_differ_are_told_alike_by_both() -> None:
    def body(rank: Rank) -> str:
        mixed(rank)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(4 + rank.rank))
        return str(caught.value)

    told = run(2, body)
    for text in told:
        assert text.startswith("shmcoll: ") and "float32[4]" in text and "float32[5]" in text


def test_a_death_is_told_and_a_future_has_it() -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 0:
            glues.use_python()
        rank.init()
        mine = torch.ones(4)
        dist.all_reduce(mine)
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work = dist.all_reduce(mine, async_op=True)
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            work.wait()
        with pytest.raises(RuntimeError, match="rank 1"):
            work.get_future().wait()
        assert "rank 1" in str(work.exception()) and not work.is_success()

    first, second = outcomes(2, body)
    assert first.ok, first
    assert second.exit == -signal.SIGKILL


def test_what_a_handler_raises_in_a_wait_is_what_the_caller_gets() -> None:
    class Told(Exception):
        pass

    def raise_it(*_: Any) -> None:
        raise Told("by a handler")

    def body(rank: Rank) -> None:
        mixed(rank)
        if rank.rank == 1:
            signal.signal(signal.SIGALRM, raise_it)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Told, match="by a handler"):
                dist.recv(torch.ones(1), 0)
            assert sys.exc_info()[0] is None
        dist.barrier()

    run(2, body)


def test_functional_collectives_and_ddp_reach_it_from_cpp() -> None:
    def body(rank: Rank) -> None:
        glues.use_python()
        rank.init()
        mine = torch.full((4,), rank.rank + 1.0)
        assert functional.all_reduce(mine, "sum", dist.group.WORLD).tolist() == [3.0] * 4
        whole = functional.all_gather_tensor(mine, 0, dist.group.WORLD)
        assert whole.tolist() == [1.0] * 4 + [2.0] * 4
        part = functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
        assert part.tolist() == [2.0 * (1 + rank.rank)] * 4
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        model(torch.full((1, 2), rank.rank + 1.0)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.5, 1.5]]

    run(2, body)


def test_every_operation_of_torchs_groups_is_there() -> None:
    """A method of a newer torch would look for a C++ backend, and say that there is none."""

    def body(rank: Rank) -> set[str]:
        glues.use_python()
        rank.init()
        left = {
            *("boxed", "unbox", "rank", "size", "bound_device_id", "BackendType"),
            "use_pg_for_symm_mem_rendezvous",
        }
        names = {n for n in dir(dist.ProcessGroup) if not n.startswith("_") and not n.isupper()}
        own = {name for kind in type(dist.group.WORLD).__mro__[:3] for name in vars(kind)}
        return names - own - left

    assert run(1, body) == [set()]


def test_a_cuda_tensor_is_refused_with_the_way_out() -> None:
    class OnGpu(torch.Tensor):
        is_cuda, is_cpu, device = True, False, torch.device("cuda:0")

    def body(rank: Rank) -> None:
        glues.use_python()
        rank.init()
        with pytest.raises(TypeError, match="for CPU tensors; .*SHMCOLL_GLUE=build"):
            dist.all_reduce(torch.ones(2).as_subclass(OnGpu))

    run(1, body)


# ---- which glue is taken ----


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a variable nor a build of the user's decides."""
    monkeypatch.delenv("SHMCOLL_GLUE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture()
def without(site: Site) -> Site:
    """An installation without a compiled glue for this torch."""
    package = site.link("lib")
    (package / "lib").mkdir()
    for file in (PACKAGE / "lib").iterdir():
        if "c10d" not in file.name:
            (package / "lib" / file.name).symlink_to(file)
    (package / "lib/libshmcoll_c10d-2.7.so").touch()
    return site


def test_without_a_glue_for_this_torch_it_is_taken_and_said_once(
    without: Site, tmp_path: Path
) -> None:
    script = INIT.replace(
        "dist.destroy", 'import shmcoll; print(shmcoll.describe()["glue"]); dist.destroy'
    )
    done = without.python("import torch, torch.distributed as dist" + script)
    assert succeed(done) == "Python\ninitialized\n"
    assert done.stderr.count("The glue in Python is used: CPU tensors only") == 1
    assert "was built for torch 2.7 " in done.stderr and "SHMCOLL_GLUE=build" in done.stderr
    done = without.python("import torch, torch.distributed as dist" + script, SHMCOLL_GLUE="python")
    assert succeed(done) == "Python\ninitialized\n" and done.stderr == ""


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("native", "was built for torch 2.7 "),
        pytest.param("build", "needs shmcoll's sources, and this installation", marks=LONG),
        pytest.param("fast", "SHMCOLL_GLUE=fast is not one of native|python|build", marks=LONG),
    ],
)
def test_what_cannot_be_had_is_one_sentence(
    without: Site, tmp_path: Path, said: str, text: str
) -> None:
    script = "import torch, torch.distributed as dist\ntry:" + INIT.replace("\n", "\n    ")
    script += "\nexcept ImportError as error:\n    print(error)"
    lines = succeed(without.python(script, SHMCOLL_GLUE=said)).splitlines()
    assert len(lines) == 1 and text in lines[0]


def test_a_build_for_another_library_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from shmcoll import _build

    assert _build.find(torch) is None
    folder = _build._folder(torch)
    folder.mkdir(parents=True)
    (folder / "libshmcoll_c10d.so").touch()
    (folder / "built.json").write_text(json.dumps({"core": _build._core_hash()}))
    assert _build.find(torch) == folder / "libshmcoll_c10d.so"
    (folder / "built.json").write_text(json.dumps({"core": "of yesterday"}))
    with pytest.warns(RuntimeWarning, match="built for another libshmcoll"):
        assert _build.find(torch) is None
    (folder / "built.json").write_text("[]")
    assert _build.find(torch) is None


def test_a_build_is_loaded_like_a_glue_of_the_installation(without: Site, tmp_path: Path) -> None:
    from shmcoll import _build, _load

    folder = tmp_path / "cache/shmcoll" / _build._folder(torch).name
    folder.mkdir(parents=True)
    glue = PACKAGE / f"lib/libshmcoll_c10d-{_load.minor(torch.__version__)}.so"
    (folder / "libshmcoll_c10d.so").symlink_to(glue)
    (folder / "built.json").write_text(json.dumps({"core": _build._core_hash()}))
    script = "import torch, torch.distributed as dist" + INIT
    script += "import shmcoll; print(shmcoll._glue.NAME)"
    done = without.python(script, SHMCOLL_GLUE="build")
    assert succeed(done).startswith("initialized\n2.") and done.stderr == ""


def test_a_nightly_takes_a_compiled_glue_only_if_it_was_built_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from shmcoll import _load

    minor = _load.minor(torch.__version__)
    release, nightly = Torch(f"{minor}.9"), Torch(f"{minor}.0.dev20261128+cpu")
    compiled = PACKAGE / f"lib/libshmcoll_c10d-{minor}.so"
    assert _load.find_glue(release) == compiled
    assert _load.find_glue(nightly) == PACKAGE / "lib" / _load._LIBRARY
    monkeypatch.setattr(
        _load, "build_facts", lambda: {"torch": nightly.__version__, "version": "7.1.0rc1"}
    )
    assert _load.find_glue(nightly) == compiled
    assert _load.library("libshmcoll").name == "libshmcoll.so.7"


def test_two_installations_and_another_machine_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import _shmcoll_autoload
    from shmcoll import _load

    monkeypatch.setattr(_shmcoll_autoload, "__file__", str(tmp_path / "_shmcoll_autoload.py"))
    with pytest.warns(RuntimeWarning, match=f"two installations: .* registered by {tmp_path}"):
        _load._warn_of_two()
    with pytest.raises(ImportError, match="built for sparc64, and this machine is "):
        _load._check_machine({"machine": "sparc64"})


@pytest.mark.parametrize("ends", [True, False])
def test_the_collector_may_let_go_of_a_cycle_in_any_order(ends: bool) -> None:
    """It calls the finalizers of works, requests and groups: here the group's first, and the work's last."""

    def body(rank: Rank) -> int:
        glues.use_python()
        rank.init()
        from shmcoll._python_glue import work as module

        group = dist.new_group()
        if rank.rank == 0 or ends:
            backend: Any = group._get_backend(torch.device("cpu"))
            work: Any = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            if ends:
                work.wait()
            freed: list[int] = []
            backend._group.let_go(lambda comm: freed.append(comm.value))
            assert freed == []  # the request needs it
            work._holder.__del__(free=lambda comm: freed.append(comm.value))
            assert freed == [backend._group.comm.value]
            work.__del__()
            assert not work._request and work._ended == ((0, "") if ends else None)
            backend._group._owners.append(True)  # it was not really freed
        rank.sync()  # a rank that leaves early would end the other's work as a failed one
        dist.destroy_process_group(group)
        return len(module._dropped)

    assert run(2, body) == [int(ends)] * 2  # what C++ may still ask stays
