#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "core/fail.hpp"
#include "layout/element_grid.hpp"
#include "layout/expert_block.hpp"
#include "layout/key_pattern.hpp"
#include "layout/placement.hpp"
#include "layout/tensor_kinds.hpp"
#include "plan/draft_outputs.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

bool is_fused(const Glu& glu, const Naming& naming) {
  if (glu.kind == Glu::Kind::None) return naming.plain_fc1_is_fused;
  return glu.kind != Glu::Kind::Split;
}

/// Rows of the stored tensor, per expert, that `matrix` ends up in.
i64 stored_rows(const Matrix& matrix, Role stored_as) {
  const bool half = stored_as == Role::GateUp && (matrix.role == Role::Gate || matrix.role == Role::Up);
  return half ? 2 * matrix.rows : matrix.rows;
}

constexpr std::size_t kRoles = 4;
static_assert(static_cast<std::size_t>(Role::GateUp) < kRoles);

/// The entry of an expert, in a list that grows as far as it is asked for.
template <typename Value>
Value& at_expert(std::vector<Value>& list, i64 expert) {
  const auto index = static_cast<std::size_t>(expert);
  if (index >= list.size()) list.resize(index + 1);
  return list[index];
}

/// Builds the outputs of one block: one per (role as stored, kind) and, if indexed, expert.
class BlockWriter {
 public:
  BlockWriter(const ExpertBlock& block, const BlockTarget& target, const Inventory& inventory, DraftOutputs& outputs)
      : block_(block), target_(target), inventory_(inventory), outputs_(outputs) {
    for (const Matrix& matrix : block_.matrices)
      if (is_weight(matrix.kind))
        at_expert(weight_rows_[static_cast<std::size_t>(matrix.role)], matrix.expert) = matrix.rows * matrix.grid.rows;
  }

  void run() {
    for (const Matrix& matrix : block_.matrices) add(matrix);
  }

 private:
  Role stored_role(Role role) const {
    if (role != Role::Gate && role != Role::Up) return role;
    if (block_.glu.kind == Glu::Kind::None) return target_.naming->plain_fc1_is_fused ? Role::GateUp : Role::Up;
    return is_fused(target_.glu, *target_.naming) && !target_.halved ? Role::GateUp : role;
  }

  bool is_grouped(TensorKind kind) const {
    if (block_.set == ExpertSet::Shared) return false;
    return (kind == TensorKind::Bias ? target_.bias_experts : target_.experts) == Experts::Grouped;
  }

  void add(const Matrix& from) {
    const bool grouped = is_grouped(from.kind);
    const Role role = stored_role(from.role);
    if (target_.halved && role != Role::Down) return add_halved(from, grouped);
    const std::size_t output = output_for(from, role, grouped);
    const Matrix to = place(from, role, grouped, outputs_.list[output].name);
    const i64 padding_cols = padded(from.grid, {from.rows, from.cols}).cols - from.cols;
    Matrix wide_from = from;
    Matrix wide_to = to;
    wide_from.cols += padding_cols;
    wide_to.cols += padding_cols;
    append_matrix_moves(wide_from, wide_to, outputs_.list[output].moves);
    add_padding_rows(wide_from, wide_to, role, outputs_.list[output]);
  }

  /// The rows behind the last one of padded scales. They hold nothing, and are moved so that a plan reads and writes
  /// every byte; where FC1 is fused or cut, there would be more or less of them.
  void add_padding_rows(const Matrix& from, const Matrix& to, Role role, DraftOutput& output) const {
    const i64 have = padding_rows(from, shares_tensor(block_, from));
    if (const i64 want = padding_rows(to, role == Role::GateUp && is_gated(to)); have != want)
      fail(ErrorCode::NotExact, {{}, inventory_.tensors[from.tensor].name},
           "'{}': scales padded to a multiple of {} rows, of which {} hold no scale; '{}' would have {} of them. Store "
           "the scales without padding, or keep gate and up as they are",
           inventory_.tensors[from.tensor].name, from.grid.row_multiple, have, output.name, want);
    if (have == 0) return;
    Move move;
    move.src = from.tensor;
    const i64 first = from.rows * (shares_tensor(block_, from) ? 2 : 1);
    move.src_offset = from.place.offset + first * from.place.row_step;
    move.dst_offset = to.place.offset + first * to.place.row_step;
    move.run_bytes = have * from.place.row_step;
    output.moves.push_back(move);
  }

  /// Returns whether a fused FC1 holds this matrix and another.
  bool is_gated(const Matrix& matrix) const {
    return (matrix.role == Role::Gate || matrix.role == Role::Up) && block_.glu.kind != Glu::Kind::None;
  }

