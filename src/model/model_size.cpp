#include "model/model_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/float_rows.hpp"
#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "layout/bare_codes.hpp"
#include "quant/decoded_source.hpp"

namespace glu_ckpt {
namespace {

/// Counts what is no optimizer's and no copy; none where codes are left that nobody knows the weights of.
std::optional<i64> count_parameters(const Source& source, const Quantization& found, const Recognition& model) {
  const Inventory& stored = source.inventory();
  std::set<std::string> copies;
  for (const TensorCopy& copy : model.copies) copies.insert(stored.tensors[copy.tensor].name);
  const bool is_quantized = !found.tensors.empty();
  Inventory decoded;
  try {
    if (is_quantized) decoded = decoded_inventory(stored, found, Dtype::BF16);
  } catch (const Error&) {
    return std::nullopt;  // What is wrong with the codes is a problem of its own.
  }
  i64 count = 0;
  for (const TensorRef& tensor : (is_quantized ? decoded : stored).tensors) {
    if (is_optimizer_tensor(tensor.name) || copies.contains(tensor.name)) continue;
    if (tensor.shape.size() > 1 && holds_codes(tensor.dtype)) return std::nullopt;
    if (is_float(tensor.dtype)) count += tensor.bytes * 8 / dtype_bits(tensor.dtype);
  }
  return count;
}

/// The weights of routed experts; none where their sizes differ within a layer.
std::optional<i64> count_routed(const Recognition& model) {
  i64 count = 0;
  for (const ExpertBlock& block : model.blocks) {
    if (block.set != ExpertSet::Routed || block.is_optimizer_state()) continue;
    if (block.intermediate_size < 0) return std::nullopt;
    const i64 matrices = block.glu.kind == Glu::Kind::None ? 2 : 3;
    count += block.num_experts * matrices * block.hidden_size * block.intermediate_size;
  }
  return count;
}

std::string_view attention_name(Attention attention, const Architecture& architecture) {
  switch (attention) {
    case Attention::Latent: return "multi-head latent";
    case Attention::Delta: return "gated delta net";
    case Attention::Mamba: return "Mamba-2";
    case Attention::None: return "none";
    case Attention::Grouped: break;
  }
  if (architecture.kv_heads == architecture.heads) return "multi-head";
  return architecture.kv_heads == 1 ? "multi-query" : "grouped-query";
}

/// "grouped-query"; of several kinds "36 gated delta net, 12 grouped-query". Layers without are left out.
std::string attention_text(const Architecture& architecture) {
  std::map<std::string_view, i64> layers;
  for (const LayerKind& kind : architecture.kinds)
    if (kind.attention != Attention::None) ++layers[attention_name(kind.attention, architecture)];
  if (layers.size() == 1) return std::string(layers.begin()->first);
  std::string text;
  for (const auto& [name, count] : layers) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

}  // namespace

ModelSize model_size(const Source& source, const Quantization& found, const ModelHints& hints,
                     const Recognition& model) {
  ModelSize size;
  size.parameters = count_parameters(source, found, model);
  if (const Architecture* const architecture = model.architecture.get(); architecture != nullptr) {
    size.layers = architecture->layers;
    size.vocabulary = architecture->extent(Dim::Vocab);
    size.hidden = architecture->extent(Dim::Hidden);
    size.dense_width = architecture->extent(Dim::DenseWidth);
    size.heads = architecture->heads;
    size.kv_heads = architecture->kv_heads;
    size.attention = attention_text(*architecture);
    size.tied = architecture->tied;
  }
  const ConfigFields config(hints.config);
  size.context = config.integer({"max_position_embeddings"}).value_or(0);
  if (model.blocks.empty()) return size;
  size.experts_per_token = config.integer({"num_experts_per_tok", "moe_topk", "moe_k"}).value_or(0);
  const i64 experts = hints.num_experts.value_or(0);
  const std::optional<i64> routed = count_routed(model);
  if (!size.parameters || !routed || experts <= 0 || size.experts_per_token <= 0 || size.experts_per_token > experts)
    return size;
  const i64 idle = *routed / experts * (experts - size.experts_per_token);
  if (idle < *size.parameters) size.active_parameters = *size.parameters - idle;
  return size;
}

}  // namespace glu_ckpt
