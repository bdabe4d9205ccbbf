#include "layout/expert_block.hpp"

#include <algorithm>
#include <set>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "layout/element_grid.hpp"
#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

/// A stored matrix of one expert.
struct MatrixShape {
  i64 rows = 0;
  i64 cols = 0;
  bool operator==(const MatrixShape&) const = default;
};

class BlockChecker {
 public:
  BlockChecker(ExpertBlock block, BlockParts parts, const BlockContext& context)
      : context_(context), inventory_(*context.inventory) {
    shape_.block = std::move(block);
    shape_.parts = std::move(parts);
    shape_.scale_rows = context.scale_rows;
  }

  BlockShape run() {
    shape_.block.axes = shape_.block.set == ExpertSet::Shared ? Axes::OutIn : context_.naming->axes;
    for (auto& [key, tensors] : shape_.parts) std::sort(tensors.begin(), tensors.end());
    find_codes();
    check_granularity();
    check_roles();
    find_num_experts();
    for (const Role role : {Role::GateUp, Role::Gate, Role::Up, Role::Down})
      if (weights_of(role) != nullptr) shape_.codes[role] = codes_of(role);
    for (const auto& [key, tensors] : shape_.parts) check_indices(key, tensors);
    check_weights();
    check_router();
    for (const auto& [key, tensors] : shape_.parts)
      if (!is_weight(std::get<TensorKind>(key))) check_companion(key, tensors);
    std::erase_if(shape_.parts, [&](const auto& part) { return foreign_.contains(std::get<TensorKind>(part.first)); });
    return std::move(shape_);
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }
  std::string label() const {
    return fmt::format("layer {} {} experts", layer_label(shape_.block), to_string(shape_.block.set));
  }
  const PartTensors* part(TensorKind kind, Role role) const {
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      if (const auto found = shape_.parts.find({kind, experts, role}); found != shape_.parts.end())
        return &found->second;
    return nullptr;
  }
  const PartTensors* weights_of(Role role) const { return part(shape_.block.codes, role); }
  std::span<const i64> shape_of(const TensorRef& ref) const { return layer_shape(shape_.block, ref); }
  /// The shape of a tensor of weights, with the bytes of gpt-oss's blocks on one axis.
  std::vector<i64> code_shape(const TensorRef& ref) const {
    const std::span<const i64> stored = shape_of(ref);
    std::vector<i64> shape(stored.begin(), stored.end());
    if (shape_.block.codes != TensorKind::Blocks || shape.size() < 2) return shape;
    const auto merged = checked_mul(shape[shape.size() - 2], shape.back());
    shape.pop_back();
    shape.back() = merged.value_or(0);
    return shape;
  }
  Axes weight_axes() const { return stored_axes(shape_.block.codes, shape_.block.codes, shape_.block.axes); }
  const TensorRef& any_tensor() const { return tensor(shape_.parts.begin()->second.front().second); }

  /// All weights of a block are stored as one kind. Codes beside weights are left to whoever knows them.
  void find_codes() {
    std::set<TensorKind> kinds;
    for (const auto& [key, tensors] : shape_.parts)
      if (const TensorKind kind = std::get<TensorKind>(key); is_weight(kind)) kinds.insert(kind);
    if (kinds.empty()) return;
    shape_.block.codes = *kinds.begin();
    const auto is_other = [&](const auto& part) {
      const TensorKind kind = std::get<TensorKind>(part.first);
      return is_weight(kind) && kind != shape_.block.codes;
    };
    if (shape_.block.codes == TensorKind::Weight) {
      check_not_mixed();
      std::erase_if(shape_.parts, is_other);
    }
    if (std::ranges::any_of(shape_.parts, is_other))
      fail(ErrorCode::NotSupported, {{}, any_tensor().name}, "{}: some of its weights are stored as '{}', some as '{}'",
           label(), words_of(*kinds.begin()).word, words_of(*kinds.rbegin()).word);
  }

