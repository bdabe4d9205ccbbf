/// DeviceGroupedMlpBackward: which kernels take a backward, what they need made ready, and the launches of a run.

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"
#include "kernels/mlp/device_layer.hpp"
#include "kernels/mlp/sm90_backward.hpp"

namespace glu_ckpt {
namespace {

constexpr MlpMember kWeights[] = {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down};
constexpr MlpMember kBiases[] = {&ExpertWeights::gate_bias, &ExpertWeights::up_bias, &ExpertWeights::down_bias};
/// Pieces of the workspace begin at multiples of this.
constexpr i64 kWorkspaceMultiple = 256;

/// kMlpMatrices of `members` for each expert.
std::vector<StoredMatrix> table_of(std::span<const ExpertWeights> experts, const MlpMember (&members)[kMlpMatrices]) {
  std::vector<StoredMatrix> table;
  for (const ExpertWeights& expert : experts)
    for (const MlpMember member : members) table.push_back(expert.*member);
  return table;
}

/// gate and up of each expert, or up twice without a gate.
std::vector<StoredMatrix> pairs_of(const GroupedMlp& mlp) {
  std::vector<StoredMatrix> pairs;
  for (const ExpertWeights& expert : mlp.experts) {
    pairs.push_back(mlp.activation.is_gated() ? expert.gate : expert.up);
    pairs.push_back(expert.up);
  }
  return pairs;
}

/// One kind of bias, of all experts.
struct BiasTables {
  /// StoredMatrix [experts]; empty where no expert has one.
  DeviceBuffer stored;
  /// StoredMatrix [experts] of the gradients; empty where they are not wanted.
  DeviceBuffer grads;
  i64 rows = 0;
  i64 pitch = 0;
};

/// Returns whether TMA reads rows of all matrices that are there in boxes of `rows` rows.
bool all_mapped(const std::vector<StoredMatrix>& matrices, int rows) {
  return std::ranges::all_of(matrices,
                             [&](const StoredMatrix& m) { return !m.is_there() || tma_boxes(m, rows).has_value(); });
}

/// A gradient that the sm_90a kernels write: dense columns, rows at multiples of 16 bytes, in one tensor.
bool is_plain_grad(const StoredMatrix& grad) {
  const Placement& place = grad.first.place;
  return !grad.is_there() ||
         (grad.tail_row == grad.rows && place.col_step == dtype_bits(grad.dtype) / 8 &&
          is_aligned(grad.first.data + place.offset, 16) && place.row_step % 16 == 0 && place.block_step % 16 == 0 &&
          (grad.dtype == Dtype::F32 || tma_boxes(grad, kStoreRows).has_value()));
}

/// The pieces of a workspace, one behind the other.
class Workspace {
 public:
  /// With null it counts the bytes alone.
  explicit Workspace(std::byte* data) : data_(data) {}
  std::byte* take(i64 bytes) {
    std::byte* const piece = data_ == nullptr ? nullptr : data_ + bytes_;
    bytes_ += round_up(bytes, kWorkspaceMultiple);
    return piece;
  }
  i64 bytes() const { return bytes_; }

 private:
  std::byte* data_;
  i64 bytes_ = 0;
};

struct Pieces {
  std::byte* dz;
  std::byte* y;
  std::byte* z;
  float* dp_parts;
  float* bias[kMlpMatrices];
};

}  // namespace

struct DeviceGroupedMlpBackward::State {
  State(const MlpBackward& given, GpuStream stream);

  bool find_fast(const MlpBackward& given) const;
  void upload_fast(const MlpBackward& given, GpuStream stream);
  Pieces pieces(Workspace& workspace, i64 rows, bool recompute) const;
  bool takes_fast(const MlpBackwardStep& step) const;
  BackwardArgs args_of(const MlpBackwardStep& step, const Pieces& pieces, bool fast) const;
  void widen_all_biases(const MlpBackwardStep& step, const Pieces& pieces, GpuStream stream) const;
  void recompute_z(const MlpBackwardStep& step, const i64* splits, const BackwardArgs& args, const Pieces& pieces,
                   bool fast, GpuStream stream) const;
  void run_fast(const BackwardArgs& args, GpuStream stream) const;
  void run_simt(const BackwardArgs& args, GpuStream stream) const;
  void weight_grads_simt(const BackwardArgs& args, GpuStream stream) const;
  void bias_grads(const BackwardArgs& args, GpuStream stream) const;
  void run(const MlpBackwardStep& step, const i64* splits, std::byte* memory, GpuStream stream) const;

