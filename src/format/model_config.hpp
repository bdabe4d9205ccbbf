#pragma once
/// The few facts of a Hugging Face config.json that tensor names do not tell, as text: opens no file.

#include <string>
#include <string_view>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// A config.json longer than this is refused.
inline constexpr i64 kMaxConfigBytes = i64{16} << 20;

/// Fields of an unexpected type are ignored, since only hints are read; a text that is not a JSON object
/// or whose model_type is no string throws ConfigJson. `file` is for messages.
ModelHints parse_config(std::string_view text, const std::string& file);

/// Lets a source present a model of another configuration: the files beside it, its hints and, after the edits that
/// there are, config_edit.
void edit_config(CheckpointInfo& info, const std::function<std::string(std::string_view text)>& edit);

/// The text with what Python's json writes and JSON has no word for, such as Infinity, as empty texts of the same
/// length: all positions stay.
std::string without_python_numbers(std::string_view text);

}  // namespace glu_ckpt
