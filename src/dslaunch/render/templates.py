"""Fill the templates of dslaunch, or those of a user in their place."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import PlanError
from dslaunch.launch.command import quote
from dslaunch.terminal import visible

if TYPE_CHECKING:
    import jinja2

PACKAGED = Path(__file__).parent.parent / "_templates"
IN_THE_SOURCE_TREE = Path(__file__).parents[3] / "templates"


def render(name: str, /, *, directories: Sequence[Path] = (), **values: object) -> str:
    """Fill the template of that file name; `directories` are searched before our own.

    The filter `sh` quotes for a POSIX shell. Raises PlanError with template and line for a faulty
    template, and for a variable that is not set.
    """
    import jinja2

    environment = _environment((*directories, PACKAGED, IN_THE_SOURCE_TREE))
    try:
        return environment.get_template(name).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise PlanError(f"{error.filename or error.name}:{error.lineno}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise PlanError(f"template `{error.name}` not found") from None
    except jinja2.TemplateError as error:
        raise PlanError(f"{_where(error, name)}: {error.message}") from None
    except OSError as error:
        raise PlanError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanError(f"{name}: not UTF-8 text") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise PlanError(f"{_where(error, name)}: {error}") from None


def render_page(name: str, /, **values: object) -> str:
    """Fill one of our own templates of an HTML page.

    Every value is escaped, also its control characters.
    """
    environment = _environment((PACKAGED, IN_THE_SOURCE_TREE), page=True)
    return environment.get_template(name).render(values)


def _visible(value: object) -> object:
    """Return a value of a page with visible control characters; HTML is unchanged."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


# it keeps compiled templates, until their files change: compiling takes longer than filling them
@lru_cache(maxsize=8)
def _environment(directories: tuple[Path, ...], *, page: bool = False) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directories),
        undefined=jinja2.StrictUndefined,
        autoescape=page,
        finalize=_visible if page else None,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = quote
    return environment


def _where(error: Exception, name: str) -> str:
    """Return the innermost line of a template in the traceback, where jinja2 adds them."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}:{f.lineno}" for f in frames if Path(f.filename).name == Path(name).name]
    return lines[-1] if lines else name
