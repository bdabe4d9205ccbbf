#include "format/torch_zip.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parser_memory.hpp"
#include "core/readable.hpp"
#include "format/zip_fields.hpp"

namespace glu_ckpt {
namespace {

using Bytes = std::span<const std::byte>;
using u16 = std::uint16_t;

/// Zips up to this length are read at once: most of them are items of a .distcp, of 1.5 KB or so.
constexpr i64 kSmallZipBytes = i64{64} << 10;
/// The end of a longer one, read before anything is known. It holds a directory of some 50 records.
constexpr i64 kTailBytes = i64{4} << 10;
constexpr i64 kMaxCommentBytes = 65535;
/// Some 800,000 records.
constexpr i64 kMaxDirectoryBytes = i64{64} << 20;
/// Read with every local header. PyTorch writes at most 95: padding up to a multiple of 64, and zip64 values.
constexpr i64 kUsualExtraBytes = 128;

template <typename T>
T load(Bytes bytes, std::size_t position) {
  static_assert(std::endian::native == std::endian::little, "numbers in zips are little-endian");
  T value{};
  std::memcpy(&value, bytes.subspan(position, sizeof value).data(), sizeof value);
  return value;
}

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// The last bytes of a zip, as many as were needed so far.
class Tail {
 public:
  Tail(const ReadAt& read, i64 zip_bytes) : read_(read), zip_bytes_(zip_bytes), begin_(zip_bytes) {}

  i64 begin() const { return begin_; }

  /// Reads what is missing from `begin` on. Spans given out before are void.
  void reach(i64 begin) {
    if (begin >= begin_) return;
    std::vector<std::byte> longer(static_cast<std::size_t>(zip_bytes_ - begin));
    const auto missing = static_cast<std::size_t>(begin_ - begin);
    read_(std::span(longer).first(missing), begin);
    std::copy(bytes_.begin(), bytes_.end(), longer.begin() + static_cast<std::ptrdiff_t>(missing));
    bytes_ = std::move(longer);
    begin_ = begin;
  }

  /// The position in the zip of a view of these bytes.
  /// The zip's first bytes, as many as say what else a file is.
  std::string first_of_zip() const {
    std::string first(static_cast<std::size_t>(std::min<i64>(zip_bytes_, 64)), '\0');
    read_(std::as_writable_bytes(std::span(first)), 0);
    return first;
  }
  i64 offset_of(std::string_view view) const {
    return begin_ + (view.data() - reinterpret_cast<const char*>(bytes_.data()));
  }

  Bytes at(i64 offset, i64 bytes) const {
    return Bytes(bytes_).subspan(static_cast<std::size_t>(offset - begin_), static_cast<std::size_t>(bytes));
  }

 private:
  const ReadAt& read_;
  i64 zip_bytes_;
  i64 begin_;
  std::vector<std::byte> bytes_;
};

/// The central directory as the end records describe it.
struct DirectoryExtent {
  i64 entries = 0;
  i64 offset = 0;
  i64 bytes = 0;
};

/// An entry of the central directory.
struct Entry {
  /// The name with the prefix; a part of the tail.
  std::string_view name;
  i64 header_offset = 0;
  i64 bytes = 0;
  u32 crc = 0;
};

/// The bytes from a local header to the end of its data.
struct RecordExtent {
  i64 begin = 0;
  i64 end = 0;
  std::string_view name;
};

class DirectoryReader {
 public:
  DirectoryReader(const ReadAt& read, i64 zip_bytes, const InputPart& part)
      : read_(read), zip_bytes_(zip_bytes), part_(part), tail_(read, zip_bytes) {}

