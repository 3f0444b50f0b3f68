# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/hosts/sim.py: does its model send what the library sends, and does it say when it is off?"""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shmcoll
from ranks import Rank, run, seconds

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "hosts"))
import model  # noqa: E402
import sim  # noqa: E402

MIB = 1 << 20
SIZES = {
    "all_reduce": (8, 1 << 10, 100_000, 300_004, 3 * MIB + 4),
    "broadcast": (8, 1 << 10, 100_000, 300_004, 3 * MIB + 4),
    "all_gather": (8, 10_000, 200_000, 3 * MIB // 2 + 4),
    "reduce_scatter": (8, 10_000, 200_000, 3 * MIB // 2 + 4),
    "all_to_all": (8, 10_000, 200_000, 3 * MIB // 2 + 4),
}


def call(operation: str, bytes_: int, world: int, group: Any) -> None:
    own, all_ = torch.zeros(bytes_ // 4), torch.zeros(world * bytes_ // 4)
    if operation == "all_reduce":
        dist.all_reduce(own, group=group)
    elif operation == "broadcast":
        dist.broadcast(own, 0, group=group)
    elif operation == "all_gather":
        dist.all_gather_into_tensor(all_, own, group=group)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(own, all_, group=group)
    else:
        dist.all_to_all_single(torch.zeros_like(all_), all_, group=group)


@pytest.mark.parametrize(("hosts", "ranks", "rails"), [(2, 2, 2), (3, 2, 2), (2, 3, 2)])
def test_calls_and_bytes_are_those_of_a_group(hosts: int, ranks: int, rails: int) -> None:
    world = hosts * ranks

    def body(rank: Rank) -> dict[tuple[str, int], tuple[int, int]]:
        rank.init(timeout=seconds(60), pg_options=shmcoll.Options(rails=rails))
        seen = {}
        for operation, sizes in SIZES.items():
            # A new one, which does not know the rate of its links yet.
            group: Any = dist.new_group(pg_options=shmcoll.Options(rails=rails))
            for size in sizes:
                before: Any = shmcoll.describe(group, internals=True)
                call(operation, size, world, group)
                after: Any = shmcoll.describe(group, internals=True)
                seen[operation, size] = tuple(
                    after[name] - before[name] for name in ("engine_calls", "engine_bytes")
                )
        return seen

    env = {"SHMCOLL_FAKE_HOSTS": f"{hosts}x{ranks}", "GLOO_SOCKET_IFNAME": "lo"}
    leader = run(world, body, env=env, limit=120)[0]
    machine = sim.machine_of("1gbit", model.Constants())
    group = model.Shmcoll(machine, hosts, ranks, rails, measured=False)
    for (operation, size), seen in leader.items():
        cost = group.cost(operation, size)
        assert (cost.calls, cost.handed) == seen, (operation, size)


@pytest.mark.parametrize(("rate", "calls"), [("1gbit", (5, 9, 5)), ("3gbit", (2, 5, 2))])
def test_chunks_are_those_of_the_links_rate_once_it_is_known(
    rate: str, calls: tuple[int, int, int]
) -> None:
    machine = sim.machine_of(rate, model.Constants())
    for measured, wanted in ((True, calls), (False, (2, 5, 2))):
        group = model.Shmcoll(machine, 2, 2, measured=measured)
        seen = tuple(
            group.cost(operation, size).calls
            for operation, size in (
                ("all_reduce", MIB),
                ("all_reduce", 4 * MIB),
                ("all_to_all", 256 << 10),
            )
        )
        assert seen == wanted
        assert group.cost("all_gather", MIB).calls == 5
    first, later = (model.Shmcoll(machine, 2, 2, measured=known) for known in (False, True))
    before, after = (one.cost("all_reduce", MIB) for one in (first, later))
    assert after.out == before.out
    assert after.seconds(machine) <= before.seconds(machine)


def test_bytes_out_of_a_host_are_those_of_the_protocol() -> None:
    machine = sim.machine_of("1gbit", model.Constants())
    for hosts, ranks in ((2, 2), (4, 8), (64, 8)):
        group, plan = model.Shmcoll(machine, hosts, ranks), model.Plan(hosts, ranks)
        records = plan.record * (hosts - 1)
        n, block, world = 64 * MIB, 4 * MIB, hosts * ranks
        wanted = {
            "all_reduce": 2 * n * (hosts - 1) / hosts if hosts > 2 else n,
            "all_gather": block * ranks * (hosts - 1),
            "reduce_scatter": block * ranks * (hosts - 1),
            "all_to_all": block * ranks * (world - ranks),
        }
        for operation, out in wanted.items():
            size = n if operation == "all_reduce" else block
            assert group.cost(operation, size).out - records == pytest.approx(out, rel=1e-3)
    gloo = model.Gloo(machine, 2, 2)
    assert gloo.cost("all_reduce", n).out == 2 * n * 3 / 4
    assert gloo.cost("broadcast", n).out == 2 * n


def measured(factor: float = 1.0) -> dict[str, Any]:
    """A file of against_gloo.py in which one row is off by the factor."""
    activity = {"cpus": 2, "seconds": 10.0, "own_s": 5.0, "busy_s": 5.0}
    run: dict[str, Any] = {"schema": sim.SCHEMA, "layout": [0, 0, 1, 1], "rate": "1gbit"}
    run |= {"activity": activity, "said": "quiet machine", "rows": []}
    machine = sim.as_measured(run, model.Constants())
    for operation in sim.OPERATIONS:
        for size in (64 << 10, 4 * MIB):
            ratio = sim.row_of(machine, 2, 2, operation, size).ratio
            run["rows"].append({"op": operation, "bytes": size, "ratio": ratio, "noisy": False})
    run["rows"].append({"op": "all_reduce", "bytes": 16 * MIB, "absent": "why"})
    run["rows"][1]["ratio"] *= factor
    return run


@pytest.mark.parametrize(
    ("factor", "code"), [(1.0, 0), (1.1, 0), (1 / 1.1, 0), (1.25, 1), (0.8, 1)]
)
def test_a_check_fails_if_a_row_is_off(
    factor: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(measured(factor)))
    monkeypatch.setattr(sys, "argv", ["sim.py", "--check", str(file)])
    assert sim.main() == code
    out = capsys.readouterr().out
    assert out.count("OFF") == code and out.count("ok") == 5 - code
    assert f"# {code} of 5 rows" in out


def test_a_row_whose_rounds_disagree_is_in_doubt_if_it_is_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = measured(2.0)
    for row in run["rows"]:
        row["noisy"] = True
    assert sim.check(run, model.Constants()) == 0
    out = capsys.readouterr().out
    assert out.count("in doubt") == 1 and "# 0 of 4 rows" in out


@pytest.mark.parametrize("layout", ["2x2", "3x2"])
def test_the_model_agrees_with_a_run_that_is_kept(layout: str) -> None:
    file = ROOT / "benchmarks" / "results" / f"hosts-{layout}-1gbit-xeon-2cpu.json"
    assert sim.check(json.loads(file.read_text()), model.Constants()) == 0


def test_a_check_that_checks_nothing_is_an_error() -> None:
    run = measured()
    for change, words in (
        ({"rows": run["rows"][:1]}, "nothing to check"),
        ({"schema": "other/1"}, "a JSON of against_gloo.py"),
        ({"layout": [0, 0, 1]}, "equal hosts"),
        ({"rate": "10gbit"}, "nothing to check"),
    ):
        with pytest.raises(ValueError, match=words):
            sim.check({**copy.deepcopy(run), **change}, model.Constants())


def test_the_table_has_64_to_1024_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sim.py", "-o", "all_reduce,broadcast"])
    assert sim.main() == 0
    lines = capsys.readouterr().out.splitlines()
    for hosts in (64, 256, 1024):
        for ranks in (8, 64):
            assert f"{hosts} hosts of {ranks} ranks" in lines
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("    all_reduce")]) == 6 * 4


def test_a_wrong_word_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        (["--set", "speed=1"], "no constant speed"),
        (["-o", "all"], "no operation all"),
        (["--hosts", "2048", "--ranks", "64"], "65536 at most"),
        (["--rate", "fast"], "no rate"),
        (["--check", "/nowhere"], "No such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["sim.py", *arguments])
        assert sim.main() == 2
        assert words in capsys.readouterr().err


def test_a_reader_that_has_gone_ends_it_without_a_word() -> None:
    """Its output is more than a pipe holds, so that it writes on when the reader has gone."""
    sizes = ",".join(str(size) for size in range(1000, 2000))
    words = [sys.executable, str(ROOT / "benchmarks/hosts/sim.py"), "--sizes", sizes]
    piped = subprocess.PIPE
    with subprocess.Popen(words, stdout=piped, stderr=piped) as shown:
        assert shown.stdout is not None and shown.stderr is not None
        assert shown.stdout.readline().startswith(b"# a model")
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait() == 128 + signal.SIGPIPE


def test_every_constant_has_a_source() -> None:
    assert set(sim.SOURCES) == set(model.Constants.__dataclass_fields__)
