#pragma once
/// Sentences about the arguments that a trainer saved in a checkpoint.

#include <string>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// A sentence about each argument that is not read, with the class or function that it names; one alone where none of
/// them could be read.
std::vector<std::string> unread_argument_texts(const Source& source, const ModelHints& hints);

/// The end of a sentence that says why no config.json can be made from arguments of which some are not read; empty
/// where all of them are.
std::string why_arguments_do_not_do(const ModelHints& hints);

/// A sentence about each argument that the trainer saved and that the configuration contradicts, with both values. None
/// where the configuration was made from the arguments, or the rest of the model is not known.
std::vector<std::string> contradiction_texts(const ModelHints& hints, const Recognition& model,
                                             const Inventory& tensors);

/// A sentence for the routed experts, and one for the shared one, whose rows are interleaved where the
/// megatron_args.txt beside the checkpoint has no word of it: a run that is started with that file reads them as
/// contiguous.
std::vector<std::string> listed_order_texts(const Source& source, const ModelHints& hints, const Recognition& model);

/// What a run without config.json lacks of the model that its saved arguments describe: of the families that they fit,
/// by the one that the tensors are nearest to. None where no family fits, or where there is a config.json.
std::vector<std::string> run_flaw_texts(const Source& source, const ModelHints& hints);

/// An error about a config.json that was made from arguments, of which the user has the arguments alone: it says so and
/// names them. Where a config.json was named, it asks whether that is the right one. Others stay as they are.
Error with_configuration(const Error& error, const ModelHints& hints);

/// Returns what `work` returns, which judges a model by the hints.
template <typename Work>
auto name_configuration(const ModelHints& hints, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw with_configuration(error, hints);
  }
}

/// Takes back a configuration that was made from arguments, and what was recognized by it, where it does not say all
/// that they do.
void require_all_arguments(const Inventory& tensors, ModelHints& hints, Recognition& model);

}  // namespace glu_ckpt
