# SPDX-License-Identifier: BSD-3-Clause
"""What a user's type checker knows of the package: lint/types checks this file, and nothing runs it."""

from typing_extensions import assert_type

import shmcoll

assert_type(shmcoll.Options().tuning, str)
assert_type(shmcoll.describe()["world_size"], int)
assert_type(shmcoll.describe(internals=True)["biased"], bool)
assert_type(shmcoll.describe().get("path.send.8"), object)
