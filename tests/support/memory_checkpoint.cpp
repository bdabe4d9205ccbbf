#include "support/memory_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace glu_ckpt::support {

i64 tensor_bytes(Dtype dtype, const std::vector<i64>& shape) {
  i64 elements = 1;
  for (const i64 extent : shape) elements *= extent;
  return (elements * dtype_bits(dtype) + 7) / 8;
}

Inventory make_inventory(const std::vector<MemoryTensor>& tensors) {
  Inventory inventory;
  inventory.files.emplace_back("memory");
  i64 offset = 0;
  for (const MemoryTensor& tensor : tensors) {
    const i64 bytes = tensor_bytes(tensor.dtype, tensor.shape);
    inventory.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, bytes, 0, offset});
    offset += bytes;
  }
  return inventory;
}

MemorySource::MemorySource(std::vector<MemoryTensor> tensors, ModelHints hints, Record record)
    : tensors_(std::move(tensors)) {
  info_.path = "memory";
  info_.inventory = make_inventory(tensors_);
  info_.hints = std::move(hints);
  info_.record = std::move(record);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensor_bytes(tensors_[i].dtype, tensors_[i].shape) != std::ssize(tensors_[i].bytes))
      throw std::logic_error(tensors_[i].name + ": bytes and shape disagree");
    info_.inventory.tensors[i].file = static_cast<u32>(i);
    info_.inventory.files.push_back(tensors_[i].name);
  }
}

i64 MemorySource::bytes() const {
  i64 bytes = 0;
  for (const MemoryTensor& tensor : tensors_) bytes += std::ssize(tensor.bytes);
  return bytes;
}

void MemorySource::read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const {
  const auto& bytes = tensors_.at(tensor).bytes;
  for (const std::span<std::byte> piece : pieces) {
    if (offset < 0 || offset + std::ssize(piece) > std::ssize(bytes))
      throw std::out_of_range(fmt::format("{}: read of [{}, {}) in {} bytes", tensors_[tensor].name, offset,
                                          offset + std::ssize(piece), bytes.size()));
    std::copy_n(bytes.begin() + offset, piece.size(), piece.begin());
    offset += std::ssize(piece);
  }
}

MemorySink::MemorySink(const std::vector<OutputTensor>& outputs) {
  constexpr std::byte kPoison{0xA5};
  for (const OutputTensor& output : outputs) {
    const auto bytes = static_cast<std::size_t>(output.bytes);
    tensors_.push_back({output.name, output.dtype, output.shape, std::vector<std::byte>(bytes, kPoison)});
    writes_.emplace_back(bytes);
  }
}

void MemorySink::write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
  // A lock, as a doubly written byte should be counted and not be a data race.
  const std::lock_guard lock(mutex_);
  auto& data = tensors_.at(tensor).bytes;
  if (offset < 0 || offset + static_cast<i64>(bytes.size()) > static_cast<i64>(data.size()))
    throw std::out_of_range(tensors_[tensor].name + ": write outside the tensor");
  std::copy(bytes.begin(), bytes.end(), data.begin() + offset);
  const auto first = writes_[tensor].begin() + offset;
  std::for_each(first, first + static_cast<i64>(bytes.size()), [](std::uint8_t& count) { ++count; });
}

void MemorySink::read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
  const auto& data = tensors_.at(tensor).bytes;
  if (offset < 0 || offset + static_cast<i64>(out.size()) > static_cast<i64>(data.size()))
    throw std::out_of_range(tensors_[tensor].name + ": read outside the tensor");
  std::copy_n(data.begin() + offset, out.size(), out.begin());
}

void MemorySink::adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) {
  write(tensor, offset, bytes);
}

std::string MemorySink::first_fault() const {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto fault = std::ranges::find_if(writes_[t], [](std::uint8_t count) { return count != 1; });
    if (fault != writes_[t].end())
      return fmt::format("{}: byte {} was written {} times", tensors_[t].name, fault - writes_[t].begin(), *fault);
  }
  return {};
}

}  // namespace glu_ckpt::support
