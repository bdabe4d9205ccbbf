#include "format/staged_output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/byte_fields.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/parallel.hpp"
#include "format/checkpoint_files.hpp"
#include "format/extras.hpp"
#include "format/manifest.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

StagedMode staged_mode(OutputMode mode) {
  switch (mode) {
    case OutputMode::Create:
    case OutputMode::Rehearse: return StagedMode::Create;
    case OutputMode::Resume: return StagedMode::Resume;
    case OutputMode::Join: return StagedMode::Join;
    case OutputMode::Part: return StagedMode::Part;
    case OutputMode::Lead: return StagedMode::Lead;
  }
  return StagedMode::Create;
}

/// The bytes that the files of an output may keep of their data to hash them later: with up to 32 workers a part of
/// half a block waits for each.
constexpr i64 kHashMemoryBytes = i64{16} << 20;

/// The note that a part leaves when it is done.
constexpr std::string_view kSumsEnding = ".sums";
constexpr i64 kMaxSumsBytes = i64{4} << 30;

/// A file that is edited is a configuration.
constexpr i64 kMaxEditedBytes = i64{64} << 20;

/// Throws Io where [offset, offset + count) is not within the tensor: the plan and the executor disagree.
void check_write_range(const OutputTensor& tensor, i64 offset, i64 count) {
  if (offset < 0 || offset > tensor.bytes || count > tensor.bytes - offset)
    fail(ErrorCode::Io, {{}, tensor.name}, "bytes [{}, {}) were to be written to '{}'; it has {}", offset,
         offset + count, tensor.name, tensor.bytes);
}

}  // namespace

std::unique_ptr<OutputFormat> make_output_format(const OutputOptions& options,
                                                 const std::vector<OutputTensor>& tensors) {
  switch (options.format) {
    case Format::Safetensors: return make_safetensors_format(options, tensors);
    case Format::Torch: return make_torch_format(options, tensors);
    case Format::TorchDist: return make_torch_dist_format(options, tensors);
  }
  return nullptr;
}

std::map<std::string, std::string> recorded_metadata(const OutputOptions& options) {
  if (options.format == Format::Safetensors) return {};
  std::map<std::string, std::string> metadata = options.metadata;
  // Safetensors files get it anew.
  metadata.erase("format");
  return metadata;
}

bool names_single_file(const fs::path& path) { return format_of_name(path).has_value(); }

i64 count_parameters(const std::vector<OutputTensor>& tensors) {
  i64 total = 0;
  for (const OutputTensor& tensor : tensors) total += checked_product(tensor.shape).value_or(0);
  return total;
}

StagedOutput::StagedOutput(const OutputOptions& options, const std::vector<OutputTensor>& tensors)
    : options_(options),
      tensors_(tensors),
      single_file_(names_single_file(options.path)),
      format_(make_output_format(options_, tensors_)),
      staged_(options.path, options.overwrite, staged_mode(options.mode), options.fingerprint, options.rank),
      in_memory_(filesystem_of(staged_.path()).is_in_memory()),
      spool_(staged_.path()),
      hash_memory_(kHashMemoryBytes),
      planned_(format_->files()),
      crcs_(format_->num_crcs()),
      around_written_(format_->num_crcs()) {
  raise_open_file_limit();  // every file stays open
  put_beside_files_below();
  make_subdirectories(format_->directory());
  for (const TensorFile& file : planned_) open_file(file);
  if (options_.mode == OutputMode::Rehearse)
    for (std::size_t i = 0; i < crcs_.size(); ++i) (void)crcs_[i].add_sum(0, format_->crc_range(i).bytes, 0);
  if (staged_.resumed() && options_.mode != OutputMode::Part) remove_others();
}

/// Calls use(place, part of `bytes`) for each piece of the tensor's range that lies in one place.
template <typename Bytes, typename Use>
void StagedOutput::for_each_piece(std::size_t tensor, i64 offset, Bytes bytes, const Use& use) const {
  check_write_range(tensors_.at(tensor), offset, std::ssize(bytes));
  while (!bytes.empty()) {
    const TensorPlace place = format_->place(tensor, offset);
    const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(place.bytes)));
    use(place, part);
    bytes = bytes.subspan(part.size());
    offset += std::ssize(part);
  }
}

