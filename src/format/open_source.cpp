/// open_source(): looks at a path and picks the files that make up the checkpoint.

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "format/dcp_metadata.hpp"
#include "format/extras.hpp"
#include "format/manifest.hpp"
#include "format/record_file.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/run_owner.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr i64 kMaxIndexBytes = i64{1} << 30;
constexpr i64 kMaxTrackerBytes = 256;

/// Weights of kinds that are not read, named in the refusal so that nobody searches.
constexpr std::array<std::string_view, 3> kOtherFormats = {".ckpt", ".gguf", ".npz"};
/// Files of a trainer that hold no model.
constexpr std::array<std::string_view, 9> kTrainerFiles = {"training_args.bin", "optimizer.bin",  "optimizer.pt",
                                                           "scheduler.pt",      "scheduler.bin",  "rng_state",
                                                           "scaler.pt",         "random_states_", "sampler"};
/// Files of a torch-dist directory that hold objects, in whatever format the tensors are kept now.
constexpr std::array<std::string_view, 3> kSideFiles = {"common.pt", "train_state.pt", "latest_train_state.pt"};
/// Files of a torch-dist directory that are written anew.
constexpr std::array<std::string_view, 2> kDistFiles = {"metadata.json", "integrity.json"};

struct Listing {
  std::vector<std::string> shards;
  std::vector<std::string> indexes;
  std::vector<std::string> torch;
  /// Weights of other kinds.
  std::vector<std::string> others;
};

template <typename List>
bool ends_with_any(std::string_view name, const List& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](auto suffix) { return name.ends_with(suffix); });
}

template <typename List>
bool starts_with_any(std::string_view name, const List& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

bool is_shard(std::string_view name) { return name.ends_with(kSafetensorsSuffix) && !name.starts_with('.'); }
bool is_torch(std::string_view name) {
  return ends_with_any(name, kTorchSuffixes) && !name.starts_with('.') &&
         std::ranges::find(kSideFiles, name) == kSideFiles.end();
}

/// model.safetensors.index.json and variants such as model.safetensors.index.fp16.json.
bool is_index(std::string_view name) {
  return name.find(".safetensors.index.") != name.npos && name.ends_with(".json") && !name.starts_with('.');
}

bool is_other_format(std::string_view name) {
  return is_torch(name) || name.ends_with(kDistcpSuffix) || ends_with_any(name, kOtherFormats);
}

/// Lists the entries without the journal of a run that was killed after it had put its output in place.
std::vector<fs::path> sorted_entries(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const std::string& name : list_directory(directory))
    if (!StagedDir::is_journal(name)) entries.push_back(directory / name);
  return entries;
}

Listing listing_of(const std::vector<fs::path>& entries) {
  Listing listing;
  for (const auto& entry : entries) {
    const std::string name = entry.filename().string();
    if (is_shard(name)) listing.shards.push_back(name);
    if (is_index(name)) listing.indexes.push_back(name);
    if (is_torch(name)) listing.torch.push_back(name);
    if (is_other_format(name)) listing.others.push_back(name);
  }
  return listing;
}

bool is_rank_directory(const fs::path& entry) {
  return entry.filename().string().starts_with(kRankPrefix) && is_directory_at(entry);
}

/// Returns whether a directory with that entry is a checkpoint that a trainer saved.
bool is_of_trainers_checkpoint(const fs::path& entry) {
  const std::string name = entry.filename().string();
  return name == kDcpMetadataName || name == kTrackerFile || name.ends_with(kDistcpSuffix) || is_rank_directory(entry);
}

bool is_hidden(std::string_view name) { return name.starts_with('.'); }

