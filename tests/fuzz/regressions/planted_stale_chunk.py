# SPDX-License-Identifier: BSD-3-Clause
"""A planted fault: the fifth chunk of a long message was never written.

    python tests/fuzz/regressions/planted_stale_chunk.py

forks its ranks, compares, and exits with 1 when the results are wrong.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS / "support")]

from program import End, Message, Program, Step  # noqa: E402, F401

PROGRAM = Program(
    world=5,
    groups=((0,), (0,), (0, 1, 2, 3, 4)),
    threads=(0, 0, 0),
    settings=(("SHMCOLL_ARENA_KIB", "0"),),
    seed=0,
    steps=(Step("broadcast", dtype="int8", shapes=((32768,),)),),
)

if __name__ == "__main__":
    from script import run

    sys.exit(run(PROGRAM))
