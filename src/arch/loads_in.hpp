#pragma once
/// Which programs load a checkpoint as it is.

#include "arch/architecture.hpp"

namespace glu_ckpt {

/// All that decides about it.
struct StoredModel {
  LayoutAnswers layout;
  /// The spelling of what is outside of the experts (DenseNaming::name); empty where nobody knows it.
  std::string rest;
  /// Why `rest` is empty.
  std::string why_no_rest = "nothing but experts of the model is there";
  /// "safetensors", "torch", "torch-dist".
  std::string format;
  /// null where the family has no map.
  const Architecture* architecture = nullptr;
  /// Why that is null.
  std::string no_architecture;
  /// megatron_args.txt lies beside it.
  bool has_args = false;
  /// Experts are stored as codes and scales.
  bool quantized = false;
  /// As quantization_config calls it; empty where there is none.
  std::string quant_method;
};

/// The programs, or why there is none.
LoadsIn loads_in(const StoredModel& model);

}  // namespace glu_ckpt