/// Hidden files pass through as all others do, e.g. .gitattributes; but weights never lie beside those of an output.
/// Nor do parts of them that a copy in progress has (.model.safetensors.Ab12Cd of rsync), or files of a file system or
/// an editor that are there for a while.
bool is_hidden_weights(std::string_view name) {
  if (!is_hidden(name)) return false;
  const std::string_view whole = name.substr(0, name.rfind('.'));
  const auto is_weights = [](std::string_view part) {
    return part.ends_with(kSafetensorsSuffix) || ends_with_any(part, kTorchSuffixes);
  };
  return is_weights(name) || is_weights(whole) || name.starts_with(".nfs") || name.starts_with(".fuse_hidden") ||
         name.ends_with(".swp");
}

/// Adds a symlink that leads nowhere, as an interrupted download leaves it; false for any other entry.
bool add_dangling(const fs::path& entry, const std::string& prefix, CheckpointFiles& files) {
  if (path_exists(entry) || link_kind(entry) != PathKind::Symlink) return false;
  files.dangling.push_back(prefix + entry.filename().string());
  return true;
}

/// Files of a subdirectory, unless another checkpoint is in it: the `original/` of some repositories holds the
/// same weights again. An index may list shards in one.
void add_directory(const fs::path& directory, const std::string& prefix, CheckpointFiles& files);

void add_entry(const fs::path& entry, const std::string& prefix, CheckpointFiles& files) {
  const std::string name = entry.filename().string();
  if (name.ends_with(kPartialSuffix) || is_shard(name) || is_index(name)) return;
  // Weights in a layout that the output no longer has must not lie beside it.
  if (is_other_format(name)) {
    if (!prefix.empty()) files.left_out.push_back(prefix + name);
    return;
  }
  if (add_dangling(entry, prefix, files)) return;
  if (prefix.empty() && (name == kRecordFileName || name == kExtrasFileName || name == kManifestFileName)) return;
  if (is_file(entry) && !is_hidden_weights(name))
    files.extra_files.push_back({prefix + name, entry});
  else if (link_kind(entry) == PathKind::Directory &&
           !is_hidden(name))  // not through symlinks: they could make a cycle
    add_directory(entry, prefix + name + "/", files);
  else
    files.left_out.push_back(prefix + name);
}

void add_directory(const fs::path& directory, const std::string& prefix, CheckpointFiles& files) {
  const auto entries = sorted_entries(directory);
  // Its tensors would stay behind one by one, and leave what looks like a checkpoint.
  if (std::ranges::any_of(entries, is_of_trainers_checkpoint)) {
    files.left_out.push_back(prefix);
    return;
  }
  std::vector<std::string> others = listing_of(entries).shards;
  const std::size_t all = others.size();
  std::erase_if(others, [&](const std::string& name) {
    return std::ranges::find(files.shards, prefix + name) != files.shards.end();
  });
  if (!others.empty() && others.size() == all) {
    files.left_out.push_back(prefix);
    return;
  }
  for (const std::string& name : others) files.left_out.push_back(prefix + name);
  for (const auto& entry : entries) add_entry(entry, prefix, files);
}

/// The index to use, or empty.
std::string pick_index(const Listing& listing, const fs::path& directory) {
  const auto& indexes = listing.indexes;
  if (indexes.empty()) return {};
  if (std::find(indexes.begin(), indexes.end(), kSafetensorsIndexFile) != indexes.end())
    return std::string(kSafetensorsIndexFile);
  if (indexes.size() == 1) return indexes.front();
  fail(ErrorCode::NotSupported, {directory.string(), {}},
       "{}: has several indexes ({}, {}); put the variant you mean in a directory of its own", directory.string(),
       indexes[0], indexes[1]);
}

bool has_all_shards(const ShardIndex& index, const fs::path& directory) {
  return std::all_of(index.files.begin(), index.files.end(),
                     [&](const auto& name) { return path_exists(directory / name); });
}