  /// Quantized matrices beside unquantized ones: each is whole, so none of them is missing.
  void check_not_mixed() const {
    const auto is_fc1_form = [](Role a, Role b) { return a == Role::GateUp && (b == Role::Gate || b == Role::Up); };
    const auto has_weight = [&](Role role, i64 expert) {
      return std::ranges::any_of(shape_.parts, [&](const auto& part) {
        const auto [kind, experts, other] = part.first;
        return kind == TensorKind::Weight && (role == other || is_fc1_form(role, other) || is_fc1_form(other, role)) &&
               std::ranges::find(part.second, expert, &PartTensors::value_type::first) != part.second.end();
      });
    };
    for (const auto& [key, tensors] : shape_.parts) {
      const auto [kind, experts, role] = key;
      if (!is_weight(kind) || kind == TensorKind::Weight) continue;
      for (const auto& [expert, index] : tensors)
        if (!has_weight(role, expert))
          fail(ErrorCode::NotExact, {{}, tensor(index).name},
               "{}: '{}' holds codes, and other matrices of these experts are not quantized. Codes in tensors of their "
               "own ('{}') move only where all matrices of a layer's experts have them",
               label(), tensor(index).name, words_of(kind).word);
    }
  }

  /// The upstream rules differ on redundant sets, so neither set may be dropped silently.
  void check_granularity() {
    for (const auto& [key, tensors] : shape_.parts) {
      const auto [kind, experts, role] = key;
      if (experts == Experts::Indexed && shape_.parts.count({kind, Experts::Grouped, role}) > 0) {
        const TensorRef& grouped = tensor(shape_.parts.at({kind, Experts::Grouped, role}).front().second);
        fail(ErrorCode::RedundantKeys, {{}, grouped.name},
             "{}: both the grouped '{}' and indexed tensors such as '{}' are present. Megatron-LM's load hook leaves "
             "both sets and reads the one that its moe_single_grouped_{} flag names; TransformerEngine drops the "
             "other set. Remove the set that is not meant",
             label(), grouped.name, tensor(tensors.front().second).name, to_string(kind));
      }
      auto& mode = kind == TensorKind::Bias ? shape_.block.bias_experts : shape_.block.experts;
      mode = experts;
    }
    std::set<std::pair<TensorKind, Experts>> modes;
    for (const auto& [key, tensors] : shape_.parts) modes.insert({std::get<0>(key), std::get<1>(key)});
    for (const KindWords& words : kKindWords)
      if (modes.count({words.kind, Experts::Indexed}) + modes.count({words.kind, Experts::Grouped}) > 1)
        fail(ErrorCode::NotSupported, {{}, any_tensor().name}, "{}: some {} tensors are grouped and some indexed",
             label(), words.text);
  }

  void check_roles() {
    const auto has = [&](Role role) { return weights_of(role) != nullptr; };
    if (has(Role::GateUp) && (has(Role::Gate) || has(Role::Up)))
      fail(ErrorCode::RedundantKeys, {{}, tensor(weights_of(Role::GateUp)->front().second).name},
           "{}: FC1 is present both fused ('{}') and as separate gate and up tensors; remove one of the two", label(),
           tensor(weights_of(Role::GateUp)->front().second).name);
    shape_.block.fused = has(Role::GateUp);
    if (!has(Role::Down)) missing("FC2 (down)");
    if (!shape_.block.fused && !has(Role::Up)) missing(has(Role::Gate) ? "up" : "FC1 (gate and up)");
    if (!shape_.block.fused && !has(Role::Gate)) shape_.block.glu = {Glu::Kind::None, 0};
  }

  [[noreturn]] void missing(std::string_view what) const {
    fail(ErrorCode::PartMissing, {{}, any_tensor().name}, "{}: '{}' is there, but no {} weight", label(),
         any_tensor().name, what);
  }

  static bool is_indexed(const ExpertBlock& block) {
    return block.set == ExpertSet::Routed && block.experts == Experts::Indexed;
  }

  void find_num_experts() {
    ExpertBlock& block = shape_.block;
    block.num_experts = 1;
    if (block.set == ExpertSet::Shared) return;
    for (const auto& [key, tensors] : shape_.parts)
      if (std::get<Experts>(key) == Experts::Indexed)
        block.num_experts = std::max(block.num_experts, tensors.back().first + 1);
    if (block.experts == Experts::Grouped) block.num_experts = grouped_experts();
    if (!context_.num_experts || *context_.num_experts == block.num_experts) return;
    const bool extra = block.num_experts > *context_.num_experts;
    fail(extra ? ErrorCode::ExpertExtra : ErrorCode::ExpertMissing, {{}, any_tensor().name},
         "{}: {} experts are stored, such as '{}', but config.json says {} (num_experts, num_local_experts or "
         "n_routed_experts)",
         label(), block.num_experts, any_tensor().name, *context_.num_experts);
  }

