/// Compares two models item by item, and names the first element that differs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/element_text.hpp"
#include "core/fail.hpp"
#include "layout/placement.hpp"
#include "verify/choose_layers.hpp"
#include "verify/compare_models.hpp"
#include "verify/diagnose.hpp"
#include "verify/item_rows.hpp"

namespace glu_ckpt {
namespace {

/// Index of the first byte that differs, or -1.
i64 first_differing_byte(std::span<const std::byte> a, std::span<const std::byte> b) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin());
  return x == a.end() ? -1 : x - a.begin();
}

Difference describe(const Model& a, const Item& item) {
  Difference difference;
  difference.tensor = a.source->inventory().tensors[item.tensor].name;
  if (item.matrix == nullptr) return difference;
  difference.layer = item.layer();
  difference.kind = to_string(item.matrix->kind);
  if (item.dense != nullptr) {
    difference.role = to_string(item.dense->role);
    return difference;
  }
  difference.state = item.block->state;
  difference.set = to_string(item.block->set);
  difference.expert = item.matrix->expert;
  difference.role = to_string(item.matrix->role);
  return difference;
}

/// Names the element around byte `at` of a row-major tensor. Of packed sub-byte elements, which share
/// bytes, the first in the byte is named and the whole byte shown.
void locate(Difference& difference, Dtype dtype, i64 cols, i64 at, const std::byte* a, const std::byte* b) {
  const int bits = dtype_bits(dtype);
  const i64 bytes = std::max(1, bits / 8);
  const i64 element = at * 8 / bits;
  difference.row = element / cols;
  difference.column = element % cols;
  const std::span element_a(a - at % bytes, static_cast<std::size_t>(bytes));
  const std::span element_b(b - at % bytes, static_cast<std::size_t>(bytes));
  difference.a = bits_text(element_a);
  difference.b = bits_text(element_b);
  difference.number_a = number_text(dtype, element_a);
  difference.number_b = number_text(dtype, element_b);
}

Difference locate_in_matrix(const Model& a, const Item& x, const Model& b, const Item& y, const Backend& backend) {
  Difference difference = describe(a, x);
  const Matrix& matrix = *x.matrix;
  const auto stored_left = read_rows(a, matrix, backend, 0, matrix.rows);
  const auto stored_right = read_rows(b, *y.matrix, backend, 0, matrix.rows);
  LogicalRows rows_of_a(x), rows_of_b(y);
  const auto [left, right] = alike_rows(rows_of_a, stored_left, rows_of_b, stored_right);
  const i64 at = first_differing_byte(left, right);
  if (at < 0) return difference;
  const i64 cols = x.bytes / matrix.rows * 8 / dtype_bits(matrix.dtype);
  locate(difference, matrix.dtype, cols, at, left.data() + at, right.data() + at);
  if (x.dense != nullptr && x.dense->head_rows > 0) difference.head = difference.row / x.dense->head_rows;
  difference.hint = diagnose(a, x, b, y, backend);
  return difference;
}

Difference locate_in_tensor(const Model& a, const Item& x, const Model& b, const Item& y) {
  Difference difference = describe(a, x);
  const TensorRef& tensor = a.source->inventory().tensors[x.tensor];
  const i64 cols = tensor.shape.empty() ? 1 : std::max<i64>(1, tensor.shape.back());
  constexpr i64 kChunk = i64{1} << 20;
  for (i64 begin = 0; begin < tensor.bytes; begin += kChunk) {
    const auto size = static_cast<std::size_t>(std::min(kChunk, tensor.bytes - begin));
    std::vector<std::byte> left(size);
    std::vector<std::byte> right(size);
    a.source->read(x.tensor, begin, left);
    b.source->read(y.tensor, begin, right);
    const i64 at = first_differing_byte(left, right);
    if (at < 0) continue;
    locate(difference, tensor.dtype, cols, begin + at, left.data() + at, right.data() + at);
    break;
  }
  return difference;
}

/// Returns whether equal names hold the same matrices at the same places, so that equal digests mean equal bytes.
bool same_order(const Model& a, const Model& b) {
  const auto& x = a.recognition->layout;
  const auto& y = b.recognition->layout;
  const auto arrangement = [](const LayoutAnswers& layout) {
    const auto text = [](const std::optional<Glu>& glu) { return glu ? to_string(*glu) : std::string(); };
    return std::tuple(to_string(layout.glu), text(layout.shared_glu), text(layout.optimizer_glu));
  };
  return arrangement(x) == arrangement(y) && a.recognition->naming == b.recognition->naming;
}

