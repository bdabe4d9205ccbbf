/// Two models side by side, in pieces of fixed size: which elements differ, and by how much.

#include "verify/diff_items.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>

#include "core/compare_names.hpp"
#include "core/element_text.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "layout/neighbour_layers.hpp"
#include "verify/compare_elements.hpp"
#include "verify/item_rows.hpp"

namespace glu_ckpt {
namespace {

/// The bytes that one worker takes at a time. Sums are made within a task first, so tasks depend on nothing but the
/// item.
constexpr i64 kTaskBytes = i64{64} << 20;
/// Rows are read in batches of about this size, which stay in a cache until they are compared.
constexpr i64 kDiffBatchBytes = i64{1} << 20;
/// Short rows are compared so many elements together.
constexpr i64 kGroupElements = 1024;
/// Rows of a matrix that are listed.
constexpr std::size_t kListedRows = 8;

std::vector<i64> shape_of(const Item& item) {
  return item.matrix != nullptr ? std::vector{item.matrix->rows, item.matrix->cols} : item.other->shape;
}

bool comparable(const ItemPair& pair) {
  const auto& [x, y] = pair;
  if (x == nullptr || y == nullptr || shape_of(*x) != shape_of(*y)) return false;
  if ((x->matrix == nullptr) != (y->matrix == nullptr)) return false;
  const Dtype a = ItemRows::dtype_of(*x), b = ItemRows::dtype_of(*y);
  return a == b || (has_numbers(a) && has_numbers(b));
}

/// Rows [first, first + count) of a pair.
struct DiffTask {
  std::size_t pair = 0;
  i64 first = 0;
  i64 count = 0;
  ElementDiff found = {};
  std::optional<ElementPlace> place = {};
  i64 differing_rows = 0;
  std::vector<i64> first_rows = {};
};

void add_rows(i64 count, std::span<const i64> rows, i64& total, std::vector<i64>& listed) {
  total += count;
  for (const i64 row : rows)
    if (listed.size() < kListedRows) listed.push_back(row);
}

/// One worker's buffers.
struct DiffBuffers {
  HostBuffer a;
  HostBuffer b;
  HostBuffer scratch;
  std::unique_ptr<GroupComparer> comparer;
};

std::vector<DiffTask> make_tasks(const Model& a, const Model& b, std::span<const ItemPair> pairs, WantsPair* is_read) {
  std::vector<DiffTask> tasks;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!comparable(pairs[i]) || !is_read(pairs[i])) continue;
    const ItemRows left(a, *pairs[i].first), right(b, *pairs[i].second);
    const i64 row_bytes = std::max<i64>(1, std::max(left.stored_row_bytes(), right.stored_row_bytes()));
    // Every batch of a transposed matrix's rows touches all of it.
    const bool whole = left.transposed() || right.transposed();
    const i64 group = std::max<i64>(1, kGroupElements / std::max<i64>(1, left.elements()));
    const i64 count = whole ? left.rows() : std::max(group, kTaskBytes / row_bytes / group * group);
    for (i64 first = 0; first < left.rows(); first += count)
      tasks.push_back({i, first, std::min(count, left.rows() - first)});
  }
  return tasks;
}

class Differ {
 public:
  Differ(const Model& a, const Model& b, std::span<const ItemPair> pairs, const Backend& backend,
         const ExecuteOptions& options)
      : a_(a), b_(b), pairs_(pairs), backend_(backend), options_(options) {
    buffer_bytes_ = std::max<i64>(4096, options.memory_bytes / (3 * std::max(1, options.jobs)));
  }

  void run(DiffTask& task, DiffBuffers& buffers) const {
    const auto& [x, y] = pairs_[task.pair];
    ItemRows left(a_, *x), right(b_, *y);
    const i64 row_bytes = std::max<i64>(1, std::max(left.stored_row_bytes(), right.stored_row_bytes()));
    const i64 group = std::max<i64>(1, kGroupElements / std::max<i64>(1, left.elements()));
    const i64 wanted =
        left.transposed() || right.transposed() ? buffer_bytes_ : std::min(kDiffBatchBytes, buffer_bytes_);
    const i64 batch = std::max(group, wanted / row_bytes / group * group);
    for (i64 first = task.first, end = task.first + task.count; first < end; first += batch) {
      const i64 count = std::min(batch, end - first);
      const auto stored_a = left.read(first, count, backend_, buffers.a, buffers.scratch, buffer_bytes_);
      const auto stored_b = right.read(first, count, backend_, buffers.b, buffers.scratch, buffer_bytes_);
      const auto [of_a, of_b] = alike_rows(left.logical(), stored_a, right.logical(), stored_b);
      compare_rows(task, left, right, of_a, of_b, first, group, *buffers.comparer);
      if (options_.on_progress)
        options_.on_progress(static_cast<i64>(count * (left.stored_row_bytes() + right.stored_row_bytes())));
    }
  }

