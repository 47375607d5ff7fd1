import logging

import torch.distributed as dist

log = logging.getLogger("det.evaluator")


class BoxEvaluator:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self._predictions = []
        self._truth = 0

    def process(self, first_id, targets, outputs):
        for k, (t, dets) in enumerate(zip(targets, outputs)):
            self._truth += int(t.sum())
            for score, box, cell in dets:
                self._predictions.append({"image": first_id + k, "score": score, "box": box,
                                          "hit": bool(t[cell] > 0)})

    def evaluate(self):
        """Precision and recall over all ranks, on rank 0; an empty dict elsewhere."""
        if len(self._predictions) == 0:
            log.warning("did not receive valid predictions")
            return {}
        parts = [None] * self.world if self.rank == 0 else None
        dist.gather_object((self._predictions, self._truth), parts, dst=0)
        if self.rank != 0:
            return {}
        preds = [p for part, _ in parts for p in part]
        truth = sum(n for _, n in parts)
        hits = sum(p["hit"] for p in preds)
        return {"precision": round(hits / max(1, len(preds)), 4), "recall": round(hits / max(1, truth), 4),
                "detections": len(preds)}
