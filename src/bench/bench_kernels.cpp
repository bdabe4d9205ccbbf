/// `glu-ckpt bench kernels`. Buffers rotate, so that a small tensor is not read from the cache it was written to.

#include <algorithm>
#include <string_view>
#include <utility>

#include "bench/bench.hpp"
#include "bench/event_timer.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"
#include "glu_ckpt/ops/device_copy.hpp"
#include "glu_ckpt/ops/offsets.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"
#include "kernels/bench/measure_kernels.hpp"
#include "kernels/common/device_buffer.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kBf16Bytes = 2;
/// More adds nothing to a figure.
constexpr i64 kMostTensorBytes = i64{5} << 30;
/// The bytes of all buffers over which small tensors rotate: several times the 60 MB of an H200's L2.
constexpr i64 kRotationBytes = i64{512} << 20;

struct ExpertShape {
  const char* model;
  i64 experts;
  /// 2F and H.
  i64 rows;
  i64 hidden;
};

constexpr ExpertShape kModels[] = {
    {"DeepSeek-V3", 64, 4096, 7168},   {"Kimi-K2", 96, 4096, 7168},      {"Qwen3-30B", 128, 1536, 2048},
    {"gpt-oss-120b", 128, 5760, 2880}, {"Mixtral-8x7B", 8, 28672, 4096},
};

i64 expert_bytes(const ExpertShape& shape) { return shape.rows * shape.hidden * kBf16Bytes; }

/// Source and target memory, and what the timing needs.
class KernelBench {
 public:
  explicit KernelBench(const KernelBenchOptions& options) : options_(options) {
    const CudaDevice device = cuda_device(options.device);
    CUDA_CHECK(cudaSetDevice(options.device));
    const i64 allowed = options.memory_bytes > 0 ? options.memory_bytes : device.free_bytes / 10 * 9;
    const i64 largest = expert_bytes(*std::ranges::max_element(kModels, {}, expert_bytes));
    if (allowed < 2 * largest + kScratchBytes)
      fail(ErrorCode::NoMemory, {},
           "bench kernels: {} bytes of cuda:{}'s memory are needed, {} may be used; {} are free",
           2 * largest + kScratchBytes, options.device, allowed, device.free_bytes);
    pool_bytes_ = std::min(kMostTensorBytes, (allowed - kScratchBytes) / 2) / 4096 * 4096;
    src_ = DeviceBuffer(pool_bytes_);
    dst_ = DeviceBuffer(pool_bytes_);
    scratch_ = DeviceBuffer(kScratchBytes);
    fill(src_);
    fill(dst_);
  }

  /// The number of experts that fit into a pool.
  i64 fitting(const ExpertShape& shape) const {
    return std::clamp<i64>(pool_bytes_ / expert_bytes(shape), 1, shape.experts);
  }

  using Launch = std::function<void(std::byte* src, std::byte* dst, cudaStream_t stream)>;

  /// Microseconds of `launch` and of `reference`, medians of rounds in turn.
  std::pair<double, double> time(i64 tensor_bytes, const Launch& launch, const Launch& reference) {
    const i64 slot = (tensor_bytes + 4095) / 4096 * 4096;
    const i64 slots = std::clamp<i64>(kRotationBytes / slot, 1, pool_bytes_ / slot);
    // One pass over all slots warms up and shows how many fill a batch.
    const EventTimer::Work own = rotating(launch, slot, slots), other = rotating(reference, slot, slots);
    const int launches = launches_in_a_batch(timer_.batch(own, static_cast<int>(slots)));
    timer_.batch(other, static_cast<int>(slots));
    std::vector<double> a, b;
    for (int round = 0; round < std::max(1, options_.rounds); ++round) {
      a.push_back(timer_.batch(own, launches));
      b.push_back(timer_.batch(other, launches));
    }
    return {median(a), median(b)};
  }

  void report(KernelFigure figure) {
    if (options_.on_figure) options_.on_figure(figure);
    figures_.push_back(std::move(figure));
  }
  std::vector<KernelFigure> take_figures() { return std::move(figures_); }

  std::byte* src() const { return src_.data(); }
  std::byte* dst() const { return dst_.data(); }
  std::byte* scratch() const { return scratch_.data(); }
  static constexpr i64 kScratchBytes = i64{256} << 20;
  cudaStream_t stream() const { return timer_.stream(); }

 private:
  /// The data are not zeros: data that never change draw less power and run faster.
  static void fill(const DeviceBuffer& buffer) {
    std::vector<u32> pattern(std::size_t{1} << 22);
    u32 state = 1;
    for (u32& word : pattern) word = state = state * 1664525 + 1013904223;
    const i64 bytes = static_cast<i64>(pattern.size() * sizeof(u32));
    for (i64 at = 0; at < buffer.bytes(); at += bytes)
      CUDA_CHECK(cudaMemcpy(buffer.data() + at, pattern.data(),
                            static_cast<std::size_t>(std::min(bytes, buffer.bytes() - at)), cudaMemcpyHostToDevice));
  }

