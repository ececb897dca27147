"""The option `--json` of commands whose result programs read."""

from __future__ import annotations

from typing import Annotated

import typer

JsonObject = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
JsonList = Annotated[bool, typer.Option("--json", help="Print a JSON list.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
