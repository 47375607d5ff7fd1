import torch
import torch.nn.functional as F


def masked_regression(pred, target, mask, eps=0.0):
    """Mean squared error over the pixels which carry a label."""
    weight = mask.float()
    return (weight * (pred - target) ** 2).sum() / (weight.sum() + eps)


def smoothness(pred, strength):
    return strength * (pred[:, 1:] - pred[:, :-1]).abs().mean()


def depth_loss(pred, target, mask, strength=1e-3):
    return masked_regression(pred, target, mask) + smoothness(pred, strength)


def usable(loss):
    return bool(torch.isfinite(loss))


def rel_error(pred, target, mask):
    if not mask.any():
        return torch.tensor(0.0)
    return F.l1_loss(pred[mask], target[mask]) / target[mask].abs().mean()
