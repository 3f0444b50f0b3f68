# SPDX-License-Identifier: BSD-3-Clause
"""Named sets of operations, dtypes and sizes, of real programs and of a paper: ``--preset``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shmcoll.bench import topology
from shmcoll.bench.run import mpirun
from shmcoll.bench.ops import OPS

_MIB = 1 << 20


@dataclass(frozen=True)
class Preset:
    """Defaults for the options of the same names."""

    what: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    factor: int
    more: Callable[[], dict[str, object]] = dict  # other options; called only if the preset is used

    def options(self) -> dict[str, object]:
        own = {name: value for name, value in vars(self).items() if name not in ("what", "more")}
        return {**own, **self.more()}


def usable_backends() -> tuple[str, ...]:
    """Returns shmcoll, gloo, and each MPI that mpi4py could run here."""
    mpis = [
        name
        for name, mpi in mpirun.MPIS.items()
        if importlib.util.find_spec("mpi4py") is not None and mpi.launcher() is not None
    ]
    return ("shmcoll", "gloo", *mpis)


def _paper() -> dict[str, object]:
    return {
        "rounds": 20,
        "point_time_s": 1.6,
        "bind": topology.SPREAD,
        "backends": usable_backends(),
        "json": Path("shmcoll-paper.json"),
        "html": Path("shmcoll-paper.html"),
    }


PRESETS = {
    "ddp": Preset(
        "gradients of DistributedDataParallel: its first bucket, 1 MiB, and the others, 25 MiB",
        ("all_reduce",),
        ("float32",),
        _MIB,
        25 * _MIB,
        25,
    ),
    "fsdp": Preset(
        "parameters and gradients of layers, sharded: all_gather, reduce_scatter, 1 to 64 MiB",
        ("all_gather", "reduce_scatter"),
        ("bfloat16", "float32"),
        _MIB,
        64 * _MIB,
        4,
    ),
    "cpu-tp-decode": Preset(
        "a token through a tensor-parallel model: all_reduce, all_gather, 8 to 64 KiB, bfloat16",
        ("all_reduce", "all_gather"),
        ("bfloat16",),
        8 << 10,
        64 << 10,
        2,
    ),
    "dlrm": Preset(
        "embeddings and gradients of a recommender: all_to_all, all_reduce, 256 KiB to 16 MiB",
        ("all_to_all", "all_reduce"),
        ("float32",),
        _MIB // 4,
        16 * _MIB,
        8,
    ),
    "paper": Preset(
        "for publication: every operation, 8 B to 64 MiB in powers of 2, 20 rounds, --bind spread,\n"
        "                 all backends that work here, --json and --html shmcoll-paper.*",
        tuple(OPS),
        ("float32",),
        8,
        64 * _MIB,
        2,
        _paper,
    ),
}
