/// Files of torch.save as one Source: zips, and the older stream of pickles.

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "core/checked_math.hpp"
#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "format/extras.hpp"
#include "format/file_source.hpp"
#include "format/pickle_graph.hpp"
#include "format/piecewise_crc.hpp"
#include "format/torch_tensor.hpp"
#include "format/torch_tree.hpp"
#include "io/file_backed.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxRecordPickleBytes = i64{1} << 30;
/// The pickles of a file of the older kind stand before its storages.
constexpr i64 kMaxLegacyHead = i64{256} << 20;
constexpr i64 kCheckBlockBytes = i64{1} << 20;
/// LONG1 of 10 bytes: torch.serialization.MAGIC_NUMBER, which follows PROTO and, from protocol 4 on, FRAME.
constexpr std::string_view kLegacyMagic = "\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19";
constexpr i64 kLegacyHeadBytes = 32;

/// A storage's bytes in its file. A file of the older kind has no record of them.
struct StoredRange {
  i64 offset = 0;
  i64 bytes = 0;
  std::optional<std::size_t> record = {};
};

class TorchSource final : public FileSource, public FileBacked, public ContentCheck {
 public:
  explicit TorchSource(const CheckpointFiles& files) : FileSource(files) {
    raise_open_file_limit();
    for (const std::string& name : files_.shards) add_file(open_shard(name), name);
    keep_trees();
    const std::vector<u32> order = sorted_by_name();
    if (files_.index) check_index(order);
    read_side_files();
  }

  const ContentCheck* content_check() const override { return this; }
  const FileBacked* file_backed() const override { return this; }
  std::vector<u32> files_of(std::size_t tensor) const override { return {info_.inventory.tensors.at(tensor).file}; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    for (const std::span<std::byte> piece : pieces) {
      read_range(tensor, offset, piece);
      offset += static_cast<i64>(piece.size());
    }
  }

  FilePlace place(std::size_t tensor) const override {
    const Stored& stored = stored_.at(tensor);
    if (stored.piece.strides != dense_strides(stored.piece.shape, stored.element_bytes)) return {};
    return {&opened_[info_.inventory.tensors[tensor].file].file, stored.piece.offset};
  }

  bool reads_past_cache(std::size_t) const override { return false; }
  void keep_in_cache() const override {}

  void watch() const override {
    passed_.clear();
    for (const OpenFile& file : opened_) {
      passed_.emplace_back();
      if (has_checksums(file.zip))
        for (std::size_t r = 0; r < file.zip.records.size(); ++r) passed_.back().emplace_back(kMaxPassedPieces);
    }
    watches_ = true;
  }

  void run(int jobs, const std::function<void(i64)>& on_progress) const override {
    const bool watched = watches_.exchange(false);
    const auto has_passed = [&](std::size_t file, std::size_t number) {
      const ZipRecord& record = opened_[file].zip.records[number];
      return watched && record.bytes > 0 && passed_[file][number].whole(record.bytes) == record.crc;
    };
    std::vector<std::pair<std::size_t, std::size_t>> records;
    for (std::size_t f = 0; f < opened_.size(); ++f) {
      if (!has_checksums(opened_[f].zip)) continue;
      for (std::size_t r = 0; r < opened_[f].zip.records.size(); ++r) {
        if (!has_passed(f, r))
          records.emplace_back(f, r);
        else if (on_progress)
          on_progress(opened_[f].zip.records[r].bytes);
      }
    }
    parallel_for(records.size(), jobs, [&](std::size_t i, int) {
      check_record(opened_[records[i].first], opened_[records[i].first].zip.records[records[i].second], on_progress);
    });
  }

  i64 bytes() const override {
    i64 bytes = 0;
    for (const OpenFile& file : opened_)
      if (has_checksums(file.zip))
        for (const ZipRecord& record : file.zip.records) bytes += record.bytes;
    return bytes;
  }

 private:
  struct OpenFile {
    File file;
    /// Empty for a file of the older kind.
    ZipDirectory zip;
  };
  struct Stored {
    TensorPiece piece;
    i64 element_bytes = 1;
    std::optional<std::size_t> record = {};
  };
  struct PendingTree {
    TorchTree tree;
    bool flat = false;
  };

  void read_range(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
    const TensorRef& from = checked_range(tensor, offset, static_cast<i64>(out.size()));
    const File& file = opened_[from.file].file;
    const Stored& stored = stored_[tensor];
    const ReadFile read_file = [&](std::span<std::byte> to, i64 at) {
      file.pread_exact(to, at);
      if (watches_ && stored.record) add_passed(from.file, *stored.record, to, at);
    };
    guard_read(from,
               [&] { read_piece(stored.piece, stored.piece.shape, stored.element_bytes, offset, out, read_file); });
  }

