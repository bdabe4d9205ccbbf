#pragma once
/// Tells which programs load an opened checkpoint as it is.

#include <string>
#include <vector>

#include "arch/loads_in.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// The facts of an opened checkpoint that decide about it, except those of files beside the tensors.
StoredModel stored_model(const Source& source, const ModelHints& hints, const Recognition& model);

/// `quantized`: it holds codes, in whatever tensors.
LoadsIn loads_in(const Source& source, const ModelHints& hints, const Recognition& model, bool quantized);

/// Says why what is stored in the naming `rest` is not the whole model; empty where it is. `keeps_keys`: under the
/// names that it has.
std::string why_not_whole(const Recognition& model, std::string_view rest, bool keeps_keys);

/// Returns whether config.json says that there are MTP layers, and no tensor of one is there.
bool lacks_promised_mtp(const Recognition& model);

/// A sentence for each set of files of which another program may read a different one, or that lacks some.
std::vector<std::string> file_doubts(const Source& source, const ModelHints& hints);

/// A sentence for each tower of a multimodal model that is not there at all: programs that read the hub's form miss it,
/// and trainers of the language model do not.
std::vector<std::string> missing_tower_texts(const Recognition& model);

/// Those of file_doubts(), and a sentence for each way in which the checkpoint is not whole or contradicts itself:
/// files of ranks that are not there, tensors that are missing. The last one counts the tensors that are not named.
std::vector<std::string> flaw_texts(const Source& source, const ModelHints& hints, const Recognition& model,
                                    bool keeps_keys = true);

/// Says of a part of a model, or of a model of another kind, what loads it; empty for any other checkpoint.
std::string other_model_text(const Source& source);

/// Says that ranks of a legacy checkpoint are missing; empty where none is.
std::string missing_ranks_text(const Source& source, const ModelHints& hints);

/// Says that the source is one file of several; empty where it is not.
std::string lone_shard_text(const Source& source);

/// Says of each part of the source beside its tensors that it holds an optimizer's state (find_optimizer_parts).
std::vector<std::string> optimizer_part_texts(const Source& source);

/// Says of each symlink to nowhere in the source that its file is missing.
std::vector<std::string> dangling_texts(const Source& source);

/// Throws NotFound where config.json is a symlink to nowhere: without it the model would be taken for one of which
/// nothing is known but its experts.
void require_config(const Source& source);

}  // namespace glu_ckpt
