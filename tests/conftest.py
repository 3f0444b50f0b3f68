# SPDX-License-Identifier: BSD-3-Clause
"""For all Python tests."""

import signal

# A shell that starts a command in the background has it ignore Ctrl-C, and so would all that the
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
