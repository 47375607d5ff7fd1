import torch

SIZES = (640, 330, 470)


def shard(rank, dim=20):
    """The hospitals bring what they have; nothing is padded or thrown away."""
    w = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(SIZES[rank], dim, generator=g)
    y = (x @ w + 0.5 * torch.randn(SIZES[rank], generator=g) > 0).float()
    return x, y
