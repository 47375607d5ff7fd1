import torch
import torch.nn as nn


def blocks(dim, depth, heads):
    layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class MaskedAutoencoder(nn.Module):
    def __init__(self, size=32, patch=4, dim=96, dec_dim=64, mask_ratio=0.75):
        super().__init__()
        self.patch, self.mask_ratio = patch, mask_ratio
        self.n = (size // patch) ** 2
        pix = 3 * patch * patch
        self.embed = nn.Linear(pix, dim)
        self.pos = nn.Parameter(torch.randn(1, self.n, dim) * 0.02)
        self.encoder = blocks(dim, 2, 4)
        self.bridge = nn.Linear(dim, dec_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dec_dim))
        self.dec_pos = nn.Parameter(torch.randn(1, self.n, dec_dim) * 0.02)
        self.decoder = blocks(dec_dim, 1, 4)
        self.head = nn.Linear(dec_dim, pix)

    def patchify(self, x):
        b, c, h, w = x.shape
        p = self.patch
        return x.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, self.n, -1)

    def forward(self, imgs):
        target = self.patchify(imgs)
        b, n = target.shape[:2]
        keep = int(n * (1 - self.mask_ratio))
        order = torch.rand(b, n).argsort(1)
        restore = order.argsort(1)
        tokens = self.embed(target) + self.pos
        visible = tokens.gather(1, order[:, :keep, None].expand(-1, -1, tokens.size(-1)))
        z = self.bridge(self.encoder(visible))
        full = torch.cat([z, self.mask_token.expand(b, n - keep, -1)], 1)
        full = full.gather(1, restore[:, :, None].expand(-1, -1, full.size(-1)))
        pred = self.head(self.decoder(full + self.dec_pos))
        mask = (restore >= keep).float()
        return (((pred - target) ** 2).mean(-1) * mask).sum() / mask.sum()
