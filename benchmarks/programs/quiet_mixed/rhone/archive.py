import torch


class Archive:
    def __init__(self, n, shape, seed):
        g = torch.Generator().manual_seed(seed)
        self.frames = torch.randn(n, *shape, generator=g)
        mix = torch.randn(shape[0] * shape[1] * shape[2], 3, generator=g)
        self.angles = torch.tanh(self.frames.flatten(1) @ mix / 8)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i], self.angles[i]
