# SPDX-License-Identifier: BSD-3-Clause
"""offsets.py can fail."""

import unittest

import offsets

BEGIN = "#pragma once\n/*\n * The segment. W: who writes.\n *   offset     bytes   name    W\n"
ROW = " *   0          72      header  rank 0, and  after a gap\n"
END = " */\n *   7          7       late\n"


class Offsets(unittest.TestCase):
    def findings(self, table, printed):
        text = BEGIN + table + END
        return [(f.line, f.message.split(";")[0]) for f in offsets.compare(text, printed)]

    def test_agreement_is_clean(self):
        self.assertEqual([], self.findings(ROW, "0|72|header\n"))

    def test_another_offset(self):
        self.assertEqual(
            [(5, "header: offset and bytes are 8 and 72")],
            self.findings(ROW, "8|72|header\n"),
        )

    def test_another_size(self):
        self.assertEqual(
            [(5, "header: offset and bytes are 0 and 64")],
            self.findings(ROW, "0|64|header\n"),
        )

    def test_a_missing_row(self):
        self.assertEqual(
            [(1, "abort has no row in the table of offsets")],
            self.findings(ROW, "0|72|header\n1024|4|abort\n"),
        )

    def test_a_row_too_many(self):
        extra = " *   block + 9  2 * 9   of two\n"
        self.assertEqual(
            [(6, "of two is not in tests/lint/offsets.c")],
            self.findings(ROW + extra, "0|72|header\n"),
        )


if __name__ == "__main__":
    unittest.main()
