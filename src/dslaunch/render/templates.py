"""Fill the templates that ship with dslaunch."""

from __future__ import annotations

import shlex
from pathlib import Path

PACKAGED = Path(__file__).parent.parent / "_templates"
IN_THE_SOURCE_TREE = Path(__file__).parents[3] / "templates"


def render(name: str, **values: object) -> str:
    """Fill the template of that file name. A value that it lacks is an error, not an empty text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([PACKAGED, IN_THE_SOURCE_TREE]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = shlex.quote
    return environment.get_template(name).render(values)
