/// vLLM's fused experts, as its modules hold them in memory: the parameters of a rollout engine.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

// Which rows of w13 are the gate's depends on the kernel that reads them, so no order is fixed: most want all gate rows
// first, gpt-oss's single rows by turns. Up before gate, as some want, is no order that this program has.
constexpr auto kVllmExperts = std::to_array<Naming>({
    {.name = "vllm",
     .stacks = kHfStacks,
     .indexed = {"mlp.experts.{E}.w13_{K}", "mlp.experts.{E}.w1_{K}", "mlp.experts.{E}.w3_{K}",
                 "mlp.experts.{E}.w2_{K}"},
     .grouped = {"mlp.experts.w13_{K}", "mlp.experts.w1_{K}", "mlp.experts.w3_{K}", "mlp.experts.w2_{K}"},
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.weight"},
});

}  // namespace

extern const Knowledge k_vllm;
constinit const Knowledge k_vllm{.experts = kVllmExperts};

}  // namespace glu_ckpt
