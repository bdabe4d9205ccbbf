#include "format/safetensors_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/readable.hpp"

namespace glu_ckpt {
namespace {

/// A header needs 3 levels; the rest is room for unknown fields, which are allowed.
constexpr std::size_t kMaxHeaderDepth = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

/// The JSON of a header and where it lies.
struct HeaderText {
  std::string_view json;
  InputPart part;

  WhereAt at(const JsonValue& value, std::string tensor = {}) const {
    return {part, value.offset(), std::move(tensor)};
  }
  /// A byte of the data section.
  WhereAt at_data(i64 offset, std::string tensor = {}) const {
    return {part, static_cast<i64>(json.size()) + offset, std::move(tensor)};
  }
};

[[noreturn]] void fail_json(const JsonFault& fault, const HeaderText& header) {
  const WhereAt where{header.part, fault.offset};
  switch (fault.kind) {
    case JsonFault::Kind::Utf8: fail_at(ErrorCode::HeaderUtf8, where, "the header is not UTF-8");
    case JsonFault::Kind::Depth: fail_at(ErrorCode::HeaderDepth, where, "the header {}", fault.message);
    case JsonFault::Kind::Number:
      fail_at(ErrorCode::BadNumber, where, "the header has a number outside 0..2^63-1: {}", fault.message);
    case JsonFault::Kind::Memory: fail_at(ErrorCode::HeaderTooLarge, where, "{}", fault.message);
    case JsonFault::Kind::Syntax: break;
  }
  fail_at(ErrorCode::HeaderJson, where, "the header is not a JSON object: {}", fault.message);
}

/// Reads one tensor's entry.
class EntryReader {
 public:
  EntryReader(const JsonMember& member, i64 data_bytes, const HeaderText& header)
      : entry_(member.value), data_bytes_(data_bytes), header_(header) {
    tensor_.name = member.key;
  }

  TensorRef read() {
    if (entry_.kind() != JsonKind::Object) fail_field(entry_, "is not an object");
    for (const auto& [key, value] : entry_.members()) read_field(key, value);
    if (!has_dtype_) fail_field(entry_, "has no dtype");
    if (!has_shape_) fail_field(entry_, "has no shape");
    if (!has_offsets_) fail_field(entry_, "has no data_offsets");
    check_offsets();
    check_size();
    return std::move(tensor_);
  }

 private:
  WhereAt at(const JsonValue& value) const { return header_.at(value, tensor_.name); }

  [[noreturn]] void fail_field(const JsonValue& value, std::string_view what) const {
    fail_at(ErrorCode::HeaderField, at(value), "tensor '{}' {}", tensor_.name, what);
  }

  void mark(bool& seen, std::string_view key, const JsonValue& value) const {
    if (seen) fail_at(ErrorCode::DuplicateKey, at(value), "tensor '{}' has the field '{}' twice", tensor_.name, key);
    seen = true;
  }

  void read_field(std::string_view key, const JsonValue& value) {
    if (key == "dtype") {
      mark(has_dtype_, key, value);
      read_dtype(value);
    } else if (key == "shape") {
      mark(has_shape_, key, value);
      tensor_.shape = read_numbers(value, key);
    } else if (key == "data_offsets") {
      mark(has_offsets_, key, value);
      read_offsets(value);
    }
  }

  void read_dtype(const JsonValue& value) {
    const auto name = value.get<std::string_view>();
    if (!name) fail_field(value, "has a dtype that is not a string");
    const auto dtype = dtype_from_name(*name);
    if (!dtype)
      fail_at(ErrorCode::DtypeUnknown, at(value), "tensor '{}' has the unknown dtype '{}'", tensor_.name, *name);
    tensor_.dtype = *dtype;
  }

  std::vector<i64> read_numbers(const JsonValue& value, std::string_view key) const {
    if (value.kind() != JsonKind::Array) fail_field(value, fmt::format("has a {} that is not an array", key));
    std::vector<i64> numbers;
    numbers.reserve(value.size());
    for (const JsonValue item : value.items()) numbers.push_back(read_number(item, key));
    return numbers;
  }

  i64 read_number(const JsonValue& item, std::string_view key) const {
    const auto number = item.get<i64>();
    if (number && *number >= 0) return *number;
    const auto any = item.get<double>();
    if (!any) fail_field(item, fmt::format("has a {} that holds something else than numbers", key));
    const auto natural = item.get<u64>();
    fail_at(ErrorCode::BadNumber, at(item), "tensor '{}': {} holds {}, which is no whole number in 0..2^63-1",
            tensor_.name, key,
            number    ? fmt::to_string(*number)
            : natural ? fmt::to_string(*natural)
                      : fmt::to_string(*any));
  }

  void read_offsets(const JsonValue& value) {
    const std::vector<i64> offsets = read_numbers(value, "data_offsets");
    if (offsets.size() != 2) fail_field(value, "has data_offsets that are not two numbers");
    tensor_.offset = offsets[0];
    end_ = offsets[1];
  }

