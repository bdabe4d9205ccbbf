#include "exec/items.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "arch/model_names.hpp"
#include "arch/recognize_model.hpp"
#include "core/compute.hpp"

namespace glu_ckpt {
namespace {

Item matrix_item(const ExpertBlock& block, const Matrix& matrix) {
  Item item;
  item.block = &block;
  item.matrix = &matrix;
  item.tensor = matrix.tensor;
  item.bytes = matrix.rows * matrix.cols * matrix.element_bytes;
  return item;
}

Item dense_item(const DenseMatrix& dense) {
  Item item;
  item.dense = &dense;
  item.matrix = &dense.matrix;
  item.tensor = dense.matrix.tensor;
  item.bytes = dense.matrix.rows * dense.matrix.cols * dtype_bits(dense.matrix.dtype) / 8;
  return item;
}

Item other_item(const TensorRef& tensor, std::string_view model_name, std::size_t index) {
  Item item;
  item.other = &tensor;
  item.own_name = own_name(model_name);
  item.tensor = index;
  item.bytes = tensor.bytes;
  return item;
}

/// Made when it is asked for, as identities and labels are: there are a hundred thousand items, and few reports.
auto block_order(const ExpertBlock& block) {
  const int rank = block.is_optimizer_state() ? 2 : block.stack == "decoder" ? 0 : 1;
  return std::tuple(rank, block.is_optimizer_state() ? std::string_view(block.state) : std::string_view(),
                    block.scope + block.stack, block.layer, block.set == ExpertSet::Shared);
}

auto matrix_order(const Matrix& matrix) { return std::tuple(matrix.expert, matrix.role, matrix.kind); }

auto dense_order(const DenseMatrix& dense) {
  return std::tuple(dense.stack, dense.layer, dense.role, dense.matrix.kind);
}

}  // namespace

std::span<const std::byte> LogicalRows::of(std::span<const std::byte> stored) {
  if (op() == ComputeOp::None) return stored;
  const Dtype dtype = item_.matrix->dtype;
  const std::span<const std::byte> made_of = before(op(), stored);
  computed_.resize(made_of.size());
  compute(op(), dtype, made_of, dtype, computed_);
  comes_back_ = first_lost(op(), dtype, made_of, dtype) < 0;
  return computed_;
}

std::span<const std::byte> LogicalRows::before(ComputeOp op, std::span<const std::byte> stored) {
  const Dtype dtype = item_.matrix->dtype;
  const auto elements = static_cast<i64>(stored.size()) / item_.matrix->element_bytes;
  before_.resize(static_cast<std::size_t>(elements * dtype_bits(dtype) / 8));
  if (item_.op() == op)
    compute(ComputeOp::None, item_.dense->stored_dtype, stored, dtype, before_);
  else
    compute(inverse(op), dtype, stored, dtype, before_);
  return before_;
}

Hash128 LogicalRows::sum(std::string_view identity, i64 first, i64 count, std::span<const std::byte> stored) {
  const i64 row_bytes = static_cast<i64>(stored.size()) / count;
  if (op() == ComputeOp::None) return sum_rows(identity, first, count, stored.data(), row_bytes);
  Hash128 sum;
  for (i64 row = 0; row < count; ++row) {
    of(stored.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(row_bytes)));
    if (!comes_back_) computed_.insert(computed_.end(), before_.begin(), before_.end());
    sum += hash_leaf(identity, first + row, computed_);
  }
  return sum;
}

std::pair<std::span<const std::byte>, std::span<const std::byte>> alike_rows(LogicalRows& a,
                                                                             std::span<const std::byte> stored_a,
                                                                             LogicalRows& b,
                                                                             std::span<const std::byte> stored_b) {
  const auto left = a.of(stored_a), right = b.of(stored_b);
  if (a.come_back() && b.come_back()) return {left, right};
  const ComputeOp op = a.op() != ComputeOp::None ? a.op() : b.op();
  return {a.before(op, stored_a), b.before(op, stored_b)};
}

Matrix dense_matrix(const Matrix& matrix) {
  Matrix to = matrix;
  to.tensor = 0;
  to.tail.reset();
  to.place = {0, matrix.rows, 0, matrix.cols * matrix.element_bytes, matrix.element_bytes};
  to.place.block_step = matrix.rows * to.place.row_step;
  return to;
}

Hash128 hash_leaf(std::string_view identity, i64 index, std::span<const std::byte> bytes) {
  fmt::memory_buffer whole;
  whole.append(identity);
  whole.push_back('/');
  const fmt::format_int digits(index);
  whole.append(digits.data(), digits.data() + digits.size());
  return hash128(bytes, hash64({whole.data(), whole.size()}));
}

Hash128 sum_rows(std::string_view identity, i64 first, i64 count, const std::byte* rows, i64 row_bytes) {
  Hash128 sum;
  for (i64 r = 0; r < count; ++r)
    sum += hash_leaf(identity, first + r, {rows + r * row_bytes, static_cast<std::size_t>(row_bytes)});
  return sum;
}

std::string Item::layer() const {
  if (dense != nullptr) return layer_label(*dense);
  return block != nullptr ? layer_label(*block) : std::string();
}

