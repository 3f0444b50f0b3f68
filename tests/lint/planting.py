# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the lints share: a tree with a planted fault, and its correct twin.

In planted text, @@ at the end of a line marks where a finding is expected.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import git

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


class LintTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.trees = 0

    def plant(self, files):
        """A fresh tree with the files, and the places of their marks."""
        self.trees += 1
        root, places = self.root / str(self.trees), set()
        for path, text in files.items():
            for number, line in enumerate(text.split("\n"), 1):
                if line.endswith("@@"):
                    places.add((path, number))
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text.replace("@@", "").encode())
        return root, places

    def expect(self, check, faulty, correct, *words):
        """`faulty` is found at its marks, in these words; `correct` passes."""
        root, places = self.plant(faulty)
        self.assertTrue(places, "the plant has no mark")
        findings = list(check(root))
        self.assertEqual({(f.path, f.line) for f in findings}, places, findings)
        for word in words:
            self.assertIn(word, "\n".join(map(str, findings)))
        self.expect_clean(check, correct)

    def expect_clean(self, check, files):
        root, _ = self.plant(files)
        self.assertEqual([], list(check(root)))

    def expect_command(self, name, faulty, *options):
        """The lint as a command prints the one mark's finding and exits with 1."""
        root, places = self.plant(faulty)
        ((path, line),) = places
        done = run_lint(name, root, *options)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, rf"(?m)^{re.escape(path)}:{line}: .*; ")


def make_repository(root):
    (root / ".git").mkdir(parents=True)
    git(root, "init", "-q")


def run_lint(name, root, *options):
    return subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--root", str(root), *options],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
