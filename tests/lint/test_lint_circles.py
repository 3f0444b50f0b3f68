# SPDX-License-Identifier: BSD-3-Clause
"""circles.py can fail."""

import unittest

import circles
from planting import LintTest

FOLDER = "src/shm/exec"  # its limit is 1


def file(name, *called, first="/* x */"):
    body = "".join(f"    shc_{other}_go();\n" for other in called)
    return {f"{FOLDER}/{name}.c": f"{first}\nvoid shc_{name}_go(void)\n{{\n{body}}}\n"}


class Circles(LintTest):
    def test_files_that_call_each_other_are_found(self):
        faulty = file("a", "b", first="/* x */@@") | file("b", "c") | file("c", "a")
        self.expect(circles.check, faulty, file("a", "b") | file("b", "c") | file("c"), "3 files")

    def test_a_function_handed_on_is_a_call(self):
        handed = "/* x */\nvoid shc_b_go(void)\n{\n    start(shc_a_go);\n}\n"
        faulty = file("a", "b", first="/* x */@@") | {f"{FOLDER}/b.c": handed}
        self.expect(circles.check, faulty, file("a", "b") | file("b"), "2 files")

    def test_an_inline_function_belongs_to_its_header(self):
        inline = "/* x */\nvoid shc_c_go(void);\nstatic inline int shc_a_value(void)\n{\n    return 0;\n}\n"
        reads = "/* x */\nvoid shc_b_go(void)\n{\n    (void)shc_a_value();\n}\n"
        clean = file("a", "b") | {f"{FOLDER}/a.h": inline, f"{FOLDER}/b.c": reads}
        self.expect_clean(circles.check, clean | file("c", "a"))


if __name__ == "__main__":
    unittest.main()
