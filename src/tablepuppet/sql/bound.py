"""BoundQuery: a query over this federation, every name resolved and typed.

Binding returns it, and the mapping takes it. A *scan* is one table under one filter. Each of the table's clients reads
it once, and every use of the table in the query (several aliases, several branches) shares it. A *block* is one
position of the join that contributes features: T_i of docs/notation.md. With UNION ALL, block i has one member per
branch, and their rows are concatenated.

merged_column, key_type, union_column: which types are compatible, of a column at several clients, of two keys, of a
position of UNION ALL.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from sqlglot import exp

from tablepuppet.privacy.options import KeyMode
from tablepuppet.protocol.columns import ColumnInfo, CutoffType, Kind, Merges, decimal_scale
from tablepuppet.sources.history_queries import AT, AT_ONCE, is_plain_column
from tablepuppet.sql.ucq import JoinKind, Tables


class Holders(tuple[str, ...]):
    """The clients of a table, in the order of their rows, and the columns that determine a row's client.

    Rows that are equal in one of `partitioned_by` all lie with one client. So do rows of the same clients'
    other tables that are equal to them in theirs. A federation that claims this is believed until keys meet
    (join/keys.py).
    """

    partitioned_by: tuple[str, ...]

    def __new__(cls, clients: Iterable[str], partitioned_by: Iterable[str] = ()) -> "Holders":
        made = super().__new__(cls, clients)
        made.partitioned_by = tuple(partitioned_by)
        return made


def partitions_of(tables: Tables) -> dict[str, tuple[str, ...]]:
    """The partitioning columns of each table that has some, in lower case."""
    return {
        name: tuple(column.lower() for column in clients.partitioned_by)
        for name, clients in tables.items()
        if isinstance(clients, Holders) and clients.partitioned_by
    }


class Scan(msgspec.Struct, frozen=True):
    """One table under one filter; each of its clients reads it once."""

    table: str
    clients: tuple[str, ...]
    filter: str | None  # SQL predicate over the table's own column names, or None
    expressions: tuple[str, ...]  # SQL over the table's own column names; keys, features, label
    columns: tuple[ColumnInfo, ...]  # the type of each expression, as its clients report it
    withholding: tuple[str, ...] = ()  # clients that keep the parameters trained on their rows
    query: str | None = None  # over the clients' tables, `table` among them, whose rows are read instead of a table's
    groups: tuple[str, ...] | None = None  # of such a query: columns, one of whose values do not span clients
    merges: Merges = ""  # such groups are merged over the clients, and may lie with several
    unmerged: str = ""  # why they are not, and what to do about it
    spelled: "tuple[ScanTexts, ...]" = ()  # per client: the expressions and the filter as it was sent them
    witness_of: tuple[tuple[int, int], ...] = ()  # scans and columns whose groups this one lists before any is dropped
    cutoffs: CutoffType = ""  # of a history: the type of the moments until which it is read
    times: tuple[str, ...] = ()  # of a history: the kinds of its times that are compared with them
    stability: dict[str, int | None] = {}  # of a query: rows that a row of a table changes
    subject: str = ""  # the column of whom a row is about, where an owner names one: stability is then of their rows
    budgeted: tuple[str, ...] = ()  # tables behind it that have an analyst budget
    pairs: tuple[int, ...] = ()  # expressions that may go with moments of a history, as all clients grant

    @property
    def reached(self) -> list[str]:
        """Its tables, each as often as one of its rows counts; a query without a bound is refused where it matters."""
        return [self.table] * (self.stability.get(self.table, 1) or 1)


class ScanTexts(NamedTuple):
    """A scan in one client's spelling of its columns."""

    columns: tuple[str, ...]
    filter: str | None


Place = tuple[int, int]  # scan, expression
Keys = tuple[tuple[int, int], ...]  # columns of a history and of the scan with its moments, which are equal
CUTOFF_OUTPUTS = tuple(exp.to_identifier(name, quoted=True).sql("duckdb") for name in (AT, AT_ONCE))


class Relation(msgspec.Struct, frozen=True):
    """One alias in the FROM clause of one branch."""

    alias: str
    scan: int  # index into BoundQuery.scans


class KeyPair(msgspec.Struct, frozen=True):
    """left.expressions[left_column] = right.expressions[right_column] of two relations of a branch."""

    left: int  # index into Branch.relations
    left_column: int  # index into that relation's scan's expressions
    right: int
    right_column: int


class Join(msgspec.Struct, frozen=True):
    """How relation `relation` is joined to the relations before it."""

    kind: JoinKind
    relation: int
    on: tuple[KeyPair, ...]

    @property
    def is_anti(self) -> bool:
        """Whether rows that have a match in the relation are left out, so that it has none in any joined row."""
        return self.kind in ("anti", "not in")

    @property
    def is_lookup(self) -> bool:
        """Whether the relation only decides which rows are kept: no joined row has a row of it."""
        return self.is_anti or self.kind == "semi"


