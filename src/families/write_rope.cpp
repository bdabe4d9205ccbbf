/// From config.json to the arguments of the rotary embedding.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "families/arg_steps.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

/// Reads a number of `rope_parameters` (transformers 5) or `rope_scaling`; else a field beside them.
std::optional<double> rope_number(ArgsWriter& args, std::string_view name, std::string_view beside = {}) {
  const std::string parameters = fmt::format("rope_parameters.{}", name),
                    scaling = fmt::format("rope_scaling.{}", name);
  return args.config.number({scaling, parameters, beside});
}

std::string rope_type(ArgsWriter& args) {
  const std::string type = args.config.text(
      {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"});
  return type == "deepseek_yarn" ? "yarn" : type;
}

/// The value as it stands in the text, with one spelling for a number; empty where the text does not say it.
std::string said_once(ArgsWriter& args, const std::string& field) {
  std::string text = args.config.said(field);
  double number = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      error == std::errc() && end == text.data() + text.size())
    return float_text(number);
  std::ranges::replace(text, '"', '\'');
  return text;
}

/// Programs differ in which of two values they take.
void warn_of_two_ropes(ArgsWriter& args) {
  const auto compare = [&](const std::string& one, const std::string& other) {
    const std::string a = said_once(args, one), b = said_once(args, other);
    if (!a.empty() && !b.empty() && a != b)
      args.warn("config.json says {} {} and {} {}: programs differ in which they take", one, a, other, b);
  };
  const auto field = [](std::string_view object, std::string_view name) { return fmt::format("{}{}", object, name); };
  const auto type_field = [&](std::string_view object) {
    const std::string type = field(object, "rope_type");
    return args.config.said(type).empty() ? field(object, "type") : type;
  };
  constexpr std::string_view kNew = "rope_parameters.", kOld = "rope_scaling.";
  for (const std::string_view object : {kNew, kOld}) {
    for (const std::string_view name : {"rope_theta", "partial_rotary_factor"})
      compare(field(object, name), std::string(name));
    compare(field(object, "rope_type"), field(object, "type"));
  }
  compare(type_field(kNew), type_field(kOld));
  constexpr std::string_view kNumbers[] = {"factor",          "original_max_position_embeddings",
                                           "low_freq_factor", "high_freq_factor",
                                           "mscale",          "mscale_all_dim",
                                           "beta_fast",       "beta_slow",
                                           "truncate",        "attention_factor",
                                           "rope_theta"};
  const bool has_both = !args.config.said(type_field(kNew)).empty() && !args.config.said(type_field(kOld)).empty();
  for (const std::string_view name : kNumbers) {
    compare(field(kNew, name), field(kOld, name));
    if (const std::string a = said_once(args, field(kNew, name));
        has_both && !a.empty() && args.config.said(field(kOld, name)).empty() && args.config.said(name).empty())
      args.warn("config.json says {} {}, and nothing of it in rope_scaling, which transformers takes alone",
                field(kNew, name), a);
  }
}

/// A text has one position for all sections of a head, so that they change nothing; but they must be all of what is
/// rotated.
void check_sections(ArgsWriter& args, double part) {
  constexpr std::string_view kField = "rope_parameters.mrope_section", kFormer = "rope_scaling.mrope_section";
  if (!args.config.has(kField) && !args.config.has(kFormer)) return;
  i64 sum = 0;
  for (const i64 section : args.config.integers({kField, kFormer})) sum += section;
  const auto rotated = std::lround(part * static_cast<double>(args.model.extent(Dim::HeadDim)));
  if (2 * sum != rotated)
    args.warn(
        "the sections of mrope_section make {}, but half of the {} dimensions of a head that are rotated is {}: "
        "transformers may stop",
        sum, rotated, rotated / 2);
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

/// Latent attention rotates some dimensions of each head, which have a field of their own. The class of one family
/// takes the part of the whole head, those of the others of what is rotated.
void check_latent_part(ArgsWriter& args, double part) {
  const i64 rope = args.integer({"qk_rope_head_dim"}), whole = rope + args.integer({"qk_nope_head_dim"});
  const i64 head = args.config.integer({"head_dim"}) == whole ? whole : rope;
  if (std::lround(part * static_cast<double>(head)) != rope)
    args.warn(
        "{} is {} of {} dimensions of a head, but qk_rope_head_dim {} is what Megatron-Core rotates; transformers may "
        "stop",
        kRotatedPart, float_text(part), head, rope);
}

/// Returns the part of each head that is rotated. Released MiniMax-M2 says it in dimensions.
double rotated_part(ArgsWriter& args) {
  double part = 1.0;
  if (const auto dim = args.config.number({args.family().rotated_dims_field}))
    part = *dim / static_cast<double>(args.model.extent(Dim::HeadDim));
  part = rope_number(args, kRotatedPart, kRotatedPart).value_or(part);
  if (part == 1.0) return part;
  if (args.is_latent()) {
    check_latent_part(args, part);
    return part;
  }
  if (!args.family().rotated_dims_field.empty() || args.config.is_of_class(kRotatedPart)) return part;
  // What transformers does for a scaling reads the field in every class, and the class then turns whole heads.
  if (const std::string type = rope_type(args); !type.empty() && type != "default") {
    args.warn("{} is {} beside the scaling '{}', but models of type '{}' rotate whole heads: transformers stops",
              kRotatedPart, float_text(part), type, args.model.model_type);
    return part;
  }
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

/// Whether the range that YaRN corrects is rounded to whole numbers.
bool is_truncated(ArgsWriter& args) {
  constexpr std::string_view kNew = "rope_parameters.truncate", kOld = "rope_scaling.truncate";
  const bool is_null = args.config.is_null(kNew) || args.config.is_null(kOld);
  return args.config.flag({kNew, kOld}).value_or(!is_null);
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
  if (!is_truncated(args))
    args.warn(
        "truncate of the rotary embedding is false; Megatron-LM's latent attention rounds YaRN's range to whole "
        "numbers, and no argument changes it: logits differ");
}

void add_yarn(ArgsWriter& args) {
  add_yarn_scales(args);
  const double positions = original_positions(args);
  if (positions != std::floor(positions))
    args.warn(
        "original_max_position_embeddings is {}; --yarn-original-max-position-embeddings takes whole numbers alone",
        float_text(positions));
  args.add("yarn_original_max_position_embeddings", static_cast<i64>(positions));
  args.add_float("yarn_beta_fast", rope_number(args, "beta_fast").value_or(32.0));
  args.add_float("yarn_beta_slow", rope_number(args, "beta_slow").value_or(1.0));
  args.flag(is_truncated(args) ? "yarn_correction_range_round_to_int" : "no_yarn_correction_range_round_to_int");
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
  check_sections(args, part);
  if (!args.is_latent() && part != 1.0) args.add_float("rotary_percent", part);
  const bool interleaved = args.family().interleaved_rope;
  if (interleaved) args.flag("rotary_interleaved");
  if (args.is_latent() && !args.config.flag({"rope_interleave"}).value_or(true))
    args.warn("rope_interleave is false, but Megatron-Core's latent attention interleaves");
  if (!yarn) return add_plain_rope(args);
  if (theta == 1.0)
    args.warn("rope_theta is 1 beside YaRN, which divides by its logarithm: transformers and Megatron-Core stop");
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
