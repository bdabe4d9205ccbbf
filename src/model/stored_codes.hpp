#pragma once
/// The quantized weights of a checkpoint as it is stored: found once, and judged alike by all commands.

#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/model.hpp"
#include "quant/quantized_tensor.hpp"
#include "quant/recast_source.hpp"

namespace glu_ckpt {

/// Finds the quantized weights. Their scales must cover them, and their sizes must be those that the codes' own tensors
/// and config.json state: all commands judge by this one function. `model` is
/// null where no naming explains it: then shapes alone tell which axes its codes have.
Quantization find_sound(const Source& source, const ModelHints& hints, const Recognition* model);

/// The quantized weights of a checkpoint, or why they cannot be told.
struct JudgedCodes {
  Quantization found;
  std::optional<Error> fault;
  /// No command can go on: scales or sizes are broken, or scales are not there. What the engine does not know, or a
  /// configuration that contradicts it, stops only what needs numbers.
  bool stops_all = false;
};

/// The formats of a checkpoint's quantized weights as they are read: none where they are decoded, or where it cannot be
/// told what belongs together.
std::vector<std::string> quantized_formats(const Checkpoint& checkpoint);

JudgedCodes judge_codes(const Source& source, const ModelHints& hints, const Recognition* model);

/// Says in which order FC1 holds the rows of gate and up that have a scale each, where options or the record know it.
void find_parts(const Source& source, const SourceAnswers& answers, Quantization& found);

/// share_second_scales() of all NVFP4 experts that have gate and up in tensors of their own.
SharedScales share_second_scales(Checkpoint& checkpoint);

}  // namespace glu_ckpt
