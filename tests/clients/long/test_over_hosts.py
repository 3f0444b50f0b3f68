# SPDX-License-Identifier: BSD-3-Clause
"""The clients of the default lane with half of their ranks on another host, which SHMCOLL_FAKE_HOSTS makes."""

from __future__ import annotations

import dataclasses

import pytest

import test_clients
from clients import Case, assert_same, results
from test_clients import against_one_process


def over_hosts(case: Case) -> Case:
    return dataclasses.replace(case, hosts=2)


@pytest.mark.parametrize("case", (*test_clients.CASES, *test_clients.LONGER), ids=str)
def test_the_result_is_that_of_gloo(case: Case) -> None:
    one = over_hosts(case)
    assert_same(results("shmcoll", one), results("gloo", case), case.tolerance)


@pytest.mark.parametrize("case", test_clients.POINT_TO_POINT, ids=str)
def test_the_result_is_that_of_one_process(case: Case) -> None:
    against_one_process(over_hosts(case), "shmcoll")