  /// `launch` on the next pair of slots each time.
  EventTimer::Work rotating(const Launch& launch, i64 slot, i64 slots) {
    return [this, &launch, slot, slots](cudaStream_t stream) {
      const i64 at = next_++ % slots * slot;
      launch(src_.data() + at, dst_.data() + at, stream);
    };
  }

  const KernelBenchOptions& options_;
  i64 pool_bytes_ = 0;
  DeviceBuffer src_, dst_, scratch_;
  EventTimer timer_;
  i64 next_ = 0;
  std::vector<KernelFigure> figures_;
};

KernelBench::Launch plain_copy(i64 bytes) {
  return [bytes](std::byte* src, std::byte* dst, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
  };
}

/// Gate and up of every expert of [E, 2F, H], from contiguous to interleaved:K or back.
std::vector<Move> glu_moves(const ExpertShape& shape, i64 experts, i64 block_rows, bool interleave) {
  const i64 row = shape.hidden * kBf16Bytes, block = block_rows * row, half = shape.rows / 2 * row;
  std::vector<Move> moves;
  for (i64 e = 0; e < experts; ++e)
    for (i64 h = 0; h < 2; ++h) {
      Move move;
      move.src_offset = e * 2 * half + h * half;
      move.dst_offset = e * 2 * half + h * block;
      move.dims[0] = {shape.rows / 2 / block_rows, block, 2 * block};
      move.run_bytes = block;
      if (!interleave) {
        std::swap(move.src_offset, move.dst_offset);
        std::swap(move.dims[0].src_step, move.dims[0].dst_step);
      }
      moves.push_back(move);
    }
  return moves;
}

/// gpt-oss's own [E, H, 2F] with gate and up in turn, to [E, 2F, H] in halves, or back.
std::vector<Move> turn_moves(const ExpertShape& shape, i64 experts, bool there) {
  const i64 row = shape.hidden * kBf16Bytes, width = shape.rows / 2;
  std::vector<Move> moves;
  for (i64 e = 0; e < experts; ++e)
    for (i64 h = 0; h < 2; ++h) {
      Move move;
      move.src_offset = e * expert_bytes(shape) + h * kBf16Bytes;
      move.dst_offset = e * expert_bytes(shape) + h * width * row;
      move.dims[0] = {width, 2 * kBf16Bytes, row};
      move.dims[1] = {shape.hidden, shape.rows * kBf16Bytes, kBf16Bytes};
      move.run_bytes = kBf16Bytes;
      if (!there) {
        std::swap(move.src_offset, move.dst_offset);
        for (MoveDim& dim : move.dims) std::swap(dim.src_step, dim.dst_step);
      }
      moves.push_back(move);
    }
  return moves;
}

/// Makes the same moves with every expert in a tensor of its own on the source side.
void make_indexed(std::vector<Move>& moves, i64 bytes) {
  for (Move& move : moves) {
    move.src = static_cast<std::size_t>(move.src_offset / bytes);
    move.src_offset %= bytes;
  }
}

std::string glu_text(bool interleave, i64 block_rows) {
  return (interleave ? "interleave:" : "de-interleave:") + std::to_string(block_rows);
}

std::vector<i64> shape_of(const ExpertShape& shape, i64 experts) { return {experts, shape.rows, shape.hidden}; }

void bench_moves(KernelBench& bench, const ExpertShape& shape, i64 experts, const std::vector<Move>& moves,
                 const std::string& kernel, const std::string& what) {
  const i64 bytes = experts * expert_bytes(shape);
  std::size_t sources = 1;
  for (const Move& move : moves) sources = std::max(sources, move.src + 1);
  const auto launch = [&](std::byte* src, std::byte* dst, cudaStream_t stream) {
    std::vector<const std::byte*> srcs;
    for (std::size_t s = 0; s < sources; ++s) srcs.push_back(src + static_cast<i64>(s) * expert_bytes(shape));
    device_copy(moves, srcs, std::span(&dst, 1), stream);
  };
  const auto [own, copy] = bench.time(bytes, launch, plain_copy(bytes));
  bench.report({kernel, shape.model, what, shape_of(shape, experts), 2 * bytes, own, "cudaMemcpyAsync", copy});
}

