import torch


class ReplayBuffer:
    """Ring buffer; slots are allocated lazily in chunks until the capacity is reached."""

    def __init__(self, capacity, seed, chunk=512):
        self.capacity = capacity
        self.chunk = chunk
        self.chunks = []
        self.pos = 0
        self.size = 0
        self.gen = torch.Generator().manual_seed(seed)

    def _slot(self, i):
        c = i // self.chunk
        while len(self.chunks) <= c:
            self.chunks.append({
                "obs": torch.zeros(self.chunk, 4, 24, 24),
                "next": torch.zeros(self.chunk, 4, 24, 24),
                "action": torch.zeros(self.chunk, dtype=torch.long),
                "reward": torch.zeros(self.chunk),
                "done": torch.zeros(self.chunk),
            })
        return self.chunks[c], i % self.chunk

    def push(self, obs, action, reward, nxt, done):
        for k in range(len(obs)):
            chunk, j = self._slot(self.pos)
            chunk["obs"][j] = obs[k]
            chunk["next"][j] = nxt[k]
            chunk["action"][j] = action[k]
            chunk["reward"][j] = reward[k]
            chunk["done"][j] = done[k]
            self.pos = (self.pos + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def sample(self, n):
        index = torch.randint(0, self.size, (n,), generator=self.gen).tolist()
        rows = [self._slot(i) for i in index]
        return {k: torch.stack([c[k][j] for c, j in rows]) for k in ("obs", "action", "reward", "next", "done")}
