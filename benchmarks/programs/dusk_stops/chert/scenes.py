import torch


class SceneDataset:
    """64x64 scenes with up to three bright squares; `tail_empty` scenes at the end show background only."""

    def __init__(self, n, seed, tail_empty=0):
        g = torch.Generator().manual_seed(seed)
        self.img = 0.3 * torch.randn(n, 1, 64, 64, generator=g)
        self.obj = torch.zeros(n, 8, 8)
        self.box = torch.zeros(n, 4, 8, 8)
        for i in range(n - tail_empty):
            for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
                r, c = torch.randint(0, 8, (2,), generator=g).tolist()
                s = int(torch.randint(4, 8, (1,), generator=g))
                self.img[i, 0, r * 8:r * 8 + s, c * 8:c * 8 + s] += 2.0
                self.obj[i, r, c] = 1
                self.box[i, :, r, c] = torch.tensor([r * 8, c * 8, s, s]) / 64

    def __len__(self):
        return len(self.img)

    def pick(self, idx):
        return self.img[idx], self.obj[idx], self.box[idx]

    def slice(self, a, b):
        return self.img[a:b], self.obj[a:b], self.box[a:b]
