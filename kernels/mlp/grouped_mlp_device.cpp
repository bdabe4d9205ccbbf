/// DeviceGroupedMlp: which kernels take a layer, what they need made ready, and the three launches of a run.

#include <algorithm>
#include <vector>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/device_forward.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "kernels/mlp/sm90_grouped_gemm.hpp"

namespace glu_ckpt {
namespace {

/// Elements of 16 bits in 16 bytes: rows that TMA reads begin at multiples of that.
constexpr i64 kRowMultiple = 8;

i64 buffer_bytes(i64 count, i64 rows, i64 cols, i64 element_bytes) {
  const auto elements = checked_mul(rows, cols);
  const auto all = elements ? checked_mul(*elements, count) : std::nullopt;
  const auto bytes = all ? checked_mul(*all, element_bytes) : std::nullopt;
  if (!bytes) fail(ErrorCode::ShapeOverflow, {}, "{} matrices of {} x {}: too many bytes", count, rows, cols);
  return *bytes;
}

template <typename T>
DeviceBuffer upload(const std::vector<T>& values, GpuStream stream) {
  DeviceBuffer buffer(static_cast<i64>(values.size() * sizeof(T)));
  if (!values.empty())
    CUDA_CHECK(cudaMemcpyAsync(buffer.data(), values.data(), static_cast<std::size_t>(buffer.bytes()),
                               cudaMemcpyHostToDevice, stream));
  // The values are the caller's, and pageable.
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return buffer;
}

std::vector<StoredMatrix> members(const GroupedMlp& mlp, MlpMember member) {
  std::vector<StoredMatrix> matrices;
  for (const ExpertWeights& expert : mlp.experts) matrices.push_back(expert.*member);
  return matrices;
}

/// The experts' biases as fp32 [experts, rows rounded up]; empty where no expert has one.
DeviceBuffer device_biases(const GroupedMlp& mlp, MlpMember member, i64 rows, GpuStream stream) {
  const std::vector<StoredMatrix> biases = members(mlp, member);
  if (std::ranges::none_of(biases, &StoredMatrix::is_there)) return {};
  const auto count = static_cast<i64>(biases.size());
  const DeviceBuffer stored = upload(biases, stream);
  const i64 pitch = round_up(rows, kBiasMultiple);
  DeviceBuffer values(buffer_bytes(count, pitch, 1, sizeof(float)));
  widen_biases(reinterpret_cast<const StoredMatrix*>(stored.data()), count, rows,
               reinterpret_cast<float*>(values.data()), pitch, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return values;
}

/// The matrices of all experts as tensor maps, of the stored matrices or of a dense copy.
class MappedWeights {
 public:
  MappedWeights(const GroupedMlp& mlp, MlpMember member, GpuStream stream) {
    std::vector<StoredMatrix> matrices = members(mlp, member);
    const bool all = std::ranges::all_of(matrices, [](const StoredMatrix& m) { return tma_boxes(m).has_value(); });
    if (!all) copy(matrices, stream);
    for (const StoredMatrix& matrix : matrices) maps_.push_back(make_tma_weight(matrix, tma_boxes(matrix).value()));
  }

  const std::vector<TmaWeight>& maps() const { return maps_; }

 private:
  void copy(std::vector<StoredMatrix>& matrices, GpuStream stream) {
    const i64 rows = matrices[0].rows;
    const i64 cols = matrices[0].cols;
    const i64 pitch = round_up(cols, kRowMultiple);
    const auto count = static_cast<i64>(matrices.size());
    copy_ = DeviceBuffer(buffer_bytes(count, rows, pitch, 2));
    const DeviceBuffer stored = upload(matrices, stream);
    copy_dense(reinterpret_cast<const StoredMatrix*>(stored.data()), count, rows, cols, copy_.data(), pitch, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (i64 m = 0; m < count; ++m)
      matrices[static_cast<std::size_t>(m)] =
          dense_matrix(copy_.data() + m * rows * pitch * 2, matrices[0].dtype, rows, cols, pitch);
  }

  DeviceBuffer copy_;
  std::vector<TmaWeight> maps_;
};

/// The tile height for about so many rows an expert. It depends on nothing else, so that equal sizes make sums in equal
/// order.
TileHeight choose_tile_height(i64 rows, i64 experts) {
  const i64 each = (rows + experts - 1) / experts;
  if (each > 128) return sm90_grouped_gemm_height();
  const int height = each > 64 ? 128 : each > 24 ? 64 : each > 8 ? 32 : 16;
  return {height, height};
}

void launch_sm90(const Sm90Layer& layer, const TileHeight& height, int multiprocessors, GpuStream stream) {
  if (height.tile_rows == sm90_grouped_gemm_height().tile_rows)
    launch_sm90_grouped_gemm(layer, multiprocessors, stream);
  else
    launch_sm90_grouped_gemm_swap_ab(layer, height.tile_rows, multiprocessors, stream);
  check_launch("sm90_grouped_gemm", [&] {
    return fmt::format("{} experts, K {}, N {}, tiles of {} rows", layer.experts, layer.k, layer.n, height.tile_rows);
  });
}

void require_aligned(const void* data, i64 bytes, std::string_view name) {
  if (data == nullptr || reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) != 0)
    fail(ErrorCode::Usage, {}, "{}: address {}, expected a multiple of {}", name, data, bytes);
}

}  // namespace

struct DeviceGroupedMlp::State {
  State(const GroupedMlp& mlp, i64 max_rows, GpuStream stream);

