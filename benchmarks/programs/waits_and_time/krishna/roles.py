import torch.distributed as dist


class Roles:
    """The lower two thirds of the ranks train the teacher."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.teacher_count = max(1, self.world * 2 // 3)
        self.teachers = dist.new_group(list(range(self.teacher_count)))
        self.is_teacher = self.rank < self.teacher_count

    @property
    def name(self):
        return "teacher" if self.is_teacher else "reader"
