import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class VectorQuantizerEMA(nn.Module):
    def __init__(self, num_embeddings=256, dim=32, commitment=0.25, decay=0.99, eps=1e-5):
        super().__init__()
        self.num_embeddings = num_embeddings
        self.dim = dim
        self.commitment = commitment
        self.decay = decay
        self.eps = eps
        codebook = 0.1 * torch.randn(num_embeddings, dim)
        self.register_buffer("codebook", codebook)
        self.register_buffer("cluster_size", torch.ones(num_embeddings))
        self.register_buffer("embed_sum", codebook.clone())

    def _update(self, flat, onehot):
        size = onehot.sum(0)
        total = onehot.t() @ flat
        dist.all_reduce(size)
        dist.all_reduce(total)
        self.cluster_size = self.decay * self.cluster_size + (1 - self.decay) * size
        self.embed_sum = self.decay * self.embed_sum + (1 - self.decay) * total
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + self.num_embeddings * self.eps) * n
        self.codebook = (self.embed_sum / size.unsqueeze(1)).detach()

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        dist2 = (flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codebook.t()
                 + self.codebook.pow(2).sum(1))
        index = dist2.argmin(1)
        onehot = F.one_hot(index, self.num_embeddings).type(flat.dtype)
        quantized = self.codebook[index].view(b, h, w, c).permute(0, 3, 1, 2)
        if self.training:
            self._update(flat, onehot)
        loss = self.commitment * F.mse_loss(z, quantized)
        quantized = z + (quantized - z).detach()
        usage = onehot.mean(0)
        perplexity = torch.exp(-(usage * (usage + 1e-10).log()).sum())
        return quantized, loss, perplexity
