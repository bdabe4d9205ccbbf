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
#include "io/staged_dir.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

bool is_tensor_file(const fs::path& path) { return format_of_name(path) || path.extension() == kDistcpSuffix; }

bool marks_checkpoint(std::string_view name) {
  return name == "glu_ckpt.json" || name == "model.safetensors" || name == ".metadata" ||
         name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin" ||
         name == "pytorch_model.bin.index.json" || name.starts_with("mp_rank_");
}

/// Files beside the tensors that programs write by these names into a checkpoint's directory.
constexpr auto kOwnNames = std::to_array<std::string_view>({".metadata",
                                                            "metadata.json",
                                                            "integrity.json",
                                                            "glu_ckpt.json",
                                                            "glu_ckpt.extras",
                                                            "glu_ckpt.sha256",
                                                            kTrackerFile,
                                                            "megatron_args.txt",
                                                            "run_config.yaml",
                                                            "params.json",
                                                            "configuration.json",
                                                            "added_tokens.json",
                                                            "special_tokens_map.json",
                                                            "vocab.json",
                                                            "vocab.txt",
                                                            "merges.txt",
                                                            "trainer_state.json",
                                                            "chat_template.json",
                                                            "README.md",
                                                            "LICENSE",
                                                            "LICENSE.txt",
                                                            "LICENSE.md",
                                                            "NOTICE",
                                                            "NOTICE.txt",
                                                            "USE_POLICY.md",
                                                            ".gitattributes"});
constexpr auto kOwnBeginnings =
    std::to_array<std::string_view>({StagedDir::kJournalName, "tokenizer", "configuration_", "modeling_", "modular_",
                                     "tokenization_", "processing_", "image_processing_"});
constexpr auto kOwnEndings =
    std::to_array<std::string_view>({".index.json", "config.json", ".jinja", ".tiktoken", ".model"});

bool has_own_name(std::string_view name) {
  return is_tensor_file(name) || std::ranges::find(kOwnNames, name) != kOwnNames.end() ||
         std::ranges::any_of(kOwnBeginnings, [&](std::string_view part) { return name.starts_with(part); }) ||
         std::ranges::any_of(kOwnEndings, [&](std::string_view part) { return name.ends_with(part); });
}

using Names = std::set<std::string, std::less<>>;

/// The files that the record in a directory of tensors lists, as paths below the checkpoint, whose tensors are in
/// `prefix`. None where there is no record.
Names recorded_names(const fs::path& directory, const std::string& prefix) {
  Names names;
  const fs::path path = directory / kRecordFileName;
  if (!path_exists(path)) return names;
  try {
    const std::string text = read_small_file(path, kMaxRecordBytes, ErrorCode::RecordInvalid);
    for (const FileRecord& file : parse_record_json(text, {path.string(), {}}).files) {
      const bool is_beside = !prefix.empty() && file.name.starts_with(kBesideTensors);
      names.insert(is_beside ? std::string(without_beside(file.name)) : prefix + file.name);
    }
  } catch (const Error&) {
    // Then it lists nothing.
  }
  return names;
}

/// Finds what in a checkpoint's directory is not the checkpoint's.
class ForeignFiles {
 public:
  explicit ForeignFiles(const fs::path& root) : root_(root) {
    const bool is_run = path_exists(root / kTrackerFile);
    if (is_run) iteration_ = first_directory_with_tensors();
    recorded_ = recorded_names(root / iteration_, iteration_.empty() ? "" : iteration_ + "/");
    is_checkpoint_ = holds_mark(root / iteration_);
    look_in("", true);
  }

