"""Equal bits give equal digests, and any change of bits another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from distdoctor.probe.tensors.digests import Digester, Digests, Unreadable, digest, is_readable, norms_of

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]
SIZES = [0, 1, 2, 3, 7, 8, 9, 1020, 1021, 1023, 8168, 8192, 40_000, 100_003]


def some(dtype: torch.dtype, size: int, seed: int = 0) -> Tensor:
    """Arbitrary bits (0 and 1 only for bool)."""
    generator = torch.Generator().manual_seed(seed)
    width = torch.empty(0, dtype=dtype).element_size()
    top = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, top, (size * width,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_equal_bits_have_equal_digests_wherever_they_lie(dtype: torch.dtype, size: int) -> None:
    tensor = some(dtype, size)
    elsewhere = torch.empty(size + 1, dtype=dtype)[1:]  # another alignment
    elsewhere.copy_(tensor)
    strided = torch.empty(size, 2, dtype=dtype)[:, 1]
    strided.copy_(tensor)

    assert digest(tensor) == digest(tensor.clone()) == digest(elsewhere) == digest(strided)
    assert 0 < digest(tensor) < 1 << 64


@given(st.sampled_from(DTYPES), st.sampled_from(SIZES[1:]), st.data())
def test_one_flipped_bit_changes_the_digest_and_moves_the_sum_by_a_power_of_two(
    dtype: torch.dtype, size: int, data: st.DataObject
) -> None:
    tensor = some(dtype, size, seed=data.draw(st.integers(0, 5)))
    other = tensor.clone()
    raw = other.view(torch.uint8)
    byte, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 0 if dtype is torch.bool else 7))
    raw[byte] ^= 1 << bit

    assert digest(tensor) != digest(other)
    digester = Digester([tensor.nbytes], tensor.device)
    one, two = (int(digester.digests([t])[1, 0]) for t in (tensor, other))
    apart = min((one - two) % (1 << 64), (two - one) % (1 << 64))
    assert apart == 1 << (byte % 8 * 8 + bit) or (byte % 8, bit) == (7, 7)


@given(st.sampled_from(SIZES[2:]), st.data())
def test_two_swapped_elements_change_the_digest(size: int, data: st.DataObject) -> None:
    tensor = some(torch.float32, size)
    i, j = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    other = tensor.clone()
    other[i], other[j] = tensor[j], tensor[i]

    same = bool((tensor.view(torch.int32) == other.view(torch.int32)).all())
    assert (digest(tensor) == digest(other)) is same


@pytest.mark.parametrize("size", [1, 2, 500, 8168, 100_003, 1021 * 4096 * 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changes_that_xor_and_plain_sums_miss_are_seen(dtype: torch.dtype, size: int) -> None:
    tensor = torch.linspace(1, 2, size, dtype=dtype)
    ones = torch.ones(size, dtype=dtype)

    seen = {digest(t) for t in (tensor, -tensor, tensor * 2, tensor / 2, tensor.flip(0), tensor.roll(1))}
    assert len(seen) == {1: 4, 2: 5}.get(size, 6)
    assert len({digest(t) for t in (ones, ones / 2, ones * 2, -ones, torch.zeros_like(ones))}) == 5


def test_swapping_x_and_minus_x_is_seen_wherever_they_are() -> None:
    # Their words differ by 2^63 or 2^31: one round of mixing would miss half of these.
    for size in (64, 100_000):
        tensor = torch.randn(size, generator=torch.Generator().manual_seed(0))
        for place in range(0, 60, 3):
            one, other = tensor.clone(), tensor.clone()
            one[place], one[place + 2] = 1.5, -1.5
            other[place], other[place + 2] = -1.5, 1.5
            assert digest(one) != digest(other)


def test_bits_count_and_not_values() -> None:
    quiet = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    payload = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)  # the smallest denormal

    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(quiet) != digest(payload)
    assert digest(tiny) != digest(torch.tensor([0.0]))


def test_shape_and_dtype_are_a_part_of_the_digest() -> None:
    zeros = torch.zeros(6)

    assert len({digest(t) for t in (zeros, zeros.view(2, 3), zeros.view(torch.int32), zeros[:5], zeros.half())}) == 5
    assert digest(torch.empty(0)) != digest(torch.empty(0, 3))


def test_conjugated_and_negated_views_are_read_as_what_they_stand_for() -> None:
    tensor = torch.randn(10, dtype=torch.complex64)

    assert digest(tensor.conj()) == digest(tensor.conj().resolve_conj())
    assert digest(tensor.conj()) != digest(tensor)
    assert digest(tensor.conj().imag) == digest(tensor.conj().imag.resolve_neg())


def test_what_cannot_be_read_is_said_to_be_so() -> None:
    sparse, meta = torch.eye(3).to_sparse(), torch.empty(3, device="meta")

    assert not is_readable(sparse)
    assert not is_readable(meta)
    with pytest.raises(Unreadable):
        digest(sparse)
    reading, unreadable = Digests().start([torch.ones(3), sparse, None])
    assert unreadable == [1]
    assert reading.values()[1:] == [0, 0]


def test_many_tensors_at_once_have_the_digests_that_they_have_alone() -> None:
    tensors = [some(dtype, size) for dtype in DTYPES for size in SIZES]
    alone = [Digester([t.nbytes], t.device).digests([t])[0, 0].item() for t in tensors]

    digests = Digests()
    for _ in range(2):  # the second time with buffers that have been used
        assert digests.start(tensors)[0].values() == alone


def test_a_digester_keeps_no_tensor_alive_and_touches_no_random_state() -> None:
    import weakref

    before = torch.get_rng_state()
    tensor = torch.ones(100_000)
    gone = weakref.ref(tensor)
    digests = Digests()
    reading, _ = digests.start([tensor])
    del tensor

    assert gone() is None
    assert reading.ready()
    assert torch.equal(before, torch.get_rng_state())


def test_norms_tell_non_finite_gradients_of_every_type() -> None:
    good = [torch.ones(4, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
    bad = torch.tensor([1.0, float("nan")])

    assert norms_of([*good, None, bad]).values()[:5] == [2.0, 2.0, 2.0, 2.0, 0]
    assert norms_of([bad]).values()[0] != norms_of([bad]).values()[0]
    assert norms_of([torch.full((9,), 65504.0, dtype=torch.float16)]).values() == [pytest.approx(3 * 65504.0)]


# -- shards ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[dist.device_mesh.DeviceMesh]:
    """A mesh of three ranks of which this process is one, and in which a collective would do nothing at all."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    yield dist.device_mesh.init_device_mesh("cpu", (3,))
    dist.destroy_process_group()