class LabelPlace(msgspec.Struct, frozen=True):
    """Where the label and its companions lie: a scan, and expressions of it (−1: not asked for)."""

    scan: int
    label: int = -1
    weight: int = -1
    test: int = -1
    validation: int = -1
    fold: int = -1


class Branch(msgspec.Struct, frozen=True):
    """One conjunctive query: relations[0], then one join for each further relation, in order."""

    relations: tuple[Relation, ...]
    joins: tuple[Join, ...]
    label_relation: int
    label_place: LabelPlace = LabelPlace(0)  # in the label relation's scan

    @property
    def pairs(self) -> list[KeyPair]:
        return [pair for join in self.joins for pair in join.on]

    @property
    def compared(self) -> list[tuple[Place, Place]]:
        """The same by scan and expression."""
        scans = [relation.scan for relation in self.relations]
        return [((scans[p.left], p.left_column), (scans[p.right], p.right_column)) for p in self.pairs]


class Member(msgspec.Struct, frozen=True):
    """A block's place in one branch: which relation, and which of its scan's expressions."""

    relation: int
    columns: tuple[int, ...]


class Block(msgspec.Struct, frozen=True):
    """One position of the join that contributes features."""

    name: str  # the alias (made unique)
    table: str
    features: tuple[str, ...]  # names as the user knows them: alias.column, or alias.name for AS
    columns: tuple[ColumnInfo, ...]  # kind of each feature
    members: tuple[Member, ...]  # one per branch


class BoundQuery(msgspec.Struct, frozen=True):
    """A union of conjunctive queries over the federation's tables."""

    text: str
    label: str
    scans: tuple[Scan, ...]
    branches: tuple[Branch, ...]
    blocks: tuple[Block, ...]

    def merges(self, scan: int, keys: KeyMode) -> Merges:
        """Which states of a scan's groups are merged over its clients; none if only blind owners can compare tokens."""
        return "" if keys == "dh" else self.scans[scan].merges

    @property
    def moments(self) -> dict[int, tuple[Place, ...]]:
        """The columns that give the cutoffs, for each scan of a history."""
        found: dict[int, dict[Place, None]] = {}
        for history, place, _ in self._histories():
            found.setdefault(history, {})[place] = None
        return {scan: tuple(places) for scan, places in found.items()}

    @property
    def pairs(self) -> dict[tuple[int, Place], Keys]:
        """For a history's scan and a column of its cutoffs: the keys that go with them. Only where all owners grant it,
        and the history has the same keys everywhere."""
        found: dict[int, dict[Place, set[Keys]]] = {}
        for history, place, keys in self._histories():
            own, other = self.scans[history], self.scans[place[0]]
            is_granted = all(
                a in own.pairs and is_plain_column(own.expressions[a]) and b in other.pairs for a, b in keys
            )
            found.setdefault(history, {}).setdefault(place, set()).add(keys if is_granted else ())
        agreed: dict[tuple[int, Place], Keys] = {}
        for history, places in found.items():
            columns = {tuple(a for a, _ in keys) for given in places.values() for keys in given}
            if len(columns) == 1 and () not in columns and all(len(given) == 1 for given in places.values()):
                agreed |= {(history, place): given.pop() for place, given in places.items()}
        return agreed

    def _histories(self) -> Iterator[tuple[int, Place, Keys]]:
        """Each join of a history: its scan, the column of its cutoffs, and the keys that are equal."""
        for branch in self.branches:
            scans = [relation.scan for relation in branch.relations]
            joined = [((p.left, p.left_column), (p.right, p.right_column)) for p in branch.pairs]
            sides = [side for pair in joined for side in (pair, pair[::-1])]
            for (here, column), (there, moment) in sides:
                scan = self.scans[scans[here]]
                if scan.cutoffs and scan.expressions[column] in CUTOFF_OUTPUTS:
                    keys = {(a, b) for (r, a), (s, b) in sides if (r, s) == (here, there) and a != column}
                    yield scans[here], (scans[there], moment), tuple(sorted(keys))

    @property
    def moment_uses(self) -> dict[int, tuple[Place, ...]]:
        """The history's scan and the column, for each scan that gives cutoffs, in the order of its contract."""
        found: dict[int, list[Place]] = {}
        for history, places in self.moments.items():
            for scan, column in places:
                found.setdefault(scan, []).append((history, column))
        return {scan: tuple(sorted(uses)) for scan, uses in found.items()}

    def texts_for(self, scan: int, client: str) -> ScanTexts:
        """The texts that a client was asked to open."""
        found = self.scans[scan]
        if not found.spelled:
            return ScanTexts(found.expressions, found.filter)
        return found.spelled[found.clients.index(client)]


def key_domains(bound: BoundQuery) -> dict[Place, int]:
    """Every key column and the number of its domain: columns that are compared, however indirectly, share it."""
    root: dict[Place, Place] = {}

    def find(place: Place) -> Place:
        while root.setdefault(place, place) != place:
            place = root[place]
        return place

    for branch in bound.branches:
        for left, right in ((find(a), find(b)) for a, b in branch.compared):
            root[max(left, right)] = min(left, right)
    for number, scan in enumerate(bound.scans):
        for place in scan.witness_of:
            root[find((number, 0))] = find(place)
    numbers = {place: i for i, place in enumerate(sorted({find(p) for p in root}))}
    return {place: numbers[find(place)] for place in sorted(root)}


