# SPDX-License-Identifier: BSD-3-Clause
"""One-sided access to the tensors of other ranks (src/backend/window.cpp)."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

from shmcoll import _backend, _glue, _load
from shmcoll._boxed import boxed
from shmcoll._options import milliseconds

_UNSET_MS = -1  # the group's


def _milliseconds(timeout: datetime.timedelta | None) -> int:
    if timeout is None:
        return _UNSET_MS
    _backend._check_type("timeout", timeout, datetime.timedelta)
    return milliseconds(timeout)


class Window:
    """The tensors of all ranks of a group, mapped into each of them; made by ``shmcoll.new_window``.

    A rank reads and stores where another rank's tensor lies, while that rank does something else. Ranks are
    those of the group. The methods are those of the windows of torch 2.15.
    """

    def __init__(self, made: Any) -> None:
        self._made = made

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Shows this rank's tensor to the others, and maps theirs. All ranks call it.

        Args:
            tensor: a contiguous CPU tensor. Sizes and dtype may differ between ranks. It is moved into shared
                memory if it is not there, as by ``shmcoll.share``.
            owning: keep the tensor until ``tensor_deregister``, or until the group ends. Otherwise the
                caller keeps it as long.

        Raises:
            ValueError: on all ranks, if one has no such tensor, or cannot map those of the others.
            torch.distributed.DistBackendError: as a collective.
        """
        _backend._check_type("tensor_register: tensor", tensor, torch.Tensor)
        self._made.register(tensor, owning)

    def tensor_deregister(self) -> None:
        """Ends what ``tensor_register`` began. All ranks call it, and wait there for one another.

        Raises:
            ValueError: the window has no tensor.
            torch.distributed.DistBackendError: as a collective.
        """
        self._made.deregister()

    def put(self, tensor: torch.Tensor, dst_rank: int, target_offset_nelems: int = 0) -> None:
        """Copies a tensor into that of another rank. It is there when the call returns.

        Args:
            tensor: a dense CPU tensor with the dtype of the target.
            dst_rank: whose.
            target_offset_nelems: from which element of the target on.

        Raises:
            TypeError, ValueError: another dtype, no such rank, or elements beyond the target. Nothing has
                been copied.
        """
        _backend._check_type("put: tensor", tensor, torch.Tensor)
        self._made.put(tensor, dst_rank, target_offset_nelems)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Returns the tensor of that rank, to read and to store into.

        It stays valid when the window and the group have ended, and when that rank has. What is in it then
        is what its owner has put into that memory since.

        Args:
            rank: whose.

        Raises:
            ValueError: there is no such rank, or the window has no tensor.
        """
        mapped: torch.Tensor = self._made.map(rank)
        return mapped

    def signal(self, peer_rank: int, timeout: datetime.timedelta | None = None) -> None:
        """Tells a rank that what this one has put, or stored, is there.

        It waits only if that rank has left many signals unread.

        Args:
            peer_rank: who is told; may be this rank.
            timeout: the group's if None.

        Raises:
            ValueError: there is no such rank.
            torch.distributed.DistBackendError: that rank has died, or the group is closed.
        """
        self._made.signal(peer_rank, _milliseconds(timeout)).wait()

    def wait_signal(self, peer_rank: int, timeout: datetime.timedelta | None = None) -> None:
        """Waits for one signal of that rank. As many signals as it has sent can be waited for.

        Args:
            peer_rank: whose; may be this rank.
            timeout: the group's if None.

        Raises:
            ValueError: there is no such rank.
            torch.distributed.DistBackendError: as ``torch.distributed.recv``.
        """
        self._made.wait_signal(peer_rank, _milliseconds(timeout)).wait()


def new_window(
    tensor: torch.Tensor | None = None, group: dist.ProcessGroup | None = None
) -> Window:
    """Makes a window, through which ranks read and store one another's tensors. All ranks call it.

    Args:
        tensor: this rank's; see ``Window.tensor_register``. If None, call that later.
        group: a process group; the default group if None. Ranks make its windows in the same order.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as ``Window.tensor_register``.
        NotImplementedError: the group is over several hosts, or with the glue in Python.

    Example:
        >>> window = shmcoll.new_window(torch.zeros(4))
        >>> window.put(torch.ones(1), dst_rank=1, target_offset_nelems=dist.get_rank())
        >>> window.signal(1)
    """
    if _load.is_python(_glue.glue):
        raise NotImplementedError(
            "shmcoll.new_window: the glue in Python has no windows. SHMCOLL_GLUE=build compiles a glue for "
            "this torch, which has"
        )
    _, backend = _backend.find_backend("new_window", group)
    window = Window(torch.classes.shmcoll.Window(boxed(backend)))
    if tensor is not None:
        window.tensor_register(tensor)
    return window