void StagedOutput::write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
  for_each_piece(tensor, offset, bytes, [&](const TensorPlace& place, std::span<const std::byte> part) {
    files_[place.file].write(part, place.position);
    add_crc(place, part);
  });
  bytes_written_ += std::ssize(bytes);
}

void StagedOutput::add_crc(const TensorPlace& place, std::span<const std::byte> part) {
  if (place.crc == kNoCrc) return;
  if (crcs_[place.crc].add(place.crc_offset, part) == format_->crc_range(place.crc).bytes) write_around(place.crc);
}

void StagedOutput::write_around(std::size_t crc) {
  const CrcRange range = format_->crc_range(crc);
  const u32 value = crcs_[crc].finish(range.bytes, tensors_[range.tensor].name);
  bytes_written_ += format_->write_around(crc, value, files_);
  around_written_[crc] = 1;
}

void StagedOutput::adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
  for_each_piece(tensor, offset, bytes, [&](const TensorPlace& place, std::span<const std::byte> part) {
    files_[place.file].add_written(part, place.position);
    add_crc(place, part);
  });
  bytes_written_ += std::ssize(bytes);
}

void StagedOutput::read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
  for_each_piece(tensor, offset, out, [&](const TensorPlace& place, std::span<std::byte> part) {
    files_[place.file].read(part, place.position);
  });
}

bool StagedOutput::clone(std::size_t tensor, i64 offset, const FilePlace& from, i64 bytes) {
  check_write_range(tensors_.at(tensor), offset, bytes);
  const TensorPlace place = format_->place(tensor, offset);
  if (planned_[place.file].space != Space::AsWritten || place.bytes < bytes) return false;
  return files_[place.file].try_clone_from(*from.file, from.offset, place.position, bytes);
}

i64 StagedOutput::file_offset(std::size_t tensor) const {
  const TensorPlace place = format_->place(tensor, 0);
  return place.bytes == tensors_.at(tensor).bytes ? place.position : -1;
}

void StagedOutput::require_owner(std::string_view action) const {
  if (options_.mode == OutputMode::Join || options_.mode == OutputMode::Part)
    fail(ErrorCode::Io, {options_.path.string(), {}},
         "{}: a process that joined the run cannot {} it; the one that made it does", options_.path.string(), action);
}

/// Files that lay beside the source's directory of tensors (hf/, megatron_args.txt) are written below the output, if
/// its tensors are in no directory of their own.
void StagedOutput::put_beside_files_below() {
  if (!format_->directory().empty()) return;
  for (ExtraFile& extra : options_.extra_files) extra.name = std::string(without_beside(extra.name));
  for (SideFile& made : options_.made_files) made.name = std::string(without_beside(made.name));
}

/// Relative to the staging directory.
fs::path StagedOutput::place_of(const std::string& name) const {
  return (fs::path(format_->directory()) / name).lexically_normal();
}

/// Returns where a file of this name is to be created, and makes its directories.
fs::path StagedOutput::claim(const std::string& name) {
  if (!names_.insert(name).second)
    fail(ErrorCode::NameCollision, {name, {}}, "two output files would be called '{}'", name);
  const fs::path relative = place_of(name);
  make_subdirectories(relative.parent_path());
  return staged_.path() / relative;
}

void StagedOutput::open_file(const TensorFile& file) {
  const fs::path path = claim(file.name);
  // Resume without an earlier run is a new output.
  const bool is_new = options_.mode == OutputMode::Resume && !staged_.resumed();
  // Cloned parts are not read, so the data of a file with clones have no checksum.
  const bool has_data = options_.mode != OutputMode::Rehearse;
  const bool reserves = has_data && !in_memory_ && !options_.consumes_source;
  const Space space = !reserves && file.space == Space::All ? Space::Never : file.space;
  OutputFileOptions options{file.bytes, file.header_bytes, space, nullptr, nullptr};
  if (file.space == Space::AsWritten)
    options.spool = &spool_;
  else if (has_data)
    options.hash_memory = &hash_memory_;
  files_.emplace_back(path, is_new ? StagedMode::Create : staged_mode(options_.mode), options);
}

