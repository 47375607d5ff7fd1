"""A 2 x 2 grid of ranks: rows share the experts, columns share the data."""
import contextlib

import torch.distributed as dist


class Grid:
    def __init__(self, rows, cols):
        self.rank = dist.get_rank()
        if rows * cols != dist.get_world_size():
            raise ValueError("the grid does not fit the world size")
        self.row, self.col = divmod(self.rank, cols)
        self.row_groups = [dist.new_group([r * cols + c for c in range(cols)]) for r in range(rows)]
        self.col_groups = [dist.new_group([r * cols + c for r in range(rows)]) for c in range(cols)]
        # the heads of the rows exchange what only they keep
        self.head_ranks = [r * cols for r in range(rows)]
        self.heads = dist.new_group(self.head_ranks)

    @property
    def row_group(self):
        return self.row_groups[self.row]

    @property
    def col_group(self):
        return self.col_groups[self.col]

    @property
    def is_head(self):
        return self.col == 0

    @contextlib.contextmanager
    def head_first(self):
        """The head of each row runs the block before the rest of its row."""
        if not self.is_head:
            dist.barrier(group=self.row_group)
        try:
            yield
        finally:
            if self.is_head:
                dist.barrier(group=self.row_group)
