"""The sizes of chunks of work: one place for all, each named for the quantity that it bounds.

Sums are added up chunk by chunk: another size may change the last bits of a result. Imports nothing of ours.
"""

from __future__ import annotations

# So many that what NumPy makes on the way stays in the cache.
ROWS_IN_CACHE = 1 << 16  # vectors over rows
ROWS_PER_LOOKUP = 1 << 15  # rows whose values are looked up, or follow from others
JOINED_ROWS_PER_PIECE = 1 << 18  # joined rows that a join makes
NUMBERS_IN_CACHE = 1 << 17  # directions of some rows
NUMBERS_PER_WEIGHTED_COPY = 1 << 19  # diag(w) A
MATRICES_IN_CACHE = 1 << 12  # K × K matrices of als

# So many that memory does not grow with the tables.
JOINED_ROWS_PER_SHARD = 1 << 16  # a step of a walk
ROWS_PER_ARROW_BATCH = 1 << 18
ROWS_PER_NETWORK_PASS = 1 << 15
NUMBERS_PER_ROW_GRADIENTS = 1 << 22  # a gradient for each row, each of them clipped
NUMBERS_PER_TRIANGLES = 1 << 20  # second moments of a shard's rows
VALUES_PER_SORTED_PIECE = 1 << 17  # values in ascending order, for curves
VALUES_PER_CLUSTER_SORT = 1 << 20  # the same of a cluster
