"""The grouped MLP in eager PyTorch, and a tiny model of experts that trains with either."""

import torch
from torch.nn import functional as F

#: alpha, limit and offset that show whether they are used.
CONSTANTS = {"alpha": 1.3, "limit": 0.6, "offset": 0.25}
ACTIVATIONS = ["swiglu", "clamped_swiglu", "geglu_tanh", "geglu_erf", "quick_geglu", "clamped_quick_geglu", "reglu", "glu",
               "situ_glu", "squared_relu"]


def uses(kind):
    """The constants that an activation takes."""
    names = {"clamped_swiglu": ["limit"], "quick_geglu": ["alpha", "offset"], "clamped_quick_geglu": list(CONSTANTS),
             "situ_glu": ["alpha", "limit"]}
    return {name: CONSTANTS[name] for name in names.get(kind, [])}


def act(kind, a, u, alpha=1.702, limit=7.0, offset=0.0):
    """The table of ops/grouped_mlp.hpp."""
    if kind == "squared_relu":
        return F.relu(u) ** 2
    if kind in ("clamped_swiglu", "clamped_quick_geglu"):
        a, u = a.clamp(max=limit), u.clamp(-limit, limit)
    if kind in ("swiglu", "clamped_swiglu"):
        return F.silu(a) * u
    if kind in ("quick_geglu", "clamped_quick_geglu"):
        return a * torch.sigmoid(alpha * a) * (u + offset)
    if kind in ("geglu_tanh", "geglu_erf"):
        return F.gelu(a, approximate="tanh" if kind == "geglu_tanh" else "none") * u
    if kind == "situ_glu":
        return alpha * torch.tanh(a / alpha) * torch.sigmoid(a) * limit * torch.tanh(u / limit)
    return {"reglu": F.relu, "glu": torch.sigmoid}[kind](a) * u


def contiguous_order(t, k, gated=True):
    """FC1 of one expert from blocks of k rows to gate rows and up rows."""
    if k == 0 or not gated:
        return t
    return t.unflatten(0, (t.shape[0] // (2 * k), 2, k)).transpose(0, 1).flatten(0, 2)


def interleaved_order(t, k):
    """The way back, of a grouped tensor."""
    return t if k == 0 else t.unflatten(1, (2, t.shape[1] // (2 * k), k)).transpose(1, 2).flatten(1, 3)


def eager_mlp(x, splits, fc1, fc2, *, k=0, probs=None, fc1_bias=None, fc2_bias=None, activation="swiglu", parts=1,
              rounded=None, **constants):
    """What anybody writes; `parts` sums FC2's columns in so many parts, which is another order.

    `rounded` is the dtype to which FC1's output is rounded: where an activation is clamped, that decides on which side
    of the limit a value lies, and so whether it has a derivative.
    """
    outs, row = [], 0
    for e, count in enumerate(splits):
        rows = x[row : row + count]
        p = 1 if probs is None else probs[row : row + count, None].to(x.dtype)
        gated = activation != "squared_relu"
        z = F.linear(rows, contiguous_order(fc1[e], k, gated),
                     None if fc1_bias is None else contiguous_order(fc1_bias[e], k, gated))
        if rounded is not None:
            z = z + (z.to(rounded).to(z.dtype) - z).detach()
        a, u = z.chunk(2, 1) if gated else (z, z)
        y = act(activation, a, u, **constants) * p
        out = sum(F.linear(part, w) for part, w in zip(y.chunk(parts, 1), fc2[e].chunk(parts, 1)))
        outs.append(out if fc2_bias is None else out + fc2_bias[e] * p)
        row += count
    return torch.cat(outs)


def train(experts, steps, *, dtype=torch.float32, device="cpu", k=0, tokens=64, hidden=16, width=16, num_experts=4, rate=0.02,
          seed=3):
    """Losses of a router and experts that learn what other experts do. `experts(x, splits, fc1, fc2, probs, k)`.

    Each step's tokens are new, and each takes two experts. No sum here depends on FC1's order.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator) * scale).to(device)

    def fresh(scale):
        return random(num_experts, 2 * width, hidden, scale=scale), random(num_experts, hidden, width, scale=scale)

    teacher, (fc1, fc2), router = fresh(hidden**-0.5), fresh(0.5 * hidden**-0.5), random(num_experts, hidden, scale=0.3)
    teacher_router = random(num_experts, hidden)
    masters = [torch.nn.Parameter(t) for t in (interleaved_order(fc1, k).contiguous(), fc2, router)]
    optimizer = torch.optim.Adam(masters, lr=rate, foreach=False)

    def layer(x, w1, w2, gate, run, order):
        scores, chosen = torch.topk(F.linear(x.float(), gate).softmax(-1), 2)
        sorted_by_expert = torch.argsort(chosen.flatten(), stable=True)
        splits = torch.bincount(chosen.flatten(), minlength=num_experts)
        rows = x[:, None].expand(-1, 2, -1).flatten(0, 1)[sorted_by_expert]
        out = run(rows, splits, w1, w2, scores.flatten()[sorted_by_expert], order)
        back = torch.argsort(sorted_by_expert)
        return out[back].unflatten(0, (-1, 2)).sum(1)

    def plain(x, splits, w1, w2, probs, order):
        return eager_mlp(x, splits.tolist(), w1, w2, k=order, probs=probs)

    losses = []
    for _ in range(steps):
        x = random(tokens, hidden)
        with torch.no_grad():
            wanted = layer(x, *teacher, teacher_router, plain, 0)
        made = layer(x.to(dtype), masters[0].to(dtype), masters[1].to(dtype), masters[2], experts, k)
        loss = F.mse_loss(made.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
