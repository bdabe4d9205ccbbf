#pragma once
/// The arguments of Megatron-LM that change what a model computes, and a comparison of those that a trainer saved with
/// those that a config.json asks for.

#include <string>
#include <vector>

#include "families/arg_rows.hpp"
#include "families/saved_args.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// An argument that was saved with another value than a configuration asks for. Both are words for messages.
struct ArgumentDifference {
  std::string name;
  std::string saved;
  std::string asked;
};

/// `asked` is MegatronArgs::text, `saved` ModelHints::trained.args, `tensors` what lies beside them. An argument that
/// was not saved does not differ; neither does one that has no say in this model, such as the scale of YaRN without
/// YaRN.
std::vector<ArgumentDifference> argument_differences(const std::string& asked, const std::string& saved,
                                                     const Inventory& tensors);

/// The saved arguments that change what the model computes and that none of `read` reads; `asked` is what they are in a
/// model of a family without a row for them.
std::vector<ArgumentDifference> unread_arguments(const SavedArgs& args, const std::vector<std::string_view>& read);

/// `config` is the text of config.json. Requires Recognition::architecture. Throws NoMap where a field that every run
/// needs is missing, ConfigJson where one is impossible.
MegatronArgs megatron_args(const std::string& config, const Recognition& model, const WrittenForm& to);

}  // namespace glu_ckpt
