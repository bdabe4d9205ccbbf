/// Tensors beside quantized weights that no format takes: they are about activations, or refused.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_set>

#include "core/fail.hpp"
#include "quant/part_finder.hpp"

namespace glu_ckpt {
namespace {

/// Parts of a module that are about its inputs or outputs, or about the cache of keys and values.
constexpr std::array<std::string_view, 13> kOfActivations = {
    "input_scale",       "input_global_scale", "input_zero_point", "activation_scale", "output_scale",
    "output_zero_point", "input_scale_inv",    "k_scale",          "v_scale",          "q_scale",
    "kv_scale",          "k_zero_point",       "v_zero_point"};

/// Returns the text behind the name of the module, or of the parameter, that the tensor is a part of; empty where it is
/// of none.
std::string_view part_of_module(std::string_view name, const std::unordered_set<std::string_view>& modules) {
  const std::size_t last = std::min(name.rfind('.'), name.size());
  for (std::size_t cut = name.find_first_of("._"); cut != std::string_view::npos;
       cut = name.find_first_of("._", cut + 1))
    if ((name[cut] == '.' || cut > last) && modules.contains(name.substr(0, cut))) return name.substr(cut + 1);
  return {};
}

}  // namespace

void PartFinder::take_cache_scales() {
  // Behind `self_attn` in compressed-tensors, behind k_proj and v_proj in ModelOpt; the last two are older.
  constexpr std::array<std::string_view, 6> kOfCaches = {
      ".k_scale", ".v_scale", ".kv_scale", "attn.q_scale", "k_proj.output_scale", "v_proj.output_scale"};
  if (found_.tensors.empty()) return;
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i)
    if (std::ranges::any_of(kOfCaches, [&](std::string_view end) { return at(i).name.ends_with(end); })) take(i);
}

void PartFinder::check_modules() {
  if (found_.tensors.empty()) return;
  if (!all_config_.run_time_words.empty())
    cannot_decode(found_.tensors.front().weight, ErrorCode::NotSupported,
                  fmt::format("quantization_config's {}: programs apply it when they run, so the decoded weights "
                              "alone would not be the model; --decode has no rule for it",
                              all_config_.run_time_words));
  std::unordered_set<std::string_view> modules;
  std::unordered_set<std::size_t> used(found_.companions.begin(), found_.companions.end());
  for (const QuantizedTensor& weight : found_.tensors) {
    const std::size_t suffix = weight.name.size() - plain_weight_name(weight.name).base.size();
    modules.insert(std::string_view(weight.name).substr(0, weight.name.size() - suffix));
    used.insert(weight.weight);
  }
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
    if (used.contains(i)) continue;
    const std::string& name = at(i).name;
    const std::string_view part = part_of_module(name, modules);
    if (part.empty() || part.ends_with("bias") || part.ends_with("_extra_state") || is_optimizer_tensor(name)) continue;
    if (std::ranges::find(kOfActivations, part) != kOfActivations.end())
      take(i);
    else
      cannot_decode(
          i, ErrorCode::NotSupported,
          fmt::format("{} {} belongs to '{}', whose weight is quantized, and --decode has no rule for it: "
                      "the decoded model would lack what it does",
                      dtype_name(at(i).dtype), shape_text(at(i).shape), name.substr(0, name.size() - part.size() - 1)));
  }
}

