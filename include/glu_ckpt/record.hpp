#pragma once
/// The facts that a checkpoint states about itself beside its tensors: config.json, and the record of an earlier run.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// An argument of a run that is not read.
struct UnreadArg {
  /// Empty where none of the arguments could be read.
  std::string name;
  /// "is a functools.partial", or the sentence of the error that says why none could be read.
  std::string why;
};

/// Arguments of a run of Megatron-LM.
struct RunArguments {
  /// The order of gate and up that they ask for, as --from-glu says it: of routed experts and of the shared one. Empty
  /// where they say nothing.
  std::string glu = {};
  std::string shared_glu = {};
  /// The arguments themselves, as a JSON object of what is a number, a text, a flag, None, or a list of such; empty
  /// where there are none.
  std::string args = {};
  std::vector<UnreadArg> unread = {};
};

/// The facts of `config.json` that names alone do not give. A field is absent where the file or the key is.
struct ModelHints {
  std::string model_type;
  /// The model_type of `text_config`: the language model inside a multimodal one.
  std::string text_model_type;
  std::optional<i64> num_hidden_layers;
  /// Experts per MoE layer, where one number holds for all layers.
  std::optional<i64> num_experts;
  /// "silu", "gelu_pytorch_tanh", ...; empty where there is none.
  std::string hidden_act = {};
  /// The clamp of gate and up.
  std::optional<double> swiglu_limit = std::nullopt;
  /// gpt-oss's factor of the gate in its sigmoid.
  std::optional<double> swiglu_alpha = std::nullopt;
  /// The first other field, or value of another type, that begins with "swiglu_": the activation is not what hidden_act
  /// says.
  std::string swiglu_other = {};
  /// The arguments that a trainer saved in the checkpoint.
  RunArguments trained = {};
  /// The arguments in the megatron_args.txt that lies beside the checkpoint.
  RunArguments listed = {};
  /// The text itself, as strict JSON: the sizes of a whole model are read from it (src/arch).
  std::string config = {};
  /// Rows of the blocks that FP8 weights have scales for (`weight_block_size`), where it says so.
  std::optional<i64> scale_rows = std::nullopt;
  /// `config` was made from `trained`, and nobody has it as a file.
  bool config_is_made = false;
  /// The file that was named as the model's config.json, which may be that of another model; empty where none was.
  std::string named_config = {};
  /// The end of a sentence that says why no configuration was made from them, and the options that would say what is
  /// missing; empty where nobody tried, or it was made.
  std::string no_config = {};
  std::vector<std::string> config_options = {};
};

/// Provenance: what an earlier run (or `stamp`) recorded about a checkpoint. Keys are the contract's
/// without the `glu_ckpt.` prefix: version, naming, experts, glu, shared_glu, optimizer_glu, digest, source_digest,
/// num_hidden_layers; config, the text of a config.json that does not lie beside the file; and entries that begin with
/// "hf_", which say of a model in another program's naming how it was in Hugging Face's. Values are the strings as
/// stored.
using Record = std::map<std::string, std::string>;

}  // namespace glu_ckpt
