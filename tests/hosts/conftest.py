# SPDX-License-Identifier: BSD-3-Clause
"""Tests that need several hosts say so, and are skipped where this machine cannot be several."""

from __future__ import annotations

import functools

import pytest

import hosts

reason = functools.cache(hosts.missing)


@pytest.fixture(autouse=True)
def several_hosts(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("no_hosts") is None and reason():
        pytest.skip(reason())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_hosts: looks at what is said without hosts")
