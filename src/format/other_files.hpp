#pragma once
/// Files and directories that are no checkpoint that is read: says what they are, and the way on.

#include <filesystem>
#include <string>

namespace glu_ckpt {

/// "is a GGUF file (llama.cpp), which is not read; ...": by the file's name or first bytes. Empty where neither tells.
std::string other_file_text(const std::filesystem::path& file);

/// The same for a directory in which no checkpoint was found.
std::string other_directory_text(const std::filesystem::path& directory);

}  // namespace glu_ckpt
