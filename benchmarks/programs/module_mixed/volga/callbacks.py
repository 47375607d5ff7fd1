import time


class Callback:
    def on_fit_start(self, trainer):
        pass

    def on_step_end(self, trainer):
        pass

    def on_fit_end(self, trainer):
        pass


class Timer(Callback):
    """Ends the fit once `duration` seconds have gone by."""

    def __init__(self, duration, check_every=1):
        self.duration = duration
        self.check_every = check_every
        self._start = time.monotonic()

    def elapsed(self):
        return time.monotonic() - self._start

    def on_step_end(self, trainer):
        if trainer.global_step % self.check_every == 0 and self.elapsed() >= self.duration:
            trainer.should_stop = True


class LossLogger(Callback):
    def __init__(self, every=10):
        self.every = every

    def on_step_end(self, trainer):
        if trainer.global_step % self.every == 0 and trainer.is_global_zero:
            print(f"step {trainer.global_step} loss {trainer.last_loss:.4f}", flush=True)
