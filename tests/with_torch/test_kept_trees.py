"""Trees of `state_dict()` as arrays and words and back: against themselves, whatever is in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.torch.kept.tree import arrays_and_words, from_arrays_and_words

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    made = values.to(draw(st.sampled_from(DTYPES)))
    return made.transpose(0, -1) if made.ndim > 1 else made


KEYS = st.one_of(st.integers(), st.text(max_size=4))
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4), tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, st.integers(1, 9), max_size=3).map(Counter),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(each, other[key]) for key, each in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    arrays, words = arrays_and_words(tree, "tree")
    back = from_arrays_and_words({name: array.copy() for name, array in arrays.items()}, words)
    assert same(tree, back)


def test_keys_with_dots_keep_their_own_tensors() -> None:
    tree = {"a.b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}}
    arrays, words = arrays_and_words(tree, "model")
    assert len(arrays) == 2
    assert same(tree, from_arrays_and_words(arrays, words))


def test_dense_tensors_are_views_and_numbers_of_numpy_stay_arrays() -> None:
    weight = torch.ones(3)
    arrays, words = arrays_and_words({"weight": weight, "rate": np.float64(0.5)}, "model")
    weight[0] = 7
    assert arrays["model.weight"].tolist() == [7, 1, 1]
    assert from_arrays_and_words(arrays, words)["rate"].tolist() == 0.5


@pytest.mark.parametrize("value", [object(), torch.ones(2).to_sparse(), torch.ones(2, device="meta")])
def test_what_is_none_of_these_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.inner\.1"):
        arrays_and_words({"inner": [0, value]}, "scheduler")


@pytest.mark.parametrize("words", ["{", '["tensor",["missing","float32",[1]]]', '["nothing",[]]', '["map",3]'])
def test_damaged_words_are_one_error(words: str) -> None:
    with pytest.raises(CheckpointError, match="damaged state of a script"):
        from_arrays_and_words({}, words)
