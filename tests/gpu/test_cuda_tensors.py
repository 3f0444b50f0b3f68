# SPDX-License-Identifier: BSD-3-Clause
"""Collectives on CUDA tensors, all ranks on one GPU, compared with the same calls on CPU tensors.

    python tests/gpu/test_cuda_tensors.py [--worlds 2,4,8] [--only NAME,NAME] [--limit SECONDS] [--json]
    python tests/gpu/test_cuda_tensors.py --device cpu     # the cases themselves, without a GPU

A program, not a file for pytest: the processes of one world run all cases one after the other, because a
CUDA context takes most of a second. A case that hangs is ended and named, and the next ones go on in
new processes. A case is right only if every rank says so. Where the build has no CUDA tensors every
case fails as "not offered yet".

exit code: 0 if all cases are ok; 1 if not; 2 after bad usage
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parents[0] / "support"),
    str(HERE.parents[1] / "benchmarks/gpu"),
]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import about  # noqa: E402
import cases  # noqa: E402
import parts  # noqa: E402
import ranks  # noqa: E402
from cases import CASES, Team  # noqa: E402


def add_cases(module: str) -> None:
    """Of another version of torch parts may have moved: then that is a case, and the others run."""
    try:
        importlib.import_module(module)
    except Exception as error:
        text = f"{module} cannot be imported: {type(error).__name__}: {error}"
        cases.case(f"imports: {module}")(lambda team: text)


for _module in ("graph_cases", "mail_cases", "sharded"):
    add_cases(_module)

STALL_S = 30.0  # without a case that ends; the first one makes the contexts
DEATH_S = 40.0  # for a rank's death, contexts included
GRACE_S = 10.0
FUTILE = 3  # new processes whose first case is their last: there is something else
DIED = "hung or died"
MORE = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # hardware queues; the default is 8
AGAIN = 3  # cases of a world that are tried again with that
DONE_WORD = 512  # on the board: how many cases rank r is through with

# What is said where CUDA tensors, or this call on them, are not offered; the last is torch's.
NOT_OFFERED = ("not offered", "No backend type associated with device type cuda")

Row = dict[str, object]


# ---- a rank ----


def attempt(team: Team, name: str) -> tuple[str, str]:
    """(outcome, detail) of a case, as this rank sees it."""
    try:
        wrong = CASES[name].run(team)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:400]
        offered = not any(words in str(error) for words in NOT_OFFERED)
        return ("error" if offered else "not offered yet"), text
    if any(words in wrong for words in NOT_OFFERED):
        return "not offered yet", wrong[:400]
    return ("wrong", wrong[:400]) if wrong else ("ok", "")


def agree(team: Team, bad: bool) -> bool:
    """Was it bad on any rank?"""
    board = team.rank.board
    board[team.me] = bad
    team.rank.sync(GRACE_S + STALL_S)
    any_bad = any(board[r] for r in range(team.world))
    team.rank.sync()
    return any_bad


def join(rank: ranks.Rank, device: str) -> Team:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's is not for ranks
    team = Team(rank, torch.device(device))
    if device != "cpu":
        torch.cuda.set_device(team.device)
    team.init()
    return team


def body(rank: ranks.Rank, names: Sequence[str], device: str, folder: str) -> None:
    team = join(rank, device)
    with open(f"{folder}/{rank.rank}", "w", buffering=1) as out:
        for number, name in enumerate(names):
            outcome, detail = attempt(team, name)
            out.write(json.dumps([outcome, detail]) + "\n")
            rank.board[DONE_WORD + rank.rank] = number + 1
            if rank.rank == 0 and device != "cpu":
                tell_route(team, Path(folder, "route"))
            if agree(team, outcome != "ok"):
                team.renew()


def tell_route(team: Team, file: Path) -> None:
    """Once, as soon as it is known; till then why it is not."""
    if not file.exists() or json.loads(file.read_text())["route"] == "unknown":
        row = about.route_of(None, team.world)
        if row:
            file.write_text(json.dumps(row) + "\n")


def die(rank: ranks.Rank, device: str) -> str:
    """The last rank is killed, the others wait for it on their streams."""
    team = join(rank, device)
    t = team.ones()
    dist.all_reduce(t)
    rank.sync()
    if rank.rank == rank.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(t)
        if t.is_cuda:
            torch.cuda.synchronize()
        dist.barrier()
    except dist.DistBackendError as error:
        alive = (torch.ones(3, device=team.device) + 1).sum().item()
        return "" if str(error) and alive == 6 else f"{error}; the GPU gives {alive}"
    return "no error"


# ---- the parent, which never touches CUDA ----


def is_alive(pid: int) -> bool:
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is None


def watch(run: ranks.Run, end: float) -> None:
    """Kills the ranks when no case ends any more, or the time is over."""
    global current
    current = run
    seen, since = -1, time.monotonic()
    while any(is_alive(pid) for pid in run.pids.values()):
        done = sum(run.board[DONE_WORD + r] for r in range(run.world))
        now = time.monotonic()
        if done != seen:
            seen, since = done, now
        if now - since > STALL_S or now > end:
            for rank, pid in run.pids.items():
                print(f"rank {rank}: {parts.stands(pid)}", file=sys.stderr, flush=True)
            for pid in run.pids.values():
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


current: ranks.Run | None = None


def on_signal(number: int, frame: FrameType | None) -> None:
    """What the ranks have printed lies in files that go with this process."""
    if current is not None:
        for rank in range(current.world):
            print(f"rank {rank}, when told to end:\n{current.output(rank)}", file=sys.stderr)
        sys.stderr.flush()
        for pid in current.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(128 + number)


def merge(said: Sequence[Sequence[str]]) -> tuple[str, str]:
    """One outcome of what all ranks say: the worst."""
    for outcome in ("wrong", "error", "not offered yet"):
        for rank, (one, detail) in enumerate(said):
            if one == outcome:
                return outcome, f"rank {rank}: {detail}"
    return "ok", ""


def collect(names: Sequence[str], folder: Path, world: int) -> list[tuple[str, str]]:
    """Of the cases that all ranks are through with."""
    files = [folder / str(rank) for rank in range(world)]
    said = [f.read_text().splitlines() if f.exists() else [] for f in files]
    complete = min(len(lines) for lines in said)
    return [merge([json.loads(lines[i]) for lines in said]) for i in range(complete)]


def run_some(
    names: Sequence[str],
    world: int,
    device: str,
    folder: Path,
    end: float,
    env: dict[str, str] | None = None,
) -> list[tuple[str, str]]:
    """The outcomes of the first ones; of all, unless one hung or ended its rank."""
    for old in folder.iterdir():
        old.unlink()
    left = end - time.monotonic()
    try:
        ended = ranks.outcomes(
            world,
            body,
            names,
            device,
            str(folder),
            limit=left + 2 * GRACE_S,
            grace=GRACE_S,
            env=env,
            meanwhile=lambda run: watch(run, end),
        )
        texts = [f"rank {o.rank}: exit {o.exit} {o.error} {o.text}" for o in ended if not o.ok]
        tell(ended)
    except ranks.Hang as hang:
        texts = [str(hang).splitlines()[0]]
        print(hang, file=sys.stderr)
    found = collect(names, folder, world)
    if len(found) < len(names):
        what = "not run" if time.monotonic() > end else DIED
        found.append((what, "; ".join(texts)[:600]))
    elif texts:  # after the last case: leaving the group
        found[-1] = (DIED, "; ".join(texts)[:600])
    return found


def tell(ended: Sequence[ranks.Outcome]) -> None:
    """What the ranks printed, the library's own lines too, and where they stood, for the log."""
    for o in ended:
        if o.output.strip() or o.trace:
            print(f"rank {o.rank}:\n{o.output}{o.trace}", file=sys.stderr, flush=True)


