# SPDX-License-Identifier: BSD-3-Clause
"""commits.py can fail."""

import unittest
from unittest import mock

import commits
from common import git
from planting import LintTest, make_repository, run_lint


class Commits(LintTest):
    def test_messages(self):
        body = ["", "The reason."]
        long = "base: " + "x" * (commits.SUBJECT_COLUMNS - 6)
        for message, line, word in (
            (["lay the ground floor", *body], 1, "area"),
            (["base lay: x", *body], 1, "area"),
            (["base:lay x", *body], 1, "area"),
            (["fixup! base: lay x", *body], 1, "area"),
            (["base: added the ring", *body], 1, "imperative"),
            (["base: adds the ring", *body], 1, "imperative"),
            (["base/log: adding a line", *body], 1, "imperative"),
            ([long + "x", *body], 1, "columns"),
            (["base: lay the ground floor.", *body], 1, "full stop"),
            (["base: lay x", "The reason."], 2, "second line"),
            (["base: lay x"], 1, "body"),
            (["base: lay x", "", "Signed-off-by: A <a@b>"], 3, "body"),
        ):
            with self.subTest(message):
                found = list(commits.check_message("abc", message))
                self.assertEqual([(f.path, f.line) for f in found], [("abc", line)], found)
                self.assertIn(word, found[0].message)
        for message in (
            [long, *body],
            ["base/log: embed x", *body],
            ["tests.x: x", *body, "", "y"],
        ):
            self.assertEqual([], list(commits.check_message("abc", message)))

    def test_forbidden_words(self):
        message = ["base: lay x", "", "A reason that is", "whatsit."]
        with mock.patch.dict(commits.FORBIDDEN_WORDS, {r"\bwhatsit\b": "says nothing"}):
            (found,) = commits.check_message("abc", message)
        self.assertEqual((found.path, found.line), ("abc", 4))
        self.assertEqual([], list(commits.check_message("abc", message)))

    def test_a_repository(self):
        def commit(message):
            who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
            git(self.root, *who, "commit", "--no-verify", "--allow-empty", "-m", message)
            return git(self.root, "rev-parse", "HEAD").strip()

        self.assertIn("skipped", run_lint("commits", self.root).stdout)
        make_repository(self.root)
        bad = commit("bad subject\n\nThe reason.")
        good = commit("base: lay x\n\nThe reason.\n\nMore.")
        self.assertEqual([(f.path, f.line) for f in commits.check(self.root)], [(bad[:12], 1)])
        self.assertEqual([], list(commits.check(self.root, bad)))
        done = run_lint("commits", self.root)
        self.assertEqual((done.returncode, done.stdout[:15]), (1, f"{bad[:12]}:1:"))
        self.assertEqual(0, run_lint("commits", self.root, "--base", bad).returncode)
        with mock.patch.dict(commits.ACCEPTED, {bad: "a test"}):
            self.assertEqual([], list(commits.check(self.root)))
        worse = commit("worse.")
        self.assertEqual({f.path for f in commits.check(self.root, good)}, {worse[:12]})


if __name__ == "__main__":
    unittest.main()
