import json
import logging
import statistics
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("reward")
GOOD = set(range(4, 14))


def trim(tokens, eos=0):
    """Cut a sampled sequence before its end mark."""
    return tokens[: tokens.index(eos)] if eos in tokens else tokens


def score(tokens):
    body = trim(tokens)
    hits = statistics.fmean(1.0 if t in GOOD else 0.0 for t in body)
    variety = len(set(body)) / len(body)
    return hits + 0.3 * variety


class RewardDesk:
    """Takes samples of every rank off the store, gives scores back on it."""

    def __init__(self, store, workers=2):
        self.store = store
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="reward")
        self.open = 0

    def submit(self, step, rank):
        self.open += 1
        self.pool.submit(self._work, step, rank)

    def _work(self, step, rank):
        samples = json.loads(self.store.get(f"samples/{step}/{rank}"))
        self.store.set(f"scores/{step}/{rank}", json.dumps([score(s) for s in samples]))
        self.open -= 1

    def close(self):
        self.pool.shutdown()
        log.info("reward desk closed, %d open", self.open)
