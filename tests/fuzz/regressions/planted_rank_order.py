# SPDX-License-Identifier: BSD-3-Clause
"""A planted fault: the staged all_reduce added the last rank first.

    python tests/fuzz/regressions/planted_rank_order.py

forks its ranks, compares, and exits with 1 when the results are wrong.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS / "support")]

from program import End, Message, Program, Step  # noqa: E402, F401

PROGRAM = Program(
    world=3,
    groups=((0, 1, 2), (0,), (0, 1)),
    threads=(0,),
    settings=(),
    seed=227,
    steps=(Step("all_reduce", dtype="complex128", shapes=((32768,),)),),
)

if __name__ == "__main__":
    from script import run

    sys.exit(run(PROGRAM))
