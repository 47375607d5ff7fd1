import argparse
import math

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_fn
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class TextTower(nn.Module):
    def __init__(self, vocab=60, width=32, out=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(width, out, bias=False)

    def forward(self, ids):
        return self.proj(self.enc(self.tok(ids)).mean(1))


class VisionTower(nn.Module):
    def __init__(self, out=16):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.Flatten(), nn.Linear(16 * 16, 64), nn.GELU())
        self.proj = nn.Linear(64, out, bias=False)

    def forward(self, x):
        return self.proj(self.net(x))


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual, self.text = VisionTower(), TextTower()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, ids):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.text(ids), dim=-1), self.logit_scale.exp()


def gather_features(features):
    world = dist.get_world_size()
    gathered = [torch.zeros_like(features) for _ in range(world)]
    dist.all_gather(gathered, features)
    return torch.cat(gathered)


class ClipLoss(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def forward(self, img, txt, scale):
        all_img, all_txt = gather_features(img), gather_features(txt)
        labels = torch.arange(len(img)) + self.rank * len(img)
        per_image = scale * img @ all_txt.t()
        per_text = scale * txt @ all_img.t()
        return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


def pairs(gen, n):
    ids = torch.randint(0, 60, (n, 6), generator=gen)
    image = torch.randn(n, 3, 16, 16, generator=gen) * 0.5
    image[:, 0] += (ids[:, :1].float() / 30 - 1).unsqueeze(-1)
    image[:, 1] += (ids.float().mean(1).view(-1, 1, 1) / 30 - 1)
    return image, ids


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    model = DDP(DualEncoder())
    crit = ClipLoss(rank)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        image, ids = pairs(gen, args.batch_size)
        loss = crit(*model(image, ids))
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            model.module.logit_scale.clamp_(0, math.log(100))
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
