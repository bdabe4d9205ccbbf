/// torch.distributed.checkpoint directories as a Source. Opening reads `.metadata` alone: an item, a zip inside a
/// .distcp file, is opened when its first byte is wanted, as there may be 100,000 of them.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <system_error>
#include <tuple>

#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "core/readable.hpp"
#include "format/dcp_metadata.hpp"
#include "format/file_source.hpp"
#include "format/pickle_graph.hpp"
#include "format/piecewise_crc.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_zip.hpp"
#include "io/run_owner.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr i64 kMaxMetadataJsonBytes = i64{64} << 20;
/// The pickle of one tensor has some 200 bytes; a subclass's attributes may make it longer.
constexpr i64 kMaxItemPickleBytes = i64{64} << 20;
constexpr i64 kBlockBytes = i64{1} << 20;

/// The bytes of the tensor between which a chunk lies.
struct Extent {
  i64 begin;
  i64 end;
  /// The largest end of this and all chunks of the tensor before it.
  i64 max_end;
};

/// Objects as the items that hold them.
class DcpObjects final : public ObjectStore {
 public:
  DcpObjects(std::shared_ptr<const std::vector<File>> files, std::vector<DcpItem> items)
      : files_(std::move(files)), items_(std::move(items)) {}

  std::vector<std::byte> read(std::size_t number) const override {
    const DcpItem& item = items_.at(number);
    std::vector<std::byte> bytes(static_cast<std::size_t>(item.length));
    (*files_)[item.file].pread_exact(bytes, item.offset);
    return bytes;
  }

 private:
  std::shared_ptr<const std::vector<File>> files_;
  std::vector<DcpItem> items_;
};

/// `record` is of the zip that begins at `zip`.
void check_same_crc(u32 crc, const ZipRecord& record, const InputPart& zip) {
  if (crc == record.crc) return;
  fail_at(ErrorCode::ZipCrc, {zip, record.offset},
          "the record {} of {} bytes has the CRC32 {:08x}, not the recorded {:08x}: the bytes are damaged", record.name,
          record.bytes, crc, record.crc);
}

/// An item whose zip was read.
struct OpenedChunk {
  /// The chunk's elements in the file.
  TensorPiece piece;
  /// The record that they are in; its offset counts from the start of the file.
  ZipRecord storage;
  bool has_checksum = false;
  /// Of the storage's bytes that were read while the source is watched.
  mutable PiecewiseCrc passed{kMaxPassedPieces};

  /// Throws ZipCrc where these are the last bytes of a storage that is damaged. `position` counts from the start of the
  /// file.
  void add_passed(std::span<const std::byte> bytes, i64 position, const File& file) const {
    if (!has_checksum || passed.add(position - storage.offset, bytes) != storage.bytes) return;
    if (const auto crc = passed.whole(storage.bytes)) check_same_crc(*crc, storage, {file.path().string()});
  }
  bool has_passed() const { return has_checksum && passed.whole(storage.bytes) == storage.crc; }
};

class DcpSource final : public FileSource, public ContentCheck {
 public:
  explicit DcpSource(const CheckpointFiles& files) : FileSource(files) {
    const fs::path path = files_.directory / kDcpMetadataName;
    metadata_ = read_dcp_metadata(read_small_file(path, kMaxDcpMetadataBytes, ErrorCode::DcpMetadata), path.string());
    open_files(path.string());
    check_item_ranges(path.string());
    refuse_shared_items();
    check_item_overlaps(metadata_, path.string());
    sort_by_place();
    fill_inventory();
    fill_extents();
    read_structure();
    read_side_files();
  }

