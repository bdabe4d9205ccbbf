#pragma once
/// Checkpoints in memory, so that a test of layouts, plans or digests touches no file.

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

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
  const Inventory& inventory() const override { return inventory_; }
  const ModelHints& hints() const override { return hints_; }
  const Record& record() const override { return record_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<ExtraFile>& extra_files() const override { return extra_files_; }
  const std::filesystem::path& path() const override { return path_; }
  i64 file_bytes() const override { return file_bytes_; }
  void read(std::size_t tensor, i64 offset, std::span<std::byte> out) const override;
  const std::vector<MemoryTensor>& tensors() const { return tensors_; }

 private:
  std::vector<MemoryTensor> tensors_;
  Inventory inventory_;
  ModelHints hints_;
  Record record_;
  std::map<std::string, std::string> metadata_;
  std::vector<ExtraFile> extra_files_;
  std::filesystem::path path_ = "memory";
  i64 file_bytes_ = 0;
};

/// Only names, dtypes and shapes: enough for recognition.
Inventory make_inventory(const std::vector<MemoryTensor>& tensors);

/// A Sink that starts poisoned and counts how often each byte is written.
class MemorySink final : public Sink {
 public:
  explicit MemorySink(const std::vector<OutputTensor>& outputs);
  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override;
  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  i64 file_offset(std::size_t) const override { return 0; }
  Journal& journal() override;
  void finish(const Record&) override {}
  std::filesystem::path staged_path() const override { return {}; }
  void commit() override {}
  i64 bytes_written() const override { return bytes_written_; }
  /// Empty when every byte was written exactly once, else the first byte that was not.
  std::string first_fault() const;
  const std::vector<MemoryTensor>& tensors() const { return tensors_; }

 private:
  std::vector<MemoryTensor> tensors_;
  std::vector<std::vector<std::uint8_t>> writes_;
  std::mutex mutex_;
  i64 bytes_written_ = 0;
};

/// Bytes of a dense tensor, sub-byte dtypes rounded up.
i64 tensor_bytes(Dtype dtype, const std::vector<i64>& shape);

}  // namespace glu_ckpt::support
