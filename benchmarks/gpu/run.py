# SPDX-License-Identifier: BSD-3-Clause
"""Everything that needs a GPU, in one run: `make gpu`.

    python benchmarks/gpu/run.py [--only PART[,PART]] [--seconds N] [--out DIR] [--quick]
    python benchmarks/gpu/run.py --next --seconds 220     # what the report in DIR lacks most
    python benchmarks/gpu/run.py --merge FILE.json ...    # the reports of several calls, in DIR

Builds from this checkout without network, once: build/gpu can be carried to another machine. Then
the parts, in the order of --list, each with its own limit, after which all its processes are ended
(told first: they may have to poison waits). What a part printed is kept in build/gpu/logs. After
each part the report in DIR is written anew, with the parts of earlier runs of the same commit on the
same GPU, so a run that is cut leaves something whole and the next one goes on from there.
parts.py says what each part runs.

exit code: 0; 1 if a part failed or hung, or was not reached without --next; 2 without a GPU, or
after bad usage
"""

from __future__ import annotations

import time

BEGUN = time.monotonic()  # the budget is this process's, not its parts' alone

import argparse  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from types import FrameType  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))

import parts  # noqa: E402
import report  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 700.0  # with the last part's end and the report: below twelve minutes

# Asked in a process of its own: the driver may hang, and this one is to stay without CUDA.
PROBE = """
import ctypes, sys
name = ctypes.create_string_buffer(96)
count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
try:
    cuda = ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit(f"no NVIDIA driver ({error})")

def call(symbol, *arguments):
    function = getattr(cuda, symbol, None)
    if function is None:
        found, why = ctypes.c_void_p(), ctypes.c_int()
        cuda.cuGetProcAddress_v2(symbol.encode(), ctypes.byref(found), 12000,
                                 ctypes.c_uint64(0), ctypes.byref(why))
        function = ctypes.CFUNCTYPE(ctypes.c_int)(found.value)
    result = function(*arguments)
    if result:
        sys.exit(f"the driver sees none ({symbol}: CUDA error {result})")

call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceGetName", name, 96, device)
call("cuDriverGetVersion", ctypes.byref(version))
numbers = []
try:
    for attribute in (75, 76):  # the capability
        number = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        numbers.append(str(number.value))
except SystemExit:
    numbers = []
print(name.value.decode(), version.value, "".join(numbers), sep="|")
"""


def find_gpu(library: str, limit_s: float = 60) -> tuple[str, str]:
    """(name|CUDA version|capability of the first GPU, "") or ("", why there is none)."""
    command = [sys.executable, "-c", PROBE, library]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", f"the driver does not answer within {limit_s:g} s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    text = said[-1] if said else f"the probe ended with {done.returncode} and said nothing"
    return (text, "") if done.returncode == 0 else ("", text)


def chosen(only: str) -> list[str]:
    """The parts whose name contains one of the words; ValueError names a word without a part."""
    words = [word for word in only.split(",") if word]
    for word in words:
        if not any(word in name for name in parts.PARTS):
            raise ValueError(f"{word}: no part of {', '.join(parts.PARTS)} is called so")
    return [name for name in parts.PARTS if not words or any(word in name for word in words)]


def with_needs(names: Sequence[str]) -> list[str]:
    """Returns the parts and those that they need, each before the first one that needs it."""
    found: dict[str, None] = {}
    for name in names:
        one = parts.PARTS[name]
        found |= dict.fromkeys([*with_needs([*one.needs, *one.wants]), name])
    return list(found)


def lack(result: report.Result | None) -> int:
    """How much is missing of a part: all, an answer, some rows, nothing."""
    if result is None or result.status == "not run":
        return 3
    if not result.good:
        return 2
    cut = any(row.get("why") == "no time" for row in result.rows)
    return 1 if cut else 0


def missing(results: Sequence[report.Result]) -> list[str]:
    """The parts of which something is missing, most first; of those that lack the same, the one
    whose last run is the oldest, so that one that always fails keeps no other from its turn."""
    found = {result.part: result for result in results}
    runs = {name: found[name].run if name in found else "" for name in parts.PARTS}
    names = [name for name in parts.PARTS if lack(found.get(name))]
    return sorted(names, key=lambda name: (-lack(found.get(name)), runs[name]))


SHARED = Path("/dev/shm")


def shared_memory() -> set[str]:
    return {name for name in os.listdir(SHARED) if name.startswith("shmcoll-")}


def clear_leftovers(before: set[str]) -> list[str]:
    """Names that a part has left in /dev/shm; they are removed."""
    left = sorted(shared_memory() - before)
    for name in left:
        (SHARED / name).unlink(missing_ok=True)
    return [f"{SHARED / name}" for name in left]


