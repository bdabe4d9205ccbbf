#pragma once
/// Checks whether DST may be written.

#include <filesystem>

#include "glu_ckpt/convert.hpp"

namespace glu_ckpt {

/// The output's path without the trailing slash that it may be given with.
inline std::filesystem::path output_name(const std::filesystem::path& output) {
  return output.has_filename() ? output : output.parent_path();
}

/// Throws OutputExists where --overwrite must not replace what is at `output`: it is no checkpoint, has files or
/// folders that are not the checkpoint's, which the message names, or is a device, a FIFO or a socket.
void check_replaceable(const std::filesystem::path& output);

/// Throws OutputExists, OutputInsideSource, NotFound. Reads names only.
void check_output(const std::filesystem::path& input, const std::filesystem::path& output,
                  const ConvertOptions& options);

/// Throws OutputInsideSource where writing `output` would replace, or come to lie in, what the answers name beside the
/// source: an adapter, a checkpoint that fills it, a config.json, a list of experts.
void check_apart_from_inputs(const std::filesystem::path& output, const SourceAnswers& answers);

}  // namespace glu_ckpt
