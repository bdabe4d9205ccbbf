#include "support/position_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

namespace glu_ckpt::support {
namespace {

/// Element codes of a matrix by [row][column], in [out, in] order.
using Grid = std::vector<std::vector<u64>>;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  if (const auto at = text.find(what); at != std::string::npos) text.replace(at, what.size(), with);
  return text;
}

std::string spell_part(std::string_view part, TensorKind kind, i64 expert) {
  const char* words[][2] = {
      {"weight", ""}, {"bias", "_bias"}, {"weight_scale_inv", "_scale_inv"}, {"weight_scale", "_scale"}};
  const auto& word = words[static_cast<int>(kind)];
  std::string text = replaced(std::string(part), "{E}", fmt::format("{}", expert));
  return replaced(replaced(std::move(text), "{K}", word[0]), "{_K}", word[1]);
}

bool is_optimizer_state(const BlockSpec& block) { return block.state != "model"; }

Glu glu_of(const BlockSpec& block, const Spelling& spelling) {
  if (block.set == ExpertSet::Shared) return spelling.shared_glu;
  return is_optimizer_state(block) ? spelling.optimizer_glu.value_or(spelling.glu) : spelling.glu;
}

bool is_stacked(const BlockSpec& block, bool stacked) { return stacked && block.stack == "decoder"; }

std::string spell_prefix(const ModelSpec& model, const BlockSpec& block, const Naming& naming, bool stacked) {
  const bool appended = naming.mtp_follows_decoder && block.stack == "mtp" && model.num_hidden_layers.has_value();
  const std::string wanted = appended ? "decoder" : block.stack;
  const i64 layer = block.layer + (appended ? *model.num_hidden_layers : 0);
  for (const StackPrefix& stack : naming.stacks)
    if (stack.stack == wanted)
      return block.before + model.scope + std::string(stack.before) +
             (is_stacked(block, stacked) ? std::string() : fmt::format("{}{}", layer, stack.after));
  throw std::logic_error("no such stack");
}

/// element_code() of one matrix: what does not depend on the element is computed once.
class MatrixCode {
 public:
  MatrixCode(const BlockSpec& block, i64 expert, Role role, TensorKind kind, i64 element_bytes)
      : element_bytes_(element_bytes) {
    const auto u = [](i64 value) { return static_cast<u64>(value); };
    const u64 set = (block.set == ExpertSet::Shared ? 1u : 0u) | (block.stack == "mtp" ? 2u : 0u);
    const auto role_code = static_cast<u64>(role);
    const auto kind_code = static_cast<u64>(kind);
    if (element_bytes == 8) {
      constexpr std::string_view kStates[] = {"model", "param", "exp_avg", "exp_avg_sq"};
      const auto state = static_cast<u64>(std::ranges::find(kStates, block.state) - std::begin(kStates));
      base_ = state << 62 | u(block.layer) << 56 | set << 54 | u(expert) << 40 | role_code << 38 | kind_code << 36;
    } else if (element_bytes == 4) {
      base_ = u(block.layer) << 30 | (set & 1) << 29 | u(expert) << 22 | role_code << 20 | kind_code << 18;
    } else {
      // Shifts by a row, a column or a half change the count by numbers that are coprime to the modulus.
      base_ = ((u(block.layer) * 4 + set) * 131 + u(expert)) * 3 + role_code;
      base_ = base_ * 3 + kind_code;
    }
  }

  u64 operator()(i64 row, i64 col) const {
    const auto r = static_cast<u64>(row);
    const auto c = static_cast<u64>(col);
    if (element_bytes_ == 8) return base_ | r << 18 | c;
    if (element_bytes_ == 4) return (base_ | r << 9 | c) & 0xffffffffu;
    return ((base_ * 67 + r) * 71 + c) % (element_bytes_ == 2 ? 65521 : 251);
  }

 private:
  i64 element_bytes_;
  u64 base_ = 0;
};

class BlockBuilder {
 public:
  BlockBuilder(const ModelSpec& model, const BlockSpec& block, const Spelling& spelling, std::vector<MemoryTensor>& out)
      : block_(block),
        spelling_(spelling),
        naming_(naming_row(spelling.naming)),
        prefix_(spell_prefix(model, block, naming_, spelling.stacked)),
        glu_(glu_of(block, spelling)),
        out_(out) {}

