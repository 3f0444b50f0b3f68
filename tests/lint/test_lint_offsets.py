# SPDX-License-Identifier: BSD-3-Clause
"""offsets.py can fail."""

import unittest

import offsets

TABLE = "### Offsets\n\n| offset | bytes | name | writer |\n|---|---|---|---|\n"
ROW = "| 0 | 72 | `header` | rank 0 |\n"


class Offsets(unittest.TestCase):
    def findings(self, page, printed):
        return [(f.line, f.message.split(";")[0]) for f in offsets.compare(page, printed)]

    def test_agreement_is_clean(self):
        self.assertEqual([], self.findings(TABLE + ROW, "0|72|header\n"))

    def test_another_offset(self):
        self.assertEqual(
            [(5, "header: offset and bytes are 8 and 72")],
            self.findings(TABLE + ROW, "8|72|header\n"),
        )

    def test_another_size(self):
        self.assertEqual(
            [(5, "header: offset and bytes are 0 and 64")],
            self.findings(TABLE + ROW, "0|64|header\n"),
        )

    def test_a_missing_row(self):
        self.assertEqual(
            [(1, "abort has no row under ### Offsets")],
            self.findings(TABLE + ROW, "0|72|header\n1024|4|abort\n"),
        )

    def test_a_row_too_many(self):
        extra = "| 9 | 9 | `ghost` | nobody |\n"
        self.assertEqual(
            [(6, "ghost is not in tests/lint/offsets.c")],
            self.findings(TABLE + ROW + extra, "0|72|header\n"),
        )


if __name__ == "__main__":
    unittest.main()
