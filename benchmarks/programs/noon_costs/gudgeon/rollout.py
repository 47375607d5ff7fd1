from dataclasses import dataclass, field

import torch


@dataclass
class Turn:
    role: str
    tokens: list
    tags: dict = field(default_factory=dict)


@dataclass
class Prompt:
    uid: str
    turns: list
    target: int


def load_prompts(n, vocab, seed=0):
    g = torch.Generator().manual_seed(seed)
    prompts = []
    for i in range(n):
        ids = torch.randint(0, vocab, (3, 12), generator=g).tolist()
        turns = [Turn(role, t, {"source": f"set-{i % 13}", "turn": k, "span": [k, len(t)]})
                 for k, (role, t) in enumerate(zip(("system", "user", "user"), ids))]
        prompts.append(Prompt(f"{i:06d}", turns, sum(ids[1]) % vocab))
    return prompts


class PromptLoader:
    def __init__(self, prompts, batch, rank, world, seed=0):
        self.prompts, self.batch, self.rank, self.world, self.seed = prompts, batch, rank, world, seed

    def __iter__(self):
        epoch = 0
        while True:
            g = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(len(self.prompts), generator=g).tolist()[self.rank::self.world]
            for k in range(0, len(order) - self.batch + 1, self.batch):
                rows = [self.prompts[i] for i in order[k:k + self.batch]]
                ids = torch.tensor([[t for turn in p.turns for t in turn.tokens] for p in rows])
                yield ids, torch.tensor([p.target for p in rows])
            epoch += 1