/// Returns the tensors with bytes that are in no item, such as rows of padding behind the vocabulary. Copies are left
/// out: they are what they repeat.
std::vector<std::size_t> padded_tensors(const Model& model, const std::vector<Item>& items) {
  const std::vector<TensorRef>& tensors = model.source->inventory().tensors;
  std::vector<i64> padding;
  for (const TensorRef& tensor : tensors) padding.push_back(tensor.bytes);
  for (const Item& item : items) {
    if (item.matrix == nullptr) {
      padding.at(item.tensor) -= item.bytes;
      continue;
    }
    const i64 row_bytes = item.matrix->cols * item.matrix->element_bytes;
    for_each_stored_part(*item.matrix, [&](std::size_t tensor, const Placement&, i64 first, i64 last) {
      padding.at(tensor) -= (last - first) * row_bytes;
    });
  }
  for (const TensorCopy& copy : model.recognition->copies) padding.at(copy.tensor) = 0;
  for (const std::size_t index : model.recognition->dropped) padding.at(index) = 0;
  std::vector<std::size_t> padded;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (padding[t] > 0) padded.push_back(t);
  return padded;
}

/// Names the tensors whose items are equal and whose padding is not, of two models in one layout.
std::vector<std::string> differing_padding(const Model& a, const std::vector<Item>& items_of_a, const Model& b) {
  constexpr i64 kChunk = i64{1} << 20;
  const std::vector<TensorRef>& others = b.source->inventory().tensors;
  std::vector<std::string> names;
  std::vector<std::byte> left, right;
  for (const std::size_t index : padded_tensors(a, items_of_a)) {
    const TensorRef& tensor = a.source->inventory().tensors[index];
    const auto other = std::ranges::find(others, tensor.name, &TensorRef::name);
    for (i64 begin = 0; begin < tensor.bytes; begin += kChunk) {
      left.resize(static_cast<std::size_t>(std::min(kChunk, tensor.bytes - begin)));
      right.resize(left.size());
      a.source->read(index, begin, left);
      b.source->read(static_cast<std::size_t>(other - others.begin()), begin, right);
      if (left == right) continue;
      names.push_back(tensor.name);
      break;
    }
  }
  return names;
}

/// Two models' items side by side, and those to compare.
struct Comparison {
  std::vector<std::string> missing;
  std::vector<std::string> extra;
  i64 in_both = 0;
  /// The items to read. Items of one side alone are among them where everything is compared.
  std::vector<Item> left;
  std::vector<Item> right;
};

/// The layers that a list names, as both models call them.
std::set<std::string> named_layers(const std::string& list, const std::vector<Item>& left,
                                   const std::vector<Item>& right) {
  std::vector<std::string> labels;
  std::set<std::string> known;
  for (const std::vector<Item>* items : {&left, &right})
    for (const Item& item : *items)
      if (const std::string label = item.layer(); !label.empty() && known.insert(label).second) labels.push_back(label);
  const std::vector<std::string> named = choose_layers(labels, list);
  return {named.begin(), named.end()};
}

/// Returns true for those of `items`, which both models have, that are drawn for a sample and belong to a part of it: a
/// matter of their identities and the subset alone.
std::vector<bool> draw(const std::vector<Item>& items, const VerifySubset& subset) {
  std::vector<std::pair<u64, std::size_t>> order;
  const std::string seed = fmt::format("{}/", subset.seed);
  for (std::size_t i = 0; i < items.size(); ++i) order.emplace_back(hash64(seed + items[i].identity()), i);
  std::ranges::sort(order);
  const auto count = static_cast<double>(items.size());
  const auto wanted = static_cast<std::size_t>(std::min(count, std::ceil(count * subset.percent / 100)));
  std::vector<bool> drawn(items.size());
  for (auto at = static_cast<std::size_t>(subset.part - 1); at < wanted; at += static_cast<std::size_t>(subset.parts))
    drawn[order[at].second] = true;
  return drawn;
}

