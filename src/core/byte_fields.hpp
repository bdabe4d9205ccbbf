#pragma once
/// Numbers and texts one after another in bytes that go from one process of this program to another. Numbers take 8
/// bytes in the machine's order; a text is its length, then its bytes.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class ByteWriter {
 public:
  void number(i64 value);
  void text(std::string_view value);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Every reading throws Io, naming `what`, where the bytes end early or say what cannot be.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}
  i64 number();
  /// A number in [low, high].
  i64 number(i64 low, i64 high);
  std::string text();
  /// Returns how many items follow, of at least `item_bytes` each: never more than the bytes that are left can hold.
  std::size_t count(i64 item_bytes);
  /// All bytes must have been read.
  void end() const;

 private:
  i64 left() const { return static_cast<i64>(bytes_.size() - at_); }
  [[noreturn]] void refuse(const char* why) const;

  std::span<const std::byte> bytes_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace glu_ckpt
