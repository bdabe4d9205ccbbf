/// A config.json and the tensors of quantized experts, in pairs that nobody would write: whatever is found, recognized
/// and planned must be sound, and everything else refused by an Error.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "format/model_config.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/plan.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quantization_text.hpp"

namespace {

using namespace glu_ckpt;

constexpr auto kOwners = std::to_array<std::string_view>(
    {"mlp.experts.0.gate_proj.", "mlp.experts.0.up_proj.", "mlp.experts.0.down_proj.", "mlp.experts.1.gate_proj.",
     "mlp.experts.1.up_proj.", "mlp.experts.1.down_proj.", "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
     "mlp.shared_expert.gate_proj.", "mlp.shared_expert.up_proj.", "mlp.shared_expert.down_proj.",
     "self_attn.q_proj."});
constexpr auto kDtypes = std::to_array<Dtype>({Dtype::U8, Dtype::I8, Dtype::I32, Dtype::I64, Dtype::F8_E4M3,
                                               Dtype::F8_E5M2, Dtype::F8_E8M0, Dtype::F16, Dtype::BF16, Dtype::F32});
constexpr auto kExtents = std::to_array<i64>({0, 1, 2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, i64{1} << 40});

/// Five bytes a tensor: owner, kind, dtype and rank, and two extents in each of the others.
Inventory read_inventory(std::string_view bytes) {
  Inventory inventory;
  inventory.files = {"model.safetensors"};
  std::set<std::string> names;
  for (; bytes.size() >= 5 && inventory.tensors.size() < 64; bytes.remove_prefix(5)) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
    const std::string_view owner = kOwners[at(0) % kOwners.size()];
    const KindWords& words = kKindWords[at(1) % kKindWords.size()];
    TensorRef tensor;
    tensor.name =
        "model.layers.0." + std::string(owner) + std::string(owner.ends_with('.') ? words.word : words.suffix);
    tensor.dtype = kDtypes[at(2) % kDtypes.size()];
    i64 bytes_of = 1;
    for (std::size_t axis = 0; axis < at(2) / 16 % 5; ++axis)
      tensor.shape.push_back(kExtents[(at(3 + axis / 2) >> (axis % 2 * 4)) % 16]);
    for (const i64 extent : tensor.shape) bytes_of = extent > (i64{1} << 20) ? 0 : bytes_of * extent;
    tensor.bytes = bytes_of * dtype_bits(tensor.dtype) / 8;
    if (names.insert(tensor.name).second) inventory.tensors.push_back(std::move(tensor));
  }
  return inventory;
}

/// Decoding reads as many scales as the tensor has, and writes as many numbers as the decoded one.
bool has_all_scales(const Inventory& inventory, const QuantizedTensor& weight) {
  const auto count = [](const std::vector<i64>& shape) {
    i64 total = 1;
    for (const i64 extent : shape) total = extent > (i64{1} << 20) ? 0 : total * extent;
    return total;
  };
  const bool of_parts = weight.scales_of_parts && !weight.global;
  const i64 scales = count(inventory.tensors[weight.scales].shape), numbers = count(weight.shape);
  const i64 last = weight.matrices - 1;
  const i64 wanted = (weight.scales_of(last) + 1) * (of_parts ? 2 : weight.grid_rows() * weight.grid_cols());
  const i64 wanted_seconds = (weight.global_of(last) + 1) * (weight.scales_of_parts ? 2 : 1);
  if (weight.global && count(inventory.tensors[*weight.global].shape) != wanted_seconds) return false;
  return scales == 0 || numbers == 0 || (scales == wanted && numbers == weight.matrices * weight.rows * weight.cols);
}

void check_found(const Inventory& inventory, const Quantization& found) {
  for (const QuantizedTensor& weight : found.tensors)
    if (weight.weight >= inventory.tensors.size() || weight.scales >= inventory.tensors.size() || weight.rows < 1 ||
        weight.cols < 1 || weight.cell_rows < 1 || weight.cell_cols < 1 || !has_all_scales(inventory, weight))
      std::abort();
}

/// Plans of every order must prove, or be refused.
void plan_all(const Inventory& inventory, const ModelHints& hints) {
  const Recognition recognition = recognize(inventory, hints, {}, {});
  for (const Glu& glu : {Glu{Glu::Kind::Split, 0}, Glu{Glu::Kind::Contiguous, 0}, Glu{Glu::Kind::Interleaved, 8}})
    for (const Experts experts : {Experts::Indexed, Experts::Grouped}) try {
        PlanOptions options;
        options.to.glu = glu;
        options.to.experts = experts;
        check_plan(inventory, make_plan(inventory, recognition, options));
      } catch (const Error& error) {
        if (error.code() == ErrorCode::PlanUnproved) std::abort();
      }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find('\0'), text.size());
  const std::string config(text.substr(0, end));
  const Inventory inventory = read_inventory(text.substr(std::min(end + 1, text.size())));
  // Whatever axes their naming may have.
  for (const auto& axes : {std::optional<Axes>(), std::optional(Axes::OutIn), std::optional(Axes::InOut)}) try {
      WeightAxes of_all;
      for (std::size_t i = 0; axes && i < inventory.tensors.size(); ++i) of_all.emplace(i, *axes);
      check_found(inventory, find_quantized(inventory, read_quant_config(config), of_all));
    } catch (const Error&) {
    }
  if (without_quantization(config).size() > config.size()) std::abort();
  (void)with_block_rows(config, 32);
  (void)with_mxfp8(config);
  try {
    ModelHints hints = parse_config(config.empty() ? "{}" : config, "fuzz");
    hints.scale_rows = block_rows_of(read_quant_config(config));
    plan_all(inventory, hints);
  } catch (const Error&) {
  }
  return 0;
}
