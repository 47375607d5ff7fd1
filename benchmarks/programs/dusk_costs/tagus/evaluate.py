"""Retrieval evaluation (recall@k) of an embedding model."""
import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def embed(model, images, batch=32):
    return torch.cat([F.normalize(model(x), dim=1) for x in images.split(batch)])


@torch.no_grad()
def recall_at_k(queries, query_ids, gallery, gallery_ids, k=5):
    top = (queries @ gallery.t()).topk(k, dim=1).indices
    return (gallery_ids[top] == query_ids[:, None]).any(1).float().mean()


def evaluate(model, gallery, gallery_ids, queries, query_ids):
    """Recall@5 of the test split; every rank returns the same number."""
    model.eval()
    score = torch.zeros(1)
    if dist.get_rank() == 0:
        feats = embed(model, gallery)
        score[0] = recall_at_k(embed(model, queries), query_ids, feats, gallery_ids)
    dist.broadcast(score, src=0)
    model.train()
    return score.item()
