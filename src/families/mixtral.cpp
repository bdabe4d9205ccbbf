/// Mixtral.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kMixtralRouter =
    std::to_array<DenseRow>({layer_row("block_sparse_moe.gate.weight", DenseRole::Router, kExperts)});

constexpr auto kMixtralExperts = std::to_array<Naming>({
    {.name = "hf:mixtral",
     .stacks = kHfStacks,
     .indexed = kSparseIndexed,
     .grouped = kSparseGrouped,
     .shared = kSparseShared,
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "block_sparse_moe.gate.weight"},
});

constexpr auto kMixtralFamilies = std::to_array<Family>({
    {.model_type = "mixtral",
     .model_class = "MixtralForCausalLM",
     .naming = hf_naming(kHfGrouped, kMixtralRouter),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kUsualLayerArgs, kYarnArgs, kOneWidthArgs,
              kExpertsEverywhereArgs, kTopkArgs, kSoftmaxArgs, kRenormalisedArgs},
     .expert_naming = "hf:mixtral",
     .renormalised = Renormalised::Always,
     .window = Window::All,
     .intermediate_is_experts = true,
     .defaults = R"({"num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 1000000.0, "num_key_value_heads": 8})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_mixtral;
constinit const Knowledge k_mixtral{.experts = kMixtralExperts, .families = kMixtralFamilies};

}  // namespace glu_ckpt
