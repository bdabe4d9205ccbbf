/// The layout-invariant digest. Rows are found through the source's own placements, never through a
/// plan, so it is a second, independent walk over every layout.

#include <algorithm>

#include "core/parallel.hpp"
#include "verify/item_rows.hpp"

namespace glu_ckpt {
namespace {

/// Rows are gathered in batches of about this size.
constexpr i64 kBatchBytes = i64{16} << 20;

/// One worker's buffers.
struct Workspace {
  HostBuffer rows;
  HostBuffer scratch;
};

class ItemHasher {
 public:
  ItemHasher(const Model& model, const Backend& backend, const ExecuteOptions& options)
      : source_(*model.source), backend_(backend), options_(options) {
    buffer_bytes_ = std::max<i64>(4096, options.memory_bytes / (2 * std::max(1, options.jobs)));
  }

  void hash(Item& item, Workspace& space) const {
    if (item.matrix != nullptr)
      hash_matrix(item, space);
    else
      hash_blocks(item, space);
  }

 private:
  void hash_matrix(Item& item, Workspace& space) const {
    const Matrix& matrix = *item.matrix;
    const std::string identity = item.identity();
    const i64 row_bytes = matrix.cols * matrix.element_bytes;
    LogicalRows logical(item);
    const std::vector<Move> moves = matrix_moves(matrix, dense_matrix(matrix));
    // A transposed matrix is read whole where it fits: every batch of its rows touches all of it.
    const i64 wanted = is_transposed(matrix) ? buffer_bytes_ : std::min(kBatchBytes, buffer_bytes_);
    const i64 batch = std::clamp<i64>(wanted / std::max<i64>(row_bytes, 1), 1, matrix.rows);
    space.rows.reserve(batch * row_bytes);
    for (i64 first = 0; first < matrix.rows; first += batch) {
      const i64 count = std::min(batch, matrix.rows - first);
      RangeReader reader(source_);
      gather(moves, reader, backend_, first * row_bytes, (first + count) * row_bytes, space.rows.data(), space.scratch,
             buffer_bytes_);
      const std::span stored(space.rows.data(), static_cast<std::size_t>(count * row_bytes));
      item.sum += logical.sum(identity, first, count, stored);
      progress(count * row_bytes);
    }
  }

  void hash_blocks(Item& item, Workspace& space) const {
    space.rows.reserve(kLeafBlockBytes);
    const std::string identity = item.identity();
    // A tensor without bytes still counts: its block 0 is empty.
    for (i64 begin = 0, block = 0; begin < item.bytes || block == 0; begin += kLeafBlockBytes, ++block) {
      const std::span bytes(space.rows.data(), static_cast<std::size_t>(std::min(kLeafBlockBytes, item.bytes - begin)));
      if (!bytes.empty()) source_.read(item.tensor, begin, bytes);
      item.sum += hash_leaf(identity, block, bytes);
      progress(static_cast<i64>(bytes.size()));
    }
  }

  void progress(i64 bytes) const {
    if (options_.on_progress) options_.on_progress(bytes);
  }

  const Source& source_;
  const Backend& backend_;
  const ExecuteOptions& options_;
  i64 buffer_bytes_ = 0;
};

}  // namespace

void hash_items(const Model& model, const Backend& backend, const ExecuteOptions& options, std::vector<Item>& items) {
  const ItemHasher hasher(model, backend, options);
  std::vector<Workspace> spaces(static_cast<std::size_t>(std::max(1, options.jobs)));
  parallel_for(items.size(), options.jobs,
               [&](std::size_t i, int worker) { hasher.hash(items[i], spaces[static_cast<std::size_t>(worker)]); });
}

Digest sum_items(const std::vector<Item>& items) {
  Hash128 sum;
  Digest digest;
  for (const Item& item : items) {
    sum += item.sum;
    ++digest.tensors;
    digest.bytes += item.bytes;
  }
  digest.low = sum.low;
  digest.high = sum.high;
  return digest;
}

Digest compute_digest(const Model& model, const Backend& backend, const ExecuteOptions& options) {
  std::vector<Item> items = list_items(model.source->inventory(), *model.recognition);
  hash_items(model, backend, options, items);
  return sum_items(items);
}

std::vector<std::byte> read_rows(const Model& model, const Matrix& matrix, const Backend& backend, i64 first,
                                 i64 count) {
  const i64 row_bytes = matrix.cols * matrix.element_bytes;
  std::vector<std::byte> rows(static_cast<std::size_t>(count * row_bytes));
  HostBuffer scratch;
  RangeReader reader(*model.source);
  gather(matrix_moves(matrix, dense_matrix(matrix)), reader, backend, first * row_bytes, (first + count) * row_bytes,
         rows.data(), scratch, kBatchBytes);
  return rows;
}

}  // namespace glu_ckpt