 private:
  /// Group by group, so that sums do not depend on how many rows were read together.
  static void compare_rows(DiffTask& task, const ItemRows& left, const ItemRows& right, std::span<const std::byte> of_a,
                           std::span<const std::byte> of_b, i64 first, i64 group, GroupComparer& comparer) {
    const i64 unit_a = counted_bytes(left.dtype()), unit_b = counted_bytes(right.dtype());
    const i64 step = group * left.elements();
    i64 begin = 0;
    for (const ElementDiff& found : comparer.compare(left.dtype(), of_a, right.dtype(), of_b, step)) {
      append(task.found, found);
      if (found.first >= 0 && !task.place) {
        const i64 index = begin + found.first;
        task.place = place_of(left, right, first * left.elements() + index,
                              of_a.subspan(static_cast<std::size_t>(index * unit_a)),
                              of_b.subspan(static_cast<std::size_t>(index * unit_b)));
      }
      if (found.differing > 0)
        for (i64 at = begin; at < begin + found.elements; at += left.elements())
          if (found.elements <= left.elements() || row_differs(left, right, of_a, of_b, at))
            add_rows(1, std::array{first + at / left.elements()}, task.differing_rows, task.first_rows);
      begin += found.elements;
    }
  }

  /// The row that begins at element `at`.
  static bool row_differs(const ItemRows& left, const ItemRows& right, std::span<const std::byte> of_a,
                          std::span<const std::byte> of_b, i64 at) {
    const auto row = [&](const ItemRows& rows, std::span<const std::byte> bytes) {
      const i64 unit = counted_bytes(rows.dtype()), begin = at * unit;
      const i64 size = std::min(rows.elements() * unit, static_cast<i64>(bytes.size()) - begin);
      return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    };
    return compare_elements(left.dtype(), row(left, of_a), right.dtype(), row(right, of_b)).differing > 0;
  }

  static ElementPlace place_of(const ItemRows& left, const ItemRows& right, i64 index, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
    const auto one_a = a.first(static_cast<std::size_t>(counted_bytes(left.dtype())));
    const auto one_b = b.first(static_cast<std::size_t>(counted_bytes(right.dtype())));
    return {index / std::max<i64>(1, left.elements()),
            index % std::max<i64>(1, left.elements()),
            bits_text(one_a),
            bits_text(one_b),
            number_text(left.dtype(), one_a),
            number_text(right.dtype(), one_b)};
  }

  const Model& a_;
  const Model& b_;
  std::span<const ItemPair> pairs_;
  const Backend& backend_;
  const ExecuteOptions& options_;
  i64 buffer_bytes_ = 0;
};

/// A tensor that is no matrix has rows as its last axis says.
void settle_place(ElementPlace& place, const Item& item) {
  if (item.matrix != nullptr) return;
  const auto& shape = item.other->shape;
  const i64 index = place.row * kOtherRowElements + place.column;
  const i64 bits = dtype_bits(item.other->dtype);
  const i64 cols = std::max<i64>(1, (shape.empty() ? 1 : shape.back()) * bits / (8 * counted_bytes(item.other->dtype)));
  place.row = index / cols;
  place.column = index % cols;
}

/// The layer of a pair, where its tensor has no role but lies in a layer: a scale of attention.
class PairLayers {
 public:
  PairLayers(const Model& a, const Model& b)
      : a_(a.source->inventory(), *a.recognition), b_(b.source->inventory(), *b.recognition) {}

  std::string of(const ItemPair& pair) const {
    const Item& any = pair.first != nullptr ? *pair.first : *pair.second;
    if (any.other == nullptr) return any.layer();
    return (pair.first != nullptr ? a_ : b_).of(any.other->name);
  }

 private:
  NeighbourLayers a_, b_;
};