def try_again(name: str, outcome: str, world: int, device: str, folder: Path, end: float) -> None:
    """Do more hardware queues help? Prints a row of its own, which counts as no case."""
    [(now, detail)] = run_some([name], world, device, folder, end, MORE)
    row: Row = {"again": name, "ranks": world, "default": outcome}
    row |= {"with": " ".join(f"{key}={value}" for key, value in MORE.items())}
    print(json.dumps(row | {"outcome": now, "detail": detail}), flush=True)


def show_route(folder: Path, routes: set[str]) -> None:
    file = folder / "route"
    if file.exists() and file.read_text() not in routes:
        routes.add(file.read_text())
        print(file.read_text(), end="", flush=True)


def run_world(names: Sequence[str], world: int, device: str, end: float, json_lines: bool) -> int:
    """How many cases are not ok."""
    bad = again = 0
    routes: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="shmcoll-gpu-") as name_of_folder:
        folder = Path(name_of_folder)
        futile, why = 0, "the time was over"
        while names and time.monotonic() < end and futile < FUTILE:
            found = run_some(names, world, device, folder, end)
            show_route(folder, routes)
            futile = futile + 1 if len(found) == 1 and found[0][0] == DIED else 0
            why = found[-1][1] if futile == FUTILE else why
            for name, (outcome, detail) in zip(names, found):
                bad += show(name, world, outcome, detail, json_lines)
            for name, (outcome, _) in zip(names, found):
                failed = CASES[name].waits and outcome in ("wrong", "error", DIED)
                if failed and again < AGAIN and time.monotonic() < end:
                    again += 1
                    try_again(name, outcome, world, device, folder, end)
            names = names[len(found) :]
    for name in names:
        bad += show(name, world, "not run", why, json_lines)
    return bad


