# SPDX-License-Identifier: BSD-3-Clause
"""The static probes of the built library are those that the scripts of tools/bpf and their page name."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shmcoll import _load

ROOT = Path(__file__).parents[2]
LIBRARY = _load.library("libshmcoll")
SCRIPTS = sorted((ROOT / "tools/bpf").glob("*.bt"))
PAGE = ROOT / "docs/operate/probes.md"

SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
NOTE = struct.Struct("<III")


def section(image: bytes, wanted: str) -> bytes:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [SECTION.unpack_from(image, table + size * i) for i in range(count)]
    texts = headers[names][4]
    for name, _, _, _, offset, length, *_ in headers:
        end = image.index(b"\0", texts + name)
        if image[texts + name : end].decode() == wanted:
            return image[offset : offset + length]
    return b""


def probes(image: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Provider, name, count of arguments and the semaphore's address of each probe."""
    notes, at = section(image, ".note.stapsdt"), 0
    while at < len(notes):
        name_bytes, text_bytes, _ = NOTE.unpack_from(notes, at)
        at += NOTE.size + (name_bytes + 3 & ~3)
        _, _, semaphore = struct.unpack_from("<QQQ", notes, at)
        provider, name, arguments, _ = notes[at + 24 : at + text_bytes].split(b"\0", 3)
        yield provider.decode(), name.decode(), len(arguments.split()), semaphore
        at += text_bytes + 3 & ~3


def used_by(script: str) -> Iterator[tuple[str, int]]:
    """Each probe of a script, and how many arguments it reads of that."""
    code = re.sub(r"/\*.*?\*/", "", script, flags=re.S)
    for block in re.findall(r"^usdt:\$1:shmcoll:(\w+)\s(.*?)^}", code, re.M | re.S):
        yield block[0], max((int(n) + 1 for n in re.findall(r"\barg(\d+)", block[1])), default=0)


def built_with_probes() -> bool:
    """In another process: the library reads its variables once, and ranks of later tests are forked from this one."""
    code = "import shmcoll; print(shmcoll.build_info()['built_with_probes'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout == "yes\n"


def test_the_library_has_the_probes_that_the_scripts_and_the_page_name() -> None:
    if not built_with_probes():
        pytest.skip("the library was built without probes")
    found = list(probes(LIBRARY.read_bytes()))
    assert {provider for provider, *_ in found} == {"shmcoll"}
    assert all(semaphore for *_, semaphore in found), "arguments would be made for nobody"
    counts = {name: count for _, name, count, _ in found}
    documented = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE.read_text(), re.M)
    assert counts == {name: len(texts.split(",")) for name, texts in documented}
    assert len(SCRIPTS) == 3
    for path in SCRIPTS:
        used = list(used_by(path.read_text()))
        assert used, path
        for name, count in used:
            assert count <= counts[name], f"{path.name}: {name}"
        assert path.name in PAGE.read_text()
