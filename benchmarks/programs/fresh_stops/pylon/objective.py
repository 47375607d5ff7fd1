"""Block drafting: choose anchors inside the supervised span, predict the next BLOCK tokens from each of them."""
import torch
import torch.nn.functional as F

BLOCK = 8


class NoAnchorsError(ValueError):
    """No sample of the micro-batch has room for a whole block."""


def valid_anchors(mask, block=BLOCK):
    run = mask.unfold(1, block, 1).all(-1)
    rows, cols = run.nonzero(as_tuple=True)
    return rows, cols


def draft_loss(model, tokens, mask, block=BLOCK, limit=24):
    rows, cols = valid_anchors(mask, block)
    if rows.numel() == 0:
        raise NoAnchorsError(f"no anchor of {block} tokens in {tuple(mask.shape)}")
    rows, cols = rows[:limit], cols[:limit]
    context = torch.stack([tokens[rows, (cols - k).clamp(min=0)] for k in range(4, 0, -1)], 1)
    target = torch.stack([tokens[rows, cols + k] for k in range(block)], 1)
    logits = model(context)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())