  ZipDirectory read() {
    find_directory();
    read_entries();
    ZipDirectory directory;
    directory.offset = extent_.offset;
    directory.prefix = common_prefix();
    directory.records = locate_records(directory.prefix.size() + 1);
    check_overlap();
    directory.by_name = sort_by_name(directory.records);
    return directory;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail_at(ErrorCode code, i64 offset, fmt::format_string<Args...> text, Args&&... args) const {
    glu_ckpt::fail_at(code, {part_, offset}, text, std::forward<Args>(args)...);
  }

  /// The end record, if the bytes at hand hold it: its comment ends with the zip.
  std::optional<i64> search_end_record() const {
    for (i64 at = zip_bytes_ - zip::kEndBytes; at >= tail_.begin(); --at) {
      const Bytes record = tail_.at(at, zip::kEndBytes);
      if (load<u32>(record, 0) == zip::kEndSignature && at + zip::kEndBytes + load<u16>(record, 20) == zip_bytes_)
        return at;
    }
    return std::nullopt;
  }

  i64 find_end_record() {
    tail_.reach(zip_bytes_ <= kSmallZipBytes ? 0 : zip_bytes_ - kTailBytes);
    if (const auto at = search_end_record()) return *at;
    tail_.reach(std::max<i64>(0, zip_bytes_ - zip::kEndBytes - kMaxCommentBytes));
    if (const auto at = search_end_record()) return *at;
    const std::string first = tail_.first_of_zip();
    if (const std::string_view what = stand_in_text(first, Meant::Binary); !what.empty())
      fail_at(ErrorCode::ZipDirectory, 0, "this is no file of torch.save: {}", what);
    fail_at(ErrorCode::ZipDirectory, zip_bytes_,
            "the zip ends here, but none of its {} bytes begins the end record; is it cut off, or not from torch.save?",
            zip_bytes_);
  }

  void find_directory() {
    const i64 end_at = find_end_record();
    const i64 locator_at = end_at - zip::kLocatorBytes;
    tail_.reach(std::max<i64>(0, locator_at - zip::kEnd64Bytes));
    extent_ = read_end_record(end_at);
    const bool is_zip64 = locator_at >= 0 && load<u32>(tail_.at(locator_at, 4), 0) == zip::kLocatorSignature;
    if (is_zip64) {
      merge_end64_record(locator_at);
    } else if (extent_.entries == zip::kSaturated16 || extent_.bytes == zip::kSaturated32 ||
               extent_.offset == zip::kSaturated32) {
      fail_at(ErrorCode::ZipDirectory, end_at, "the end record refers to a zip64 end record, but there is none");
    }
    check_directory(is_zip64 ? locator_at - zip::kEnd64Bytes : end_at);
    tail_.reach(extent_.offset);
  }

  DirectoryExtent read_end_record(i64 at) const {
    const Bytes record = tail_.at(at, zip::kEndBytes);
    if (load<u16>(record, 4) != 0 || load<u16>(record, 6) != 0 || load<u16>(record, 8) != load<u16>(record, 10))
      fail_at(ErrorCode::ZipDirectory, at, "the end record is of a zip in several parts; join them");
    return {load<u16>(record, 10), load<u32>(record, 16), load<u32>(record, 12)};
  }

  /// Takes the 64-bit values, which must be those of the end record where it has any.
  void merge_end64_record(i64 locator_at) {
    const i64 at = locator_at - zip::kEnd64Bytes;
    const Bytes locator = tail_.at(locator_at, zip::kLocatorBytes);
    if (load<u32>(locator, 4) != 0 || load<u32>(locator, 16) > 1)
      fail_at(ErrorCode::ZipDirectory, locator_at, "the zip64 locator is of a zip in several parts; join them");
    if (at < 0 || load<u64>(locator, 8) != static_cast<u64>(at))
      fail_at(ErrorCode::ZipDirectory, locator_at,
              "the zip64 locator points to byte {}, but the zip64 end record must stand right before the locator",
              load<u64>(locator, 8));
    const Bytes record = tail_.at(at, zip::kEnd64Bytes);
    if (load<u32>(record, 0) != zip::kEnd64Signature || load<u64>(record, 4) != static_cast<u64>(zip::kEnd64Length))
      fail_at(ErrorCode::ZipDirectory, at, "there is no zip64 end record of {} bytes", zip::kEnd64Bytes);
    if (load<u32>(record, 16) != 0 || load<u32>(record, 20) != 0 || load<u64>(record, 24) != load<u64>(record, 32))
      fail_at(ErrorCode::ZipDirectory, at, "the zip64 end record is of a zip in several parts; join them");
    extent_.entries = merge(extent_.entries, zip::kSaturated16, load<u64>(record, 32), at);
    extent_.bytes = merge(extent_.bytes, zip::kSaturated32, load<u64>(record, 40), at);
    extent_.offset = merge(extent_.offset, zip::kSaturated32, load<u64>(record, 48), at);
  }

  i64 merge(i64 narrow, i64 saturated, u64 wide, i64 at) const {
    const auto value = checked_narrow(wide);
    if (!value || (narrow != saturated && narrow != *value))
      fail_at(ErrorCode::ZipDirectory, at, "the zip64 end record says {} where the end record says {}", wide, narrow);
    return *value;
  }

  /// The directory must end where the end records begin: then no two readers see two directories.
  void check_directory(i64 end_records_at) const {
    const auto [entries, offset, bytes] = extent_;
    if (offset > end_records_at || bytes != end_records_at - offset)
      fail_at(ErrorCode::ZipDirectory, end_records_at,
              "the end records say that the directory is {} bytes at {}, which do not end right before them; are bytes "
              "missing or added?",
              bytes, offset);
    if (bytes > kMaxDirectoryBytes)
      fail_at(ErrorCode::ZipDirectory, offset, "the directory has {} bytes; at most {} are allowed", bytes,
              kMaxDirectoryBytes);
    if (entries < 1 || entries > bytes / zip::kCentralBytes)
      fail_at(ErrorCode::ZipDirectory, offset, "a directory of {} bytes cannot have {} entries", bytes, entries);
    constexpr i64 kHeldForEach = sizeof(Entry) + sizeof(RecordExtent) + sizeof(ZipRecord) + sizeof(u32);
    if (const auto over = over_allowance(bytes, entries * kHeldForEach))
      fail_at(ErrorCode::ZipDirectory, offset, "the directory's {} entries {}", entries, *over);
  }

  void read_entries() {
    entries_.reserve(static_cast<std::size_t>(extent_.entries));
    i64 at = extent_.offset;
    for (i64 i = 0; i < extent_.entries; ++i) at = read_entry(at);
    if (at != extent_.offset + extent_.bytes)
      fail_at(ErrorCode::ZipDirectory, at, "the directory goes on after its {} entries", extent_.entries);
  }

  /// Returns where the next entry is.
  i64 read_entry(i64 at) {
    const i64 room = extent_.offset + extent_.bytes - at;
    if (room < zip::kCentralBytes || load<u32>(tail_.at(at, 4), 0) != zip::kCentralSignature)
      fail_at(ErrorCode::ZipDirectory, at, "there is no entry of the directory, which should have {}", extent_.entries);
    const Bytes fixed = tail_.at(at, zip::kCentralBytes);
    const i64 name_bytes = load<u16>(fixed, 28);
    const i64 extra_bytes = load<u16>(fixed, 30);
    const i64 entry_bytes = zip::kCentralBytes + name_bytes + extra_bytes + load<u16>(fixed, 32);
    if (entry_bytes > room) fail_at(ErrorCode::ZipDirectory, at, "the entry ends after the directory does");
    const std::string_view name = text_of(tail_.at(at + zip::kCentralBytes, name_bytes));
    check_name(name, at);
    check_stored(fixed, name, at);
    entries_.push_back(read_numbers(fixed, name, tail_.at(at + zip::kCentralBytes + name_bytes, extra_bytes), at));
    return at + entry_bytes;
  }

  void check_name(std::string_view name, i64 at) const {
    if (name.empty() || name.find('\0') != std::string_view::npos || !is_utf8(name))
      fail_at(ErrorCode::ZipDirectory, at, "the entry's name is empty or not UTF-8 text");
  }

  void check_stored(Bytes fixed, std::string_view name, i64 at) const {
    const u16 method = load<u16>(fixed, 10);
    if (method != zip::kStored)
      fail_at(ErrorCode::ZipCompressed, at,
              "'{}' is compressed (method {}); torch.save only stores: unpack the zip and pack it without compression",
              name, method);
    if ((load<u16>(fixed, 8) & zip::kFlagEncrypted) != 0)
      fail_at(ErrorCode::ZipCompressed, at, "'{}' is encrypted", name);
    if (load<u16>(fixed, 34) != 0)
      fail_at(ErrorCode::ZipDirectory, at, "'{}' lies in another part of a zip in several parts; join them", name);
  }

  Entry read_numbers(Bytes fixed, std::string_view name, Bytes extra, i64 at) const {
    Bytes wide = zip64_values(extra, ErrorCode::ZipDirectory, at);
    const i64 bytes = widen(load<u32>(fixed, 24), wide, ErrorCode::ZipDirectory, at);
    const i64 stored_bytes = widen(load<u32>(fixed, 20), wide, ErrorCode::ZipDirectory, at);
    const i64 header_offset = widen(load<u32>(fixed, 42), wide, ErrorCode::ZipDirectory, at);
    if (stored_bytes != bytes)
      fail_at(ErrorCode::ZipDirectory, at, "'{}' has {} bytes, but {} are stored", name, bytes, stored_bytes);
    return {name, header_offset, bytes, load<u32>(fixed, 16)};
  }

  /// The values of the zip64 field among the extra fields; none if there is no such field.
  Bytes zip64_values(Bytes extra, ErrorCode code, i64 at) const {
    std::optional<Bytes> values;
    while (extra.size() >= 4) {
      const std::size_t field_bytes = load<u16>(extra, 2);
      if (field_bytes > extra.size() - 4) fail_at(code, at, "an extra field is longer than all of them");
      if (load<u16>(extra, 0) == zip::kZip64Id) {
        if (values) fail_at(code, at, "there are two zip64 extra fields");
        values = extra.subspan(4, field_bytes);
      }
      extra = extra.subspan(4 + field_bytes);
    }
    return values.value_or(Bytes());
  }

  /// A 32-bit field, or the next of the zip64 values if the field is saturated.
  i64 widen(u32 field, Bytes& wide, ErrorCode code, i64 at) const {
    if (field != zip::kSaturated32) return field;
    if (wide.size() < sizeof(u64)) fail_at(code, at, "a zip64 value is missing");
    const u64 value = load<u64>(wide, 0);
    wide = wide.subspan(sizeof(u64));
    if (const auto narrowed = checked_narrow(value)) return *narrowed;
    fail_at(code, at, "the zip64 value {} is greater than 2^63-1", value);
  }

  /// Returns the prefix as PyTorch's reader does: up to the first '/' of the first entry.
  std::string common_prefix() const {
    const std::string_view first = entries_.front().name;
    const std::string_view prefix = first.substr(0, first.find('/'));
    for (const Entry& entry : entries_)
      if (!entry.name.starts_with(prefix) || entry.name.substr(prefix.size(), 1) != "/")
        fail_at(ErrorCode::ZipDirectory, tail_.offset_of(entry.name),
                "'{}' does not begin with '{}/'; all names in a zip of torch.save begin with the same folder",
                entry.name, prefix);
    return std::string(prefix);
  }

  std::vector<ZipRecord> locate_records(std::size_t prefix_bytes) {
    std::vector<ZipRecord> records;
    records.reserve(entries_.size());
    extents_.reserve(entries_.size());
    for (const Entry& entry : entries_) {
      const i64 offset = locate_data(entry);
      extents_.push_back({entry.header_offset, offset + entry.bytes, entry.name});
      // zip tools write entries for folders, too
      if (entry.bytes == 0 && entry.name.ends_with('/')) continue;
      if (entry.name.size() == prefix_bytes)
        fail_at(ErrorCode::ZipDirectory, entry.header_offset, "'{}' is a folder, but has {} bytes", entry.name,
                entry.bytes);
      records.push_back({std::string(entry.name.substr(prefix_bytes)), offset, entry.bytes, entry.crc});
    }
    return records;
  }

  /// Checks the local header. Returns where the data begins, which only that says.
  i64 locate_data(const Entry& entry) {
    const i64 at = entry.header_offset;
    const i64 extra_in_header = zip::kLocalBytes + std::ssize(entry.name);
    if (at > extent_.offset - extra_in_header)
      fail_at(ErrorCode::ZipLocalHeader, tail_.offset_of(entry.name),
              "the local header of '{}' is said to be at {}, which does not fit before the directory at {}", entry.name,
              at, extent_.offset);
    const i64 usual_bytes = std::min(extra_in_header + kUsualExtraBytes, extent_.offset - at);
    const Bytes header = bytes_at(at, usual_bytes);
    const i64 extra_bytes = load<u16>(header, 28);
    check_names_agree(entry, header);
    const i64 offset = at + extra_in_header + extra_bytes;
    if (entry.bytes > extent_.offset - offset)
      fail_at(ErrorCode::ZipOverlap, at, "'{}' has {} bytes at {}, which do not end before the directory at {}",
              entry.name, entry.bytes, offset, extent_.offset);
    check_sizes_agree(entry, extra_in_header + extra_bytes <= usual_bytes
                                 ? header.first(static_cast<std::size_t>(extra_in_header + extra_bytes))
                                 : bytes_at(at, extra_in_header + extra_bytes));
    return offset;
  }

  void check_names_agree(const Entry& entry, Bytes header) const {
    const i64 at = entry.header_offset;
    if (load<u32>(header, 0) != zip::kLocalSignature)
      fail_at(ErrorCode::ZipLocalHeader, at, "there is no local header, which '{}' should have there", entry.name);
    if (load<u16>(header, 26) != entry.name.size() ||
        text_of(header.subspan(zip::kLocalBytes, entry.name.size())) != entry.name)
      fail_at(ErrorCode::ZipLocalHeader, at, "the local header has another name than '{}', which the directory has",
              entry.name);
    if (load<u16>(header, 8) != zip::kStored || (load<u16>(header, 6) & zip::kFlagEncrypted) != 0)
      fail_at(ErrorCode::ZipLocalHeader, at, "the local header says that '{}' is not stored; the directory says it is",
              entry.name);
  }

  /// `header` is all of it. Where crc and sizes follow the data they are 0 here.
  void check_sizes_agree(const Entry& entry, Bytes header) const {
    const i64 at = entry.header_offset;
    const u32 crc = load<u32>(header, 14);
    const u32 stored_field = load<u32>(header, 18);
    const u32 bytes_field = load<u32>(header, 22);
    Bytes wide;
    if (stored_field == zip::kSaturated32 || bytes_field == zip::kSaturated32)
      wide = zip64_values(header.subspan(zip::kLocalBytes + entry.name.size()), ErrorCode::ZipLocalHeader, at);
    const i64 bytes = widen(bytes_field, wide, ErrorCode::ZipLocalHeader, at);
    const i64 stored_bytes = widen(stored_field, wide, ErrorCode::ZipLocalHeader, at);
    const bool may_be_zero = (load<u16>(header, 6) & zip::kFlagDescriptor) != 0;
    const auto agrees = [may_be_zero](i64 local, i64 central) {
      return local == central || (may_be_zero && local == 0);
    };
    if (!agrees(crc, entry.crc) || !agrees(bytes, entry.bytes) || !agrees(stored_bytes, entry.bytes))
      fail_at(ErrorCode::ZipLocalHeader, at,
              "the local header of '{}' says {} bytes ({} stored) of crc {:08x}; the directory says {} of {:08x}",
              entry.name, bytes, stored_bytes, crc, entry.bytes, entry.crc);
  }

  /// Returns bytes from the tail if that has them. They are void after the next call.
  Bytes bytes_at(i64 offset, i64 bytes) {
    if (offset >= tail_.begin()) return tail_.at(offset, bytes);
    scratch_.resize(static_cast<std::size_t>(bytes));
    read_(scratch_, offset);
    return scratch_;
  }

  void check_overlap() {
    std::sort(extents_.begin(), extents_.end(),
              [](const RecordExtent& a, const RecordExtent& b) { return a.begin < b.begin; });
    const auto pair = std::adjacent_find(extents_.begin(), extents_.end(),
                                         [](const RecordExtent& a, const RecordExtent& b) { return a.end > b.begin; });
    if (pair == extents_.end()) return;
    const RecordExtent& first = pair[0];
    const RecordExtent& second = pair[1];
    fail_at(ErrorCode::ZipOverlap, second.begin, "'{}' begins, but '{}' at {} ends only at {}", second.name, first.name,
            first.begin, first.end);
  }

  /// It sorts and does not hash: names come from the file, and no choice of them makes this slow.
  std::vector<u32> sort_by_name(const std::vector<ZipRecord>& records) const {
    std::vector<u32> order(records.size());
    std::iota(order.begin(), order.end(), u32{0});
    std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return records[a].name < records[b].name; });
    const auto twice = std::adjacent_find(order.begin(), order.end(),
                                          [&](u32 a, u32 b) { return records[a].name == records[b].name; });
    if (twice != order.end())
      fail_at(ErrorCode::ZipDirectory, records[*std::next(twice)].offset, "the record '{}' is there twice, also at {}",
              records[*twice].name, records[*twice].offset);
    return order;
  }

  const ReadAt& read_;
  i64 zip_bytes_;
  const InputPart& part_;
  Tail tail_;
  DirectoryExtent extent_;
  std::vector<Entry> entries_;
  std::vector<RecordExtent> extents_;
  std::vector<std::byte> scratch_;
};

}  // namespace

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto place = std::lower_bound(by_name.begin(), by_name.end(), name,
                                      [&](u32 index, std::string_view wanted) { return records[index].name < wanted; });
  if (place == by_name.end() || records[*place].name != name) return nullptr;
  return &records[*place];
}

bool has_checksums(const ZipDirectory& zip) {
  return std::ranges::any_of(zip.records, [](const ZipRecord& record) { return record.crc != 0; });
}

ZipDirectory read_zip_directory(const ReadAt& read, i64 bytes, const InputPart& part) {
  return DirectoryReader(read, bytes, part).read();
}

}  // namespace glu_ckpt