def run_part(lab: parts.Lab, name: str, left_s: float, behind_s: float = 0) -> report.Result:
    """Whatever it raises, the next ones run, which have `behind_s` for themselves."""
    part = parts.PARTS[name]
    if left_s < part.least_s:
        return report.Result(name, "not run", f"{left_s:.0f} s are left, it needs {part.least_s}")
    limit_s = min(part.limit_s, max(left_s - behind_s, min(part.due_s, left_s)))
    before, begun = shared_memory(), time.monotonic()
    session = parts.Session(lab, name, limit_s)
    try:
        status, why = part.run(session)
    except parts.Absent as absent:
        status, why = "absent", str(absent)
    except parts.TimeIsUp as up:
        status, why = "hung", str(up)
    except parts.Stopped as stop:
        status, why = "stopped", str(stop)
        parts.end_running()  # where the signal came while it was ending them
    except parts.Failed as error:
        status, why = "failed", str(error)
    except Exception as error:
        status, why = "failed", f"{type(error).__name__}: {error}"
        session.note(traceback.format_exc())
    left = session.leftovers + clear_leftovers(before)
    if left:
        status, why = "failed", f"{why}; left behind: {', '.join(left)}".removeprefix("; ")
    result = report.Result(name, status, why, time.monotonic() - begun, session.rows)
    result.log = session.since(0) if session.log.exists() else ""
    return result


def run_all(
    lab: parts.Lab, names: list[str], end: float, out: Path, sharing: bool = True
) -> list[report.Result]:
    """Runs parts until `end`, by time.monotonic().

    `sharing`: each part leaves its share of the time to the next ones. Otherwise each takes what it
    needs, and parts with too little time left are not run.
    """
    results: list[report.Result] = []
    for place, name in enumerate(names):
        print(f"==== {name} ====", flush=True)
        left_s, part = end - time.monotonic(), parts.PARTS[name]
        bad = [one.part for one in results if not one.good and one.part in part.needs]
        if bad:  # what an earlier build has left would tell of another one
            results.append(report.Result(name, "not run", f"it needs {bad[0]}, which is not ok"))
        elif not sharing and left_s < part.due_s:
            why = f"{left_s:.0f} s are left, it is due {part.due_s:.0f}"
            results.append(report.Result(name, "not run", why))
        else:
            behind_s = sum(parts.PARTS[one].due_s for one in names[place + 1 :])
            results.append(run_part(lab, name, left_s, behind_s if sharing else 0))
        last = results[-1]
        last.run = lab.facts.get("started", "")
        print(f"{name}: {last.status} after {last.seconds:.0f} s {last.why}".rstrip(), flush=True)
        report.write(out, lab.facts, results, list(parts.PARTS))
        if last.status == "stopped":
            break
    return results


def on_signal(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise parts.Stopped(f"by signal {number}")


def merge(files: Sequence[Path], out: Path) -> int:
    """Into the report of their commit and GPU in `out`, which may be there."""
    total = report.Report()
    try:
        loaded = [report.load(file) for file in files]
        ids = {(one.facts["gpu"], one.facts["commit"]) for one in loaded}
    except (ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    if len(ids) > 1:
        told = "; ".join(f"{gpu} at {commit}" for gpu, commit in sorted(ids))
        print(f"reports of different commits or GPUs: {told}", file=sys.stderr)
        return 2
    for one in loaded:
        total.add(one)
    out.mkdir(parents=True, exist_ok=True)
    whole = report.write_report(out, total, list(parts.PARTS))
    print(*report.summary(whole.results), report.paths(out, whole.facts)[0], sep="\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="PART[,PART]", help="parts of such names")
    parser.add_argument("--list", action="store_true", help="the parts, and their limits")
    parser.add_argument("--next", action="store_true", help="what the report lacks most, first")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="for all of it")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help="runs nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="few sizes: does everything run?")
    parser.add_argument("--commit", default="", help="which, where git does not tell")
    parser.add_argument("--driver", default="libcuda.so.1", help="the tests' stand-in, say")
    args = parser.parse_args(argv)
    try:
        names = chosen(args.only)
    except ValueError as error:
        parser.error(f"--only {error}")
    if args.list:
        for name in names:
            print(f"{name:12} {parts.PARTS[name].limit_s:4.0f} s  {parts.PARTS[name].settles}")
        return 0
    if args.merge:
        return merge(args.merge, args.out)
    parts.extend_search_path()
    gpu, why = find_gpu(args.driver)
    if not gpu:
        print(f"no GPU: {why}; nothing was built or run", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    facts = report.gather(ROOT, gpu)
    facts |= {"commit": args.commit} if args.commit else {}
    if args.next:
        lacking = missing(report.found(args.out, facts).results)
        names = [name for name in lacking if name in names]
        print(f"missing: {', '.join(names) or 'nothing'}", flush=True)
    facts |= {"asked": ("next: " if args.next else "") + (args.only or "all")}
    lab = parts.Lab(ROOT, args.driver, args.quick, facts)
    args.out.mkdir(parents=True, exist_ok=True)
    end = BEGUN + args.seconds
    try:
        results = run_all(lab, with_needs(names), end, args.out, sharing=not args.next)
    except parts.Stopped:  # between parts
        print("stopped", file=sys.stderr)
        return 1
    print(*report.summary(results), report.paths(args.out, lab.facts)[0], sep="\n")
    reached = [one for one in results if not (args.next and one.status == "not run")]
    return 0 if all(result.good for result in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
