#include "layout/bare_codes.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

#include "core/fail.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Adds the names of the weights that a tensor may be the scales of: a module's, as in `q_proj.weight_scale`, or a
/// parameter's, as in `down_proj_weight_scale`. Scales of inputs, of caches and second ones make no numbers of codes.
void add_owners(std::string_view name, std::unordered_set<std::string_view>& owners) {
  const std::size_t dot = name.rfind('.');
  const std::string_view last = name.substr(dot + 1);
  const auto is_foreign = [&](const QuantFormat* format) { return format->foreign_scales.contains(last); };
  if (!has(last, "scale") && std::ranges::none_of(quant_formats(), is_foreign)) return;
  for (const std::string_view other : {"input", "output", "activation", "global", "scale_2"})
    if (has(last, other)) return;
  for (const std::string_view other : {"k_scale", "v_scale", "q_scale", "kv_scale"})
    if (last == other) return;
  if (dot != std::string_view::npos) owners.insert(name.substr(0, dot));
  const std::size_t begin = dot + 1;
  for (const std::string_view word : {"_scale", "_weight_scale"})
    if (const std::size_t cut = name.find(word, begin); cut != std::string_view::npos)
      owners.insert(name.substr(0, cut));
}

bool has_owner(std::string_view name, const std::unordered_set<std::string_view>& owners) {
  if (owners.contains(name)) return true;
  for (const KindWords& words : kKindWords) {
    if (!is_weight(words.kind)) continue;
    for (const std::string& end :
         {"." + std::string(words.word), "_" + std::string(words.word), std::string(words.suffix)})
      if (!end.empty() && name.ends_with(end) && owners.contains(name.substr(0, name.size() - end.size()))) return true;
  }
  return false;
}

/// Returns whether weights of this dtype are numbers that programs compute with.
bool holds_numbers(Dtype dtype) {
  return dtype == Dtype::F16 || dtype == Dtype::BF16 || dtype == Dtype::F32 || dtype == Dtype::F64;
}

/// The weights and biases that are codes. A tensor that is only called a weight may hold indices; the model's own are
/// numbers, or codes.
std::set<std::size_t> codes_in(const Inventory& inventory, const Recognition& model) {
  std::set<std::size_t> codes;
  const auto add = [&](std::size_t index) {
    if (!holds_numbers(inventory.tensors[index].dtype)) codes.insert(index);
  };
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) {
    const TensorRef& tensor = inventory.tensors[i];
    if (tensor.shape.size() > 1 && tensor.name.ends_with(".weight") && holds_codes(tensor.dtype) &&
        !is_optimizer_tensor(tensor.name))
      codes.insert(i);
  }
  for (const ExpertBlock& block : model.blocks)
    for (const Matrix& matrix : block.matrices)
      if (!block.is_optimizer_state() && (is_weight(matrix.kind) || matrix.kind == TensorKind::Bias))
        add(matrix.tensor);
  for (const DenseMatrix& dense : model.dense)
    if (is_weight(dense.matrix.kind) || dense.matrix.kind == TensorKind::Bias) add(dense.matrix.tensor);
  for (const TensorCopy& copy : model.copies) add(copy.tensor);
  return codes;
}

}  // namespace

std::vector<std::size_t> bare_codes(const Inventory& inventory, const Recognition& model) {
  const std::set<std::size_t> codes = codes_in(inventory, model);
  if (codes.empty()) return {};
  std::unordered_set<std::string_view> owners;
  for (const TensorRef& tensor : inventory.tensors) add_owners(tensor.name, owners);
  std::vector<std::size_t> bare;
  std::ranges::copy_if(codes, std::back_inserter(bare),
                       [&](std::size_t index) { return !has_owner(inventory.tensors[index].name, owners); });
  return bare;
}

std::vector<std::string> bare_code_texts(const Inventory& inventory, const Recognition& model) {
  std::map<Dtype, std::vector<std::size_t>> by_dtype;
  for (const std::size_t index : bare_codes(inventory, model))
    by_dtype[inventory.tensors[index].dtype].push_back(index);
  std::vector<std::string> texts;
  texts.reserve(by_dtype.size());
  for (const auto& [dtype, tensors] : by_dtype)
    texts.push_back(fmt::format(
        "{} codes without scales in {} weight{}, such as '{}': nothing says which numbers they are. Is the download "
        "complete?",
        dtype_name(dtype), tensors.size(), tensors.size() == 1 ? "" : "s", inventory.tensors[tensors.front()].name));
  return texts;
}

void check_codes_are_named(const Inventory& inventory, const Recognition& model, const std::string& naming,
                           bool with_rest) {
  const std::vector<std::size_t> bare = bare_codes(inventory, model);
  const auto is_other = [&](std::size_t index) { return std::ranges::binary_search(model.others, index); };
  for (const std::size_t index : bare) {
    if (!with_rest && is_other(index)) continue;
    const TensorRef& tensor = inventory.tensors[index];
    fail(ErrorCode::ScaleMissing, {{}, tensor.name},
         "'{}' is {} {}, codes without scales: under a name of {} they would be taken for the weights themselves. Is "
         "the download complete?",
         tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), naming);
  }
  if (!with_rest) return;
  for (const DenseMatrix& dense : model.dense) {
    const TensorRef& tensor = inventory.tensors[dense.matrix.tensor];
    if (is_weight(dense.matrix.kind) && holds_codes(tensor.dtype))
      fail_asking({"--decode"}, ErrorCode::NoSpelling, {{}, tensor.name},
                  "'{}' is {} {}, and naming {} has no place for its scales; decode the weights (--decode bf16)",
                  tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), naming);
  }
}

}  // namespace glu_ckpt