  /// A router [E, H] beside the experts counts them too.
  void check_router() const {
    const ExpertBlock& block = shape_.block;
    if (block.set != ExpertSet::Routed || !context_.router_shape) return;
    const auto [experts, hidden] = *context_.router_shape;
    if (hidden != block.hidden_size || experts == block.num_experts) return;
    if (context_.shard && experts % block.num_experts == 0) return;
    const bool extra = block.num_experts > experts;
    fail(extra ? ErrorCode::ExpertExtra : ErrorCode::ExpertMissing, {{}, any_tensor().name},
         "{}: {} experts are stored, but the router beside them has {} rows{}", label(), block.num_experts, experts,
         context_.shard ? ", which is no multiple" : "");
  }

  /// E of a grouped block: the leading axis; for stacked [E * rows, cols] tensors what FC1 and FC2 agree
  /// on; for flat ones what the router's shape says.
  i64 grouped_experts() const {
    const TensorRef& down_ref = tensor(weights_of(Role::Down)->front().second);
    const PartTensors* first = weights_of(Role::GateUp);
    if (first == nullptr) first = weights_of(Role::Up);
    const TensorRef& fc1_ref = tensor(first->front().second);
    const std::vector<i64> fc1 = code_shape(fc1_ref);
    const std::vector<i64> down = code_shape(down_ref);
    for (const TensorRef* weight : {&fc1_ref, &down_ref})
      if (const std::vector<i64> shape = code_shape(*weight); shape.size() == 3) {
        if (shape[0] == 0) bad_shape(*weight, "at least one expert");
        return shape[0];
      }
    const bool stacked = fc1.size() == 2 && down.size() == 2 && weight_axes() == Axes::OutIn;
    if (stacked && fc1[1] > 0 && down[0] > 0 && down[0] % fc1[1] == 0) return down[0] / fc1[1];
    if (context_.router_shape && !context_.shard) return context_.router_shape->first;
    if (context_.num_experts) return *context_.num_experts;
    fail(ErrorCode::ExpertShape, {{}, fc1_ref.name},
         "{}: '{}' {} has no expert axis, and neither its FC2 nor a router weight says how many experts it holds",
         label(), fc1_ref.name, shape_text(fc1_ref.shape));
  }

  void check_indices(const BlockParts::key_type& key, const PartTensors& tensors) const {
    const auto [kind, experts, role] = key;
    if (shape_.block.set == ExpertSet::Shared || experts == Experts::Grouped) return;
    i64 expected = 0;
    for (const auto& [expert, index] : tensors) {
      if (expert != expected) break;
      ++expected;
    }
    if (expected == shape_.block.num_experts) return;
    const TensorRef& near = tensor(tensors.back().second);
    if (!is_weight(kind))
      fail(ErrorCode::BiasIncomplete, {{}, near.name}, "{}: '{}' is there, but expert {} of {} has no {}", label(),
           near.name, expected, shape_.block.num_experts, to_string(kind));
    // An index that only some parts have is one expert too many rather than one too few elsewhere.
    if (expected == static_cast<i64>(tensors.size()) && expected + 1 == shape_.block.num_experts && only_one_longer())
      fail(ErrorCode::ExpertExtra, {{}, near.name}, "{}: expert {} is present in part, but has no {} beside '{}'",
           label(), expected, to_string(role), near.name);
    fail(ErrorCode::ExpertMissing, {{}, near.name}, "{}: expert {} of {} has no {} tensor such as '{}'", label(),
         expected, shape_.block.num_experts, to_string(role), near.name);
  }

  /// Returns whether exactly one part holds the last expert.
  bool only_one_longer() const {
    i64 longest = 0;
    for (const auto& [key, tensors] : shape_.parts)
      if (tensors.back().first + 1 == shape_.block.num_experts) ++longest;
    return longest == 1 && shape_.parts.size() > 2;
  }

