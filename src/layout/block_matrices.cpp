/// The matrices of a block: where each gate, up and down of each expert lies in the stored tensors.

#include <algorithm>
#include <map>

#include "core/fail.hpp"
#include "layout/element_grid.hpp"
#include "layout/expert_block.hpp"
#include "layout/optimizer_names.hpp"
#include "layout/placement.hpp"
#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

/// Bytes of one element for moving; sub-byte elements move as whole rows of bytes.
i64 whole_bytes(Dtype dtype) { return std::max(1, dtype_bits(dtype) / 8); }

/// Rows and columns of the elements of this kind, given those of the weight.
MatrixExtents matrix_extents(TensorKind kind, const MatrixExtents& weight, i64 parts, const ElementGrid& grid,
                             const TensorRef& ref) {
  if (kind == TensorKind::Bias) return {weight.rows, 1};
  if (grid != ElementGrid{}) return element_extents(grid, weight, parts);
  const int bits = dtype_bits(ref.dtype);
  if (bits >= 8) return weight;
  if (weight.cols * bits % 8 != 0)
    fail(ErrorCode::NotExact, {{}, ref.name}, "'{}': rows of {} {} values do not end on a byte", ref.name, weight.cols,
         dtype_name(ref.dtype));
  return {weight.rows, weight.cols * bits / 8};
}

/// Adds the matrices of one stored part, such as all `gate_up_proj` weights.
class PartMatrices {
 public:
  PartMatrices(BlockShape& shape, const Inventory& inventory, const BlockParts::key_type& key)
      : shape_(shape),
        block_(shape.block),
        inventory_(inventory),
        kind_(std::get<TensorKind>(key)),
        role_(std::get<Role>(key)),
        grouped_(block_.set == ExpertSet::Routed && std::get<Experts>(key) == Experts::Grouped) {}

  void add_all(const PartTensors& tensors) {
    for (i64 e = 0; e < block_.num_experts; ++e) add(e, tensors[grouped_ ? 0 : static_cast<std::size_t>(e)].second);
  }

  /// `tensors` are the first halves of interleaved FC1s, `second` the others.
  void add_halved(const PartTensors& tensors, const PartTensors& second) {
    for (i64 e = 0; e < block_.num_experts; ++e) {
      const std::size_t i = grouped_ ? 0 : static_cast<std::size_t>(e);
      for (const Role role : {Role::Gate, Role::Up}) add_halved(e, role, tensors[i].second, second[i].second);
    }
  }

 private:
  i64 width(i64 expert) const { return shape_.intermediate[static_cast<std::size_t>(expert)]; }

  StoredPart stored_part(i64 expert, const MatrixExtents& matrix, const ElementGrid& grid, Dtype dtype) const {
    const MatrixExtents stored = padded(grid, matrix);
    return {stored_axes(kind_, block_.codes, block_.axes),
            matrix.rows,
            stored.cols,
            whole_bytes(dtype),
            grouped_ ? expert : 0,
            stored.rows - matrix.rows};
  }

  const TensorRef* first_of(TensorKind kind) const {
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      if (const auto found = shape_.parts.find({kind, experts, role_}); found != shape_.parts.end())
        return &inventory_.tensors[found->second.front().second];
    return nullptr;
  }

  /// Returns which weights the elements are for. check_block() has seen that there is an answer.
  ElementGrid grid_of(const TensorRef& ref, const MatrixExtents& weight, i64 parts) const {
    if (kind_ == TensorKind::Bias) return {};
    if (is_weight(kind_)) {
      const auto codes = shape_.codes.find(role_);
      return codes == shape_.codes.end() ? ElementGrid{} : codes->second;
    }
    const TensorRef* codes = first_of(block_.codes);
    if (codes == nullptr) return kFp8Blocks;
    std::span<const i64> shape = layer_shape(block_, ref);
    if (grouped_ && !shape.empty()) shape = shape.subspan(1);
    return find_grid(kind_, ref.dtype, shape,
                     {block_.codes, codes->dtype, weight, parts, block_.axes, shape_.scale_rows})
        .value_or(kFp8Blocks);
  }

  /// Checks that the elements are for as many weights as those of an expert of the same width before.
  void check_grid(i64 expert, std::size_t tensor, const ElementGrid& grid) {
    const auto [first, is_new] = grids_.try_emplace(width(expert), grid, tensor);
    const auto& [expected, other] = first->second;
    if (grid == expected) return;
    const TensorRef& ref = inventory_.tensors[tensor];
    const TensorRef& beside = inventory_.tensors[other];
    fail(ErrorCode::ExpertShape, {{}, ref.name},
         "'{}' is {}, but '{}', of an expert of the same width, is {}: experts of a layer are quantized alike. Is one "
         "of "
         "them of another model?",
         ref.name, shape_text(ref.shape), beside.name, shape_text(beside.shape));
  }

  /// Returns how far this layer's first byte lies behind the first byte of its tensor.
  i64 layer_offset(const TensorRef& ref) const {
    return block_.stacked_layers > 0 ? block_.layer_slot * (ref.bytes / block_.stacked_layers) : 0;
  }

