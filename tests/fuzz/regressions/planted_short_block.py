# SPDX-License-Identifier: BSD-3-Clause
"""A planted fault: the last element of a large uneven block was not sent.

    python tests/fuzz/regressions/planted_short_block.py

forks its ranks, compares, and exits with 1 when the results are wrong.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS / "support")]

from program import End, Message, Program, Step  # noqa: E402, F401

PROGRAM = Program(
    world=4,
    groups=((0, 1, 2, 3),),
    threads=(0,),
    settings=(),
    seed=1,
    steps=(
        Step(
            "all_to_all_single",
            form="functional",
            dtype="uint8",
            shapes=((2,),),
            counts=(
                (750, 300, 300, 450),
                (0, 450, 150, 300),
                (750, 75000, 450, 450),
                (600, 0, 450, 600),
            ),
        ),
    ),
)

if __name__ == "__main__":
    from script import run

    sys.exit(run(PROGRAM))