/// Without an index, names that count the shards are all that tells a cut-off download from a whole one.
void check_promised_shards(const fs::path& directory, const std::vector<std::string>& shards) {
  for (const std::string& name : shards) {
    const std::size_t promised = shards_promised(name);
    const auto of_same = [&](const std::string& other) { return shards_promised(other) == promised; };
    const auto found = static_cast<std::size_t>(std::count_if(shards.begin(), shards.end(), of_same));
    if (promised > found)
      fail(ErrorCode::IndexMissingShard, {(directory / name).string(), {}},
           "{}: is one of {} shards by its name, but only {} are here. {}", (directory / name).string(), promised,
           found, RunOwner::why_missing(directory, "Is the download complete?"));
  }
}

/// Programs that look for one file first load another model than those that follow the index.
void warn_of_rival(CheckpointFiles& files, std::string_view single) {
  if (std::ranges::find(files.index->files, single) != files.index->files.end()) return;
  files.warnings.push_back(fmt::format(
      "{}: lies beside the {} shards that {} lists, and is none of them. transformers loads this file, vLLM and "
      "glu-ckpt the shards; move away the one that is not meant",
      (files.directory / single).string(), files.index->files.size(), fs::path(files.index_file).filename().string()));
}

/// Fills shards and index. Without an index, model.safetensors alone is the checkpoint, as it is for
/// transformers. Beside an index whose shards are gone it is what merging the shards leaves behind.
void pick_shards(CheckpointFiles& files, const Listing& listing) {
  const auto& shards = listing.shards;
  const bool has_single = std::find(shards.begin(), shards.end(), kSingleFile) != shards.end();
  files.shards = has_single ? std::vector{std::string(kSingleFile)} : shards;
  const std::string index_name = pick_index(listing, files.directory);
  if (index_name.empty()) return check_promised_shards(files.directory, files.shards);
  const fs::path path = files.directory / index_name;
  ShardIndex index = parse_index(read_small_file(path, kMaxIndexBytes, ErrorCode::IndexJson), path.string());
  if (has_single && !has_all_shards(index, files.directory)) {
    return;
  }
  files.shards = index.files;
  files.index = std::move(index);
  files.index_file = path.string();
  if (has_single) warn_of_rival(files, kSingleFile);
}

/// A folder of one of Megatron's checkpoints; empty where there is none.
std::string first_iteration(const fs::path& directory) {
  std::vector<std::string> names = list_directory(directory);
  std::ranges::sort(names);
  const auto is_one = [&](const std::string& name) {
    return name.starts_with("iter_") && is_directory_at(directory / name);
  };
  const auto found = std::ranges::find_if(names, is_one);
  return found == names.end() ? std::string() : *found;
}

[[noreturn]] void fail_nothing_found(const fs::path& directory, const Listing& listing) {
  const std::string name = directory.string();
  if (const std::string consumed = RunOwner::why_missing(directory); !consumed.empty())
    fail(ErrorCode::NotSupported, {name, {}}, "{}: no checkpoint found. {}", name, consumed);
  if (is_directory_at(directory / "snapshots"))
    fail(ErrorCode::NotSupported, {name, {}},
         "{}: is a repository of the Hugging Face cache; give one of the directories in {}/snapshots", name, name);
  if (const std::string options = StagedDir::options_of(directory); name.ends_with(".partial"))
    fail(ErrorCode::NotSupported, {name, {}},
         "{}: is a conversion that was not finished; the same `glu-ckpt convert`{} with --resume goes on with it", name,
         options.empty() ? "" : " (its options were " + options + ")");
  if (const std::string iteration = first_iteration(directory); !iteration.empty())
    fail(ErrorCode::NotSupported, {name, {}},
         "{}: no latest_checkpointed_iteration.txt says which of its checkpoints is meant; give one: {}", name,
         (directory / iteration).string());
  const auto part =
      std::ranges::find_if(listing.others, [](const std::string& other) { return other.ends_with(kDistcpSuffix); });
  const std::string found = part == listing.others.end()
                                ? other_directory_text(directory)
                                : fmt::format("{} is of a distributed checkpoint, but its .metadata is missing", *part);
  fail(ErrorCode::NotSupported, {name, {}},
       "{}: no checkpoint found: {}. Looked for *.safetensors, {}, pytorch_model*.bin, *.pt, .metadata and mp_rank_*",
       name, found, kSafetensorsIndexFile);
}