void PartFinder::check_orphans() {
  constexpr std::array kOfCodes = {TensorKind::PackedWeight, TensorKind::QWeight};
  constexpr std::array kOfScales = {TensorKind::Scale,       TensorKind::PlainScale, TensorKind::SecondScale,
                                    TensorKind::GlobalScale, TensorKind::InputScale, TensorKind::Scales,
                                    TensorKind::QZeros};
  const auto is_any_of = [](const std::string& name, const auto& kinds) {
    return std::ranges::any_of(kinds, [&](TensorKind kind) {
      const auto of = weight_name(name, kind);
      return of && (of->is_layer || of->base.ends_with("_proj") || of->base.ends_with("_proj_weight"));
    });
  };
  const std::set<std::size_t> used(found_.companions.begin(), found_.companions.end());
  std::set<std::size_t> weights;
  for (const QuantizedTensor& weight : found_.tensors) weights.insert(weight.weight);
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
    const std::string& name = at(i).name;
    if (used.contains(i) || weights.contains(i)) continue;
    if (is_any_of(name, kOfScales)) {
      refuse_foreign_codes(i, kOfScales);
      fail(ErrorCode::ScaleOrphan, {{}, name},
           "'{}': {} {}, scales of no quantized weight that is there; is the download complete?", name,
           dtype_name(at(i).dtype), shape_text(at(i).shape));
    }
    if (is_any_of(name, kOfCodes))
      fail(ErrorCode::NotSupported, {{}, name},
           "'{}': codes in {} {} cannot be decoded; those in U8 (FP4) and I32 (INT4) can", name,
           dtype_name(at(i).dtype), shape_text(at(i).shape));
    if (const std::string why = why_left_over(at(i)); !why.empty()) cannot_decode(i, ErrorCode::ScaleOrphan, why);
  }
}

void PartFinder::refuse_foreign_codes(std::size_t scales, std::span<const TensorKind> kinds) {
  constexpr std::array kForeign = {Dtype::F8_E4M3FNUZ, Dtype::F8_E5M2FNUZ, Dtype::F4, Dtype::F6_E2M3,
                                   Dtype::F6_E3M2,     Dtype::U32,         Dtype::U16};
  for (const TensorKind kind : kinds) {
    const auto name = weight_name(at(scales).name, kind);
    if (!name) continue;
    for (const std::string& weight : {name->of(TensorKind::Weight), name->base}) {
      const auto codes = std::ranges::find(inventory_.tensors, weight, &TensorRef::name);
      if (codes == inventory_.tensors.end() || std::ranges::find(kForeign, codes->dtype) == kForeign.end()) continue;
      const bool is_mlx = codes->dtype == Dtype::U32;
      fail(ErrorCode::NotSupported, {{}, weight},
           "'{}' holds codes in {} {}, with scales in '{}'{}: --decode has no rule for them{}", weight,
           dtype_name(codes->dtype), shape_text(codes->shape), at(scales).name,
           is_mlx ? ", as MLX (mlx-lm) stores quantized weights" : "",
           is_mlx ? "; mlx-lm dequantizes them (mlx_lm.convert --dequantize)"
                  : "; those in F8_E4M3, F8_E5M2, I8, U8 (FP4) and I32 (INT4) can be decoded");
    }
  }
}

std::string PartFinder::why_left_over(const TensorRef& tensor) {
  constexpr std::array kBesideCodes = {TensorKind::ZeroPoint, TensorKind::GroupIndex, TensorKind::PackedGroupIndex,
                                       TensorKind::WeightShape};
  const bool is_beside = std::ranges::any_of(kBesideCodes, [&](TensorKind kind) {
    const auto of = weight_name(tensor.name, kind);
    return of && (of->is_layer || of->base.ends_with("_proj"));
  });
  const bool is_code = tensor.dtype == Dtype::F8_E4M3 || tensor.dtype == Dtype::F8_E5M2;
  // DeepSeek-V4's word, behind the names of linear layers: others call what a norm or a router learns so.
  constexpr std::array<std::string_view, 4> kOfLayers = {"_proj.scale", ".w1.scale", ".w2.scale", ".w3.scale"};
  const bool is_scale = tensor.dtype == Dtype::F8_E8M0 || std::ranges::any_of(kOfLayers, [&](std::string_view end) {
                          return tensor.name.ends_with(end);
                        });
  if (!is_beside && !is_code && !is_scale) return {};
  const std::string_view what = is_beside  ? "belongs to codes of a weight that are not there, or that need none of it"
                                : is_scale ? "scales of no quantized weight that is there"
                                           : "codes of no weight that --decode has a rule for";
  return fmt::format("{} {}, {}; the decoded model would keep it. Is the download complete?", dtype_name(tensor.dtype),
                     shape_text(tensor.shape), what);
}

}  // namespace glu_ckpt
