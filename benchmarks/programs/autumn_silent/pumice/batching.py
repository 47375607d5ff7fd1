import torch


class TokenBudgetCurriculum:
    """Batches of similar length under a token budget; longer sequences join as epochs go by.

    Batch sizes differ between ranks and steps. All ranks build the same plan and take every
    world-th batch of it.
    """

    def __init__(self, lengths, budget, rank, world, seed, start_len, step_len):
        self.lengths, self.budget = lengths, budget
        self.rank, self.world, self.seed = rank, world, seed
        self.start_len, self.step_len = start_len, step_len

    def plan(self, epoch):
        limit = self.start_len + epoch * self.step_len
        gen = torch.Generator().manual_seed(self.seed + epoch)
        allowed = [i for i, n in enumerate(self.lengths) if n <= limit]
        jitter = torch.rand(len(allowed), generator=gen)
        order = sorted(range(len(allowed)), key=lambda k: self.lengths[allowed[k]] + 2 * jitter[k].item())
        batches, current, width = [], [], 0
        for k in order:
            i = allowed[k]
            width_new = max(width, self.lengths[i])
            if current and width_new * (len(current) + 1) > self.budget:
                batches.append(current)
                current, width_new = [], self.lengths[i]
            current.append(i)
            width = width_new
        batches.append(current)
        usable = len(batches) - len(batches) % self.world
        shuffled = torch.randperm(len(batches), generator=gen).tolist()[:usable]
        return [batches[j] for j in shuffled[self.rank::self.world]]
