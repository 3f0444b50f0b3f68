# SPDX-License-Identifier: BSD-3-Clause
"""Lets two ranks meet and sum in processes of their own, and says how far they came."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 120.0  # import torch from a slow disk may take a minute
_CHILD = Path(__file__).with_name("trial_child.py")


@dataclass(frozen=True)
class Trial:
    """What the two ranks found."""

    failure: str = ""  # a sentence; "": they met and summed
    fix: str = ""
    python: str = ""
    torch: str = ""  # its version; "": it could not be imported
    cuda: str = ""
    nccl: str = ""
    registered: bool | None = None  # None: not known
    glue: str = ""  # as describe() has it
    met_ms: float = 0.0
    sum_ms: float = 0.0
    life_words: str = ""  # as describe() has it
    build_info: Mapping[str, str] = field(default_factory=dict)


def attempt(limit_s: float = LIMIT_S, python: str = sys.executable) -> Trial:
    """Starts the ranks, and kills them at the limit."""
    reader, writer = os.pipe()
    # By its text, not its name: a name would put this folder into sys.path.
    command = [python, "-c", _CHILD.read_text(), str(writer)]
    try:
        child = subprocess.Popen(
            command,
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    finally:
        os.close(writer)
    with child:
        lines, in_time = _read_until_closed(reader, limit_s)
        if not in_time:
            os.killpg(child.pid, signal.SIGKILL)
        _, said = child.communicate()
    return judge(_merged(lines), child.returncode, in_time, said, limit_s)


def _read_until_closed(reader: int, limit_s: float) -> tuple[str, bool]:
    """What was written; False if the writers had not ended at the limit."""
    deadline, text = time.monotonic() + limit_s, b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            part = pipe.read(65536)
            if not part:
                return text.decode(errors="replace"), True
            text += part
    return text.decode(errors="replace"), False


def _merged(lines: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in lines.splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # cut off
            continue
        errors = facts.get("rank_error"), found.get("rank_error")
        facts.update(found)
        if all(errors):
            facts["rank_error"] = min(map(str, errors))
    return facts


def judge(facts: Mapping[str, Any], code: int, in_time: bool, said: str, limit_s: float) -> Trial:
    """Of what the child has told, its exit code and its stderr."""
    failure, fix = _failure(facts, code, in_time, said, limit_s)
    described = facts.get("describe", {})
    warned = " ".join(facts.get("warnings", ()))
    return Trial(
        failure=failure,
        fix=fix or ("SHMCOLL_GLUE=build compiles one for this torch" if warned else ""),
        python=facts.get("python", ""),
        torch=facts.get("torch") or "",
        cuda=facts.get("cuda") or "",
        nccl=facts.get("nccl") or "",
        registered=facts.get("registered"),
        glue=re.sub(r"^(\S+), with shmcoll._C$", r"\1", described.get("glue", "")),
        met_ms=facts.get("met_ms", 0.0),
        sum_ms=facts.get("sum_ms", 0.0),
        life_words=described.get("life_words", ""),
        build_info=facts.get("build_info", {}),
    )


def _failure(
    facts: Mapping[str, Any], code: int, in_time: bool, said: str, limit_s: float
) -> tuple[str, str]:
    """What went wrong, and a command that helps; both "" if nothing did."""
    executable = facts.get("executable", "this Python")
    tail = said.strip().rpartition("\n")[2]
    if "torch" not in facts:
        error = facts.get("torch_error")
        if error == "missing":
            return f"{executable} has no torch", "python -m pip install torch"
        if error:
            return f"import torch fails: {error}", "python -m pip install --force-reinstall torch"
        return _ended("import torch", code, in_time, tail, limit_s), ""
    torch = f"torch {facts['torch']}"
    if not facts.get("distributed"):
        return f"{torch} has no torch.distributed", "python -m pip install torch"
    if "shmcoll_error" in facts:
        text, _, fix = str(facts["shmcoll_error"]).partition(" Build it again")
        return f"{torch}: {text}", f"Build it again{fix}" if fix else ""
    if "build_info" not in facts:
        return _ended(f"{torch}: loading the library", code, in_time, tail, limit_s), ""
    if "rank_error" in facts:
        return f"{torch}: {facts['rank_error']}", ""
    if "met_ms" not in facts or facts.get("codes") != [0, 0]:
        return _ended(f"{torch}: two ranks", code, in_time, tail, limit_s, facts.get("codes")), ""
    return "", ""


def _ended(
    what: str, code: int, in_time: bool, tail: str, limit_s: float, codes: Any = None
) -> str:
    if not in_time:
        return f"{what} took more than {limit_s:g} s"
    more = f": {tail}" if tail else ""
    return f"{what} ended with {codes if codes is not None else code}{more}"
