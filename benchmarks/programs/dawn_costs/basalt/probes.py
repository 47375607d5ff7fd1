"""Forward-hook probes used to watch the scale of the activations."""
from collections import defaultdict


class ActivationProbe:
    def __init__(self, model, kinds):
        self.acts = defaultdict(list)
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                self.handles.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def record(module, inputs, output):
            self.acts[name].append(output.detach())
        return record

    def summary(self):
        return {name: outs[-1].std().item() for name, outs in self.acts.items()}

    def remove(self):
        for handle in self.handles:
            handle.remove()
