/// DeviceGroupedMlp: which kernels take a layer, what they need made ready, and the launches of a run.

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "core/fail.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "kernels/mlp/device_layer.hpp"

namespace glu_ckpt {
namespace {

/// The experts' biases as fp32 [experts, rows rounded up], read anew for each run; nothing where no expert has one.
class WidenedBiases {
 public:
  WidenedBiases() = default;
  WidenedBiases(const GroupedMlp& mlp, MlpMember member, i64 rows, GpuStream stream)
      : count_(std::ssize(mlp.experts)), rows_(rows), pitch_(round_up(rows, kBiasMultiple)) {
    const std::vector<StoredMatrix> biases = members(mlp.experts, member);
    if (std::ranges::none_of(biases, &StoredMatrix::is_there)) return;
    stored_ = upload(biases, stream);
    values_ = DeviceBuffer(buffer_bytes(count_, pitch_, 1, sizeof(float)));
  }

  void refresh(GpuStream stream) const {
    if (stored_.bytes() > 0)
      widen_biases(reinterpret_cast<const StoredMatrix*>(stored_.data()), count_, rows_,
                   reinterpret_cast<float*>(values_.data()), pitch_, stream);
  }

  const float* values() const { return reinterpret_cast<const float*>(values_.data()); }

 private:
  i64 count_ = 0;
  i64 rows_ = 0;
  i64 pitch_ = 0;
  DeviceBuffer stored_;
  DeviceBuffer values_;
};

/// One matrix of each expert as TMA reads it: where it is stored, or else in a dense copy, which each run makes anew.
class ReadableWeights {
 public:
  ReadableWeights(const GroupedMlp& mlp, MlpMember member, GpuStream stream) : matrices_(members(mlp.experts, member)) {
    if (!std::ranges::all_of(matrices_, [](const StoredMatrix& m) { return tma_boxes(m).has_value(); }))
      use_copies(stream);
  }

  void refresh(GpuStream stream) const {
    if (stored_.bytes() == 0) return;
    const auto* const stored = reinterpret_cast<const StoredMatrix*>(stored_.data());
    const StoredMatrix& any = matrices_[0];
    copy_dense(stored, std::ssize(matrices_), any.rows, any.cols, copy_.data(), pitch(), stream);
  }

  const std::vector<StoredMatrix>& matrices() const { return matrices_; }

 private:
  i64 pitch() const { return round_up(matrices_[0].cols, kRowMultiple); }

  void use_copies(GpuStream stream) {
    const i64 rows = matrices_[0].rows;
    stored_ = upload(matrices_, stream);
    copy_ = DeviceBuffer(buffer_bytes(std::ssize(matrices_), rows, pitch(), 2));
    const std::byte* to = copy_.data();
    for (StoredMatrix& matrix : matrices_) {
      matrix = dense_matrix(to, matrix.dtype, rows, matrix.cols, pitch());
      to += rows * pitch() * 2;
    }
  }

  std::vector<StoredMatrix> matrices_;
  /// StoredMatrix [experts], where there are copies.
  DeviceBuffer stored_;
  DeviceBuffer copy_;
};

/// The matrices of both, expert by expert.
std::vector<StoredMatrix> pairs_of(const std::vector<StoredMatrix>& one, const std::vector<StoredMatrix>& other) {
  std::vector<StoredMatrix> pairs;
  for (std::size_t e = 0; e < one.size(); ++e) pairs.insert(pairs.end(), {one[e], other[e]});
  return pairs;
}

}  // namespace

struct DeviceGroupedMlp::State {
  State(const GroupedMlp& mlp, i64 max_rows, GpuStream stream);

  /// The bytes of A of FC2, at the beginning of the workspace, and those of x with rows at multiples of 16 bytes.
  i64 middle_bytes(i64 rows) const { return round_up(buffer_bytes(1, rows, middle_pitch, element_bytes), 256); }
  i64 padded_bytes(i64 rows) const {
    return pads_x ? buffer_bytes(1, rows, round_up(hidden, kRowMultiple), element_bytes) : 0;
  }

  void run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, void* z, std::byte* workspace,
           GpuStream stream) const;
  void refresh(GpuStream stream) const;

  /// FC1, and the arguments that FC2 shares with it.
  MlpLayer first_layer(const float* probs, void* middle, void* z) const;
  MlpLayer second_layer(const MlpLayer& first, void* out) const;
  void run_sm90(const void* x, i64 rows, const i64* splits, const MlpLayer& first, const MlpLayer& second,
                std::byte* padded, GpuStream stream) const;
  void run_simt(const void* x, i64 rows, const i64* splits, const MlpLayer& first, const MlpLayer& second,
                GpuStream stream) const;

