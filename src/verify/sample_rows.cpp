#include "verify/sample_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "exec/items.hpp"
#include "exec/range_reader.hpp"
#include "layout/placement.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kBlockBytes = 4096;
/// Elements of a transposed row: each is a read of its own.
constexpr i64 kTransposedElements = 16;
/// Rows that are read of each tensor: first, last, and one by chance.
constexpr i64 kLeastRows = 3;
constexpr i64 kScratchBytes = i64{1} << 20;
/// Threads that read: a new file's clones are not in the page cache, and a disk answers many small reads at once.
constexpr int kReaders = 16;

/// Numbers that look random, the same for the same seed (splitmix64 of a counter).
class Draws {
 public:
  explicit Draws(u64 seed) : state_(seed) {}
  i64 below(i64 limit) {
    u64 x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return static_cast<i64>((x ^ (x >> 31)) % static_cast<u64>(limit));
  }

 private:
  u64 state_;
};

/// Row, or block, `row` of the item that is number `item` in both models.
struct Pick {
  std::size_t item = 0;
  i64 row = 0;
};

/// Rows [first, last) of an item that lie in one tensor.
struct SampledPart {
  std::size_t item = 0;
  i64 first = 0;
  i64 last = 0;
};

/// The parts of each tensor, in the order of items.
std::vector<std::vector<SampledPart>> parts_of(const std::vector<Item>& items, std::size_t num_tensors) {
  std::vector<std::vector<SampledPart>> parts(num_tensors);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (item.bytes == 0) continue;
    if (item.matrix == nullptr) {
      parts.at(item.tensor).push_back({i, 0, (item.bytes + kBlockBytes - 1) / kBlockBytes});
      continue;
    }
    for_each_stored_part(*item.matrix, [&](std::size_t tensor, const Placement&, i64 first, i64 last) {
      parts.at(tensor).push_back({i, first, last});
    });
  }
  return parts;
}

/// The rows to compare: the first of each tensor, then the last of each, then one by chance of each, and so on.
std::vector<Pick> pick_rows(const std::vector<std::vector<SampledPart>>& parts, std::span<const std::size_t> tensors,
                            Draws& draws, const SampleLimits& limits) {
  std::vector<std::size_t> chosen;
  for (const std::size_t tensor : tensors)
    if (!parts.at(tensor).empty()) chosen.push_back(tensor);
  const auto most = static_cast<std::size_t>(std::max<i64>(1, limits.rows / kLeastRows));
  // The front of a shuffle.
  for (std::size_t i = 0; i < most && chosen.size() > most; ++i)
    std::swap(chosen[i], chosen[i + static_cast<std::size_t>(draws.below(std::ssize(chosen) - static_cast<i64>(i)))]);
  if (chosen.size() > most) chosen.resize(most);
  std::vector<Pick> picks;
  for (i64 round = 0; !chosen.empty() && std::ssize(picks) + std::ssize(chosen) <= std::max(limits.rows, kLeastRows);
       ++round)
    for (const std::size_t tensor : chosen) {
      const std::vector<SampledPart>& of = parts[tensor];
      const SampledPart& part = round == 0   ? of.front()
                                : round == 1 ? of.back()
                                             : of[static_cast<std::size_t>(draws.below(std::ssize(of)))];
      picks.push_back({part.item, round == 0   ? part.first
                                  : round == 1 ? part.last - 1
                                               : part.first + draws.below(part.last - part.first)});
    }
  return picks;
}

i64 bytes_of(const Item& item, i64 row) {
  if (item.matrix == nullptr) return std::min(kBlockBytes, item.bytes - row * kBlockBytes);
  const Matrix& matrix = *item.matrix;
  return (is_transposed(matrix) ? std::min(matrix.cols, kTransposedElements) : matrix.cols) * matrix.element_bytes;
}

/// The first bytes of a row, or a block.
std::vector<std::byte> read_part(const Model& model, const Item& item, i64 row, i64 bytes, const Backend& backend) {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  if (item.matrix == nullptr) {
    model.source->read(item.tensor, row * kBlockBytes, out);
    return out;
  }
  const Matrix& matrix = *item.matrix;
  const i64 begin = row * matrix.cols * matrix.element_bytes;
  HostBuffer scratch;
  RangeReader reader(*model.source);
  gather(matrix_moves(matrix, dense_matrix(matrix)), reader, backend, begin, begin + bytes, out.data(), scratch,
         kScratchBytes);
  return out;
}

}  // namespace

Sample sample_rows(const Model& a, const Model& b, std::span<const std::size_t> tensors, const Backend& backend,
                   const ExecuteOptions& options, u64 seed, const SampleLimits& limits) {
  const std::vector<Item> left = list_items(a.source->inventory(), *a.recognition);
  const std::vector<Item> right = list_items(b.source->inventory(), *b.recognition);
  if (!std::ranges::equal(left, right, is_same_item))
    fail(ErrorCode::VerifyFailed, {b.source->path().string(), {}}, "{}: is not made of the same matrices and tensors",
         b.source->path().string());
  Draws draws(seed);
  std::vector<Pick> picks = pick_rows(parts_of(right, b.source->inventory().tensors.size()), tensors, draws, limits);
  Sample sample;
  std::size_t count = 0;
  for (; count < picks.size() && sample.bytes < limits.bytes; ++count)
    sample.bytes += std::min(bytes_of(left[picks[count].item], picks[count].row),
                             bytes_of(right[picks[count].item], picks[count].row));
  picks.resize(count);
  sample.rows = static_cast<i64>(count);
  std::optional<std::size_t> first;
  std::mutex mutex;
  parallel_for(picks.size(), std::max(kReaders, options.jobs), [&](std::size_t i, int) {
    const auto [item, row] = picks[i];
    const i64 bytes = std::min(bytes_of(left[item], row), bytes_of(right[item], row));
    if (options.on_progress) options.on_progress(bytes);
    if (read_part(a, left[item], row, bytes, backend) == read_part(b, right[item], row, bytes, backend)) return;
    const std::lock_guard lock(mutex);
    first = std::min(first.value_or(i), i);
  });
  if (first)
    sample.difference =
        fmt::format("{}, {} {}", left[picks[*first].item].label(),
                    left[picks[*first].item].matrix != nullptr ? "row" : "block of 4 KiB number", picks[*first].row);
  return sample;
}

}  // namespace glu_ckpt
