# SPDX-License-Identifier: BSD-3-Clause
"""The examples, most on gloo: what they promise does not depend on the backend."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import ranks
import torch
from processes import processes_with

EXAMPLES = Path(__file__).parents[2] / "examples"

FRAMEWORKS = sorted({script.parent for script in (EXAMPLES / "frameworks").glob("*/[!c]*.py")})

pytestmark = pytest.mark.timeout(450)

if importlib.util.find_spec("sklearn") is None:  # an import would cost each worker two seconds
    pytest.skip("the digits come with scikit-learn", allow_module_level=True)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(name).name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def compare(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run(EXAMPLES / "compare_backends.py", *args, cwd=cwd)


@pytest.mark.long
def test_the_demo_trains_and_writes_its_figures(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    demo = EXAMPLES / "digits_ddp.py"
    args = ("--backend", "gloo", "--epochs", "2", "--json", "new/out.json")
    done = run(*torchrun, demo, *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # An older torch's gloo says on stdout whom it has connected, each rank in the other's lines.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("epoch ", "gloo: "))]
    assert [line.split()[:2] for line in lines[:2]] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert lines[2].startswith("gloo: 44 steps, ")

    result = json.loads((tmp_path / "new" / "out.json").read_text())
    assert result["schema"] == "shmcoll.digits/1"
    assert (result["backend"], result["world_size"], result["epochs"]) == ("gloo", 2, 2)
    assert result["steps"] == len(result["losses"]) == 44
    assert len(result["accuracy"]) == 2
    assert result["test_accuracy"] == result["accuracy"][-1] > 0.5
    assert result["final_loss"] == pytest.approx(sum(result["losses"][22:]) / 22)
    assert 0 < result["comm_ms"] <= result["wait_ms"] < result["step_ms"]
    for name in ("all_step_ms", "all_comm_ms", "all_wait_ms"):
        assert len(result[name]) == 44


def test_the_demo_says_how_to_start_it() -> None:
    def body(rank: ranks.Rank) -> None:
        os.environ.pop("RANK", None)
        sys.argv = [str(EXAMPLES / "digits_ddp.py")]
        runpy.run_path(sys.argv[0], run_name="__main__")

    [ended] = ranks.outcomes(1, body)  # a fork: torch is there already
    assert (ended.error, ended.text) == ("SystemExit", "2"), ranks.describe(ended)
    assert "start me with: torchrun" in ended.output


@pytest.mark.long
def test_a_model_makes_the_same_tokens_however_it_communicates(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    small = "--layers 2 --hidden 64 --heads 4 --ffn 64 --vocab 64 --tokens 8 --rounds 1".split()
    decode = (*torchrun, EXAMPLES / "tp_decode.py", *small)
    done = run(*decode, "--json", "new/out.json", "--chart", "new/out.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\ntokens: all equal\n" in done.stdout
    forms = json.loads((tmp_path / "new" / "out.json").read_text())["forms"]
    assert forms.keys() >= {"gloo", "shmcoll", "direct"}
    assert all(0 < form["comm_ms"] < form["token_ms"] for form in forms.values())
    assert (tmp_path / "new" / "out.png").read_bytes().startswith(b"\x89PNG")
    decode = load("tp_decode")
    shape = decode.Shape(1, 64, 4, 64, 64, 1, 8, "bf16")
    assert shape.error(2) == ""
    assert shape.error(3) == "--heads 4 cannot be divided among 3 ranks"


# The comparison is what is asked here: one rank each gives two curves, too. The demo's test compares two
# backends in the default lane.


@pytest.mark.long
def test_the_same_backend_twice_is_bitwise_equal(tmp_path: Path) -> None:
    done = compare(tmp_path, "gloo", "gloo", "--epochs", "1", "--rounds", "1", "--nproc", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss curves of gloo and gloo#2: bitwise equal, max. difference 0 over" in done.stdout
    assert "VERDICT: gloo and gloo#2 do the same training;" in done.stdout
    for row in ("test accuracy", "final loss", "time per step", "time in communication"):
        assert f"\n{row} " in done.stdout
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "out" / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_another_seed_is_a_disagreement(tmp_path: Path) -> None:
    args = ("gloo", "gloo", "--seed", "0", "1", "--epochs", "1", "--rounds", "1", "--nproc", "1")
    done = compare(tmp_path, *args)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not bitwise equal" in done.stdout
    assert "VERDICT: gloo DISAGREES with gloo#2" in done.stdout


@pytest.mark.long
def test_a_run_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    args = ("nosuch", "gloo", "--epochs", "1", "--rounds", "1", "--nproc", "1")
    done = compare(tmp_path, *args)
    assert done.returncode == 1
    assert "FAILED: exit code 1: " in done.stdout
    assert "nosuch" in done.stdout
    assert (tmp_path / "out" / "digits-nosuch-1.log").exists()


def test_ctrl_c_leaves_no_ranks_behind(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "compare_backends.py", "gloo", "gloo"]
    command += ["--out", tmp_path, "--epochs", "1000"]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(ranks_of(tmp_path)) < 3:  # torchrun and its two ranks
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in output) == (130, True), errors
    assert ranks_of(tmp_path) == []


def ranks_of(directory: Path) -> list[int]:
    """Processes of the demo that write into this directory."""
    return processes_with("digits_ddp.py", directory)


# ---- the examples of frameworks ----


@pytest.mark.long
@pytest.mark.parametrize("args", [("ddp",), ("fsdp2", "--switch")], ids=" ".join)
def test_a_framework_gives_what_it_gives_under_gloo(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Two that need no download. `make frameworks` runs all."""
    compare = EXAMPLES / "frameworks" / "common" / "compare.py"
    done = run(compare, *args, "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{args[0]} +[\d.]+x   results equal exactly", done.stdout, re.M)
    assert "1 examples passed, 0 failed" in done.stdout
    assert ("gloo, switched " in done.stdout) == (len(args) > 1)


