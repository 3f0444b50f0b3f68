# SPDX-License-Identifier: BSD-3-Clause
"""For the tests of the backend."""

import faketorch

faketorch.lend_kernels()
