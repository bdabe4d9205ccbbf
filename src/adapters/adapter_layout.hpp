#pragma once
/// Lays the factors of an adapter out anew: which tensors another layout has, and where in the adapter's their
/// elements are.

#include "adapters/logical_adapter.hpp"

namespace glu_ckpt {

/// The layout of the factors of routed experts.
enum class AdapterLayout {
  /// A pair for gate, up and down of each expert.
  Indexed,
  /// As transformers has packed experts: a pair for gate_up_proj, one for down_proj, of all experts.
  Packed,
  /// As SGLang and vLLM have factors that experts share: an axis of experts in front, of one where they share it.
  Stacked,
  /// As Megatron-Bridge has adapters of grouped experts: pairs for linear_fc1 and linear_fc2.
  Megatron,
};

struct LayAnswers {
  AdapterLayout layout = AdapterLayout::Indexed;
  bool grow_rank = false;
  /// Leave out ranks that add nothing, and pairs without any other: what two adapters that add the same have alike.
  bool live_ranks = false;
  /// One factor for all experts: of Stacked the outer one, A of gate and up and B of down; of Megatron both.
  bool shares = false;
  /// Says of Stacked and Megatron that gate and up have a pair of factors each.
  bool splits_gate_up = false;
  /// Says of Packed who is to read the files.
  PackedFiles files = PackedFiles::Told;
  /// The program that is to read it, for refusals: "vllm".
  std::string program = {};
};

/// A tensor of the other layout.
struct LaidTensor {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<i64> shape;
  /// Matrices of the adapter, and where each goes. The tensor is zero elsewhere.
  struct Part {
    Matrix from;
    Matrix to;
  };
  std::vector<Part> parts;
};

/// A module of the other layout, for adapter_config.json.
struct LaidModule {
  std::string name;
  bool is_packed = false;
  i64 rank = 0;
  double alpha = 0;
};

struct LaidAdapter {
  /// Without `base_model.model.`.
  std::vector<LaidModule> modules;
  std::vector<LaidTensor> tensors;
  /// The parameters of packed experts, "mlp.experts.gate_up_proj", the outer wrapper's last.
  std::vector<std::string> parameters;
  /// The alphas are those without use_rslora.
  bool forgets_rslora = false;
  /// Sentences that the user should know.
  std::vector<std::string> notes;
};

/// Lays out `modules`, which read_factors() found in `adapter`. Elements are read where a layout is exact only for
/// some: where one A is to serve gate and up, and where ranks of gate and of up are apart. `naming` is the family's on
/// the hub, `architecture` its sizes; both may be null where no packed experts are read or written. Throws NotExact,
/// NoSpelling, NoMap and NotSupported.
LaidAdapter lay_out_adapter(const Source& adapter, const AdapterConfig& config,
                            const std::vector<AdaptedModule>& modules, const Naming* naming,
                            const Architecture* architecture, const LayAnswers& answers);

/// Returns adapter_config.json for the other layout: ranks, alphas, targets; the rest of `text` stays.
std::string laid_config(const std::string& text, const AdapterConfig& config, const LaidAdapter& laid);

}  // namespace glu_ckpt