  void check_offsets() const {
    if (end_ < tensor_.offset)
      fail_at(ErrorCode::OffsetsReversed, at(entry_), "tensor '{}' ends at {}, before it begins at {}", tensor_.name,
              end_, tensor_.offset);
    if (end_ > data_bytes_)
      fail_at(ErrorCode::OffsetsPastEnd, header_.at_data(data_bytes_, tensor_.name),
              "the file ends here, after {} bytes of data; tensor '{}' ends at {} of them; is the file cut off?",
              data_bytes_, tensor_.name, end_);
  }

  void check_size() {
    const auto elements = checked_product(tensor_.shape);
    const auto bits = elements ? checked_mul(*elements, dtype_bits(tensor_.dtype)) : std::nullopt;
    if (!bits)
      fail_at(ErrorCode::ShapeOverflow, at(entry_), "tensor '{}': {} {} has more than 2^63 bits", tensor_.name,
              dtype_name(tensor_.dtype), shape_text(tensor_.shape));
    if (*bits % 8 != 0)
      fail_at(ErrorCode::SubByteShape, at(entry_),
              "tensor '{}': {} {} has {} bits, which is not a whole number of bytes", tensor_.name,
              dtype_name(tensor_.dtype), shape_text(tensor_.shape), *bits);
    tensor_.bytes = *bits / 8;
    if (end_ - tensor_.offset != tensor_.bytes)
      fail_at(ErrorCode::SizeMismatch, at(entry_), "tensor '{}': {} {} takes {} bytes, but its data_offsets span {}",
              tensor_.name, dtype_name(tensor_.dtype), shape_text(tensor_.shape), tensor_.bytes, end_ - tensor_.offset);
  }

