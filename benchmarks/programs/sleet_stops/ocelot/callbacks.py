import itertools
import logging

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger("export")


class BeamReport(Callback):
    """Decodes some sequences at the end of the first epoch; slow, and only on the main rank."""

    def __init__(self, seconds, at_epoch=1):
        self.seconds, self.at_epoch = seconds, at_epoch

    @rank_zero_only
    def _decode(self, module):
        import time
        end = time.monotonic() + self.seconds
        best = []
        with torch.no_grad():
            for start in itertools.cycle(range(module.vocab)):
                best.append(self._beam(module, start))
                if time.monotonic() > end:
                    break
        log.info("decoded %d sequences, best %.3f", len(best), max(best))

    @staticmethod
    def _beam(module, start, width=4, steps=8):
        beams = [([start], 0.0)]
        for _ in range(steps):
            ids = torch.tensor([b[0] for b in beams])
            lp = module(ids)[:, -1].log_softmax(-1)
            top = lp.topk(width, dim=-1)
            beams = [(b[0] + [int(t)], b[1] + float(p)) for b, ts, ps in zip(beams, top.indices, top.values)
                     for t, p in zip(ts, ps)]
            beams = sorted(beams, key=lambda b: -b[1])[:width]
        return beams[0][1]

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == self.at_epoch:
            self._decode(module)
            trainer.strategy.barrier("beam")
