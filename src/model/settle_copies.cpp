#include "model/settle_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/checked_math.hpp"
#include "core/float_rows.hpp"
#include "model/stage.hpp"
#include "quant/decoded_source.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kPartElements = i64{1} << 20;

struct Difference {
  /// The first byte of the copy that differs; -1 where none does.
  i64 byte = -1;
  bool rounded = false;
};

/// Reads a copy and what it should repeat, part by part: elements where one of them is decoded, else bytes.
class CopyReader {
 public:
  CopyReader(const Source& source, const TensorCopy& copy)
      : source_(source), copy_(copy), may_round_(is_decoded(copy.tensor) || is_decoded(copy.original)) {}

  i64 count() const {
    const TensorRef& copy = tensor(copy_.tensor);
    return may_round_ ? checked_product(copy.shape).value_or(0) : std::min(copy.bytes, tensor(copy_.original).bytes);
  }
  i64 bytes_of(i64 count) const { return count * (step(copy_.tensor) + step(copy_.original)); }

  /// Adds what differs in [first, first + count). Returns false where that is more than rounding.
  bool compare(i64 first, i64 count, Difference& found) {
    fetch(copy_.tensor, first, count, left_);
    fetch(copy_.original, first, count, right_);
    if (left_.bytes == right_.bytes && tensor(copy_.tensor).dtype == tensor(copy_.original).dtype) return true;
    const i64 at = may_round_ ? first_apart(first, count) : first_unlike();
    found.rounded = at < 0;
    if (at >= 0) found.byte = first * step(copy_.tensor) + at;
    return at < 0;
  }

 private:
  /// One of the two: the bytes of a part, and between which numbers its elements were before they were rounded.
  struct Side {
    std::vector<std::byte> bytes;
    std::vector<float> low, high;
  };

  const TensorRef& tensor(std::size_t number) const { return source_.inventory().tensors[number]; }
  bool is_decoded(std::size_t number) const {
    return std::ranges::find(source_.info().decoded_weights, number) != source_.info().decoded_weights.end();
  }
  i64 step(std::size_t number) const { return may_round_ ? dtype_bits(tensor(number).dtype) / 8 : 1; }

  void fetch(std::size_t number, i64 first, i64 count, Side& side) const {
    side.bytes.resize(static_cast<std::size_t>(count * step(number)));
    source_.read(number, first * step(number), side.bytes);
  }

  void bound(std::size_t number, i64 first, i64 count, Side& side) const {
    side.low.resize(static_cast<std::size_t>(count));
    side.high.resize(side.low.size());
    if (is_decoded(number)) return read_unrounded(source_, number, first, side.low, side.high);
    widen_row(side.bytes.data(), tensor(number).dtype, side.low);
    side.high = side.low;
  }

  /// Numbers of two dtypes that nobody decoded differ from the first byte on.
  i64 first_unlike() const {
    if (tensor(copy_.tensor).dtype != tensor(copy_.original).dtype) return 0;
    return std::mismatch(left_.bytes.begin(), left_.bytes.end(), right_.bytes.begin()).first - left_.bytes.begin();
  }

  /// Quotients and scales may have been rounded to bf16 when codes were made, and so may each number.
  i64 first_apart(i64 first, i64 count) {
    constexpr float kSlack = 0x1p-8F;
    bound(copy_.tensor, first, count, left_);
    bound(copy_.original, first, count, right_);
    for (std::size_t i = 0; i < left_.low.size(); ++i) {
      const float slack = kSlack * std::max(std::fabs(right_.low[i]), std::fabs(right_.high[i]));
      const bool meet = left_.low[i] <= right_.high[i] + slack && right_.low[i] - slack <= left_.high[i];
      if (!meet) return static_cast<i64>(i) * step(copy_.tensor);
    }
    return -1;
  }

  const Source& source_;
  const TensorCopy& copy_;
  bool may_round_;
  Side left_, right_;
};

/// Where parts begin, of all of them or of a few.
std::vector<i64> parts_to_read(i64 count, CopyReading reading) {
  constexpr i64 kSampledParts = 8;
  const i64 parts = (count + kPartElements - 1) / kPartElements;
  const i64 read = reading == CopyReading::Whole ? parts : std::min(parts, kSampledParts);
  std::vector<i64> begins;
  for (i64 i = 0; i < read; ++i) begins.push_back((read == 1 ? 0 : i * (parts - 1) / (read - 1)) * kPartElements);
  return begins;
}

void settle(const RunOptions& run, const std::vector<UnlikeCopy>& found, Checkpoint& checkpoint) {
  for (const UnlikeCopy& copy : found)
    tell_note(run, "{}: {}: it is compared as a tensor of its own", checkpoint.source->path().string(),
              to_sentence(copy));
  take_as_own(found, checkpoint.source->inventory(), checkpoint.recognition);
}

