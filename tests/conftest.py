# SPDX-License-Identifier: BSD-3-Clause
"""For all Python tests."""

import os
import signal

# A shell that starts a command in the background has it ignore Ctrl-C, and so would all that the
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's store looks up the name of both ends of each connection, for its messages. Where names come
# from a network, an answer is lost now and then, and a test waits five seconds for it. No test needs
# a name: the resolver asks nobody. torch then says that it knows no name.
os.environ["RES_OPTIONS"] = "attempts:0"
