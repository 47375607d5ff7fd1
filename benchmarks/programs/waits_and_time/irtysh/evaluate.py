import time

import torch


class BeamEvaluator:
    """Beam search one row at a time, slow but exact."""

    def __init__(self, vocab, beam):
        self.vocab, self.beam = vocab, beam

    def decode(self, model, src, length):
        mem, h = model.encode(torch.tensor([src]))
        beams = [(0.0, [0], h)]
        for _ in range(length):
            grown = []
            for score, ids, state in beams:
                logp, nxt = model.step(torch.tensor([ids[-1]]), state, mem)
                top = logp[0].topk(self.beam)
                grown += [(score + v, ids + [i], nxt) for v, i in zip(top.values.tolist(), top.indices.tolist())]
            grown.sort(key=lambda b: b[0], reverse=True)
            beams = grown[: self.beam]
        return beams[0][1]

    @torch.no_grad()
    def exact_match(self, model, rows):
        began = time.perf_counter()
        good = 0
        for src, dst in rows:
            good += self.decode(model, src, len(dst) - 1) == dst
        return good / len(rows), time.perf_counter() - began
