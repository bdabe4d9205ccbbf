#pragma once
/// Codes whose neighbours tell how far they round: the number that a code stands for is the nearest one to what was
/// quantized, so that lies within half of the step to either neighbour.

#include <cstddef>
#include <span>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"

namespace glu_ckpt {

enum class Nudge { None, Down, Up };

/// Replaces each code by the one for the next number below or above, whatever its scale; the last one of its range, and
/// what is no finite number, stays.
void nudge_codes(Codes codes, Nudge nudge, std::span<std::byte> bytes);

/// A checkpoint in which the codes of one tensor are nudged. It borrows `source`.
class NudgedSource final : public Source {
 public:
  NudgedSource(const Source& source, std::size_t tensor, Codes codes, Nudge nudge)
      : source_(source), tensor_(tensor), codes_(codes), nudge_(nudge) {}

  const CheckpointInfo& info() const override { return source_.info(); }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override;
  const ContentCheck* content_check() const override { return nullptr; }
  const FileBacked* file_backed() const override { return nullptr; }

 private:
  const Source& source_;
  std::size_t tensor_;
  Codes codes_;
  Nudge nudge_;
};

}  // namespace glu_ckpt