@given(
    st.sampled_from([dtype for dtype in DTYPES if dtype is not torch.bool]),
    st.integers(1, 11),
    st.integers(1, 6),
    st.integers(0, 1),
    st.data(),
)
def test_a_flipped_bit_changes_the_digest_of_the_shard_that_holds_it_and_of_no_other(
    three_ranks: dist.device_mesh.DeviceMesh, dtype: torch.dtype, rows: int, columns: int, dim: int, data: st.DataObject
) -> None:
    from torch.distributed.tensor import DTensor, Shard

    whole = some(dtype, rows * columns, seed=data.draw(st.integers(0, 5))).view(rows, columns)
    other = whole.clone()
    raw = other.view(torch.uint8).view(-1)
    byte = data.draw(st.integers(0, len(raw) - 1))
    raw[byte] ^= 1 << data.draw(st.integers(0, 7))
    place = divmod(byte // whole.element_size(), columns)[dim]

    begin = 0
    for one, another in zip(whole.chunk(3, dim), other.chunk(3, dim), strict=True):
        shards = [
            DTensor.from_local(
                part, three_ranks, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride()
            )
            for part in (one, another)
        ]
        holds = begin <= place < begin + one.shape[dim]
        begin += one.shape[dim]
        assert (digest(shards[0]) != digest(shards[1])) is holds
        assert digest(shards[0]) == digest(one.clone())  # wherever it lies, and whatever the others hold


def test_replicas_of_a_tensor_have_its_own_digest_and_an_empty_shard_has_one_too(
    three_ranks: dist.device_mesh.DeviceMesh,
) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    tensor = torch.randn(2, 5)
    nothing = DTensor.from_local(
        torch.empty(0, 5), three_ranks, [Shard(0)], run_check=False, shape=(2, 5), stride=(5, 1)
    )

    assert digest(DTensor.from_local(tensor, three_ranks, [Replicate()], run_check=False)) == digest(tensor)
    assert digest(nothing) == digest(torch.empty(0, 5)) != 0
