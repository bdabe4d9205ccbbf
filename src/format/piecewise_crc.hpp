#pragma once
/// Checksums of what is written or read in pieces.

#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The checksum of bytes that arrive in any order.
class PiecewiseCrc {
 public:
  PiecewiseCrc() = default;
  /// Gives up, and has no checksum, where more than `max_pieces` lie apart.
  explicit PiecewiseCrc(std::size_t max_pieces) : max_pieces_(max_pieces) {}

  /// Returns how many bytes touch one another around these, with them: all of them once, when the last piece comes.
  /// Thread safe.
  i64 add(i64 offset, std::span<const std::byte> bytes);
  /// Adds a piece that another PiecewiseCrc has of the same bytes. Returns what add() does. Thread safe.
  i64 add_sum(i64 offset, i64 bytes, u32 crc);
  /// Appends its pieces, which read_crc_pieces() finds again under this number.
  void export_to(std::vector<std::byte>& out, u64 number) const;
  /// The checksum of all `total` bytes; none where a byte is missing or came twice. Thread safe.
  std::optional<u32> whole(i64 total) const;
  /// Returns whole(). Throws Io where there is none: `what` was written otherwise than planned.
  u32 finish(i64 total, const std::string& what) const;
  /// Forgets everything. Thread safe.
  void clear();

 private:
  struct Part {
    i64 bytes;
    u32 crc;
  };
  /// Joins two neighbours if they touch; returns the part that `b` is in then.
  std::map<i64, Part>::iterator join(std::map<i64, Part>::iterator a, std::map<i64, Part>::iterator b);

  std::size_t max_pieces_ = std::numeric_limits<std::size_t>::max();
  mutable std::mutex mutex_;
  std::map<i64, Part> parts_;
  bool is_lost_ = false;
};

/// Of a record that is read while it is checked: pieces of 64 bytes each, of which a whole model must not have more
/// than some tens of MB.
constexpr std::size_t kMaxPassedPieces = 4096;

/// A piece of the checksum number `number`.
struct CrcPiece {
  u64 number = 0;
  i64 offset = 0;
  i64 bytes = 0;
  u64 crc = 0;
};
/// The pieces that export_to() appended. Throws Io where the text was cut.
std::vector<CrcPiece> read_crc_pieces(std::span<const std::byte> exported);

}  // namespace glu_ckpt
