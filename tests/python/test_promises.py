# SPDX-License-Identifier: BSD-3-Clause
"""What users can name is what docs/reference/promised.txt lists, and the comparison can fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import promises


def test_what_users_can_name_is_what_is_promised() -> None:
    found = promises.present()
    kinds = {name.split(" ")[0] for name in found}
    assert kinds >= {"C", "library", "symbol", "private", "environment", "Python", "option", "JSON"}
    text = promises.LIST.read_text()
    assert not (said := promises.complaint(promises.promised(text), found)), said
    assert text == promises.written(found), promises.ADVICE


HEADER = """
#define SHC_VERSION_MAJOR 1
#define SHC_MOST 7
enum shc_a {
    SHC_ONE = 0, /* SHC_NOT, */
    SHC_TWO,
    SHC_A_COUNT
};
struct shc_s {
    int a;
    void (*call)(int);
};
static inline int shc_inline(void) { return 1; }
int shc_f(struct shc_s *s,
          int b);
"""


def test_the_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "x.h"
    monkeypatch.setattr(promises, "HEADER", header)
    monkeypatch.setattr(promises, "HEADERS", (header,))
    header.write_text(HEADER)
    assert dict(promises.c_api()) == {
        "C constant SHC_MOST": "7",
        "C value SHC_ONE": "enum shc_a, 0",
        "C value SHC_TWO": "enum shc_a, 1",
        "C struct shc_s": "int a; void (*call)(int);",
        "C function shc_f": "int shc_f(struct shc_s *s, int b)",
    }
    assert promises.major() == "1"


def test_exported_symbols_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int shc_a(void) { return 0; } int shc_b = 1; int c;\n")
    (tmp_path / "x.map").write_text("NODE_7 { global: shc_*; local: *; };\n")
    command = ["cc", "-shared", "-fPIC", "-nostdlib", f"-Wl,--version-script={tmp_path}/x.map"]
    subprocess.run([*command, "-o", tmp_path / "x.so", tmp_path / "x.c"], check=True)
    assert dict(promises.symbols(tmp_path / "x.so")) == {"shc_a": "NODE_7", "shc_b": "NODE_7"}


OLD = {
    promises.MAJOR: "1",
    "C function shc_f": "int shc_f(int a)",
    "C value SHC_ONE": "enum shc_a, 0",
    "private symbol lib shc_x": "",
}


@pytest.mark.parametrize(
    ("change", "said", "broken"),
    [
        ({}, "", False),
        ({"C function shc_g": "int shc_g(void)"}, "C function shc_g is new", False),
        ({"C value SHC_ONE": None}, "C value SHC_ONE is gone", True),
        ({"private symbol lib shc_x": None}, "private symbol lib shc_x is gone", False),
        (
            {"C function shc_f": "int shc_f(long a)"},
            "C function shc_f was (int shc_f(int a)) and is now (int shc_f(long a))",
            True,
        ),
    ],
)
def test_a_difference_is_told_and_a_promise_is_kept_within_a_major_version(
    change: dict[str, str | None], said: str, broken: bool
) -> None:
    new = {name: value for name, value in (OLD | change).items() if value is not None}
    assert promises.promised(promises.written(new)) == new
    words = promises.complaint(OLD, new)
    assert (said in words and "--write" in words and "CHANGELOG" in words) if said else words == ""
    assert bool(promises.refusal(OLD, new)) == broken
    assert not promises.refusal(OLD, new | {promises.MAJOR: "2"})
    assert not promises.refusal(OLD | {promises.MAJOR: "0"}, new | {promises.MAJOR: "0"})