  i64 hidden = 0;
  i64 width = 0;
  i64 experts = 0;
  i64 max_rows = 0;
  Dtype compute = Dtype::BF16;
  i64 element_bytes = 0;
  Activation activation;
  /// The device and the dtype take the kernels for sm_90a.
  bool by_sm90 = false;
  int multiprocessors = 0;
  /// x is copied to rows that begin at multiples of 16 bytes.
  bool pads_x = false;
  WidenedBiases gate_bias, up_bias, down_bias;
  /// The maps for the sm_90a kernels, and what they point into.
  std::vector<ReadableWeights> readable;
  HalfMaps first_maps, second_maps;
  /// For the other kernels: StoredMatrix, two for each expert.
  DeviceBuffer first_weights, second_weights;
  /// The elements from one row of A of FC2 to the next.
  i64 middle_pitch = 0;
  /// The workspace for max_rows rows, where the caller has none.
  DeviceBuffer own_workspace;
  DeviceBuffer tiles_memory;
  ExpertTiles tiles;
};

DeviceGroupedMlp::State::State(const GroupedMlp& mlp, i64 rows, GpuStream stream)
    : hidden(mlp.hidden),
      width((check_mlp(mlp), check_one_width(mlp))),
      experts(static_cast<i64>(mlp.experts.size())),
      max_rows(rows),
      compute(mlp.compute),
      element_bytes(dtype_bits(mlp.compute) / 8),
      activation(scaled(mlp.activation)),
      middle_pitch(round_up(width, kRowMultiple)),
      tiles_memory(expert_tiles_bytes(experts)),
      tiles(expert_tiles_at(tiles_memory.data(), experts)) {
  constexpr i64 kMost = INT32_MAX;
  if (rows < 0 || rows > kMost || hidden > kMost || width > kMost || experts > kMost)
    fail(ErrorCode::Usage, {}, "{} rows, {} experts of {} x {}: not negative, none of them above {}", rows, experts,
         hidden, width, kMost);
  // Before the first run there are no wrong splits.
  CUDA_CHECK(cudaMemsetAsync(tiles_memory.data(), 0, static_cast<std::size_t>(tiles_memory.bytes()), stream));
  multiprocessors = current_multiprocessors();
  by_sm90 = takes_sm90(compute);
  gate_bias = WidenedBiases(mlp, &ExpertWeights::gate_bias, width, stream);
  up_bias = WidenedBiases(mlp, &ExpertWeights::up_bias, width, stream);
  down_bias = WidenedBiases(mlp, &ExpertWeights::down_bias, hidden, stream);
  pads_x = by_sm90 && hidden % kRowMultiple != 0;
  own_workspace = DeviceBuffer(rows > 0 ? middle_bytes(rows) + padded_bytes(rows) : 0);
  const MlpMember gate = activation.is_gated() ? &ExpertWeights::gate : &ExpertWeights::up;
  if (!by_sm90) {
    const auto upload_pairs = [&](MlpMember one, MlpMember other) {
      return upload(pairs_of(members(mlp.experts, one), members(mlp.experts, other)), stream);
    };
    first_weights = upload_pairs(gate, &ExpertWeights::up);
    second_weights = upload_pairs(&ExpertWeights::down, &ExpertWeights::down);
    return;
  }
  readable.emplace_back(mlp, &ExpertWeights::up, stream);
  readable.emplace_back(mlp, &ExpertWeights::down, stream);
  if (activation.is_gated()) readable.emplace_back(mlp, &ExpertWeights::gate, stream);
  const auto maps = [&](const ReadableWeights& one, const ReadableWeights& other) {
    return HalfMaps(pairs_of(one.matrices(), other.matrices()), stream);
  };
  first_maps = maps(readable[activation.is_gated() ? 2 : 0], readable[0]);
  second_maps = maps(readable[1], readable[1]);
}

void DeviceGroupedMlp::State::refresh(GpuStream stream) const {
  for (const WidenedBiases* biases : {&gate_bias, &up_bias, &down_bias}) biases->refresh(stream);
  for (const ReadableWeights& weights : readable) weights.refresh(stream);
}

MlpLayer DeviceGroupedMlp::State::first_layer(const float* probs, void* middle, void* z) const {
  MlpLayer layer;
  layer.kind = activation.is_gated() ? LayerKind::Gated : LayerKind::Ungated;
  layer.dtype = compute;
  layer.experts = static_cast<i32>(experts);
  layer.k = static_cast<i32>(hidden);
  layer.n = static_cast<i32>(width);
  layer.out = {middle, middle_pitch, true};
  layer.bias[0] = (activation.is_gated() ? gate_bias : up_bias).values();
  layer.bias[1] = up_bias.values();
  if (z != nullptr) set_z(layer, z);
  layer.bias_pitch = round_up(width, kBiasMultiple);
  layer.probs = probs;
  layer.activation = activation;
  layer.tiles = tiles;
  return layer;
}

MlpLayer DeviceGroupedMlp::State::second_layer(const MlpLayer& first, void* out) const {
  MlpLayer layer = first;
  for (RowsOut& half : layer.z) half = {};
  layer.kind = LayerKind::Linear;
  layer.k = static_cast<i32>(width);
  layer.n = static_cast<i32>(hidden);
  layer.out = {out, hidden, hidden % kRowMultiple == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0};
  layer.bias[0] = down_bias.values();
  layer.bias[1] = nullptr;
  layer.bias_pitch = round_up(hidden, kBiasMultiple);
  return layer;
}

