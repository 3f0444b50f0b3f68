# SPDX-License-Identifier: BSD-3-Clause
"""changelog.py can fail."""

import unittest

from changelog import LONGEST, PAGE, check
from planting import LintTest

GOOD = """# Changelog

Text, of 3 ms.

## [Unreleased]

## [1.0.0] - 2030-02-03

### Added

#### Topic

- One.

### Fixed

- Two [of three](a/very/long/target).

## [1.0.0rc2] - 2030-02-01

### Changed

- One.

## [0.9.0] - 2030-02-01
"""


class ChangelogTest(LintTest):
    def finds(self, old, new, *words):
        self.assertIn(old, GOOD)
        self.expect(check, {PAGE: GOOD.replace(old, new, 1)}, {PAGE: GOOD}, *words)

    def test_versions(self):
        self.finds("# Changelog\n\nText, of 3 ms.\n\n## [Unreleased]\n", "## 1.0@@\n", "begin")
        self.finds("## [1.0.0] - 2030-02-03", "## [1.0] - 2030-02-03@@", "version and date")
        self.finds("## [1.0.0] - 2030-02-03", "## [1.0.0] - 2030-02-30@@", "no date")
        self.finds("## [1.0.0rc2] - 2030-02-01", "## [1.0.0] - 2030-02-01@@", "not newer")
        self.finds("## [0.9.0] - 2030-02-01", "## [0.9.0] - 2030-02-02@@", "older date")

    def test_sections(self):
        self.finds("### Fixed", "### Repaired@@", "no section is called Repaired")
        self.finds("### Fixed", "### Added@@", "Added comes after Added")
        self.finds("### Changed\n\n- One.", "- One.@@", "without a section")

    def test_entries(self):
        self.finds("- One.", "- One.\n  and two.@@", "begins with")
        self.finds("- One.", "- One@@", "full stop")
        self.finds("- One.", f"- {'x' * (LONGEST - 2)}.@@", f"at most {LONGEST}")
        self.finds("- One.", "- Twice, in 3.1 us.@@", "3.1 us")
        self.finds("- One.", "- Faster by 1.3x.@@", "1.3x")

    def test_command(self):
        self.expect_command("changelog", {PAGE: GOOD.replace("- One.", "- One@@", 1)})


if __name__ == "__main__":
    unittest.main()