std::string Item::identity() const {
  if (matrix == nullptr)
    return fmt::format("{}/{}/{}", own_name, dtype_name(other->dtype), fmt::join(other->shape, "x"));
  if (dense != nullptr)
    return fmt::format("model/{}/{}/{}/{}/{}/{}", layer(), to_string(dense->role), to_string(matrix->kind),
                       dtype_name(matrix->dtype), matrix->rows, matrix->cols);
  return fmt::format("{}/{}/{}/{}/{}/{}/{}/{}/{}", block->state, layer_label(*block), to_string(block->set),
                     matrix->expert, to_string(matrix->role), to_string(matrix->kind), dtype_name(matrix->dtype),
                     matrix->rows, matrix->cols);
}

std::string Item::name() const {
  if (matrix == nullptr) return other->name;
  if (dense != nullptr)
    return fmt::format("{}{} {}", dense->stack.empty() ? "" : fmt::format("layer {} ", layer()), to_string(dense->role),
                       to_string(matrix->kind));
  const bool shared = block->set == ExpertSet::Shared;
  return fmt::format("{}layer {} {}{} {} {}", block->is_optimizer_state() ? block->state + " of " : "",
                     layer_label(*block), to_string(block->set),
                     shared ? " expert" : fmt::format(" expert {}", matrix->expert), to_string(matrix->role),
                     to_string(matrix->kind));
}

std::string Item::label() const {
  if (matrix == nullptr) return fmt::format("{} {} {}", name(), dtype_name(other->dtype), shape_text(other->shape));
  return fmt::format("{} {} [{}, {}]", name(), dtype_name(matrix->dtype), matrix->rows, matrix->cols);
}

std::weak_ordering compare_places(const Item& a, const Item& b) {
  if (a.matrix == nullptr || b.matrix == nullptr) {
    if (a.matrix != b.matrix) return a.matrix != nullptr ? std::weak_ordering::less : std::weak_ordering::greater;
    return a.own_name <=> b.own_name;
  }
  if (a.dense != nullptr || b.dense != nullptr) {
    if ((a.dense == nullptr) != (b.dense == nullptr))
      return a.dense == nullptr ? std::weak_ordering::less : std::weak_ordering::greater;
    return dense_order(*a.dense) <=> dense_order(*b.dense);
  }
  // Most comparisons are within one block, and block_order() makes texts.
  if (a.block != b.block)
    if (const auto order = block_order(*a.block) <=> block_order(*b.block); order != 0) return order;
  return matrix_order(*a.matrix) <=> matrix_order(*b.matrix);
}

bool is_before(const Item& a, const Item& b) {
  const std::weak_ordering order = compare_places(a, b);
  return order < 0 || (order == 0 && a.identity() < b.identity());
}

std::vector<std::pair<const Item*, const Item*>> pair_items(const std::vector<Item>& left,
                                                            const std::vector<Item>& right) {
  std::vector<std::pair<const Item*, const Item*>> pairs;
  pairs.reserve(std::max(left.size(), right.size()));
  for (auto x = left.begin(), y = right.begin(); x != left.end() || y != right.end();) {
    const std::weak_ordering order = y == right.end()  ? std::weak_ordering::less
                                     : x == left.end() ? std::weak_ordering::greater
                                                       : compare_places(*x, *y);
    pairs.emplace_back(order <= 0 ? &*x : nullptr, order >= 0 ? &*y : nullptr);
    if (order <= 0) ++x;
    if (order >= 0) ++y;
  }
  return pairs;
}

std::vector<Item> list_items(const Inventory& inventory, const Recognition& recognition) {
  std::size_t count = recognition.others.size() + recognition.dense.size();
  std::vector<const ExpertBlock*> blocks;
  for (const ExpertBlock& block : recognition.blocks) {
    count += block.matrices.size();
    blocks.push_back(&block);
  }
  std::vector<Item> items;
  items.reserve(count);
  const auto sort_from = [&items](std::size_t first) {
    std::sort(items.begin() + static_cast<std::ptrdiff_t>(first), items.end(), is_before);
  };
  const auto order_of = [](const ExpertBlock* block) { return block_order(*block); };
  std::ranges::sort(blocks, {}, order_of);
  for (auto block = blocks.begin(); block != blocks.end();) {
    const std::size_t first = items.size();
    // Blocks of one place in the order, if there are several, are sorted as one.
    for (const auto order = order_of(*block); block != blocks.end() && order_of(*block) == order; ++block)
      for (const Matrix& matrix : (*block)->matrices) items.push_back(matrix_item(**block, matrix));
    sort_from(first);
  }
  const std::size_t first_other = items.size();
  for (const DenseMatrix& dense : recognition.dense) items.push_back(dense_item(dense));
  const std::vector<std::size_t> known = dense_tensors(recognition);
  for (const std::size_t index : recognition.others)
    if (!std::ranges::binary_search(known, index))
      items.push_back(other_item(inventory.tensors[index], model_name(inventory, recognition, index), index));
  sort_from(first_other);
  return items;
}

}  // namespace glu_ckpt
