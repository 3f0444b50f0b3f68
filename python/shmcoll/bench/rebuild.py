# SPDX-License-Identifier: BSD-3-Clause
"""Dataclasses out of what JSON gives: checked by their own type hints."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def rebuild(cls: type[_T], data: Any) -> _T:
    """The object that dataclasses.asdict() took apart.

    Raises ValueError where a value is missing or of another type. Keys that are no fields are
    ignored: derived values stand next to them.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__} is not an object")
    hints = get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # a dataclass
        if field.name in data:
            values[field.name] = _convert(data[field.name], hints[field.name], field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{cls.__name__} has no {field.name!r}")
    return cls(**values)


def _convert(value: Any, kind: Any, name: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return rebuild(kind, value)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        (kind,) = (one for one in inner if one is not type(None))
        return _convert(value, kind, name)
    if origin in (list, tuple) and isinstance(value, list):
        same = origin is list or inner[-1] is ...
        kinds = [inner[0]] * len(value) if same else list(inner)
        if len(kinds) == len(value):
            return origin(_convert(one, kind, name) for one, kind in zip(value, kinds))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(one, inner[1], name) for key, one in value.items()}
    if kind is Any or _is(value, kind):
        return value
    raise ValueError(f"{name!r} has a value of another type: {str(value)[:40]!r}")


def _is(value: Any, kind: Any) -> bool:
    """Is the value of this plain type? A whole number is also a float, but a bool is no number."""
    if isinstance(value, bool) or not isinstance(kind, type):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