  /// The weights in an element of this part's tensors.
  ElementGrid codes_of(Role role) const {
    const TensorRef& ref = tensor(weights_of(role)->front().second);
    const TensorRef* scales = nullptr;
    for (const TensorKind kind : {TensorKind::PlainScale, TensorKind::Scales})
      if (const PartTensors* found = part(kind, role)) scales = &tensor(found->front().second);
    // DeepSeek-V4's bytes of two codes are I8.
    if (const PartTensors* found = part(TensorKind::Scale, role); found != nullptr && ref.dtype == Dtype::I8)
      scales = &tensor(found->front().second);
    const auto grid = code_grid(shape_.block.codes, ref, scales);
    if (!grid)
      fail(ErrorCode::NotSupported, {{}, ref.name}, "{}: '{}' is {} {}, which is no form of codes that is known here",
           label(), ref.name, dtype_name(ref.dtype), shape_text(ref.shape));
    return *grid;
  }

  /// Shape of one expert's matrix in [out, in] terms, whatever the storage.
  MatrixShape matrix_shape(const TensorRef& ref, bool grouped, const ElementGrid& codes) const {
    const MatrixShape stored = stored_matrix_shape(ref, grouped);
    const auto rows = checked_mul(stored.rows, codes.rows);
    const auto cols = checked_mul(stored.cols, codes.cols);
    return rows && cols ? MatrixShape{*rows, *cols} : MatrixShape{};
  }

  MatrixShape stored_matrix_shape(const TensorRef& ref, bool grouped) const {
    const std::vector<i64> all = code_shape(ref);
    std::span<const i64> shape = all;
    const i64 experts = shape_.block.num_experts;
    i64 experts_in_rows = 1;
    if (grouped && shape.size() == 3 && shape[0] == experts) {
      shape = shape.subspan(1);
    } else if (grouped && shape.size() == 2 && weight_axes() == Axes::OutIn && shape[0] % experts == 0) {
      experts_in_rows = experts;
    } else if (grouped) {
      return {};
    }
    if (shape.size() != 2 || shape[0] < experts_in_rows || shape[1] <= 0) return {};
    if (weight_axes() == Axes::InOut) return {shape[1], shape[0]};
    return {shape[0] / experts_in_rows, shape[1]};
  }

  [[noreturn]] void bad_shape(const TensorRef& ref, const std::string& expected) const {
    fail(
        ErrorCode::ExpertShape, {{}, ref.name}, "{}: '{}' has shape {}, expected {}", label(), ref.name,
        shape_text(ref.shape),
        expected + (shape_.block.stacked_layers > 0 ? fmt::format(" for each of {} layers", shape_.block.stacked_layers)
                                                    : ""));
  }

  void check_weights() {
    ExpertBlock& block = shape_.block;
    const bool indexed = is_indexed(block);
    const i64 slots = indexed ? block.num_experts : 1;
    for (const auto& [key, tensors] : shape_.parts) check_dtypes(tensors);
    if (flat_weights()) return take_flat_shapes();
    const PartTensors& downs = *weights_of(Role::Down);
    const ElementGrid& down_codes = shape_.codes.at(Role::Down);
    for (i64 e = 0; e < slots; ++e) {
      const TensorRef& down_ref = tensor(downs[static_cast<std::size_t>(e)].second);
      const MatrixShape down = matrix_shape(down_ref, grouped(), down_codes);
      if (down.rows <= 0) bad_shape(down_ref, expected_text("H", "F"));
      if (e == 0) block.hidden_size = down.rows;
      if (down.rows != block.hidden_size)
        bad_shape(down_ref, fmt::format("H = {} as in the other experts", block.hidden_size));
      shape_.intermediate.push_back(down.cols);
      for (const Role role : {Role::GateUp, Role::Gate, Role::Up})
        if (const PartTensors* tensors = weights_of(role))
          check_fc1(tensor((*tensors)[static_cast<std::size_t>(e)].second), role, down.cols, shape_.codes.at(role));
    }
    const i64 first = shape_.intermediate.front();
    const bool ragged = std::ranges::any_of(shape_.intermediate, [&](i64 f) { return f != first; });
    block.intermediate_size = ragged ? -1 : first;
    if (!indexed) shape_.intermediate.assign(static_cast<std::size_t>(block.num_experts), first);
  }

  bool grouped() const { return shape_.block.set == ExpertSet::Routed && shape_.block.experts == Experts::Grouped; }

