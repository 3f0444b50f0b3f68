# SPDX-License-Identifier: BSD-3-Clause
"""orders.py can fail."""

import re
import unittest

import orders
from planting import LintTest

EDGES = "# P\n\nSee `x/y`.\n\n- **One**: `a/b`\n\n- `a/b`: more of it\n"
RELEASE = """
void f(void)
{
    /* release a/b -> acquire in g(): the slot. */
    shc_a64_store_release(&x->tail, 1);
}
"""
ACQUIRE = """
int g(void)
{
    /* acquire a/b <- release in f(). */
    return shc_a64_load_acquire(&x->tail);
}
"""
BOTH = RELEASE + ACQUIRE


class Orders(LintTest):
    def body(self, faulty, mended, *words, name="src/shm/proto/x.c"):
        """Statements inside a function, in a tree where the edge a/b is sound."""
        base = {"src/shm/proto/y.c": BOTH, "docs/internals/protocol/edges.md": EDGES}
        wrap = "void h(void)\n{{\n{}\n}}\n"
        self.expect(
            orders.check,
            {**base, name: wrap.format(faulty)},
            {**base, name: wrap.format(mended)},
            *words,
        )

    def test_every_order_wants_its_own_form(self):
        why = "a reason."
        for operation, form in {
            "store_relaxed": f"relaxed: {why}",
            "load_relaxed": f"relaxed: {why}",
            "store_release": "release a/b -> acquire in g(): the slot.",
            "load_acquire": "acquire a/b <- release in f().",
            "exchange_acq_rel": f"acq_rel a/b: {why}",
            "cas_acq_rel": f"acq_rel a/b: {why}",
            "add_acq_rel": f"acq_rel a/b: {why}",
            "or_acq_rel": f"acq_rel a/b: {why}",
            "and_acq_rel": f"acq_rel a/b: {why}",
        }.items():
            for width in (32, 64):
                call = f"shc_a{width}_{operation}(p);"
                wrong = "relaxed: no." if "relaxed" not in form else "acq_rel a/b: no."
                with self.subTest(call):
                    self.body(f"{call}@@", f"/* {form} */\n{call}", "lacks")
                    self.body(f"/* {wrong} */@@\n{call}@@", f"// {form}\n{call}", "lacks")

    def test_forms_are_complete(self):
        for form, call in (
            ("relaxed:", "shc_a32_load_relaxed(p);"),
            ("release a/b -> acquire in g().", "shc_a32_store_release(p, 1);"),
            ("release a/b -> acquire in g: x.", "shc_a32_store_release(p, 1);"),
            ("acquire a/b.", "shc_a32_load_acquire(p);"),
            ("acquire a/b -> release in f().", "shc_a32_load_acquire(p);"),
            ("acq_rel a/b:", "shc_a32_add_acq_rel(p, 1);"),
        ):
            with self.subTest(form):
                self.body(f"/* {form} */@@\n{call}@@", "", "form")

    def test_a_comment_serves_one_statement(self):
        one = "/* relaxed: mine. */\nx = shc_a32_load_relaxed(p);\n"
        self.body(
            one + "y = shc_a32_load_relaxed(p);@@",
            one + "/* relaxed: mine. */\ny = shc_a32_load_relaxed(p)\n + shc_a32_load_relaxed(q);",
        )

    def test_a_comment_is_directly_above_and_alone(self):
        call = "x = shc_a32_load_relaxed(p);"
        self.body(f"/* relaxed: a. */@@\n\n{call}@@", f"/* relaxed: a. */\n{call}")
        self.body(f"y = 1; /* relaxed: a. */\n{call}@@", f"y = 1;\n/* relaxed: a. */\n{call}")
        self.body(f"{call} /* relaxed: a. */@@", f"/* relaxed: a. */\n{call} /* b */")

    def test_a_comment_may_stand_above_what_holds_the_access(self):
        access = "shc_a32_load_relaxed(p)"
        for text in (
            f"while ({access} &&\n  {access})\n  x();",
            f"if (a)\n  x = {access};",
            f"for (int i = 0; i < {access}; i++) {{ }}",
            f"f((struct x){{1, 2}},\n  {access});",
            f"int a[] = {{1,\n  {access}}};",
        ):
            with self.subTest(text):
                marked = re.sub(r"(.*shc_a32.*)", r"\1@@", text)
                self.body(marked, f"/* relaxed: a. */\n{text}")
        self.body(
            f"if (a)\n  x = {access};@@",
            f"if (a)\n  /* relaxed: a. */\n  x = {access};",
        )
        self.body(
            f"do {{\n  y();\n}} while ({access});@@",
            f"do {{\n  y();\n  /* relaxed: a. */\n}} while ({access});",
        )
        self.body(
            f"#define READ(p) \\\n  {access}@@\n",
            f"/* relaxed: a. */\n#define READ(p) \\\n  {access}\n",
        )

    def test_comments_are_stacked_and_wrapped(self):
        self.body(
            "/* acquire a/b <- release in f(). */\nx(shc_a32_load_acquire(p),\n"
            "shc_a32_load_relaxed(p));@@",
            "/* relaxed: a. */\n/*\n * acquire a/b <-\n * release in f().\n */\n"
            "x(shc_a32_load_acquire(p),\nshc_a32_load_relaxed(p));\n"
            "// acquire a/b <-\n// release in f().\n// relaxed: b.\n"
            "x(shc_a32_load_acquire(p), shc_a32_load_relaxed(p));\n",
        )

    def test_a_form_without_its_access(self):
        self.body("/* relaxed: gone. */@@\nx = 1;", "/* why */\nx = 1;", "no access")

    def test_an_unknown_order(self):
        self.body("shc_a64_swap(p);@@", "shc_a64_address(p);", "order")

    def test_what_is_not_looked_at(self):
        text = "shc_a64_load_relaxed(p);\n"
        files = {p: text for p in ("src/shm/base/atomic.h", "tests/unit/x.c", "benchmarks/x.c")}
        files["src/shm/proto/x.c"] = f'/* {text} */ const char *s = "shc_a64_load_relaxed(p)";\n'
        self.expect_clean(orders.check, files)

    def tree(self, code, page=EDGES):
        return {"src/shm/proto/x.c": code, "docs/internals/protocol/edges.md": page}

    def test_an_edge_has_two_sides(self):
        sound = self.tree(BOTH)
        for half in (RELEASE, ACQUIRE):
            alone = self.tree(half.replace(";\n}", ";@@\n}"))
            self.expect(orders.check, alone, sound, "no ", " side")

    def test_acq_rel_is_both_sides(self):
        rmw = "void g(void)\n{\n    /* acq_rel a/b: why. */\n    shc_a32_add_acq_rel(p, 1);\n}\n"
        said = RELEASE.replace("-> acquire", "-> acq_rel")
        self.expect_clean(orders.check, self.tree(RELEASE + rmw))
        self.expect_clean(orders.check, self.tree(said + rmw))
        self.expect_clean(orders.check, self.tree(rmw))

    def test_a_side_may_be_outside(self):
        self.expect_clean(orders.check, self.tree(ACQUIRE.replace("f()", "the kernel")))

    def test_the_other_side_is_where_the_comment_says(self):
        wrong = BOTH.replace("in g()", "in old()").replace("tail, 1);", "tail, 1);@@")
        self.expect(orders.check, self.tree(wrong), self.tree(BOTH), "old()", "g")

    def test_an_edge_is_listed(self):
        marked = BOTH.replace(";\n}", ";@@\n}")
        for page in ("# P\n", "See `a/b`.\n\n- `a/b`: more of it\n"):
            self.expect(orders.check, self.tree(marked, page), self.tree(BOTH), "a/b is not in")
        self.expect(orders.check, {"src/shm/os/x.c": marked}, self.tree(BOTH), "a/b is not in")

    def test_a_listed_edge_has_code(self):
        page = EDGES + "- **Old**: `old/edge`@@\n"
        self.expect(orders.check, self.tree(BOTH, page), self.tree(BOTH), "old/edge")

    def test_an_edge_is_listed_once(self):
        for again in ("- **Two**: `a/b`@@\n", "- **Two**: `a/b`, `a/b`@@\n"):
            page = EDGES + again
            self.expect(orders.check, self.tree(BOTH, page), self.tree(BOTH), "twice")

    def test_a_file_whose_braces_do_not_balance(self):
        self.expect(orders.check, {"src/x.c": "void f(void)\n{@@\n"}, {"src/x.c": "int x;\n"})

    def test_command(self):
        self.expect_command("orders", {"src/shm/os/x.c": "int x = shc_a32_load_relaxed(p);@@\n"})


if __name__ == "__main__":
    unittest.main()