  /// Gate and up each lie in both halves.
  void add_halved(const Matrix& from, bool grouped) {
    const std::size_t halves[] = {output_for(from, Role::Gate, grouped), output_for(from, Role::Up, grouped)};
    const StoredPart half{axes_of(from.kind), from.rows, from.cols, from.element_bytes, grouped ? from.expert : 0, 0};
    const i64 block_rows = fused_block_rows(target_.glu, from.rows, from.grid, outputs_.list[halves[0]].name);
    HalvedPlaces places = place_halved(half, from.role, block_rows);
    places.first.offset += layer_offset(from, grouped, from.rows);
    places.tail.offset += layer_offset(from, grouped, from.rows);
    Matrix to = from;
    to.tensor = 0;
    to.place = places.first;
    to.tail = std::make_shared<MatrixTail>(MatrixTail{places.tail_row, 1, places.tail});
    for (const Move& move : matrix_moves(from, to)) outputs_.list[halves[move.dst]].moves.push_back(move);
  }

  std::size_t output_for(const Matrix& from, Role role, bool grouped) {
    const i64 expert = grouped ? 0 : from.expert;
    std::size_t& number = at_expert(numbers_[part_index(role, from.kind)], expert);
    if (number == 0) number = find_or_make(from, role, grouped) + 1;
    const DraftOutput& output = outputs_.list[number - 1];
    if (output.dtype != from.dtype)
      fail(ErrorCode::NotExact, {{}, inventory_.tensors[from.tensor].name},
           "{}: gate is {} and up is {}; one tensor cannot hold both", output.name, dtype_name(output.dtype),
           dtype_name(from.dtype));
    return number - 1;
  }

  std::size_t find_or_make(const Matrix& from, Role role, bool grouped) {
    DraftOutput output = make_output(from, role, grouped);
    if (target_.stacked_layers > 0)
      if (const auto other = outputs_.shared.find(output.name); other != outputs_.shared.end()) return other->second;
    if (target_.stacked_layers > 0) outputs_.shared.emplace(output.name, outputs_.list.size());
    outputs_.list.push_back(std::move(output));
    return outputs_.list.size() - 1;
  }

  Matrix place(const Matrix& from, Role role, bool grouped, const std::string& name) const {
    Matrix to = from;
    to.tail.reset();
    const bool gated = role == Role::GateUp && is_gated(from);
    const i64 rows = gated ? stored_rows(from, role) : from.rows;
    const MatrixExtents stored = padded(from.grid, {rows, from.cols});
    const i64 slot = grouped ? from.expert : 0;
    const StoredPart part{axes_of(from.kind), rows, stored.cols, from.element_bytes, slot, stored.rows - rows};
    // Scales and words count blocks of rows, so K is checked against the weight's F.
    const i64 intermediate = from.kind == TensorKind::Bias ? from.rows : weight_rows(from);
    to.place =
        place_matrix(part, from.role, gated, gated ? fused_block_rows(target_.glu, intermediate, from.grid, name) : 0);
    to.place.offset += layer_offset(from, grouped, rows);
    return to;
  }

  /// Returns how far this layer's first byte lies behind the first byte of its output.
  i64 layer_offset(const Matrix& from, bool grouped, i64 rows) const {
    return target_.layer_slot * (grouped ? block_.num_experts : 1) * rows * from.cols * from.element_bytes;
  }

  Axes axes_of(TensorKind kind) const { return stored_axes(kind, block_.codes, target_.axes); }

  /// Rows of the weight that the matrix is, or belongs to.
  i64 weight_rows(const Matrix& matrix) const {
    const std::vector<i64>& rows = weight_rows_[static_cast<std::size_t>(matrix.role)];
    const auto expert = static_cast<std::size_t>(matrix.expert);
    return expert < rows.size() && rows[expert] > 0 ? rows[expert] : matrix.rows;
  }

  /// `part` is the template of all outputs of this role and kind.
  std::string output_name(std::string_view part, const Matrix& from, Role role) {
    std::optional<PartText>& text = name_texts_[part_index(role, from.kind)];
    if (!text) {
      const std::string printed = print_part(part, from.kind, "#", scale_word(from.dtype));
      const std::size_t at = std::min(printed.size(), printed.find('#'));
      const std::size_t behind = std::min(printed.size(), at + 1);
      text =
          PartText{target_.key_prefix + printed.substr(0, at), printed.substr(behind) + block_.key_suffix, at < behind};
    }
    return text->has_expert ? fmt::format("{}{}{}", text->before, from.expert, text->after)
                            : text->before + text->after;
  }

  /// The word that was read stays where the naming does.
  std::string_view scale_word(Dtype dtype) const {
    if (!target_.scale_word.empty()) return target_.scale_word;
    return dtype == Dtype::F8_E8M0 ? target_.naming->scale_word : std::string_view();
  }

