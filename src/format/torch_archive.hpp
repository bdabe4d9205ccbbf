#pragma once
/// One torch zip being written: positions first, then bytes in any order, then headers and checksums.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/zip_layout.hpp"
#include "io/output_file.hpp"

namespace glu_ckpt {

/// A small record that stands beside the storages: its bytes may change until finish(), not its length.
struct TextRecord {
  std::string name;
  std::string text;
};

class TorchArchive {
 public:
  /// `pickle` is data.pkl; storage i is the record `data/i`; `more` follow at the end.
  TorchArchive(const std::string& prefix, std::string pickle, const std::vector<i64>& storage_bytes,
               std::vector<TextRecord> more = {});

  i64 total_bytes() const { return layout_.total_bytes(); }
  /// Returns the offset of a storage from the start of the zip.
  i64 storage_offset(std::size_t storage) const { return layout_.data_offset(storages_[storage]); }
  i64 storage_bytes(std::size_t storage) const { return layout_.data_bytes(storages_[storage]); }
  /// Writes everything but the storages' bytes. `base` is where the zip starts in the file; `crcs` has one
  /// entry a storage. Returns the bytes written.
  i64 write_rest(OutputFile& file, i64 base, std::span<const u32> crcs) const;
  /// Another text of the same length for a record of `more`.
  void replace(std::size_t more, std::string text);

 private:
  void add_text(std::string name, std::string text);

  ZipLayout layout_;
  /// The texts by record number; storages have none.
  std::map<std::size_t, std::string> texts_;
  std::vector<std::size_t> storages_;
  std::vector<std::size_t> more_;
};

/// The bytes of a torch zip that holds an object without tensors: what torch.save(object) writes.
std::string print_object_zip(const std::string& pickle);

/// The name that torch.save would give the archive: the file's stem, or "archive" where that is not ASCII.
std::string archive_prefix(const std::string& file_name);

}  // namespace glu_ckpt
