"""The pages of docs/ with parts that a program writes: written anew, or with --check only compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def rewrite_pages(rewrite: Callable[[str], str], words: list[str], complaint: str) -> int:
    """Writes pages whose text is another now; with --check in `words`, 1 if there are any, after a complaint."""
    is_check, stale = "--check" in words, []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = rewrite(text)
        if new != text:
            stale.append(page.name)
            if not is_check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{complaint if is_check else 'written'}: {', '.join(stale)}")
    return int(bool(stale) and is_check)
