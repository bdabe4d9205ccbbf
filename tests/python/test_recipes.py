"""Padding of tokens and MXFP8 weights, on the CPU, beside the same in plain torch."""

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt.torch as ops  # noqa: E402
from training_cases import E, ROWS, SPLITS, coded, run, tensors  # noqa: E402

BLOCK = 32


def padded_plainly(rows, splits, alignment):
    parts = []
    for part in rows.split(splits):
        added = -len(part) % alignment if alignment else 0
        parts += [part, part.new_zeros((added, *part.shape[1:]))]
    return torch.cat(parts)


@pytest.mark.parametrize("alignment", [0, 1, 2, 16, 128])
@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_padding(alignment, shape, dtype):
    rows = (coded(ROWS, *shape) * 100).to(dtype)
    for splits in (SPLITS, torch.tensor(SPLITS), torch.tensor(SPLITS, dtype=torch.int32)):
        padded, counts = ops.pad_tokens(rows, splits, alignment)
        assert torch.equal(padded, padded_plainly(rows, SPLITS, alignment))
        assert sum(counts) == len(padded) and counts[1] == 0
        assert torch.equal(ops.unpad_tokens(padded, splits, alignment), rows)


def test_padding_has_gradients_of_any_order():
    x = coded(ROWS, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.pad_tokens(x, SPLITS, 4)[0] ** 2, x)
    padded = ops.pad_tokens(x.detach(), SPLITS, 4)[0].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: ops.unpad_tokens(t, SPLITS, 4) ** 3, padded)


def test_padding_changes_no_result():
    given, padded = tensors(), tensors()
    wanted = run(ops.grouped_mlp, given)
    padded["x"], counts = ops.pad_tokens(given["x"], SPLITS, 16)
    padded["probs"], _ = ops.pad_tokens(given["probs"], SPLITS, 16)
    assert torch.equal(ops.unpad_tokens(run(ops.grouped_mlp, padded, counts), SPLITS, 16), wanted)


def test_padding_that_is_refused():
    with pytest.raises(ValueError, match="shape .*; the splits take 10 rows"):
        ops.pad_tokens(coded(9, 2), SPLITS, 16)
    with pytest.raises(ValueError, match="the splits take 48 rows with padding"):
        ops.unpad_tokens(coded(10, 2), SPLITS, 16)
    with pytest.raises(Exception, match="split 1 is -1"):
        ops.pad_tokens(coded(2, 2), [3, -1], 16)
    with pytest.raises(Exception, match="alignment -2"):
        ops.pad_tokens(coded(2, 2), [2], -2)
    with pytest.raises(Exception, match="recipe 'fp6': use none, fp8, mxfp8 or fp4"):
        ops.token_alignment("fp6")


def test_alignments_are_megatrons():
    found = [ops.token_alignment(recipe) for recipe in ("none", "fp8", "mxfp8", "fp4")]
    assert found == [0, 16, 32, 128] and ops.token_alignment("fp8", grouped_tensor=True) == 256


def quantized_plainly(values, axis, dtype):
    """By the definition: a scale is the power of two at or above the largest magnitude over the format's."""
    t = values.double() if axis == "row" else values.double().transpose(-1, -2)
    blocks = t.unflatten(-1, (-1, BLOCK))
    largest = torch.finfo(dtype).max
    ratio = (blocks.abs().amax(-1).float() * torch.tensor(1 / largest, dtype=torch.float32)).double()
    exponents = torch.where(ratio > 0, torch.ceil(torch.log2(ratio)) + 127, 0).clamp(0, 254)
    codes = (blocks * torch.exp2(127 - exponents)[..., None]).float().to(dtype).flatten(-2)
    if axis == "column":
        codes, exponents = codes.view(torch.uint8).transpose(-1, -2).contiguous().view(dtype), exponents.transpose(-1, -2)
    return codes, exponents.to(torch.uint8)


