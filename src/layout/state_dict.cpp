#include "layout/state_dict.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxExperts = 65536;

/// Runs that touch in one source become one, so that folding what was split gives the pieces back.
void append(std::vector<Piece>& pieces, const Piece& piece) {
  if (piece.bytes == 0) return;
  if (!pieces.empty() && pieces.back().source == piece.source &&
      pieces.back().offset + pieces.back().bytes == piece.offset)
    pieces.back().bytes += piece.bytes;
  else
    pieces.push_back(piece);
}

/// Takes runs of bytes off the front of a list of pieces.
class PieceReader {
 public:
  explicit PieceReader(const std::vector<Piece>& pieces) : pieces_(pieces) {}

  std::vector<Piece> take(i64 bytes) {
    std::vector<Piece> result;
    while (bytes > 0) {
      const Piece& piece = pieces_[current_];
      const i64 run = std::min(bytes, piece.bytes - used_);
      append(result, {piece.source, piece.offset + used_, run});
      bytes -= run;
      used_ += run;
      if (used_ < piece.bytes) continue;
      ++current_;
      used_ = 0;
    }
    return result;
  }

 private:
  const std::vector<Piece>& pieces_;
  std::size_t current_ = 0;
  i64 used_ = 0;
};

void check_plain_bytes(const StateTensor& tensor, std::string_view key, i64 bytes) {
  const auto bits = checked_mul(element_count(tensor, key), dtype_bits(tensor.dtype));
  if (!bits) fail(ErrorCode::ShapeOverflow, at(key), "'{}': {} is too large", key, shape_text(tensor.shape));
  if (*bits % 8 != 0) fail(ErrorCode::SubByteShape, at(key), "'{}': its {} bits are not whole bytes", key, *bits);
  if (*bits / 8 != bytes)
    fail(ErrorCode::SizeMismatch, at(key), "'{}': {} {} takes {} bytes, its pieces have {}", key,
         dtype_name(tensor.dtype), shape_text(tensor.shape), *bits / 8, bytes);
}

void check_like_first(const StateEntry& first, const StateEntry& member) {
  if (member.tensor.num_members)
    fail(ErrorCode::NotSupported, at(member.key), "'{}' stands for one expert, but is itself a grouped tensor",
         member.key);
  if (member.tensor.shape != first.tensor.shape)
    fail(ErrorCode::ExpertShape, at(member.key), "'{}' is {}, '{}' is {}: only equal shapes stack", member.key,
         shape_text(member.tensor.shape), first.key, shape_text(first.tensor.shape));
  if (member.tensor.dtype != first.tensor.dtype || member.tensor.storage != first.tensor.storage)
    fail(ErrorCode::ExpertDtype, at(member.key), "'{}' is stored differently from '{}': only equal dtypes stack",
         member.key, first.key);
}

}  // namespace

void check_num_experts(i64 num_experts) {
  if (num_experts < 1 || num_experts > kMaxExperts)
    fail(ErrorCode::NotSupported, {}, "{} experts in one module; 1 to {} are supported", num_experts, kMaxExperts);
}

void check_unique_keys(const StateDict& dict) {
  std::unordered_set<std::string_view> seen;
  for (const StateEntry& entry : dict)
    if (!seen.insert(entry.key).second) fail(ErrorCode::DuplicateKey, at(entry.key), "'{}' is there twice", entry.key);
}

i64 element_count(const StateTensor& tensor, std::string_view key) {
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](i64 extent) { return extent < 0; }))
    fail(ErrorCode::BadNumber, at(key), "'{}': {} has a negative extent", key, shape_text(tensor.shape));
  const auto count = checked_product(tensor.shape);
  if (!count) fail(ErrorCode::ShapeOverflow, at(key), "'{}': {} is too large", key, shape_text(tensor.shape));
  return *count;
}

i64 stored_bytes(const StateTensor& tensor, std::string_view key) {
  i64 total = 0;
  for (const Piece& piece : tensor.pieces) {
    const auto sum = checked_add(total, piece.bytes);
    if (!sum || piece.bytes < 0 || piece.offset < 0 || !checked_add(piece.offset, piece.bytes))
      fail(ErrorCode::BadNumber, at(key), "'{}': {} bytes at {} cannot be", key, piece.bytes, piece.offset);
    total = *sum;
  }
  if (tensor.storage == Storage::Plain) check_plain_bytes(tensor, key, total);
  return total;
}

std::vector<StateTensor> cut(const StateTensor& tensor, std::string_view key, i64 count,
                             const std::vector<i64>& shape) {
  const i64 bytes = stored_bytes(tensor, key);
  if (bytes % count != 0)
    fail(ErrorCode::SubByteShape, at(key), "'{}': its {} bytes do not divide among {} experts", key, bytes, count);
  StateTensor part;
  part.dtype = tensor.dtype;
  part.shape = shape;
  part.storage = tensor.storage;
  std::vector<StateTensor> parts(static_cast<std::size_t>(count), part);
  PieceReader reader(tensor.pieces);
  for (StateTensor& each : parts) each.pieces = reader.take(bytes / count);
  return parts;
}

std::vector<StateTensor> grouped_members(const StateTensor& tensor, std::string_view key) {
  if (tensor.cached_members) return *tensor.cached_members;
  check_num_experts(*tensor.num_members);
  if (tensor.shape.empty() || tensor.shape[0] != *tensor.num_members)
    fail(ErrorCode::ExpertShape, at(key), "'{}' is {} but has {} groups", key, shape_text(tensor.shape),
         *tensor.num_members);
  return cut(tensor, key, *tensor.num_members, {tensor.shape.begin() + 1, tensor.shape.end()});
}

StateTensor stack(const StateDict& dict, const std::vector<std::size_t>& members) {
  const StateEntry& first = dict[members.front()];
  StateTensor result;
  result.dtype = first.tensor.dtype;
  result.storage = first.tensor.storage == Storage::Plain ? Storage::Plain : Storage::Dequantized;
  result.shape.push_back(static_cast<i64>(members.size()));
  result.shape.insert(result.shape.end(), first.tensor.shape.begin(), first.tensor.shape.end());
  for (const std::size_t member : members) {
    check_like_first(first, dict[member]);
    stored_bytes(dict[member].tensor, dict[member].key);
    for (const Piece& piece : dict[member].tensor.pieces) append(result.pieces, piece);
  }
  stored_bytes(result, first.key);
  return result;
}

std::optional<i64> index_after(std::string_view key, std::string_view base, i64 num_experts) {
  if (!key.starts_with(base)) return std::nullopt;
  const std::string_view digits = key.substr(base.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit)) return std::nullopt;
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  i64 index = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (parsed.ec != std::errc() || index >= num_experts) return std::nullopt;
  return index;
}

StateDict rekey(StateDict dict, const std::vector<std::size_t>& removed, std::vector<StateEntry> added) {
  std::vector<bool> gone(dict.size());
  for (const std::size_t position : removed) gone[position] = true;
  StateDict result;
  result.reserve(dict.size() - removed.size() + added.size());
  for (std::size_t i = 0; i < dict.size(); ++i)
    if (!gone[i]) result.push_back(std::move(dict[i]));
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < added.size(); ++i) places.emplace(added[i].key, i);
  std::vector<bool> placed(added.size());
  for (StateEntry& entry : result) {
    const auto place = places.find(entry.key);
    if (place == places.end()) continue;
    entry.tensor = std::move(added[place->second].tensor);
    placed[place->second] = true;
  }
  for (std::size_t i = 0; i < added.size(); ++i)
    if (!placed[i]) result.push_back(std::move(added[i]));
  return result;
}

}  // namespace glu_ckpt
