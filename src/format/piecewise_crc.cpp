#include "format/piecewise_crc.hpp"

#include <cstring>
#include <iterator>

#include "core/crc32.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {

i64 PiecewiseCrc::add(i64 offset, std::span<const std::byte> bytes) {
  return bytes.empty() ? 0 : add_sum(offset, static_cast<i64>(bytes.size()), crc32_of(bytes));
}

i64 PiecewiseCrc::add_sum(i64 offset, i64 bytes, u32 crc) {
  const Part part{bytes, crc};
  const std::lock_guard lock(mutex_);
  if (is_lost_) return 0;
  auto [at, added] = parts_.try_emplace(offset, part);
  if (!added) at->second.bytes = -1;  // written twice: finish() says so
  if (!added) return 0;
  // Neighbours are joined, so that what is kept stays small.
  if (at != parts_.begin()) at = join(std::prev(at), at);
  if (std::next(at) != parts_.end()) at = join(at, std::next(at));
  if (parts_.size() <= max_pieces_) return at->second.bytes;
  parts_.clear();
  is_lost_ = true;
  return 0;
}

std::map<i64, PiecewiseCrc::Part>::iterator PiecewiseCrc::join(std::map<i64, Part>::iterator a,
                                                               std::map<i64, Part>::iterator b) {
  if (a->first + a->second.bytes != b->first || a->second.bytes < 0 || b->second.bytes < 0) return b;
  a->second = {a->second.bytes + b->second.bytes, crc32_join(a->second.crc, b->second.crc, b->second.bytes)};
  parts_.erase(b);
  return a;
}

void PiecewiseCrc::export_to(std::vector<std::byte>& out, u64 number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, part] : parts_) {
    const CrcPiece piece{number, offset, part.bytes, part.crc};
    const auto bytes = std::as_bytes(std::span(&piece, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

std::vector<CrcPiece> read_crc_pieces(std::span<const std::byte> exported) {
  if (exported.size() % sizeof(CrcPiece) != 0)
    fail(ErrorCode::Io, {}, "another process of the run sent {} bytes of checksums, which is no whole number of them",
         exported.size());
  std::vector<CrcPiece> pieces(exported.size() / sizeof(CrcPiece));
  if (!pieces.empty()) std::memcpy(pieces.data(), exported.data(), exported.size());
  return pieces;
}

std::optional<u32> PiecewiseCrc::whole(i64 total) const {
  const std::lock_guard lock(mutex_);
  if (total == 0 && parts_.empty() && !is_lost_) return 0;
  // Bytes that came exactly once have all been joined.
  const bool is_whole = parts_.size() == 1 && parts_.begin()->first == 0 && parts_.begin()->second.bytes == total;
  return is_whole ? std::optional(parts_.begin()->second.crc) : std::nullopt;
}

u32 PiecewiseCrc::finish(i64 total, const std::string& what) const {
  if (const auto crc = whole(total)) return *crc;
  fail(ErrorCode::Io, {{}, what}, "'{}': its {} bytes were not each written exactly once", what, total);
}

void PiecewiseCrc::clear() {
  const std::lock_guard lock(mutex_);
  parts_.clear();
  is_lost_ = false;
}

}  // namespace glu_ckpt
