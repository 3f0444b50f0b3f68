# SPDX-License-Identifier: BSD-3-Clause
"""Which way a group's CUDA tensors go, and why: a row of the report."""

from __future__ import annotations

import re
from typing import Any

KEYS = ("memory", "reason", "relay", "gpus", "gpu_ranks", "half_bytes")


def route_of(group: Any, ranks: int) -> dict[str, Any]:
    """Returns the route of a group on its first GPU; {} if it has not seen CUDA tensors. Never raises:
    an error here must not hide the result of the run."""
    row: dict[str, Any] = {"route": "unknown", "ranks": ranks}
    try:
        import shmcoll

        describe = getattr(shmcoll, "describe", None)
        if describe is None:
            return row | {"reason": "this build has no shmcoll.describe"}
        said = describe(group)
    except Exception as error:
        return row | {"reason": f"{type(error).__name__}: {error}"[:300]}
    gpus = [key.removesuffix("route") for key in said if re.fullmatch(r"cuda(:\d+)?\.route", key)]
    if not gpus:
        return {}
    row |= {"route": said[gpus[0] + "route"], "device": gpus[0].rstrip(".")}
    return row | {key: said.get(gpus[0] + key, "") for key in KEYS}
