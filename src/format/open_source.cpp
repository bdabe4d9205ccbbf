/// open_source(): looks at a path and picks the files that make up the checkpoint.

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "core/fail.hpp"
#include "format/checkpoint_files.hpp"
#include "format/record_file.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr i64 kMaxIndexBytes = i64{1} << 30;

/// Checkpoints of other kinds, by what their names end in; named in the refusal so that nobody searches.
constexpr std::array<std::string_view, 7> kOtherFormats = {".bin", ".pt", ".pth", ".distcp", ".ckpt", ".gguf", ".npz"};

struct Listing {
  std::vector<std::string> shards;
  std::vector<std::string> indexes;
  /// Weights of other kinds.
  std::vector<std::string> others;
};

bool is_shard(std::string_view name) { return name.ends_with(kShardSuffix) && !name.starts_with('.'); }

/// model.safetensors.index.json and variants such as model.safetensors.index.fp16.json.
bool is_index(std::string_view name) {
  return name.find(".safetensors.index.") != name.npos && name.ends_with(".json") && !name.starts_with('.');
}

bool is_other_format(std::string_view name) {
  return std::any_of(kOtherFormats.begin(), kOtherFormats.end(), [&](auto suffix) { return name.ends_with(suffix); });
}

/// Follows symlinks: files of a Hugging Face snapshot point into ../../blobs.
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<fs::directory_entry> sorted_entries(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(*it);
  if (error) fail_errno(error.value(), "list", directory);
  std::sort(entries.begin(), entries.end());
  return entries;
}

Listing list_directory(const std::vector<fs::directory_entry>& entries) {
  Listing listing;
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (is_shard(name)) listing.shards.push_back(name);
    if (is_index(name)) listing.indexes.push_back(name);
    if (is_other_format(name)) listing.others.push_back(name);
  }
  return listing;
}

/// Files of a subdirectory, unless a checkpoint is in it: the `original/` of some repositories holds the
/// same weights again.
void add_directory(const fs::path& directory, const std::string& prefix, CheckpointFiles& files);

void add_entry(const fs::directory_entry& entry, const std::string& prefix, CheckpointFiles& files) {
  const std::string name = entry.path().filename().string();
  if (name.starts_with('.') || name.ends_with(".partial") || is_shard(name) || is_index(name)) return;
  // Weights in a layout that the output no longer has must not lie beside it.
  if (is_other_format(name)) {
    if (!prefix.empty()) files.left_out.push_back(prefix + name);
    return;
  }
  if (prefix.empty() && name == kRecordFileName) return;
  std::error_code ignored;
  if (is_file(entry.path()))
    files.extra_files.push_back({prefix + name, entry.path()});
  else if (fs::is_directory(entry.symlink_status(ignored)))  // not through symlinks, which could make a cycle
    add_directory(entry.path(), prefix + name + "/", files);
  else
    files.left_out.push_back(prefix + name);
}

void add_directory(const fs::path& directory, const std::string& prefix, CheckpointFiles& files) {
  const auto entries = sorted_entries(directory);
  if (!list_directory(entries).shards.empty()) {
    files.left_out.push_back(prefix);
    return;
  }
  for (const auto& entry : entries) add_entry(entry, prefix, files);
}

/// The index to use, or empty.
std::string pick_index(const Listing& listing, const fs::path& directory) {
  const auto& indexes = listing.indexes;
  if (indexes.empty()) return {};
  if (std::find(indexes.begin(), indexes.end(), kIndexFile) != indexes.end()) return std::string(kIndexFile);
  if (indexes.size() == 1) return indexes.front();
  fail(ErrorCode::NotSupported, {directory.string(), {}},
       "{}: has several indexes ({}, {}); put the variant you mean in a directory of its own", directory.string(),
       indexes[0], indexes[1]);
}

bool has_all_shards(const ShardIndex& index, const fs::path& directory) {
  return std::all_of(index.files.begin(), index.files.end(),
                     [&](const auto& name) { return is_there(directory / name); });
}

/// The N of model-00001-of-0000N.safetensors, or 0.
std::size_t shards_promised(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t at = name.rfind(kOf);
  if (at == std::string_view::npos) return 0;
  std::size_t count = 0;
  const char* const end = name.data() + name.size() - kShardSuffix.size();
  const auto [rest, error] = std::from_chars(name.data() + at + kOf.size(), end, count);
  return error == std::errc() && rest == end ? count : 0;
}

/// Without an index, names that count the shards are all that tells a cut-off download from a whole one.
void check_promised_shards(const fs::path& directory, const std::vector<std::string>& shards) {
  for (const std::string& name : shards) {
    const std::size_t promised = shards_promised(name);
    const auto of_same = [&](const std::string& other) { return shards_promised(other) == promised; };
    const auto found = static_cast<std::size_t>(std::count_if(shards.begin(), shards.end(), of_same));
    if (promised > found)
      fail(ErrorCode::IndexMissingShard, {(directory / name).string(), {}},
           "{}: is one of {} shards by its name, but only {} are here; is the download complete?",
           (directory / name).string(), promised, found);
  }
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
}

[[noreturn]] void fail_nothing_found(const fs::path& directory, const Listing& listing) {
  const std::string name = directory.string();
  const std::string found =
      listing.others.empty() ? "" : fmt::format("; {} is of a kind that cannot be read yet", listing.others.front());
  fail(ErrorCode::NotSupported, {name, {}}, "{}: no checkpoint found: looked for *.safetensors and {}{}", name,
       kIndexFile, found);
}

std::vector<std::string> find_left_out(const Listing& listing, const std::vector<std::string>& shards) {
  std::vector<std::string> left_out = listing.others;
  for (const std::string& name : listing.shards)
    if (std::find(shards.begin(), shards.end(), name) == shards.end()) left_out.push_back(name);
  return left_out;
}

fs::path if_file(const fs::path& path) { return is_file(path) ? path : fs::path(); }

CheckpointFiles find_in_directory(const fs::path& path) {
  const auto entries = sorted_entries(path);
  const Listing listing = list_directory(entries);
  CheckpointFiles files;
  files.path = path;
  files.directory = path;
  pick_shards(files, listing);
  if (files.shards.empty() && !files.index) fail_nothing_found(path, listing);
  files.left_out = find_left_out(listing, files.shards);
  files.config = if_file(path / "config.json");
  files.record = if_file(path / kRecordFileName);
  for (const auto& entry : entries) add_entry(entry, {}, files);
  return files;
}

/// A file alone: glu_ckpt.json beside it describes the directory, so it is not read.
CheckpointFiles find_file(const fs::path& path) {
  const std::string name = path.string();
  if (is_index(path.filename().string()))
    fail(ErrorCode::NotSupported, {name, {}}, "{}: is an index; give the directory it is in", name);
  if (is_other_format(name))
    fail(ErrorCode::NotSupported, {name, {}}, "{}: only safetensors checkpoints can be read yet", name);
  CheckpointFiles files;
  files.path = path;
  files.directory = directory_of(path);
  files.shards = {path.filename().string()};
  files.config = if_file(files.directory / "config.json");
  return files;
}

}  // namespace

std::unique_ptr<Source> open_source(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail_errno(ENOENT, "open", path);
  if (error) fail_errno(error.value(), "open", path);
  return read_safetensors(fs::is_directory(status) ? find_in_directory(path) : find_file(path));
}

}  // namespace glu_ckpt
