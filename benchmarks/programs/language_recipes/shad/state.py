"""Training state as one checkpointable object for torch.distributed.checkpoint."""
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)


class RankStream:
    """Endless rows for one rank; the position is a counter and a generator state."""

    def __init__(self, vocab: int, seq: int, batch: int, rank: int, world: int, seed: int):
        self.vocab, self.seq, self.batch = vocab, seq, batch
        self.strides = torch.arange(1, 9)[rank::world]
        self.gen = torch.Generator().manual_seed(seed * 10 + rank)
        self.served = 0

    def next(self):
        pick = self.strides[torch.randint(0, len(self.strides), (self.batch, 1), generator=self.gen)]
        start = torch.randint(0, self.vocab, (self.batch, 1), generator=self.gen)
        self.served += self.batch
        rows = (start + pick * torch.arange(self.seq + 1)) % self.vocab
        return rows[:, :-1], rows[:, 1:]


class TrainState:
    def __init__(self, model, opt, stream: RankStream):
        self.model, self.opt, self.stream = model, opt, stream
        self.step = 0

    def _own(self) -> str:
        return f"stream_rank{dist.get_rank()}"

    def state_dict(self):
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.opt),
            "step": torch.tensor(self.step),
            self._own(): {"gen": self.stream.gen.get_state().clone(), "served": torch.tensor(self.stream.served)},
        }

    def load_state_dict(self, sd):
        set_model_state_dict(self.model, sd["model"])
        set_optimizer_state_dict(self.model, self.opt, optim_state_dict=sd["optim"])
        self.step = int(sd["step"])
        own = sd[self._own()]
        self.stream.gen.set_state(own["gen"])
        self.stream.served = int(own["served"])