void bench_in_place(KernelBench& bench, const ExpertShape& shape, i64 experts, i64 block_rows, bool interleave) {
  const i64 bytes = experts * expert_bytes(shape);
  InPlaceGlu glu;
  glu.experts = experts;
  glu.expert_step = expert_bytes(shape);
  glu.rows = shape.rows;
  glu.row_bytes = shape.hidden * kBf16Bytes;
  glu.block_rows = block_rows;
  glu.interleave = interleave;
  const InPlacePermutation permutation(glu, bench.scratch(), in_place_scratch_bytes(glu, KernelBench::kScratchBytes),
                                       bench.stream());
  const std::vector<Move> moves = glu_moves(shape, experts, block_rows, interleave);
  const auto in_place = [&](std::byte*, std::byte* dst, cudaStream_t stream) { permutation.run(dst, stream); };
  const auto out_of_place = [&](std::byte* src, std::byte* dst, cudaStream_t stream) {
    const std::byte* from = src;
    device_copy(moves, std::span(&from, 1), std::span(&dst, 1), stream);
  };
  const auto [own, other] = bench.time(bytes, in_place, out_of_place);
  bench.report({"in_place", shape.model, glu_text(interleave, block_rows), shape_of(shape, experts), 2 * bytes, own,
                "strided_copy", other});
}

/// The five arrays that a grouped MLP asks for, of DeepSeek-V3's widths.
void bench_offsets(KernelBench& bench, i64 groups) {
  const std::vector<OffsetSpec> specs = {{1, false, Dtype::I32},
                                         {1, true, Dtype::I64},
                                         {7168, true, Dtype::I64},
                                         {2048, true, Dtype::I64},
                                         {7168, true, Dtype::I64}};
  const std::vector<i64> rows(static_cast<std::size_t>(groups), 37);
  const DeviceBuffer splits(groups * static_cast<i64>(sizeof(i64)));
  CUDA_CHECK(cudaMemcpy(splits.data(), rows.data(), static_cast<std::size_t>(splits.bytes()), cudaMemcpyHostToDevice));
  const OffsetArrays arrays(groups, specs);
  const auto launch = [&](std::byte*, std::byte*, cudaStream_t stream) {
    splits_to_offsets_multi({splits.data(), Dtype::I64, groups}, arrays.outputs(), arrays.flags(), stream);
  };
  const double own = bench.time(1, launch, launch).first;
  bench.report({"splits_to_offsets", "", "5 arrays, one launch", {groups}, 0, own, "", 0});
}

/// Compares tensors beside a plain read of both sides: equal ones, and ones that are equal but for a shift by a row, so
/// that nearly every element differs. They are arbitrary bits, some of them NaNs and infinities, or numbers as weights
/// are.
void bench_diff(KernelBench& bench, const ExpertShape& shape, i64 experts, std::string_view data) {
  const i64 bytes = experts * expert_bytes(shape);
  auto* const sums = reinterpret_cast<u32*>(bench.scratch());
  CUDA_CHECK(cudaMemsetAsync(sums, 0, kReadSums * sizeof(u32), bench.stream()));
  const auto read_both = [&](std::byte* src, std::byte* dst, cudaStream_t stream) {
    plain_read(src, bytes, sums, stream);
    plain_read(dst, bytes, sums, stream);
  };
  plain_copy(bytes)(bench.src(), bench.dst(), bench.stream());
  for (const i64 shift : {i64{0}, shape.hidden * kBf16Bytes}) {
    const auto launch = [&](std::byte* src, std::byte* dst, cudaStream_t stream) {
      (void)diff_stats(src, dst + shift, (bytes - shift) / kBf16Bytes, Dtype::BF16, stream);
    };
    const auto [own, read] = bench.time(bytes, launch, read_both);
    bench.report({"diff_stats", shape.model, fmt::format("{}, {}", data, shift == 0 ? "equal" : "nearly all differ"),
                  shape_of(shape, experts), 2 * bytes, own, "plain_read of both", read});
  }
}

struct DecodedFormat {
  const char* name;
  Codes codes;
  /// 0: all of the matrix.
  i64 cell_rows;
  i64 cell_cols;
  Dtype scales;
  bool globals;
  bool zeros = false;
};

constexpr DecodedFormat kDecodedFormats[] = {
    {"FP8, 128x128 F32, to bf16", Codes::E4m3, 128, 128, Dtype::F32, false},
    {"FP8, channel BF16, to bf16", Codes::E4m3, 1, 0, Dtype::BF16, false},
    {"MXFP8 to bf16", Codes::E4m3, 1, 32, Dtype::F8_E8M0, false},
    {"MXFP4 to bf16", Codes::E2m1, 1, 32, Dtype::F8_E8M0, false},
    {"NVFP4 to bf16", Codes::E2m1, 1, 16, Dtype::F8_E4M3, true},
    {"INT4, groups of 32, to bf16", Codes::Int4, 1, 32, Dtype::BF16, false},
    {"INT4 with zeros, groups of 128", Codes::Int4, 1, 128, Dtype::BF16, false, true},
    {"AWQ, groups of 128, to bf16", Codes::Awq, 1, 128, Dtype::F16, false, true},
    {"GPTQ, groups of 128, to bf16", Codes::Gptq, 1, 128, Dtype::F16, false, true},
};

