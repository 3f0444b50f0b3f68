# SPDX-License-Identifier: BSD-3-Clause
"""The C API's page, made from the comments of src/shm/shmcoll.h and the public headers after it.

The header is written so that this suffices: `/* ---- title ---- */` begins a section, and a comment
stands directly above what it describes. A declaration is shown as it stands, with the comments
inside it.
"""

import re
import textwrap

SECTION = re.compile(r"/\* -+ (.*?) -+ \*/")
NAMED = re.compile(r"^(?:struct|enum) (\w+)(?=;| \{)|^#define (\w+)|\b(shc_\w+)\(", re.M)
CONDITIONAL = re.compile(r"^#if.*?^#endif\n", re.M | re.S)
FIRST_SECTION = "Types"


def blocks(header):
    """The text between blank lines, `{ ... }` and comments kept whole."""
    lines, depth, inside = [], 0, False
    for line in header.split("\n"):
        if not line.strip() and depth == 0 and not inside and lines:
            yield "\n".join(lines)
            lines = []
        elif line.strip() or lines:
            lines.append(line)
        code = re.sub(r"/\*.*?\*/", "", line)
        inside = "/*" in code or (inside and "*/" not in code)
        depth += 0 if inside else code.count("{") - code.count("}")
    if lines:
        yield "\n".join(lines)


def split_comment(block):
    """(what the comment at its head says, the declarations below it)"""
    found = re.match(r"/\*(.*?)\*/\n?", block, re.S)
    if not found:
        return "", block
    lines = [re.sub(r"^ ?\* ?", "", line.strip(" ")) for line in found[1].split("\n")]
    if "\n" not in found[1]:
        lines = [found[1].strip()]
    return "\n".join(line.rstrip() for line in lines).strip("\n"), block[found.end() :]


def paragraphs(comment):
    """Markdown: what is indented in a comment is a list, or a table drawn with blanks."""
    parts = re.split(r"\n\s*\n", comment)
    done = []
    for number, part in enumerate(parts):
        if not re.search(r"^  ", part, re.M):
            done.append(f"{prose(part)}")
            continue
        head, _, rest = part.partition("\n") if not part.startswith("  ") else ("", "", part)
        while rest and not rest.startswith("  "):
            more, _, rest = rest.partition("\n")
            head += "\n" + more
        if head:
            done.append(prose(head))
        if rest.startswith("  - "):
            items = re.split(r"^  - ", rest, flags=re.M)[1:]
            done.append("\n".join(f"- {prose(' '.join(item.split()))}" for item in items))
        else:
            done.append(f"```{{ .text .drawn }}\n{textwrap.dedent(rest)}\n```")
    return "\n\n".join(done)


def prose(text):
    """Names of the library as code; nothing else is markup."""
    text = re.sub(r"([*_<])", r"\\\1", " ".join(text.split()))
    plain = r"\b(?:shc|SHC)\\_[\w\\]*\w(?:\(\))?|\b[A-Z]+(?:\\_[A-Z]+)+\b"
    return re.sub(plain, lambda found: f"`{found[0]}`".replace("\\", ""), text)


def title(code):
    """The names that a block declares, functions with their brackets."""
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    found = [next(filter(None, groups)) for groups in NAMED.findall(code)]
    if re.match(r"(struct|enum) \w+ \{", code):
        return f"{code.split()[0]} {found[0]}", [found[0]]
    return ", ".join(f"{n}()" if f"{n}(" in code else n for n in found), found


def page(header, *more):
    """The whole page as Markdown. The introduction of a further header stands in its first section."""
    introduction, body = parted(header)
    text = ["# C API", introduction, f"## {FIRST_SECTION}", *described(body)]
    for other in more:
        introduction, body = parted(other)
        section, *rest = described(body)
        text += [section, introduction, *rest]
    return "\n\n".join(text) + "\n"


def parted(header):
    """(the introduction as Markdown, what follows it)"""
    body = CONDITIONAL.sub("", header[header.index("#pragma once") :])
    introduction = re.search(r"/\*.*?\*/", body, re.S)
    return paragraphs(split_comment(introduction[0])[0]), body[introduction.end() :]


def described(body):
    """Sections and declarations as Markdown."""
    text = []
    for block in blocks(body):
        section = SECTION.fullmatch(block.strip())
        if section:
            name = section[1]
            text.append(f"## {name[0].upper()}{name[1:]}")
            continue
        comment, code = split_comment(block)
        if not NAMED.search(code):
            continue
        name, _ = title(code)
        text += [f"### `{name}`"] if name else []
        text += [paragraphs(comment)] if comment else []
        text += [f"```c\n{code.strip()}\n```"]
    return text