/// Lets those stay copies that are rounded and no tensor of their own in the other checkpoint.
void keep_rounded(const RunOptions& run, const std::vector<UnlikeCopy>& others, const Checkpoint& checkpoint,
                  std::vector<UnlikeCopy>& found) {
  std::erase_if(found, [&](const UnlikeCopy& copy) {
    if (!copy.rounded || std::ranges::find(others, copy.name, &UnlikeCopy::name) != others.end()) return false;
    tell_note(run, "{}: {}: '{}' is compared for both", checkpoint.source->path().string(), to_sentence(copy),
              copy.original);
    return true;
  });
}

/// Returns whether all elements are 0, or -0 in a dtype whose sign is the highest bit of an element's last byte.
bool is_zero(const Source& source, std::size_t tensor) {
  const TensorRef& ref = source.inventory().tensors[tensor];
  std::vector<std::byte> bytes(static_cast<std::size_t>(ref.bytes));
  source.read(tensor, 0, bytes);
  constexpr Dtype kSigned[] = {Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16};
  const bool has_sign = std::ranges::find(kSigned, ref.dtype) != std::end(kSigned);
  const auto element_bytes = static_cast<std::size_t>(std::max<i64>(dtype_bits(ref.dtype) / 8, 1));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool is_sign = has_sign && (i + 1) % element_bytes == 0 && bytes[i] == std::byte{0x80};
    if (bytes[i] != std::byte{} && !is_sign) return false;
  }
  return true;
}

}  // namespace

std::string to_sentence(const UnlikeCopy& copy) {
  if (copy.rounded)
    return fmt::format("'{}' repeats '{}' within the rounding of codes, not byte by byte", copy.name, copy.original);
  return fmt::format("'{}' should repeat '{}', but differs from its byte {} on", copy.name, copy.original, copy.byte);
}

std::vector<UnlikeCopy> find_unlike_copies(const RunOptions& run, const Source& source,
                                           const std::vector<TensorCopy>& copies, CopyReading reading) {
  const auto& tensors = source.inventory().tensors;
  i64 bytes = 0;
  for (const TensorCopy& copy : copies) {
    const CopyReader reader(source, copy);
    bytes +=
        reader.bytes_of(std::min(reader.count(), std::ssize(parts_to_read(reader.count(), reading)) * kPartElements));
  }
  if (bytes == 0) return {};
  Stage stage(run, "comparing copies", bytes);
  const auto on_progress = stage.on_progress();
  std::vector<UnlikeCopy> found;
  for (const TensorCopy& copy : copies) {
    CopyReader reader(source, copy);
    Difference difference;
    for (const i64 begin : parts_to_read(reader.count(), reading)) {
      const i64 count = std::min(kPartElements, reader.count() - begin);
      on_progress(reader.bytes_of(count));
      if (!reader.compare(begin, count, difference)) break;
    }
    if (difference.byte >= 0 || difference.rounded)
      found.push_back({tensors[copy.tensor].name, tensors[copy.original].name, std::max<i64>(difference.byte, 0),
                       difference.rounded});
  }
  return found;
}

void take_as_own(const std::vector<UnlikeCopy>& copies, const Inventory& inventory, Recognition& recognition) {
  std::erase_if(recognition.copies, [&](const TensorCopy& copy) {
    return std::ranges::find(copies, inventory.tensors[copy.tensor].name, &UnlikeCopy::name) != copies.end();
  });
}

std::vector<UnlikeCopy> settle_copies(const RunOptions& run, Checkpoint& checkpoint) {
  std::vector<UnlikeCopy> found = find_unlike_copies(run, *checkpoint.source, checkpoint.recognition.copies);
  settle(run, found, checkpoint);
  return found;
}

bool settle_copies(const RunOptions& run, Checkpoint& a, Checkpoint& b) {
  const auto find_in = [&](const Checkpoint& checkpoint) {
    return find_unlike_copies(run, *checkpoint.source, checkpoint.recognition.copies);
  };
  const std::vector<UnlikeCopy> found_a = find_in(a), found_b = find_in(b);
  std::vector<UnlikeCopy> own_a = found_a, own_b = found_b;
  keep_rounded(run, found_b, a, own_a);
  keep_rounded(run, found_a, b, own_b);
  settle(run, own_a, a);
  settle(run, own_b, b);
  return own_a.size() + own_b.size() < found_a.size() + found_b.size();
}

void settle_idle(Checkpoint& checkpoint) {
  std::erase_if(checkpoint.recognition.idle,
                [&](const IdleTensor& idle) { return idle.if_zero && !is_zero(*checkpoint.source, idle.tensor); });
}

void settle_idle_like(const Checkpoint& source, const std::vector<std::size_t>& zeros, const Inventory& inventory,
                      Recognition& recognition) {
  const auto is_idle_in_source = [&](const std::string& name) {
    return std::ranges::any_of(source.recognition.idle, [&](const IdleTensor& idle) {
      return source.source->inventory().tensors[idle.tensor].name == name;
    });
  };
  std::erase_if(recognition.idle, [&](const IdleTensor& idle) {
    return idle.if_zero && !std::ranges::binary_search(zeros, idle.tensor) &&
           !is_idle_in_source(inventory.tensors[idle.tensor].name);
  });
}

}  // namespace glu_ckpt
