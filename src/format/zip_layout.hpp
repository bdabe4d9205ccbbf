#pragma once
/// The layout of a torch zip, known before any data is. It follows PyTorch's writer byte for byte.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Records in writing order. Data starts at multiples of 64, counted from the start of the zip. Pure: the
/// caller writes each piece at its position.
class ZipLayout {
 public:
  explicit ZipLayout(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Appends a record; returns its number.
  std::size_t add(std::string_view name, i64 bytes);

  std::size_t size() const { return records_.size(); }
  i64 data_bytes(std::size_t record) const { return records_[record].bytes; }
  /// Position of the local header, of the data, and of the data descriptor (which follows the data).
  i64 header_offset(std::size_t record) const { return records_[record].header_offset; }
  i64 data_offset(std::size_t record) const { return records_[record].data_offset; }
  i64 descriptor_offset(std::size_t record) const { return data_offset(record) + data_bytes(record); }
  /// Padding included, so that the data follows at once.
  std::string header(std::size_t record) const;
  /// Empty for a record without data.
  std::string descriptor(std::size_t record, u32 crc) const;
  /// Position and text of central directory and end records; one crc per record.
  i64 directory_offset() const { return end_; }
  std::string directory(std::span<const u32> crcs) const;
  /// Bytes of the whole zip.
  i64 total_bytes() const;

 private:
  struct Record {
    std::string name;
    i64 bytes = 0;
    i64 header_offset = 0;
    i64 data_offset = 0;
  };
  std::string prefix_;
  std::vector<Record> records_;
  /// The position of the next local header, or of the directory.
  i64 end_ = 0;
};

}  // namespace glu_ckpt
