# SPDX-License-Identifier: BSD-3-Clause
"""The plugin for vLLM, with a stand-in for vLLM. `make frameworks ONLY=vllm` runs the real one."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, run
from shmcoll import _vllm


class Platform:
    dist_backend = "gloo"
    device_name = "cpu"

    def is_cpu(self) -> bool:
        return self.device_name == "cpu"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm's own"


class CpuCommunicator:
    def __init__(self, cpu_group: Any, device: Any, device_group: Any, unique_name: str) -> None:
        self.made_for = unique_name
        self.dist_module: Any = dist


def stand_in(version: str = "0.32.7", device: str = "cpu") -> tuple[type[Platform], dict[str, Any]]:
    """Returns the class of a platform, and the modules of a vLLM of that version that has it."""
    platform = type("CpuPlatform", (Platform,), {"device_name": device})
    communicators = "vllm.distributed.device_communicators"
    places = ("vllm", "vllm.platforms", "vllm.distributed", communicators)
    modules: dict[str, Any] = {
        name: ModuleType(name) for name in (*places, f"{communicators}.cpu_communicator")
    }
    modules["vllm"].__version__ = version
    modules["vllm.platforms"].current_platform = platform()
    modules[f"{communicators}.cpu_communicator"].CpuCommunicator = CpuCommunicator
    return platform, modules


@pytest.mark.parametrize(
    ("value", "version", "device", "ours", "said"),
    [
        ("", "0.32.0", "cpu", False, ""),
        ("0", "0.32.0", "cpu", False, ""),
        ("1", "0.32.0", "cpu", True, ""),
        ("1", "0.32.9+cpu", "cpu", True, ""),
        ("on", "0.32.0", "cpu", False, "SHMCOLL_FOR_VLLM=on is not one of 0|1; ignored"),
        (
            "1",
            "0.33.1",
            "cpu",
            False,
            "with vLLM 0.33.1: shmcoll has been tried with vLLM 0.32 only",
        ),
        ("1", "0.32.0", "cuda", False, "SHMCOLL_FOR_VLLM=1 has no effect on cuda: it is for CPUs"),
    ],
)
def test_the_plugin_changes_vllm_only_if_asked_and_known(
    value: str,
    version: str,
    device: str,
    ours: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHMCOLL_FOR_VLLM", value)
    platform, modules = stand_in(version, device)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for _ in range(2):  # vLLM may call it again
        _vllm.register()
    own = ("gloo", "vllm's own")
    want = ("shmcoll", _vllm.COMMUNICATOR) if ours else own
    assert (platform.dist_backend, platform.get_device_communicator_cls()) == want
    assert (Platform.dist_backend, Platform.get_device_communicator_cls()) == own
    lines = capsys.readouterr().err
    assert said in lines and lines.count("\n") == (2 if said else 0)


def test_vllm_finds_the_plugin() -> None:
    found = entry_points(group="vllm.general_plugins", name="shmcoll")
    assert {entry.value for entry in found} == {"shmcoll._vllm:register"}


def test_its_communicator_gives_what_torch_gives() -> None:
    def body(rank: Rank) -> list[Any]:
        sys.modules.update(stand_in()[1])
        from shmcoll._vllm_communicator import Communicator, Functions

        rank.init()
        group: Any = dist.group.WORLD
        made = Communicator(group, None, group, "tp:0")
        others = Communicator(group, None, group, "pp:0")
        ways: Any = made.dist_module
        assert isinstance(ways, Functions) and made.made_for == "shmcoll tp:0"
        assert others.dist_module is dist and others.made_for == "pp:0"

        @torch.compile(fullgraph=True, backend="aot_eager")
        def layer(tensor: torch.Tensor) -> torch.Tensor:
            part = tensor * (rank.rank + 1)
            ways.all_reduce(part)
            return part + 1

        t = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        plain = t * (rank.rank + 1)
        ways.all_reduce(plain)
        rows = torch.empty(4, 3, dtype=torch.bfloat16)
        ways.all_gather_into_tensor(rows, t + rank.rank, group)
        parts = [torch.empty_like(t) for _ in range(2)] if rank.rank == 1 else None
        ways.gather(t + rank.rank, parts, 1, group)
        gathered = torch.cat(parts) if parts else rows
        return [plain.tolist(), layer(t).tolist(), rows.tolist(), gathered.tolist()]

    t = torch.arange(6.0).reshape(2, 3)
    both = torch.cat([t, t + 1]).tolist()
    want = [(3 * t).tolist(), (3 * t + 1).tolist(), both, both]
    assert run(2, body) == [want, want]
