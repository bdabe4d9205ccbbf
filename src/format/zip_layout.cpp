#include "format/zip_layout.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/fail.hpp"
#include "format/zip_fields.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kAlignment = 64;
/// Far from overflow when a directory is added.
constexpr i64 kMaxZipBytes = i64{1} << 61;
/// Tag and length of the padding field.
constexpr i64 kPaddingHeadBytes = 4;
constexpr std::uint16_t kPaddingId = 'F' | 'B' << 8;
/// Zip 3.0 on Unix, which is what PyTorch's writer claims in the zip64 end record.
constexpr std::uint16_t kMadeBy = 0x031E;
constexpr std::uint16_t kZip64VersionNeeded = 45;

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little, "numbers in zips are little-endian");
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put16(std::string& out, i64 value) { put(out, static_cast<std::uint16_t>(value)); }
void put32(std::string& out, i64 value) { put(out, static_cast<u32>(value)); }
void put64(std::string& out, i64 value) { put(out, static_cast<u64>(value)); }

bool is_wide(i64 value) { return value >= i64{zip::kSaturated32}; }
i64 saturate16(i64 value) { return std::min<i64>(value, zip::kSaturated16); }
i64 saturate32(i64 value) { return std::min<i64>(value, zip::kSaturated32); }

i64 flags_of(i64 bytes) { return bytes > 0 ? zip::kFlagUtf8 | zip::kFlagDescriptor : zip::kFlagUtf8; }

/// Empty where 32 bits are enough.
std::string zip64_field(i64 bytes, i64 stored_bytes, i64 header_offset) {
  std::string values;
  if (is_wide(bytes)) {
    put64(values, bytes);
    put64(values, stored_bytes);
  }
  if (is_wide(header_offset)) put64(values, header_offset);
  if (values.empty()) return {};
  std::string field;
  put16(field, zip::kZip64Id);
  put16(field, std::ssize(values));
  return field + values;
}

/// The local copy is written before the data, when PyTorch's writer has stored nothing yet.
std::string local_zip64_field(i64 bytes, i64 header_offset) { return zip64_field(bytes, 0, header_offset); }
std::string central_zip64_field(i64 bytes, i64 header_offset) { return zip64_field(bytes, bytes, header_offset); }

/// PyTorch's writer takes the wide form for either reason, a large record or a far one.
bool has_wide_descriptor(i64 bytes, i64 header_offset) { return is_wide(bytes) || is_wide(header_offset); }

i64 descriptor_bytes(i64 bytes, i64 header_offset) {
  if (bytes == 0) return 0;
  return has_wide_descriptor(bytes, header_offset) ? 24 : 16;
}

/// `entries` records are listed in the `directory_bytes` at `directory_offset`.
std::string end_records(i64 entries, i64 directory_bytes, i64 directory_offset) {
  std::string text;
  put32(text, zip::kEnd64Signature);
  put64(text, zip::kEnd64Length);
  put16(text, kMadeBy);
  put16(text, kZip64VersionNeeded);
  put32(text, 0);  // this disk
  put32(text, 0);  // disk of the directory
  put64(text, entries);
  put64(text, entries);
  put64(text, directory_bytes);
  put64(text, directory_offset);

  put32(text, zip::kLocatorSignature);
  put32(text, 0);  // disk of the zip64 end record
  put64(text, directory_offset + directory_bytes);
  put32(text, 1);  // disks

  put32(text, zip::kEndSignature);
  put16(text, 0);  // this disk
  put16(text, 0);  // disk of the directory
  put16(text, saturate16(entries));
  put16(text, saturate16(entries));
  put32(text, saturate32(directory_bytes));
  put32(text, saturate32(directory_offset));
  put16(text, 0);  // comment
  return text;
}

}  // namespace

std::size_t ZipLayout::add(std::string_view name, i64 bytes) {
  Record record{.name = prefix_ + '/', .bytes = bytes, .header_offset = end_};
  record.name += name;
  if (record.name.size() > std::numeric_limits<std::uint16_t>::max())
    fail(ErrorCode::ZipDirectory, {},
         "a record's name in a zip can have 65535 bytes, but one would have {}: give the output a shorter name",
         record.name.size());
  const i64 unpadded = end_ + zip::kLocalBytes + std::ssize(record.name) + std::ssize(local_zip64_field(bytes, end_)) +
                       kPaddingHeadBytes;
  record.data_offset = (unpadded + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > kMaxZipBytes - record.data_offset)
    fail(ErrorCode::ZipDirectory, {}, "'{}' of {} bytes does not fit into a zip that has {} already: write more shards",
         record.name, bytes, end_);
  end_ = record.data_offset + bytes + descriptor_bytes(bytes, record.header_offset);
  records_.push_back(std::move(record));
  return records_.size() - 1;
}

std::string ZipLayout::header(std::size_t index) const {
  const Record& record = records_[index];
  const std::string zip64 = local_zip64_field(record.bytes, record.header_offset);
  const i64 extra_bytes = record.data_offset - record.header_offset - zip::kLocalBytes - std::ssize(record.name);
  const i64 padding_bytes = extra_bytes - std::ssize(zip64) - kPaddingHeadBytes;
  std::string text;
  put32(text, zip::kLocalSignature);
  put16(text, 0);  // version needed
  put16(text, flags_of(record.bytes));
  put16(text, zip::kStored);
  put32(text, 0);  // time and date
  put32(text, 0);  // crc; it and the sizes are in the descriptor
  put32(text, 0);
  put32(text, 0);
  put16(text, std::ssize(record.name));
  put16(text, extra_bytes);
  text += record.name;
  text += zip64;
  put16(text, kPaddingId);
  put16(text, padding_bytes);
  text.append(static_cast<std::size_t>(padding_bytes), 'Z');
  return text;
}

std::string ZipLayout::descriptor(std::size_t index, u32 crc) const {
  const Record& record = records_[index];
  if (record.bytes == 0) return {};
  std::string text;
  put32(text, zip::kDescriptorSignature);
  put32(text, crc);
  const auto put_size = has_wide_descriptor(record.bytes, record.header_offset) ? put64 : put32;
  put_size(text, record.bytes);
  put_size(text, record.bytes);
  return text;
}

std::string ZipLayout::directory(std::span<const u32> crcs) const {
  std::string text;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const std::string zip64 = central_zip64_field(record.bytes, record.header_offset);
    put32(text, zip::kCentralSignature);
    put16(text, 0);  // made by
    put16(text, 0);  // version needed
    put16(text, flags_of(record.bytes));
    put16(text, zip::kStored);
    put32(text, 0);  // time and date
    put32(text, crcs[i]);
    put32(text, saturate32(record.bytes));
    put32(text, saturate32(record.bytes));
    put16(text, std::ssize(record.name));
    put16(text, std::ssize(zip64));
    put16(text, 0);  // comment
    put16(text, 0);  // disk
    put16(text, 0);  // internal attributes
    put32(text, 0);  // external attributes
    put32(text, saturate32(record.header_offset));
    text += record.name;
    text += zip64;
  }
  return text + end_records(std::ssize(records_), std::ssize(text), end_);
}

i64 ZipLayout::total_bytes() const {
  i64 bytes = end_ + zip::kEnd64Bytes + zip::kLocatorBytes + zip::kEndBytes;
  for (const Record& record : records_)
    bytes += zip::kCentralBytes + std::ssize(record.name) +
             std::ssize(central_zip64_field(record.bytes, record.header_offset));
  return bytes;
}

}  // namespace glu_ckpt
