"""`dslaunch schema`: the cluster file's JSON Schema, for editors."""

from __future__ import annotations

from dslaunch.cli import ui


def schema() -> None:
    """Print the cluster file's JSON Schema, for editors.

    Example: dslaunch schema > cluster.schema.json
    """
    import json

    from dslaunch.cluster.schema import json_schema

    ui.result(json.dumps(json_schema(), indent=2))