def test_results_that_differ_are_told() -> None:
    difference = load("frameworks/common/compare").difference
    t = torch.tensor([1.0, 2.0])
    off = t * (1 + 2.0**-23)
    assert difference({"t": t, "n": [1]}, {"t": t.clone(), "n": [1]}, 0) == ""
    assert difference({"t": off}, {"t": t}, 0) == "t: differs by at most 2.38e-07"
    assert difference({"t": off}, {"t": t}, 1e-6) == ""
    assert difference({"t": t, "n": [2]}, {"t": t, "n": [1]}, 0) == "n: [2] is not [1]"
    assert difference({"t": t / 0}, {"t": t / 0}, 0) == "t: not finite"
    assert "other results" in difference({"t": t}, {"u": t}, 0)
    assert "other results" in difference({}, {}, 0)


@pytest.mark.parametrize("name", [folder.name for folder in FRAMEWORKS])
def test_a_page_shows_lines_of_its_example(name: str) -> None:
    """Whole programs, which test_guides.py runs, are shorter than the examples."""
    page = (EXAMPLES.parent / "docs/guide/frameworks" / f"{name}.md").read_text()
    scripts = [
        " ".join(file.read_text().split()) for file in (EXAMPLES / "frameworks" / name).glob("*.py")
    ]
    for shown in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        if "print(" not in shown:
            text = " ".join(shown.replace('"shmcoll"', "backend").split())
            assert any(text in script for script in scripts), text


# ---- the comparison of curves ----


def contender(module: ModuleType, *curves: list[float]) -> object:
    one = module.Contender("x", "x", 0)
    one.runs.extend({"losses": list(curve)} for curve in curves)
    return one


def test_rounding_may_grow_but_not_begin_large() -> None:
    module = load("compare_backends")
    curve = [2.0 - 0.01 * step for step in range(100)]
    reference = contender(module, curve, curve)

    same = module.agreement(contender(module, curve, curve), reference)
    assert (same.bitwise, same.worst, same.good) == (True, 0.0, True)

    late = [loss + (1e-3 if step > 50 else 1e-7) for step, loss in enumerate(curve)]
    grown = module.agreement(contender(module, curve, late), reference)
    assert (grown.bitwise, grown.good) == (False, True)

    early = [loss + (1e-3 if step == 3 else 0) for step, loss in enumerate(curve)]
    assert not module.agreement(contender(module, curve, early), reference).good

    broken = [float("nan") if step == 70 else loss for step, loss in enumerate(curve)]
    assert not module.agreement(contender(module, broken, curve), reference).good


def test_a_reference_that_does_not_repeat_itself_is_a_disagreement() -> None:
    module = load("compare_backends")
    one, two = [1.0] * 30, [1.1] * 30
    assert not module.agreement(contender(module, one), contender(module, one, two)).good