  std::string expected_text(std::string_view out, std::string_view in) const {
    const bool out_in = weight_axes() == Axes::OutIn;
    return fmt::format("[{}{}, {}]", grouped() ? fmt::format("{}, ", shape_.block.num_experts) : "", out_in ? out : in,
                       out_in ? in : out);
  }

  void check_fc1(const TensorRef& ref, Role role, i64 intermediate, const ElementGrid& codes) {
    const MatrixShape fc1 = matrix_shape(ref, grouped(), codes);
    const i64 hidden = shape_.block.hidden_size;
    // The first expert's FC1 tells whether there is a gate; the others must agree.
    if (role == Role::GateUp && shape_.intermediate.size() == 1 && fc1 == MatrixShape{intermediate, hidden})
      shape_.block.glu = {Glu::Kind::None, 0};
    const bool gated = shape_.block.glu.kind != Glu::Kind::None;
    const i64 rows = role == Role::GateUp && gated ? 2 * intermediate : intermediate;
    if (fc1 == MatrixShape{rows, hidden}) return;
    blame_down(fc1, role, intermediate);
    bad_shape(ref,
              fmt::format("{} beside an FC2 with F = {}, H = {}",
                          expected_text(fmt::format("{}", rows), fmt::format("{}", hidden)), intermediate, hidden));
  }

  /// Refuses the FC2 where that is the odd one: the FC1s agree with each other, with the other experts, or with
  /// config.json.
  void blame_down(const MatrixShape& fc1, Role role, i64 intermediate) const {
    const std::size_t expert = shape_.intermediate.size() - 1;
    const i64 width = role == Role::GateUp && shape_.block.glu.kind != Glu::Kind::None ? fc1.rows / 2 : fc1.rows;
    if (fc1.cols != shape_.block.hidden_size || width == intermediate) return;
    const PartTensors* up = role == Role::Gate ? weights_of(Role::Up) : nullptr;
    const bool as_up =
        up != nullptr && matrix_shape(tensor((*up)[expert].second), grouped(), shape_.codes.at(Role::Up)) == fc1;
    const bool as_before = expert > 0 && shape_.intermediate.front() == width;
    const std::optional<i64> said = shape_.block.set == ExpertSet::Routed ? context_.expert_width : std::nullopt;
    if (said ? *said != width : !as_up && !as_before) return;
    bad_shape(tensor((*weights_of(Role::Down))[expert].second),
              fmt::format("{} beside an FC1 with F = {}, H = {}{}",
                          expected_text(fmt::format("{}", fc1.cols), fmt::format("{}", width)), width, fc1.cols,
                          said ? ", which is what config.json says" : ""));
  }

  bool flat_weights() const {
    if (!context_.naming->reads_flat || !grouped() || shape_.block.codes != TensorKind::Weight) return false;
    return shape_of(tensor(weights_of(Role::Down)->front().second)).size() == 1;
  }

  /// Flat [E * 2F * H] buffers: H from the router, F from FC2, and FC1 must agree.
  void take_flat_shapes() {
    ExpertBlock& block = shape_.block;
    const TensorRef& down = tensor(weights_of(Role::Down)->front().second);
    if (!context_.router_shape || block.axes != Axes::OutIn)
      bad_shape(down, "a router weight [E, H] beside it, which gives a flat tensor its shape");
    const i64 hidden = context_.router_shape->second;
    const i64 row = block.num_experts * hidden;
    const i64 size = shape_of(down)[0];
    if (row <= 0 || size <= 0 || size % row != 0) bad_shape(down, fmt::format("a multiple of E * H = {}", row));
    block.hidden_size = hidden;
    block.intermediate_size = size / row;
    shape_.intermediate.assign(static_cast<std::size_t>(block.num_experts), block.intermediate_size);
    for (const Role role : {Role::GateUp, Role::Gate, Role::Up}) {
      const PartTensors* tensors = weights_of(role);
      if (tensors == nullptr) continue;
      const TensorRef& fc1 = tensor(tensors->front().second);
      const i64 elements = checked_product(shape_of(fc1)).value_or(0);
      if (role == Role::GateUp && elements == row * block.intermediate_size)
        block.glu = {Glu::Kind::None, 0};
      else if (elements != row * block.intermediate_size * (role == Role::GateUp ? 2 : 1))
        bad_shape(fc1, fmt::format("E * F * H with E = {}, F = {}, H = {}", block.num_experts, block.intermediate_size,
                                   hidden));
    }
  }