/// The pair without its layer and what comparing its elements showed.
TensorDiff describe_pair(const Model& a, const Model& b, const ItemPair& pair) {
  const auto& [x, y] = pair;
  const Item& any = x != nullptr ? *x : *y;
  TensorDiff diff;
  diff.name = any.name();
  if (any.block != nullptr && any.block->set == ExpertSet::Routed) diff.expert = any.matrix->expert;
  if (x == nullptr || y == nullptr) diff.only_in = x != nullptr ? Side::A : Side::B;
  if (x != nullptr) {
    diff.tensor_a = a.source->inventory().tensors[x->tensor].name;
    diff.dtype_a = ItemRows::dtype_of(*x);
    diff.shape_a = shape_of(*x);
  }
  if (y != nullptr) {
    diff.tensor_b = b.source->inventory().tensors[y->tensor].name;
    diff.dtype_b = ItemRows::dtype_of(*y);
    diff.shape_b = shape_of(*y);
  }
  diff.has_numbers = comparable(pair) && has_numbers(diff.dtype_a);
  return diff;
}

bool is_unlike(const TensorDiff& diff) {
  return !diff.only_in && (diff.dtype_a != diff.dtype_b || diff.shape_a != diff.shape_b);
}

/// The larger, the further to the front: a kind, then a NaN in only one, which no size shows, then a size.
auto severity(const TensorDiff& diff) {
  const int kind = diff.only_in ? 3 : is_unlike(diff) ? 2 : diff.has_numbers ? 0 : 1;
  const ElementDiff elements = diff.elements.value_or(ElementDiff());
  return std::tuple(kind, elements.nan_in_one > 0, elements.max_abs, elements.differing);
}

auto severity(const LayerDiff& layer) {
  return std::tuple(layer.only_in_one, layer.unlike, layer.numbers.nan_in_one > 0, layer.numbers.max_abs,
                    layer.differing_elements);
}

class Summary {
 public:
  /// Adds a pair that was compared, or could not be.
  void add(TensorDiff diff) {
    LayerDiff& layer = layer_of(diff.layer);
    ++layer.tensors;
    if (diff.only_in) ++layer.only_in_one;
    if (is_unlike(diff)) ++layer.unlike;
    if (!diff.only_in) ++result_.compared;
    const ElementDiff elements = diff.elements.value_or(ElementDiff());
    layer.elements += elements.elements;
    layer.differing_elements += elements.differing;
    if (diff.has_numbers) append(layer.numbers, elements);
    if (!diff.only_in && !is_unlike(diff) && elements.differing == 0) return;
    ++layer.differing;
    if (diff.has_numbers) append(layer.changed, elements);
    result_.tensors.push_back(std::move(diff));
  }

  Diff finish(i64 bytes) {
    result_.bytes = bytes;
    result_.equal = result_.tensors.empty();
    for (LayerDiff& layer : layers_)
      if (layer.differing > 0)
        result_.layers.push_back(std::move(layer));
      else if (!layer.layer.empty())
        ++result_.equal_layers;
    const auto larger = [](const auto& x, const auto& y) { return severity(x) > severity(y); };
    std::stable_sort(result_.layers.begin(), result_.layers.end(), larger);
    std::stable_sort(result_.tensors.begin(), result_.tensors.end(), larger);
    return std::move(result_);
  }

 private:
  LayerDiff& layer_of(const std::string& label) {
    const auto [at, is_new] = index_.emplace(label, layers_.size());
    if (is_new) layers_.push_back({.layer = label});
    return layers_[at->second];
  }

  Diff result_;
  std::vector<LayerDiff> layers_;
  std::map<std::string, std::size_t> index_;
};

std::vector<ItemPair> chosen_pairs(const Model& a, const Model& b, const std::vector<Item>& left,
                                   const std::vector<Item>& right, const std::string& pattern) {
  std::vector<ItemPair> pairs = pair_models(a, b, left, right);
  if (pattern.empty()) return pairs;
  const auto is_other = [&](const ItemPair& pair) {
    const TensorDiff diff = describe_pair(a, b, pair);
    return !fits_glob(pattern, diff.name) && !fits_glob(pattern, diff.tensor_a) && !fits_glob(pattern, diff.tensor_b);
  };
  std::erase_if(pairs, is_other);
  if (pairs.empty())
    fail(ErrorCode::Usage, {},
         "--tensors: no tensor of either checkpoint fits '{}'; `glu-ckpt inspect PATH --tensors` lists them", pattern);
  return pairs;
}

}  // namespace

