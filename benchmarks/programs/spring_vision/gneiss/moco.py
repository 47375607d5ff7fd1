import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim=64, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class MoCo(nn.Module):
    def __init__(self, comm, dim=64, queue=1024, m=0.99, temperature=0.2):
        super().__init__()
        self.comm, self.m, self.t = comm, m, temperature
        self.encoder_q = Encoder(dim)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, dim), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def keys(self, images):
        """Batch shuffling inside the node, so that BN of the two encoders sees other images."""
        c, n = self.comm, images.size(0)
        gathered = c.all_gather_local(images)
        perm = torch.randperm(gathered.size(0))
        dist.broadcast(perm, src=c.node_ranks[0], group=c.local_group)
        mine = perm.view(c.per_node, n)[c.local_rank]
        k = self.encoder_k(gathered[mine])
        k = c.all_gather_local(k)
        inverse = torch.argsort(perm).view(c.per_node, n)[c.local_rank]
        return k[inverse]

    @torch.no_grad()
    def enqueue(self, k):
        k = self.comm.all_gather_world(k)
        p = int(self.ptr)
        self.queue[p:p + k.size(0)] = k
        self.ptr[0] = (p + k.size(0)) % self.queue.size(0)

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        self.update_key_encoder()
        k = self.keys(im_k)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().t()
        logits = torch.cat([pos, neg], 1) / self.t
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(q.size(0), dtype=torch.long)), logits
