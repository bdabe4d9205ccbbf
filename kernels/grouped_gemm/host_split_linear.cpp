/// The grouped linear layer with splits on the host: one product of cuBLAS's per expert, or the device-split kernels.

#include <limits>
#include <optional>

#include "core/fail.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "kernels/common/cublas.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/grouped_gemm/expert_tiles.hpp"
#include "kernels/grouped_gemm/linear_args.hpp"

namespace glu_ckpt {
namespace {

/// NVIDIA advises so much for sm_90; older GPUs need less.
constexpr i64 kWorkspaceBytes = i64{32} << 20;

cudaDataType_t cublas_type(Dtype dtype) {
  if (dtype == Dtype::F32) return CUDA_R_32F;
  return dtype == Dtype::BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

int cublas_int(i64 value) {
  if (value > std::numeric_limits<int>::max())
    fail(ErrorCode::NotSupported, {}, "cuBLAS takes sizes up to {}, not {}", std::numeric_limits<int>::max(), value);
  return static_cast<int>(value);
}

/// The first of an expert's rows of a tensor with `cols` columns.
void* row_at(const void* data, i64 row, i64 cols, Dtype dtype) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + row * cols * (dtype_bits(dtype) / 8);
}

class CublasLinear {
 public:
  explicit CublasLinear(const GroupedLinear& linear)
      : linear_(linear), matrices_(matrix_addresses(linear)), workspace_(kWorkspaceBytes) {
    linear_.weights = {};
    linear_.grads = {};
    (void)cublas_int(linear.in_features);
    (void)cublas_int(linear.out_features);
  }

  void run(const LinearRows& rows, std::span<const i64> splits, GpuStream stream) const {
    for (const i64 split : splits) (void)cublas_int(split);
    cublas_.use(stream, workspace_.data(), workspace_.bytes());
    i64 first = 0;
    for (std::size_t e = 0; e < splits.size(); first += splits[e++]) {
      if (splits[e] > 0) {
        cublas_.gemm(product(rows, first, splits[e], matrices_[e]));
      } else if (linear_.product == LinearProduct::WeightGrad && !linear_.accumulate) {
        const i64 bytes = linear_.in_features * linear_.out_features * (dtype_bits(linear_.grad_dtype) / 8);
        CUDA_CHECK(cudaMemsetAsync(const_cast<void*>(matrices_[e]), 0, static_cast<std::size_t>(bytes), stream));
      }
    }
  }

 private:
  /// A row-major matrix is its transpose to cuBLAS, so each product is made as C^T = B^T A^T.
  CublasGemm product(const LinearRows& rows, i64 first, i64 count, const void* matrix) const {
    const Dtype dtype = linear_.dtype;
    const auto in = static_cast<int>(linear_.in_features), out = static_cast<int>(linear_.out_features);
    const auto tokens = static_cast<int>(count);
    const auto x = [&] { return row_at(rows.x, first, in, dtype); };
    const auto dy = [&] { return row_at(rows.dy, first, out, dtype); };
    CublasGemm gemm;
    gemm.operand_type = cublas_type(dtype);
    gemm.result_type = cublas_type(output_dtype(linear_));
    gemm.compute_type = dtype == Dtype::F32 ? kCublasCompute32FPedantic : kCublasCompute32F;
    gemm.beta = linear_.accumulate ? 1.0F : 0.0F;
    const auto set = [&gemm](int m, int n, int k, const void* a, int lda, const void* b, int ldb, void* c, int ldc) {
      gemm.m = m, gemm.n = n, gemm.k = k;
      gemm.a = a, gemm.lda = lda;
      gemm.b = b, gemm.ldb = ldb;
      gemm.c = c, gemm.ldc = ldc;
    };
    switch (linear_.product) {
      case LinearProduct::Forward:
        gemm.op_a = kCublasOpT;
        set(out, tokens, in, matrix, in, x(), in, row_at(rows.out, first, out, dtype), out);
        break;
      case LinearProduct::InputGrad:
        set(in, tokens, out, matrix, in, dy(), out, row_at(rows.out, first, in, dtype), in);
        break;
      case LinearProduct::WeightGrad:
        gemm.op_b = kCublasOpT;
        set(in, out, tokens, x(), in, dy(), out, const_cast<void*>(matrix), in);
        break;
    }
    return gemm;
  }

  GroupedLinear linear_;
  std::vector<const void*> matrices_;
  Cublas cublas_;
  DeviceBuffer workspace_;
};

/// The device-split kernels with splits that travel as kernel arguments.
class KernelLinear {
 public:
  KernelLinear(const GroupedLinear& linear, GpuStream stream)
      : device_(linear, stream), splits_(linear.num_experts * static_cast<i64>(sizeof(i64))) {
    // Loads that kernel too, so that the first run can be captured.
    const std::vector<i64> none(static_cast<std::size_t>(linear.num_experts));
    store_splits(none, reinterpret_cast<i64*>(splits_.data()), stream);
    // A run may be on another stream, whose splits these would overwrite.
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  void run(const LinearRows& rows, std::span<const i64> splits, GpuStream stream) const {
    auto* const on_device = reinterpret_cast<i64*>(splits_.data());
    store_splits(splits, on_device, stream);
    device_.run(rows, on_device, stream);
  }

 private:
  DeviceGroupedLinear device_;
  DeviceBuffer splits_;
};

}  // namespace

std::string why_no_cublas() {
  const std::string no_cuda = why_no_cuda();
  return no_cuda.empty() ? why_no_cublas_library() : no_cuda;
}

struct GroupedLinearHostSplits::State {
  /// Only its sizes and dtypes are used.
  GroupedLinear linear;
  std::optional<CublasLinear> cublas;
  std::optional<KernelLinear> kernels;

  State(const GroupedLinear& given, LinearEngine engine, GpuStream stream) : linear(given) {
    check_linear(given);
    linear.weights = {};
    linear.grads = {};
    if (engine == LinearEngine::Cublas && !why_no_cublas().empty())
      fail(ErrorCode::NoDevice, {}, "{}", why_no_cublas());
    if (engine == LinearEngine::Cublas || (engine == LinearEngine::Auto && why_no_cublas().empty())) {
      cublas.emplace(given);
    } else {
      kernels.emplace(given, stream);
    }
  }
};

GroupedLinearHostSplits::GroupedLinearHostSplits(const GroupedLinear& linear, LinearEngine engine, GpuStream stream)
    : state_(std::make_unique<State>(linear, engine, stream)) {}
GroupedLinearHostSplits::~GroupedLinearHostSplits() = default;
GroupedLinearHostSplits::GroupedLinearHostSplits(GroupedLinearHostSplits&&) noexcept = default;
GroupedLinearHostSplits& GroupedLinearHostSplits::operator=(GroupedLinearHostSplits&&) noexcept = default;

void GroupedLinearHostSplits::run(const LinearRows& rows, std::span<const i64> splits, GpuStream stream) const {
  check_linear_rows(state_->linear, rows);
  check_host_splits(state_->linear, rows.rows, splits);
  if (state_->cublas) {
    state_->cublas->run(rows, splits, stream);
  } else {
    state_->kernels->run(rows, splits, stream);
  }
}

}  // namespace glu_ckpt
