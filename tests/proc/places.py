# SPDX-License-Identifier: BSD-3-Clause
"""Other surroundings: namespaces, another /dev/shm, or none, for a function and all it starts."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWTIME = 0x00000080
MS_PRIVATE_RECURSIVELY = (1 << 18) | (1 << 14)

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare({flags:#x}): {os.strerror(error)}")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=20)


def own_mounts() -> None:
    """From here on this process, and its children, mount for themselves."""
    unshare(CLONE_NEWNS)
    if _libc.mount(b"none", b"/", None, MS_PRIVATE_RECURSIVELY, None) != 0:
        raise OSError(ctypes.get_errno(), "cannot make / private")


def shm_of(size: str) -> Callable[[], None]:
    def prepare() -> None:
        own_mounts()
        mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm")

    return prepare


def shm_read_only() -> None:
    own_mounts()
    mount("-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm")


def shm_absent() -> None:
    """A /dev that has no directory shm."""
    own_mounts()
    with tempfile.TemporaryDirectory() as directory:
        mount("-t", "tmpfs", "tmpfs", directory)
        for name in ("null", "zero", "full", "random", "urandom"):
            (Path(directory) / name).touch()
            mount("--bind", f"/dev/{name}", f"{directory}/{name}")
        mount("--move", directory, "/dev")
    assert not os.path.exists("/dev/shm")


def own_pids(with_proc: bool) -> None:
    """The next fork of this process is process 1 of a namespace."""
    if with_proc:
        own_mounts()
    unshare(CLONE_NEWPID)


def own_time(boot_s: int) -> None:
    """For the next fork of this process the machine has started that much earlier."""
    unshare(CLONE_NEWTIME)
    Path("/proc/self/timens_offsets").write_text(f"boottime {boot_s} 0")


def own_user() -> None:
    """This process is root of a user namespace."""
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def forked(body: Callable[[], Any]) -> Any:
    """What the body returns in a forked child; its exception is raised here too."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        answer: tuple[Any, str] = (None, "")
        try:
            answer = (body(), "")
        except BaseException:
            answer = (None, traceback.format_exc())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    value, trace = pickle.loads(text) if text else (None, "the child ended without an answer")
    if trace:
        raise ranks.Failed(trace)
    return value


def inside(prepare: Callable[[], None], world: int, body: Callable[..., Any], limit: float) -> Any:
    """The outcomes of the ranks, all in one place that `prepare` makes."""

    def run() -> Any:
        prepare()
        return ranks.outcomes(world, body, limit=limit)

    return forked(run)
