# SPDX-License-Identifier: BSD-3-Clause
"""A program whose ranks end without destroying their group, many times over.

    python exit_ranks.py DIRECTORY ROUNDS WAY...

Each round forks two ranks from this process, which has imported torch once; each ends as a script
does, through the whole of the interpreter's finalization. Prints a line of JSON per rank: its way and
exit code, what it wrote to stderr, and whether it came to its end (it says so on stdout).
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import shmcoll  # noqa: F401  (the backend)

LIMIT_S = 20.0


def be_rank(way: str, rank: int, path: Path) -> int:
    """The rank's program; what it returns is given to sys.exit."""
    if way == "thread_of_multiprocessing":
        return run_process(rank, path)
    if way == "future_waited_at_exit":
        atexit.register(wait_for_kept_futures)  # runs after the library's own goodbye
    dist.init_process_group(
        "shmcoll", store=dist.FileStore(str(path / "store"), 2), rank=rank, world_size=2
    )
    dist.all_reduce(torch.ones(4))
    if way == "status":
        return 3
    if way == "exception":
        raise ValueError("as it should be")
    if way == "peer_has_left":
        return stay_behind() if rank == 0 else 0
    if way == "in_flight":
        keep.extend(dist.all_reduce(torch.ones(100000), async_op=True) for _ in range(30))
    elif way == "in_flight_forgotten":
        for _ in range(30):
            dist.all_reduce(torch.ones(100000), async_op=True)
    elif way == "in_flight_alone":
        if rank == 0:
            keep.extend(dist.all_reduce(torch.ones(100000), async_op=True) for _ in range(30))
            assert not keep[-1].is_completed()
        else:
            time.sleep(0.1)
    elif way == "future_waited_at_exit":
        if rank == 0:
            keep.append(dist.all_reduce(torch.ones(4), async_op=True).get_future())
        else:
            time.sleep(0.2)
    elif way == "callbacks":
        for _ in range(30):
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            keep.append(work.get_future().then(lambda future: future.value()[0].sum()))
    elif way == "inside_a_callback":
        keep.append(dist.all_reduce(torch.ones(4), async_op=True).get_future().then(dream))
        asleep.wait(LIMIT_S)
    elif way == "many_groups":
        keep.extend(dist.new_group() for _ in range(4))
    return 0


keep: list[object] = []  # module globals live until the interpreter ends
asleep = threading.Event()


def wait_for_kept_futures() -> None:
    for future in keep:
        try:
            future.wait()  # type: ignore[attr-defined]
        except (
            RuntimeError
        ) as error:  # of the glue in Python: one whose text names the DistBackendError
            assert "the process ended before the operation did" in str(error), error
        else:
            raise AssertionError("rank 1 never took part")


def run_process(rank: int, path: Path) -> int:
    """A process of multiprocessing: it says goodbye before it joins its threads."""
    process = multiprocessing.get_context("fork").Process(target=leave_a_thread, args=(rank, path))
    process.start()
    process.join(LIMIT_S / 2)
    if process.exitcode is None:
        process.kill()
        return 99
    return process.exitcode


def leave_a_thread(rank: int, path: Path) -> None:
    dist.init_process_group(
        "shmcoll", store=dist.FileStore(str(path / "store"), 2), rank=rank, world_size=2
    )

    def go_on() -> None:
        tensor = torch.ones(4)
        for _ in range(10):
            time.sleep(0.01)
            dist.all_reduce(tensor)
        assert tensor[0] == 2**10

    threading.Thread(target=go_on).start()


def dream(_: object) -> None:
    asleep.set()
    time.sleep(0.2)


def stay_behind() -> int:
    """The peer leaves without a word: that is no failure of this rank's group."""
    said = ""
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        said = str(error)
    assert "rank 1 (pid" in said and "has left the group" in said and "died" not in said, said
    return 0


def fork_rank(way: str, rank: int, path: Path) -> int:
    pid = os.fork()
    if pid != 0:
        return pid
    for name, fd in (("out", 1), ("err", 2)):
        file = os.open(path / f"{name}.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, fd)
        os.close(file)
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    torch.set_num_threads(1)
    status = be_rank(way, rank, path)
    print("came to its end", flush=True)
    if status == 0 and way == "end_of_script":
        return 0  # the caller falls off the end of the script
    sys.exit(status)


def run_round(way: str, path: Path) -> bool:
    """False in the rank that is to fall off the end of the script."""
    path.mkdir(parents=True)
    pids = []
    for rank in range(2):
        pids.append(fork_rank(way, rank, path))
        if pids[-1] == 0:
            return False
    for rank, pid in enumerate(pids):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out, err = ((path / f"{name}.{rank}").read_text() for name in ("out", "err"))
        ended = {"way": way, "rank": rank, "code": code, "out": out, "err": err}
        print(json.dumps(ended), flush=True)
    return True


def main(directory: Path, rounds: int, ways: list[str]) -> None:
    gc.collect()
    gc.freeze()  # the children's last collection leaves the parent's objects alone
    for way in ways:
        for number in range(rounds):
            if not run_round(way, directory / way / str(number)):
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
