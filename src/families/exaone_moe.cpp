/// K-EXAONE. Its layers with a window have rotary embedding, those without have none.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

/// Without layer_types every so many-th layer sees all tokens; without a window all do, and have rotary embedding.
void write_windows(ArgsWriter& args, const ArgRow& row) {
  const i64 window = args.integer({"sliding_window"}), period = args.integer({"sliding_window_pattern"});
  if (window <= 0) return;
  const std::vector<std::string> types = args.config.texts({"layer_types"});
  std::vector<bool> sliding, ropeless;
  for (i64 layer = 0; layer < args.model.layers; ++layer) {
    const auto place = static_cast<std::size_t>(layer);
    const bool is_sliding = types.empty() ? period > 0 && (layer + 1) % period != 0
                                          : place < types.size() && types[place] == "sliding_attention";
    sliding.push_back(is_sliding);
    ropeless.push_back(!is_sliding);
  }
  if (std::ranges::find(sliding, true) != sliding.end()) {
    args.add(row.argument, fmt::format("{},0", window - 1));
    args.add("window_attn_skip_freq", layer_pattern(sliding));
  }
  if (std::ranges::find(ropeless, true) != ropeless.end()) args.add("no_rope_freq", layer_pattern(ropeless));
}

JsonWord rope_beside_windows(SavedArgs& args, const ArgRow& row) {
  const std::vector<bool> ropeless = args.ropeless_layers();
  std::vector<bool> expected(ropeless.size(), false);
  if (args.window()) (expected = args.window_layers()).flip();
  // Lists that cannot be read are faults, and say nothing of the layers.
  if (ropeless != expected && args.faults.empty())
    args.strange.push_back(fmt::format("{} {} instead of rotary embedding in the layers with a window alone",
                                       row.argument, args.word(row.argument)));
  return std::nullopt;
}

constexpr auto kExaoneRouter = std::to_array<DenseRow>({
    layer_row("mlp.gate.weight", DenseRole::Router, kExperts),
    optional_row("mlp.e_score_correction_bias", DenseRole::CorrectionBias, kExperts),
});

constexpr auto kExaoneArgs = std::to_array<ArgRow>({
    {"sliding_window", "window_size", write_windows, window_width},
    {"layer_types", "window_attn_skip_freq", nullptr, window_kinds},
    {"", "no_rope_freq", nullptr, rope_beside_windows},
    {"mlp_layer_types", "moe_layer_freq", write_expert_layers, layer_kinds},
});

constexpr auto kExaoneMoeFamilies = std::to_array<Family>({
    {.model_type = "exaone_moe",
     .model_class = "ExaoneMoeForCausalLM",
     .naming = hf_naming(kHfGrouped, kHfQkNorm, kExaoneRouter, kHfDense),
     .args = {kModelArgs, kSwigluArgs, kNoBiasArgs, kGroupedArgs, kQkNormArgs, kYarnArgs, kTwoWidthArgs, kTopkArgs,
              kCorrectedArgs, kExaoneArgs, kExpertBiasArgs},
     .expert_naming = "hf:deepseek_v3",
     .words = {{{"n_routed_experts", "num_experts"}, {"n_shared_experts", "num_shared_experts"}}},
     .corrected_router = true,
     .megatron_versions = "0.19.2 or later",
     .defaults = R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
       "rope_theta": 10000.0, "num_key_value_heads": 32, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
       "n_group": 1, "topk_group": 1, "num_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 4096,
       "sliding_window_pattern": 4})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_exaone_moe;
constinit const Knowledge k_exaone_moe{.families = kExaoneMoeFamilies};

}  // namespace glu_ckpt
