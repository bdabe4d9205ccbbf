/// The bytes of one range of an output tensor, brought together in host memory.

#include <algorithm>

#include "core/checked_math.hpp"
#include "exec/move_parts.hpp"
#include "exec/range_reader.hpp"
#include "exec/read_pieces.hpp"

namespace glu_ckpt {
namespace {

/// Windows lie in the scratch buffer at multiples of this, so that a register's load crosses no line of the cache.
constexpr i64 kWindowAlignment = 16;

class Gather {
 public:
  Gather(RangeReader& reader, const Backend& backend, std::byte* out, i64 begin, HostBuffer& scratch)
      : reader_(reader), backend_(backend), out_(out), begin_(begin), scratch_(scratch) {}

  /// Runs are read to where they belong: gate and up meet in the read, not in a copy.
  void queue_runs(const Move& move) {
    for_each_run(move, [&](i64 src, i64 dst) {
      runs_.push_back({move.src, src, {out_ + (dst - begin_), static_cast<std::size_t>(move.run_bytes)}});
    });
  }

  void read_runs() { reader_.read_runs(runs_); }

  /// Reads windows into as much scratch as holds them all, within the limit, and moves on what is there before the next
  /// one would not fit: gate and up are in it together, and leave it together.
  void read_pieces(const std::vector<ReadPiece>& pieces, i64 range_bytes, i64 limit_bytes) {
    i64 wanted_bytes = 0, largest = 0;
    for (const ReadPiece& piece : pieces)
      if (!is_run(piece)) {
        wanted_bytes += room(piece);
        largest = std::max(largest, room(piece));
      }
    // Many pieces of a few bytes are mostly alignment; planned_buffer_bytes() does not count on more.
    const i64 scratch_bytes = std::min({limit_bytes, wanted_bytes, std::max(largest, kMaxReadWaste * range_bytes)});
    scratch_.reserve(scratch_bytes);
    for (const ReadPiece& piece : pieces) {
      if (is_run(piece)) {
        queue_runs(piece.moves.front());
        continue;
      }
      if (used_ + room(piece) > scratch_bytes) flush();
      read_window(piece);
    }
    flush();
  }

 private:
  static i64 room(const ReadPiece& piece) { return round_up(piece.wanted, kWindowAlignment); }
  static bool is_run(const ReadPiece& piece) { return piece.moves.size() == 1 && piece.moves.front().runs() == 1; }

  void read_window(const ReadPiece& piece) {
    reader_.read_window(piece.src, piece.begin, {scratch_.data() + used_, static_cast<std::size_t>(piece.wanted)},
                        piece.moves);
    for (Move local : piece.moves) {
      local.src = local.dst = 0;
      local.src_offset += used_ - piece.begin;
      local.dst_offset -= begin_;
      queued_.push_back(local);
    }
    used_ += room(piece);
  }

  void flush() {
    if (!queued_.empty()) backend_.copy(queued_, scratch_.data(), out_);
    queued_.clear();
    used_ = 0;
  }

  RangeReader& reader_;
  const Backend& backend_;
  std::byte* out_;
  i64 begin_;
  HostBuffer& scratch_;
  std::vector<RangeReader::Run> runs_;
  std::vector<Move> queued_;
  i64 used_ = 0;
};

}  // namespace

void gather(std::span<const Move> moves, RangeReader& reader, const Backend& backend, i64 begin, i64 end,
            std::byte* out, HostBuffer& scratch, i64 scratch_bytes) {
  Gather gather(reader, backend, out, begin, scratch);
  std::vector<Move> parts;
  for (const Move& move : moves)
    clip_move(move, begin, end, [&](const Move& part) {
      if (part.run_bytes >= kDirectRunBytes)
        gather.queue_runs(part);
      else
        parts.push_back(part);
    });
  if (!parts.empty())
    gather.read_pieces(make_pieces(parts, scratch_bytes, kWindowAlignment), end - begin, scratch_bytes);
  gather.read_runs();
}

}  // namespace glu_ckpt
