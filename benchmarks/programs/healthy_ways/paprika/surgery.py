import torch


def flatten(grads, params):
    return torch.cat([torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1) for g, p in zip(grads, params)])


def project_conflicts(rows, gen):
    """Every task gradient drops its component against any other it conflicts with, in random order."""
    out, conflicts = rows.clone(), 0
    for i in range(len(rows)):
        for j in torch.randperm(len(rows), generator=gen).tolist():
            if j == i:
                continue
            dot = out[i] @ rows[j]
            if dot < 0:
                out[i] -= dot / (rows[j] @ rows[j] + 1e-12) * rows[j]
                conflicts += 1
    return out.sum(0), conflicts
