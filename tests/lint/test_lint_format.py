# SPDX-License-Identifier: BSD-3-Clause
"""format.py can fail."""

import shutil
import unittest
from unittest import mock

import format as layout
from planting import REPOSITORY, LintTest


class Format(LintTest):
    def config(self, name):
        return {name: (REPOSITORY / name).read_text()}

    def one(self, name):
        return lambda root: layout.check(root, [name])

    def test_clang_format(self):
        for path in ("src/shm/os/x.c", "tests/unit/x_test.cc", "src/cuda_ipc/x.cu"):
            self.expect(
                self.one("clang-format"),
                {**self.config(".clang-format"), path: "int y;\nint  x;@@\n"},
                {**self.config(".clang-format"), path: "int y;\nint x;\n"},
                "clang-format -i " + path,
            )

    def test_ruff(self):
        if layout.importlib.util.find_spec("ruff") is None:
            self.skipTest("ruff is not installed")
        settings = self.config("pyproject.toml")
        wide = "x = [" + "1111, " * 15 + "1]\n"  # 98 columns
        for path in ("python/shmcoll/x.py", "tests/python/x.py", "setup.py"):
            for faulty, what in (
                ("a = 1@@\nb = 2\nc = 3\ne  = 4\n", "make fmt"),  # begins three lines above
                ("import os@@\n", "F401"),
                ("x = 1\ny = z@@\n", "F821"),
            ):
                files = ({**settings, path: faulty}, {**settings, path: wide})
                self.expect(self.one("ruff"), *files, what)

    def test_a_missing_or_other_tool_is_no_pass(self):
        root, _ = self.plant({**self.config(".clang-format"), **self.config(".editorconfig")})
        with mock.patch.object(shutil, "which", return_value=None):
            for name in ("clang-format", "codespell"):
                self.assertIn("apt-get install", str(*layout.check(root, [name])))
        with mock.patch.object(layout.importlib.util, "find_spec", return_value=None):
            self.assertIn("pip install", str(*layout.check(root, ["ruff"])))
        with mock.patch.object(layout, "CLANG_FORMAT_MAJOR", "13"):
            self.assertIn("clang-format 13", str(*layout.check(root, ["clang-format"])))
        with mock.patch.object(layout, "RUFF", "0.1"):
            if layout.importlib.util.find_spec("ruff"):
                root, _ = self.plant({"setup.py": "x = 1\n"})
                self.assertIn("failed", str(*layout.check(root, ["ruff"])))

    def test_a_tool_that_fails_is_no_pass(self):
        root, _ = self.plant({".clang-format": "BasedOnStyle: None Such\n", "src/x.c": "int x;\n"})
        self.assertIn("clang-format failed", str(*layout.check(root, ["clang-format"])))
        with mock.patch.object(layout, "output_of", return_value=("", "no such option", 2)):
            self.assertIn("no such option", str(*layout.check(root, ["codespell"])))
        root, _ = self.plant({"src/x.c": "int  x;\n"})
        self.assertIn("missing", str(*layout.check(root, ["clang-format"])))

    def test_editorconfig(self):
        for path, faulty, mended in (
            ("x.md", "a\nb @@\n", "a\nb\n"),
            ("x.c", "a\n\t@@\nb\n", "a\n\nb\n"),
            ("x.c", "a\n\tb@@\n", "a\n    b\n"),
            ("x.py", "a\nb@@", "a\nb\n"),
            ("x.yml", "a:\n\tb@@\n", "a:\n  b\n"),
            ("x.txt", "a\r@@\n", "a\n"),
        ):
            with self.subTest(faulty):
                config = self.config(".editorconfig")
                check = self.one("editorconfig")
                self.expect(check, {**config, path: faulty}, {**config, path: mended})
        tabs = {**self.config(".editorconfig"), "Makefile": "all:\n\ttrue\n"}
        self.expect_clean(self.one("editorconfig"), tabs)
        self.assertIn("missing", str(*self.one("editorconfig")(self.plant({"x": "x\n"})[0])))

    def test_codespell(self):
        wrong = "x\nte" + "h ring@@\n"
        self.expect(self.one("codespell"), {"docs/x.md": wrong}, {"docs/x.md": "the ring\n"}, "the")

    def test_command(self):
        faulty = {**self.config(".clang-format"), "src/x.c": "\nint  x;@@\n"}
        self.expect_command("format", faulty, "--only", "clang-format")


if __name__ == "__main__":
    unittest.main()
