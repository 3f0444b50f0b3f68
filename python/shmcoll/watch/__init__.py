# SPDX-License-Identifier: BSD-3-Clause
"""Tools that look at running groups from outside. None of them imports torch, or loads the library."""
