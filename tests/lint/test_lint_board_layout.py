# SPDX-License-Identifier: BSD-3-Clause
"""board_layout.py can fail."""

import ctypes
import unittest

import board_layout


class Sum(ctypes.Structure):
    _fields_ = [("ops", ctypes.c_uint64), ("reserved", ctypes.c_uint64), ("bytes", ctypes.c_uint32)]


class BoardLayout(unittest.TestCase):
    def findings(self, printed):
        return [f.message.split(";")[0] for f in board_layout.compare({"Sum": Sum}, printed)]

    def test_agreement_is_clean(self):
        self.assertEqual([], self.findings("Sum ops 0 8\nSum bytes 16 4\n"))

    def test_another_offset(self):
        self.assertEqual(
            ["Sum.bytes is at 16 with 4 bytes, in C: (8, 4)"],
            self.findings("Sum ops 0 8\nSum bytes 8 4\n"),
        )

    def test_a_field_too_few(self):
        self.assertEqual(
            ["Sum has no field ticks"],
            self.findings("Sum ops 0 8\nSum bytes 16 4\nSum ticks 24 8\n"),
        )


if __name__ == "__main__":
    unittest.main()
