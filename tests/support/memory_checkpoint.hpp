#pragma once
/// Checkpoints in memory, so that a test of layouts, plans or digests touches no file.

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "io/sink.hpp"

namespace glu_ckpt::support {

struct MemoryTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  std::vector<std::byte> bytes;
};

/// A Source over tensors at hand, each said to be in a file of its own. Reads outside a tensor throw, as a file would.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::vector<MemoryTensor> tensors, ModelHints hints = {}, Record record = {});
  const CheckpointInfo& info() const override { return info_; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override;
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }
  /// Bytes of all tensors.
  i64 bytes() const;
  const std::vector<MemoryTensor>& tensors() const { return tensors_; }

 private:
  std::vector<MemoryTensor> tensors_;
  CheckpointInfo info_;
};

/// Only names, dtypes and shapes: enough for recognition.
Inventory make_inventory(const std::vector<MemoryTensor>& tensors);

/// A Sink that starts poisoned and counts how often each byte is written.
class MemorySink final : public DurableSink {
 public:
  explicit MemorySink(const std::vector<OutputTensor>& outputs);
  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override;
  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  i64 file_offset(std::size_t) const override { return 0; }
  bool clone(std::size_t, i64, const FilePlace&, i64) override { return false; }
  /// Empty when every byte was written exactly once, else the first byte that was not.
  std::string first_fault() const;
  const std::vector<MemoryTensor>& tensors() const { return tensors_; }

 private:
  std::vector<MemoryTensor> tensors_;
  std::vector<std::vector<std::uint8_t>> writes_;
  std::mutex mutex_;
};

/// Bytes of a dense tensor, sub-byte dtypes rounded up.
i64 tensor_bytes(Dtype dtype, const std::vector<i64>& shape);

}  // namespace glu_ckpt::support
