#pragma once
/// Tensors in memory as the two ends of a plan, where a conversion has files.

#include <memory>
#include <span>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"
#include "glu_ckpt/plan.hpp"
#include "io/sink.hpp"

namespace glu_ckpt {

/// The addresses of all tensors of an inventory, in its order. Whoever keeps it may put others of the same shapes there
/// between two runs.
using TensorViews = std::vector<TensorView>;

/// A Source over tensors that somebody else holds, in host memory or on a GPU. A tensor without an address has a name
/// and a shape only; reading it throws Usage.
class MemorySource final : public Source {
 public:
  MemorySource(CheckpointInfo info, std::shared_ptr<const TensorViews> views)
      : info_(std::move(info)), views_(std::move(views)) {}

  const CheckpointInfo& info() const override { return info_; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override;
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }

 private:
  CheckpointInfo info_;
  std::shared_ptr<const TensorViews> views_;
};

/// A Sink into tensors that somebody else holds; what is for one without an address is dropped.
class MemorySink final : public Sink {
 public:
  explicit MemorySink(std::span<const TensorView> views) : views_(views) {}

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  i64 file_offset(std::size_t) const override { return -1; }

 private:
  std::span<const TensorView> views_;
};

/// Copies bytes of a tensor, wherever it is, to host memory and from there; on a GPU they wait for the copy.
void copy_to_host(const TensorView& from, i64 offset, std::span<std::byte> out);
void copy_from_host(const TensorView& to, i64 offset, std::span<const std::byte> bytes);

struct MemoryRun {
  /// Threads of the CPU; 0: one per usable core.
  int jobs = 0;
  /// The stream that work on GPUs is queued on.
  GpuStream stream = nullptr;
};

/// Carries a plan out by copies from tensor to tensor, without buffers between. `from` and `to` are by the plan's
/// numbers, all that goes into one output is on its device, and outputs without an address are not made. On a GPU it is
/// asynchronous, and a graph can capture it, where nothing is computed.
void move_in_memory(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to,
                    const MemoryRun& run);

/// Computes what a plan computes, which is as small as norms. What is on a GPU goes through host memory, and is waited
/// for.
void compute_in_memory(const Plan& plan, std::span<const TensorView> from, std::span<const TensorView> to);

}  // namespace glu_ckpt
