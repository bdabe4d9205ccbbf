#pragma once
/// cuBLAS is loaded while the program runs, which neither links it nor needs it. This header declares what the grouped
/// linear layer calls, with types of its own, so a build needs no cublas_v2.h.

#include <library_types.h>

#include <string>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// Values of cublas_api.h, part of the library's ABI.
enum CublasValue : int {
  kCublasOpN = 0,
  kCublasOpT = 1,
  kCublasCompute32F = 68,
  /// Products and sums are made in fp32, without TF32.
  kCublasCompute32FPedantic = 69,
  kCublasGemmDefault = -1,
  /// Partial sums, too, are fp32.
  kCublasNoReducedPrecisionReduction = 16,
};

using CublasHandle = struct cublasContext*;

struct CublasGemm {
  int op_a = kCublasOpN, op_b = kCublasOpN;
  /// Column-major: C [m, n] = op(A) [m, k] op(B) [k, n], leading dimensions in elements.
  int m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int lda = 0;
  const void* b = nullptr;
  int ldb = 0;
  void* c = nullptr;
  int ldc = 0;
  cudaDataType_t operand_type = CUDA_R_16BF;
  cudaDataType_t result_type = CUDA_R_16BF;
  int compute_type = kCublasCompute32F;
  /// C = product + beta C, 0 or 1.
  float beta = 0;
};

/// Says in a sentence why there is no cuBLAS; empty where there is one. The first call loads it.
const std::string& why_no_cublas_library();

/// A handle on the current device. Throws NoDevice where cuBLAS is not there, NoMemory, DeviceFailed.
class Cublas {
 public:
  Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  /// Makes the next products run on `stream`, with `bytes` of device memory to work in.
  void use(GpuStream stream, void* workspace, i64 bytes) const;
  void gemm(const CublasGemm& gemm) const;

 private:
  CublasHandle handle_ = nullptr;
};

}  // namespace glu_ckpt