  const ContentCheck* content_check() const override { return this; }
  /// Chunks are pieces of a tensor, each in a zip of its own.
  const FileBacked* file_backed() const override { return nullptr; }
  std::vector<u32> files_of(std::size_t tensor) const override {
    std::vector<u32> files;
    for (const DcpChunk& chunk : metadata_.tensors.at(tensor).chunks) files.push_back(chunk.item.file);
    std::ranges::sort(files);
    files.erase(std::unique(files.begin(), files.end()), files.end());
    return files;
  }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    for (const std::span<std::byte> piece : pieces) {
      read_range(tensor, offset, piece);
      offset += static_cast<i64>(piece.size());
    }
  }

  i64 bytes() const override { return item_bytes_; }

  void watch() const override {
    for (const std::unique_ptr<OpenedChunk>& chunk : opened_)
      if (chunk) chunk->passed.clear();
    watches_ = true;
  }

  void run(int jobs, const std::function<void(i64)>& on_progress) const override {
    const bool watched = watches_.exchange(false);
    struct Task {
      u32 entry;
      u32 chunk;
    };
    std::vector<Task> tasks;
    const auto num_tensors = static_cast<u32>(metadata_.tensors.size());
    for (u32 tensor = 0; tensor < num_tensors; ++tensor)
      for (u32 chunk = 0; chunk < metadata_.tensors[tensor].chunks.size(); ++chunk) tasks.push_back({tensor, chunk});
    for (u32 object = 0; object < metadata_.objects.size(); ++object) tasks.push_back({num_tensors + object, 0});
    parallel_for(tasks.size(), jobs, [&](std::size_t i, int) {
      const Task& task = tasks[i];
      if (task.entry < num_tensors)
        check_chunk(task.entry, task.chunk, watched, on_progress);
      else
        check_object(metadata_.objects[task.entry - num_tensors], on_progress);
    });
  }

 private:
  void read_range(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
    const TensorRef& to = checked_range(tensor, offset, static_cast<i64>(out.size()));
    const DcpTensor& from = metadata_.tensors[tensor];
    const i64 element_bytes = torch_dtype(from.dtype)->element_bytes;
    const i64 end = offset + static_cast<i64>(out.size());
    const auto first = extents_.begin() + static_cast<std::ptrdiff_t>(first_chunk_[tensor]);
    const auto last = extents_.begin() + static_cast<std::ptrdiff_t>(first_chunk_[tensor + 1]);
    auto at = std::partition_point(first, last, [&](const Extent& extent) { return extent.begin < end; });
    while (at != first && std::prev(at)->max_end > offset) {
      --at;
      if (at->end <= offset) continue;
      const auto chunk = static_cast<std::size_t>(at - first);
      const File& file = (*data_files_)[from.chunks[chunk].item.file];
      guard_read(to, [&] {
        const OpenedChunk& opened = opened_chunk(tensor, chunk);
        read_piece(opened.piece, from.shape, element_bytes, offset, out, [&](std::span<std::byte> part, i64 position) {
          file.pread_exact(part, position);
          if (watches_) opened.add_passed(part, position, file);
        });
      });
    }
  }

  void open_files(const std::string& metadata_file) {
    raise_open_file_limit();
    for (const std::string& name : metadata_.files) {
      try {
        data_files_->push_back(File::open_read(files_.directory / name));
        add_opened(data_files_->back());
      } catch (const Error& error) {
        if (error.code() != ErrorCode::NotFound && error.code() != ErrorCode::NotSupported) throw;
        const bool missing = error.code() == ErrorCode::NotFound;
        const std::string why = missing ? RunOwner::why_missing(files_.directory) : std::string();
        fail_at(missing ? ErrorCode::DcpMissingFile : error.code(), {metadata_file, first_mention(name)},
                "says that tensors are in {}, which {}{}{}", name, missing ? "does not exist" : "is no regular file",
                why.empty() ? "" : ". ", why);
      }
    }
    info_.inventory.files = metadata_.files;
    info_.inventory.dense = false;
  }

  /// The position in the metadata at which a file is first named.
  i64 first_mention(const std::string& name) const {
    u32 first = std::numeric_limits<u32>::max();
    for_each_item([&](const DcpItem& item, const std::string&) {
      if (metadata_.files[item.file] == name) first = std::min(first, item.listed_at);
    });
    return first;
  }

  template <typename Visit>
  void for_each_item(const Visit& visit) const {
    for (const DcpTensor& tensor : metadata_.tensors)
      for (const DcpChunk& chunk : tensor.chunks) visit(chunk.item, tensor.name);
    for (const DcpObject& object : metadata_.objects) visit(object.item, object.name);
  }

  void check_item_ranges(const std::string& metadata_file) {
    for_each_item([&](const DcpItem& item, const std::string& name) {
      const i64 file_bytes = info_.files[item.file].bytes;
      if (item.offset > file_bytes || item.length > file_bytes - item.offset) {
        const fs::path path = files_.directory / metadata_.files[item.file];
        std::string first(static_cast<std::size_t>(std::min<i64>(file_bytes, 64)), '\0');
        File::open_read(path).pread_exact(std::as_writable_bytes(std::span(first)), 0);
        if (const std::string_view what = stand_in_text(first, Meant::Binary); !what.empty())
          fail_at(ErrorCode::DcpItemRange, {path.string(), 0}, "this is no file of torch.save: {}", what);
        fail_at(
            ErrorCode::DcpItemRange, {metadata_file, item.listed_at, name},
            "'{}' is said to be at bytes [{}, {}) of {}, which ends at byte {}; it is cut short, or of another save",
            name, item.offset, item.offset + item.length, metadata_.files[item.file], file_bytes);
      }
      item_bytes_ += item.length;
    });
  }

  /// SerializationFormat.SAFETENSORS puts all tensors of a file into one blob, at one offset.
  void refuse_shared_items() const {
    std::vector<std::pair<u32, i64>> places;
    for_each_item([&](const DcpItem& item, const std::string&) { places.emplace_back(item.file, item.offset); });
    std::sort(places.begin(), places.end());
    for (auto at = std::adjacent_find(places.begin(), places.end()); at != places.end();
         at = std::adjacent_find(std::next(at), places.end()))
      refuse_safetensors({at->first, at->second, info_.files[at->first].bytes - at->second});
  }

  void refuse_safetensors(const DcpItem& item) const {
    std::array<std::byte, 9> head{};
    if (item.length < static_cast<i64>(head.size())) return;
    (*data_files_)[item.file].pread_exact(head, item.offset);
    u64 header_bytes = 0;
    std::memcpy(&header_bytes, head.data(), sizeof header_bytes);
    if (head[8] != std::byte{'{'} || header_bytes > static_cast<u64>(item.length)) return;
    fail_at(ErrorCode::NotSupported, {part_of_item(item), 0},
            "holds safetensors rather than torch zips (SerializationFormat.SAFETENSORS); save the checkpoint with the "
            "format TORCH_SAVE");
  }

  static std::pair<u32, i64> place_of(const DcpTensor& tensor) {
    std::pair<u32, i64> first{std::numeric_limits<u32>::max(), 0};
    for (const DcpChunk& chunk : tensor.chunks) first = std::min(first, {chunk.item.file, chunk.item.offset});
    return first;
  }

  /// Sorts as on the disk: file by file, each tensor where its first chunk is.
  void sort_by_place() {
    std::vector<std::pair<std::pair<u32, i64>, u32>> order;
    for (u32 i = 0; i < metadata_.tensors.size(); ++i) order.emplace_back(place_of(metadata_.tensors[i]), i);
    std::sort(order.begin(), order.end());
    std::vector<DcpTensor> sorted;
    sorted.reserve(order.size());
    for (const auto& [place, i] : order) sorted.push_back(std::move(metadata_.tensors[i]));
    metadata_.tensors = std::move(sorted);
  }

  void fill_inventory() {
    for (const DcpTensor& tensor : metadata_.tensors) {
      TensorRef ref{tensor.name, tensor.dtype, tensor.shape, torch_dtype(tensor.dtype)->element_bytes, 0, 0};
      for (const i64 extent : tensor.shape) ref.bytes *= extent;
      if (!ref.shape.empty()) ref.shape.back() *= torch_dtype(tensor.dtype)->values;
      if (!tensor.chunks.empty()) std::tie(ref.file, ref.offset) = place_of(tensor);
      info_.inventory.tensors.push_back(std::move(ref));
    }
  }

  /// The metadata has the chunks by ascending start, which is the order of their beginnings.
  void fill_extents() {
    first_chunk_.push_back(0);
    for (const DcpTensor& tensor : metadata_.tensors) {
      Extent last{0, 0, 0};
      for (const DcpChunk& chunk : tensor.chunks) {
        last = extent_after(last, tensor, chunk);
        extents_.push_back(last);
      }
      first_chunk_.push_back(extents_.size());
    }
    opened_.resize(extents_.size());
  }

  /// One without elements may begin past the end of its row: it takes the place of the one before.
  static Extent extent_after(const Extent& before, const DcpTensor& tensor, const DcpChunk& chunk) {
    const i64 element_bytes = torch_dtype(tensor.dtype)->element_bytes;
    const auto [begin, end] = piece_extent({chunk.start, chunk.shape, {}, 0}, tensor.shape, element_bytes);
    if (begin == end) return {before.begin, before.begin, before.max_end};
    return {begin, end, std::max(before.max_end, end)};
  }

  void read_structure() {
    std::vector<DcpItem> items;
    for (const DcpObject& object : metadata_.objects) items.push_back(object.item);
    const auto store = std::make_shared<DcpObjects>(data_files_, std::move(items));
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i)
      info_.structure.objects.push_back({metadata_.objects[i].name, metadata_.objects[i].item.length, store, i});
    info_.structure.paths = std::move(metadata_.paths);
    const fs::path json = files_.directory / "metadata.json";
    if (path_exists(json))
      info_.structure.metadata_json = read_small_file(json, kMaxMetadataJsonBytes, ErrorCode::DcpMetadata);
    info_.structure.has_integrity = path_exists(files_.directory / "integrity.json");
  }

  /// Where a chunk's elements are; opens the item on the first call.
  const OpenedChunk& opened_chunk(std::size_t tensor, std::size_t chunk) const {
    const std::size_t number = first_chunk_[tensor] + chunk;
    const std::lock_guard lock(mutexes_[number % mutexes_.size()]);
    std::unique_ptr<OpenedChunk>& opened = opened_[number];
    if (!opened) {
      const DcpTensor& of = metadata_.tensors[tensor];
      const DcpChunk& wanted = of.chunks[chunk];
      opened = read_item(of, wanted, open_item(wanted.item));
    }
    return *opened;
  }

  void read_from_item(const DcpItem& item, i64 offset, std::span<std::byte> out) const {
    (*data_files_)[item.file].pread_exact(out, item.offset + offset);
  }

  std::string read_record(const DcpItem& item, const ZipRecord& record) const {
    std::string text(static_cast<std::size_t>(record.bytes), '\0');
    read_from_item(item, record.offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  ZipDirectory open_item(const DcpItem& item) const {
    if (!starts_with_zip(item)) refuse_safetensors(item);
    return read_zip_directory([&](std::span<std::byte> out, i64 offset) { read_from_item(item, offset, out); },
                              item.length, part_of_item(item));
  }

  bool starts_with_zip(const DcpItem& item) const {
    std::array<std::byte, 2> head{};
    if (item.length < 2) return false;
    read_from_item(item, 0, head);
    return head[0] == std::byte{'P'} && head[1] == std::byte{'K'};
  }

  InputPart part_of_item(const DcpItem& item, i64 offset = 0) const {
    return {(*data_files_)[item.file].path().string(), item.offset + offset};
  }

  std::unique_ptr<OpenedChunk> read_item(const DcpTensor& tensor, const DcpChunk& chunk,
                                         const ZipDirectory& directory) const {
    const InputPart item = part_of_item(chunk.item);
    check_byte_order(chunk.item, directory);
    const ZipRecord* record = directory.find("data.pkl");
    if (record == nullptr || record->bytes > kMaxItemPickleBytes)
      fail_at(ErrorCode::DcpItemMismatch, {item, record == nullptr ? directory.offset : record->offset, tensor.name},
              "the item of '{}' has no data.pkl of a tensor", tensor.name);
    PickleGraph graph(read_record(chunk.item, *record));
    const InputPart pickle = part_of_item(chunk.item, record->offset);
    const PickleRef root = read_pickle(graph, PickleNames::Torch, pickle);
    const WhereAt here{pickle, graph.position(root).value_or(0), tensor.name};
    if (!is_tensor(graph, root))
      fail_at(ErrorCode::DcpItemMismatch, here, "the item of '{}' holds no tensor", tensor.name);
    const TorchTensor found = read_tensor(graph, root, pickle, tensor.name);
    check_same(tensor, chunk, found, here);
    auto opened = std::make_unique<OpenedChunk>();
    opened->storage = storage_of(directory, found, item, here);
    opened->storage.offset += chunk.item.offset;
    opened->has_checksum = has_checksums(directory);
    opened->piece = found.piece(opened->storage.offset);
    opened->piece.start = chunk.start;
    return opened;
  }

  void check_byte_order(const DcpItem& item, const ZipDirectory& directory) const {
    const ZipRecord* order = directory.find("byteorder");
    if (order == nullptr || order->bytes != 3 || read_record(item, *order) != "big") return;
    fail_at(ErrorCode::NotSupported, {part_of_item(item), order->offset}, "was saved on a big-endian machine");
  }

  static void check_same(const DcpTensor& tensor, const DcpChunk& chunk, const TorchTensor& found,
                         const WhereAt& here) {
    if (found.dtype == tensor.dtype && found.shape == chunk.shape) return;
    fail_at(ErrorCode::DcpItemMismatch, here,
            "holds a chunk of {} {}; .metadata says at byte {} that '{}' has {} {} there", dtype_name(found.dtype),
            shape_text(found.shape), chunk.listed_at, tensor.name, dtype_name(tensor.dtype), shape_text(chunk.shape));
  }

  static ZipRecord storage_of(const ZipDirectory& directory, const TorchTensor& tensor, const InputPart& item,
                              const WhereAt& here) {
    const ZipRecord* storage = directory.find("data/" + tensor.storage);
    if (storage == nullptr)
      fail_at(ErrorCode::TorchStorage, here, "'{}' is in the storage data/{}, which the item does not have",
              here.tensor, tensor.storage);
    if (storage->bytes != tensor.storage_bytes)
      fail_at(ErrorCode::TorchStorage, {item, storage->offset, here.tensor},
              "the storage data/{} of '{}' has {} bytes; its tensor says {}", tensor.storage, here.tensor,
              storage->bytes, tensor.storage_bytes);
    return *storage;
  }

  /// Reads the storage again only where it did not pass as a whole.
  void check_chunk(std::size_t tensor, std::size_t chunk, bool watched,
                   const std::function<void(i64)>& on_progress) const {
    const DcpTensor& of = metadata_.tensors[tensor];
    const DcpItem& item = of.chunks[chunk].item;
    ZipDirectory directory = open_item(item);
    read_item(of, of.chunks[chunk], directory);
    const OpenedChunk* const opened = opened_[first_chunk_[tensor] + chunk].get();
    std::string_view passed;
    if (watched && opened != nullptr && opened->has_passed()) passed = opened->storage.name;
    check_crcs(item, directory, passed, on_progress);
  }

  /// The content of an object's zip is its owner's affair; some are plain pickles.
  void check_object(const DcpObject& object, const std::function<void(i64)>& on_progress) const {
    if (starts_with_zip(object.item))
      check_crcs(object.item, open_item(object.item), {}, on_progress);
    else if (on_progress)
      on_progress(object.item.length);
  }

  /// Leaves out the record called `passed`.
  void check_crcs(const DcpItem& item, const ZipDirectory& directory, std::string_view passed,
                  const std::function<void(i64)>& on_progress) const {
    i64 reported = 0;
    const auto report = [&](i64 bytes) {
      reported += bytes;
      if (on_progress) on_progress(bytes);
    };
    if (has_checksums(directory))
      for (const ZipRecord& record : directory.records)
        if (record.name != passed) check_crc(item, record, report);
    report(item.length - reported);
  }

  void check_crc(const DcpItem& item, const ZipRecord& record, const std::function<void(i64)>& report) const {
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(record.bytes, kBlockBytes)));
    u32 crc = 0;
    for (i64 done = 0; done < record.bytes;) {
      const auto part = std::span(block).first(static_cast<std::size_t>(std::min(record.bytes - done, kBlockBytes)));
      read_from_item(item, record.offset + done, part);
      crc = crc32_of(part, crc);
      done += static_cast<i64>(part.size());
      report(static_cast<i64>(part.size()));
    }
    check_same_crc(crc, record, part_of_item(item));
  }

  DcpMetadata metadata_;
  std::shared_ptr<std::vector<File>> data_files_ = std::make_shared<std::vector<File>>();
  i64 item_bytes_ = 0;
  /// One for each chunk, tensor by tensor; those of tensor t begin at first_chunk_[t].
  std::vector<Extent> extents_;
  std::vector<std::size_t> first_chunk_;
  /// Each chunk; null until its item was opened. mutexes_ guard them.
  mutable std::vector<std::unique_ptr<OpenedChunk>> opened_;
  mutable std::array<std::mutex, 64> mutexes_;
  mutable std::atomic<bool> watches_{false};
};

}  // namespace

std::unique_ptr<Source> read_torch_dist(const CheckpointFiles& files) { return std::make_unique<DcpSource>(files); }

}  // namespace glu_ckpt
