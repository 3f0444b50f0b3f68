# SPDX-License-Identifier: BSD-3-Clause
"""`make release` says in sentences why a commit cannot be released, and builds what can be.

The tools that build and check are stand-ins; the repository is a small one with the real files.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = (
    "packaging/release.py",
    "src/shm/shmcoll.h",
    "src/shm/shmcoll.map",
    "src/cuda_ipc/shmcoll_cuda.map",
    "CITATION.cff",
    "packaging/conda/recipe.yaml",
    "docs/reference/promised.txt",
)
VERSION = "9.8.7rc6"
TODAY = datetime.date.today().isoformat()
BUILD = f"import sys; open(sys.argv[-1] + '/shmcoll-{VERSION}.tar.gz', 'w').write('archive')\n"
CHANGELOG = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - {TODAY}\n\n### Added\n\n- All.\n"


class Tree:
    def __init__(self, path: Path) -> None:
        self.path = path / "tree"
        for file in FILES:
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.path / file)
        for file, text in {
            "tree/packaging/sbom.py": "def text(version): return 'parts of ' + version",
            "tree/.gitignore": "/dist/\n__pycache__/\n",
            "tree/CHANGELOG.md": CHANGELOG,
            "tools/build/__init__.py": "",
            "tools/build/__main__.py": BUILD,
            "tools/twine/__init__.py": "",
            "tools/twine/__main__.py": "import sys; print(sys.argv[1:])",
            "tools/cyclonedx/__init__.py": "",
            "tools/reuse/__init__.py": "",
            "tools/reuse/__main__.py": "",
        }.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(text)
        self.tools = path / "tools"
        assert "9.8.7rc6 now" in self.release("--set").stdout
        promised = self.path / "docs/reference/promised.txt"
        promised.write_text("major version = 9\n")
        self.git("init", "-q")
        self.commit()

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.path / file).read_text()
        assert old in text
        (self.path / file).write_text(text.replace(old, new, 1))

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=self.path, check=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "all of it")

    def release(self, *arguments: str, version: str = VERSION) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        kept.update(GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@example.org")  # of the tag
        return subprocess.run(
            [sys.executable, "packaging/release.py", version, *arguments],
            cwd=self.path,
            env={**kept, "PYTHONPATH": str(self.tools)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture()
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_dry_run_builds_checks_and_says_what_is_next(tree: Tree) -> None:
    header = (tree.path / "src/shm/shmcoll.h").read_text()
    assert "SHC_VERSION_MAJOR 9\n" in header and '"rc6" /* ' in header
    assert "version: 9.8.7rc6\n" in (tree.path / "CITATION.cff").read_text()
    assert (tree.path / "src/shm/shmcoll.map").read_text().startswith("SHMCOLL_9 {\n")
    assert tree.release("--current").stdout == VERSION + "\n"
    (tree.path / "dist").mkdir()
    (tree.path / f"dist/shmcoll-{VERSION}-py3-none-any.whl").write_text("wheel")
    (tree.path / "dist/shmcoll-9.8.6-py3-none-any.whl").write_text("an old one")
    done = tree.release()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['check', '--strict'" in done.stdout and "py3-none-any.whl']" in done.stdout
    assert "Nothing has been published" in done.stdout
    assert f"git tag -a v{VERSION}" in done.stdout and "make wheels" not in done.stdout
    sums = (tree.path / "dist/SHA256SUMS").read_text().splitlines()
    assert [line.split()[1] for line in sums] == [
        f"shmcoll-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl", ".cdx.json")
    ]
    assert (tree.path / f"dist/shmcoll-{VERSION}.cdx.json").read_text() == f"parts of {VERSION}"
    tags = subprocess.run(["git", "tag"], cwd=tree.path, capture_output=True, check=True)
    assert tags.stdout == b""


def test_a_tag_is_made_if_it_is_asked_for_and_is_of_one_commit(tree: Tree) -> None:
    done = tree.release("--tag")
    assert "make wheels" in done.stdout and "git tag" not in done.stdout.partition("Next")[2]
    assert tree.release().returncode == 0, "the workflow builds the tag"
    tree.git("commit", "-q", "--allow-empty", "-m", "later")
    again = tree.release()
    assert again.returncode == 1 and f"The tag v{VERSION} is that of another" in again.stderr


FAULTS: dict[str, tuple[Callable[[Tree], object], str]] = {
    "header": (
        lambda tree: tree.edit("src/shm/shmcoll.h", "MINOR 8", "MINOR 7"),
        "src/shm/shmcoll.h says `#define SHC_VERSION_MINOR 7`, and a release of 9.8.7rc6 needs",
    ),
    "candidate": (
        lambda tree: tree.edit("src/shm/shmcoll.h", '"rc6"', '""'),
        "release.py --set 9.8.7rc6",
    ),
    "symbols": (
        lambda tree: tree.edit("src/cuda_ipc/shmcoll_cuda.map", "_9 {", "_8 {"),
        "needs `SHMCOLL_CUDA_9 {`",
    ),
    "no place": (
        lambda tree: tree.edit("CITATION.cff", "version: 9", "Version: 9"),
        "CITATION.cff has no line",
    ),
    "promises": (
        lambda tree: tree.edit("docs/reference/promised.txt", "9", "8"),
        "promised.txt is of major version 8",
    ),
    "section": (
        lambda tree: tree.edit("CHANGELOG.md", f"[{VERSION}]", "[9.8.7rc5]"),
        f"CHANGELOG.md has no section `## [{VERSION}] - {TODAY}`",
    ),
    "date": (
        lambda tree: tree.edit("CHANGELOG.md", TODAY, "2020-01-02"),
        f"CHANGELOG.md dates {VERSION} `2020-01-02`, and today is {TODAY}",
    ),
    "no entry": (
        lambda tree: tree.edit("CHANGELOG.md", "- All.", ""),
        f"CHANGELOG.md has no entry for {VERSION}",
    ),
    "unreleased": (
        lambda tree: tree.edit("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n"),
        "CHANGELOG.md has entries under [Unreleased]",
    ),
    "newer": (lambda tree: tree.git("tag", "v9.8.7"), "v9.8.7 has been released, which is newer"),
    "tools": (
        lambda tree: shutil.rmtree(tree.tools / "twine"),
        "has no twine",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_a_sentence(tree: Tree, fault: str) -> None:
    plant, said = FAULTS[fault]
    plant(tree)
    tree.git("add", "-A")
    tree.git("commit", "-q", "--allow-empty", "-m", fault)
    done = tree.release()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == f"{VERSION} cannot be released:" and len(lines) == 2, done.stderr
    assert said in lines[1] and lines[1].endswith(".")
    assert not (tree.path / "dist").exists()


def test_a_tool_that_fails_ends_it_with_a_sentence(tree: Tree) -> None:
    (tree.tools / "reuse/__main__.py").write_text("raise SystemExit('no license: planted')")
    done = tree.release()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no license: planted" in done.stderr and "reuse lint --quiet` has failed" in done.stderr
    assert not (tree.path / "dist").exists()


def test_a_changed_file_is_named(tree: Tree) -> None:
    (tree.path / "new").touch()
    done = tree.release()
    assert "1 file(s) are not committed, the first is `?? new`" in done.stderr


@pytest.mark.parametrize("version", ["", "1.0", "v1.0.0", "1.0.0-rc1", "1.0.0rc"])
def test_a_version_of_another_form_is_refused(tree: Tree, version: str) -> None:
    done = tree.release(version=version)
    assert done.stderr == f"VERSION={version} is not a version such as 1.0.0 or 1.0.0rc1.\n"