  void run() {
    for (const TensorKind kind : {TensorKind::Weight, TensorKind::Bias, TensorKind::Scale}) {
      if ((kind == TensorKind::Bias && !block_.bias) || (kind == TensorKind::Scale && !block_.scales)) continue;
      if (block_.fc1_weights_only && kind != TensorKind::Weight) continue;
      if (!block_.gated)
        add_part(naming_.plain_fc1_is_fused ? Role::GateUp : Role::Up, kind);
      else if (glu_.kind == Glu::Kind::Split)
        for (const Role role : {Role::Gate, Role::Up}) add_part(role, kind);
      else
        add_part(Role::GateUp, kind);
      if (!block_.fc1_weights_only) add_part(Role::Down, kind);
    }
  }

 private:
  Dtype dtype_of(TensorKind kind) const { return kind == TensorKind::Scale ? block_.scale_spec.dtype : block_.dtype; }

  Grid logical(i64 expert, Role role, TensorKind kind) const {
    const i64 width = block_.widths[static_cast<std::size_t>(expert)];
    i64 rows = role == Role::Down ? block_.hidden : width;
    i64 cols = role == Role::Down ? width : block_.hidden;
    if (kind == TensorKind::Bias) cols = 1;
    if (kind == TensorKind::Scale) {
      rows = ceil_div(rows, block_.scale_spec.rows);
      cols = ceil_div(cols, block_.scale_spec.cols);
    }
    const int bits = dtype_bits(dtype_of(kind));
    if (bits < 8) cols = cols * bits / 8;
    const MatrixCode code(block_, expert, role, kind, std::max(1, bits / 8));
    Grid grid(static_cast<std::size_t>(rows), std::vector<u64>(static_cast<std::size_t>(cols)));
    for (i64 r = 0; r < rows; ++r) {
      u64* const row = grid[static_cast<std::size_t>(r)].data();
      for (i64 c = 0; c < cols; ++c) row[c] = element_code(block_, expert, role, kind, r, c, std::max(1, bits / 8));
    }
    return grid;
  }

  /// C = [gate; up], then I[p] = C[h * F + b * k + o] with b = p / 2k, h = (p / k) % 2, o = p % k.
  Grid fused(i64 expert, TensorKind kind) const {
    Grid contiguous = logical(expert, Role::Gate, kind);
    const std::size_t f = contiguous.size();
    for (auto& row : logical(expert, Role::Up, kind)) contiguous.push_back(std::move(row));
    if (glu_.kind != Glu::Kind::Interleaved) return contiguous;
    const auto k = static_cast<std::size_t>(kind == TensorKind::Scale ? glu_.block_rows / block_.scale_spec.rows
                                                                      : glu_.block_rows);
    Grid mixed;
    for (std::size_t p = 0; p < 2 * f; ++p) mixed.push_back(contiguous[(p / k) % 2 * f + p / (2 * k) * k + p % k]);
    return mixed;
  }

  Grid stored(i64 expert, Role role, TensorKind kind) const {
    if (role == Role::GateUp && block_.gated) return padded(fused(expert, kind), kind);
    return padded(logical(expert, role == Role::GateUp ? Role::Up : role, kind), kind);
  }

  Grid padded(Grid grid, TensorKind kind) const {
    if (kind != TensorKind::Scale) return grid;
    const auto up = [](std::size_t size, i64 multiple) {
      return static_cast<std::size_t>(ceil_div(static_cast<i64>(size), multiple) * multiple);
    };
    constexpr u64 kPadding = 0xfe;
    for (auto& row : grid) row.resize(up(row.size(), block_.scale_spec.col_multiple), kPadding);
    const std::vector<u64> blank(grid.front().size(), kPadding);
    grid.resize(up(grid.size(), block_.scale_spec.row_multiple), blank);
    return grid;
  }

  bool transposed(TensorKind kind) const {
    return block_.set == ExpertSet::Routed && naming_.axes == Axes::InOut && kind != TensorKind::Bias;
  }

  void append(const Grid& grid, TensorKind kind, std::vector<std::byte>& bytes) const {
    // Whole models pass through here in builds without optimization: by pointers, which no sanitizer slows down much.
    const auto element_bytes = static_cast<std::size_t>(std::max(1, dtype_bits(dtype_of(kind)) / 8));
    const std::size_t rows = grid.size();
    const std::size_t cols = grid.front().size();
    const std::size_t before = bytes.size();
    bytes.resize(before + rows * cols * element_bytes);
    std::byte* const to = bytes.data() + before;
    const bool turned = transposed(kind);
    for (std::size_t r = 0; r < rows; ++r) {
      const u64* const codes = grid[r].data();
      for (std::size_t c = 0; c < cols; ++c) {
        std::byte* const element = to + (turned ? c * rows + r : r * cols + c) * element_bytes;
        for (std::size_t i = 0; i < element_bytes; ++i) element[i] = static_cast<std::byte>(codes[c] >> (8 * i));
      }
    }
  }