def render(expression: exp.Expr, spelling: Mapping[str, str]) -> str:
    """The SQL of an expression over its table's own columns, each spelt as one client spells it."""

    def bare(part: exp.Expr) -> exp.Expr:
        return exp.column(spelling[part.name], quoted=True) if isinstance(part, exp.Column) else part

    return expression.transform(bare).sql("duckdb", comments=False)


def format_expression(expression: exp.Expr, alias: str | None = None) -> str:
    """The expression for a reader: quotes only where they are needed, and `alias` before each column."""

    def plain(part: exp.Expr) -> exp.Expr:
        return exp.column(part.name, table=alias) if isinstance(part, exp.Column) else part

    return expression.transform(plain).sql("duckdb", comments=False)


_NUMBERS: frozenset[Kind] = frozenset({"integer", "float", "decimal"})
# Kinds that are encoded alike, by the kind that stands for a mixture of them.
_WIDEST: dict[Kind, Kind] = {
    **dict.fromkeys(("integer", "float", "decimal", "boolean"), "float"),
    **dict.fromkeys(("date", "timestamp"), "timestamp"),
    **dict.fromkeys(("string", "uuid"), "string"),
}
_FLOAT_SCALE = 9  # digits after the point that a float keeps as a key
_CASTS: dict[Kind, str] = {"float": "DOUBLE", "timestamp": "TIMESTAMP", "string": "VARCHAR"}


def type_name(column: ColumnInfo) -> str:
    return column.detail or column.kind


def merged_column(name: str, by_client: Mapping[str, ColumnInfo]) -> ColumnInfo | None:
    """The type of one expression over all clients of its table; None if they do not agree.

    Numbers of different kinds make a float: as features they are encoded alike, and as keys floats are refused.
    """
    infos = list(by_client.values())
    first = infos[0]
    key_types = {key_type(i) for i in infos}
    if len({(i.kind, i.size) for i in infos}) == 1 and len(key_types) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size, absent=first.absent)
    if all(i.kind in _NUMBERS for i in infos):
        kind: Kind = "integer" if key_types == {"integer"} else "float"
        detail = " or ".join(dict.fromkeys(map(type_name, infos)))
        return ColumnInfo(name, kind, detail, absent=first.absent)
    return None


def common_cast(by_client: Mapping[str, ColumnInfo]) -> str:
    """A type that an expression can be cast to at all these clients."""
    return _CASTS[_widest(by_client.values()) or "string"]


def _widest(columns: Iterable[ColumnInfo]) -> Kind | None:
    kinds = {_WIDEST.get(column.kind) for column in columns}
    return kinds.pop() if len(kinds) == 1 else None


def key_type(column: ColumnInfo) -> str | None:
    """The type that a key is compared as; two keys can be equal if it is the same. None: it cannot be a key."""
    match column.kind:
        case "integer":
            return "integer"
        case "decimal":
            scale = decimal_scale(column.detail)
            return None if scale is None else "integer" if scale == 0 else f"decimal of scale {scale}"
        case "timestamp":
            zoned = re.search(r"\btz\b|tz=|timestamptz|with time zone", column.detail.lower())
            return "timestamp with time zone" if zoned else "timestamp"
        case "string" | "uuid" | "date" | "boolean":
            return column.kind
        case _:
            return None


def common_key_cast(left: ColumnInfo, right: ColumnInfo) -> tuple[str, str] | None:
    """The common type of two different keys, for a cast: the key type and its SQL name; None if nothing is sensible."""
    kinds = {left.kind, right.kind}
    if kinds & {"vector", "other"}:
        return None
    if kinds <= {"date", "timestamp"}:
        return ("date", "DATE") if "date" in kinds else ("timestamp", "TIMESTAMP")
    if kinds <= {"integer", "boolean"}:
        return "integer", "BIGINT"
    if kinds <= {"integer", "float", "decimal", "boolean"}:
        scale = max(_FLOAT_SCALE if side.kind == "float" else decimal_scale(side.detail) or 0 for side in (left, right))
        return f"decimal of scale {scale}", f"DECIMAL(38, {scale})"
    return "string", "VARCHAR"


def union_column(name: str, columns: list[ColumnInfo]) -> ColumnInfo | None:
    """The type of one position of UNION ALL over all branches; None if they are incompatible."""
    first = columns[0]
    absent = next((c.absent for c in columns if c.absent is not None), None)
    if len({(c.kind, c.size) for c in columns}) == 1:
        return ColumnInfo(name, first.kind, first.detail, first.size, absent=absent)
    widest = _widest(columns)
    if widest is None:
        return None
    detail = " or ".join(dict.fromkeys(map(type_name, columns)))
    return ColumnInfo(name, widest, detail, absent=absent)
