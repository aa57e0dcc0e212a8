"""Which items belong together: the pairs of distinct items in lists, for a whole packet at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.demo.tpcx_bb.tables import Ints

PAIRS = pa.schema(
    [
        pa.field("item_a", pa.int64()),
        pa.field("item_b", pa.int64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def pairs(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
    """For ``stream.map_packets``: rows of (items, at) become rows of (item_a, item_b, at), a < b.

    Every pair of different items of a list is one result, caused by the list's row, by (a, b).
    """
    lists = batch.column("items")
    group, item = _distinct(lists.value_parent_indices().to_numpy(), lists.flatten())
    n = len(item)
    size = np.bincount(group, minlength=batch.num_rows) if n else np.zeros(batch.num_rows, dtype=np.int64)
    last = np.cumsum(size) - 1
    partners = last[group] - np.arange(n)
    first = np.repeat(np.arange(n), partners)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    causes: Ints = group[first]
    columns = [pa.array(item[first]), pa.array(item[second]), batch.column("at").take(pa.array(causes))]
    return pa.record_batch(columns, schema=PAIRS), causes


def _distinct(group: Ints, values: pa.Array) -> tuple[Ints, Ints]:
    """Groups and their different items, ascending; null is no item."""
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        group, values = group[valid], values.drop_null()
    item = values.to_numpy()
    if not len(item):
        return item, item
    low, span = int(item.min()), int(item.max()) - int(item.min()) + 1
    # Both in one word, which is sorted much faster than rows: item numbers leave room for the group.
    both = np.sort(group.astype(np.int64) * span + (item - low))
    new = np.ones(len(both), dtype=bool)
    new[1:] = both[1:] != both[:-1]
    group, item = np.divmod(both[new], span)
    return group, item + low
