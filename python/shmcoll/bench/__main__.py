# SPDX-License-Identifier: BSD-3-Clause
"""``python -m shmcoll.bench``."""

import sys

from shmcoll.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
