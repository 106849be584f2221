"""Synthetic matrices to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.train import families


@pytest.mark.parametrize("name", families.names())
def test_a_family_draws_the_same_matrix_each_time_and_another_for_another_number(name):
    A, again, other = families.draw(name, 7), families.draw(name, 7), families.draw(name, 8)
    assert A.has_canonical_format and A.dtype == np.float64
    assert np.array_equal(A.indices, again.indices) and np.array_equal(A.indptr, again.indptr)
    assert A.shape != other.shape or not np.array_equal(A.indices, other.indices)
    assert families.LEAST // 4 <= A.nnz <= 2 * families.MOST
    assert A.indices.min() >= 0 and A.indices.max() < A.shape[1]


def test_some_families_are_kept_for_evaluation():
    assert set(families.HELD_OUT) < set(families.names())


def test_blocks_of_five_are_never_among_the_blocks_learned_from():
    for number in range(4):
        A = families.draw("block_five", number)
        assert A.shape[0] % 5 == 0 and (np.diff(A.indptr).reshape(-1, 5) == np.diff(A.indptr)[::5, None]).all()
