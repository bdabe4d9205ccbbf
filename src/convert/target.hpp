#pragma once
/// Completes what was asked of a conversion, once the source is known, from `--to` and the source's record.

#include <string>
#include <string_view>
#include <vector>

#include "arch/model_args.hpp"
#include "families/architecture.hpp"
#include "format/output_format.hpp"
#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/plan.hpp"
#include "model/open_checkpoint.hpp"

namespace glu_ckpt {

/// Targets of --to; their namings begin with the same words.
inline constexpr std::string_view kMegatron = "megatron";
inline constexpr std::string_view kHf = "hf";

struct Target {
  TargetAnswers to;
  FormerModel former;
  Format format = Format::Safetensors;
  /// The source's other files, by the names that they get.
  std::vector<ExtraFile> extra_files;
  /// Entries about the Hugging Face model that the output was made from: the way back needs them, and keys do not say
  /// them.
  Record former_record;
  /// The output is a checkpoint for Megatron-Core that no Megatron saved: what its loader wants besides is made.
  bool for_megatron = false;
  /// The arguments of a run that loads it are written, anew where the source has some.
  bool makes_args = false;
  /// The config.json that is written though no file among the source's has it; mostly without a name, and none.
  SideFile config;
  /// There is a config.json beside the tensors, where programs for Hugging Face's form want it.
  bool has_config = false;
  /// A config.json is where open_source() finds it in the output.
  bool config_is_found = false;
  /// The source is such a checkpoint, and the output has no use for what was made.
  bool drops_made = false;

  // complete_target() fills these.
  /// The arguments of a run that loads the output; empty where none are written (makes_args).
  MegatronArgs args;
  /// The files that are made for the output's reader.
  std::vector<SideFile> made_files;
  /// What the output holds besides tensors and files.
  Structure structure;
};

/// Throws Usage for what is no target, and where the name of the output and --format contradict each other; NoMap where
/// nobody knows what else than experts the model has.
Target resolve_target(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source);

/// Returns whether the tensors outside of the experts have their names on the hub.
inline bool is_hub_model(const Recognition& model) {
  return model.architecture != nullptr && model.dense_naming == &model.architecture->family->naming;
}

/// Returns whether the source was made of such a model, as its record says, and has other names now.
inline bool was_hub_model(const Source& source, const Recognition& model) {
  return source.record().contains("hf_model_type") && !is_hub_model(model);
}

/// Says where the source's other files go, which of them are edited, and which files the target wants besides: a part
/// of resolve_target(), in side_files.cpp as the next one.
void place_extra_files(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source,
                       Target& target);

/// Makes what goes beside the output's tensors, once the plan says which those are.
void complete_target(Target& target, const Checkpoint& source, const Plan& plan, bool drops_optimizer);

/// Prints the form of each layer's routed experts as one entry of a record: "0-2/grouped/contiguous
/// mtp.0/indexed/split". Layers that follow one another and are alike share a word. Empty where all
/// layers are alike, for then one answer for the whole model says it.
std::string print_expert_forms(const std::vector<ExpertBlock>& blocks);

/// Throws RecordInvalid for what print_expert_forms does not print.
ExpertForms parse_expert_forms(std::string_view text);

}  // namespace glu_ckpt
