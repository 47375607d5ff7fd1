import time


class Allowance:
    """So many seconds of training, as the queue of the cluster grants them."""

    def __init__(self, seconds, reserve=0.0):
        self.began = time.monotonic()
        self.seconds, self.reserve = seconds, reserve

    def left(self):
        return self.seconds - self.reserve - (time.monotonic() - self.began)

    def exhausted(self):
        return self.left() <= 0
