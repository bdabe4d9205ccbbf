#pragma once
/// Opened checkpoints: errors that say where in the files they are, and the order of gate and up that calls depend on.

#include <string>
#include <vector>

#include "glu_ckpt/model.hpp"
#include "glu_ckpt/run_options.hpp"
#include "quant/quant_config.hpp"
#include "quant/recast_source.hpp"

namespace glu_ckpt {

/// The digest in the checkpoint's own record, where it is of what was recognized: one of a whole model says nothing
/// once its config.json is gone, nor of what is left once some tensors are dropped. Empty where there is none.
std::string recorded_digest_of(const Checkpoint& checkpoint);

/// Throws `error` again: with the file of the source that it is about and, where the source is broken and holds the
/// tensor at fault, the byte at which that begins. An error that names a file stays as it is. Where weights are
/// quantized and not being decoded, it names --decode.
[[noreturn]] void fail_with_place(const Error& error, const Source& source, bool decoding = false);

/// Returns what `work` returns, which knows a source's names, shapes and records alone. `decoding`: it is what --decode
/// asked for.
template <typename Work>
auto with_place(const Source& source, const Work& work, bool decoding = false) {
  try {
    return work();
  } catch (const Error& error) {
    fail_with_place(error, source, decoding);
  }
}

/// Throws UnknownGlu where the order of gate and up of any layer is unknown. `option_prefix` is that of the options
/// that would say it (SourceAnswers::option_prefix).
void require_known_glu(const Checkpoint& checkpoint, const std::string& option_prefix);

/// Checks two checkpoints, whose missing answers are asked for together.
void require_known_glu(const Checkpoint& a, const std::string& a_prefix, const Checkpoint& b,
                       const std::string& b_prefix);

/// Checks one layer.
void require_known_glu(const Checkpoint& checkpoint, const ExpertBlock& block, const std::string& option_prefix);

/// The options, without their prefix, that would say the orders of gate and up that nothing says: "glu", "shared-glu",
/// "optimizer-glu".
std::vector<std::string> missing_answers(const Recognition& recognition);

/// Reads what config.json and the files beside it say of how weights are quantized.
QuantConfig quant_config_of(const Source& source, const ModelHints& hints);

/// open_checkpoint(), and tells `run` what is doubtful about the set of files: every command that reads them says so.
Checkpoint open_and_warn(const RunOptions& run, const std::filesystem::path& path, const SourceAnswers& answers = {});

/// Names the configuration that says that weights are quantized where none of the source's is: that of the model that a
/// run began from, or that was left behind. Programs would look for codes and scales. Empty where there is none.
std::string stale_quantization(const Source& source, const SourceAnswers& answers);

/// Says that the source is one file of several; empty where it is not.
std::string lone_shard_text(const Source& source);

/// Says of each part of the source beside its tensors that it holds an optimizer's state (find_optimizer_parts).
std::vector<std::string> optimizer_part_texts(const Source& source);

/// Says of each symlink to nowhere in the source that its file is missing.
std::vector<std::string> dangling_texts(const Source& source);

bool has_unknown_glu(const Recognition& recognition);

/// Bytes of all tensors that calls read: all but those that SourceAnswers::drop_optimizer left out.
i64 tensor_bytes(const Model& model);

/// share_second_scales() of all NVFP4 experts that have gate and up in tensors of their own.
SharedScales share_second_scales(Checkpoint& checkpoint);

}  // namespace glu_ckpt
