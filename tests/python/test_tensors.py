"""Functions on tensors of numpy, against their definition."""

import array
import math

import glu_ckpt
import numpy as np
import pytest


def positions(shape, dtype):
    """Bits that say where they are."""
    count = math.prod(shape)
    kind = np.dtype(dtype)
    return np.arange(1, count + 1, dtype=np.uint64).astype(f"u{kind.itemsize}").view(kind).reshape(shape)


def interleaved(t, k, axis):
    """The definition: block b of k rows of gate (h = 0) or up (h = 1) goes to block 2 b + h."""
    rows = t.shape[axis]
    p = np.arange(rows)
    b, h, o = p // (2 * k), (p // k) % 2, p % k
    return np.take(t, h * (rows // 2) + b * k + o, axis=axis)


SHAPES = [
    ((8, 4), None, 0), ((12,), None, 0), ((3, 8, 5), None, 1), ((1, 48, 1), None, 1), ((4, 24), 1, 1), ((2, 3, 24), -1, 2),
    ((2, 2, 24, 3), 2, 2), ((0, 8, 4), None, 1), ((2, 8, 0), None, 1), ((3, 0, 4), None, 1),
]


CASES = [(*case, dtype) for case in SHAPES for dtype in ("u1", "f2", "f4", "f8", "c8")]
# Long runs, which are copied another way.
CASES += [((5, 64, 700), None, 1, "f2"), ((2, 128, 4096), None, 1, "f4")]


@pytest.mark.parametrize(("shape", "axis", "rows_axis", "dtype"), CASES)
def test_interleave_is_its_definition(shape, axis, rows_axis, dtype):
    t = positions(shape, dtype)
    rows = shape[rows_axis]
    for k in [k for k in range(1, rows // 2 + 1) if (rows // 2) % k == 0] or [1, 32]:
        for jobs in (1, 3):
            wanted = interleaved(t, k, rows_axis) if rows else t
            got = glu_ckpt.interleave(t, k, axis=axis, jobs=jobs)
            assert got.dtype == t.dtype and got.tobytes() == wanted.tobytes()
            assert glu_ckpt.deinterleave(got, k, axis=axis, jobs=jobs).tobytes() == t.tobytes()
            place = t.copy()
            assert glu_ckpt.interleave_(place, k, axis=axis, jobs=jobs) is place
            assert place.tobytes() == wanted.tobytes()
            out = np.empty_like(t)
            assert glu_ckpt.deinterleave(place, k, out, axis=axis, jobs=jobs) is out
            assert out.tobytes() == t.tobytes()
            glu_ckpt.deinterleave_(place, k, axis=axis, jobs=jobs)
            assert place.tobytes() == t.tobytes()


def refused(call, *words, **named):
    with pytest.raises(glu_ckpt.Error) as caught:
        call(*words, **named)
    return caught.value


def test_what_is_wrong_is_refused_with_the_numbers_and_nothing_is_written():
    t = positions((3, 96, 5), "f4")
    out = np.zeros_like(t)
    small, wide = np.zeros((3, 96, 4), "f4"), np.zeros((3, 96, 5), "f8")
    strided = np.zeros((3, 96, 10), "f4")[:, :, ::2]
    frozen = np.zeros_like(t)
    frozen.flags.writeable = False
    memory = np.zeros(2 * t.size, "f4")
    left, right = memory[: t.size].reshape(t.shape), memory[10 : 10 + t.size].reshape(t.shape)
    cases = [
        ((t, 32, out), "96 rows on axis 1; interleaved:32 needs a multiple of 64", "not-divisible"),
        ((t, 0, out), "K is 0", "usage"),
        ((t, -1, out), "K is -1", "usage"),
        ((t, 2**62, out), "needs a multiple of", "not-divisible"),
        ((t, 16, small), "shape [3, 96, 4], expected [3, 96, 5]", "usage"),
        ((t, 16, wide), "dtype F64, expected F32", "usage"),
        ((t, 16, strided), "strides [960, 10, 2] is not contiguous", "usage"),
        ((strided, 16, out), "strides [960, 10, 2] is not contiguous", "usage"),
        ((t.transpose(0, 2, 1), 1, out), "strides [480, 1, 5]", "usage"),
        ((t[::-1], 16, out), "strides [-480, 5, 1]", "usage"),
        ((t, 16, frozen), "read-only", "usage"),
        ((left, 16, right), "overlap", "usage"),
        ((t, 16, t), "overlap", "usage"),
        ((t.reshape(3, 96, 5, 1), 16, out), "which axis", "usage"),
        ((np.float32(1), 16, np.float32(1)), "", "usage"),
        ((3, 16, out), "int is no tensor", "usage"),
        ((t, 16, [1, 2]), "list is no tensor", "usage"),
    ]
    before = [a.tobytes() for a in (out, small, wide, strided, frozen, memory, t)]
    for words, text, slug in cases:
        error = refused(glu_ckpt.interleave, *words)
        assert text in str(error) and error.slug == slug, words
    assert "no axis 3" in str(refused(glu_ckpt.interleave, t, 16, axis=3))
    assert "read-only" in str(refused(glu_ckpt.interleave_, frozen, 16))
    assert "not contiguous" in str(refused(glu_ckpt.interleave_, strided, 16))
    assert [a.tobytes() for a in (out, small, wide, strided, frozen, memory, t)] == before


def test_read_only_memory_can_be_read():
    t = positions((4, 8), "u2")
    t.flags.writeable = False
    assert glu_ckpt.interleave(t, 2).tobytes() == interleaved(t, 2, 0).tobytes()
    packed = t.tobytes()
    out = bytearray(len(packed))
    glu_ckpt.interleave(packed, 16, out)
    assert bytes(out) == interleaved(np.frombuffer(packed, "u1"), 16, 0).tobytes()
    assert "read-only" in str(refused(glu_ckpt.interleave, packed, 16, packed))


def test_buffers_without_dlpack():
    t = array.array("h", range(24))
    out = array.array("h", [0] * 24)
    glu_ckpt.interleave(t, 3, out)
    assert list(out) == interleaved(np.arange(24), 3, 0).tolist()


def test_large_outputs_from_odd_addresses():
    """Of 32 MiB and more, which are written past the caches."""
    memory = np.arange((9 << 20) + 9, dtype="u4")
    for first, k in ((0, 2048), (1, 32), (3, 1)):
        t = memory[first : first + (9 << 20)].reshape(1, 4096, 2304)
        out = np.zeros(t.size + 5, "u4")[first + 1 : first + 1 + t.size].reshape(t.shape)
        glu_ckpt.interleave(t, k, out)
        assert np.array_equal(out, interleaved(t, k, 1))


def test_threads_write_what_one_thread_writes():
    t = positions((3, 256, 9000), "u2")
    wanted = glu_ckpt.interleave(t, 32, jobs=1)
    assert np.array_equal(glu_ckpt.interleave(t, 32, jobs=8), wanted)
    assert np.array_equal(glu_ckpt.interleave_(t.copy(), 32, jobs=8), wanted)
    assert np.array_equal(glu_ckpt.interleave_(t[:1].copy(), 32, jobs=8), wanted[:1])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_splits_to_offsets(dtype):
    splits = np.array([3, 0, 5, 1], dtype)
    assert glu_ckpt.splits_to_offsets(splits).tolist() == [0, 3, 3, 8, 9]
    assert glu_ckpt.splits_to_offsets(splits, 7, leading_zero=False).tolist() == [21, 21, 56, 63]
    rows, elements = glu_ckpt.splits_to_offsets(splits, [1, -2], dtype="int32")
    assert rows.dtype == np.int32 and elements.tolist() == [0, -6, -6, -16, -18]
    out = np.zeros(5, "int32")
    assert glu_ckpt.splits_to_offsets(splits, out=out) is out and out.tolist() == [0, 3, 3, 8, 9]


def test_splits_to_offsets_refuses():
    splits = np.array([2**30, 2**30], "int64")
    assert refused(glu_ckpt.splits_to_offsets, splits, 2, dtype="int32").slug == "not-exact"
    for wrong in (np.zeros((2, 2), "int64"), np.zeros(4, "float32"), np.zeros(8, "int64")[::2]):
        refused(glu_ckpt.splits_to_offsets, wrong)
    refused(glu_ckpt.splits_to_offsets, splits, out=np.zeros(4, "int64"))
    refused(glu_ckpt.splits_to_offsets, splits, out=np.zeros(3, "float64"))


def swiglu(x, splits, fc1, fc2, probs, b1, b2):
    """The definition, in float64, of contiguous weights."""
    out, first = np.zeros(x.shape), 0
    for e, count in enumerate(splits):
        rows = slice(first, first + count)
        z = x[rows] @ fc1[e].T + b1[e]
        gate, up = np.split(z, 2, axis=1)
        out[rows] = probs[rows, None] * ((gate / (1 + np.exp(-gate)) * up) @ fc2[e].T + b2[e])
        first += count
    return out


def test_grouped_mlp_is_its_definition_and_the_same_bits_in_every_layout():
    rng = np.random.default_rng(1)
    e, f, h, splits = 3, 8, 6, np.array([4, 0, 5])
    x, fc1, fc2 = (rng.normal(size=s).astype("f4") for s in ((9, h), (e, 2 * f, h), (e, h, f)))
    b1, b2, probs = (rng.normal(size=s).astype("f4") for s in ((e, 2 * f), (e, h), (9,)))
    wanted = swiglu(*(a.astype("f8") if a.dtype == np.float32 else a for a in (x, splits, fc1, fc2, probs, b1, b2)))
    got = glu_ckpt.grouped_mlp(x, splits, fc1, fc2, probs=probs, fc1_bias=b1, fc2_bias=b2)
    # Sums of at most 16 products of numbers below 5, in float32.
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    for k in (1, 2, 4, 8):
        out = np.full_like(x, np.nan)
        again = glu_ckpt.grouped_mlp(
            x, splits, glu_ckpt.interleave(fc1, k), fc2, k=k, probs=probs,
            fc1_bias=glu_ckpt.interleave(b1, k, axis=1), fc2_bias=b2, out=out,
        )
        assert again is out and out.tobytes() == got.tobytes()
    wrong = glu_ckpt.grouped_mlp(x, splits, fc1, fc2, k=2, probs=probs, fc1_bias=b1, fc2_bias=b2)
    assert wrong.tobytes() != got.tobytes()
    plain = glu_ckpt.grouped_mlp(x, splits, fc1[:, :f].copy(), fc2, activation="squared_relu")
    assert plain.shape == x.shape


def test_grouped_mlp_refuses():
    x, splits, fc1, fc2 = np.zeros((9, 6), "f4"), np.array([4, 0, 5]), np.zeros((3, 16, 6), "f4"), np.zeros((3, 6, 8), "f4")
    out = np.full_like(x, 7)
    cases = [
        dict(splits=np.array([4, 0, 6])), dict(splits=np.array([4, 5])), dict(splits=np.array([4, 0, 5], "int32")),
        dict(k=3), dict(k=-1), dict(fc2=np.zeros((2, 6, 8), "f4")), dict(fc1=np.zeros((3, 16), "f4")),
        dict(x=np.zeros((9, 5), "f4")), dict(activation="gelu"), dict(fc1_bias=np.zeros((3, 8), "f4")),
        dict(fc2_bias=np.zeros((3, 5), "f4")), dict(probs=np.zeros(8, "f4")), dict(x=np.zeros((9, 6), "i4")),
    ]
    for case in cases:
        words = dict(x=x, splits=splits, fc1=fc1, fc2=fc2, out=out) | case
        refused(glu_ckpt.grouped_mlp, **words)
        assert (out == 7).all(), case


def test_diff_of_tensors():
    a = np.array([1.0, -0.0, np.nan, 4.0], "f4")
    b = np.array([1.0, 0.0, np.nan, 5.0], "f4")
    assert glu_ckpt.diff(a, a)["equal"] and glu_ckpt.diff(a, a)["first"] is None
    found = glu_ckpt.diff(a, b)
    assert (found["equal"], found["elements"], found["differing"], found["first"]) == (False, 4, 2, 1)
    assert (found["max_abs"], found["max_rel"], found["nan_in_both"]) == (1.0, 0.25, 1)
    refused(glu_ckpt.diff, a, a.astype("f8"))
    refused(glu_ckpt.diff, a, a[:3])
    refused(glu_ckpt.diff, a[::2], b[::2])


def test_what_is_no_tensor_is_named():
    for call in (glu_ckpt.interleave, glu_ckpt.deinterleave, glu_ckpt.interleave_, glu_ckpt.deinterleave_):
        with pytest.raises(glu_ckpt.Error, match="list is no tensor"):
            call([1, 2], 32)
        with pytest.raises(glu_ckpt.Error, match="^k: str '32'; give a whole number"):
            call(np.zeros((64, 4), "f4"), "32")
