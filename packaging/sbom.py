# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a release as a CycloneDX document: what is inside of the wheel, and what it needs.

No tool finds them: the metadata has no requirement, and C libraries stand in no list of Python's.
"""

from __future__ import annotations

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

# name, kind of its address, license, scope, how it is used
PARTS = (
    ("torch", "pypi", "BSD-3-Clause", ComponentScope.REQUIRED, "the user installs it"),
    (
        "liburing",
        "generic",
        "MIT",
        ComponentScope.REQUIRED,
        "linked into libshmcoll, if it was found",
    ),
    ("numactl", "generic", "LGPL-2.1-only", ComponentScope.OPTIONAL, "libnuma, opened at run time"),
)


def component(name: str, kind: str, license: str, version: str = "", **more: object) -> Component:
    return Component(
        name=name,
        version=version or None,
        type=ComponentType.LIBRARY,
        bom_ref=name,
        purl=PackageURL(kind, None, name, version or None),
        licenses=[LicenseFactory().make_from_string(license)],
        **more,
    )


def text(version: str) -> str:
    bom = Bom()
    ours = component("shmcoll", "pypi", "BSD-3-Clause", version)
    bom.metadata.component = ours
    parts = [
        component(name, kind, license, scope=scope, description=how)
        for name, kind, license, scope, how in PARTS
    ]
    bom.components.update(parts)
    bom.register_dependency(ours, parts)
    written: str = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(written):
        raise ValueError(f"the list of parts is not CycloneDX: {error}")
    return written + "\n"
