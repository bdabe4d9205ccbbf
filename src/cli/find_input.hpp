#pragma once
/// The path that somebody means who names a checkpoint.

#include <string>

namespace glu_ckpt::cli {

/// `text` itself, or the snapshot that it names in the local cache of Hugging Face: "Qwen/Qwen3-30B-A3B", or the
/// repository's directory there. Throws Usage for what is no path: "-", s3://..., https://...
std::string find_input(const std::string& text);

}  // namespace glu_ckpt::cli
