#include "model/optimizer_order.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/layout_table.hpp"
#include "layout/optimizer_names.hpp"

namespace glu_ckpt {
namespace {

i64 block_rows(const Glu& glu, i64 intermediate) {
  return glu.kind == Glu::Kind::Interleaved ? glu.block_rows : intermediate;
}

/// Returns all divisors of n >= 1, ascending.
std::vector<i64> divisors(i64 n) {
  std::vector<i64> found;
  for (i64 d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    found.push_back(d);
    if (d != n / d) found.push_back(n / d);
  }
  std::ranges::sort(found);
  return found;
}

/// Gate and up as two tensors are the halves of a contiguous FC1.
Glu plain(const Glu& glu) { return glu.kind == Glu::Kind::Split ? Glu{Glu::Kind::Contiguous, 0} : glu; }

std::optional<Glu> only_one(const std::vector<Glu>& found) {
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

}  // namespace

i64 matching_row(const OptimizerOrders& orders, i64 intermediate, i64 row) {
  const i64 from = block_rows(orders.weights, intermediate);
  const i64 to = block_rows(orders.states, intermediate);
  const i64 half = row / from % 2;
  const i64 logical = row / (2 * from) * from + row % from;
  return logical / to * 2 * to + half * to + logical % to;
}

std::vector<i64> sampled_rows(i64 intermediate) {
  constexpr i64 kSpread = 8;
  std::vector<i64> rows = divisors(intermediate);
  for (i64 i = 0; i < kSpread; ++i) rows.push_back(i * (2 * intermediate - 1) / (kSpread - 1));
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::vector<Glu> possible_orders(i64 width) {
  std::vector<Glu> orders{{Glu::Kind::Contiguous, 0}};
  for (const i64 k : divisors(width))
    if (k < width) orders.push_back({Glu::Kind::Interleaved, k});
  return orders;
}

OrderEvidence judge_orders(const OptimizerOrders& claimed, const std::vector<Glu>& possible_weights,
                           const std::vector<Glu>& possible_states,
                           const std::function<bool(const OptimizerOrders&)>& agrees) {
  OrderEvidence evidence;
  if (agrees(claimed)) {
    evidence.kind = OrderEvidence::Kind::Agrees;
    return evidence;
  }
  std::vector<Glu> states;
  std::vector<Glu> weights;
  for (const Glu& other : possible_states)
    if (plain(other) != plain(claimed.states) && agrees({claimed.weights, other})) states.push_back(other);
  for (const Glu& other : possible_weights)
    if (plain(other) != plain(claimed.weights) && agrees({other, claimed.states})) weights.push_back(other);
  evidence.states = only_one(states);
  evidence.weights = only_one(weights);
  if (evidence.states || evidence.weights) evidence.kind = OrderEvidence::Kind::Contradicts;
  return evidence;
}

namespace {

using Bytes = std::vector<std::byte>;

/// The most columns that are read of one row. No model is wider, and a header may claim any width.
constexpr i64 kMaxColumns = 16384;
/// The most columns where a row's elements do not lie side by side, so that each costs a read.
constexpr i64 kMaxStridedColumns = 64;
/// The most bytes that are read of all rows of a checkpoint. A layer with H = 7168 and F = 2048 takes 2 MB.
constexpr i64 kMostSampledBytes = i64{512} << 20;

/// FC1 of one expert as it is stored: 2F rows, F in each of two tensors or all in one.
struct StoredFc1 {
  Dtype dtype = Dtype::U8;
  i64 intermediate = 0;
  i64 cols = 0;
  i64 element_bytes = 1;
  i64 row_step = 0;
  i64 col_step = 0;
  /// The tensors of rows 0 and F, and the first byte of each in it.
  std::size_t tensors[2] = {};
  i64 offsets[2] = {};

  i64 sampled_cols() const { return std::min(cols, col_step == element_bytes ? kMaxColumns : kMaxStridedColumns); }
};

const Matrix* find_weight(const ExpertBlock& block, i64 expert, Role role) {
  const auto found = std::ranges::find_if(block.matrices, [&](const Matrix& matrix) {
    return matrix.kind == TensorKind::Weight && matrix.expert == expert && matrix.role == role;
  });
  return found == block.matrices.end() ? nullptr : &*found;
}

/// Returns nothing where a state has no FC1, or nobody knows its order.
std::optional<StoredFc1> find_fc1(const ExpertBlock& block, i64 expert) {
  const Matrix* gate = find_weight(block, expert, Role::Gate);
  const Matrix* up = find_weight(block, expert, Role::Up);
  if (gate == nullptr || up == nullptr) return std::nullopt;
  // The gate's first row is stored first in every order.
  StoredFc1 fc1{gate->dtype,
                gate->rows,
                gate->cols,
                gate->element_bytes,
                gate->place.row_step,
                gate->place.col_step,
                {gate->tensor, gate->tensor},
                {gate->place.offset, 0}};
  const i64 half_bytes = gate->rows * gate->place.row_step;
  fc1.offsets[1] = gate->place.offset + half_bytes;
  if (gate->tail) {
    fc1.tensors[1] = gate->tail->tensor;
    fc1.offsets[1] = gate->tail->place.offset + half_bytes;
  } else if (!block.fused) {
    fc1.tensors[1] = up->tensor;
    fc1.offsets[1] = up->place.offset;
  }
  return fc1;
}

class RowReader {
 public:
  explicit RowReader(const Source& source) : source_(source) {}

  /// The first `cols` elements of a stored row.
  Bytes read(const StoredFc1& fc1, i64 row, i64 cols) {
    const std::size_t half = row < fc1.intermediate ? 0 : 1;
    const i64 begin = fc1.offsets[half] + (half == 0 ? row : row - fc1.intermediate) * fc1.row_step;
    Bytes bytes(static_cast<std::size_t>(cols * fc1.element_bytes));
    bytes_read_ += cols * fc1.element_bytes;
    const bool adjacent = fc1.col_step == fc1.element_bytes;
    const std::size_t run = adjacent ? bytes.size() : static_cast<std::size_t>(fc1.element_bytes);
    for (std::size_t at = 0; at < bytes.size(); at += run)
      source_.read(fc1.tensors[half], begin + static_cast<i64>(at / run) * fc1.col_step,
                   std::span(bytes).subspan(at, run));
    return bytes;
  }

  i64 bytes_read() const { return bytes_read_; }

 private:
  const Source& source_;
  i64 bytes_read_ = 0;
};

/// Rows of one expert's weights that no other sampled row is equal to, and where to find their masters.
class ExpertSample {
 public:
  ExpertSample(const StoredFc1& weights, const StoredFc1& states, RowReader& reader)
      : states_(states), weights_dtype_(weights.dtype), reader_(reader) {
    cols_ = std::min(weights.sampled_cols(), states.sampled_cols());
    std::vector<Row> rows;
    for (const i64 row : sampled_rows(weights.intermediate)) rows.emplace_back(row, reader.read(weights, row, cols_));
    for (const Row& row : rows)
      if (std::ranges::count(rows, row.second, &Row::second) == 1) rows_.push_back(row);
  }

  i64 rows() const { return static_cast<i64>(rows_.size()); }

  /// Reads up to the first row that does not fit.
  bool agrees(const OptimizerOrders& orders) const {
    return std::ranges::all_of(rows_, [&](const Row& row) {
      const i64 there = matching_row(orders, states_.intermediate, row.first);
      return rounds_to(reader_.read(states_, there, cols_), states_.dtype, row.second, weights_dtype_);
    });
  }

 private:
  /// A stored row's number and its bytes.
  using Row = std::pair<i64, Bytes>;

  StoredFc1 states_;
  Dtype weights_dtype_;
  RowReader& reader_;
  i64 cols_ = 0;
  std::vector<Row> rows_;
};

class OptimizerOrderChecker {
 public:
  OptimizerOrderChecker(const Model& model, const std::string& option_prefix)
      : recognition_(*model.recognition),
        source_(*model.source),
        option_prefix_(option_prefix),
        reader_(*model.source) {}

  OptimizerCheck run() {
    for (const ExpertBlock& state : recognition_.blocks) {
      if (!state.is_optimizer_state() || !is_master_weight(state.state)) continue;
      if (const ExpertBlock* weights = weights_of(state)) check(*weights, state);
    }
    return result_;
  }

 private:
  /// The weights of the same layer: under the same scope, or the only ones of the same shard.
  const ExpertBlock* weights_of(const ExpertBlock& state) const {
    const ExpertBlock* found = nullptr;
    int candidates = 0;
    for (const ExpertBlock& block : recognition_.blocks) {
      if (block.is_optimizer_state() || block.stack != state.stack || block.layer != state.layer ||
          block.set != state.set)
        continue;
      if (block.scope == state.scope) return &block;
      if (shard_folder(block.scope) != shard_folder(state.scope)) continue;
      found = &block;
      ++candidates;
    }
    return candidates == 1 ? found : nullptr;
  }

  void check(const ExpertBlock& weights, const ExpertBlock& state) {
    std::vector<ExpertSample> samples;
    i64 width = 0;
    std::vector<i64> experts{0};
    if (weights.num_experts > 1) experts.push_back(weights.num_experts - 1);
    for (const i64 expert : experts) {
      const auto fc1 = find_fc1(weights, expert);
      const auto states = find_fc1(state, expert);
      if (!fc1 || !states || !can_round(states->dtype, fc1->dtype)) return;
      if (reader_.bytes_read() >= kMostSampledBytes) {
        ++result_.unread;
        return;
      }
      width = std::gcd(width, fc1->intermediate);
      samples.emplace_back(*fc1, *states, reader_);
    }
    i64 rows = 0;
    for (const ExpertSample& sample : samples) rows += sample.rows();
    const OptimizerOrders claimed{weights.glu, state.glu};
    const OrderEvidence evidence =
        judge_orders(claimed, orders_of(weights, width), orders_of(state, width), [&](const OptimizerOrders& orders) {
          return rows > 0 && std::ranges::all_of(samples, [&](const auto& sample) { return sample.agrees(orders); });
        });
    if (evidence.kind == OrderEvidence::Kind::Contradicts) refuse(claimed, state, evidence, rows);
    const bool agrees = evidence.kind == OrderEvidence::Kind::Agrees;
    ++(agrees ? result_.agreeing : result_.undecided);
    if (agrees) result_.rows += rows;
  }

  /// Two tensors can hold other rows than gate and up only where the naming cuts FC1 by position.
  std::vector<Glu> orders_of(const ExpertBlock& block, i64 width) const {
    if (!block.fused && !recognition_.naming->halves_by_position) return {block.glu};
    return possible_orders(width);
  }

  [[noreturn]] void refuse(const OptimizerOrders& claimed, const ExpertBlock& state, const OrderEvidence& evidence,
                           i64 rows) const {
    std::string found;
    if (evidence.states)
      found = fmt::format("{} beside weights in {}", to_string(*evidence.states), to_string(claimed.weights));
    if (evidence.weights)
      found += fmt::format("{}{} beside weights in {}", found.empty() ? "" : ", or in ", to_string(claimed.states),
                           to_string(*evidence.weights));
    const std::string& tensor = source_.inventory().tensors[find_weight(state, 0, Role::Gate)->tensor].name;
    fail(ErrorCode::GluConflict, {{}, tensor},
         "layer {}, {} experts: the master weights '{}' are taken to stand in {} beside weights in {}, but in {} "
         "sampled rows they round to the weights only if they stand in {}. {}",
         layer_label(state), to_string(state.set), tensor, to_string(claimed.states), to_string(claimed.weights), rows,
         found, advice(claimed, state, evidence));
  }

  std::string advice(const OptimizerOrders& claimed, const ExpertBlock& state, const OrderEvidence& evidence) const {
    // One answer speaks of both, so they would fit if they stood in one order.
    if (state.set == ExpertSet::Shared)
      return "Shared experts whose states have an order of their own cannot be converted; convert --optimizer drop "
             "leaves the states out";
    const bool recorded = source_.record().contains(evidence.states ? "optimizer_glu" : "glu");
    const std::string stale = recorded ? ". The record says otherwise: remove it first" : "";
    if (!evidence.states)
      return fmt::format("Say {0}glu {1} {0}optimizer-glu {2}{3}", option_prefix_, to_string(*evidence.weights),
                         to_string(claimed.states), stale);
    return fmt::format("Say {0}optimizer-glu {1}, or another {0}glu if the weights' order is what is wrong{2}",
                       option_prefix_, to_string(*evidence.states), stale);
  }

  const Recognition& recognition_;
  const Source& source_;
  const std::string& option_prefix_;
  RowReader reader_;
  OptimizerCheck result_;
};

}  // namespace

OptimizerCheck check_optimizer_order(const Model& model, const std::string& option_prefix) {
  return OptimizerOrderChecker(model, option_prefix).run();
}

}  // namespace glu_ckpt
