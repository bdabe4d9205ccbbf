#include "model/settle_copies.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/stage.hpp"

namespace glu_ckpt {
namespace {

/// The first byte in which two tensors of as many bytes differ; -1 where none does.
i64 first_unlike_byte(const Source& source, const TensorCopy& copy, const std::function<void(i64)>& on_progress) {
  constexpr i64 kPartBytes = i64{4} << 20;
  const i64 bytes = source.inventory().tensors[copy.tensor].bytes;
  std::vector<std::byte> left, right;
  for (i64 begin = 0; begin < bytes; begin += kPartBytes) {
    const auto size = static_cast<std::size_t>(std::min(kPartBytes, bytes - begin));
    left.resize(size);
    right.resize(size);
    source.read(copy.tensor, begin, left);
    source.read(copy.original, begin, right);
    on_progress(2 * static_cast<i64>(size));
    const auto at = std::mismatch(left.begin(), left.end(), right.begin()).first;
    if (at != left.end()) return begin + (at - left.begin());
  }
  return -1;
}

}  // namespace

std::string to_sentence(const UnlikeCopy& copy) {
  return fmt::format("'{}' should repeat '{}', but differs from its byte {} on", copy.name, copy.original, copy.byte);
}

std::vector<UnlikeCopy> find_unlike_copies(const RunOptions& run, const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.source->inventory().tensors;
  i64 bytes = 0;
  for (const TensorCopy& copy : checkpoint.recognition.copies) bytes += 2 * tensors[copy.tensor].bytes;
  if (bytes == 0) return {};
  Stage stage(run, "comparing copies", bytes);
  const auto on_progress = stage.on_progress();
  std::vector<UnlikeCopy> found;
  for (const TensorCopy& copy : checkpoint.recognition.copies)
    if (const i64 at = first_unlike_byte(*checkpoint.source, copy, on_progress); at >= 0)
      found.push_back({tensors[copy.tensor].name, tensors[copy.original].name, at});
  return found;
}

void take_as_own(const std::vector<UnlikeCopy>& copies, const Inventory& inventory, Recognition& recognition) {
  std::erase_if(recognition.copies, [&](const TensorCopy& copy) {
    return std::ranges::find(copies, inventory.tensors[copy.tensor].name, &UnlikeCopy::name) != copies.end();
  });
}

std::vector<UnlikeCopy> settle_copies(const RunOptions& run, Checkpoint& checkpoint) {
  std::vector<UnlikeCopy> found = find_unlike_copies(run, checkpoint);
  for (const UnlikeCopy& copy : found)
    tell_note(run, "{}: {}: it is compared as a tensor of its own", checkpoint.source->path().string(),
              to_sentence(copy));
  take_as_own(found, checkpoint.source->inventory(), checkpoint.recognition);
  return found;
}

}  // namespace glu_ckpt
