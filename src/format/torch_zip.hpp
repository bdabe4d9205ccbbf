#pragma once
/// The zip container of torch.save: every record stored, none compressed. Reads directories; opens no file,
/// so that it can be fuzzed as it is.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A record as the central directory and its local header agree on it.
struct ZipRecord {
  /// The name without the archive's prefix: "data.pkl", "data/0".
  std::string name;
  /// The first byte of data, from the start of the zip.
  i64 offset = 0;
  i64 bytes = 0;
  u32 crc = 0;
};

struct ZipDirectory {
  /// The central directory, from the start of the zip.
  i64 offset = 0;
  /// The part of every name before its first '/'.
  std::string prefix;
  /// The records in the order of the central directory.
  std::vector<ZipRecord> records;
  /// Indices of `records` by ascending name: lookups stay fast however many there are.
  std::vector<u32> by_name;
  /// Returns null where there is none.
  const ZipRecord* find(std::string_view name) const;
};

/// Returns false where torch.serialization.set_crc32_options(False) has left all checksums 0.
bool has_checksums(const ZipDirectory& zip);

/// Fills a span from an offset of the zip.
using ReadAt = std::function<void(std::span<std::byte>, i64)>;

/// `bytes` long zip, which may be a part of a file (an item of a .distcp). `part` is where it lies.
/// Throws ZipDirectory, ZipCompressed, ZipLocalHeader, ZipOverlap.
ZipDirectory read_zip_directory(const ReadAt& read, i64 bytes, const InputPart& part);

}  // namespace glu_ckpt
