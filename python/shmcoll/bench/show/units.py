# SPDX-License-Identifier: BSD-3-Clause
"""Sizes, times and ratios as readable text, and the marks of an axis."""

from __future__ import annotations

from math import ceil, floor, log2, log10

_MAX_SIZE_TICKS = 5
_MIN_TICKS = 3


def count(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def figure(value: float, digits: int) -> str:
    """Returns the number with at least so many digits, and without an exponent: 1000, not 1e+03."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0:
        return "0"
    decimals = max(0, digits - 1 - floor(log10(abs(rounded))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{figure(size_bytes, 4)} {unit}"


def time_text(time_us: float) -> str:
    for unit in ("us", "ms", "s"):
        if time_us < 999.5 or unit == "s":
            break
        time_us /= 1000
    return f"{figure(time_us, 3)} {unit}"


def ratio_text(ratio: float) -> str:
    return f"{figure(ratio, 3)}x"


def size_ticks(low: float, high: float) -> list[float]:
    """Powers of two in the range; the step keeps 1 KiB and 1 MiB among them."""
    first, last = ceil(log2(low) - 1e-9), floor(log2(high) + 1e-9)
    for step in (1, 2, 5, 10, 20):
        ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
        if len(ticks) <= _MAX_SIZE_TICKS:
            break
    return ticks or [low]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in the range, or 1, 2, 5 of each where that would be too few."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        all_ticks = [digit * 10.0**power for power in decades for digit in digits]
        ticks = [tick for tick in all_ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) >= _MIN_TICKS:
            break
    return ticks
