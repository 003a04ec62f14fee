"""The join of a conjunctive query: which joins stay LEFT, where filters go, in which order tables are joined."""

from __future__ import annotations

import pytest

from tablepuppet.sql import parse
from tablepuppet.sql.joins import JoinTree, join_tree
from tablepuppet.sql.ucq import Scope


def tree(sql: str) -> JoinTree:
    query = parse(f"SELECT a.x FROM {sql}")
    (branch,) = query.branches
    return join_tree(Scope(query.text, branch.sources), branch.sources, branch.where)


def order(sql: str) -> list[tuple[str, int]]:
    return [(join.kind, join.relation) for join in tree(sql).joins]


def filters(sql: str) -> list[list[str]]:
    return [[predicate.sql() for predicate in own] for own in tree(sql).filters]


def test_tables_are_joined_in_the_order_of_the_text_where_keys_allow() -> None:
    assert order("a, b, c WHERE a.x = b.x AND b.y = c.y") == [("inner", 1), ("inner", 2)]
    assert order("a, b, c WHERE a.x = c.x AND b.y = c.y") == [("inner", 2), ("inner", 1)]


def test_a_left_join_waits_for_all_tables_that_its_keys_need() -> None:
    text = "a CROSS JOIN b LEFT JOIN c ON c.x = a.x AND c.y = b.y JOIN d ON d.x = a.x WHERE d.y = b.y"
    assert order(text) == [("inner", 3), ("inner", 1), ("left", 2)]


def test_every_key_of_an_inner_join_is_used_once_and_points_back() -> None:
    joined = tree("a, b, c WHERE a.x = c.x AND b.y = c.y AND a.z = b.z")
    assert sum(len(join.on) for join in joined.joins) == 3
    placed = [0]
    for join in joined.joins:
        assert all(key.right == join.relation and key.left in placed for key in join.on)
        placed.append(join.relation)


def test_conditions_on_one_table_become_its_filter() -> None:
    text = "a JOIN b ON a.x = b.x AND b.y > 1 AND a.z < 2 WHERE a.w = a.v AND b.u IN (1, 2)"
    assert filters(text) == [["a.z < 2", "a.w = a.v"], ["b.y > 1", "b.u IN (1, 2)"]]


def test_a_condition_in_the_on_of_a_left_join_filters_the_joined_table_only() -> None:
    text = "a LEFT JOIN b ON a.x = b.x AND coalesce(b.y, 1) > 0 WHERE a.y IS NULL"
    assert filters(text) == [["a.y IS NULL"], ["COALESCE(b.y, 1) > 0"]]
    assert tree(text).nullable == {1}


@pytest.mark.parametrize(
    ("where", "nullable"),
    [
        ("a.x > 0", {1, 2}),
        ("b.x > 0", {2}),
        ("c.x > 0", set()),  # c needs b, whose missing rows then cannot pass either
        ("c.z = a.z", set()),
        ("b.z = a.z", {2}),
    ],
)
def test_a_left_join_turns_inner_when_no_missing_row_can_pass(where: str, nullable: set[int]) -> None:
    assert tree(f"a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON b.y = c.y WHERE {where}").nullable == nullable


def test_an_inner_join_on_the_nullable_side_turns_it_inner_too() -> None:
    assert tree("a LEFT JOIN b ON a.x = b.x JOIN c ON c.y = b.y").nullable == set()


def test_a_condition_that_always_holds_is_dropped() -> None:
    assert filters("a JOIN b ON a.x = b.x AND TRUE WHERE 1 = 1") == [[], []]
