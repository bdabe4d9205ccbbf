#pragma once
/// An append-only log of what a run has done, for a later run to go on from.
///
/// On disk, one record after another, numbers little-endian:
///
///     u32   "GCJ1"
///     u32   bytes of the content
///     u64   low half of XXH3-128 over the record with zeros in this place, seeded with its position in the file
///     ...   content
///
/// The first record is the header, which says what the run was asked; the others are entries. The position in the
/// checksum keeps what a crash left of another record from passing for one. Records count up to the first that does not
/// check: a crash may leave a tail of anything.

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.hpp"

namespace glu_ckpt {

class Journal {
 public:
  /// Reads the file, open for writing, and cuts off its torn tail; not where the header itself is torn. The file may be
  /// empty.
  /// Throws OutputExists, leaving it as it is, where it does not begin as a journal does: whole, torn, or as zeros.
  explicit Journal(File file);
  /// Reads the file at the path and changes nothing; only header() and entries() may be asked.
  static Journal read_at(const std::filesystem::path& path);

  /// Returns nothing where the file was empty or torn in its first record.
  const std::optional<std::string>& header() const { return header_; }
  /// Returns the entries that the file had, in their order.
  const std::vector<std::vector<std::byte>>& entries() const { return entries_; }

  /// Empties the file, writes the header and flushes it.
  void begin(std::string_view header);
  /// Adds an entry by one write. Not flushed: what a crash takes is done again. Any number of threads may call it.
  /// If it throws, the entries before stay, and the next one takes its place.
  void append(std::span<const std::byte> entry);
  void sync() const { file_.sync(); }
  /// Returns true where the path still leads to the journal's file.
  bool is_at(const std::filesystem::path& path) const { return file_.is_at(path); }
  /// Adds another journal's entries, to the file and to entries().
  void take_over(const Journal& other);

 private:
  struct ReadOnly {};
  Journal(File file, ReadOnly) : file_(std::move(file)) { read(false); }
  void read(bool trims);
  std::optional<std::vector<std::byte>> read_record(i64 offset, i64 end) const;

  File file_;
  std::mutex mutex_;
  /// The position of the next record.
  i64 end_ = 0;
  std::optional<std::string> header_;
  std::vector<std::vector<std::byte>> entries_;
};

}  // namespace glu_ckpt
