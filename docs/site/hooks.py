# SPDX-License-Identifier: BSD-3-Clause
"""What the site has as well as the pages of docs/: README.md as its front page, and the C API's page.

Links that leave docs/ lead into the sources. They keep their text, and name the path. (Whether it
exists is what tests/lint/docs.py checks.) A public Python name without a docstring fails the build.
"""

import logging
import pathlib
import posixpath
import re
import sys

import griffe
from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import c_page

log = logging.getLogger("mkdocs.hooks.shmcoll")
ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ("src/shm/shmcoll.h", "src/shm/shmcoll_memory.h")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`(?!\])", re.M | re.S)
# The version needs no words.
WITHOUT_DOCSTRING = {"__version__"}


def on_files(files, config):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=relocated(readme)))
    headers = [(ROOT / header).read_text(encoding="utf-8") for header in HEADERS]
    files.append(File.generated(config, "reference/c.md", content=c_page.page(*headers)))
    return files


def relocated(readme):
    """Its links, as they are from inside of docs/."""
    return LINK.sub(lambda found: f"[{found[1]}]({inside(found[2])})", readme)


def inside(target):
    if re.match(r"[a-z]+:|#", target):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def into_the_sources(found):
        text, target = found.groups()
        file = target.partition("#")[0]
        path = posixpath.normpath(posixpath.join(folder, file))
        if re.match(r"[a-z]+:|#|/", target) or path.startswith("docs/"):
            return found[0]
        return text if path in text.replace("`", "") else f"{text} (`{path}`)"

    kept = []

    def put_away(found):
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(into_the_sources, CODE.sub(put_away, markdown))
    while "\0" in text:
        text = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], text)
    return text


def on_post_build(config):
    package = griffe.load(
        "shmcoll", search_paths=[ROOT / "python"], resolve_aliases=True, allow_inspection=False
    )
    for name in package.exports or ():
        for path, member in documented(str(name), package[str(name)]):
            if path not in WITHOUT_DOCSTRING and not member.has_docstring:
                log.warning("%s: shmcoll.%s has no docstring", member.filepath, path)


def documented(path, member):
    """The name itself, and the public members of a class."""
    yield path, member
    if member.is_class:
        for name, inner in member.members.items():
            if not name.startswith("_"):
                yield f"{path}.{name}", inner