  std::vector<i64> shape_of(const Grid& grid, TensorKind kind) const {
    const auto rows = static_cast<i64>(grid.size());
    i64 cols = static_cast<i64>(grid.front().size());
    const int bits = dtype_bits(dtype_of(kind));
    if (bits < 8) cols = cols * 8 / bits;
    if (kind == TensorKind::Bias) return {rows};
    return transposed(kind) ? std::vector<i64>{cols, rows} : std::vector<i64>{rows, cols};
  }

  TensorKind spelled(TensorKind kind) const {
    return kind == TensorKind::Scale && block_.scale_spec.plain ? TensorKind::PlainScale : kind;
  }

  void add_part(Role role, TensorKind kind) {
    const Experts wanted = kind == TensorKind::Bias ? spelling_.bias_experts : spelling_.experts;
    const Experts experts = block_.set == ExpertSet::Shared ? Experts::Indexed : wanted;
    const std::string_view part = part_template(part_names(naming_, block_.set, experts), role);
    const auto count = static_cast<i64>(block_.widths.size());
    for (i64 e = 0; e < count; ++e) {
      const Grid grid = stored(e, role, kind);
      if (experts == Experts::Indexed || e == 0)
        start_tensor(prefix_ + spell_part(part, spelled(kind), e) + block_.after, grid, kind,
                     experts == Experts::Grouped ? count : 0);
      append(grid, kind, out_[current_].bytes);
    }
  }

  /// Layers come in order, so those that share a tensor append to it.
  void start_tensor(const std::string& name, const Grid& grid, TensorKind kind, i64 experts) {
    const bool stacked = is_stacked(block_, spelling_.stacked);
    const auto found = std::find_if(out_.begin(), out_.end(), [&](const auto& tensor) { return tensor.name == name; });
    current_ = static_cast<std::size_t>(found - out_.begin());
    if (stacked && found != out_.end()) {
      ++found->shape[0];
      return;
    }
    current_ = out_.size();
    std::vector<i64> shape = shape_of(grid, kind);
    if (experts > 0) shape.insert(shape.begin(), experts);
    if (stacked) shape.insert(shape.begin(), 1);
    out_.push_back({name, dtype_of(kind), shape, {}});
  }

  const BlockSpec& block_;
  const Spelling& spelling_;
  const Naming& naming_;
  std::string prefix_;
  Glu glu_;
  std::vector<MemoryTensor>& out_;
  std::size_t current_ = 0;
};

std::string place_text(u64 code, std::size_t element_bytes) {
  const auto field = [&](int shift, int bits) { return (code >> shift) & ((u64{1} << bits) - 1); };
  constexpr std::string_view kRoles[] = {"gate", "up", "down", "gate_up"};
  constexpr std::string_view kKinds[] = {"weight", "bias", "scale", "?"};
  if (element_bytes == 8)
    return fmt::format("layer {} set {} expert {} {} {} [{}, {}]", field(56, 8), field(54, 2), field(40, 14),
                       kRoles[field(38, 2)], kKinds[field(36, 2)], field(18, 18), field(0, 18));
  if (element_bytes == 4)
    return fmt::format("layer {} set {} expert {} {} {} [{}, {}]", field(30, 2), field(29, 1), field(22, 7),
                       kRoles[field(20, 2)], kKinds[field(18, 2)], field(9, 9), field(0, 9));
  return fmt::format("{:#x}", code);
}

std::string first_difference(const MemoryTensor& expected, const MemoryTensor& actual) {
  const auto size = static_cast<std::size_t>(std::max(1, dtype_bits(expected.dtype) / 8));
  const auto code = [&](const MemoryTensor& tensor, std::size_t element) {
    u64 value = 0;
    for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<u64>(tensor.bytes[element * size + i]) << (8 * i);
    return value;
  };
  for (std::size_t i = 0; i < expected.bytes.size() / size; ++i)
    if (code(expected, i) != code(actual, i))
      return fmt::format("'{}' {}: element {} is {}, expected {}", expected.name, shape_text(expected.shape), i,
                         place_text(code(actual, i), size), place_text(code(expected, i), size));
  return {};
}

}  // namespace

const Naming& naming_row(const std::string& name) {
  const Naming* naming = find_naming(name);
  if (naming == nullptr) throw std::logic_error("no naming " + name);
  return *naming;
}