  void check_dtypes(const PartTensors& tensors) const {
    const TensorRef& first = tensor(tensors.front().second);
    for (const auto& [expert, index] : tensors)
      if (tensor(index).dtype != first.dtype)
        fail(ErrorCode::ExpertDtype, {{}, tensor(index).name}, "{}: '{}' is {}, but '{}' is {}", label(),
             tensor(index).name, dtype_name(tensor(index).dtype), first.name, dtype_name(first.dtype));
  }

  /// Biases and scales: the same fusing as the weight, on all experts or on none, shapes to match.
  void check_companion(const BlockParts::key_type& key, const PartTensors& tensors) {
    const auto [kind, experts, role] = key;
    const TensorRef& first = tensor(tensors.front().second);
    if (weights_of(role) == nullptr && may_be_foreign(kind)) {
      foreign_.insert(kind);
      return;
    }
    if (weights_of(role) == nullptr)
      fail(ErrorCode::PartMissing, {{}, first.name}, "{}: '{}' has no weight beside it", label(), first.name);
    for (const auto& [expert, index] : tensors) check_companion_shape(kind, experts, role, tensor(index), expert);
    if (foreign_.contains(kind)) return;
    if ((role == Role::Gate && part(kind, Role::Up) == nullptr) ||
        (role == Role::Up && shape_.block.glu.kind != Glu::Kind::None && part(kind, Role::Gate) == nullptr))
      fail(ErrorCode::BiasIncomplete, {{}, first.name}, "{}: '{}' is there, but not its {} counterpart", label(),
           first.name, role == Role::Gate ? "up" : "gate");
    if (kind == TensorKind::PlainScale && part(TensorKind::Scale, role) != nullptr)
      fail(ErrorCode::RedundantKeys, {{}, first.name}, "{}: both '{}' and '{}' are scales of one weight", label(),
           first.name, tensor(part(TensorKind::Scale, role)->front().second).name);
  }

  /// Many formats call theirs like this one; those of another shape are left to whoever knows them.
  static bool may_be_foreign(TensorKind kind) { return kind != TensorKind::Bias && kind != TensorKind::Scale; }

  void check_companion_shape(TensorKind kind, Experts experts, Role role, const TensorRef& ref, i64 expert) {
    const i64 f = shape_.intermediate[static_cast<std::size_t>(expert)];
    const bool doubled = role == Role::GateUp && shape_.block.glu.kind != Glu::Kind::None;
    const i64 rows = role == Role::Down ? shape_.block.hidden_size : doubled ? 2 * f : f;
    const i64 cols = role == Role::Down ? f : shape_.block.hidden_size;
    const bool stacked = shape_.block.set == ExpertSet::Routed && experts == Experts::Grouped;
    const i64 count = stacked ? shape_.block.num_experts : 1;
    if (kind == TensorKind::Bias) {
      // TransformerEngine may hold [E, 1, rows].
      const auto is = [&](std::initializer_list<i64> shape) { return std::ranges::equal(shape_of(ref), shape); };
      const bool may_be_flat = count == 1 || context_.naming->reads_flat;
      const bool fits = (may_be_flat && is({count * rows})) || (stacked && (is({count, rows}) || is({count, 1, rows})));
      if (!fits) bad_shape(ref, count == 1 ? fmt::format("[{}]", rows) : fmt::format("[{}, {}]", count, rows));
      return;
    }
    const TensorRef& weight = tensor(weights_of(role)->front().second);
    const StoredWeight of{shape_.block.codes, weight.dtype,      {rows, cols},
                          doubled ? 2 : 1,    shape_.block.axes, context_.scale_rows};
    std::span<const i64> shape = shape_of(ref);
    const bool counted = !stacked || (!shape.empty() && shape.front() == count);
    if (counted && find_grid(kind, ref.dtype, shape.subspan(stacked ? 1 : 0), of)) return;
    if (may_be_foreign(kind))
      foreign_.insert(kind);
    else
      bad_scale_shape(ref, of, stacked ? count : 0);
  }