std::vector<std::string> find_left_out(const Listing& listing, const std::vector<std::string>& shards) {
  std::vector<std::string> left_out = listing.others;
  left_out.insert(left_out.end(), listing.shards.begin(), listing.shards.end());
  std::erase_if(left_out, [&](const std::string& name) { return std::ranges::find(shards, name) != shards.end(); });
  return left_out;
}

fs::path if_file(const fs::path& path) { return is_file(path) ? path : fs::path(); }

// ---- torch files --------------------------------------------------------------------------------

/// Megatron's files of one rank, where they are.
void add_rank_files(const fs::path& directory, const std::string& prefix, CheckpointFiles& files) {
  for (const auto& entry : sorted_entries(directory)) {
    const std::string name = entry.filename().string();
    if (is_torch(name))
      files.shards.push_back(prefix + name);
    else if (is_file(entry))
      files.extra_files.push_back({prefix + name, entry});
  }
}

/// Returns which of the directory's torch files are the model.
std::vector<std::string> pick_torch_files(const fs::path& directory, const std::vector<std::string>& torch) {
  std::vector<std::string> models;
  for (const std::string& name : torch)
    if (!starts_with_any(name, kTrainerFiles)) models.push_back(name);
  const auto has = [&](std::string_view name) { return std::ranges::find(models, name) != models.end(); };
  if (has("pytorch_model.bin")) return {"pytorch_model.bin"};
  if (has("model_optim_rng.pt")) {
    std::erase_if(models, [](const std::string& name) {
      return name != "model_optim_rng.pt" && name != "distrib_optim.pt" && !name.starts_with("layer_wise_optimizer_");
    });
    return models;
  }
  const bool counted = std::ranges::all_of(models, [](const auto& name) { return name.find("-of-") != name.npos; });
  if (models.size() > 1 && !counted) {
    const std::string other = other_directory_text(directory);
    fail(ErrorCode::NotSupported, {directory.string(), {}}, "{}: has several torch files ({}, {}); {}",
         directory.string(), models[0], models[1], other.starts_with("it is") ? other : "name the one that you mean");
  }
  if (counted) check_promised_shards(directory, models);
  return models;
}

void pick_torch(CheckpointFiles& files, const Listing& listing) {
  files.format = Format::Torch;
  const fs::path index = files.directory / kTorchIndexFile;
  const bool single = std::ranges::find(listing.torch, "pytorch_model.bin") != listing.torch.end();
  if (is_file(index)) {
    ShardIndex parsed = parse_index(read_small_file(index, kMaxIndexBytes, ErrorCode::IndexJson), index.string());
    if (!single || has_all_shards(parsed, files.directory)) {
      files.shards = parsed.files;
      files.index = std::move(parsed);
      files.index_file = index.string();
      if (single) warn_of_rival(files, "pytorch_model.bin");
      return;
    }
  }
  files.shards = pick_torch_files(files.directory, listing.torch);
}

// ---- torch-dist directories ---------------------------------------------------------------------

/// Everything but the tensors' own files: common.pt, run_config.yaml, tokenizer/, modelopt_state/.
void add_dist_entry(const fs::path& entry, const std::string& prefix, CheckpointFiles& files) {
  const std::string name = entry.filename().string();
  const bool top = prefix.empty();
  if (name.ends_with(kPartialSuffix) || is_shard(name) || add_dangling(entry, prefix, files)) return;
  if (top &&
      (name == kDcpMetadataName || name.ends_with(kDistcpSuffix) || name == kRecordFileName ||
       name == kExtrasFileName || name == kManifestFileName || std::ranges::find(kDistFiles, name) != kDistFiles.end()))
    return;
  if (is_file(entry) && !is_hidden_weights(name)) {
    files.extra_files.push_back({prefix + name, entry});
  } else if (is_hidden(name)) {
    files.left_out.push_back(prefix + name);
  } else if (link_kind(entry) == PathKind::Directory) {
    const auto inner = sorted_entries(entry);
    if (!listing_of(inner).shards.empty()) {
      files.left_out.push_back(prefix + name + "/");  // Megatron-Bridge's hf/: the same weights in another layout
      return;
    }
    for (const auto& below : inner) add_dist_entry(below, prefix + name + "/", files);
  }
}

