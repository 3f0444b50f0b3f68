#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Layout and spelling: clang-format, ruff, .editorconfig, codespell. `--only NAME` runs one.

A missing tool is a finding: a check that did not run has not passed.
"""

import configparser
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from common import Finding, arguments, c_files, find_files, matches, read, report

CLANG_FORMAT = ("clang-format-14", "clang-format")
CLANG_FORMAT_MAJOR = "14"  # another version lays out differently
RUFF = "0.17"  # its style changes with the second number
C_FOLDERS = ("src", "tests", "benchmarks", "examples")
PYTHON = ("python/*.py", "python/*.pyi", "setup.py", "docs/*.py") + tuple(
    f"{f}/*.py" for f in C_FOLDERS[1:]
)
SPELLED_RIGHT = ("coo",)  # words codespell takes for misspelled


def output_of(root, command, files):
    """stdout and stderr of a tool, with paths relative to the root."""
    done = subprocess.run(
        [*command, *files], cwd=root, capture_output=True, encoding="utf-8", errors="replace"
    )
    return done.stdout, done.stderr, done.returncode


def failed(tool, text):
    return Finding(tool, 1, f"{tool} failed: {text.strip() or 'no output'}; run it by hand")


def check_clang_format(root):
    files = c_files(root, *C_FOLDERS)
    tool = next(filter(None, map(shutil.which, CLANG_FORMAT)), None)
    version = output_of(root, [tool, "--version"], [])[0] if tool else ""
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        what = f"needs clang-format {CLANG_FORMAT_MAJOR}; apt-get install clang-format-14"
        yield Finding(".clang-format", 1, what)
        return
    if not (Path(root) / ".clang-format").is_file():
        yield Finding(".clang-format", 1, "missing; it says how C and C++ are laid out")
        return
    if not files:
        return
    command = [tool, "--dry-run", "--style=file", "--fallback-style=none", "--ferror-limit=0"]
    _, errors, status = output_of(root, command, files)
    places = re.findall(r"^(.+?):(\d+):\d+: warning: code should be clang-formatted", errors, re.M)
    for path, line in places:
        yield Finding(path, int(line), f"not as .clang-format lays it out; clang-format -i {path}")
    if status != 0:
        yield failed("clang-format", errors)


def check_ruff(root):
    """The layout, and what `select` of pyproject.toml names: unused imports, undefined names, and the like."""
    files = find_files(root, *PYTHON)
    if importlib.util.find_spec("ruff") is None:
        what = f"not installed; {sys.executable} -m pip install 'ruff=={RUFF}.*'"
        yield Finding("ruff", 1, what)
        return
    if not files:
        return
    ruff = [sys.executable, "-m", "ruff"]
    own = ["--no-cache", "--quiet", "--force-exclude", f"--config=required-version='=={RUFF}.*'"]
    diff, errors, status = output_of(root, [*ruff, "format", "--diff", *own], files)
    path = None
    for line in diff.split("\n"):
        if line.startswith("--- "):
            path = line[4:]
        hunk = re.match(r"@@ -(\d+)", line)
        if hunk and path:
            yield Finding(path, int(hunk.group(1)), "not as ruff lays it out; make fmt")
    if status not in (0, 1) or (status == 1 and not path):
        yield failed("ruff", errors)
        return
    own.append("--output-format=concise")
    said, errors, status = output_of(root, [*ruff, "check", *own], files)
    places = re.findall(r"^(.+?):(\d+):\d+: (.+)$", said, re.M)
    for path, line, message in places:
        yield Finding(path, int(line), message)
    if status not in (0, 1) or (status == 1 and not places):
        yield failed("ruff", errors)


def editor_sections(root):
    """The sections of .editorconfig as (patterns, settings), in order."""
    parser = configparser.ConfigParser()
    parser.read_string("[root]\n" + read(root, ".editorconfig"))
    for name in parser.sections()[1:]:
        group = re.search(r"\{(.*)\}", name)
        choices = group.group(1).split(",") if group else [""]
        yield [re.sub(r"\{.*\}", choice, name) for choice in choices], parser[name]


def check_editorconfig(root):
    if not (Path(root) / ".editorconfig").is_file():
        yield Finding(".editorconfig", 1, "missing; it says how every file is laid out")
        return
    sections = list(editor_sections(root))
    for path in find_files(root, "*"):
        rules = {}
        for patterns, settings in sections:
            if matches(Path(path).name, patterns):
                rules.update(settings)
        text = read(root, path)
        if text:
            yield from check_layout(path, text, rules)


def check_layout(path, text, rules):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.endswith("\r") and rules.get("end_of_line") == "lf":
            yield Finding(path, number, "line ends in CR LF; use LF")
        elif line[-1:].isspace() and rules.get("trim_trailing_whitespace") == "true":
            yield Finding(path, number, "trailing blanks; delete them")
        if re.match(r" *\t", line) and rules.get("indent_style") == "space":
            yield Finding(path, number, "a tab in the indentation; use blanks")
    if lines[-1] and rules.get("insert_final_newline") == "true":
        yield Finding(path, len(lines), "the last line has no newline; add one")


def check_codespell(root):
    tool = shutil.which("codespell")
    if tool is None:
        yield Finding("codespell", 1, "not installed; apt-get install codespell")
        return
    command = [tool, "--ignore-words-list=" + ",".join((*SPELLED_RIGHT, "_"))]
    out, errors, status = output_of(root, command, find_files(root, "*"))
    places = re.findall(r"^(?:\./)?(.+?):(\d+): (.+)$", out, re.M)
    for path, line, message in places:
        yield Finding(path, int(line), f"spelling: {message}; or add it to SPELLED_RIGHT")
    if status != 0 and not places:
        yield failed("codespell", errors)


CHECKS = {
    "clang-format": check_clang_format,
    "ruff": check_ruff,
    "editorconfig": check_editorconfig,
    "codespell": check_codespell,
}


def check(root, names=tuple(CHECKS)):
    for name in names:
        yield from CHECKS[name](root)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=CHECKS, action="append", help="run this check alone")
    options = parser.parse_args()
    sys.exit(report(check(options.root, options.only or tuple(CHECKS))))


if __name__ == "__main__":
    main()
