import pickle

import torch.distributed as dist


class Mailbox:
    """Small per-step notes between ranks over the rendezvous store."""

    def __init__(self, rank, world, prefix="mail"):
        self.store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        self.rank, self.world = rank, world

    def _key(self, topic, step, rank):
        return f"{topic}/{step:06d}/r{rank}"

    def post(self, topic, step, note):
        self.store.set(self._key(topic, step, self.rank), pickle.dumps(note))

    def read(self, topic, step, rank):
        key = self._key(topic, step, rank)
        self.store.wait([key])
        return pickle.loads(self.store.get(key))

    def drop(self, topic, step, rank):
        self.store.delete_key(self._key(topic, step, rank))
