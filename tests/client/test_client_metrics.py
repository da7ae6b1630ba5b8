"""Metrics of several chunks, reduced as the official client reduces them."""

from __future__ import annotations

import pytest

from tinsmith.client.metrics import combine, reduce_metrics
from tinsmith.types import ForwardBackwardOutput, TensorData


@pytest.mark.parametrize(
    ("key", "values", "weights", "expected"),
    [
        ("a:sum", [1, 2], [1, 3], {"a:sum": 3}),
        ("b:mean", [2, 4], [1, 3], {"b:mean": 3.5}),
        ("c:slack", [1, 5], [1, 3], {"c:slack": 1.0}),
        ("d:max", [1, 3], [1, 3], {"d:max": 3}),
        ("e:min", [1, 0], [1, 3], {"e:min": 0}),
        ("f:unique", [5, 6, 7], [1, 1, 1], {"f:unique": 5, "f:unique_1": 6, "f:unique_2": 7}),
        ("g:hash2", [2**63, 2**63 + 1], [1, 3], {"g:hash2": 1}),
        ("h:hash_unordered", [3, 1], [1, 3], {"h:hash_unordered": hash((1, 3))}),
        ("i:median", [3, 1], [1, 3], {}),
        ("plain", [3, 1], [1, 3], {"plain": 3}),
        ("x:y:sum", [3, 1], [1, 3], {"x:y:sum": 3}),
        ("b:mean", [2, 4], [0, 0], {"b:mean": 3.0}),
        ("c:slack", [2, 4], [0, 0], {"c:slack": 1.0}),
        ("b:mean", [2], [0], {"b:mean": 2.0}),
        ("c:slack", [2], [7], {"c:slack": 0.0}),
    ],
)
def test_reduction(key, values, weights, expected):
    assert reduce_metrics([{key: value} for value in values], weights) == expected


def test_the_first_chunk_s_keys_count_and_a_missing_one_is_dropped():
    chunks = [{"a:sum": 1, "only:sum": 2}, {"a:sum": 1, "late:sum": 2}]
    assert reduce_metrics(chunks, [1, 1]) == {"a:sum": 2}


def test_outputs_follow_on_each_other_and_the_first_chunk_names_the_type():
    def chunk(name, value):
        return ForwardBackwardOutput(name, [{"v": TensorData([value], "float32")}], {"loss:sum": value})

    combined = combine([chunk("one", 1.0), chunk("two", 2.0)])
    assert combined.loss_fn_output_type == "one"
    assert [output["v"].tolist() for output in combined.loss_fn_outputs] == [[1.0], [2.0]]
    assert combined.loss == 3.0
