import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset


class PatchTransformer(nn.Module):
    def __init__(self, image=24, patch=6, dim=48, depth=2, heads=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.size(0), -1, -1), h], 1)
        pos = self.pos if h.size(1) == self.pos.size(1) else self.pos[:, :h.size(1)]
        return self.norm(self.blocks(h + pos)[:, 0])


class DINOHead(nn.Module):
    def __init__(self, dim, out=256, hidden=96, bottleneck=32):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, bottleneck))
        self.last = nn.Linear(bottleneck, out, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class MultiCropWrapper(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, crops):
        sizes = [c.size(-1) for c in crops]
        out = []
        for s in sorted(set(sizes), reverse=True):
            out.append(self.backbone(torch.cat([c for c in crops if c.size(-1) == s])))
        return self.head(torch.cat(out))


class MultiCropShapes(Dataset):
    """Blobs in one of 16 arrangements; two global and two local crops of each."""

    def __init__(self, n=1536, size=32, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(16, (n,), generator=g)
        proto = torch.randn(16, 3, size, size, generator=g)
        self.images = F.avg_pool2d(proto, 5, 1, 2)[self.label] * 2 + 0.3 * torch.randn(n, 3, size, size, generator=g)

    def __len__(self):
        return len(self.images)

    def crop(self, x, size):
        i, j = torch.randint(0, x.size(-1) - size + 1, (2,)).tolist()
        x = x[:, i:i + size, j:j + size]
        return x.flip(-1) if torch.rand(()) < 0.5 else x

    def __getitem__(self, i):
        x = self.images[i]
        return [self.crop(x, 24), self.crop(x, 24), self.crop(x, 12), self.crop(x, 12)], self.label[i]