def matrices(*shape):
    """Magnitudes of many orders, and a block of zeros."""
    values = coded(*shape) * torch.exp2(torch.arange(shape[-1]) // BLOCK % 11 - 5.0)
    values[..., :1, :BLOCK] = 0
    return values.float()


@pytest.mark.parametrize("axis", ["row", "column"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(32, 32), (64, 96), (3, 64, 128), (2, 2, 32, 160)])
def test_mxfp8_is_as_defined(axis, dtype, shape):
    values = matrices(*shape).bfloat16()
    codes, scales = quantized_plainly(values, axis, dtype)
    for padded in (False, True):
        made = ops.Mxfp8Tensor.quantize(values, axis=axis, dtype=dtype, padded=padded)
        rows, cols = scales.shape[-2:]
        assert torch.equal(made.codes.view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(made.scales[..., :rows, :cols], scales)
        assert made.scales.shape[-2:] == ((-(-rows // (128 if axis == "row" else 4)) * (128 if axis == "row" else 4),
                                           -(-cols // (4 if axis == "row" else 128)) * (4 if axis == "row" else 128))
                                          if padded else scales.shape[-2:])
        factors = torch.exp2(scales.double() - 127).repeat_interleave(BLOCK, -1 if axis == "row" else -2)
        for to in (torch.bfloat16, torch.float32):
            assert torch.equal(made.dequantize(to).double(), codes.double() * factors)


def test_swizzled_scales_lie_as_cublas_reads_them():
    made = ops.Mxfp8Tensor.quantize(matrices(2, 160, 288))
    swizzled = made.swizzled_scales()
    assert swizzled.shape == (2, 256, 12)
    for e, i, j in ((0, 0, 0), (0, 31, 8), (1, 32, 3), (1, 159, 7), (1, 130, 4)):
        at = ((i // 128) * 3 + j // 4) * 512 + (i % 32) * 16 + ((i % 128) // 32) * 4 + j % 4
        assert swizzled[e].flatten()[at] == made.scales[e, i, j]


def as_mxfp8(t, each):
    return [ops.Mxfp8Tensor.quantize(one) for one in t] if each else ops.Mxfp8Tensor.quantize(t)


@pytest.mark.parametrize("each", [False, True])
def test_layers_take_mxfp8_weights(each):
    """They compute what they do with the numbers that the codes stand for, and x has its gradient."""
    fc1, fc2, x = matrices(E, 128, 64), matrices(E, 64, 64), coded(ROWS, 64).float()
    decoded = [ops.Mxfp8Tensor.quantize(t).dequantize(torch.float32) for t in (fc1, fc2)]
    results = []
    for weights in (decoded, [as_mxfp8(t, each) for t in (fc1, fc2)]):
        leaf = x.clone().requires_grad_()
        out = ops.grouped_mlp(leaf, SPLITS, *weights, k=32) + ops.grouped_linear(leaf, SPLITS, weights[1])
        out.sum().backward()
        results.append((out.detach(), leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_mxfp8_that_is_refused():
    good = ops.Mxfp8Tensor.quantize(matrices(64, 64))
    wrong = {
        "codes: torch.float32": lambda: ops.Mxfp8Tensor(matrices(64, 64), good.scales),
        "blocks of 32 along a row do not divide": lambda: ops.Mxfp8Tensor(good.codes[:, :48], good.scales),
        r"scales: .*shape \[64, 4\].*expected bytes of shape \[64, 2\]":
            lambda: ops.Mxfp8Tensor(good.codes, good.scales.repeat(1, 2)),
        "axis='rows'": lambda: ops.Mxfp8Tensor(good.codes, good.scales, axis="rows"),
        "to torch.float16": lambda: ops.Mxfp8Tensor.quantize(matrices(64, 64), dtype=torch.float16),
        "torch.float16: MXFP8 decodes": lambda: good.dequantize(torch.float16),
        "all weights are in MXFP8": lambda: ops.grouped_linear(coded(2, 64).float(), [2, 0], [good, good.dequantize()]),
        "blocks along rows, or none":
            lambda: ops.grouped_linear(coded(2, 64).float(), [2], [ops.Mxfp8Tensor.quantize(matrices(64, 64), axis="column")]),
    }
    for text, call in wrong.items():
        with pytest.raises(ValueError, match=text):
            call()
