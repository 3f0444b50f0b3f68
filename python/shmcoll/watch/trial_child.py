# SPDX-License-Identifier: BSD-3-Clause
"""The only part of the tools that imports torch: a process of its own, in which two ranks meet and sum.

trial.py starts it, by its text. It writes a JSON object on each line into the descriptor of its first
argument, so that a reader knows how far it came.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

LIMIT_S = 10
ELEMENTS = 1000
_out = int(sys.argv[1])


def tell(**facts: Any) -> None:
    os.write(_out, (json.dumps(facts) + "\n").encode())


def last_line(error: BaseException) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()


def rank_main(rank: int, path: str) -> None:
    """One of the two ranks, after the fork."""
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    dist.init_process_group(
        "shmcoll",
        store=dist.FileStore(path, 2),  # type: ignore[attr-defined]
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=LIMIT_S),
    )
    met = time.monotonic()
    tensor = torch.full((ELEMENTS,), float(rank + 1))
    dist.all_reduce(tensor)
    summed = time.monotonic()
    if not bool((tensor == 3.0).all()):
        raise ValueError(f"1 + 2 was {tensor[0].item()}")
    if rank == 0:
        import shmcoll

        said: dict[str, Any] = dict(shmcoll.describe(internals=True))
        keys = ("glue", "segment", "life_words", "cma", "isa")
        tell(
            met_ms=(met - began) * 1e3,
            sum_ms=(summed - met) * 1e3,
            describe={key: str(said[key]) for key in keys if key in said},
        )
    dist.destroy_process_group()


def run_rank(rank: int, path: str) -> None:
    """Never returns."""
    code = 1
    try:
        rank_main(rank, path)
        code = 0
    except BaseException as error:
        tell(rank_error=f"rank {rank}: {last_line(error)}")
    finally:
        os._exit(code)


def try_two_ranks() -> None:
    import shmcoll

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        facts = shmcoll.build_info()  # loads the library before the ranks are forked
    ours = [str(one.message) for one in said if str(one.message).startswith("shmcoll")]
    tell(build_info=facts, warnings=ours)
    with tempfile.TemporaryDirectory(prefix="shmcoll-doctor-") as folder:
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                run_rank(rank, os.path.join(folder, "store"))
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    tell(codes=codes)


def main() -> None:
    tell(python=platform.python_version(), executable=sys.executable)
    try:
        import torch
        import torch.distributed as dist
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        tell(torch_error="missing" if missing else last_line(error))
        return
    tell(torch=torch.__version__, cuda=torch.version.cuda, distributed=dist.is_available())
    if not dist.is_available():
        return
    find = getattr(dist.Backend, "_ensure_backend_registered", None)  # torch 2.14 asks by name
    try:
        if find is not None:
            find("shmcoll")
    except Exception:
        pass  # there is no such entry point
    tell(registered="SHMCOLL" in dist.Backend._plugins)
    try:
        from torch.cuda import nccl

        tell(nccl=".".join(map(str, nccl.version())))  # type: ignore[no-untyped-call]
    except Exception:
        pass  # a torch without NCCL
    try:
        try_two_ranks()
    except BaseException as error:
        tell(shmcoll_error=last_line(error))


main()
