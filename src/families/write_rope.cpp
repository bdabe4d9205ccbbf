/// From config.json to the arguments of the rotary embedding.

#include <algorithm>
#include <cmath>

#include "families/arg_steps.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

/// Reads a number of `rope_parameters` (transformers 5) or `rope_scaling`; else a field beside them.
std::optional<double> rope_number(ArgsWriter& args, std::string_view name, std::string_view beside = {}) {
  const std::string parameters = fmt::format("rope_parameters.{}", name),
                    scaling = fmt::format("rope_scaling.{}", name);
  return args.config.number({parameters, scaling, beside});
}

std::string rope_type(ArgsWriter& args) {
  const std::string type = args.config.text(
      {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"});
  return type == "deepseek_yarn" ? "yarn" : type;
}

/// Programs differ in which of two values they take.
void warn_of_two_ropes(ArgsWriter& args) {
  const auto compare = [&](const std::string& one, const std::string& other) {
    if (!args.config.has(one) || !args.config.has(other)) return;
    const auto text = [&](const std::string& field) {
      const auto number = args.config.number({field});
      return number ? float_text(*number) : fmt::format("'{}'", args.config.text({field}));
    };
    if (const std::string a = text(one), b = text(other); a != b)
      args.warn("config.json says {} {} and {} {}: programs differ in which they take", one, a, other, b);
  };
  const auto in_both = [&](std::string_view one, std::string_view other, std::string_view name) {
    compare(fmt::format("{}{}", one, name), fmt::format("{}{}", other, name));
  };
  constexpr std::string_view kNew = "rope_parameters.", kOld = "rope_scaling.";
  for (const std::string_view name : {"rope_theta", "partial_rotary_factor"}) {
    in_both(kNew, "", name);
    in_both(kOld, "", name);
  }
  for (const std::string_view name : {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"})
    in_both(kNew, kOld, name);
  for (const std::string_view object : {kNew, kOld})
    compare(fmt::format("{}rope_type", object), fmt::format("{}type", object));
}

/// A layer whose word no argument is written for would be one that sees all tokens.
void warn_of_layer_words(ArgsWriter& args) {
  const std::vector<std::string> words = args.config.texts({"layer_types"});
  const bool has_window =
      args.integer({"sliding_window"}) > 0 && std::ranges::any_of(args.family().args, [](std::span<const ArgRow> rows) {
        const auto row = std::ranges::find(rows, "window_size", &ArgRow::argument);
        return row != rows.end() && row->to_argument != nullptr;
      });
  const auto is_written = [&](const std::string& word, LayerKind kind) {
    if (word == "sliding_attention") return has_window;
    if (word == "full_attention" || word == "attention") return true;
    if (word == "chunked_attention") return args.family().chunked_attention;
    if (word == "indexed_attention" || word == "deepseek_sparse_attention") return args.family().sparse_attention;
    return args.family().hybrid || kind.attention == Attention::Delta;
  };
  for (std::size_t layer = 0; layer < std::min(words.size(), args.model.kinds.size()); ++layer)
    if (!is_written(words[layer], args.model.kinds[layer]))
      return args.warn("layer_types says '{}' of layer {}, for which no argument is written: logits differ",
                       words[layer], layer);
}

constexpr std::string_view kRotatedPart = "partial_rotary_factor";

/// Returns whether the class of the family reads the field. What transformers does for a scaling (`rope_type`) reads it
/// in every class.
bool reads_rotated_part(ArgsWriter& args) {
  const Family& family = args.family();
  const std::string type = rope_type(args);
  return (!type.empty() && type != "default") || !family.rotated_dims_field.empty() ||
         std::ranges::any_of(family.args, [](std::span<const ArgRow> rows) {
           return std::ranges::find(rows, kRotatedPart, &ArgRow::field) != rows.end();
         });
}

/// Returns the part of each head that is rotated. Released MiniMax-M2 says it in dimensions.
double rotated_part(ArgsWriter& args) {
  double part = 1.0;
  if (const auto dim = args.config.number({args.family().rotated_dims_field}))
    part = *dim / static_cast<double>(args.model.extent(Dim::HeadDim));
  part = rope_number(args, kRotatedPart, kRotatedPart).value_or(part);
  if (part == 1.0 || args.is_latent() || reads_rotated_part(args)) return part;
  args.warn(
      "{} is {} in config.json, but models of type '{}' do not read it: they rotate whole heads, and so do these "
      "arguments. If the model was trained otherwise, add --rotary-percent {}",
      kRotatedPart, float_text(part), args.model.model_type, float_text(part));
  return 1.0;
}

/// Megatron-Core's scaling is that of Llama 3.1; it reads --rope-scaling-factor and does not hand it to the model.
void add_llama3_rope(ArgsWriter& args) {
  args.flag("use_rope_scaling");
  const auto check = [&](std::string_view name, double fixed) {
    const double value = args.needed(rope_number(args, name), name);
    if (value != fixed)
      args.warn("{} of rope_scaling is {}, but {} in Megatron-Core, and no argument changes it: logits differ", name,
                float_text(value), float_text(fixed));
    return value;
  };
  if (const double factor = check("factor", kLlama3Factor); factor != kLlama3Factor)
    args.add_float("rope_scaling_factor", factor);
  check("low_freq_factor", kLlama3Low);
  check("high_freq_factor", kLlama3High);
  check("original_max_position_embeddings", static_cast<double>(kLlama3Positions));
}

void add_plain_rope(ArgsWriter& args) {
  if (args.is_latent()) {
    args.add("rope_type", "rope");
    args.flag("no_rope_fusion");
  }
  const std::string type = rope_type(args);
  if (type == "llama3" && !args.is_latent()) return add_llama3_rope(args);
  if (!type.empty() && type != "default")
    args.warn(
        "rotary embeddings are scaled as '{}', for which no argument is written; compare config.json's rope_scaling",
        type);
}

/// transformers multiplies the cosine and sine by `attention_factor`; without it, by the quotient of both scales, or,
/// where one of the two is missing, by what the factor alone gives. Megatron-Core always takes the quotient, so the
/// first scale is chosen for it; the second also belongs to the scale of latent attention's softmax.
void add_yarn_scales(ArgsWriter& args) {
  const double factor = args.needed(rope_number(args, "factor"), "the factor of YaRN");
  args.add_float("rotary_scaling_factor", factor);
  const auto said = rope_number(args, "attention_factor");
  const double first = rope_number(args, "mscale").value_or(0.0),
               second = rope_number(args, "mscale_all_dim").value_or(0.0);
  const double below = yarn_scale(factor, second), alone = yarn_scale(factor, 1.0);
  const bool both = first != 0.0 && second != 0.0;
  const double scale = both && !said  ? first
                       : factor > 1.0 ? (said.value_or(alone) * below - 1.0) / (alone - 1.0)
                                      : 1.0;
  args.add_float("mscale", scale);
  args.add_float("mscale_all_dim", second);
  if (said && factor <= 1.0 && *said != 1.0)
    args.warn("attention_factor is {} with a factor of {}, where Megatron-Core has 1: logits differ", float_text(*said),
              float_text(factor));
  const bool neutral = second == 0.0 && (first == 0.0 || first == 1.0);
  if (args.is_latent() && !said && !both && !neutral)
    args.warn(
        "{} of YaRN is there without {}: the arguments scale by the factor alone, as transformers does, but "
        "DeepSeek's "
        "own code by both, of which the missing one has a default: logits differ from its",
        first != 0.0 ? "mscale" : "mscale_all_dim", first != 0.0 ? "mscale_all_dim" : "mscale");
}

double original_positions(ArgsWriter& args) {
  return rope_number(args, "original_max_position_embeddings").value_or(args.needed_number("max_position_embeddings"));
}

void add_latent_yarn(ArgsWriter& args) {
  args.add("rope_type", "yarn");
  add_yarn_scales(args);
  const auto check = [&](std::string_view name, double value, double fixed) {
    if (value != fixed)
      args.warn(
          "{} of the rotary embedding is {}; Megatron-LM's latent attention has {}, and no argument changes it: "
          "logits differ",
          name, float_text(value), float_text(fixed));
  };
  check("original_max_position_embeddings", original_positions(args), 4096);
  check("beta_fast", rope_number(args, "beta_fast").value_or(32), 32);
  check("beta_slow", rope_number(args, "beta_slow").value_or(1), 1);
}

void add_yarn(ArgsWriter& args) {
  add_yarn_scales(args);
  args.add("yarn_original_max_position_embeddings", static_cast<i64>(original_positions(args)));
  args.add_float("yarn_beta_fast", rope_number(args, "beta_fast").value_or(32.0));
  args.add_float("yarn_beta_slow", rope_number(args, "beta_slow").value_or(1.0));
  const bool truncate = args.config.flag({"rope_parameters.truncate", "rope_scaling.truncate"}).value_or(true);
  args.flag(truncate ? "yarn_correction_range_round_to_int" : "no_yarn_correction_range_round_to_int");
  args.flag("no_rope_fusion");
}

}  // namespace

void write_positions_of_heads(ArgsWriter& args, const ArgRow& row) {
  warn_of_layer_words(args);
  warn_of_two_ropes(args);
  if (args.family().hybrid) return args.add(row.argument, "none");
  const bool yarn = rope_type(args) == "yarn";
  args.add(row.argument, yarn && !args.is_latent() ? "yarn" : "rope");
  const double theta = args.needed(rope_number(args, "rope_theta", "rope_theta"), "rope_theta");
  if (theta == std::floor(theta))
    args.add("rotary_base", static_cast<i64>(theta));
  else
    args.warn("rope_theta is {}; --rotary-base takes whole numbers alone", float_text(theta));
  const double part = rotated_part(args);
  if (!args.is_latent() && part != 1.0) args.add_float("rotary_percent", part);
  const bool interleaved = args.family().interleaved_rope;
  if (interleaved) args.flag("rotary_interleaved");
  if (args.is_latent() && !args.config.flag({"rope_interleave"}).value_or(true))
    args.warn("rope_interleave is false, but Megatron-Core's latent attention interleaves");
  if (!yarn) return add_plain_rope(args);
  if (args.is_latent()) return add_latent_yarn(args);
  add_yarn(args);
  if (part != 1.0)
    args.warn(
        "{} of each head is rotated (partial_rotary_factor), but Megatron-Core's YaRN rotates whole heads, whatever "
        "--rotary-percent says: logits differ",
        float_text(part));
  if (interleaved) args.warn("Megatron-Core's YaRN has no interleaved form, which this model needs, and stops");
}

}  // namespace glu_ckpt