  TensorRef tensor_;
  i64 end_ = 0;
  JsonValue entry_;
  i64 data_bytes_;
  const HeaderText& header_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

std::map<std::string, std::string> read_metadata(const JsonValue& value, const HeaderText& header) {
  std::map<std::string, std::string> metadata;
  if (value.kind() == JsonKind::Null) return metadata;
  if (value.kind() != JsonKind::Object)
    fail_at(ErrorCode::MetadataNotString, header.at(value), "__metadata__ is not an object of strings");
  for (const auto& [key, item] : value.members()) {
    const auto text = item.get<std::string_view>();
    if (!text) fail_at(ErrorCode::MetadataNotString, header.at(item), "__metadata__ '{}' is not a string", key);
    if (!metadata.emplace(key, *text).second)
      fail_at(ErrorCode::DuplicateKey, header.at(item), "__metadata__ has '{}' twice", key);
  }
  return metadata;
}

/// It sorts and does not hash: names come from the file, and no choice of them makes this slow.
void check_unique(const std::vector<TensorRef>& tensors, const JsonValue& entries, const HeaderText& header) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorRef& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  const JsonValue last = *entries.find(*twice);
  fail_at(ErrorCode::DuplicateKey, header.at(last, std::string(*twice)), "tensor '{}' is there twice", *twice);
}

void sort_by_place(std::vector<TensorRef>& tensors) {
  const auto before = [](const TensorRef& a, const TensorRef& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  };
  // Most writers list them in this order.
  if (!std::ranges::is_sorted(tensors, before)) std::ranges::stable_sort(tensors, before);
}

/// Sorted tensors must follow each other without a gap from the first byte of data to the last.
void check_tiling(const std::vector<TensorRef>& tensors, i64 data_bytes, const HeaderText& header) {
  i64 end = 0;
  std::string_view previous;
  for (const TensorRef& tensor : tensors) {
    if (tensor.offset > end)
      fail_at(ErrorCode::OffsetsHole, header.at_data(end, tensor.name),
              "no tensor covers [{}, {}) of the data before '{}'", end, tensor.offset, tensor.name);
    if (tensor.offset < end)
      fail_at(ErrorCode::OffsetsOverlap, header.at_data(tensor.offset, tensor.name),
              "'{}' at [{}, {}) of the data overlaps '{}', which ends at {}", tensor.name, tensor.offset,
              tensor.offset + tensor.bytes, previous, end);
    end = tensor.offset + tensor.bytes;
    previous = tensor.name;
  }
  if (end != data_bytes)
    fail_at(ErrorCode::TrailingBytes, header.at_data(end), "{} bytes follow the last tensor, which ends at {} of {}",
            data_bytes - end, end, data_bytes);
}

void print_tensor(std::string& json, const OutputTensor& tensor) {
  const std::string_view dtype = dtype_name(tensor.dtype);
  json += json_string(tensor.name);
  json += fmt::format(R"(:{{"dtype":"{}","shape":[)", dtype);
  const char* comma = "";
  for (const i64 extent : tensor.shape) {
    json += comma;
    json += fmt::format("{}", extent);
    comma = ",";
  }
  json += fmt::format(R"(],"data_offsets":[{},{}]}})", tensor.offset, tensor.offset + tensor.bytes);
}

std::string print_metadata(const std::map<std::string, std::string>& metadata) {
  JsonWriter writer;
  writer.begin_object();
  for (const auto& [key, value] : metadata) writer.field(key, value);
  return writer.end_object().text();
}

std::string length_prefix(u64 length) {
  static_assert(std::endian::native == std::endian::little, "safetensors numbers are little-endian");
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix;
}

std::size_t padded_length(std::size_t length, std::optional<i64> data_phase) {
  const i64 least = round_up(static_cast<i64>(length), 8);
  if (!data_phase) return static_cast<std::size_t>(least);
  const i64 padding = (*data_phase - kHeaderPrefixBytes - least) % kDataPhaseBytes;
  return static_cast<std::size_t>(least + (padding < 0 ? padding + kDataPhaseBytes : padding));
}

}  // namespace

i64 check_header_length(std::span<const std::byte> prefix, i64 file_bytes, const std::string& file) {
  const InputPart part(file);
  if (file_bytes < kHeaderPrefixBytes || prefix.size() < sizeof(u64))
    fail_at(ErrorCode::HeaderTooSmall, {part, file_bytes},
            "this is no safetensors file: {}, and one has at least 8 bytes; download or save it again",
            file_bytes == 0 ? "it is empty" : "it ends here");
  u64 length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  const std::string_view first(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  if (const std::string_view what = stand_in_text(first, Meant::Binary);
      length > static_cast<u64>(kMaxHeaderBytes) && !what.empty())
    fail_at(ErrorCode::HeaderTooLarge, {part, 0}, "this is no safetensors file: {}", what);
  if (length > static_cast<u64>(kMaxHeaderBytes) && first.starts_with("PK\x03\x04"))
    fail_at(
        ErrorCode::HeaderTooLarge, {part, 0},
        "this is no safetensors file: it is a zip archive, such as torch.save writes; named .pt or .bin, it is read "
        "as one");
  if (length > static_cast<u64>(kMaxHeaderBytes))
    fail_at(
        ErrorCode::HeaderTooLarge, {part, 0},
        "this is no safetensors file: its first 8 bytes would make the header {} bytes long; at most {} are allowed",
        length, kMaxHeaderBytes);
  const auto header_bytes = static_cast<i64>(length);
  if (header_bytes > file_bytes - kHeaderPrefixBytes)
    fail_at(ErrorCode::HeaderLength, {part, file_bytes},
            "the file ends here, but its header would end at byte {}: it was cut short; download or save it again",
            kHeaderPrefixBytes + header_bytes);
  return header_bytes;
}

ParsedHeader parse_header(std::string_view json, i64 data_bytes, const std::string& file) {
  const HeaderText text{json, {file, kHeaderPrefixBytes}};
  const JsonDocument document(json, kMaxHeaderDepth);
  if (document.fault()) fail_json(*document.fault(), text);
  const JsonValue root = document.root();
  if (root.kind() != JsonKind::Object) fail_at(ErrorCode::HeaderJson, text.at(root), "the header is not an object");

  ParsedHeader header;
  header.tensors.reserve(root.size());
  bool has_metadata = false;
  for (const JsonMember member : root.members()) {
    if (member.key != kMetadataKey) {
      header.tensors.push_back(EntryReader(member, data_bytes, text).read());
    } else {
      if (has_metadata) fail_at(ErrorCode::DuplicateKey, text.at(member.value), "__metadata__ is there twice");
      has_metadata = true;
      header.metadata = read_metadata(member.value, text);
    }
  }
  check_unique(header.tensors, root, text);
  sort_by_place(header.tensors);
  check_tiling(header.tensors, data_bytes, text);
  return header;
}

std::optional<i64> shareable_phase(i64 offset) {
  if (offset % 8 != 0) return std::nullopt;
  return offset % kDataPhaseBytes;
}

std::string print_header(std::span<const OutputTensor> tensors, const std::map<std::string, std::string>& metadata,
                         std::optional<i64> data_phase) {
  std::string json = "{";
  if (!metadata.empty()) json += json_string(kMetadataKey) + ":" + print_metadata(metadata);
  for (const OutputTensor& tensor : tensors) {
    if (json.size() > 1) json += ',';
    print_tensor(json, tensor);
  }
  json += '}';
  json.resize(padded_length(json.size(), data_phase), ' ');
  if (json.size() > static_cast<std::size_t>(kMaxHeaderBytes))
    fail(ErrorCode::HeaderTooLarge, {},
         "the header of a shard of {} tensors would be {} bytes long; at most {} are allowed: give a smaller "
         "--max-shard-size",
         tensors.size(), json.size(), kMaxHeaderBytes);
  return length_prefix(json.size()) + json;
}

}  // namespace glu_ckpt
