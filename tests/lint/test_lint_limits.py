# SPDX-License-Identifier: BSD-3-Clause
"""limits.py can fail."""

import unittest

import cfunctions
import csource
import limits
from planting import LintTest, run_lint


class Limits(LintTest):
    def file(self, faulty, mended, *words, path="src/shm/os/x.c"):
        self.expect(limits.check, {path: faulty}, {path: mended}, *words)

    def test_lines_of_a_function(self):
        text = "int x;\n\nint f(int a){}\n{{\n{}}}\n"
        long = limits.FUNCTION_LINES - 3
        self.file(
            text.format("@@", "    a;\n" * (long + 1)), text.format("", "    a;\n" * long), "f()"
        )

    def test_lines_of_a_file(self):
        for path, limit in (
            ("src/shm/os/x.c", limits.FILE_LINES),
            ("src/backend/x.hpp", limits.FILE_LINES),
            ("src/shm/shmcoll.h", limits.HEADER_LINES),
        ):
            self.file("//\n" * limit + "//@@\n", "//\n" * limit, "split", path=path)

    def test_parameters(self):
        text = "int f({}){}\n{{\n}}\n"
        seven = "int a, int (*b)(int, int), int c[2], int d, int e, int g, int h"
        self.file(text.format(seven + ", int i", "@@"), text.format(seven, ""), "8 parameters")
        self.file(text.format(seven + ", int i, ...", "@@"), text.format(seven + ", ...", ""))

    def test_nesting(self):
        for outer in (
            "if (a) for (;;) while (b) switch (c) {}",
            "for (;;) {{ if (x) {{ do {{ if (y) z(); else {{ {} }} }} while (0); }} }}",
            "EACH(x) {{ if (a) if (b) if (c) {} }}",
        ):
            text = "void f(void)\n{{\n" + outer + "\n}}\n"
            self.file(text.format("\nif (d)@@\n{ e(); }"), text.format("{ e(); }"), "5 deep")

    def test_else_if_and_bare_blocks_do_not_nest(self):
        chain = "if (a) b(); " + "else if (c) d(); " * 9
        self.expect_clean(limits.check, {"src/x.c": f"void f(void)\n{{\n{{{{{chain}}}}}\n}}\n"})

    def test_brackets_balance(self):
        self.file("#if A\nvoid f(int a) {@@\n#else\nvoid f(void) {\n#endif\n}\n", "int x;\n")
        self.file("void f(void)\n}@@\n", "void f(void);\n", "partner")

    def test_functions_are_found(self):
        text = """
            extern "C" { int in_c(int a) { return f((struct x){1}); } }
            namespace n { class C : public B<int> { public:
                C(int a) noexcept : a_(a), b_{a}, c_{1, 2} { } ~C() = default;
                int get() const { return [&](int q) -> std::vector<int> { if (q) r(); }(1); }
                bool operator==(const C &o) const { return true; } int a_{3}; }; }
            template <typename T, int N = 3> static T generic(std::map<int, T> m) { }
            static void NAME(pasted)(int a, void (*fn)(int, int)) ATTRIBUTE { }
            PRINTF_LIKE(1, 2) enum status attributed(const char *s, ...) { }
            struct pair pair_of(struct x a[3]) { int b[] = {1, 2}; }
            static const char *const table[] = { [A] = "x", f(1), };
            struct ALIGNED(64) aligned { int a; }; enum { X = (1), };
            __global__ void __launch_bounds__(256) kernel(float *a) { k<<<1, 2>>>(a); }
            int in_text = '{' + sizeof "{" + 1'000; /* void g(void) { */
        """
        found = cfunctions.functions(csource.Source("x.cpp", text))
        self.assertEqual(
            [(f.name, f.parameters, f.depth) for f in found],
            [
                ("in_c", 1, 0),
                ("C", 1, 0),
                ("get", 0, 2),
                ("=", 1, 0),
                ("generic", 1, 0),
                ("NAME", 2, 0),
                ("attributed", 1, 0),
                ("pair_of", 1, 0),
                ("kernel", 1, 0),
            ],
        )

    def test_stats(self):
        root, _ = self.plant({"src/x.c": "int f(void)\n{\n}\nint g(void)\n{\n\n\n}\n"})
        done = run_lint("limits", root, "--stats")
        self.assertEqual(done.stdout, "2 functions: median 4, p90 3, longest 5\n")

    def test_command(self):
        self.expect_command("limits", {"src/shm/os/x.c": "\nvoid f(void) {@@\n"})


if __name__ == "__main__":
    unittest.main()
