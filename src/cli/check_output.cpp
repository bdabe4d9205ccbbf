/// What convert refuses before any work: outputs that exist, or that would change the source.

#include "cli/check_output.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/fail.hpp"

namespace glu_ckpt::cli {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& inner, const fs::path& outer) {
  const auto [end, at] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end() || (std::next(end) == outer.end() && end->empty());
}

/// Megatron keeps the iterations of a run side by side: more than one must not go.
bool only_one_iteration(const fs::path& path) {
  i64 directories = 0;
  for (const auto& entry : fs::directory_iterator(path)) directories += entry.is_directory() ? 1 : 0;
  return directories == 1;
}

bool is_tensor_file(const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".safetensors", ".pt", ".pth", ".bin", ".distcp"};
  return kSuffixes.contains(path.extension().string());
}

/// Whether --overwrite may remove it: an empty directory, a file of tensors, or a checkpoint with no other
/// checkpoint in a directory below it.
bool is_replaceable(const fs::path& path) {
  if (!fs::is_directory(path)) return is_tensor_file(path);
  if (fs::is_empty(path)) return true;
  if (fs::exists(path / "latest_checkpointed_iteration.txt")) return only_one_iteration(path);
  bool checkpoint = false;
  for (auto it = fs::recursive_directory_iterator(path); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    const bool rank = it.depth() == 1 && it->path().parent_path().filename().string().starts_with("mp_rank_");
    if (it.depth() > 0 && !rank && is_tensor_file(it->path())) return false;
    if (it.depth() == 0)
      checkpoint |= name == "glu_ckpt.json" || name == "model.safetensors" || name == ".metadata" ||
                    name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin" ||
                    name == "pytorch_model.bin.index.json" || name.starts_with("mp_rank_");
  }
  return checkpoint;
}

/// What create_sink() would find in the way, found before the source is read.
void check_staging(const Options& options) {
  const fs::path output = options.output;
  const fs::path named = output.has_filename() ? output : output.parent_path();
  const fs::path parent = named.has_parent_path() ? named.parent_path() : fs::path(".");
  if (!fs::is_directory(parent))
    fail(ErrorCode::NotFound, {output.string(), {}}, "{}: there is no directory {} to make it in", output.string(),
         parent.string());
  const fs::path partial = named.string() + ".partial";
  if (!options.resume && fs::exists(fs::symlink_status(partial)))
    fail(
        ErrorCode::OutputExists, {partial.string(), {}},
        "{}: exists already: an earlier run did not finish, or another is running; --resume goes on with it, or remove "
        "it and run again",
        partial.string());
}

}  // namespace

void check_output(const Options& options) {
  const fs::path dst = fs::weakly_canonical(options.output);
  const fs::path src = fs::weakly_canonical(options.input);
  const bool inside = fs::is_directory(src) ? is_inside(dst, src) : dst == src;
  if (inside || is_inside(src, dst))
    fail(ErrorCode::OutputInsideSource, {options.output, {}},
         "{}: the output and the source {} overlap; the source is never written to", options.output, options.input);
  check_staging(options);
  if (!fs::exists(fs::symlink_status(options.output))) return;
  // --resume of a run that had finished: whether DST is its output shows once the plan is known.
  if (!options.overwrite && !options.resume)
    fail(ErrorCode::OutputExists, {options.output, {}}, "{} exists; choose another name, or --overwrite to replace it",
         options.output);
  if (options.overwrite && !is_replaceable(options.output))
    fail(ErrorCode::OutputExists, {options.output, {}},
         "{} exists and is not a checkpoint, so --overwrite does not remove it; choose another name", options.output);
}

void check_output_is_no_source(const Options& options, const Source& source) {
  const fs::path dst = fs::weakly_canonical(options.output);
  const fs::path directory =
      fs::is_directory(source.path()) ? source.path() / source.structure().iteration_dir : source.path().parent_path();
  std::vector<fs::path> files;
  for (const std::string& name : source.inventory().files) files.push_back(directory / name);
  for (const ExtraFile& extra : source.extra_files()) files.push_back(extra.path);
  for (const fs::path& file : files)
    if (is_inside(fs::weakly_canonical(file), dst))
      fail(ErrorCode::OutputInsideSource, {options.output, {}},
           "{}: writing it would replace {}, which the source reads; the source is never written to", options.output,
           file.string());
}

}  // namespace glu_ckpt::cli
