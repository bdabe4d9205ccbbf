#include "arch/said_twice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "families/arg_steps.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kOtherPrograms = "as in transformers; other programs may read the other";

void warn_of_number_of_layers(ArgsWriter& args) {
  const auto said = args.config.integer({"num_hidden_layers"});
  if (!args.family().hybrid || !args.config.has("num_hidden_layers") || !said || *said == args.model.layers) return;
  args.warn("num_hidden_layers is {}, but {} lists {} layers, which counts here, {}", *said,
            args.model.dense_layers_fields, args.model.layers, kOtherPrograms);
}

void warn_of_dense_layers(ArgsWriter& args) {
  constexpr std::string_view kField = "first_k_dense_replace", kList = "mlp_layer_types";
  const auto said = args.config.integer({kField});
  if (!args.config.has(kField) || !args.config.has(kList) || !said) return;
  const auto first = std::ranges::find(args.model.kinds, Mlp::Experts, &LayerKind::mlp);
  const i64 dense = first - args.model.kinds.begin();
  const bool dense_behind =
      std::any_of(first, args.model.kinds.end(), [](const LayerKind& kind) { return kind.mlp == Mlp::Dense; });
  if (dense == std::min(*said, args.model.layers) && !dense_behind) return;
  args.warn("{} is {}, but {} makes {} layers dense, of which {} are the first, and counts here, {}", kField, *said,
            kList, std::ranges::count(args.model.kinds, Mlp::Dense, &LayerKind::mlp), dense, kOtherPrograms);
}

void warn_of_windows(ArgsWriter& args) {
  constexpr std::string_view kField = "sliding_window_pattern", kList = "layer_types";
  const i64 period = args.config.integer({kField}).value_or(0);
  const std::vector<std::string> types = args.config.texts({kList});
  if (!args.config.has(kField) || period <= 0) return;
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const bool has_window = types[layer] == "sliding_attention";
    if (has_window == ((static_cast<i64>(layer) + 1) % period != 0)) continue;
    return args.warn("{} is {}, but {} says '{}' of layer {}, and counts here, {}", kField, period, kList, types[layer],
                     layer, kOtherPrograms);
  }
}

/// Some sizes follow from other fields: the part of a head that is rotated, and the heads of latent attention.
void warn_of_heads(ArgsWriter& args) {
  const auto expect = [&](std::string_view field, i64 wanted, std::string_view of) {
    const auto said = args.config.integer({field});
    if (said && *said != wanted)
      args.warn("{} is {}{}, but {} it {}, which counts here, {}", field, *said,
                args.config.has(field) ? "" : " (the default of its class)", of, wanted, kOtherPrograms);
  };
  const auto part = args.config.number({"rope_parameters.partial_rotary_factor", "partial_rotary_factor"});
  if (const std::string_view field = args.family().rotated_dims_field; !field.empty() && part)
    expect(field, std::lround(*part * static_cast<double>(args.model.extent(Dim::HeadDim))),
           "partial_rotary_factor and head_dim make");
  const auto rope = args.config.integer({"qk_rope_head_dim"}), nope = args.config.integer({"qk_nope_head_dim"});
  if (!args.is_latent() || !rope || !nope) return;
  expect("qk_head_dim", *rope + *nope, "qk_nope_head_dim and qk_rope_head_dim make");
  // The class of one family takes the whole head for it, those of the others what is rotated.
  if (args.config.integer({"head_dim"}) != *rope + *nope) expect("head_dim", *rope, "qk_rope_head_dim makes");
  expect("num_key_value_heads", args.model.heads, "num_attention_heads makes");
}

}  // namespace

void warn_of_fields_said_twice(ArgsWriter& args) {
  warn_of_number_of_layers(args);
  warn_of_dense_layers(args);
  warn_of_windows(args);
  warn_of_heads(args);
}

}  // namespace glu_ckpt