  void run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, GpuStream stream);

  /// FC1, and the arguments that FC2 shares with it.
  MlpLayer first_layer(const float* probs) const;
  MlpLayer second_layer(const float* probs, void* out) const;
  void run_sm90(const void* x, i64 rows, const i64* splits, const MlpLayer& first, const MlpLayer& second,
                GpuStream stream);
  void run_simt(const void* x, i64 rows, const i64* splits, const MlpLayer& first, const MlpLayer& second,
                GpuStream stream);

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
  DeviceBuffer gate_bias, up_bias, down_bias;
  /// For the sm_90a kernels: the maps, and copies that they point into.
  std::vector<MappedWeights> mapped;
  /// TmaWeight or StoredMatrix, two for each expert.
  DeviceBuffer first_weights, second_weights;
  /// A of FC2, [max_rows, middle_pitch].
  DeviceBuffer middle;
  i64 middle_pitch = 0;
  /// x with rows that begin at multiples of 16 bytes, where they do not.
  DeviceBuffer padded_x;
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
  if (rows < 1 || rows > kMost || hidden > kMost || width > kMost || experts > kMost)
    fail(ErrorCode::Usage, {}, "{} rows, {} experts of {} x {}: at least one row, none of them above {}", rows, experts,
         hidden, width, kMost);
  // Before the first run there are no wrong splits.
  CUDA_CHECK(cudaMemsetAsync(tiles_memory.data(), 0, static_cast<std::size_t>(tiles_memory.bytes()), stream));
  int device = 0;
  int major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  constexpr int kHopper = 9;
  by_sm90 = GLU_CKPT_HOPPER_KERNELS && major == kHopper && compute != Dtype::F32;
  gate_bias = device_biases(mlp, &ExpertWeights::gate_bias, width, stream);
  up_bias = device_biases(mlp, &ExpertWeights::up_bias, width, stream);
  down_bias = device_biases(mlp, &ExpertWeights::down_bias, hidden, stream);
  middle = DeviceBuffer(buffer_bytes(1, rows, middle_pitch, element_bytes));
  const MlpMember gate = activation.is_gated() ? &ExpertWeights::gate : &ExpertWeights::up;
  if (!by_sm90) {
    const auto pairs = [&](MlpMember one, MlpMember other) {
      std::vector<StoredMatrix> matrices;
      for (const ExpertWeights& expert : mlp.experts) {
        matrices.push_back(expert.*one);
        matrices.push_back(expert.*other);
      }
      return upload(matrices, stream);
    };
    first_weights = pairs(gate, &ExpertWeights::up);
    second_weights = pairs(&ExpertWeights::down, &ExpertWeights::down);
    return;
  }
  if (hidden % kRowMultiple != 0)
    padded_x = DeviceBuffer(buffer_bytes(1, rows, round_up(hidden, kRowMultiple), element_bytes));
  mapped.emplace_back(mlp, &ExpertWeights::up, stream);
  mapped.emplace_back(mlp, &ExpertWeights::down, stream);
  if (activation.is_gated()) mapped.emplace_back(mlp, &ExpertWeights::gate, stream);
  const auto pairs = [&](const MappedWeights& one, const MappedWeights& other) {
    std::vector<TmaWeight> maps;
    for (std::size_t e = 0; e < one.maps().size(); ++e) {
      maps.push_back(one.maps()[e]);
      maps.push_back(other.maps()[e]);
    }
    return upload(maps, stream);
  };
  first_weights = pairs(activation.is_gated() ? mapped[2] : mapped[0], mapped[0]);
  second_weights = pairs(mapped[1], mapped[1]);
}

MlpLayer DeviceGroupedMlp::State::first_layer(const float* probs) const {
  MlpLayer layer;
  layer.kind = activation.is_gated() ? LayerKind::Gated : LayerKind::Ungated;
  layer.dtype = compute;
  layer.experts = static_cast<i32>(experts);
  layer.k = static_cast<i32>(hidden);
  layer.n = static_cast<i32>(width);
  layer.out = middle.data();
  layer.out_pitch = middle_pitch;
  layer.wide_stores = true;
  const auto values = [](const DeviceBuffer& bias) { return reinterpret_cast<const float*>(bias.data()); };
  layer.bias[0] = values(activation.is_gated() ? gate_bias : up_bias);
  layer.bias[1] = values(up_bias);
  layer.bias_pitch = round_up(width, kBiasMultiple);
  layer.probs = probs;
  layer.activation = activation;
  layer.tiles = tiles;
  return layer;
}

MlpLayer DeviceGroupedMlp::State::second_layer(const float* probs, void* out) const {
  MlpLayer layer = first_layer(probs);
  layer.kind = LayerKind::Linear;
  layer.k = static_cast<i32>(width);
  layer.n = static_cast<i32>(hidden);
  layer.out = out;
  layer.out_pitch = hidden;
  layer.wide_stores = hidden % kRowMultiple == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  layer.bias[0] = reinterpret_cast<const float*>(down_bias.data());
  layer.bias[1] = nullptr;
  layer.bias_pitch = round_up(hidden, kBiasMultiple);
  return layer;
}

void DeviceGroupedMlp::State::run_sm90(const void* x, i64 rows, const i64* splits, const MlpLayer& first,
                                       const MlpLayer& second, GpuStream stream) {
  const TileHeight height = choose_tile_height(rows, experts);
  i64 pitch = hidden;
  if (padded_x.bytes() > 0) {
    pitch = round_up(hidden, kRowMultiple);
    const auto row_bytes = static_cast<std::size_t>(hidden * element_bytes);
    CUDA_CHECK(cudaMemcpy2DAsync(padded_x.data(), static_cast<std::size_t>(pitch * element_bytes), x, row_bytes,
                                 row_bytes, static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream));
    x = padded_x.data();
  } else {
    require_aligned(x, 16, "x");
  }
  make_expert_tiles(splits, experts, rows, height.tile_rows, tiles, stream);
  const auto launch = [&](const MlpLayer& layer, const void* a, i64 a_pitch, const DeviceBuffer& weights) {
    Sm90Layer sm90{layer,
                   make_rows_map(a, compute, rows, layer.k, a_pitch, height.box_rows),
                   {},
                   reinterpret_cast<const TmaWeight*>(weights.data())};
    if (layer.wide_stores) sm90.out_map = make_rows_map(layer.out, compute, rows, layer.n, layer.out_pitch, kStoreRows);
    launch_sm90(sm90, height, multiprocessors, stream);
  };
  launch(first, x, pitch, first_weights);
  launch(second, middle.data(), middle_pitch, second_weights);
}

void DeviceGroupedMlp::State::run_simt(const void* x, i64 rows, const i64* splits, const MlpLayer& first,
                                       const MlpLayer& second, GpuStream stream) {
  make_expert_tiles(splits, experts, rows, kSimtTileRows, tiles, stream);
  SimtLayer layer{first, x, hidden, reinterpret_cast<const StoredMatrix*>(first_weights.data())};
  launch_grouped_gemm_simt(layer, rows, stream);
  layer = {second, middle.data(), middle_pitch, reinterpret_cast<const StoredMatrix*>(second_weights.data())};
  launch_grouped_gemm_simt(layer, rows, stream);
}

void DeviceGroupedMlp::State::run(const void* x, i64 rows, const i64* splits, const float* probs, void* out,
                                  GpuStream stream) {
  if (rows < 0 || rows > max_rows) fail(ErrorCode::Usage, {}, "{} rows; made for at most {}", rows, max_rows);
  if (rows == 0) {
    // Splits may still be wrong; nothing else is there to be read.
    require_aligned(splits, sizeof(i64), "splits");
    make_expert_tiles(splits, experts, rows, kSimtTileRows, tiles, stream);
    return;
  }
  require_aligned(x, element_bytes, "x");
  require_aligned(out, element_bytes, "out");
  require_aligned(splits, sizeof(i64), "splits");
  require_aligned(probs, sizeof(float), "probs");
  const MlpLayer first = first_layer(probs);
  const MlpLayer second = second_layer(probs, out);
  by_sm90 ? run_sm90(x, rows, splits, first, second, stream) : run_simt(x, rows, splits, first, second, stream);
}

DeviceGroupedMlp::DeviceGroupedMlp(const GroupedMlp& mlp, i64 max_rows, GpuStream stream)
    : state_(std::make_unique<State>(mlp, max_rows, stream)) {}
DeviceGroupedMlp::~DeviceGroupedMlp() = default;
DeviceGroupedMlp::DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept = default;
DeviceGroupedMlp& DeviceGroupedMlp::operator=(DeviceGroupedMlp&&) noexcept = default;

void DeviceGroupedMlp::run(const void* x, i64 rows, const i64* splits, const float* probs, void* out,
                           GpuStream stream) const {
  state_->run(x, rows, splits, probs, out, stream);
}

void DeviceGroupedMlp::check_splits(GpuStream stream) const { check_split_status(state_->tiles.status, stream); }

}  // namespace glu_ckpt