def run_death(world: int, device: str, end: float, json_lines: bool) -> int:
    name = "death: a rank is killed while others wait"
    left = end - time.monotonic()
    if left < DEATH_S / 4:
        return show(name, world, "not run", "the time was over", json_lines)
    end = min(end, time.monotonic() + DEATH_S * cases.TIMEOUT_S / 15)
    try:
        ended = ranks.outcomes(
            world, die, device, limit=left + 2 * GRACE_S, meanwhile=lambda run: watch(run, end)
        )
    except ranks.Hang as hang:
        print(hang, file=sys.stderr, flush=True)
        return show(name, world, DIED, str(hang).splitlines()[0], json_lines)
    tell(ended)
    if any(o.exit not in (0, None) for o in ended[:-1]):
        text = "; ".join(f"rank {o.rank}: exit {o.exit}" for o in ended[:-1])
        return show(name, world, DIED, text, json_lines)
    said = [o.text or o.value or "" for o in ended[:-1]]
    offered = not any(words in text for words in NOT_OFFERED for text in said)
    wrong = "; ".join(f"rank {r}: {text}" for r, text in enumerate(said) if text)
    outcome = "ok" if not wrong else "wrong" if offered else "not offered yet"
    return show(name, world, outcome, wrong[:400], json_lines)


def show(name: str, world: int, outcome: str, detail: str, json_lines: bool) -> int:
    """1 if it is not ok."""
    row: Row = {"case": name, "ranks": world, "outcome": outcome, "detail": detail}
    if json_lines:
        print(json.dumps(row), flush=True)
    elif outcome != "ok":
        print(f"{world} ranks  {outcome:16} {name}  {detail}", flush=True)
    return outcome != "ok"


def be_patient(factor: float) -> None:
    """Under a tool that slows all down. The ranks are forked from this process."""
    global STALL_S, GRACE_S
    cases.TIMEOUT_S *= factor
    STALL_S *= factor
    GRACE_S *= factor


def picked(only: str, device: str, without: str = "") -> list[str]:
    """The cases whose names contain one of the words, but none of those of `without`; ValueError names
    a word without a case. In the order of what is to be known first: more dtypes come last."""
    words = [word for word in only.split(",") if word]
    other = [word for word in without.split(",") if word]
    for word in words:
        if not any(word in name for name in CASES):
            raise ValueError(f"{word}: no case is called so")
    asked = [n for n in CASES if not words or any(word in n for word in words)]
    asked = [n for n in asked if not any(word in n for word in other)]
    asked = [n for n in asked if device != "cpu" or not CASES[n].cuda]
    dtypes = {str(dtype)[6:] for dtype in cases.DTYPES} - {"float32"}
    return sorted(asked, key=lambda n: n.split()[-1] in dtypes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", default="2,4,8")
    parser.add_argument("--only", default="", metavar="NAME[,NAME]", help="cases of such names")
    parser.add_argument(
        "--without", default="", metavar="NAME[,NAME]", help="no cases of such names"
    )
    parser.add_argument("--deaths", action="store_true", help="no cases, but a rank is killed")
    parser.add_argument("--slow", type=float, default=1, metavar="FACTOR", help="more patience")
    parser.add_argument("--no-death", action="store_true", help="no rank is killed")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", action="store_true", help="a line of JSON for every case")
    args = parser.parse_args(argv)
    try:
        names = [] if args.deaths else picked(args.only, args.device, args.without)
    except ValueError as error:
        parser.error(f"--only {error}")
    be_patient(args.slow)
    signal.signal(signal.SIGTERM, on_signal)
    begun, bad, ran = time.monotonic(), 0, 0
    worlds = [int(world) for world in args.worlds.split(",")]
    for number, world in enumerate(worlds):
        now = time.monotonic()  # one that hangs leaves the next ones their share
        end = now + (begun + args.limit - now) / (len(worlds) - number)
        dies = args.deaths or not (args.only or args.no_death)
        before = min(DEATH_S, args.limit / len(worlds) / 4) if dies else 0
        bad += run_world(names, world, args.device, end - before, args.json)
        ran += len(names)
        if dies:
            bad += run_death(world, args.device, end, args.json)
            ran += 1
    print(f"{ran - bad} of {ran} cases are ok", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
