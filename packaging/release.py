#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Looks whether this commit can be released as a version, and builds what a release consists of.

    make release VERSION=1.0.0rc1          a dry run: nothing leaves this machine, no tag is made
    make release VERSION=1.0.0rc1 TAG=yes  also makes the tag, here

    python packaging/release.py --set 1.0.0rc1    writes the version to every place that has it

The files go to dist/: the archive of the sources, the wheels of this version that are there already
(`make wheels`), a list of the parts (SBOM, CycloneDX), and SHA256SUMS. .github/workflows/release.yml
builds them again for the tag, and uploads them.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TOOLS = ("build", "twine", "cyclonedx", "reuse")  # modules of the dependency group "release"
FORM = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(rc\d+))?")


class Version(NamedTuple):
    major: str
    minor: str
    patch: str
    pre: str  # "rc1", or "" for a release

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}{self.pre}"

    def key(self) -> tuple[int, ...]:
        """Candidates come before their release."""
        return (*map(int, self[:3]), int(self.pre.removeprefix("rc") or 10**9))


def parse(text: str) -> Version | None:
    found = FORM.fullmatch(text)
    return Version(*(part or "" for part in found.groups())) if found else None


class Place(NamedTuple):
    """A text that has the version, or a part of it, between what the two groups of `pattern` match."""

    path: str
    pattern: str
    value: Callable[[Version], str]


HEADER = "src/shm/shmcoll.h"
PLACES = (
    Place(HEADER, r"^(#define SHC_VERSION_MAJOR ).*()$", lambda v: v.major),
    Place(HEADER, r"^(#define SHC_VERSION_MINOR ).*()$", lambda v: v.minor),
    Place(HEADER, r"^(#define SHC_VERSION_PATCH ).*()$", lambda v: v.patch),
    Place(HEADER, r'^(#define SHC_VERSION_PRE +").*?(".*)$', lambda v: v.pre),
    Place("src/shm/shmcoll.map", r"^(SHMCOLL_)\d+( \{)$", lambda v: v.major),
    Place("src/cuda_ipc/shmcoll_cuda.map", r"^(SHMCOLL_CUDA_)\d+( \{)$", lambda v: v.major),
    Place("CITATION.cff", r"^(version: ).*()$", str),
    Place("packaging/conda/recipe.yaml", r'^(  version: ")[^"]*(")$', str),
)


