"""Large batches are cut into requests within the service's limits, in order."""

from __future__ import annotations

import numpy as np
import pytest

from tinsmith.client.chunking import split
from tinsmith.client.replies import OLD_SERVER, ServerConfig
from tinsmith.types import Datum, ImageChunk, ModelInput, TensorData


def datum(tokens: int, numbers: int = 0) -> Datum:
    return Datum(ModelInput.from_ints([1] * tokens), {"weights": np.zeros(numbers, np.float32)})


def sizes(data, **limits):
    return [len(chunk) for chunk in split(data, ServerConfig(**limits))]


def test_by_count():
    assert sizes([datum(1)] * 7, fwdbwd_max_chunk_len=3) == [3, 3, 1]


def test_by_bytes_and_the_exact_fit_still_fits():
    data = [datum(10)] * 5  # 40 bytes each
    assert sizes(data, fwdbwd_max_chunk_bytes_count=80) == [2, 2, 1]
    assert sizes(data, fwdbwd_max_chunk_bytes_count=79) == [1] * 5


def test_one_that_is_too_large_goes_alone():
    data = [datum(1), datum(1000), datum(1)]
    assert sizes(data, fwdbwd_max_chunk_bytes_count=100) == [1, 1, 1]


def test_order_is_kept():
    data = [datum(n) for n in range(1, 20)]
    chunks = split(data, ServerConfig(fwdbwd_max_chunk_len=4))
    assert [d for chunk in chunks for d in chunk] == data


def test_defaults_are_those_of_the_newest_service():
    assert sizes([datum(1)] * 1025) == [1024, 1]


def test_the_old_dialect_counts_numbers():
    assert [len(chunk) for chunk in split([datum(1)] * 129, OLD_SERVER)] == [128, 1]
    assert [len(chunk) for chunk in split([datum(125_000, 125_000)] * 3, OLD_SERVER)] == [2, 1]


def test_images_and_sparse_tensors_count_their_bytes():
    image = Datum(ModelInput([ImageChunk(data=b"x" * 60, format="png")]), {})
    assert sizes([image] * 2, fwdbwd_max_chunk_bytes_count=100) == [1, 1]
    dense = TensorData(np.eye(4), "float32", [4, 4])
    with_tensor = Datum(ModelInput.from_ints([1]), {"weights": dense.to_sparse()})
    assert sizes([with_tensor] * 2, fwdbwd_max_chunk_bytes_count=2 * (4 + 4 * 4 + 8 * 9)) == [2]


def test_no_data_is_refused():
    with pytest.raises(ValueError, match="data"):
        split([], ServerConfig())