  const StoredMatrix* stored(const DeviceBuffer& table) const {
    return reinterpret_cast<const StoredMatrix*>(table.data());
  }
  static const TmaWeight* maps(const DeviceBuffer& table) { return reinterpret_cast<const TmaWeight*>(table.data()); }

  /// The experts and gradients are left out, for their lists may be gone when it runs.
  MlpBackward backward;
  i64 experts = 0;
  i64 hidden = 0;
  i64 width = 0;
  Dtype compute = Dtype::BF16;
  i64 element_bytes = 0;
  bool gated = true;
  int multiprocessors = 0;
  std::array<bool, kMlpMatrices> wants_weight{}, wants_bias{};
  std::array<Dtype, kMlpMatrices> grad_dtype{};
  /// kMlpMatrices for each expert.
  DeviceBuffer weights, grads;
  /// gate and up for each expert, for FC1's sums; the second is up without a gate.
  DeviceBuffer first_pairs;
  std::array<BiasTables, kMlpMatrices> biases;
  /// The sm_90a kernels can take it, if a step's rows are aligned: maps of FC1, by which z is recomputed; of FC1 and of
  /// W_down in boxes of kHalfDepthRows, by which the gradients of rows are made; and of gradients.
  bool fast = false;
  HalfMaps first_maps;
  DeviceBuffer first_half_deep_maps, down_half_deep_maps, grad_maps;
  DeviceBuffer tiles_memory;
  ExpertTiles tiles;
};

DeviceGroupedMlpBackward::State::State(const MlpBackward& given, GpuStream stream)
    : backward((check_mlp_backward(given), given)),
      experts(std::ssize(given.mlp.experts)),
      hidden(given.mlp.hidden),
      width(given.mlp.experts[0].up.rows),
      compute(given.mlp.compute),
      element_bytes(dtype_bits(compute) / 8),
      gated(given.mlp.activation.is_gated()),
      multiprocessors(current_multiprocessors()),
      tiles_memory(expert_tiles_bytes(experts)),
      tiles(expert_tiles_at(tiles_memory.data(), experts)) {
  constexpr i64 kMost = INT32_MAX / 2;
  constexpr i64 kMostExperts = 65535;
  if (hidden > kMost || width > kMost || experts > kMostExperts)
    fail(ErrorCode::Usage, {}, "{} experts of {} x {}: at most {} experts, and sizes up to {}", experts, hidden, width,
         kMostExperts, kMost);
  backward.mlp.activation = scaled(given.mlp.activation);
  backward.mlp.experts = {};
  backward.grads = {};
  // Before the first run there are no wrong splits.
  CUDA_CHECK(cudaMemsetAsync(tiles_memory.data(), 0, static_cast<std::size_t>(tiles_memory.bytes()), stream));
  weights = upload(table_of(given.mlp.experts, kWeights), stream);
  if (!given.grads.empty()) grads = upload(table_of(given.grads, kWeights), stream);
  first_pairs = upload(pairs_of(given.mlp), stream);
  for (std::size_t i = 0; i < kMlpMatrices; ++i) {
    wants_weight[i] = wants_grad(given, kWeights[i]);
    wants_bias[i] = wants_grad(given, kBiases[i]);
    if (wants_weight[i]) grad_dtype[i] = (given.grads[0].*kWeights[i]).dtype;
    const std::vector<StoredMatrix> all = members(given.mlp.experts, kBiases[i]);
    biases[i].rows = i == 2 ? hidden : width;
    biases[i].pitch = round_up(biases[i].rows, kBiasMultiple);
    if (std::ranges::any_of(all, &StoredMatrix::is_there)) biases[i].stored = upload(all, stream);
    if (wants_bias[i]) biases[i].grads = upload(members(given.grads, kBiases[i]), stream);
  }
  fast = takes_sm90(compute) && find_fast(given);
  if (fast) upload_fast(given, stream);
}

bool DeviceGroupedMlpBackward::State::find_fast(const MlpBackward& given) const {
  if (hidden % kRowMultiple != 0 || width % kRowMultiple != 0) return false;
  for (const MlpMember member : kWeights) {
    const std::vector<StoredMatrix> matrices = members(given.mlp.experts, member);
    if (!all_mapped(matrices, kHalfDepthRows) || !all_mapped(matrices, kHalfRows)) return false;
    if (!std::ranges::all_of(members(given.grads, member), is_plain_grad)) return false;
  }
  return true;
}

void DeviceGroupedMlpBackward::State::upload_fast(const MlpBackward& given, GpuStream stream) {
  const std::vector<StoredMatrix> pairs = pairs_of(given.mlp);
  first_maps = HalfMaps(pairs, stream);
  first_half_deep_maps = upload_maps(pairs, kHalfDepthRows, stream);
  down_half_deep_maps = upload_maps(members(given.mlp.experts, &ExpertWeights::down), kHalfDepthRows, stream);
  std::vector<StoredMatrix> stored_grads = table_of(given.grads, kWeights);
  // Gradients of fp32 are not stored by TMA.
  for (StoredMatrix& grad : stored_grads)
    if (grad.dtype == Dtype::F32) grad = {};
  if (!backward.accumulate_weights) grad_maps = upload_maps(stored_grads, kStoreRows, stream);
}

Pieces DeviceGroupedMlpBackward::State::pieces(Workspace& workspace, i64 rows, bool recompute) const {
  const i64 z_cols = gated ? 2 * width : width;
  Pieces made{};
  made.dz = workspace.take(buffer_bytes(1, rows, z_cols, element_bytes));
  made.y = workspace.take(buffer_bytes(1, rows, width, element_bytes));
  if (recompute) made.z = workspace.take(buffer_bytes(1, rows, z_cols, element_bytes));
  made.dp_parts = reinterpret_cast<float*>(
      workspace.take(buffer_bytes(1, rows, (width + kSimtPartCols - 1) / kSimtPartCols, sizeof(float))));
  for (std::size_t i = 0; i < kMlpMatrices; ++i)
    if (biases[i].stored.bytes() > 0)
      made.bias[i] = reinterpret_cast<float*>(workspace.take(buffer_bytes(1, experts, biases[i].pitch, sizeof(float))));
  return made;
}

bool DeviceGroupedMlpBackward::State::takes_fast(const MlpBackwardStep& step) const {
  const auto aligned = [](const void* data) { return is_aligned(data, 16); };
  // Rows are counted in 32 bits by TMA, and there has to be one.
  return fast && step.rows > 0 && aligned(step.x) && aligned(step.dout) && aligned(step.z) && aligned(step.dx);
}

BackwardArgs DeviceGroupedMlpBackward::State::args_of(const MlpBackwardStep& step, const Pieces& pieces,
                                                      bool is_fast) const {
  BackwardArgs args;
  args.dtype = compute;
  args.experts = static_cast<i32>(experts);
  args.hidden = static_cast<i32>(hidden);
  args.width = static_cast<i32>(width);
  args.gated = gated;
  args.rows = step.rows;
  args.x = step.x;
  args.dout = step.dout;
  args.z = step.z != nullptr ? step.z : pieces.z;
  args.dz = pieces.dz;
  args.y = pieces.y;
  args.dx = step.dx;
  args.probs = step.probs;
  args.dp_parts = pieces.dp_parts;
  const i32 part_cols = is_fast ? kSm90PartCols : kSimtPartCols;
  args.parts = (args.width + part_cols - 1) / part_cols;
  args.activation = backward.mlp.activation;
  args.tiles = tiles;
  args.weights = stored(weights);
  args.grads = stored(grads);
  args.accumulate = backward.accumulate_weights;
  return args;
}

/// Biases may have changed since the run before, as weights may.
void DeviceGroupedMlpBackward::State::widen_all_biases(const MlpBackwardStep& step, const Pieces& pieces,
                                                       GpuStream stream) const {
  for (std::size_t i = 0; i < kMlpMatrices; ++i) {
    const bool needed = i == 2 ? step.dprobs != nullptr : step.z == nullptr;
    if (pieces.bias[i] != nullptr && needed)
      widen_biases(stored(biases[i].stored), experts, biases[i].rows, pieces.bias[i], biases[i].pitch, stream);
  }
}

/// FC1 as the forward computes it; what it leaves in y is overwritten.
void DeviceGroupedMlpBackward::State::recompute_z(const MlpBackwardStep& step, const i64* splits,
                                                  const BackwardArgs& args, const Pieces& pieces, bool is_fast,
                                                  GpuStream stream) const {
  MlpLayer layer;
  layer.kind = gated ? LayerKind::Gated : LayerKind::Ungated;
  layer.dtype = compute;
  layer.experts = args.experts;
  layer.k = args.hidden;
  layer.n = args.width;
  layer.out = {args.y, width, width % kRowMultiple == 0};
  set_z(layer, pieces.z);
  layer.bias[0] = pieces.bias[gated ? 0 : 1];
  layer.bias[1] = pieces.bias[1];
  layer.bias_pitch = biases[1].pitch;
  layer.probs = step.probs;
  layer.activation = args.activation;
  layer.tiles = tiles;
  if (is_fast) {
    const TileHeight height = choose_tile_height(step.rows, experts);
    make_expert_tiles(splits, experts, step.rows, height.tile_rows, tiles, stream);
    Sm90Layer sm90{layer,
                   make_rows_map(step.x, compute, step.rows, hidden, hidden, height.box_rows),
                   {},
                   {},
                   first_maps.of(half_rows(height)),
                   tiles.taken};
    launch_sm90(sm90, step.rows, height, multiprocessors, stream);
  } else {
    make_expert_tiles(splits, experts, step.rows, kSimtTileRows, tiles, stream);
    launch_grouped_gemm_simt(SimtLayer{layer, step.x, hidden, stored(first_pairs)}, step.rows, stream);
  }
}

void DeviceGroupedMlpBackward::State::run_fast(const BackwardArgs& args, GpuStream stream) const {
  const auto map = [&](const void* data, i64 cols, i64 pitch, int box_rows) {
    return make_rows_map(data, compute, args.rows, cols, pitch, box_rows);
  };
  const i64 pitch = args.dz_pitch();
  const auto half = [&](const void* data, int which) {
    return static_cast<const std::byte*>(data) + (gated && which == 1 ? width * element_bytes : 0);
  };
  Sm90Derive derive{args,       map(args.dout, hidden, hidden, kBackwardBoxRows), {}, {}, {}, maps(down_half_deep_maps),
                    tiles.taken};
  Sm90InputGrad input{args, {}, {}, maps(first_half_deep_maps), tiles.taken + 1};
  for (int i = 0; i < 2; ++i) {
    derive.z_maps[i] = map(half(args.z, i), width, pitch, kStoreRows);
    derive.dz_maps[i] = map(half(args.dz, i), width, pitch, kStoreRows);
    input.dz_maps[i] = map(half(args.dz, i), width, pitch, kBackwardBoxRows);
  }
  derive.y_map = map(args.y, width, width, kStoreRows);
  launch_sm90_derive(derive, multiprocessors, stream);
  if (args.dx != nullptr) {
    input.dx_map = map(args.dx, hidden, hidden, kStoreRows);
    launch_sm90_input_grad(input, multiprocessors, stream);
  }
  const auto by_tma = [&](MlpMatrix matrix) {
    return grad_dtype[static_cast<std::size_t>(matrix)] != Dtype::F32 && !args.accumulate ? maps(grad_maps) : nullptr;
  };
  if (wants_weight[2]) {
    Sm90WeightGrad job{args,
                       1,
                       args.hidden,
                       args.width,
                       {map(args.dout, hidden, hidden, kDepthRows)},
                       map(args.y, width, width, kHalfDepthRows),
                       {MlpMatrix::Down},
                       by_tma(MlpMatrix::Down)};
    launch_sm90_weight_grad(job, multiprocessors, stream);
  }
  if (!wants_weight[0] && !wants_weight[1]) return;
  Sm90WeightGrad job{args, 0, args.width, args.hidden, {}, map(args.x, hidden, hidden, kHalfDepthRows), {}, nullptr};
  const bool alike = grad_dtype[0] == grad_dtype[1];
  for (int i = 0; i < 2; ++i) {
    if (!wants_weight[static_cast<std::size_t>(i)]) continue;
    job.which[job.matrices] = i == 0 ? MlpMatrix::Gate : MlpMatrix::Up;
    job.a_maps[job.matrices] = map(half(args.dz, i), width, pitch, kDepthRows);
    job.out = by_tma(job.which[job.matrices]);
    ++job.matrices;
    if (alike && i == 0) continue;
    launch_sm90_weight_grad(job, multiprocessors, stream);
    job.matrices = 0;
  }
  if (job.matrices > 0) launch_sm90_weight_grad(job, multiprocessors, stream);
}

void DeviceGroupedMlpBackward::State::run_simt(const BackwardArgs& args, GpuStream stream) const {
  launch_derive_simt(args, stream);
  if (args.dx != nullptr) launch_input_grad_simt(args, stream);
  weight_grads_simt(args, stream);
}

void DeviceGroupedMlpBackward::State::weight_grads_simt(const BackwardArgs& args, GpuStream stream) const {
  for (std::size_t i = 0; i < kMlpMatrices; ++i)
    if (wants_weight[i]) launch_weight_grad_simt(args, static_cast<MlpMatrix>(i), stream);
}

void DeviceGroupedMlpBackward::State::bias_grads(const BackwardArgs& args, GpuStream stream) const {
  const i64 pitch = args.dz_pitch();
  for (std::size_t i = 0; i < kMlpMatrices; ++i) {
    if (!wants_bias[i]) continue;
    const bool down = i == 2;
    launch_bias_grad({compute, args.experts, static_cast<i32>(biases[i].rows), down ? args.dout : args.dz,
                      down ? hidden : pitch, i == 1 ? pitch - width : 0, down ? args.probs : nullptr,
                      stored(biases[i].grads), backward.accumulate_biases, tiles},
                     stream);
  }
}

void DeviceGroupedMlpBackward::State::run(const MlpBackwardStep& step, const i64* splits, std::byte* memory,
                                          GpuStream stream) const {
  check_backward_step(compute, step, step.z == nullptr || wants_weight[0] || wants_weight[1]);
  require_aligned(splits, sizeof(i64), "splits");
  if (step.rows > INT32_MAX) fail(ErrorCode::Usage, {}, "{} rows; at most {}", step.rows, INT32_MAX);
  Workspace workspace(memory);
  const Pieces made = pieces(workspace, step.rows, step.z == nullptr);
  if (workspace.bytes() > 0) require_aligned(memory, kWorkspaceMultiple, "workspace");
  const bool is_fast = takes_fast(step);
  const BackwardArgs args = args_of(step, made, is_fast);
  if (step.rows == 0) {
    // Gradients of weights and biases become zeros; nothing is there to be read.
    make_expert_tiles(splits, experts, 0, kSimtTileRows, tiles, stream);
    weight_grads_simt(args, stream);
    return bias_grads(args, stream);
  }
  widen_all_biases(step, made, stream);
  if (step.z == nullptr) recompute_z(step, splits, args, made, is_fast, stream);
  make_expert_tiles(splits, experts, step.rows, is_fast ? kBackwardTileRows : kSimtTileRows, tiles, stream);
  is_fast ? run_fast(args, stream) : run_simt(args, stream);
  bias_grads(args, stream);
  if (step.dprobs != nullptr) launch_dprobs(args, made.bias[2], biases[2].pitch, step.dprobs, stream);
}

DeviceGroupedMlpBackward::DeviceGroupedMlpBackward(const MlpBackward& backward, GpuStream stream)
    : state_(std::make_unique<State>(backward, stream)) {}
DeviceGroupedMlpBackward::~DeviceGroupedMlpBackward() = default;
DeviceGroupedMlpBackward::DeviceGroupedMlpBackward(DeviceGroupedMlpBackward&&) noexcept = default;
DeviceGroupedMlpBackward& DeviceGroupedMlpBackward::operator=(DeviceGroupedMlpBackward&&) noexcept = default;

i64 DeviceGroupedMlpBackward::workspace_bytes(i64 rows, bool recompute) const {
  Workspace workspace(nullptr);
  (void)state_->pieces(workspace, rows, recompute);
  return workspace.bytes();
}

void DeviceGroupedMlpBackward::run(const MlpBackwardStep& step, const i64* splits, void* workspace,
                                   GpuStream stream) const {
  state_->run(step, splits, static_cast<std::byte*>(workspace), stream);
}

void DeviceGroupedMlpBackward::check_splits(GpuStream stream) const {
  check_split_status(state_->tiles.status, stream);
}

}  // namespace glu_ckpt
