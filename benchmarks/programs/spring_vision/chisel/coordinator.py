"""Trials of a population talk through the job's key-value store only.

No collectives between trials: they may have different shapes and speeds.
"""
import io
import json
import time

import torch


class Population:
    def __init__(self, store, rank, size, poll=1.5):
        self.store, self.rank, self.size, self.poll = store, rank, size, poll
        self.meetings = 0

    def meet(self):
        """Wait until every trial has come to the same point."""
        self.meetings += 1
        expected = self.meetings * self.size
        arrived = self.store.add("population/arrived", 1)
        while arrived != expected:
            time.sleep(self.poll)
            arrived = self.store.add("population/arrived", 0)

    def report(self, round_id, record):
        self.store.set(f"population/{round_id}/{self.rank}", json.dumps(record))

    def ranking(self, round_id):
        rows = [json.loads(self.store.get(f"population/{round_id}/{r}")) for r in range(self.size)]
        return sorted(rows, key=lambda row: row["val"])

    def put_state(self, round_id, state):
        buf = io.BytesIO()
        torch.save(state, buf)
        self.store.set(f"weights/{round_id}/{self.rank}", buf.getvalue())

    def get_state(self, round_id, owner):
        return torch.load(io.BytesIO(self.store.get(f"weights/{round_id}/{owner}")), weights_only=True)

    def forget(self, round_id):
        self.store.delete_key(f"population/{round_id}/{self.rank}")
        self.store.delete_key(f"weights/{round_id}/{self.rank}")