void DeviceGroupedMlp::State::run_sm90(const void* x, i64 rows, const i64* splits, const MlpLayer& first,
                                       const MlpLayer& second, std::byte* padded, GpuStream stream) const {
  const TileHeight height = choose_tile_height(rows, experts);
  i64 pitch = hidden;
  if (pads_x) {
    pitch = round_up(hidden, kRowMultiple);
    const auto row_bytes = static_cast<std::size_t>(hidden * element_bytes);
    CUDA_CHECK(cudaMemcpy2DAsync(padded, static_cast<std::size_t>(pitch * element_bytes), x, row_bytes, row_bytes,
                                 static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream));
    x = padded;
  } else {
    require_aligned(x, 16, "x");
  }
  make_expert_tiles(splits, experts, rows, height.tile_rows, tiles, stream);
  const auto launch = [&](const MlpLayer& layer, const void* a, i64 a_pitch, const HalfMaps& maps) {
    Sm90Layer sm90{layer,
                   make_rows_map(a, compute, rows, layer.k, a_pitch, height.box_rows),
                   {},
                   {},
                   maps.of(half_rows(height)),
                   tiles.taken + (&layer == &second ? 1 : 0),
                   &layer == &second};
    launch_sm90(sm90, rows, height, multiprocessors, stream);
  };
  launch(first, x, pitch, first_maps);
  launch(second, first.out.data, middle_pitch, second_maps);
}

void DeviceGroupedMlp::State::run_simt(const void* x, i64 rows, const i64* splits, const MlpLayer& first,
                                       const MlpLayer& second, GpuStream stream) const {
  make_expert_tiles(splits, experts, rows, kSimtTileRows, tiles, stream);
  SimtLayer layer{first, x, hidden, reinterpret_cast<const StoredMatrix*>(first_weights.data())};
  launch_grouped_gemm_simt(layer, rows, stream);
  layer = {second, first.out.data, middle_pitch, reinterpret_cast<const StoredMatrix*>(second_weights.data())};
  launch_grouped_gemm_simt(layer, rows, stream);
}

void DeviceGroupedMlp::State::run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, void* z,
                                  std::byte* workspace, GpuStream stream) const {
  const i64 most = workspace == nullptr ? max_rows : INT32_MAX;
  if (rows < 0 || rows > most)
    fail(ErrorCode::Usage, {}, "{} rows; {}", rows,
         workspace == nullptr ? fmt::format("made for at most {}, give a workspace for more", max_rows)
                              : fmt::format("at most {}", most));
  if (rows == 0) {
    // Splits may still be wrong; nothing else is there to be read.
    require_aligned(splits, sizeof(i64), "splits");
    make_expert_tiles(splits, experts, rows, kSimtTileRows, tiles, stream);
    return;
  }
  require_aligned(x, element_bytes, "x");
  require_aligned(out, element_bytes, "out");
  const i64 bytes = rows * hidden * element_bytes;
  const auto* const from = static_cast<const std::byte*>(x);
  const auto* const to = static_cast<const std::byte*>(out);
  if (std::less<>{}(from, to + bytes) && std::less<>{}(to, from + bytes))
    fail(ErrorCode::Usage, {}, "x and out overlap: they begin {} bytes apart, each has {}",
         from < to ? to - from : from - to, bytes);
  require_aligned(splits, sizeof(i64), "splits");
  require_aligned(probs, sizeof(float), "probs");
  if (z != nullptr) require_aligned(z, element_bytes, "z");
  if (workspace == nullptr) workspace = own_workspace.data();
  require_aligned(workspace, 256, "workspace");
  refresh(stream);
  const MlpLayer first = first_layer(probs, workspace, z);
  const MlpLayer second = second_layer(first, out);
  by_sm90 ? run_sm90(x, rows, splits, first, second, workspace + middle_bytes(rows), stream)
          : run_simt(x, rows, splits, first, second, stream);
}

DeviceGroupedMlp::DeviceGroupedMlp(const GroupedMlp& mlp, i64 max_rows, GpuStream stream)
    : state_(std::make_unique<State>(mlp, max_rows, stream)) {}
DeviceGroupedMlp::~DeviceGroupedMlp() = default;
DeviceGroupedMlp::DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept = default;
DeviceGroupedMlp& DeviceGroupedMlp::operator=(DeviceGroupedMlp&&) noexcept = default;

void DeviceGroupedMlp::run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, GpuStream stream,
                           void* z, void* workspace) const {
  state_->run(x, rows, splits, probs, out, z, static_cast<std::byte*>(workspace), stream);
}

i64 DeviceGroupedMlp::workspace_bytes(i64 rows) const {
  return state_->middle_bytes(rows) + state_->padded_bytes(rows);
}

void DeviceGroupedMlp::check_splits(GpuStream stream) const { check_split_status(state_->tiles.status, stream); }

}  // namespace glu_ckpt
