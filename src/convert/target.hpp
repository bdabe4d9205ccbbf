#pragma once
/// What a conversion is to give, once the source is known: `--to` and the record of the source answered in full.

#include <vector>

#include "arch/megatron_args.hpp"
#include "format/output_format.hpp"
#include "glu_ckpt/convert.hpp"
#include "model/open_checkpoint.hpp"

namespace glu_ckpt {

struct Target {
  TargetAnswers to;
  FormerModel former;
  Format format = Format::Safetensors;
  /// The source's other files, by the names that they get.
  std::vector<ExtraFile> extra_files;
  /// Of the Hugging Face model that the output was made from: what the way back needs and its keys do not say.
  Record former_record;
  /// The output is a checkpoint for Megatron-Core that no Megatron saved: what its loader wants besides is made.
  bool for_megatron = false;
  /// The arguments of a run that loads it are written, anew where the source has some.
  bool makes_args = false;
  /// A config.json is where a reader of the output finds it.
  bool config_is_found = false;
  /// The source is such a checkpoint, and the output has no use for what was made.
  bool drops_made = false;
};

/// The format of the output: as asked, or what its extension says, or the source's. Throws Usage where two of them
/// contradict each other.
Format target_format(const std::filesystem::path& output, const ConvertOptions& options, const Source& source);

/// Throws Usage for what is no target, NoMap where nobody knows what else than experts the model has.
Target resolve_target(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source);

/// The arguments of a run that loads the output with that layout. Only where the model's architecture is known.
MegatronArgs arguments_for(const Checkpoint& source, const LayoutAnswers& to);

/// The files that are made for the output's reader, once its tensors are known.
std::vector<SideFile> made_files(const Target& target, const Checkpoint& source, const LayoutAnswers& to);

/// What the output holds besides tensors and files.
Structure output_structure(const Target& target, const Checkpoint& source, const std::vector<OutputTensor>& outputs,
                           bool drops_optimizer);

}  // namespace glu_ckpt
