# SPDX-License-Identifier: BSD-3-Clause
"""The strict build of the site can fail, and the C API's page says what the header says."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import c_page  # noqa: E402

HEADER = """#pragma once
/*
 * What it is.
 *   - a rule
 */

#define SHC_MAX 2 /* so many */

/* ---- the group ---- */

/*
 * Leaves the group, as SHC_OK says.
 *
 *   kind   root
 *   A      -
 */
void shc_leave(struct shc_group *group);

struct shc_group {
    int rank; /* its own */

    int size;
};

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
"""


def replace(path, old, new):
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


NAV = "nav: [index.md, reference/python.md, reference/c.md]\n"


class Site(unittest.TestCase):
    def test_a_strict_build_names_all_that_is_wrong(self):
        """In a site of three pages with the settings of the whole one."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            without = shutil.ignore_patterns("*.so*", "lib")
            for tree in ("docs/site", "python/shmcoll"):
                shutil.copytree(ROOT / tree, copy / tree, ignore=without)
            for file in ("src/shm/shmcoll.h", "src/shm/shmcoll_memory.h"):
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, copy / file)
            (copy / "README.md").write_text("# Home\n")
            (copy / "docs/reference").mkdir()
            (copy / "docs/reference/python.md").write_text("# Python API\n\n::: shmcoll\n")
            settings, _ = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")
            (copy / "mkdocs.yml").write_text(f"{settings}\n{NAV}")
            (copy / "docs/unlisted.md").write_text("# [A](nowhere.md)\n[B](index.md#no)\n")
            replace(
                copy / "python/shmcoll/__init__.py",
                '"""Returns what the lib',
                '_ = """Returns what the lib',
            )
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict"],
                cwd=copy,
                capture_output=True,
                text=True,
            )
            self.assertNotEqual(done.returncode, 0)
            for complaint in (
                "unlisted.md",
                "nowhere.md",
                "#no",
                "shmcoll.build_info has no docstring",
                "4 warnings",
            ):
                self.assertIn(complaint, done.stdout + done.stderr)

    def test_the_c_page(self):
        page = c_page.page(HEADER)
        for part in (
            "# C API\n\nWhat it is.\n\n- a rule\n\n## Types\n\n### `SHC_MAX`\n\n",
            "## The group\n\n### `shc_leave()`\n\nLeaves the group, as `SHC_OK` says.\n\n"
            "```{ .text .drawn }\nkind   root\nA      -\n```\n\n```c\nvoid shc_leave(",
            "### `struct shc_group`\n\n```c\nstruct shc_group {\n    int rank; /* its own */\n\n",
        ):
            self.assertIn(part, page)

    def test_every_function_of_the_header_is_on_the_page(self):
        header = (ROOT / "src/shm/shmcoll.h").read_text()
        page = c_page.page(header)
        headings = [line for line in page.split("\n") if line.startswith("### ")]
        for name in ("shc_comm_create()", "shc_dtype_bytes()", "struct shc_op", "enum shc_status"):
            self.assertEqual(1, sum(f"`{name}`" in line for line in headings), name)
        self.assertEqual(
            header.count("shc_store_dir_close"), page.count("void shc_store_dir_close")
        )


if __name__ == "__main__":
    unittest.main()