  bool is_checkpoint() const { return is_checkpoint_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  static bool holds_mark(const fs::path& directory) {
    return std::ranges::any_of(list_directory(directory), marks_checkpoint);
  }

  /// Megatron keeps the iterations of a run side by side: with several, all but the first are somebody's own.
  std::string first_directory_with_tensors() const {
    for (const std::string& name : list_directory(root_))
      if (name != kHfDirectory && link_kind(root_ / name) == PathKind::Directory && holds_mark(root_ / name))
        return name;
    return "";
  }

  bool is_recorded_below(const std::string& folder) const {
    const auto at = recorded_.lower_bound(folder);
    return at != recorded_.end() && at->starts_with(folder);
  }

  /// `by_name`: files of usual names count as the checkpoint's, too, not only those that the record lists.
  void look_in(const std::string& prefix, bool by_name) {
    for (const std::string& name : list_directory(root_ / prefix)) {
      const std::string path = prefix + name, folder = path + "/";
      const PathKind kind = link_kind(root_ / path);
      if (kind == PathKind::Directory) {
        // The hub's downloader keeps its own notes on the files there.
        if (path == ".cache/huggingface") continue;
        const bool has_tensors = by_name && (path == iteration_ || name.starts_with("mp_rank_"));
        if (path == ".cache" || has_tensors || is_recorded_below(folder))
          look_in(folder, has_tensors);
        else
          names_.push_back(folder);
      } else if (kind == PathKind::Other || kind == PathKind::Unknown ||
                 !(recorded_.contains(path) || (by_name && has_own_name(name)))) {
        names_.push_back(path);
      }
    }
  }

  fs::path root_;
  /// The directory of the tensors, where that is not the root itself.
  std::string iteration_;
  Names recorded_;
  bool is_checkpoint_ = false;
  std::vector<std::string> names_;
};

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

/// Refuses what create_output() would find in the way, before the source is read.
void check_staging(const fs::path& output, bool resume) {
  const fs::path named = output_name(output);
  const fs::path parent = directory_of(named);
  if (!is_directory_at(parent))
    fail(ErrorCode::NotFound, {output.string(), {}}, "{}: there is no directory {} to make it in", output.string(),
         parent.string());
  const fs::path partial = partial_of(named);
  if (!resume && name_taken(partial)) StagedDir::fail_in_the_way(partial);
  RunOwner::check_free(partial);
  // Without a journal, it may be the older output, which a killed run had exchanged with its own.
  if (resume && link_kind(partial) == PathKind::Directory && !path_exists(partial / StagedDir::kJournalName))
    if (const ForeignFiles foreign(partial); !foreign.names().empty())
      fail(ErrorCode::OutputExists, {partial.string(), {}},
           "{}: is in the way and holds what this program did not write, so it is left alone: {}; move it away",
           partial.string(), some_of(foreign.names()));
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

void check_replaceable(const fs::path& output) {
  const std::string name = output.string();
  const PathKind kind = path_kind(output);
  if (kind == PathKind::Directory) {
    const ForeignFiles found(output);
    if (found.names().empty() && (found.is_checkpoint() || list_directory(output).empty())) return;
    if (!found.is_checkpoint())
      fail(ErrorCode::OutputExists, {name, {}},
           "{} exists and is no checkpoint, so --overwrite does not remove it; choose another name", name);
    fail(ErrorCode::OutputExists, {name, {}},
         "{} exists, and --overwrite removes a checkpoint's own files alone: this directory also has {}; move that "
         "away, or choose another name",
         name, some_of(found.names()));
  }
  if (kind != PathKind::Other && is_tensor_file(output)) return;
  fail(ErrorCode::OutputExists, {name, {}},
       "{} exists and is {}, so --overwrite does not replace it; choose another name", name,
       kind == PathKind::Other ? "no regular file" : "no file of tensors");
}

void check_apart_from_inputs(const fs::path& output, const SourceAnswers& answers) {
  for (const std::string* input : {&answers.merge, &answers.fill_from, &answers.config_file, &answers.keep_experts})
    if (!input->empty() && input->find("://") == input->npos && path_exists(*input)) check_apart(output, *input);
}

void check_output(const fs::path& input, const fs::path& output, const ConvertOptions& options) {
  check_output_name(output);
  if (options.sha256_manifest && format_of_name(output_name(output)))
    fail(ErrorCode::Usage, {output.string(), {}},
         "{}: --manifest is written into a directory, and this is one file; `sha256sum {}` does it for that",
         output.string(), output.string());
  check_apart(output, input);
  check_apart_from_inputs(output, options.from);
  const std::string name = output.string();
  check_staging(output, options.resume);
  if (!name_taken(output)) return;
  // --resume of a run that had finished: whether DST is its output shows once the plan is known.
  if (options.resume && !options.overwrite && path_exists(output)) return;
  check_replaceable(output);
  if (!options.overwrite)
    fail(ErrorCode::OutputExists, {name, {}}, "{} exists; choose another name, or --overwrite to replace it", name);
}

}  // namespace glu_ckpt
