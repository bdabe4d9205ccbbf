#include "report/text/diff_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report/report.hpp"

namespace glu_ckpt::report {

std::string value_text(const std::string& number, const std::string& bits) {
  return number.empty() ? bits : fmt::format("{} ({})", number, bits);
}

void write_layer(JsonWriter& json, const std::string& label) {
  json.key("layer");
  if (label.empty())
    json.null();
  else if (label.find_first_not_of("0123456789") != std::string::npos)
    json.value(label);
  else
    json.value(static_cast<i64>(std::stoll(label)));
}

void write_warnings(JsonWriter& json, const std::vector<std::string>& warnings) {
  json.key("warnings").begin_array();
  for (const std::string& warning : warnings) json.value(warning);
  json.end_array();
}

std::vector<std::string> without_unlike(const std::vector<std::string>& labels, const Diff& differences) {
  std::set<std::string> unlike;
  for (const TensorDiff& tensor : differences.tensors) {
    if (tensor.only_in) continue;
    unlike.insert(fmt::format("{} {} {}", tensor.name, dtype_name(tensor.dtype_a), shape_text(tensor.shape_a)));
    for (const std::string& name : {tensor.name, tensor.tensor_b})
      unlike.insert(fmt::format("{} {} {}", name, dtype_name(tensor.dtype_b), shape_text(tensor.shape_b)));
  }
  std::vector<std::string> found;
  for (const std::string& label : labels)
    if (!unlike.contains(label)) found.push_back(label);
  return found;
}

namespace {

/// "BF16 [64, 4096]".
std::string form_text(Dtype dtype, const std::vector<i64>& shape) {
  return fmt::format("{} {}", dtype_name(dtype), shape_text(shape));
}

std::string cosine_text(const ElementDiff& found) {
  return std::isnan(found.cosine()) ? "-" : fmt::format("{:.6g}", found.cosine());
}

/// "max abs 0.5, rms 0.1, relative norm 0.02, cosine 0.9998".
std::string figures_text(const ElementDiff& found) {
  return fmt::format("max abs {:.6g}, rms {:.6g}, relative norm {:.6g}, cosine {}", found.max_abs, found.rms(),
                     found.relative_norm(), cosine_text(found));
}

std::string elements_text(const TensorDiff& diff) {
  const ElementDiff& found = *diff.elements;
  std::string text = fmt::format("{} of {} elements differ", found.differing, found.elements);
  if (found.differing == 0) return text;
  if (diff.has_numbers) text += fmt::format(", {}", figures_text(found));
  if (found.nan_in_one > 0) text += fmt::format(", {} NaN in only one", found.nan_in_one);
  if (diff.first)
    text +=
        fmt::format("; first in row {}, column {}: {} in A, {} in B", diff.first->row, diff.first->column,
                    value_text(diff.first->number_a, diff.first->a), value_text(diff.first->number_b, diff.first->b));
  if (diff.differing_rows > 1)
    text += fmt::format("; {} rows: {}{}", diff.differing_rows, fmt::join(diff.first_rows, ", "),
                        static_cast<i64>(diff.first_rows.size()) < diff.differing_rows ? ", ..." : "");
  return text;
}

std::string tensor_text(const TensorDiff& diff) {
  const std::string name = printable(diff.name);
  if (diff.only_in)
    return *diff.only_in == Side::A ? fmt::format("{}: only in A, {}\n", name, form_text(diff.dtype_a, diff.shape_a))
                                    : fmt::format("{}: only in B, {}\n", name, form_text(diff.dtype_b, diff.shape_b));
  std::string text = name + ": ";
  if (diff.dtype_a != diff.dtype_b || diff.shape_a != diff.shape_b)
    text += fmt::format("{} in A, {} in B{}", form_text(diff.dtype_a, diff.shape_a),
                        form_text(diff.dtype_b, diff.shape_b), diff.elements ? "; as numbers, " : "");
  if (diff.elements) text += elements_text(diff);
  return text + "\n";
}

std::string layer_name(const std::string& label) { return label.empty() ? "other" : printable(label); }

std::string layer_text(const LayerDiff& layer) {
  const double percent =
      layer.elements > 0 ? 100.0 * static_cast<double>(layer.differing_elements) / static_cast<double>(layer.elements)
                         : 0.0;
  // What is in only one has no elements to compare.
  const bool is_compared = layer.differing == 0 || layer.differing > layer.only_in_one;
  std::string text = fmt::format("{:<12}{:<16}{:<22}", layer_name(layer.layer),
                                 fmt::format("{} of {}", layer.differing, layer.tensors),
                                 is_compared ? fmt::format("{} ({:.3g}%)", layer.differing_elements, percent) : "-");
  if (is_compared && layer.changed.elements > 0)
    text += fmt::format("{:<10.3g}{:<10.3g}{:<10.3g}{}", layer.numbers.max_abs, layer.numbers.rms(),
                        layer.changed.relative_norm(), cosine_text(layer.changed));
  else
    text += fmt::format("{:<10}{:<10}{:<10}{}", "-", "-", "-", "-");
  if (layer.numbers.nan_in_one > 0) text += fmt::format("  {} NaN in only one", layer.numbers.nan_in_one);
  if (layer.only_in_one > 0) text += fmt::format("  {} in only one", layer.only_in_one);
  if (layer.unlike > 0) text += fmt::format("  {} of another dtype or shape", layer.unlike);
  return text + "\n";
}

void write_optional(JsonWriter& json, std::string_view name, bool is_there, double value) {
  json.key(name);
  if (is_there)
    json.value(value);
  else
    json.null();
}

void write_form(JsonWriter& json, std::string_view side, bool is_there, Dtype dtype, const std::vector<i64>& shape,
                const std::string& tensor) {
  json.key(fmt::format("dtype_{}", side));
  if (is_there)
    json.value(dtype_name(dtype));
  else
    json.null();
  json.key(fmt::format("shape_{}", side));
  if (is_there) {
    json.begin_array();
    for (const i64 extent : shape) json.value(extent);
    json.end_array();
  } else {
    json.null();
  }
  json.key(fmt::format("tensor_{}", side));
  if (is_there)
    json.value(tensor);
  else
    json.null();
}

/// The norms of `changed` are those that are known.
void write_figures(JsonWriter& json, bool are_there, const ElementDiff& numbers, const ElementDiff& changed) {
  write_optional(json, "max_abs", are_there, numbers.max_abs);
  write_optional(json, "max_rel", are_there, numbers.max_rel);
  write_optional(json, "rms", are_there, numbers.rms());
  write_optional(json, "relative_norm", are_there && changed.elements > 0, changed.relative_norm());
  write_optional(json, "cosine", are_there && changed.elements > 0, changed.cosine());
}

void write_tensor(JsonWriter& json, const TensorDiff& diff) {
  json.begin_object().field("name", diff.name);
  write_layer(json, diff.layer);
  json.key("expert");
  if (diff.expert >= 0)
    json.value(diff.expert);
  else
    json.null();
  json.key("only_in");
  if (diff.only_in)
    json.value(*diff.only_in == Side::A ? "a" : "b");
  else
    json.null();
  write_form(json, "a", diff.only_in != Side::B, diff.dtype_a, diff.shape_a, diff.tensor_a);
  write_form(json, "b", diff.only_in != Side::A, diff.dtype_b, diff.shape_b, diff.tensor_b);
  const ElementDiff found = diff.elements.value_or(ElementDiff());
  json.key("elements");
  if (diff.elements)
    json.value(found.elements).field("differing", found.differing).field("nan_in_one", found.nan_in_one);
  else
    json.null().key("differing").null().key("nan_in_one").null();
  write_figures(json, diff.has_numbers, found, found);
  json.key("first");
  if (diff.first)
    json.begin_object()
        .field("row", diff.first->row)
        .field("column", diff.first->column)
        .field("a", diff.first->a)
        .field("b", diff.first->b)
        .field("number_a", diff.first->number_a)
        .field("number_b", diff.first->number_b)
        .end_object();
  else
    json.null();
  json.field("differing_rows", diff.differing_rows).key("rows").begin_array();
  for (const i64 row : diff.first_rows) json.value(row);
  json.end_array().end_object();
}

}  // namespace

std::string differences_text(const Diff& diff, bool every_tensor) {
  std::string text = fmt::format("{:<12}{:<16}{:<22}{:<10}{:<10}{:<10}{}\n", "LAYER", "DIFFER", "ELEMENTS", "MAX ABS",
                                 "RMS", "RELATIVE", "COSINE");
  for (const LayerDiff& layer : diff.layers) text += layer_text(layer);
  if (!every_tensor) return text;
  text += "\n";
  for (const TensorDiff& tensor : diff.tensors) text += tensor_text(tensor);
  return text;
}

namespace {

/// "layer 3 routed expert 7: 3 matrices and tensors differ, rms 0.1, ...".
std::string part_text(const ChangedPart& part) {
  std::string text = printable(part.name) + ": ";
  text +=
      part.tensors == 1 ? "1 matrix or tensor differs" : fmt::format("{} matrices and tensors differ", part.tensors);
  if (part.numbers.elements > 0) text += ", " + figures_text(part.numbers);
  if (part.numbers.nan_in_one > 0) text += fmt::format(", {} NaN in only one", part.numbers.nan_in_one);
  if (part.times > 0) text += fmt::format("; {:.3g} times as far off as most", part.times);
  return text + "\n";
}

/// Names what a line a layer hides: the tensors themselves where they are few, or the experts, else those that are far
/// off from most.
std::string outstanding_text(const std::vector<TensorDiff>& tensors) {
  constexpr std::size_t kFew = 8;
  std::string text;
  std::vector<ChangedPart> parts = changed_parts(tensors);
  std::ranges::stable_sort(parts, std::ranges::greater(),
                           [](const ChangedPart& part) { return part.numbers.relative_norm(); });
  if (tensors.size() <= kFew)
    for (const TensorDiff& tensor : tensors) text += tensor_text(tensor);
  else if (parts.size() <= kFew)
    for (const ChangedPart& part : parts) text += part_text(part);
  for (const ChangedPart& part : far_off(tensors)) text += "stands out: " + part_text(part);
  return text;
}

}  // namespace

std::string diff_text(const Diff& diff, bool every_tensor) {
  if (diff.equal)
    return fmt::format("equal: the same {} matrices and tensors, {}\n", diff.compared, size_text(diff.bytes)) +
           configs_text(diff.configs);
  i64 only_a = 0, only_b = 0;
  for (const TensorDiff& tensor : diff.tensors)
    if (tensor.only_in) ++(*tensor.only_in == Side::A ? only_a : only_b);
  std::string text =
      fmt::format("different: {} of {} matrices and tensors differ, {} only in A, {} only in B\n",
                  static_cast<i64>(diff.tensors.size()) - only_a - only_b, diff.compared, only_a, only_b);
  text += differences_text(diff, every_tensor);
  if (!every_tensor)
    if (const std::string named = outstanding_text(diff.tensors); !named.empty()) text += "\n" + named;
  if (diff.equal_layers > 0)
    text += fmt::format("{} equal\n", diff.equal_layers == 1 ? "1 other layer is"
                                                             : fmt::format("{} other layers are", diff.equal_layers));
  return text + configs_text(diff.configs);
}

std::string configs_text(const std::vector<ConfigDifference>& configs) {
  if (configs.empty()) return {};
  return fmt::format("config.json lets the two compute differently, whatever their weights: {}\n",
                     to_sentence(configs));
}

void write_differences(JsonWriter& json, const Diff& diff) {
  json.key("config_differences").begin_array();
  for (const ConfigDifference& config : diff.configs)
    json.begin_object().field("field", config.field).field("a", config.a).field("b", config.b).end_object();
  json.end_array();
  json.key("layers").begin_array();
  for (const LayerDiff& layer : diff.layers) {
    json.begin_object();
    write_layer(json, layer.layer);
    json.field("tensors", layer.tensors).field("differing", layer.differing);
    json.field("only_in_one", layer.only_in_one).field("unlike", layer.unlike);
    json.field("elements", layer.elements).field("differing_elements", layer.differing_elements);
    write_figures(json, layer.numbers.elements > 0, layer.numbers, layer.changed);
    json.end_object();
  }
  json.end_array().key("tensors").begin_array();
  for (const TensorDiff& tensor : diff.tensors) write_tensor(json, tensor);
  json.end_array();
}

std::string diff_json(const Diff& diff, const std::vector<std::string>& warnings) {
  JsonWriter json;
  json.begin_object().field("equal", diff.equal);
  write_differences(json, diff);
  json.key("stands_out").begin_array();
  for (const ChangedPart& part : far_off(diff.tensors)) {
    const TensorDiff& tensor = diff.tensors[part.tensor];
    json.begin_object().field("name", part.name);
    write_layer(json, tensor.layer);
    json.key("expert");
    if (tensor.expert >= 0)
      json.value(tensor.expert);
    else
      json.null();
    json.field("tensors", part.tensors).field("times", part.times);
    write_figures(json, true, part.numbers, part.numbers);
    json.end_object();
  }
  json.end_array();
  json.field("compared", diff.compared).field("bytes", diff.bytes).field("equal_layers", diff.equal_layers);
  write_warnings(json, warnings);
  return json.end_object().text();
}

}  // namespace glu_ckpt::report