  /// Refuses tensors of quantized weights for which the naming has no place.
  void check_spelling(const Matrix& from) const {
    const Naming& naming = *target_.naming;
    const std::string& name = inventory_.tensors[from.tensor].name;
    const bool is_code = is_weight(from.kind) && from.kind != TensorKind::Weight;
    if ((is_scale(from.kind) || is_code) && naming.plain_fc1_is_fused)
      fail_asking({"--decode"}, ErrorCode::NoSpelling, {{}, name},
                  "{}: naming {} has no place for codes and scales; --decode bf16 writes the weights as bf16",
                  block_text(block_), naming.name);
    if (axes_of(from.kind) == Axes::OutIn || block_.codes == TensorKind::QWeight) return;
    const bool is_whole = from.grid.rows <= 1 && (from.grid.cols == 0 || from.grid == ElementGrid{});
    if (!is_whole && from.grid != kFp8Blocks)
      fail_asking(
          {"--decode"}, ErrorCode::NotExact, {{}, name},
          "'{}': naming {} transposes its experts, and nothing that reads it knows elements for {} x {} weights "
          "there; decode the weights (--decode bf16)",
          name, naming.name, from.grid.rows, from.grid.cols);
    if (dtype_bits(from.dtype) < 8)
      fail(ErrorCode::NotExact, {{}, name},
           "{}: naming {} transposes its experts, and elements of {} bits cannot be moved one by one",
           block_text(block_), naming.name, dtype_bits(from.dtype));
  }

  DraftOutput make_output(const Matrix& from, Role role, bool grouped) {
    const Naming& naming = *target_.naming;
    const PartNames& names = part_names(naming, block_.set, grouped ? Experts::Grouped : Experts::Indexed);
    const std::string_view part = part_template(names, role);
    if (part.empty())
      fail(ErrorCode::NoSpelling, {{}, inventory_.tensors[from.tensor].name},
           "{}: naming {} has no spelling for {} experts' {}: its models have none. Choose a naming that has them "
           "(`glu-ckpt layouts`), such as the source's own",
           block_text(block_), naming.name, to_string(block_.set), to_string(role));
    check_spelling(from);
    DraftOutput output;
    output.name = output_name(part, from, role);
    output.dtype = from.dtype;
    const i64 parts = block_.glu.kind == Glu::Kind::None ? 1 : stored_rows(from, role) / std::max<i64>(from.rows, 1);
    const MatrixExtents stored = padded(from.grid, {parts * from.rows, from.cols});
    if (target_.stacked_layers > 0) output.shape.push_back(target_.stacked_layers);
    if (grouped) output.shape.push_back(block_.num_experts);
    // Elements of less than a byte are moved in bytes, but counted by themselves.
    const MatrixExtents counted{stored.rows, stored.cols * from.element_bytes * 8 / dtype_bits(from.dtype)};
    const std::vector<i64> axes = stored_shape(from.kind, from.grid, counted, parts, axes_of(from.kind));
    output.shape.insert(output.shape.end(), axes.begin(), axes.end());
    output.bytes = std::max<i64>(target_.stacked_layers, 1) * (grouped ? block_.num_experts : 1) * stored.rows *
                   stored.cols * from.element_bytes;
    return output;
  }

  /// Text of the names of all outputs of one role and kind, around the expert's number.
  struct PartText {
    std::string before;
    std::string after;
    bool has_expert = false;
  };

  static std::size_t part_index(Role role, TensorKind kind) {
    return static_cast<std::size_t>(role) * kTensorKinds + static_cast<std::size_t>(kind);
  }

  const ExpertBlock& block_;
  const BlockTarget& target_;
  const Inventory& inventory_;
  DraftOutputs& outputs_;
  std::array<std::optional<PartText>, kRoles * kTensorKinds> name_texts_;
  /// The list of a role as stored and a kind has, for each expert, one more than the number of its output; 0 while
  /// there is none.
  std::array<std::vector<std::size_t>, kRoles * kTensorKinds> numbers_;
  /// Rows of each role's and expert's weight; 0 where there is no such weight.
  std::array<std::vector<i64>, kRoles> weight_rows_;
};

/// Adds those of one block.
void add_block(const ExpertBlock& block, const BlockTarget& target, const Inventory& inventory, DraftOutputs& outputs) {
  const std::size_t before = outputs.list.size();
  BlockWriter(block, target, inventory, outputs).run();
  const std::span made = std::span(outputs.list).subspan(before);
  // All pieces count: half of an interleaved FC1 may lie in another tensor, and that in another file.
  std::map<u32, std::size_t> first_in_file;
  for (const DraftOutput& output : made)
    for (const Move& move : output.moves) {
      const auto [entry, is_new] = first_in_file.emplace(inventory.tensors[move.src].file, move.src);
      if (!is_new) entry->second = std::min(entry->second, move.src);
    }
  for (DraftOutput& output : made) {
    const auto first = std::ranges::min_element(output.moves, {}, &Move::src);
    output.origin = first == output.moves.end() ? block.matrices.front().tensor
                                                : first_in_file.at(inventory.tensors[first->src].file);
  }
}

}  // namespace

void add_expert_outputs(const std::vector<ExpertBlock>& blocks, const std::vector<BlockTarget>& targets,
                        const Inventory& inventory, DraftOutputs& outputs) {
  for (std::size_t i = 0; i < targets.size(); ++i) add_block(blocks[i], targets[i], inventory, outputs);
}

}  // namespace glu_ckpt