/// Codes and scales are arbitrary bytes. Beside a copy that reads and writes as many bytes in all.
void bench_decode(KernelBench& bench, const ExpertShape& shape, i64 experts, const DecodedFormat& format) {
  CodedWeight weight{.codes = format.codes, .matrices = experts, .rows = shape.rows, .cols = shape.hidden};
  weight.cell_rows = format.cell_rows == 0 ? shape.rows : format.cell_rows;
  weight.cell_cols = format.cell_cols == 0 ? shape.hidden : format.cell_cols;
  weight.scale_dtype = format.scales;
  const i64 count = experts * shape.rows * shape.hidden;
  const i64 code_bytes = format.codes == Codes::E4m3 ? count : count / 2;
  const i64 scale_bytes = count / (weight.cell_rows * weight.cell_cols) * (dtype_bits(format.scales) / 8);
  // A few second scales, and the others behind them.
  const i64 globals = round_up(experts * static_cast<i64>(sizeof(float)), i64{4096});
  const i64 zero_bytes = format.zeros ? count / weight.cell_cols / 2 : 0;
  if (globals + scale_bytes + zero_bytes > KernelBench::kScratchBytes) return;
  plain_copy(globals + scale_bytes + zero_bytes)(bench.src(), bench.scratch(), bench.stream());
  weight.scales = bench.scratch() + globals;
  if (format.zeros) weight.zeros = reinterpret_cast<const u32*>(bench.scratch() + globals + scale_bytes);
  if (format.globals) weight.globals = reinterpret_cast<const float*>(bench.scratch());
  const auto launch = [&](std::byte* src, std::byte* dst, cudaStream_t stream) {
    CodedWeight coded = weight;
    coded.data = src;
    decode_codes(coded, Dtype::BF16, dst, stream);
  };
  const i64 decoded_bytes = count * kBf16Bytes, moved = code_bytes + scale_bytes + zero_bytes + decoded_bytes;
  const auto [own, copy] = bench.time(decoded_bytes, launch, plain_copy(moved / 2));
  bench.report(
      {"decode_codes", shape.model, format.name, shape_of(shape, experts), moved, own, "cudaMemcpyAsync", copy});
}

}  // namespace

std::vector<KernelFigure> bench_kernels(const KernelBenchOptions& options) {
  KernelBench bench(options);
  for (const ExpertShape& shape : kModels) {
    const i64 experts = bench.fitting(shape);
    for (const i64 block_rows : {32, 8, 1})
      for (const bool interleave : {true, false})
        bench_moves(bench, shape, experts, glu_moves(shape, experts, block_rows, interleave), "strided_copy",
                    glu_text(interleave, block_rows));
    auto indexed = glu_moves(shape, experts, 32, true);
    make_indexed(indexed, expert_bytes(shape));
    bench_moves(bench, shape, experts, indexed, "strided_copy", "indexed to grouped, " + glu_text(true, 32));
    for (const i64 block_rows : {32, 1})
      for (const bool interleave : {true, false})
        bench_moves(bench, shape, 1, glu_moves(shape, 1, block_rows, interleave), "strided_copy",
                    glu_text(interleave, block_rows));
    for (const i64 block_rows : {32, 8, 1})
      for (const bool interleave : {true, false}) bench_in_place(bench, shape, experts, block_rows, interleave);
    if (std::string_view(shape.model) != "gpt-oss-120b") continue;
    for (const bool there : {true, false})
      bench_moves(bench, shape, experts, turn_moves(shape, experts, there), "transpose_copy",
                  there ? "[E, H, 2F] in turn to [E, 2F, H] halves" : "[E, 2F, H] halves to [E, H, 2F] in turn");
  }
  const i64 experts = bench.fitting(kModels[0]);
  bench_diff(bench, kModels[0], experts, "bf16 bits");
  for (const DecodedFormat& format : kDecodedFormats) bench_decode(bench, kModels[0], experts, format);
  random_fill_bf16(bench.src(), experts * kModels[0].rows * kModels[0].hidden, 0.02F, 1, bench.stream());
  bench_diff(bench, kModels[0], experts, "bf16 weights");
  for (const i64 groups : {8, 64, 256}) bench_offsets(bench, groups);
  return bench.take_figures();
}

}  // namespace glu_ckpt
