# SPDX-License-Identifier: BSD-3-Clause
"""A backend has one colour: in the table, in the page, in pictures, and from run to run."""

from __future__ import annotations

from collections.abc import Sequence

# Distinct for colour-blind readers, and readable on white and on black: one shade for both.
PALETTE = (
    "#2b7fd0",
    "#d0591c",
    "#1b9368",
    "#c0569b",
    "#96801c",
    "#7f7f7f",
    "#8a6fd6",
    "#0f8f9f",
)

_OWN = {"shmcoll": 0, "gloo": 1, "openmpi": 2, "mpich": 3, "nccl": 4, "ruler": 5, "intelmpi": 6}


def places(labels: Sequence[str]) -> dict[str, int]:
    """Returns the index in PALETTE of each backend. One without a colour of its own gets the first free one."""
    out = {label: _OWN[label] for label in labels if label in _OWN}
    nobodys = [place for place in range(len(PALETTE)) if place not in _OWN.values()]
    free = [place for place in (*nobodys, *_OWN.values()) if place not in out.values()]
    for number, label in enumerate(label for label in labels if label not in out):
        out[label] = free[number % len(free)] if free else number % len(PALETTE)
    return out


def of(labels: Sequence[str]) -> dict[str, str]:
    return {label: PALETTE[place] for label, place in places(labels).items()}
