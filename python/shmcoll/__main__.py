# SPDX-License-Identifier: BSD-3-Clause
"""``python -m shmcoll``."""

import sys

from shmcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
