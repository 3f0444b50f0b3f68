# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/support.md says what every call does today."""

from __future__ import annotations

import pytest

import support_table


@pytest.mark.timeout(300)
def test_the_tables_are_what_a_run_gives() -> None:
    written, found = support_table.current(), support_table.generated()
    stale = (
        "docs/reference/support.md is stale (or a call has changed by mistake): "
        "python tests/python/support_table.py writes it anew"
    )
    both = support_table.dtypes_of(written) & support_table.dtypes_of(found)
    assert support_table.ours(written, both) == support_table.ours(found, both), stale
    assert len(support_table.ours(found, both)) > 40 and len(both) > 40
    if support_table.run_with() in written:  # else it is another torch
        assert written == found, stale
