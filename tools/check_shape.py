"""Counts what must not grow: python tools/check_shape.py.

Functions whose name is a bare participle (`measured`, `_drawn`), functions with six or more parameters, and private
names of other libraries. Each count has a ceiling; lower it when the count falls.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tablepuppet"
CEILINGS = {
    "participle names": 13,
    "functions with six or more parameters": 58,
    "private names of other libraries": 0,
}
_MAX_PARAMETERS = 5
_PARTICIPLE = re.compile(r"_?[a-z]+(ed|en|wn|ne|ld|und|ught|ade|ept)")
_ALLOWED = re.compile(
    "_?(accept|bound|build|combine|define|embed|engine|feed|field|fine|fold|found|grade|hidden|hold|indexed|line|masked|need|"
    "one|open|round|screen|seed|seen|shutdown|speed|then|threshold|token|when)"
)


def find_offences(text: str) -> Iterator[tuple[str, str]]:
    """Each offence of a module: its kind, and where."""
    tree = ast.parse(text)
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_participle(node.name) and not _is_claim(node):
                yield "participle names", f"{node.lineno}: {node.name}"
            if _count_parameters(node.args) > _MAX_PARAMETERS:
                yield "functions with six or more parameters", f"{node.lineno}: {node.name}"
        elif isinstance(node, ast.Import):
            others |= {alias.asname or alias.name.split(".")[0] for alias in node.names if not _is_own(alias.name)}
        elif isinstance(node, ast.ImportFrom) and _imports_private(node):
            yield "private names of other libraries", f"{node.lineno}: {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and _root(node) in others:
            yield "private names of other libraries", f"{node.lineno}: {ast.unparse(node)}"


def _count_parameters(given: ast.arguments) -> int:
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _is_claim(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property is a noun or a claim: `converged` may be one."""
    return any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in node.decorator_list)


def _is_participle(name: str) -> bool:
    return _PARTICIPLE.fullmatch(name) is not None and _ALLOWED.fullmatch(name) is None


def _imports_private(node: ast.ImportFrom) -> bool:
    module = node.module or "tablepuppet"
    names = [*module.split("."), *(alias.name for alias in node.names)]
    return not _is_own(module) and any(map(_is_private, names))


def _is_own(module: str) -> bool:
    return module.split(".")[0] == "tablepuppet"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_exit"  # which os documents


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def main() -> int:
    """1 where a count is above its ceiling."""
    found: dict[str, list[str]] = {kind: [] for kind in CEILINGS}
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind, where in find_offences(path.read_text(encoding="utf-8")):
            found[kind].append(f"{path.relative_to(PACKAGE.parents[1])}:{where}")
    code = 0
    for kind, places in found.items():
        if len(places) > CEILINGS[kind]:
            print(f"{kind}: {len(places)}, and tools/check_shape.py allows {CEILINGS[kind]}", *places, sep="\n  ")
            code = 1
    print("; ".join(f"{kind}: {len(places)} of {CEILINGS[kind]}" for kind, places in found.items()))
    return code


if __name__ == "__main__":
    sys.exit(main())
