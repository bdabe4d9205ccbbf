/// Refuses outputs that exist, or that would change the source, before any work.

#include "convert/check_output.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <vector>

#include "core/fail.hpp"
#include "format/check_apart.hpp"
#include "format/checkpoint_files.hpp"
#include "format/record_file.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

bool is_tensor_file(const fs::path& path) { return format_of_name(path) || path.extension() == kDistcpSuffix; }

/// Returns whether there are tensor files in or below the directory, symlinks aside.
bool has_tensor_files(const fs::path& directory) {
  const auto names = list_directory(directory);
  return std::ranges::any_of(names, [&](const std::string& name) {
    const fs::path path = directory / name;
    return is_tensor_file(path) || (link_kind(path) == PathKind::Directory && has_tensor_files(path));
  });
}

/// Returns whether all files in or below the directory are among `recorded`, whose names begin with `prefix`.
bool holds_recorded_files_alone(const fs::path& directory, const std::string& prefix,
                                const std::set<std::string, std::less<>>& recorded) {
  const auto names = list_directory(directory);
  return std::ranges::all_of(names, [&](const std::string& name) {
    if (link_kind(directory / name) == PathKind::Directory)
      return holds_recorded_files_alone(directory / name, prefix + name + "/", recorded);
    return recorded.contains(prefix + name);
  });
}

/// Returns whether `--to megatron` wrote hf/ beside the iteration, and nobody has put another file there since.
bool wrote_hf_beside(const fs::path& iteration, const fs::path& hf) {
  const fs::path path = iteration / kRecordFileName;
  if (link_kind(hf) != PathKind::Directory || !path_exists(path)) return false;
  std::set<std::string, std::less<>> recorded;
  try {
    const std::string text = read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid);
    for (FileRecord& file : parse_record_json(text, {path.string(), {}}).files) recorded.insert(std::move(file.name));
  } catch (const Error&) {
    return false;
  }
  return holds_recorded_files_alone(hf, std::string(kHfFolder), recorded);
}

/// Returns whether a directory in a checkpoint holds another one. The files of a Megatron rank are in a directory of
/// their own.
bool holds_other_checkpoint(const fs::path& directory) {
  if (!directory.filename().string().starts_with("mp_rank_")) return has_tensor_files(directory);
  const auto names = list_directory(directory);
  return std::ranges::any_of(names, [&](const std::string& name) {
    return link_kind(directory / name) == PathKind::Directory && has_tensor_files(directory / name);
  });
}

bool marks_checkpoint(std::string_view name) {
  return name == "glu_ckpt.json" || name == "model.safetensors" || name == ".metadata" ||
         name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin" ||
         name == "pytorch_model.bin.index.json" || name.starts_with("mp_rank_");
}

/// Megatron keeps the iterations of a run side by side: more than one must not go, nor what is no checkpoint.
/// `--to megatron` writes the other files of the source to hf/ beside them.
bool only_one_iteration(const fs::path& path) {
  std::vector<std::string> directories = list_directory(path);
  std::erase_if(directories, [&](const std::string& name) { return !is_directory_at(path / name); });
  const bool has_hf = std::erase(directories, std::string(kHfDirectory)) > 0;
  if (directories.size() != 1) return false;
  const fs::path iteration = path / directories.front();
  return std::ranges::any_of(list_directory(iteration), marks_checkpoint) &&
         (!has_hf || wrote_hf_beside(iteration, path / kHfDirectory));
}

/// Returns whether --overwrite may remove it: an empty directory, a file of tensors, or a checkpoint with no other
/// checkpoint in a directory below it.
bool is_replaceable(const fs::path& path) {
  if (!is_directory_at(path)) return is_tensor_file(path);
  const auto names = list_directory(path);
  if (names.empty()) return true;
  if (path_exists(path / kTrackerFile)) return only_one_iteration(path);
  const bool other = std::ranges::any_of(names, [&](const std::string& name) {
    return link_kind(path / name) == PathKind::Directory && holds_other_checkpoint(path / name);
  });
  return !other && std::ranges::any_of(names, marks_checkpoint);
}

/// Refuses what create_output() would find in the way, before the source is read.
void check_staging(const fs::path& output, bool resume) {
  const fs::path named = output_name(output);
  const fs::path parent = directory_of(named);
  if (!is_directory_at(parent))
    fail(ErrorCode::NotFound, {output.string(), {}}, "{}: there is no directory {} to make it in", output.string(),
         parent.string());
  const fs::path partial = partial_of(named);
  if (!resume && name_taken(partial))
    fail(
        ErrorCode::OutputExists, {partial.string(), {}},
        "{}: exists already: an earlier run did not finish, or another is running; --resume goes on with it, or remove "
        "it and run again",
        partial.string());
}

/// Endings of files that other programs write; a directory of such a name would be taken for one.
constexpr auto kForeignEndings =
    std::to_array<std::string_view>({".gguf", ".ggml", ".npz", ".npy", ".h5", ".hdf5", ".onnx", ".ckpt", ".pkl", ".zip",
                                     ".tar", ".gz", ".zst", ".msgpack", ".distcp", ".json"});

void check_output_name(const fs::path& output) {
  const std::string name = output.string(), ending = output_name(output).extension().string();
  if (name == "-")
    fail(ErrorCode::Usage, {name, {}}, "'-': a checkpoint is not written to standard output; name a directory, or ./-");
  if (name.find("://") != std::string::npos)
    fail(ErrorCode::Usage, {name, {}}, "{}: remote paths are not written; write to a directory here and upload that",
         name);
  if (std::ranges::find(kForeignEndings, ending) != kForeignEndings.end())
    fail(ErrorCode::Usage, {name, {}},
         "{}: {} files are not written; a name that ends in .safetensors, .pt, .pth or .bin is one file, any other a "
         "directory",
         name, ending);
}

}  // namespace

void check_output(const fs::path& input, const fs::path& output, const ConvertOptions& options) {
  check_output_name(output);
  if (options.sha256_manifest && format_of_name(output_name(output)))
    fail(ErrorCode::Usage, {output.string(), {}},
         "{}: --manifest is written into a directory, and this is one file; `sha256sum {}` does it for that",
         output.string(), output.string());
  check_apart(output, input);
  const std::string name = output.string();
  check_staging(output, options.resume);
  if (!name_taken(output)) return;
  // --resume of a run that had finished: whether DST is its output shows once the plan is known.
  if (!options.overwrite && !options.resume)
    fail(ErrorCode::OutputExists, {name, {}}, "{} exists; choose another name, or --overwrite to replace it", name);
  if (options.overwrite && !is_replaceable(output))
    fail(ErrorCode::OutputExists, {name, {}},
         "{} exists, and --overwrite removes nothing but one checkpoint: this is none, holds another one, or has files "
         "in hf/ "
         "that its record does not list; choose another name",
         name);
}

}  // namespace glu_ckpt
