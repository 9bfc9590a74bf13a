"""Copies as the records of a file device."""

from __future__ import annotations

import numpy as np
import pytest

from ebbmq.holding.columns import Batch, Columns
from ebbmq.holding.file_format import puts_of

STORE, KIB = b"s" * 16, 1_024


@pytest.mark.parametrize("is_run", [True, False])
def test_what_is_moved_is_cut_into_records_of_a_quarter_of_a_mebibyte_each_with_its_copies(is_run):
    count = 1_000
    payloads = [b"%05d" % number * 200 for number in range(count)]
    seqs = np.arange(50, 50 + count)
    columns = Columns(np.full(count, 7), seqs, seqs * 3, payloads, None, is_run)
    [whole] = puts_of(Batch(STORE, [columns]))
    puts = puts_of(Batch(STORE, [columns], read_back=True))
    assert len(puts) > 1
    assert all(put.nbytes() <= 256 * KIB + 64 for put in puts)
    assert [key for put in puts for key in put.names()] == whole.names()
    assert [each for put in puts for each in put.payloads] == payloads
    assert np.concatenate([put.crcs for put in puts]).tolist() == (seqs * 3).tolist()
    assert {put.is_run for put in [*puts, whole]} == {is_run}
