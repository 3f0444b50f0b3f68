# SPDX-License-Identifier: BSD-3-Clause
"""The lane's options, its items, and its totals."""

import collections
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with fewer GPUs than ranks every test skips itself
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build" / "inductor")  # else torch's is in /tmp

KINDS = ("passed", "failed", "excluded", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--worlds", default="4", help="numbers of ranks, with commas between them")
    parser.addoption(
        "--backend",
        default="shmcoll",
        help="gloo: what torch's own backend does; for-gloo: shmcoll in its place; over-hosts: the same, "
        "with half of the ranks on another host",
    )


def worlds(config: pytest.Config) -> list[int]:
    return [int(world) for world in config.getoption("--worlds").split(",")]


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    import suite

    if "name" in metafunc.fixturenames:
        cases = [
            (world, name) for world in worlds(metafunc.config) for name in suite.runnable(world)
        ]
        metafunc.parametrize("world, name", cases, ids=[f"{name}-{world}" for world, name in cases])
    elif "world" in metafunc.fixturenames:
        metafunc.parametrize("world", worlds(metafunc.config))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line that tests/run.py shows."""
    counts = {world: collections.Counter[str]() for world in worlds(config)}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for kind, (world, count) in report.user_properties:
                ran = kind != "skipped"
                counts[world]["failed" if ran and outcome == "failed" else kind] += count
    texts = [
        f"{world} ranks: " + ", ".join(f"{count[kind]} {kind}" for kind in KINDS)
        for world, count in counts.items()
    ]
    terminalreporter.write_line("totals: " + "; ".join(texts))
