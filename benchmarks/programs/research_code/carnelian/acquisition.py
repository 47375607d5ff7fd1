import torch


@torch.no_grad()
def bald_scores(net, pool, indices, samples, chunk=256):
    """Mutual information between prediction and weights by MC dropout."""
    net.train()
    out = []
    for s in range(0, len(indices), chunk):
        x = pool.x[indices[s:s + chunk]]
        p = torch.stack([net(x).softmax(-1) for _ in range(samples)])
        mean = p.mean(0)
        ent = lambda q: -(q * q.clamp(min=1e-9).log()).sum(-1)
        out.append(ent(mean) - ent(p).mean(0))
    return torch.cat(out)


def top_k(indices, scores, k):
    order = scores.topk(k).indices.tolist()
    return [indices[i] for i in order]
