# SPDX-License-Identifier: BSD-3-Clause
"""words.py can fail."""

import unittest

from planting import LintTest, run_lint
from words import check

LONG = " ".join(["word"] * 41)
FINE = " ".join(["word"] * 40)


class WordsTest(LintTest):
    def test_words_in_comments_and_strings_are_found(self):
        faulty = {
            "src/x.c": "/* Runs behind it. */@@\n/*\n * What comes in@@\n * front of it\n */\n",
            "src/y.cpp": 'fail("but for one");@@\nint beside; // likewise@@\n',
            "m/x.pml": "int x; /* mended */@@\n",
            "a.py": '"""Whoever asks."""@@\nx = f"the preset is {1}"@@\nbehind = 1  # as above@@\n',
            "x.sh": "# 1.3 times as fast@@\n",
            "README.md": "A call beside others.@@\n",
        }
        clean = {
            "src/x.c": "int behind; /* Runs after it. */\n",
            "a.py": 'behind = "It was left behind, far behind, behind a pointer."\n',
            "x.md": "The key `preset` and `--preset`.\n\n```\nbehind\n```\n[after](behind.md)\n",
            "benchmarks/results/x.md": "behind\n",
        }
        self.expect(check, faulty, clean, '"in front of" is not plain; say before')

    def test_a_name_in_code_is_no_prose(self):
        self.expect_clean(check, {"a.py": "beside = preset(behind)\n", "a.c": "int whoever;\n"})
        self.expect_clean(check, {"python/shmcoll/bench/x.py": "# a preset\n"})

    def test_long_sentences_of_documents_are_found(self):
        faulty = {"a.md": f"Short.\n{LONG}.@@\n\n- one\n- {LONG}@@\n"}
        fine = {"a.md": f"{FINE}. {FINE}:\n\n- {FINE}\n- {FINE}\n", "a.c": f"/* {LONG} */\n"}
        self.expect(check, faulty, fine, "a sentence of 41 words; 40 at most")

    def test_long_cells_are_found(self):
        faulty = {"a.md": f"| a | b |\n|---|---|\n| x | {'y' * 201} |@@\n"}
        fine = {"a.md": f"| a | b |\n|---|---|\n| x | {'y' * 200} |\n"}
        self.expect(check, faulty, fine, "a table cell of 201 characters; 200 at most")

    def test_as_a_command(self):
        root, _ = self.plant({"a.py": "# beside\n"})
        done = run_lint("words", root)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn('a.py:1: "beside" is not plain; say', done.stdout)


if __name__ == "__main__":
    unittest.main()
