"""Threads that run no Python, out of pystack's text."""

from __future__ import annotations

from distdoctor.attach import pystack
from distdoctor.recording.stacks import ProcessStacks, RankStacks, Stacks
from distdoctor.report.stack_tree import cpp_threads

TEXT = """
Traceback for thread 11388 (python3) [] (most recent call last):
    (C) File "Python/pythonrun.c", line 1710, in run_eval_code_obj (inlined) (/usr/lib/libpython3.11.so.1.0)
    (Python) File "/job/native.py", line 6, in <module>
        dist.all_reduce(torch.ones(16))
    (C) File "???", line 0, in c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) (/torch/lib/libtorch_cpu.so)

Traceback for thread 11414 (pt_gloo_runloop) [] (most recent call last):
    (C) File "./nptl/pthread_create.c", line 442, in start_thread (/usr/lib/x86_64-linux-gnu/libc.so.6)
    (C) File "/usr/lib/libstdc++.so.6.0.30", line 0, in ??? (/usr/lib/libstdc++.so.6.0.30)
    (C) File "???", line 0, in c10d::ProcessGroupGloo::runLoop(int) (/torch/lib/libtorch_cpu.so)
    (C) File "???", line 0, in gloo::(anonymous namespace)::allreduce(gloo::Options const&) (/torch/lib/libtorch_cpu.so)
    (C) File "./nptl/pthread_cond_wait.c", line 643, in pthread_cond_timedwait@@GLIBC_2.3.2 (/usr/lib/libc.so.6)

Traceback for thread 11415 (pt_gloo_runloop) [] (most recent call last):
    (C) File "???", line 0, in c10d::ProcessGroupGloo::runLoop(int) (/torch/lib/libtorch_cpu.so)
    (C) File "./nptl/pthread_cond_wait.c", line 618, in pthread_cond_wait@@GLIBC_2.3.2 (/usr/lib/libc.so.6)
"""


def test_threads_with_python_frames_are_left_to_py_spy() -> None:
    threads = list(pystack.parse(TEXT))

    assert [(one.os_id, one.name) for one in threads] == [(11414, "pt_gloo_runloop"), (11415, "pt_gloo_runloop")]
    assert [frame.function for frame in threads[0].frames] == [
        "pthread_cond_timedwait", "gloo::allreduce", "c10d::ProcessGroupGloo::runLoop", "start_thread",
    ]  # fmt: skip
    assert all(frame.is_native and not frame.is_users for one in threads for frame in one.frames)


def test_names_lose_their_arguments_and_templates() -> None:
    assert pystack.short_name("std::vector<at::Tensor, std::allocator<at::Tensor> >::push_back(at::Tensor&&)") == (
        "std::vector::push_back"
    )
    assert pystack.short_name("Foo::operator()(int) const (inlined)") == "Foo::operator() const"


def test_threads_of_all_ranks_that_do_the_same_stand_on_one_line() -> None:
    threads = tuple(pystack.parse(TEXT))
    ranks = {
        rank: RankStacks(rank, ProcessStacks(100 + rank, cpp_threads=threads if rank else (*threads, threads[1])))
        for rank in range(3)
    }

    assert cpp_threads(Stacks(ranks)) == [
        "  ranks 0-2  pt_gloo_runloop  c10d::ProcessGroupGloo::runLoop",
        "  ranks 0-2  pt_gloo_runloop  c10d::ProcessGroupGloo::runLoop > gloo::allreduce",
    ]


def test_garbage_holds_no_threads() -> None:
    assert list(pystack.parse("pystack: error: no such process\n")) == []
    assert list(pystack.parse("")) == []
