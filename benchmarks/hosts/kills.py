# SPDX-License-Identifier: BSD-3-Clause
"""How long after a kill have the survivors of all hosts named what was killed?

    python benchmarks/hosts/kills.py [--kills 50] [--seed 1] [--kinds follower,leader]

The job is on two hosts of two ranks, which tests/hosts/hosts.py makes of this machine: needs root. `in 150` counts the
rounds in which the last survivor had raised within 150 ms; a link that is down and a host that is stopped are found by
the time-out, of 2 s here. All hosts share the CPUs of this machine, and the last line says what else it did.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/hosts", "tests/support", "python/shmcoll/bench/judge"):
    sys.path.insert(0, str(ROOT / folder))
import kills  # noqa: E402
import noise  # noqa: E402
from hosts import missing  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(kills.KINDS))
    args = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    wanted = args.kinds.split(",")
    if unknown := set(wanted) - set(kills.KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(kills.KINDS)}")
    rounds: list[kills.Round] = []
    seen: list[noise.Activity] = []
    with noise.Watch(noise.children_s, os.sched_getaffinity(0)).over(seen.append):
        for kind, seed in kills.kinds(args.kills * 20, args.seed):
            if kind in wanted and len(rounds) < args.kills:
                rounds.append(kills.one(kind, seed))
                for text in rounds[-1].wrong:
                    print(f"{kind}, seed {seed}: {text}", flush=True)
    print(*kills.summary(rounds), sep="\n")
    print(f"# {noise.words(seen[0])}")
    return 1 if any(one.wrong for one in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