Diff diff_items(const Model& a, const Model& b, std::span<const ItemPair> pairs, const Backend& backend,
                const ExecuteOptions& options, WantsPair* is_read) {
  std::vector<DiffTask> tasks = make_tasks(a, b, pairs, is_read);
  const Differ differ(a, b, pairs, backend, options);
  std::vector<DiffBuffers> buffers(static_cast<std::size_t>(std::max(1, options.jobs)));
  parallel_for(tasks.size(), options.jobs, [&](std::size_t i, int worker) {
    DiffBuffers& own = buffers[static_cast<std::size_t>(worker)];
    if (!own.comparer) own.comparer = make_comparer(backend, worker);
    differ.run(tasks[i], own);
  });
  Summary summary;
  const PairLayers layers(a, b);
  i64 bytes = 0;
  auto task = tasks.begin();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    TensorDiff diff = describe_pair(a, b, pairs[i]);
    diff.layer = layers.of(pairs[i]);
    if (comparable(pairs[i])) diff.elements = ElementDiff();
    if (comparable(pairs[i]) && !is_read(pairs[i]))
      diff.elements->elements = pairs[i].first->bytes / counted_bytes(diff.dtype_a);
    for (; task != tasks.end() && task->pair == i; ++task) {
      append(*diff.elements, task->found);
      if (!diff.first && task->place) diff.first = std::move(task->place);
      if (pairs[i].first->matrix != nullptr)
        add_rows(task->differing_rows, task->first_rows, diff.differing_rows, diff.first_rows);
    }
    if (diff.first) settle_place(*diff.first, *pairs[i].first);
    if (pairs[i].first != nullptr && pairs[i].second != nullptr) bytes += pairs[i].first->bytes;
    summary.add(std::move(diff));
  }
  return summary.finish(bytes);
}

std::vector<ItemPair> pair_models(const Model& a, const Model& b, const std::vector<Item>& left,
                                  const std::vector<Item>& right) {
  std::vector<ItemPair> pairs = pair_items(left, right);
  const auto is_lone = [](const ItemPair& pair) { return pair.first == nullptr || pair.second == nullptr; };
  if (std::ranges::none_of(pairs, is_lone)) return pairs;
  std::map<std::string_view, ItemPair*> lone;
  for (ItemPair& pair : pairs)
    if (pair.second == nullptr) lone[a.source->inventory().tensors[pair.first->tensor].name] = &pair;
  for (ItemPair& pair : pairs) {
    if (pair.first != nullptr) continue;
    const auto found = lone.find(b.source->inventory().tensors[pair.second->tensor].name);
    if (found == lone.end() || (found->second->first->matrix != nullptr && pair.second->matrix != nullptr)) continue;
    found->second->second = std::exchange(pair.second, nullptr);
    lone.erase(found);
  }
  std::erase_if(pairs, [](const ItemPair& pair) { return pair.first == nullptr && pair.second == nullptr; });
  return pairs;
}

bool any_pair(const ItemPair&) { return true; }

bool hashed_unequal(const ItemPair& pair) { return !(pair.first->sum == pair.second->sum); }

i64 diff_items_bytes(std::span<const ItemPair> pairs, WantsPair* is_read) {
  i64 bytes = 0;
  for (const ItemPair& pair : pairs)
    if (comparable(pair) && is_read(pair))
      for (const Item* item : {pair.first, pair.second})
        bytes += item->matrix != nullptr ? item->matrix->rows * item->matrix->cols * item->matrix->element_bytes
                                         : item->bytes;
  return bytes;
}

Diff diff(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
          const std::string& pattern) {
  const std::vector<Item> left = list_items(a.source->inventory(), *a.recognition);
  const std::vector<Item> right = list_items(b.source->inventory(), *b.recognition);
  return diff_items(a, b, chosen_pairs(a, b, left, right, pattern), backend, options, any_pair);
}

i64 diff_bytes(const Model& a, const Model& b, const std::string& pattern) {
  const std::vector<Item> left = list_items(a.source->inventory(), *a.recognition);
  const std::vector<Item> right = list_items(b.source->inventory(), *b.recognition);
  return diff_items_bytes(chosen_pairs(a, b, left, right, pattern), any_pair);
}

}  // namespace glu_ckpt
