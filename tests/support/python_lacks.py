# SPDX-License-Identifier: BSD-3-Clause
"""Prints the packages of Debian's that the Python which runs this lacks for a build: headers, venv.

Only of a Python that Debian has packages for. Another one (pyenv's, say) comes with both, and where
it does not, no package of Debian's would help.
"""

import importlib.util
import pathlib
import sys
import sysconfig


def lacking() -> list[str]:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = {
        "dev": pathlib.Path(sysconfig.get_path("include"), "Python.h").exists(),
        "venv": importlib.util.find_spec("ensurepip") is not None,
    }
    return [f"{name}-{part}" for part, there in found.items() if not there]


if __name__ == "__main__" and sys.base_prefix == "/usr":
    print(*lacking())