// ---- directories --------------------------------------------------------------------------------

CheckpointFiles find_in_directory(const fs::path& path) {
  const auto entries = sorted_entries(path);
  const Listing listing = listing_of(entries);
  CheckpointFiles files;
  files.path = path;
  files.directory = path;
  files.config = if_file(path / "config.json");
  files.record = if_file(path / kRecordFileName);
  // A copy of what was made for Megatron; anybody else's hf/ may be another model's.
  const bool was_for_megatron = !files.record.empty() && is_file(path / without_beside(kMegatronArgsFile));
  if (files.config.empty() && was_for_megatron) files.config = if_file(path / kHfDirectory / "config.json");
  files.extras = if_file(path / kExtrasFileName);
  if (is_file(path / ".metadata")) {
    files.format = Format::TorchDist;
    for (const auto& entry : entries) add_dist_entry(entry, {}, files);
    for (const std::string& name : listing.shards) files.left_out.push_back(name);
    return files;
  }
  const bool ranks = std::ranges::any_of(entries, is_rank_directory);
  if (ranks) {
    files.format = Format::Torch;
    for (const auto& entry : entries)
      if (is_rank_directory(entry))
        add_rank_files(entry, entry.filename().string() + "/", files);
      else
        add_entry(entry, {}, files);
    files.left_out.insert(files.left_out.end(), listing.others.begin(), listing.others.end());
    if (files.shards.empty()) fail_nothing_found(path, listing);
    return files;
  }
  if (listing.shards.empty() && listing.indexes.empty() && (!listing.torch.empty() || is_file(path / kTorchIndexFile)))
    pick_torch(files, listing);
  else
    pick_shards(files, listing);
  if (files.shards.empty() && !files.index) fail_nothing_found(path, listing);
  files.left_out = find_left_out(listing, files.shards);
  const bool has_torch_index = files.format == Format::Torch && files.index;
  for (const auto& entry : entries)
    if (!has_torch_index || entry.filename() != kTorchIndexFile) add_entry(entry, {}, files);
  return files;
}

/// The directory that Megatron's tracker file names: "release", or iter_ and a number of at least 7 digits.
std::string tracked_directory(const fs::path& tracker, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '\r')) text.pop_back();
  if (text == "release") return text;
  constexpr std::size_t kMaxDigits = 12;
  const bool digits = !text.empty() && text.size() <= kMaxDigits &&
                      std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) {
    const std::size_t good = std::min(kMaxDigits, std::min(text.size(), text.find_first_not_of("0123456789")));
    fail_at(ErrorCode::TrackerInvalid, {tracker.string(), static_cast<i64>(good)},
            "the tracker holds neither a number of an iteration nor 'release'");
  }
  return fmt::format("iter_{:07}", std::stoll(text));
}

/// The text of a directory's tracker file, and the directory that it names.
struct Tracked {
  std::string text;
  std::string inner;
};

Tracked read_tracker(const fs::path& path) {
  const fs::path tracker = path / kTrackerFile;
  std::string text = read_small_file(tracker, kMaxTrackerBytes, ErrorCode::TrackerInvalid);
  std::string inner = tracked_directory(tracker, text);
  if (!is_directory_at(path / inner))
    fail_at(ErrorCode::TrackerInvalid, {tracker.string(), 0}, "names {}, which is not there", inner);
  return {std::move(text), std::move(inner)};
}

