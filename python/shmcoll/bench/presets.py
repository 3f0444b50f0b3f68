# SPDX-License-Identifier: BSD-3-Clause
"""Operations, dtypes and sizes of real programs: ``--preset``."""

from __future__ import annotations

from dataclasses import dataclass

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

    def options(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "what"}


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
}
