#pragma once
/// The kinds of tensors of a matrix: how their keys are spelled, and what is fixed by the kind alone.

#include <array>
#include <string_view>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct KindWords {
  TensorKind kind = TensorKind::Weight;
  /// The last component of a key of a linear layer.
  std::string_view word;
  /// The suffix of a parameter's name, such as `gate_up_proj`.
  std::string_view suffix;
  /// The kind's name in reports and in the identities of digests.
  std::string_view text;
};

/// One for each TensorKind, in its order.
inline constexpr std::array<KindWords, kTensorKinds> kKindWords{{
    {TensorKind::Weight, "weight", "", "weight"},
    {TensorKind::Bias, "bias", "_bias", "bias"},
    {TensorKind::Scale, "weight_scale_inv", "_scale_inv", "scale"},
    {TensorKind::PlainScale, "weight_scale", "_scale", "scale"},
    {TensorKind::PackedWeight, "weight_packed", "_packed", "weight"},
    {TensorKind::Blocks, "blocks", "_blocks", "weight"},
    {TensorKind::QWeight, "qweight", "_qweight", "weight"},
    {TensorKind::Scales, "scales", "_scales", "scale"},
    {TensorKind::SecondScale, "weight_scale_2", "_scale_2", "second scale"},
    {TensorKind::GlobalScale, "weight_global_scale", "_global_scale", "global scale"},
    {TensorKind::InputScale, "input_scale", "_input_scale", "input scale"},
    {TensorKind::InputGlobalScale, "input_global_scale", "_input_global_scale", "input global scale"},
    {TensorKind::ZeroPoint, "weight_zero_point", "_zero_point", "zero point"},
    {TensorKind::QZeros, "qzeros", "_qzeros", "zero point"},
    {TensorKind::GroupIndex, "g_idx", "_g_idx", "group index"},
    {TensorKind::WeightShape, "weight_shape", "_shape", "shape"},
    {TensorKind::PackedGroupIndex, "weight_g_idx", "_weight_g_idx", "group index"},
}};

constexpr const KindWords& words_of(TensorKind kind) { return kKindWords[static_cast<std::size_t>(kind)]; }

static_assert([] {
  for (std::size_t i = 0; i < kTensorKinds; ++i)
    if (static_cast<std::size_t>(kKindWords[i].kind) != i) return false;
  return true;
}());

/// The orientation in which a tensor of this kind is stored beside weights of the kind `codes`, in a naming whose
/// weights have `axes`. Packed codes have the orientation of their format, whatever the naming; so do their scales.
constexpr Axes stored_axes(TensorKind kind, TensorKind codes, Axes axes) {
  const bool by_naming = kind == TensorKind::Weight || kind == TensorKind::Scale || kind == TensorKind::PlainScale;
  if (codes == TensorKind::QWeight) return kind == TensorKind::Bias ? Axes::OutIn : Axes::InOut;
  return codes == TensorKind::Weight && by_naming ? axes : Axes::OutIn;
}

}  // namespace glu_ckpt
