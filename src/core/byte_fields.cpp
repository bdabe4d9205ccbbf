#include "core/byte_fields.hpp"

#include <cstring>
#include <limits>

#include "core/fail.hpp"

namespace glu_ckpt {

void ByteWriter::number(i64 value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes_.insert(bytes_.end(), first, first + sizeof(value));
}

void ByteWriter::text(std::string_view value) {
  number(static_cast<i64>(value.size()));
  const auto* first = reinterpret_cast<const std::byte*>(value.data());
  bytes_.insert(bytes_.end(), first, first + value.size());
}

void ByteReader::refuse(const char* why) const {
  fail(ErrorCode::Io, {},
       "{} ({} bytes) {} at byte {}: do all ranks run the same glu-ckpt build, on one kind of machine?", what_,
       bytes_.size(), why, at_);
}

i64 ByteReader::number() {
  i64 value = 0;
  if (left() < i64{sizeof(value)}) refuse("ends early");
  std::memcpy(&value, bytes_.data() + at_, sizeof(value));
  at_ += sizeof(value);
  return value;
}

i64 ByteReader::number(i64 low, i64 high) {
  const i64 value = number();
  if (value < low || value > high) refuse("has a number out of its range");
  return value;
}

std::string ByteReader::text() {
  const std::size_t length = count(1);
  std::string value(length, '\0');
  if (length > 0) std::memcpy(value.data(), bytes_.data() + at_, length);
  at_ += length;
  return value;
}

std::size_t ByteReader::count(i64 item_bytes) {
  const i64 items = number(0, std::numeric_limits<i64>::max());
  if (items > left() / item_bytes) refuse("counts more than it holds");
  return static_cast<std::size_t>(items);
}

void ByteReader::end() const {
  if (left() != 0) refuse("goes on");
}

}  // namespace glu_ckpt