  /// `count` is 0 for an indexed tensor.
  [[noreturn]] void bad_scale_shape(const TensorRef& ref, const StoredWeight& weight, i64 count) const {
    const bool can_be_mx_scale = can_be_mx(weight.dtype, ref.dtype);
    if (weight.axes == Axes::InOut && can_be_mx_scale && is_mx_scale_of_stored(ref, weight, count))
      fail(ErrorCode::NotExact, {{}, ref.name},
           "'{}' holds scales of blocks of 32 of a transposed weight, which this version does not know; dequantize "
           "first",
           ref.name);
    std::string expected = shape_text(scale_shape(fp8_blocks(weight.block_rows), weight, weight.axes, count)) +
                           fmt::format(", one scale per {} x 128 block", weight.block_rows);
    if (can_be_mx_scale)
      expected += fmt::format(", or {}, one per 1 x 32 block; swizzled ones must be put in rows first",
                              shape_text(scale_shape(kMxGrids[0], weight, weight.axes, count)));
    bad_shape(ref, expected);
  }

  static std::vector<i64> scale_shape(const ElementGrid& grid, const StoredWeight& weight, Axes axes, i64 count) {
    std::vector<i64> shape =
        stored_shape(TensorKind::Scale, grid, stored_extents(grid, weight.extents, weight.parts), weight.parts, axes);
    if (count > 0) shape.insert(shape.begin(), count);
    return shape;
  }

  /// Returns whether these are MXFP8 scales of the transposed weight as it is stored.
  bool is_mx_scale_of_stored(const TensorRef& ref, StoredWeight weight, i64 count) const {
    std::swap(weight.extents.rows, weight.extents.cols);
    return std::ranges::any_of(kMxGrids, [&](const ElementGrid& grid) {
      return weight.extents.rows % grid.rows == 0 && weight.extents.cols % grid.cols == 0 &&
             std::ranges::equal(shape_of(ref), scale_shape(grid, weight, Axes::OutIn, count));
    });
  }

  const BlockContext& context_;
  const Inventory& inventory_;
  BlockShape shape_;
  /// Kinds whose tensors belong to another format.
  std::set<TensorKind> foreign_;
};

}  // namespace

std::span<const i64> layer_shape(const ExpertBlock& block, const TensorRef& ref) {
  return std::span(ref.shape).subspan(block.stacked_layers > 0 && !ref.shape.empty() ? 1 : 0);
}

BlockShape check_block(ExpertBlock block, BlockParts parts, const BlockContext& context) {
  return BlockChecker(std::move(block), std::move(parts), context).run();
}

bool axes_fit(const BlockParts& parts, const Inventory& inventory, Axes axes) {
  const auto find = [&](Role role) -> const TensorRef* {
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      if (const auto it = parts.find({TensorKind::Weight, experts, role}); it != parts.end())
        return &inventory.tensors[it->second.front().second];
    return nullptr;
  };
  const TensorRef* down = find(Role::Down);
  const TensorRef* fused = find(Role::GateUp);
  const TensorRef* fc1 = fused != nullptr ? fused : find(Role::Up);
  if (down == nullptr || fc1 == nullptr || down->shape.size() < 2 || fc1->shape.size() < 2) return true;
  // Codes that share a byte have the axes of their format.
  const auto has_scales = [&](TensorKind kind) {
    return std::ranges::any_of(parts, [&](const auto& part) { return std::get<TensorKind>(part.first) == kind; });
  };
  if (down->dtype == Dtype::U8 && has_scales(TensorKind::PlainScale)) return true;
  if (down->dtype == Dtype::I8 && has_scales(TensorKind::Scale)) return true;
  const auto out_in = [&](const TensorRef& ref) {
    MatrixShape shape{ref.shape[ref.shape.size() - 2], ref.shape.back()};
    if (axes == Axes::InOut) std::swap(shape.rows, shape.cols);
    return shape;
  };
  const MatrixShape second = out_in(*down);
  return out_in(*fc1) == MatrixShape{second.cols * (fused != nullptr ? 2 : 1), second.rows};
}

bool is_of_other_model(const ExpertBlock& block) {
  return block.stack != "decoder" && block.stack != "mtp" && !block.stack.starts_with("mtp.");
}

}  // namespace glu_ckpt
