# SPDX-License-Identifier: BSD-3-Clause
"""Which way a group's CUDA tensors go, and why: a row of the report."""

from __future__ import annotations

import re
from typing import Any

KEYS = ("memory", "reason", "relay", "gpus", "gpu_ranks", "half_bytes")


def route_of(group: Any, ranks: int) -> dict[str, Any]:
    """Of a group that has seen CUDA tensors, on its first GPU; {} of one that has not. Never raises:
    what goes wrong here is not what is asked about."""
    row: dict[str, Any] = {"route": "unknown", "ranks": ranks}
    try:
        import shmcoll

        describe = getattr(shmcoll, "describe", None)
        if describe is None:
            return row | {"reason": "this build has no shmcoll.describe"}
        said = describe(group)
    except Exception as error:  # noqa: BLE001
        return row | {"reason": f"{type(error).__name__}: {error}"[:300]}
    gpus = [key.removesuffix("route") for key in said if re.fullmatch(r"cuda(:\d+)?\.route", key)]
    if not gpus:
        return {}
    row |= {"route": said[gpus[0] + "route"], "device": gpus[0].rstrip(".")}
    return row | {key: said.get(gpus[0] + key, "") for key in KEYS}