/// Adds an entry of the directory of a run that belongs to the model of all its iterations; false for any other entry.
bool add_beside(const fs::path& entry, CheckpointFiles& files) {
  const std::string name = entry.filename().string();
  if (name == kHfDirectory && is_directory_at(entry))
    add_directory(entry, std::string(kHfFolder), files);
  else if (name == without_beside(kMegatronArgsFile) && is_file(entry))
    files.extra_files.push_back({std::string(kMegatronArgsFile), entry});
  else
    return false;
  return true;
}

CheckpointFiles follow_tracker(const fs::path& path) {
  const auto [text, inner] = read_tracker(path);
  CheckpointFiles files = find_in_directory(path / inner);
  files.path = path;
  files.iteration_dir = inner;
  files.tracker = text;
  for (const auto& entry : sorted_entries(path)) {
    const std::string name = entry.filename().string();
    const bool is_read = name == inner || name == kTrackerFile || name == kManifestFileName;
    if (!is_read && !add_beside(entry, files) && !add_dangling(entry, std::string(kBesideTensors), files))
      files.left_out.push_back(name);
  }
  if (files.config.empty()) files.config = if_file(path / kHfDirectory / "config.json");
  return files;
}

/// One directory of a run, given by itself: what describes the model lies beside it.
void add_files_of_run(const fs::path& directory, CheckpointFiles& files) {
  const fs::path run = run_directory(directory);
  const bool is_of_ranks = !files.shards.empty() && files.shards.front().starts_with(kRankPrefix);
  if ((files.format != Format::TorchDist && !is_of_ranks) || run.empty()) return;
  for (const auto& entry : sorted_entries(run)) add_beside(entry, files);
  if (files.config.empty()) files.config = if_file(run / kHfDirectory / "config.json");
}

/// A file alone: glu_ckpt.json beside it describes the directory, so it is not read.
CheckpointFiles find_file(const fs::path& path) {
  const std::string name = path.string();
  if (is_index(path.filename().string()))
    fail(ErrorCode::NotSupported, {name, {}}, "{}: is an index; give the directory it is in", name);
  if (name.ends_with(kDistcpSuffix) || path.filename() == ".metadata")
    fail(ErrorCode::NotSupported, {name, {}}, "{}: is part of a distributed checkpoint; give the directory it is in",
         name);
  const std::string file = path.filename().string();
  if (!is_torch(file) && !is_shard(file))
    if (const std::string other = other_file_text(path); !other.empty())
      fail(ErrorCode::NotSupported, {name, {}}, "{}: {}", name, other);
  CheckpointFiles files;
  if (is_torch(file)) files.format = Format::Torch;
  files.path = path;
  // As it was typed: without a directory there is none in front of names.
  files.directory = path.parent_path();
  files.shards = {file};
  files.config = if_file(files.directory / "config.json");
  add_dangling(files.directory / "config.json", {}, files);
  return files;
}

std::unique_ptr<Source> read_checkpoint(const CheckpointFiles& files) {
  switch (files.format) {
    case Format::Safetensors: return read_safetensors(files);
    case Format::Torch: return read_torch(files);
    case Format::TorchDist: return read_torch_dist(files);
  }
  return nullptr;
}

}  // namespace

fs::path checkpoint_directory(const fs::path& path) {
  return is_file(path / kTrackerFile) ? path / read_tracker(path).inner : path;
}

fs::path run_directory(const fs::path& directory) {
  const fs::path named = fs::absolute(directory).lexically_normal();
  const fs::path above = (named.has_filename() ? named : named.parent_path()).parent_path();
  return is_file(above / kTrackerFile) ? above : fs::path();
}

std::unique_ptr<Source> open_source(const fs::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::Missing) fail_errno(ENOENT, "open", path);
  if (kind != PathKind::Directory) return read_checkpoint(find_file(path));
  if (is_file(path / kTrackerFile)) return read_checkpoint(follow_tracker(path));
  CheckpointFiles files = find_in_directory(path);
  add_files_of_run(path, files);
  return read_checkpoint(files);
}

}  // namespace glu_ckpt