  void add(i64 expert, std::size_t tensor) {
    const TensorRef& ref = inventory_.tensors[tensor];
    const i64 f = width(expert);
    const bool fused = role_ == Role::GateUp && block_.glu.kind != Glu::Kind::None;
    const MatrixExtents weight = role_ == Role::Down ? MatrixExtents{block_.hidden_size, f}
                                                     : MatrixExtents{fused ? 2 * f : f, block_.hidden_size};
    const i64 parts = fused ? 2 : 1;
    const ElementGrid grid = grid_of(ref, weight, parts);
    if (!grouped_) check_grid(expert, tensor, grid);
    const MatrixExtents stored = matrix_extents(kind_, weight, parts, grid, ref);
    const bool shares_bytes = dtype_bits(ref.dtype) < 8 || grid == kNibbles;
    if (shares_bytes && stored_axes(kind_, block_.codes, block_.axes) == Axes::InOut)
      fail(ErrorCode::NotExact, {{}, ref.name}, "'{}': a transposed sub-byte tensor cannot be cut into rows", ref.name);
    const StoredPart part = stored_part(expert, stored, grid, ref.dtype);
    const auto place = [&](Role role, i64 rows, bool half, i64 block_rows) {
      Placement at = place_matrix(part, role, half, block_rows);
      at.offset += layer_offset(ref);
      block_.matrices.push_back(
          {tensor, role, kind_, ref.dtype, grid, expert, rows, stored.cols, part.element_bytes, at, nullptr});
    };
    if (!fused) return place(role_ == Role::GateUp ? Role::Up : role_, stored.rows, false, 0);
    // Scales of blocks that are for rows of both belong to FC1 as a whole.
    if (block_.glu.kind == Glu::Kind::Unknown || (is_scale(kind_) && shares_blocks(block_.glu, f, grid)))
      return place(role_, stored.rows, false, 0);
    const i64 block_rows = fused_block_rows(block_.glu, f, grid, ref.name);
    place(Role::Gate, stored.rows / 2, true, block_rows);
    place(Role::Up, stored.rows / 2, true, block_rows);
  }

  void add_halved(i64 expert, Role role, std::size_t first, std::size_t second) {
    const TensorRef& ref = inventory_.tensors[first];
    const TensorRef& rest = inventory_.tensors[second];
    if (ref.dtype != rest.dtype)
      fail(ErrorCode::ExpertDtype, {{}, rest.name}, "'{}' is {}, but '{}', the other half of FC1, is {}", rest.name,
           dtype_name(rest.dtype), ref.name, dtype_name(ref.dtype));
    // Namings that cut FC1 in the middle hold no scales.
    const MatrixExtents stored = matrix_extents(kind_, {width(expert), block_.hidden_size}, 1, {}, ref);
    const StoredPart part = stored_part(expert, stored, {}, ref.dtype);
    HalvedPlaces places = place_halved(part, role, fused_block_rows(block_.glu, width(expert), {}, ref.name));
    places.first.offset += layer_offset(ref);
    places.tail.offset += layer_offset(rest);
    block_.matrices.push_back({first,
                               role,
                               kind_,
                               ref.dtype,
                               {},
                               expert,
                               stored.rows,
                               stored.cols,
                               part.element_bytes,
                               places.first,
                               std::make_shared<MatrixTail>(MatrixTail{places.tail_row, second, places.tail})});
  }

  BlockShape& shape_;
  ExpertBlock& block_;
  const Inventory& inventory_;
  TensorKind kind_;
  Role role_;
  bool grouped_;
  /// By the width of an expert: the grid of the first such one, and its tensor.
  std::map<i64, std::pair<ElementGrid, std::size_t>> grids_;
};

}  // namespace

void add_matrices(BlockShape& shape, const Inventory& inventory) {
  // The list is reserved once, since there may be a hundred thousand matrices and doubling would leave half of it
  // unused.
  i64 count = 0;
  for (const auto& [key, tensors] : shape.parts)
    count += shape.block.num_experts * (std::get<Role>(key) == Role::GateUp ? 2 : 1);
  shape.block.matrices.reserve(static_cast<std::size_t>(count));
  for (const auto& [key, tensors] : shape.parts) {
    const auto [kind, experts, role] = key;
    PartMatrices matrices(shape, inventory, key);
    if (!shape.block.halved || role == Role::Down)
      matrices.add_all(tensors);
    else if (role == Role::Gate)
      matrices.add_halved(tensors, shape.parts.at({kind, experts, Role::Up}));
  }
}

i64 fused_block_rows(const Glu& glu, i64 intermediate, const ElementGrid& grid, const std::string& name) {
  const i64 rows = glu.kind == Glu::Kind::Interleaved ? glu.block_rows : intermediate;
  if (intermediate % rows != 0)
    fail(
        ErrorCode::NotDivisible, {{}, name}, "{}: {} rows; interleaved:{} needs a multiple of {}{}", name,
        2 * intermediate, rows, u64{2} * static_cast<u64>(rows),
        shard_folder(name).empty()
            ? fmt::format(": K must divide {}; --pad-experts {} makes the experts wider with zeros", intermediate, rows)
            : " in each shard: K must divide its share of F");
  // An element for a whole matrix is stored once for the gate and once for up.
  if (grid.rows == 0) return 1;
  if (grid.restarts && rows == intermediate) return (rows + grid.rows - 1) / grid.rows;
  if (rows % grid.rows != 0)
    fail(ErrorCode::NotExact, {{}, name},
         "{}: one element is for {} x {} weights, so blocks of {} gate and up rows would share elements; K must be a "
         "multiple of {}, or decode the weights (--decode bf16)",
         name, grid.rows, grid.cols, rows, grid.rows);
  return rows / grid.rows;
}

}  // namespace glu_ckpt
