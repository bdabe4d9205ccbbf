"""The layer spec of models whose norms of q and k span all heads, as docs/targets.md gives it."""

import torch


def widen_norms(block, config):
    def of(heads):
        class Norm(torch.nn.RMSNorm):
            def __init__(self, config, hidden_size, eps):
                super().__init__(heads * hidden_size, eps)

            def forward(self, x):
                return super().forward(x.flatten(-2)).view_as(x)

        return Norm

    for layer in block.layer_specs:
        parts = layer.submodules.self_attention.submodules
        parts.q_layernorm, parts.k_layernorm = of(config.num_attention_heads), of(config.num_query_groups)
