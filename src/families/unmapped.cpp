/// Families of which the experts alone are known, or known not to fit.

#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kUnmappedExperts = std::to_array<Naming>({
    {.name = "hf:hunyuan_v1_moe",
     .stacks = kHfStacks,
     .indexed = kProjIndexed,
     .grouped = kProjGrouped,
     .shared = kSharedMlp,
     .fused_glu = Glu::Kind::Contiguous,
     .native_indexed_split = true,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.gate.wg.weight"},
    {.name = "hf:jamba",
     .stacks = kHfStacks,
     .indexed = kFeedForwardIndexed,
     .grouped = {"feed_forward.experts.gate_up_proj.{K}", "feed_forward.experts.gate_proj.{K}",
                 "feed_forward.experts.up_proj.{K}", "feed_forward.experts.down_proj.{K}"},
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.router.weight"},
    {.name = "hf:lfm2_moe",
     .stacks = kHfStacks,
     .indexed = {"feed_forward.experts.{E}.w13.{K}", "feed_forward.experts.{E}.w1.{K}",
                 "feed_forward.experts.{E}.w3.{K}", "feed_forward.experts.{E}.w2.{K}"},
     .grouped = {"feed_forward.experts.w13{_K}", "feed_forward.experts.w1{_K}", "feed_forward.experts.w3{_K}",
                 "feed_forward.experts.w2{_K}"},
     .native_indexed_split = true,
     .mtp_follows_decoder = true,
     .router = "feed_forward.gate.weight"},
    {.name = "hf:deepseek_v4",
     .stacks = kDeepseekV4Stacks,
     .indexed = {"ffn.experts.{E}.w13.{K}", "ffn.experts.{E}.w1.{K}", "ffn.experts.{E}.w3.{K}",
                 "ffn.experts.{E}.w2.{K}"},
     .grouped = {"ffn.experts.w13{_K}", "ffn.experts.w1{_K}", "ffn.experts.w3{_K}", "ffn.experts.w2{_K}"},
     .shared = {"ffn.shared_experts.w13.{K}", "ffn.shared_experts.w1.{K}", "ffn.shared_experts.w3.{K}",
                "ffn.shared_experts.w2.{K}"},
     .native_indexed_split = true,
     .scale_word = "scale",
     .router = "ffn.gate.weight"},
    // Keys and shapes of gpt-oss, another order: nothing but the family's name tells them apart.
    {.name = "hf:openai_privacy_filter",
     .stacks = kHfStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
    {.name = "hf:jetmoe",
     .stacks = kHfStacks,
     .indexed = {"mlp.input_linear.{E}.{K}", "mlp.gate_linear.{E}.{K}", "mlp.up_linear.{E}.{K}",
                 "mlp.output_linear.{E}.{K}"},
     .grouped = {"mlp.input_linear.{K}", "mlp.gate_linear.{K}", "mlp.up_linear.{K}", "mlp.output_linear.{K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.layer.weight"},
    {.name = "hf:gemma4",
     .stacks = kHfMultimodalStacks,
     .indexed = {"experts.{E}.gate_up_proj.{K}", "experts.{E}.gate_proj.{K}", "experts.{E}.up_proj.{K}",
                 "experts.{E}.down_proj.{K}"},
     .grouped = {"experts.gate_up_proj{_K}", "experts.gate_proj{_K}", "experts.up_proj{_K}", "experts.down_proj{_K}"},
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "router.proj.weight"},
    {.name = "hf:aria",
     .stacks = kHfMultimodalStacks,
     .indexed = {"mlp.experts.{E}.fc1.{K}", "mlp.experts.{E}.fc1_gate.{K}", "mlp.experts.{E}.fc1_up.{K}",
                 "mlp.experts.{E}.fc2.{K}"},
     .grouped = {"mlp.experts.fc1.{K}", "mlp.experts.fc1_gate.{K}", "mlp.experts.fc1_up.{K}", "mlp.experts.fc2.{K}"},
     .shared = kSharedExperts,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Contiguous,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
    {.name = "hf:step3p5",
     .stacks = kHfStacks,
     .indexed = {"moe.experts.{E}.gate_up_proj.{K}", "moe.experts.{E}.gate_proj.{K}", "moe.experts.{E}.up_proj.{K}",
                 "moe.experts.{E}.down_proj.{K}"},
     .grouped = {"moe.gate_up_proj.{K}", "moe.gate_proj.{K}", "moe.up_proj.{K}", "moe.down_proj.{K}"},
     .shared = {"share_expert.gate_up_proj.{K}", "share_expert.gate_proj.{K}", "share_expert.up_proj.{K}",
                "share_expert.down_proj.{K}"},
     .native_grouped_split = true,
     .mtp_follows_decoder = true,
     .router = "moe.gate.weight"},
});

/// A type that gets a file of its own may stay here: its file comes first.
constexpr auto kSpelledLike = std::to_array<SpelledLike>({
    {"mellum", "hf:qwen3_moe"},
    {"flex_olmo", "hf:qwen3_moe"},
    {"laguna", "hf:qwen2_moe"},
    {"deepseek_v32", "hf:deepseek_v3"},
    {"glm_moe_dsa", "hf:deepseek_v3"},
    {"glm4v_moe", "hf:deepseek_v3"},
    {"solar_open", "hf:deepseek_v3"},
    {"cohere2_moe", "hf:deepseek_v3"},
    {"afmoe", "hf:deepseek_v3"},
    {"exaone_moe", "hf:deepseek_v3"},
    {"longcat_flash", "hf:deepseek_v3"},
    {"ernie4_5_moe_vl", "hf:deepseek_v3"},
    {"ernie4_5_vl_moe", "hf:deepseek_v3"},
    {"bailing_moe", "hf:deepseek_v3"},
    {"bailing_moe_v2", "hf:deepseek_v3"},
    {"hy_v3", "hf:hunyuan_v1_moe"},
    {"phimoe", "hf:mixtral"},
    {"minimax", "hf:mixtral"},
    {"minimax_m3", "hf:mixtral"},
    {"minimax_m3_vl", "hf:mixtral"},
    {"kimi_k3", "hf:mixtral"},
    {"granitemoeshared", "hf:granitemoe"},
    {"granitemoehybrid", "hf:granitemoe"},
    {"gemma4_text", "hf:gemma4"},
    {"axk1", "hf:deepseek_v3"},
    {"beam", "hf:deepseek_v3"},
    {"kolibri1", "hf:deepseek_v3"},
    {"mimo_v2_flash", "hf:deepseek_v3"},
    {"flint", "hf:qwen2_moe"},
    {"kimi_linear", "hf:mixtral"},
});

constexpr std::string_view kGemma1 =
    "its MLP is a GeGLU with tanh's approximation, and Megatron-LM's arguments know --swiglu and --quick-geglu alone";
constexpr std::string_view kGemma2 =
    "it caps the scores of attention and the logits, and norms what attention and MLP give once more; Megatron-Core's "
    "GPTModel does neither";
constexpr std::string_view kGemma3 =
    "it norms what attention and MLP give once more, and layers with a window have a rotary base of their own; "
    "Megatron-Core's GPTModel has neither";

constexpr auto kRefusals = std::to_array<Refusal>({
    {"hunyuan_v1_moe",
     "it norms q and k after the rotation, Megatron-Core before it, and norms with weights do not commute"},
    {"phimoe",
     "its sparsemixer routing, the bias of its head and its LayerNorms have no place in Megatron-Core's GPTModel"},
    {"afmoe",
     "it norms what attention and MLP give once more and gates attention by a projection of its own, and "
     "Megatron-Core's TransformerLayer does neither"},
    {"longcat_flash",
     "each of its layers has two attentions and two dense MLPs with experts beside them, of which some are none; "
     "Megatron-Core's TransformerLayer has one of each"},
    {"granitemoehybrid",
     "its layers are a mixer and experts behind it, whose results residual_multiplier scales; a layer of "
     "Megatron-Core's "
     "HybridModel is one mixer, and has no such factor"},
    {"gemma", kGemma1},
    {"gemma2", kGemma2},
    {"gemma3_text", kGemma3},
    {"gemma3", kGemma3},
});

}  // namespace

extern const Knowledge k_unmapped;
constinit const Knowledge k_unmapped{.experts = kUnmappedExperts, .spelled_like = kSpelledLike, .refusals = kRefusals};

}  // namespace glu_ckpt