/// Removes what else an earlier run left; it is written anew.
void StagedOutput::remove_others() {
  std::set<fs::path> keep;
  for (const OutputFile& file : files_)
    for (const fs::path& name : file.names()) keep.insert(name);
  remove_others_in(staged_.path(), keep);
}

void StagedOutput::remove_others_in(const fs::path& directory, const std::set<fs::path>& keep) {
  for (const std::string& name : list_directory(directory)) {
    const fs::path path = directory / name;
    // Journals, and what goes with them, are StagedDir's.
    if (keep.contains(path) || (directory == staged_.path() && StagedDir::is_journal(name))) continue;
    const bool is_ours = subdirectories_.contains(path.lexically_relative(staged_.path()));
    if (is_ours && link_kind(path) == PathKind::Directory) {
      remove_others_in(path, keep);
    } else if (const int error = remove_own(path, Own::InStaging); error != 0) {
      fail_errno(error, "remove", path);
    }
  }
}

void StagedOutput::publish_files() {
  spool_.flush();
  parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].publish(); });
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const OutputFile& file = files_[i];
    records_[planned_[i].name] = {planned_[i].name, file.bytes(), file.header_bytes(), hex(file.header_hash()),
                                  file.data_hash() ? hex(*file.data_hash()) : ""};
  }
}

std::vector<std::byte> StagedOutput::export_sums() {
  spool_.flush();
  parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].flush(); });
  ByteWriter out;
  for (const OutputFile& file : files_) file.export_hashes(out);
  std::vector<std::byte> crcs;
  for (std::size_t i = 0; i < crcs_.size(); ++i) crcs_[i].export_to(crcs, i);
  out.text({reinterpret_cast<const char*>(crcs.data()), crcs.size()});
  return out.take();
}

void StagedOutput::import_sums(std::span<const std::byte> sums) {
  see_others();
  ByteReader in(sums, "checksums of another process of the run");
  for (OutputFile& file : files_) file.import_hashes(in);
  const std::string crcs = in.text();
  in.end();
  for (const CrcPiece& piece : read_crc_pieces(std::as_bytes(std::span(crcs)))) {
    crcs_.at(piece.number).add_sum(piece.offset, piece.bytes, static_cast<u32>(piece.crc));
    // A process that has all bytes of a checksum has written what stands around them.
    if (piece.bytes == format_->crc_range(piece.number).bytes) around_written_[piece.number] = 1;
  }
}

void StagedOutput::end_part(std::span<const std::byte> moved) {
  const std::vector<std::byte> sums = export_sums();
  for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
  staged_.journal().sync();
  ByteWriter out;
  for (const std::span<const std::byte> bytes : {std::span(sums), moved})
    out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const std::vector<std::byte> content = out.take();
  const fs::path made = staged_.file_of_part(options_.rank, ".new");
  if (const int error = remove_own(made, Own::InStaging); error != 0) fail_errno(error, "remove", made);
  write_small_file(made, {reinterpret_cast<const char*>(content.data()), content.size()});
  replace_own(made, staged_.file_of_part(options_.rank, kSumsEnding), Own::InStaging);
  sync_directory(staged_.path());
}

std::optional<PartSums> StagedOutput::part_sums(i64 part) const {
  const fs::path path = staged_.file_of_part(static_cast<int>(part), kSumsEnding);
  if (link_kind(path) != PathKind::File) return std::nullopt;
  const std::string text = read_small_file(path, kMaxSumsBytes, ErrorCode::Io);
  ByteReader in(std::as_bytes(std::span(text)), path.string());
  const std::string checksums = in.text(), moved = in.text();
  in.end();
  const auto bytes_of = [](const std::string& from) {
    const auto bytes = std::as_bytes(std::span(from));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  return PartSums{bytes_of(checksums), bytes_of(moved)};
}

void StagedOutput::settle_on_disk() {
  spool_.flush();
  parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].see_others(); });
  for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
  sync_directory(staged_.path());
}

void StagedOutput::see_others() {
  if (!sees_others_) parallel_for(files_.size(), kFileThreads, [&](std::size_t i, int) { files_[i].see_others(); });
  sees_others_ = true;
}

void StagedOutput::write_text(const std::string& name, std::string_view text) {
  write_small_file(claim(name), text);
  records_[name] = record_of_text(text, name);
  bytes_written_ += std::ssize(text);
}

