/// A zip, with zeros put in so that it can be longer than what is read at once: a byte that says how many KiB of
/// them, 16 bits that say where, then the bytes of the zip without them.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "format/torch_zip.hpp"
#include "glu_ckpt/error.hpp"

namespace {

using namespace glu_ckpt;

void require(bool holds) {
  if (!holds) std::abort();
}

class HollowZip {
 public:
  explicit HollowZip(std::span<const std::byte> input) {
    if (input.size() < 3) return;
    hole_bytes_ = std::to_integer<std::size_t>(input[0]) << 10;
    std::uint16_t place = 0;
    std::memcpy(&place, &input[1], sizeof place);
    bytes_ = input.subspan(3);
    hole_ = std::min<std::size_t>(place, bytes_.size());
  }

  std::size_t size() const { return bytes_.size() + hole_bytes_; }

  void read(std::span<std::byte> out, i64 offset) const {
    require(offset >= 0 && static_cast<std::size_t>(offset) <= size() &&
            out.size() <= size() - static_cast<std::size_t>(offset));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = at(static_cast<std::size_t>(offset) + i);
  }

 private:
  std::byte at(std::size_t position) const {
    if (position < hole_) return bytes_[position];
    return position < hole_ + hole_bytes_ ? std::byte{0} : bytes_[position - hole_bytes_];
  }

  std::span<const std::byte> bytes_;
  std::size_t hole_bytes_ = 0;
  std::size_t hole_ = 0;
};

/// Records lie in the zip, apart from each other, and are found by their names.
void check(ZipDirectory directory, i64 zip_bytes) {
  require(directory.by_name.size() == directory.records.size());
  for (const ZipRecord& record : directory.records) require(directory.find(record.name) == &record);
  std::sort(directory.records.begin(), directory.records.end(),
            [](const ZipRecord& a, const ZipRecord& b) { return a.offset < b.offset; });
  i64 end = 0;
  for (const ZipRecord& record : directory.records) {
    require(record.bytes >= 0 && record.offset > end && record.offset <= zip_bytes);
    require(record.bytes <= zip_bytes - record.offset);
    end = record.offset + record.bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const HollowZip zip(std::as_bytes(std::span(data, size)));
  const auto zip_bytes = static_cast<i64>(zip.size());
  try {
    check(read_zip_directory([&](std::span<std::byte> out, i64 offset) { zip.read(out, offset); }, zip_bytes, "fuzz"),
          zip_bytes);
  } catch (const Error&) {
  }
  return 0;
}
