# SPDX-License-Identifier: BSD-3-Clause
"""How ranks that another program has started find the parent: at a socket in a folder.

mpirun passes no file descriptor on. So a rank connects and sends its number. The parent answers with
its job and the descriptor of the start line.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from shmcoll.bench.run import started_by

Message = dict[str, Any]

_NAME = "meet"
_LOOK_S = 0.1


def open_at(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with _short(folder) as path:
        listener.bind(path)
    listener.listen(64)
    return listener


def gather(
    listener: socket.socket, count: int, timeout_s: float, alive: Callable[[], bool]
) -> list[socket.socket]:
    """The channels of all ranks in their order; fewer if they do not all come."""
    deadline = monotonic() + timeout_s
    come: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while len(come) < count and monotonic() < deadline and alive():
            if selector.select(_LOOK_S):
                channel, _ = listener.accept()
                come[int.from_bytes(channel.recv(4), "little")] = channel
    return [come[rank] for rank in sorted(come)]


def send_off(channel: socket.socket, job: Message, line_fd: int) -> None:
    line = json.dumps(job).encode()
    socket.send_fds(channel, [len(line).to_bytes(4, "little")], [line_fd])
    channel.sendall(line)


def come(folder: Path) -> tuple[Message, socket.socket]:
    """Connects a rank to the parent. Returns its job, and the channel for requests."""
    channel = socket.socket(socket.AF_UNIX)
    with _short(folder) as path:
        channel.connect(path)
    channel.sendall(started_by.rank_of(os.environ).to_bytes(4, "little"))
    length, (line_fd,), _, _ = socket.recv_fds(channel, 4, 1)
    job = json.loads(_exactly(channel, int.from_bytes(length, "little")))
    return {**job, "line_fd": line_fd}, channel


def _exactly(channel: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count and (part := channel.recv(count - len(out))):
        out += part
    return out


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The socket's path; the folder's own may be longer than the 107 bytes of an address."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{fd}/{_NAME}"
    finally:
        os.close(fd)
