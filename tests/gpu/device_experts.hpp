#pragma once
/// Experts of tests in device memory.

#include <algorithm>

#include "guarded_array.hpp"
#include "support/mlp_cases.hpp"

namespace glu_ckpt::support {

/// Experts in device memory, each buffer `shift` bytes behind a multiple of 256.
class DeviceExperts {
 public:
  DeviceExperts(const StoredExperts& stored, i64 shift) : experts_(stored.experts()) {
    for (const auto& buffer : stored.buffers()) arrays_.emplace_back(buffer, shift);
    for (ExpertWeights& expert : experts_)
      for (StoredMatrix* const matrix :
           {&expert.gate, &expert.up, &expert.down, &expert.gate_bias, &expert.up_bias, &expert.down_bias}) {
        move(stored, matrix->first.data);
        move(stored, matrix->tail.data);
      }
  }
  std::span<const ExpertWeights> experts() const { return experts_; }

  /// Overwrites the values where they stand; `stored` is of the same shape and order.
  void upload(const StoredExperts& stored) {
    for (std::size_t i = 0; i < arrays_.size(); ++i) arrays_[i].upload(stored.buffers()[i]);
  }

  /// What they hold now.
  std::vector<PlainExpert> download(const StoredExperts& stored) const {
    std::vector<std::vector<std::byte>> buffers;
    for (const GuardedArray& array : arrays_) buffers.push_back(array.download());
    std::vector<PlainExpert> values;
    for (ExpertWeights expert : stored.experts()) {
      for (StoredMatrix* const matrix :
           {&expert.gate, &expert.up, &expert.down, &expert.gate_bias, &expert.up_bias, &expert.down_bias})
        for (const std::byte** const data : {&matrix->first.data, &matrix->tail.data})
          for (std::size_t i = 0; i < buffers.size(); ++i) {
            const auto& from = stored.buffers()[i];
            if (*data == nullptr || *data < from.data() || *data >= from.data() + from.size()) continue;
            *data = buffers[i].data() + (*data - from.data());
            break;
          }
      values.push_back(stored_values(expert));
    }
    return values;
  }

  bool guards_intact() const {
    return std::ranges::all_of(arrays_, [](const GuardedArray& array) { return array.guards_intact(); });
  }

 private:
  void move(const StoredExperts& stored, const std::byte*& data) const {
    for (std::size_t i = 0; data != nullptr && i < arrays_.size(); ++i) {
      const auto& buffer = stored.buffers()[i];
      if (data < buffer.data() || data >= buffer.data() + buffer.size()) continue;
      data = arrays_[i].data() + (data - buffer.data());
      return;
    }
  }

  std::vector<ExpertWeights> experts_;
  std::vector<GuardedArray> arrays_;
};

}  // namespace glu_ckpt::support
