"""A plan as JSON text, and back."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dslaunch.errors import ConfigError, Problem
from dslaunch.launch.decisions import Decision

if TYPE_CHECKING:
    from pydantic import ValidationError

    from dslaunch.launch.plan import Plan


def to_json(plan: Plan) -> str:
    """Render the plan as JSON in ASCII; equal plans give equal bytes.

    ASCII, because an argument that is not valid UTF-8 reaches Python as lone surrogates, which
    JSON can escape and UTF-8 cannot encode.
    """
    return json.dumps(plan, indent=2, default=_fields) + "\n"


def from_json(text: str, name: str = "plan.json") -> Plan:
    """Read a plan back. Raises ConfigError with every problem; `name` is the file it names."""
    from pydantic import TypeAdapter, ValidationError

    from dslaunch.launch.plan import Plan

    try:
        return TypeAdapter(Plan).validate_python(json.loads(text))
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg.lower()}"
        problem = Problem(name, error.lineno, error.colno, "", message)
        raise ConfigError((problem,)) from None
    except RecursionError:
        problem = Problem(name, 0, 0, "", "not a plan: nested too deeply")
        raise ConfigError((problem,)) from None
    except ValidationError as error:
        raise ConfigError(_problems(error, name)) from None
    except ValueError as error:  # Python's limit on the digits of a number
        raise ConfigError((Problem(name, 0, 0, "", f"cannot be read: {error}"),)) from None


def _fields(value: Any) -> dict[str, Any]:
    """Give a dataclass as a mapping: what it holds is for `json` to take apart."""
    if isinstance(value, Decision):
        return value.as_dict()
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _problems(error: ValidationError, name: str) -> tuple[Problem, ...]:
    return tuple(
        Problem(name, 0, 0, _path(e["loc"]), e["msg"][0].lower() + e["msg"][1:])
        for e in error.errors(include_url=False, include_input=False)
    )


def _path(location: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".")