Comparison compare_headers(const Model& a, const Model& b, const VerifySubset& subset) {
  if (!(subset.percent > 0) || subset.part < 1 || subset.part > subset.parts)
    fail(ErrorCode::Usage, {}, "part {} of {} of {} % of a model is nothing that can be compared", subset.part,
         subset.parts, subset.percent);
  Comparison found;
  std::vector<Item> left = list_items(a.source->inventory(), *a.recognition);
  std::vector<Item> right = list_items(b.source->inventory(), *b.recognition);
  std::optional<std::set<std::string>> layers;
  if (!subset.layers.empty()) layers = named_layers(subset.layers, left, right);
  const auto is_wanted = [&](const Item& item) { return !layers || layers->contains(item.layer()); };
  std::vector<Item> common_left, common_right;
  for (auto x = left.begin(), y = right.begin(); x != left.end() || y != right.end();) {
    if (y == right.end() || (x != left.end() && is_before(*x, *y))) {
      if (is_wanted(*x)) found.missing.push_back(x->label());
      ++x;
    } else if (x == left.end() || is_before(*y, *x)) {
      if (is_wanted(*y)) found.extra.push_back(y->label());
      ++y;
    } else {
      if (is_wanted(*x)) {
        common_left.push_back(*x);
        common_right.push_back(*y);
      }
      ++found.in_both;
      ++x;
      ++y;
    }
  }
  if (subset.is_all()) {
    found.left = std::move(left);
    found.right = std::move(right);
    return found;
  }
  const std::vector<bool> drawn = draw(common_left, subset);
  for (std::size_t i = 0; i < drawn.size(); ++i)
    if (drawn[i]) {
      found.left.push_back(common_left[i]);
      found.right.push_back(common_right[i]);
    }
  return found;
}

}  // namespace

bool same_tensors(const Model& a, const Model& b) {
  auto x = a.source->inventory().tensors;
  auto y = b.source->inventory().tensors;
  const auto by_name = [](const TensorRef& p, const TensorRef& q) { return p.name < q.name; };
  std::sort(x.begin(), x.end(), by_name);
  std::sort(y.begin(), y.end(), by_name);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const TensorRef& p, const TensorRef& q) {
    return p.name == q.name && p.dtype == q.dtype && p.shape == q.shape;
  });
}

ComparedModels compare_models(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
                              const VerifySubset& subset) {
  Comparison comparison = compare_headers(a, b, subset);
  auto& [missing, extra, in_both, left, right] = comparison;
  hash_items(a, backend, options, left);
  hash_items(b, backend, options, right);
  Verdict verdict;
  verdict.a = sum_items(left);
  verdict.b = sum_items(right);
  verdict.missing = std::move(missing);
  verdict.extra = std::move(extra);
  verdict.in_both = in_both;
  const Item* first_left = nullptr;
  const Item* first_right = nullptr;
  for (auto x = left.begin(), y = right.begin(); x != left.end() && y != right.end();) {
    if (is_before(*x, *y)) {
      ++x;
    } else if (is_before(*y, *x)) {
      ++y;
    } else {
      ++verdict.compared;
      if (!(x->sum == y->sum) && verdict.differing++ == 0) {
        first_left = &*x;
        first_right = &*y;
      }
      ++x;
      ++y;
    }
  }
  if (first_left != nullptr)
    verdict.first_difference = first_left->matrix != nullptr
                                   ? locate_in_matrix(a, *first_left, b, *first_right, backend)
                                   : locate_in_tensor(a, *first_left, b, *first_right);
  verdict.equal = verdict.missing.empty() && verdict.extra.empty() && verdict.differing == 0 && verdict.a == verdict.b;
  if (verdict.equal && subset.is_all() && same_tensors(a, b) && same_order(a, b)) {
    verdict.differing_padding = differing_padding(a, left, b);
    verdict.same_layout = verdict.differing_padding.empty();
  }
  return {std::move(verdict), std::move(left), std::move(right)};
}

Verdict verify(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
               const VerifySubset& subset) {
  return compare_models(a, b, backend, options, subset).verdict;
}

i64 verify_bytes(const Model& a, const Model& b, const VerifySubset& subset) {
  i64 bytes = 0;
  if (subset.is_all()) {
    for (const Model* model : {&a, &b})
      for (const TensorRef& tensor : model->source->inventory().tensors) bytes += tensor.bytes;
    return bytes;
  }
  const Comparison comparison = compare_headers(a, b, subset);
  for (const std::vector<Item>* items : {&comparison.left, &comparison.right})
    for (const Item& item : *items) bytes += item.bytes;
  return bytes;
}

}  // namespace glu_ckpt