std::string Spelling::describe() const {
  return fmt::format("{} {} (bias {}) {} shared {} optimizer {}{}", naming, to_string(experts), to_string(bias_experts),
                     to_string(glu), to_string(shared_glu), to_string(optimizer_glu.value_or(glu)),
                     stacked ? " stacked" : "");
}

std::vector<i64> widths(i64 count, i64 width) { return std::vector<i64>(static_cast<std::size_t>(count), width); }

u64 element_code(const BlockSpec& block, i64 expert, Role role, TensorKind kind, i64 row, i64 col, i64 element_bytes) {
  return MatrixCode(block, expert, role, kind, element_bytes)(row, col);
}

void add_states(ModelSpec& model, const std::vector<std::string>& states) {
  const std::vector<BlockSpec> weights = model.blocks;
  for (const std::string& state : states)
    for (BlockSpec block : weights) {
      block.state = state;
      block.before = fmt::format("optimizer.state.{}.", state);
      block.dtype = Dtype::F64;
      model.blocks.push_back(block);
    }
}

std::vector<MemoryTensor> build(const ModelSpec& model, const Spelling& spelling) {
  std::vector<MemoryTensor> tensors;
  for (const BlockSpec& block : model.blocks) BlockBuilder(model, block, spelling, tensors).run();
  tensors.insert(tensors.end(), model.others.begin(), model.others.end());
  return tensors;
}

Record record_of(const ModelSpec& model, const Spelling& spelling) {
  const bool gated = model.blocks.front().gated;
  Record record{{"version", "test"},
                {"naming", spelling.naming},
                {"experts", std::string(to_string(spelling.experts))},
                {"glu", gated ? to_string(spelling.glu) : "none"}};
  if (spelling.optimizer_glu) record["optimizer_glu"] = to_string(*spelling.optimizer_glu);
  for (const BlockSpec& block : model.blocks)
    if (block.set == ExpertSet::Shared) record["shared_glu"] = gated ? to_string(spelling.shared_glu) : "none";
  if (model.num_hidden_layers) record["num_hidden_layers"] = fmt::format("{}", *model.num_hidden_layers);
  return record;
}

MemorySource make_source(const ModelSpec& model, const Spelling& spelling) {
  return MemorySource(build(model, spelling), {}, record_of(model, spelling));
}

::testing::AssertionResult same_tensors(const std::vector<MemoryTensor>& expected,
                                        const std::vector<MemoryTensor>& actual) {
  std::map<std::string, const MemoryTensor*> by_name;
  for (const MemoryTensor& tensor : actual)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return ::testing::AssertionFailure() << "'" << tensor.name << "' is there twice";
  for (const MemoryTensor& want : expected) {
    const auto found = by_name.find(want.name);
    if (found == by_name.end()) return ::testing::AssertionFailure() << "'" << want.name << "' is missing";
    const MemoryTensor& have = *found->second;
    if (have.dtype != want.dtype || have.shape != want.shape || have.bytes.size() != want.bytes.size())
      return ::testing::AssertionFailure()
             << "'" << want.name << "' is " << dtype_name(have.dtype) << shape_text(have.shape) << ", expected "
             << dtype_name(want.dtype) << shape_text(want.shape);
    if (have.bytes != want.bytes) return ::testing::AssertionFailure() << first_difference(want, have);
    by_name.erase(found);
  }
  if (!by_name.empty()) return ::testing::AssertionFailure() << "'" << by_name.begin()->first << "' is too much";
  return ::testing::AssertionSuccess();
}

std::vector<MemoryTensor> other_tensors() {
  std::vector<MemoryTensor> tensors{{"embed.weight", Dtype::BF16, {7, 3}, {}},
                                    {"model.layers.0.self_attn.q_proj.weight", Dtype::F32, {5, 2}, {}},
                                    {"model.layers.0.experts_norm.weight10", Dtype::F8_E4M3, {11}, {}},
                                    {"model.layers.0.experts_norm.weight2", Dtype::F8_E4M3, {13}, {}},
                                    {"step", Dtype::I64, {}, {}},
                                    {"empty", Dtype::F16, {0, 4}, {}},
                                    {"packed", Dtype::F4, {3, 6}, {}}};
  unsigned value = 1;
  for (MemoryTensor& tensor : tensors)
    for (i64 i = 0; i < tensor_bytes(tensor.dtype, tensor.shape); ++i)
      tensor.bytes.push_back(static_cast<std::byte>(value = value * 37 % 251));
  return tensors;
}

}  // namespace glu_ckpt::support
