/// Leaves of the digest in bytes that pass: which rows and blocks lie in them, by the model's own placements.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/parse_number.hpp"
#include "exec/backends.hpp"
#include "exec/host_buffer.hpp"
#include "exec/items.hpp"
#include "exec/move_parts.hpp"
#include "glu_ckpt/digest.hpp"
#include "layout/placement.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

/// Rows of a transposed matrix are transposed in batches of about this size, which caches hold.
constexpr i64 kLeafBatchBytes = i64{1} << 20;

/// The part of one item that lies in one tensor: rows [first, last) of a matrix, or all blocks of another tensor.
struct Part {
  const Item* item = nullptr;
  /// The matrix's place; null for other tensors.
  const Placement* place = nullptr;
  i64 first = 0;
  i64 last = 0;
  /// Rows are not dense in the tensor, so they are there all together or not at all.
  bool transposed = false;
  /// First byte of it in the tensor, and the one behind the last.
  i64 begin = 0;
  i64 end = 0;
  /// The furthest end of this part and all before it.
  i64 reach = 0;

  bool has_blocks() const { return item->matrix == nullptr; }
  /// Leaves by their number in the order of their bytes.
  i64 offset(i64 number) const { return has_blocks() ? number * kLeafBlockBytes : stored_offset(*place, number); }
  i64 leaf_at(i64 number) const { return has_blocks() ? number : row_stored_at(*place, number); }
  i64 row_bytes() const { return item->matrix->cols * item->matrix->element_bytes; }
  i64 bytes(i64 number) const {
    return has_blocks() ? std::min(kLeafBlockBytes, item->bytes - number * kLeafBlockBytes) : row_bytes();
  }
  /// The number of the first leaf that begins at or behind `at`.
  i64 leaf_from(i64 at) const {
    i64 low = first, high = last;
    while (low < high) {
      const i64 middle = low + (high - low) / 2;
      if (offset(middle) < at)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

Part part_of(const Item& item, const Placement& place, i64 first, i64 last) {
  const Matrix& matrix = *item.matrix;
  Part part{&item, &place, first, last};
  part.transposed = is_transposed(matrix);
  part.begin = stored_offset(place, first);
  part.end = stored_offset(place, last - 1) + (matrix.cols - 1) * place.col_step + matrix.element_bytes;
  return part;
}

/// The bytes that moves read. Loops of a move do not overlap, so a byte is found from the longest step down.
class ReadBytes {
 public:
  explicit ReadBytes(std::span<const Move> moves) : moves_(moves.begin(), moves.end()) {
    for (Move& move : moves_) std::ranges::sort(move.dims, std::greater(), &MoveDim::src_step);
  }

  bool hold(i64 offset) const {
    return std::ranges::any_of(moves_, [offset](const Move& move) {
      i64 left = offset - move.src_offset;
      for (const MoveDim& dim : move.dims)
        if (dim.count > 1 && dim.src_step > 0)
          left -= std::min(dim.count - 1, std::max<i64>(left, 0) / dim.src_step) * dim.src_step;
      return left >= 0 && left < move.run_bytes;
    });
  }

 private:
  std::vector<Move> moves_;
};

/// Bytes of a tensor in memory.
struct Passing {
  i64 begin = 0;
  std::span<const std::byte> bytes;
  /// The bytes that count; null where all do.
  const ReadBytes* used = nullptr;

  i64 end() const { return begin + static_cast<i64>(bytes.size()); }
  std::span<const std::byte> at(i64 offset, i64 count) const {
    return bytes.subspan(static_cast<std::size_t>(offset - begin), static_cast<std::size_t>(count));
  }
  bool counts(i64 first, i64 behind) const {
    return used == nullptr || first == behind || (used->hold(first) && used->hold(behind - 1));
  }
};

void add_leaf(const Hash128& hash, i64 bytes, LeafSum& sum) { sum += {hash.low, hash.high, 1, bytes}; }

void add_dense(const Part& part, const Passing& passing, LeafSum& sum) {
  const std::string identity = part.item->identity();
  LogicalRows logical(*part.item);
  for (i64 number = part.leaf_from(passing.begin); number < part.last; ++number) {
    const i64 begin = part.offset(number), end = begin + part.bytes(number);
    if (end > passing.end()) return;
    if (!passing.counts(begin, end)) continue;
    const i64 leaf = part.leaf_at(number);
    const std::span<const std::byte> stored = passing.at(begin, end - begin);
    if (part.has_blocks())
      add_leaf(hash_leaf(identity, leaf, stored), end - begin, sum);
    else
      add_leaf(logical.sum(identity, leaf, 1, stored), part.item->bytes / part.item->matrix->rows, sum);
  }
}

void add_transposed(const Part& part, const Passing& passing, LeafSum& sum) {
  if (part.begin < passing.begin || part.end > passing.end() || !passing.counts(part.begin, part.end)) return;
  const std::string identity = part.item->identity();
  Matrix matrix = *part.item->matrix;
  matrix.place = *part.place;
  matrix.tail.reset();
  const std::vector<Move> moves = matrix_moves(matrix, dense_matrix(matrix));
  const i64 row_bytes = part.row_bytes(), batch = std::max<i64>(1, kLeafBatchBytes / row_bytes);
  thread_local HostBuffer rows;
  for (i64 first = part.first; first < part.last; first += batch) {
    const i64 last = std::min(part.last, first + batch);
    const i64 begin = first * row_bytes;
    rows.reserve((last - first) * row_bytes);
    std::vector<Move> local;
    for (const Move& move : moves)
      clip_move(move, begin, last * row_bytes, [&](Move clipped) {
        clipped.src_offset -= passing.begin;
        clipped.dst_offset -= begin;
        local.push_back(clipped);
      });
    copy_in_host(local, passing.bytes.data(), rows.data());
    const Hash128 hash = sum_rows(identity, first, last - first, rows.data(), row_bytes);
    sum += {hash.low, hash.high, last - first, (last - first) * row_bytes};
  }
}

}  // namespace

struct ModelLeaves::Parts {
  std::vector<Item> items;
  /// Sorted by tensor and by `begin`; those of tensor t are [first_part[t], first_part[t + 1]).
  std::vector<Part> parts;
  std::vector<std::size_t> first_part;
  /// Blocks of tensors without bytes, which never pass.
  LeafSum empty;
  i64 leaves = 0;
  i64 bytes = 0;

  std::span<const Part> of_tensor(std::size_t tensor) const {
    return {parts.begin() + static_cast<std::ptrdiff_t>(first_part.at(tensor)),
            parts.begin() + static_cast<std::ptrdiff_t>(first_part.at(tensor + 1))};
  }

  std::span<const Part> reaching(std::size_t tensor, i64 at) const {
    const std::span<const Part> here = of_tensor(tensor);
    return {std::ranges::upper_bound(here, at, {}, &Part::reach), here.end()};
  }

  /// The leaf that has bytes on both sides of `at`: its first byte and the one behind its last.
  std::optional<std::pair<i64, i64>> leaf_around(std::size_t tensor, i64 at) const {
    for (const Part& part : reaching(tensor, at)) {
      if (part.begin >= at) break;
      if (part.end <= at) continue;
      if (part.transposed) return std::pair(part.begin, part.end);
      const i64 leaf = part.leaf_from(at) - 1;
      const i64 begin = part.offset(leaf), end = begin + part.bytes(leaf);
      if (end > at) return std::pair(begin, end);
    }
    return std::nullopt;
  }

  void add(std::size_t tensor, const Passing& passing, LeafSum& sum) const {
    for (const Part& part : reaching(tensor, passing.begin)) {
      if (part.begin >= passing.end()) break;
      if (part.transposed)
        add_transposed(part, passing, sum);
      else
        add_dense(part, passing, sum);
    }
  }

  /// Counts the item's leaves.
  void count(const Item& item) {
    if (item.matrix == nullptr && item.bytes == 0) return add_leaf(hash_leaf(item.identity(), 0, {}), 0, empty);
    leaves += item.matrix != nullptr ? item.matrix->rows : number_of_blocks(item);
    bytes += item.bytes;
  }

  /// Calls `use` with each tensor that holds some of the item, and with what it holds.
  template <typename Use>
  static void for_each_part(const Item& item, const Use& use) {
    if (item.matrix == nullptr) {
      if (item.bytes == 0) return;
      Part part{&item, nullptr, 0, number_of_blocks(item)};
      part.end = item.bytes;
      return use(item.tensor, part);
    }
    for_each_stored_part(*item.matrix, [&](std::size_t tensor, const Placement& place, i64 first, i64 last) {
      use(tensor, part_of(item, place, first, last));
    });
  }

  static i64 number_of_blocks(const Item& item) { return (item.bytes + kLeafBlockBytes - 1) / kLeafBlockBytes; }
};

LeafSum& LeafSum::operator+=(const LeafSum& other) {
  const u64 sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  leaves += other.leaves;
  bytes += other.bytes;
  return *this;
}

ModelLeaves::ModelLeaves(const Inventory& inventory, const Recognition& recognition)
    : parts_(std::make_unique<Parts>()) {
  std::vector<Item>& items = parts_->items = list_items(inventory, recognition);
  std::vector<Part>& parts = parts_->parts;
  std::vector<std::size_t>& first_part = parts_->first_part;
  // Counted first, so that one list holds the parts of all tensors and no list grows.
  first_part.assign(inventory.tensors.size() + 1, 0);
  for (const Item& item : items) {
    parts_->count(item);
    Parts::for_each_part(item, [&](std::size_t tensor, const Part&) { ++first_part.at(tensor + 1); });
  }
  std::partial_sum(first_part.begin(), first_part.end(), first_part.begin());
  parts.resize(first_part.back());
  std::vector<std::size_t> next = first_part;
  for (const Item& item : items)
    Parts::for_each_part(item, [&](std::size_t tensor, const Part& part) { parts[next[tensor]++] = part; });
  for (std::size_t tensor = 0; tensor < inventory.tensors.size(); ++tensor) {
    const auto here = std::span(parts).subspan(first_part[tensor], first_part[tensor + 1] - first_part[tensor]);
    std::ranges::sort(here, {}, &Part::begin);
    i64 reach = 0;
    for (Part& part : here) part.reach = reach = std::max(reach, part.end);
  }
}

ModelLeaves::~ModelLeaves() = default;

void ModelLeaves::add(std::size_t tensor, i64 offset, std::span<const std::byte> bytes, LeafSum& sum) const {
  parts_->add(tensor, {offset, bytes}, sum);
}

void ModelLeaves::add_used(std::size_t tensor, i64 offset, std::span<const std::byte> bytes,
                           std::span<const Move> moves, LeafSum& sum) const {
  i64 used_bytes = 0;
  for (const Move& move : moves) used_bytes += move.bytes();
  if (used_bytes == static_cast<i64>(bytes.size())) return add(tensor, offset, bytes, sum);
  const ReadBytes used(moves);
  parts_->add(tensor, {offset, bytes, &used}, sum);
}

i64 ModelLeaves::cut(std::size_t tensor, i64 begin, i64 end) const {
  i64 at = end;
  while (const auto leaf = parts_->leaf_around(tensor, at)) {
    at = leaf->first;
    if (at > begin) continue;
    // No leaf ends before `begin`, so the cut is behind the leaves that are in the way.
    at = end;
    while (const auto next = parts_->leaf_around(tensor, at)) at = next->second;
    return at;
  }
  return at;
}

std::optional<Digest> ModelLeaves::digest(const LeafSum& sum) const {
  if (sum.leaves != parts_->leaves || sum.bytes != parts_->bytes) return std::nullopt;
  LeafSum all = sum;
  all += parts_->empty;
  return Digest{all.low, all.high, static_cast<i64>(parts_->items.size()), parts_->bytes};
}

Digest ModelLeaves::blank() const { return {0, 0, static_cast<i64>(parts_->items.size()), parts_->bytes}; }

std::string first_unlike(const ModelShape& a, const ModelShape& b) {
  const std::vector<Item> left = list_items(a.inventory, a.recognition), right = list_items(b.inventory, b.recognition);
  const auto [x, y] = std::ranges::mismatch(left, right, is_same_item);
  if (x != left.end()) return x->label();
  return y == right.end() ? std::string() : y->label();
}

std::string to_string(const Digest& digest) {
  return fmt::format("gck2:{}:{}:{}", hex({digest.low, digest.high}), digest.tensors, digest.bytes);
}

std::optional<Digest> parse_digest(std::string_view text) {
  constexpr std::string_view kPrefix = "gck2:";
  constexpr std::size_t kHexDigits = 32;
  if (!text.starts_with(kPrefix) || text.size() < kPrefix.size() + kHexDigits + 1) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  const std::string_view counts = text.substr(kHexDigits + 1);
  const std::size_t colon = counts.find(':');
  if (text[kHexDigits] != ':' || colon == std::string_view::npos) return std::nullopt;
  const auto high = parse_number<u64>(text.substr(0, 16), 16), low = parse_number<u64>(text.substr(16, 16), 16);
  const auto tensors = parse_number<i64>(counts.substr(0, colon)), bytes = parse_number<i64>(counts.substr(colon + 1));
  if (!high || !low || !tensors || !bytes) return std::nullopt;
  return Digest{*low, *high, *tensors, *bytes};
}

}  // namespace glu_ckpt
