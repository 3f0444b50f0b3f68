# SPDX-License-Identifier: BSD-3-Clause
"""Does `shmcoll bench compare` call two runs of one build equal, and a build that is a fifth slower
slower?

    python benchmarks/verdicts.py [--json out.json] [--pairs 20] [-- options of the bench]

Runs of the bench as it is, and with planted_slowdown, take turns; each is compared with the run as it
is that came before it. A pair counts as equal if `compare` says so of the whole, and as found if it says
slower. Where it says that the machine has changed its mode, the pair is measured again, as it asks for;
as many again at most, and the rest count as what they are: no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from shmcoll.bench.judge.compare import EQUAL, MIN_ROUNDS, MOVED, SLOWER, compare
from shmcoll.bench.plan import RULER
from shmcoll.bench.results import read

HERE = pathlib.Path(__file__).resolve().parent


def bench(written: pathlib.Path, *options: str) -> None:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    subprocess.run(
        [sys.executable, "-m", "shmcoll.bench", "-q", "--backends", f"shmcoll,{RULER}"]
        + ["--rounds", str(MIN_ROUNDS), *options, "--json", str(written)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--pairs", type=int, default=20, metavar="N")
    parser.add_argument("options", nargs="*", help="of the bench, after a --")
    args = parser.parse_args()
    options = args.options or ["--columns", "roof"]  # in which mode is the machine?
    same: list[str] = []
    planted: list[str] = []
    again = 0
    with tempfile.TemporaryDirectory() as folder:
        old, new, slow = (pathlib.Path(folder) / f"{name}.json" for name in ("old", "new", "slow"))
        bench(old, *options)
        while min(len(same), len(planted)) < args.pairs:
            bench(slow, "--import", "planted_slowdown", *options)
            bench(new, *options)
            before, after = read(old), read(new)
            for verdicts, other in ((planted, read(slow)), (same, after)):
                found = compare(before, other)
                if found.verdict == MOVED and again < 2 * args.pairs:
                    again += 1
                elif len(verdicts) < args.pairs:
                    verdicts.append(found.verdict)
                rows = " ".join(change.verdict for change in found.changes)
                print(f"{found.verdict:10} time x{found.time or 0:.3f}: {rows}", flush=True)
            new.rename(old)
    print(f"one build: {same.count(EQUAL)} of {len(same)} equal")
    print(f"a fifth slower: {planted.count(SLOWER)} of {len(planted)} found")
    if again:
        print(f"measured again, since the machine had another mode: {again}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"one build": same, "planted": planted}))


if __name__ == "__main__":
    main()
