"""Jinja2 templates of the report, the charts and the model card.

All text is escaped unless it is a template's own. A template gets data and formats it by the filters below.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tablepuppet.formatting import number, plural, seconds, size
from tablepuppet.transport.meter import NETWORKS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# Distinct in light, dark and for colour-blind eyes; dashes tell lines apart in print.
COLOURS = ("#3b6fd4", "#d9730d", "#1f9d6b", "#b5479b", "#8a6d1d", "#c23b3b", "#2a93a8", "#6b5bd2")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4", "6 2 1 2 1 2")


def render_template(name: str, **data: Any) -> Markup:
    """A template filled with data; safe to put into another one."""
    from markupsafe import Markup

    return Markup(_environment().get_template(name).render(data))


def title_of(name: str) -> str:
    """A network's name for people: the profiles in capitals, a user's own as it was given."""
    return name.upper() if name in NETWORKS else name


@cache
def _environment() -> Environment:
    """Loaded when a report is written: no other run waits for Jinja2."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("tablepuppet.report")
    made = Environment(
        loader=loader,
        autoescape=lambda name: not str(name).endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def asset(name: str) -> Markup:
        return Markup(loader.get_source(made, name)[0])

    def in_script(text: str) -> Markup:
        return Markup(text.replace("<", "\\u003c"))  # no tag can end the element early

    made.filters |= {"number": number, "size": size, "seconds": seconds, "plural": plural, "in_script": in_script}
    made.globals |= {"asset": asset, "colours": COLOURS, "dashes": DASHES, "title_of": title_of}
    return made