/// Megatron's tracker file stands beside the directory that it names.
void StagedOutput::write_tracker() {
  if (format_->directory().empty()) return;
  write_small_file(staged_.path() / kTrackerFile, options_.structure.tracker);
  bytes_written_ += std::ssize(options_.structure.tracker);
}

/// A file that was written here stays: an extra file of the same name is from the source's own layout.
void StagedOutput::copy_extra_file(const ExtraFile& extra) {
  if (extra.name == kRecordFileName || extra.name == kExtrasFileName || names_.contains(extra.name)) return;
  if (extra.edit != nullptr)
    return write_text(extra.name, extra.edit(read_small_file(extra.path, kMaxEditedBytes, ErrorCode::ConfigJson)));
  const fs::path path = claim(extra.name);
  const File from = File::open_read(extra.path);
  if (options_.mode == OutputMode::Rehearse && from.size() > kMaxEditedBytes) return;
  const File to = File::create(path);
  const auto copy = [&](std::span<const std::byte> block, i64 offset) { to.pwrite_exact(block, offset); };
  const FileRecord& record = records_[extra.name] = record_of_file(from, extra.name, {0, 1, copy});
  to.set_mode((from.mode() & 0777) | 0200);
  to.sync();
  bytes_written_ += record.bytes;
}

void StagedOutput::make_subdirectories(const fs::path& relative) {
  fs::path path;
  for (const fs::path& part : relative) {
    if (part.empty()) continue;
    path /= part;
    const fs::path directory = staged_.path() / path;
    if (!make_directory(directory) && !is_directory_at(directory)) fail_errno(EEXIST, "create", directory);
    subdirectories_.insert(path);
  }
}

std::vector<std::string> StagedOutput::names_inside() const {
  std::vector<std::string> names;
  for (const std::string& name : names_)
    if (!name.starts_with(kBesideTensors)) names.push_back(name);
  return names;
}

void StagedOutput::write_record_file(const Record& record) {
  RecordFile content{record, options_.options, {}, recorded_metadata(options_)};
  for (const auto& [name, file] : records_) content.files.push_back(file);
  write_text(std::string(kRecordFileName), print_record_json(content));
}

void StagedOutput::write_headers(const Record& record) {
  parallel_for(crcs_.size(), kFileThreads, [&](std::size_t crc, int) {
    if (!around_written_[crc]) write_around(crc);
  });
  bytes_written_ += format_->write_headers(record, files_, crcs_);
}

void StagedOutput::finish(const Record& record) {
  require_owner("finish");
  write_headers(record);
  const std::vector<SideFile> side_files = single_file_ ? std::vector<SideFile>() : format_->side_files();
  publish_files();
  if (single_file_) return;
  for (const SideFile& file : side_files) write_text(file.name, file.text);
  if (needs_extras(options_.structure, options_.format))
    write_text(std::string(kExtrasFileName), print_extras(options_.structure, tensors_));
  for (const SideFile& file : options_.made_files) write_text(file.name, file.text);
  for (const ExtraFile& extra : options_.extra_files) copy_extra_file(extra);
  write_record_file(record);
  // It hashes the tensors.
  if (options_.mode != OutputMode::Rehearse && needs_integrity(options_.structure, options_.format))
    write_text(std::string(kIntegrityName), print_integrity(root(), names_inside()));
  write_tracker();
  for (const fs::path& subdirectory : subdirectories_) sync_directory(staged_.path() / subdirectory);
}

void StagedOutput::write_manifest(const std::function<void(i64)>& on_progress) {
  require_owner("finish");
  const std::string text = print_manifest(staged_.path(), on_progress);
  write_small_file(staged_.path() / kManifestFileName, text);
  bytes_written_ += std::ssize(text);
}

fs::path StagedOutput::staged_path() const { return single_file_ ? staged_.path() / file_name() : staged_.path(); }

void StagedOutput::commit() {
  require_owner("commit");
  if (single_file_)
    staged_.commit_file(file_name());
  else
    staged_.commit();
}

Journal& StagedOutput::journal() {
  if (!has_journal())
    fail(ErrorCode::Io, {options_.path.string(), {}}, "{}: this run keeps no journal", options_.path.string());
  return staged_.journal();
}

}  // namespace glu_ckpt
