"""Docstrings as the site's API reference shows them: examples as code, chapters that they name as links."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)
_CHAPTER = re.compile(r"docs/([\w-]+)\.md")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
            obj.docstring.value = _CHAPTER.sub(r"[\1](\1.md)", text)
