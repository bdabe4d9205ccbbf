#pragma once
/// Files of a directory beside the lines that glu_ckpt.json has for them.

#include <filesystem>
#include <functional>
#include <vector>

#include "format/record_file.hpp"
#include "glu_ckpt/check.hpp"

namespace glu_ckpt {

/// The bytes that check_files() reads at most.
i64 recorded_bytes(const std::vector<FileRecord>& files);

/// The places of a checkpoint's files: the directory of its tensors, or also beside that, where Megatron's tracker file
/// named it.
enum class FilesReach { Below, Beside };

/// Compares each file with its line, in order. Throws RecordInvalid where a line names a file out of `reach`; `record`
/// is the file that the lines were read from.
std::vector<CheckedFile> check_files(const std::filesystem::path& directory, const std::vector<FileRecord>& files,
                                     FilesReach reach, const InputPart& record, int jobs,
                                     const std::function<void(i64)>& on_progress);

}  // namespace glu_ckpt
