# SPDX-License-Identifier: BSD-3-Clause
"""license.py can fail."""

import unittest

from license import TAG, check
from planting import LintTest


class LicenseTest(LintTest):
    def test_the_line_is_there_and_ends_there(self):
        faulty = {
            "a.c": f"/* {TAG} Sums. */@@\n",
            "b.cc": f"// {TAG} and a sentence that@@\n// goes on\n",
            "c.py": '"""Nothing."""@@\n',
            "d.sh": f"#!/bin/sh@@\n#\n#\n# {TAG}\n",
        }
        clean = {
            "a.c": f"/* {TAG} */\n",
            "b.cc": f"// {TAG}\n\n// A sentence.\n",
            "c.py": f"#!/usr/bin/env python3\n# {TAG}\n",
            "d.sh": "",
            "e.md": "# A page\n",
        }
        self.expect(check, faulty, clean, TAG)

    def test_command(self):
        self.expect_command("license", {"a.py": "x = 1@@\n"})


if __name__ == "__main__":
    unittest.main()
