# SPDX-License-Identifier: BSD-3-Clause
"""docs.py can fail."""

import unittest

import docs
from planting import LintTest, run_lint


class Docs(LintTest):
    def test_links(self):
        files = {"docs/A.md": "# One Two\n## `x_y()`: why?\n## One Two\n", "src/x.c": "\n"}
        for faulty, mended in (
            ("[a](B.md)", "[a](A.md)"),
            ("[a](src/x.c)", "[a](../src/x.c)"),
            ("![a](x.png 'title')", "![a](A.md 'title')"),
            ("[a](/docs/B.md)", "[a](/docs/A.md)"),
            ("[a](A.md#three)", "[a](A.md#one-two)"),
            ("[a](A.md#one-two-2)", "[a](A.md#one-two-1)"),
            ("[a](A.md#x_y)", "[a](A.md#x_y-why)"),
            ("[a](#no)", "[a](#here)"),
            ("[a]: B.md", "[a]: <A.md>"),
            ("[a](../nofolder)", "[a](../src/)"),
            ("[a](x.md)", "[a](https://a.b/x.md) `[a](x.md)`\n```\n[a](x.md)\n```"),
        ):
            with self.subTest(faulty):
                page = "# Here\n\ntext {}\n" if "]:" not in faulty else "# Here\n\n{}\n"
                self.expect(
                    docs.check,
                    {**files, "docs/C.md": page.format(faulty + "@@")},
                    {**files, "docs/C.md": page.format(mended)},
                )

    def test_variables(self):
        row = '    {"SHMCOLL_%s", "what", NULL},%s\n'
        table = "rows[] = {\n" + row % ("LOG", "") + "%s};\n"
        support = {docs.VARIABLES: "- `SHMCOLL_LOG`: x\n"}
        self.expect(
            docs.check,
            {**support, docs.CONFIG: table % (row % ("NEW", "@@"))},
            {**support, docs.CONFIG: table % ""},
            "SHMCOLL_NEW",
        )
        self.expect(
            docs.check,
            {docs.VARIABLES: "- `SHMCOLL_LOG`\n- `SHMCOLL_OLD`@@\n", docs.CONFIG: table % ""},
            {docs.VARIABLES: "- `SHMCOLL_LOG`, `SHMCOLL_*`\n", docs.CONFIG: table % ""},
            "SHMCOLL_OLD",
        )

    def test_variables_of_the_table_are_known_names(self):
        table = "| variable |\n|---|\n| `SHMCOLL_LOG` | x |\n| `SHMCOLL_AUTO` |@@\n"
        reader = {"python/x.py": 'os.environ["SHMCOLL_AUTO"]\n'}
        names = 'rows[] = {{"SHMCOLL_LOG"}};\nothers[] = {"SHMCOLL_AUTO"};\n'
        self.expect(
            docs.check,
            {**reader, docs.VARIABLES: table, docs.CONFIG: '{"SHMCOLL_LOG"}\n'},
            {**reader, docs.VARIABLES: table.replace("@@", ""), docs.CONFIG: names},
            "SHMCOLL_AUTO",
        )

    def test_rules(self):
        page, rule = f"{docs.PROTOCOL}/calls.md", "# Calls\n\n- **CALL-1** One.\n"
        sound = {page: rule + "- **CALL-3** Three.\n", "src/x.c": "/* CALL-1, CALL-3 */\n"}
        for path, text in (
            ("src/x.c", "/*\n * CALL-2 */@@\n"),
            ("tests/models/x.pml", "/* CALL-30 */@@\n"),
            ("docs/A.md", "see CALL-4@@\n"),
            ("src/y.c", "/* docs/protocol.md, section 2 */@@\n"),
            ("src/y.c", "/* docs/protocol.md,@@\n * sections 2 and 6 */\n"),
            (page, rule + "- **CALL-3** Three.\n- **CALL-1** Again.@@\n"),
            (f"{docs.PROTOCOL}/zcalls.md", "- **CALL-1** Again.@@\n"),
        ):
            with self.subTest(text):
                self.expect(docs.check, {**sound, path: text}, sound)
        self.expect_clean(docs.check, {"src/x.c": "/* UTF-8 */ XCALL-9 CALL-9-9 */\n"})

    def test_messages(self):
        source = '#define SHC_DIED "died;"\nsay("rank %d (%s) " SHC_DIED\n    " in \\"%s\\"", x);\n'
        page = (
            '| `rank \u2026 (\u2026) died; in "\u2026"` | it died |\n| `one two three%s` | x |%s\n'
        )
        three = 'say("zero one two three");\n'
        self.expect(
            docs.check,
            {docs.HANGS: page % (" four", "@@"), "src/a.c": source, "python/b.py": three},
            {docs.HANGS: page % ("", ""), "src/a.c": source, "python/b.py": three},
            "no source says",
        )

    def test_strict(self):
        root, _ = self.plant({docs.CONFIG: '{"SHMCOLL_LOG"}\n'})
        self.assertEqual(0, run_lint("docs", root).returncode)
        self.assertIn("does not exist yet", run_lint("docs", root).stdout)
        done = run_lint("docs", root, "--strict")
        self.assertEqual(
            (done.returncode, done.stdout.split(" ")[0]), (1, "docs/reference/variables.md:1:")
        )

    def test_command(self):
        self.expect_command("docs", {"README.md": "\n[x](y.md)@@\n"})


if __name__ == "__main__":
    unittest.main()