def current() -> str:
    """The version, from the header."""
    text = (ROOT / HEADER).read_text()
    numbers = re.findall(r"^#define SHC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    return ".".join(numbers) + re.findall(r'^#define SHC_VERSION_PRE +"(.*?)"', text, re.M)[0]


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wrong_places(version: Version) -> Iterator[str]:
    for place in PLACES:
        text = (ROOT / place.path).read_text()
        found = re.search(place.pattern, text, re.M)
        if not found:
            yield f"{place.path} has no line `{place.pattern}`."
        elif found[0] != (wanted := found[1] + place.value(version) + found[2]):
            yield (
                f"{place.path} says `{found[0].strip()}`, and a release of {version} needs "
                f"`{wanted.strip()}`: run packaging/release.py --set {version}."
            )
    listed = re.findall(
        r"^major version = (.*)$", (ROOT / "docs/reference/promised.txt").read_text(), re.M
    )
    if listed != [version.major]:
        yield (
            f"docs/reference/promised.txt is of major version {' '.join(listed)}: after `make build` "
            "run .venv/bin/python tests/support/promises.py --write."
        )


def today() -> str:
    return datetime.date.today().isoformat()


def is_now(date: str) -> bool:
    """Today or, for a release that takes a night, yesterday."""
    yesterday = datetime.date.today() - datetime.timedelta(days=1)
    return date in (today(), yesterday.isoformat())


def wrong_changelog(version: Version) -> Iterator[str]:
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = dict(re.findall(r"^## \[(.*?)\](.*?)(?=^## |\Z)", text, re.M | re.S))
    if re.search(r"^- ", parts.get("Unreleased", ""), re.M):
        yield f"CHANGELOG.md has entries under [Unreleased]: move them to [{version}]."
    if str(version) not in parts:
        yield f"CHANGELOG.md has no section `## [{version}] - {today()}`: write it."
        return
    dated, _, entries = parts[str(version)].partition("\n")
    if not is_now(dated.strip(" -")):
        yield f"CHANGELOG.md dates {version} `{dated.strip(' -')}`, and today is {today()}."
    if not re.search(r"^- ", entries, re.M):
        yield f"CHANGELOG.md has no entry for {version}."


def wrong_repository(version: Version) -> Iterator[str]:
    if not (ROOT / ".git").exists():
        yield "This is no git repository: a release is made of a commit."
        return
    if changed := git("status", "--porcelain").splitlines():
        yield f"{len(changed)} file(s) are not committed, the first is `{changed[0]}`: commit them."
    here = git("tag", "--points-at", "HEAD").split()  # of a workflow, which runs for the tag
    for tag in git("tag", "--list", "v*").split():
        released = parse(tag[1:])
        if released == version and tag not in here:
            yield f"The tag {tag} is that of another commit: a version is released once."
        elif released and released.key() > version.key():
            yield f"{tag} has been released, which is newer than {version}."


def missing_tools() -> Iterator[str]:
    missing = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if missing:
        yield f"{sys.executable} has no {', '.join(missing)}: use `make release`, which installs them."


def problems(version: Version) -> Iterator[str]:
    yield from wrong_places(version)
    yield from wrong_changelog(version)
    yield from wrong_repository(version)
    yield from missing_tools()


def set_version(version: Version) -> None:
    for place in PLACES:
        path = ROOT / place.path
        value = place.value(version)
        text, count = re.subn(
            place.pattern, lambda m: m[1] + value + m[2], path.read_text(), flags=re.M
        )
        if count != 1:
            sys.exit(
                f"{place.path} has {count} lines `{place.pattern}`; nothing was written there."
            )
        path.write_text(text)
    print(
        f"The version is {version} now. Next: CHANGELOG.md, `make build`, promised.txt, a commit."
    )


def run(*command: str) -> None:
    print("+", " ".join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        sys.exit(f"`{' '.join(command)}` has failed: see above. Nothing was published.")


def build(version: Version) -> list[Path]:
    """The files of the release."""
    import sbom

    run(sys.executable, "-m", "reuse", "lint", "--quiet")
    DIST.mkdir(exist_ok=True)
    archive = DIST / f"shmcoll-{version}.tar.gz"
    archive.unlink(missing_ok=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(DIST))
    if not archive.exists():
        sys.exit(f"The archive is not called {archive.name}: setup.py takes the version elsewhere.")
    files = [archive, *sorted(DIST.glob(f"shmcoll-{version}-*.whl"))]
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    parts = DIST / f"shmcoll-{version}.cdx.json"
    parts.write_text(sbom.text(str(version)))
    files.append(parts)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    return [*files, DIST / "SHA256SUMS"]


def advice(version: Version, files: list[Path], tagged: bool) -> str:
    lines = [f"{file.relative_to(ROOT)}  {file.stat().st_size:,} bytes" for file in files]
    if not any(file.suffix == ".whl" for file in files):
        lines.append("There is no wheel of this version in dist/ (`make wheels`).")
    lines += ["", "Nothing has been published. Next:", "    make bare-machine"]
    if not tagged:
        lines.append(f'    git tag -a v{version} -m "shmcoll {version}"')
    lines.append(f"    git push origin v{version}")
    lines.append(
        "The push of the tag starts .github/workflows/release.yml, which builds and uploads."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?", default="", help="1.0.0, or 1.0.0rc1")
    parser.add_argument("--current", action="store_true", help="print the version of this tree")
    parser.add_argument("--set", action="store_true", help="write it to every place that has it")
    parser.add_argument("--tag", action="store_true", help="make the tag, in this repository alone")
    arguments = parser.parse_args()
    if arguments.current:
        print(current())
        return
    version = parse(arguments.version)
    if version is None:
        sys.exit(f"VERSION={arguments.version} is not a version such as 1.0.0 or 1.0.0rc1.")
    if arguments.set:
        set_version(version)
        return
    if found := list(problems(version)):
        sys.exit("\n".join([f"{version} cannot be released:", *(f"  - {one}" for one in found)]))
    files = build(version)
    if arguments.tag:
        run("git", "tag", "-a", f"v{version}", "-m", f"shmcoll {version}")
    print(advice(version, files, arguments.tag))


if __name__ == "__main__":
    main()
