"""What Megatron's Mamba takes from mamba_ssm, whose kernels run on a GPU alone: written out in PyTorch.

The recurrence is that of the Mamba-2 paper (Dao and Gu, 2024, section 3), one token after another: a state decays by
exp(dt A), takes in dt x B, and is read by C. Chunks are a matter of speed. The convolution is Megatron's own in
PyTorch, which it uses where causal_conv1d is not installed.
"""

import sys
import types

import torch


class GatedNorm(torch.nn.Module):
    """RMSNorm of each group of channels, after the gate."""

    def __init__(self, hidden_size, eps, group_size, norm_before_gate, device, dtype):
        super().__init__()
        assert not norm_before_gate
        self.eps, self.group_size = eps, group_size
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))

    def forward(self, x, z):
        groups = (x * torch.nn.functional.silu(z)).unflatten(-1, (-1, self.group_size))
        scale = torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        return (groups * scale).flatten(-2) * self.weight


def scan(x, dt, A, B, C, chunk_size, D, z, dt_bias, dt_softplus, return_final_states, initial_states):
    """x: [batch, tokens, heads, width]; dt: [batch, tokens, heads]; B, C: [batch, tokens, groups, state]."""
    assert z is None and dt_softplus and not return_final_states and initial_states is None
    heads = x.shape[2]
    dt = torch.nn.functional.softplus(dt + dt_bias)
    # Neighbouring heads share a group.
    B, C = (part.repeat_interleave(heads // part.shape[2], 2) for part in (B, C))
    state = x.new_zeros(x.shape[0], heads, x.shape[3], B.shape[3])
    outputs = []
    for token in range(x.shape[1]):
        step = dt[:, token, :, None]
        taken = torch.einsum("bhp,bhn->bhpn", step * x[:, token], B[:, token])
        state = state * torch.exp(step * A[:, None])[..., None] + taken
        outputs.append(torch.einsum("bhpn,bhn->bhp", state, C[:, token]) + D[:, None] * x[:, token])
    return torch.stack(outputs, 1)


def install():
    """Before the first import of megatron.core's Mamba."""
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        sys.modules[name] = types.ModuleType(name)
    norms, scans = (types.ModuleType(f"mamba_ssm.ops.triton.{name}") for name in ("layernorm_gated", "ssd_combined"))
    norms.RMSNorm = GatedNorm
    scans.mamba_chunk_scan_combined = scan
    # Of the path that saves memory, which is turned off.
    scans.mamba_split_conv1d_scan_combined = scan
    sys.modules |= {module.__name__: module for module in (norms, scans)}