  /// Throws ZipCrc where these are the last bytes of a record that is damaged.
  void add_passed(u32 number_of_file, std::size_t number, std::span<const std::byte> bytes, i64 at) const {
    const OpenFile& from = opened_[number_of_file];
    const ZipRecord& record = from.zip.records[number];
    if (passed_[number_of_file].empty()) return;
    PiecewiseCrc& passed = passed_[number_of_file][number];
    if (passed.add(at - record.offset, bytes) != record.bytes) return;
    if (const auto crc = passed.whole(record.bytes)) check_same_crc(*crc, from, record);
  }

  static void check_same_crc(u32 crc, const OpenFile& from, const ZipRecord& record) {
    if (crc == record.crc) return;
    fail_at(ErrorCode::ZipCrc, {from.file.path().string(), record.offset, record.name},
            "the {} bytes of record '{}' have the checksum {:08x}, the zip says {:08x}: the file is damaged",
            record.bytes, record.name, crc, record.crc);
  }

  static void check_record(const OpenFile& from, const ZipRecord& record, const std::function<void(i64)>& on_progress) {
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(record.bytes, kCheckBlockBytes)));
    u32 crc = 0;
    for (i64 done = 0; done < record.bytes;) {
      const auto part =
          std::span(block).first(static_cast<std::size_t>(std::min(record.bytes - done, kCheckBlockBytes)));
      from.file.pread_exact(part, record.offset + done);
      crc = crc32_of(part, crc);
      done += static_cast<i64>(part.size());
      if (on_progress) on_progress(static_cast<i64>(part.size()));
    }
    check_same_crc(crc, from, record);
  }

  void add_file(File file, const std::string& name) {
    info_.inventory.files.push_back(name);
    opened_.push_back({std::move(file), {}});
    const File& opened = opened_.back().file;
    std::string head(static_cast<std::size_t>(std::min(opened.size(), kLegacyHeadBytes)), '\0');
    opened.pread_exact(std::as_writable_bytes(std::span(head)), 0);
    if (head.starts_with('\x80') && head.find(kLegacyMagic) != std::string::npos)
      add_legacy(name);
    else
      add_zip(name);
  }

  // ---- zips -------------------------------------------------------------------------------------

  void add_zip(const std::string& name) {
    OpenFile& opened = opened_.back();
    const std::string path = opened.file.path().string();
    const ReadAt read = [&](std::span<std::byte> out, i64 offset) { opened.file.pread_exact(out, offset); };
    opened.zip = read_zip_directory(read, opened.file.size(), path);
    const ZipRecord* byteorder = opened.zip.find("byteorder");
    if (byteorder != nullptr && read_text(*byteorder, path) != "little")
      fail_at(ErrorCode::NotSupported, {path, byteorder->offset}, "is of a big-endian machine, which is not supported");
    const ZipRecord* pickle = opened.zip.find("data.pkl");
    if (pickle == nullptr)
      fail_at(ErrorCode::TorchObject, {path, opened.zip.offset},
              "the directory of the zip has no record data.pkl, so torch.save did not write it");
    PickleGraph graph(read_text(*pickle, path));
    const InputPart part(path, pickle->offset);
    const PickleRef root = read_pickle(graph, PickleNames::Torch, part);
    add_tensors(graph, root, part, name, [&](const TorchTensor& tensor, const WhereAt& where) {
      const ZipRecord* record = opened.zip.find("data/" + tensor.storage);
      if (record == nullptr)
        fail_at(ErrorCode::TorchStorage, where, "'{}': its storage data/{} is not in the zip", where.tensor,
                tensor.storage);
      return StoredRange{record->offset, record->bytes, static_cast<std::size_t>(record - opened.zip.records.data())};
    });
    take_own_records(path);
  }

  /// Reads the record that glu-ckpt wrote into a file that stands alone.
  void take_own_records(const std::string& path) {
    const ZipDirectory& zip = opened_.back().zip;
    if (const ZipRecord* record = zip.find(kRecordFileName); record != nullptr)
      parse_record(read_text(*record, path), {path, record->offset});
    if (const ZipRecord* record = zip.find(kExtrasFileName); record != nullptr) {
      const auto file = std::make_shared<File>(File::open_read(path));
      const i64 begin = record->offset;
      take_extras(
          read_extras([file, begin](std::span<std::byte> out, i64 offset) { file->pread_exact(out, begin + offset); },
                      record->bytes, {path, begin}));
    }
  }

  std::string read_text(const ZipRecord& record, const std::string& path) const {
    if (record.bytes > kMaxRecordPickleBytes)
      fail_at(ErrorCode::PickleLimit, {path, record.offset}, "record '{}' has {} bytes; at most {} are read",
              record.name, record.bytes, kMaxRecordPickleBytes);
    std::string text(static_cast<std::size_t>(record.bytes), '\0');
    opened_.back().file.pread_exact(std::as_writable_bytes(std::span(text)), record.offset);
    if (has_checksums(opened_.back().zip) && crc32_of(std::as_bytes(std::span(text))) != record.crc)
      fail_at(ErrorCode::ZipCrc, {path, record.offset, record.name},
              "record '{}' does not have the checksum that the zip gives: the file is damaged", record.name);
    return text;
  }

  // ---- the older kind ---------------------------------------------------------------------------

  /// Magic number, protocol version, machine facts, the object, the keys of its storages; then each storage
  /// as a count of elements and its bytes.
  void add_legacy(const std::string& name) {
    const File& file = opened_.back().file;
    const std::string path = file.path().string();
    std::string head(static_cast<std::size_t>(std::min(file.size(), kMaxLegacyHead)), '\0');
    file.pread_exact(std::as_writable_bytes(std::span(head)), 0);
    const InputPart part(path);
    PickleGraph graph(std::move(head));
    std::array<PickleRef, 5> parts{};
    /// The position of each of them, and of the storages.
    std::array<std::size_t, 6> begins{};
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = read_pickle(graph, PickleNames::Torch, part, begins[i], &begins[i + 1]);
    constexpr i64 kProtocolVersion = 1001;
    if (graph.kind(parts[1]) != PickleKind::Int || graph.integer(parts[1]) != kProtocolVersion)
      fail_at(ErrorCode::NotSupported, {part, static_cast<i64>(begins[1])},
              "is not of protocol version {} of torch.save", kProtocolVersion);
    check_machine(graph, parts[2], {part, static_cast<i64>(begins[2])});
    std::map<std::string, i64> unit_bytes;
    const ReadTensor read = [&](const TorchTensor& tensor, const std::string&) {
      unit_bytes[tensor.storage] = tensor.storage_unit;
      return std::string(static_cast<std::size_t>(tensor.bytes()), '\0');
    };
    const TorchContents contents = read_contents(graph, parts[3], part, read);
    for (const TorchContents::Found& found : contents.tensors) {
      const TorchTensor tensor = read_tensor(graph, found.node, part, found.name);
      unit_bytes[tensor.storage] = tensor.storage_unit;
    }
    const auto ranges =
        legacy_storages(graph, parts[4], {part, static_cast<i64>(begins[4])}, static_cast<i64>(begins[5]), unit_bytes);
    add_tensors(graph, parts[3], part, name, [&](const TorchTensor& tensor, const WhereAt& where) {
      const auto found = ranges.find(tensor.storage);
      if (found == ranges.end())
        fail_at(ErrorCode::TorchStorage, where, "'{}': its storage {} is not in the file", where.tensor,
                tensor.storage);
      return found->second;
    });
  }

  static void check_machine(const PickleGraph& graph, PickleRef facts, const WhereAt& where) {
    if (graph.kind(facts) != PickleKind::Dict) return;
    const auto items = graph.items(facts);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph.kind(items[i]) == PickleKind::String && graph.text(items[i]) == "little_endian" &&
          graph.kind(items[i + 1]) == PickleKind::Bool && !graph.boolean(items[i + 1]))
        fail_at(ErrorCode::NotSupported, where, "is of a big-endian machine, which is not supported");
  }

  /// `listed` is where the keys are, `at` where the first storage is.
  std::map<std::string, StoredRange> legacy_storages(const PickleGraph& graph, PickleRef keys, const WhereAt& listed,
                                                     i64 at, const std::map<std::string, i64>& unit_bytes) const {
    const File& file = opened_.back().file;
    std::map<std::string, StoredRange> ranges;
    if (graph.kind(keys) != PickleKind::List)
      fail_at(ErrorCode::TorchObject, listed, "the list of storages is no list");
    for (const PickleRef key : graph.items(keys)) {
      const std::string name = graph.kind(key) == PickleKind::String ? std::string(graph.text(key)) : std::string();
      const auto size = unit_bytes.find(name);
      if (size == unit_bytes.end())
        fail_at(ErrorCode::TorchStorage, {listed.part, graph.position(key).value_or(*listed.offset)},
                "no tensor says what storage '{}' holds", name);
      i64 count = 0;
      if (file.size() - at < static_cast<i64>(sizeof count)) fail_short(listed.part, name, at, file.size());
      file.pread_exact(std::as_writable_bytes(std::span(&count, 1)), at);
      at += static_cast<i64>(sizeof count);
      const auto bytes = checked_mul(count, size->second);
      if (count < 0 || !bytes || *bytes > file.size() - at) fail_short(listed.part, name, at, file.size());
      ranges[name] = {at, *bytes};
      at += *bytes;
    }
    for (const auto& [storage, unit] : unit_bytes)
      if (!ranges.contains(storage))
        fail_at(ErrorCode::TorchStorage, listed, "a tensor needs storage '{}', which is not in the list", storage);
    if (at != file.size())
      fail_at(ErrorCode::TrailingBytes, {listed.part, at}, "{} bytes follow the last storage, which ends there",
              file.size() - at);
    return ranges;
  }

  [[noreturn]] static void fail_short(const InputPart& part, const std::string& storage, i64 at, i64 file_bytes) {
    fail_at(ErrorCode::FileTruncated, {part, file_bytes}, "the file ends here, but storage '{}' at byte {} goes on",
            storage, at);
  }

  // ---- tensors ----------------------------------------------------------------------------------

  static StoredRange checked_storage(StoredRange storage, const TorchTensor& tensor, const WhereAt& where) {
    if (storage.bytes != tensor.storage_bytes)
      fail_at(ErrorCode::TorchStorage, where, "'{}' needs a storage of {} bytes; data/{} at byte {} has {}",
              where.tensor, tensor.storage_bytes, tensor.storage, storage.offset, storage.bytes);
    return storage;
  }

  template <typename FindStorage>
  void add_tensors(const PickleGraph& graph, PickleRef root, const InputPart& part, const std::string& name,
                   const FindStorage& find) {
    const ReadTensor read_all = [&](const TorchTensor& tensor, const std::string& tensor_name) {
      std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\0');
      const WhereAt where{part, graph.position(root), tensor_name};
      const StoredRange storage = checked_storage(find(tensor, where), tensor, where);
      const ReadFile read_file = [&](std::span<std::byte> to, i64 at) { opened_.back().file.pread_exact(to, at); };
      read_piece(tensor.piece(storage.offset), tensor.shape, torch_dtype(tensor.dtype)->element_bytes, 0,
                 std::as_writable_bytes(std::span(bytes)), read_file);
      return bytes;
    };
    TorchContents contents = read_contents(graph, root, part, read_all);
    const std::string prefix = prefix_of(name);
    const auto number = static_cast<u32>(opened_.size() - 1);
    std::vector<std::pair<TensorRef, Stored>> found;
    for (const TorchContents::Found& entry : contents.tensors) {
      const TorchTensor tensor = read_tensor(graph, entry.node, part, entry.name);
      const WhereAt where{part, graph.position(entry.node), entry.name};
      const StoredRange storage = checked_storage(find(tensor, where), tensor, where);
      TensorRef ref{prefix + entry.name, tensor.dtype, tensor.value_shape(),
                    tensor.bytes(),      number,       storage.offset + tensor.offset};
      found.emplace_back(std::move(ref), Stored{tensor.piece(storage.offset), torch_dtype(tensor.dtype)->element_bytes,
                                                storage.record});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first.offset < b.first.offset; });
    for (auto& [ref, stored] : found) {
      info_.inventory.tensors.push_back(std::move(ref));
      stored_.push_back(std::move(stored));
    }
    trees_.push_back({{name, prefix, std::move(contents.pickle), {part.file, -1}}, contents.flat});
  }

  /// "mp_rank_00/" for Megatron's model_optim_rng.pt; the file of flat buckets beside it holds optimizer state
  /// under other keys.
  static std::string prefix_of(const std::string& name) {
    const std::size_t slash = name.rfind('/');
    const std::string directory = slash == std::string::npos ? std::string() : name.substr(0, slash + 1);
    return name.ends_with("distrib_optim.pt") ? directory + "optimizer.distrib_optim." : directory;
  }

  /// Shards of one flat state dict have no objects to keep.
  void keep_trees() {
    const bool flat = std::ranges::all_of(trees_, [](const PendingTree& tree) { return tree.flat; });
    if (flat && trees_.size() > 1 &&
        std::ranges::all_of(trees_, [](const PendingTree& tree) { return tree.tree.prefix.empty(); }))
      return;
    info_.structure.trees.clear();
    for (PendingTree& tree : trees_) info_.structure.trees.push_back(std::move(tree.tree));
  }

  std::vector<OpenFile> opened_;
  std::vector<Stored> stored_;
  std::vector<PendingTree> trees_;
  mutable std::atomic<bool> watches_{false};
  /// The records of each file while they are watched; none of a file without checksums.
  mutable std::vector<std::deque<PiecewiseCrc>> passed_;
};

}  // namespace

std::unique_ptr<Source> read_torch(const CheckpointFiles& files) { return std::make_unique<TorchSource>(files); }

}  // namespace glu_ckpt
