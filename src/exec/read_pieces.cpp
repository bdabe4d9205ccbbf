#include "exec/read_pieces.hpp"

#include <algorithm>
#include <tuple>

#include "core/checked_math.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

struct Limit {
  i64 bytes;
  i64 alignment;
  bool holds(i64 wanted) const { return round_up(wanted, alignment) <= bytes; }
};

void add_pieces(const Move& move, const Limit& limit, std::vector<ReadPiece>& pieces) {
  const i64 window = source_window(move);
  const bool whole = window == move.bytes() || move.run_bytes < kDirectRunBytes;
  const i64 wanted = whole ? window : move.bytes();
  const bool wasteful = whole && window > kDirectRunBytes && window > kMaxReadWaste * move.bytes();
  if (move.runs() == 1 || (!wasteful && limit.holds(wanted))) {
    pieces.push_back({{move}, whole, move.src, move.src_offset, wanted});
    return;
  }
  const auto [low, high] = halve_move(move);
  add_pieces(low, limit, pieces);
  add_pieces(high, limit, pieces);
}

void share_windows(const Limit& limit, std::vector<ReadPiece>& pieces) {
  std::ranges::stable_sort(pieces, [](const ReadPiece& a, const ReadPiece& b) {
    return std::tuple(!a.window, a.src, a.begin) < std::tuple(!b.window, b.src, b.begin);
  });
  std::size_t last = 0;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    ReadPiece& open = pieces[last];
    ReadPiece& next = pieces[i];
    const i64 end = std::max(open.begin + open.wanted, next.begin + next.wanted);
    if (next.window && next.src == open.src && next.begin <= open.begin + open.wanted &&
        limit.holds(end - open.begin)) {
      open.wanted = end - open.begin;
      open.moves.insert(open.moves.end(), next.moves.begin(), next.moves.end());
    } else if (++last != i) {
      pieces[last] = std::move(next);
    }
  }
  if (!pieces.empty()) pieces.resize(last + 1);
}

}  // namespace

std::vector<ReadPiece> make_pieces(std::span<const Move> moves, i64 limit_bytes, i64 alignment) {
  const Limit limit{limit_bytes, alignment};
  std::vector<ReadPiece> pieces;
  for (const Move& move : moves) add_pieces(move, limit, pieces);
  share_windows(limit, pieces);
  return pieces;
}

}  // namespace glu_ckpt
