"""A known ending: what a rank writes when it gets no license. Its code is the entry point's."""

from __future__ import annotations

from dslaunch.plugin import KnownEnding

LICENSE = KnownEnding(
    code="acme-license",
    pattern=r"LicenseError: all (\d{1,6}) seats are taken",
    what="all {0} seats of the license server are taken",
    advice="see https://licenses.acme.example, and start again",
    source="Acme's handbook, licenses",
)
