#include "format/safetensors_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

/// A header needs 3 levels; the rest is room for unknown fields, which are allowed.
constexpr std::size_t kMaxDepth = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

[[noreturn]] void fail_json(const JsonDocument& document, const std::string& file) {
  const Where where{file, {}};
  const std::string& why = document.message();
  switch (document.fault()) {
    case JsonFault::Utf8: fail(ErrorCode::HeaderUtf8, where, "{}: the header is not UTF-8", file);
    case JsonFault::Depth:
      fail(ErrorCode::HeaderDepth, where, "{}: the header nests deeper than {} levels", file, kMaxDepth);
    case JsonFault::Number:
      fail(ErrorCode::BadNumber, where, "{}: the header has a number outside 0..2^63-1: {}", file, why);
    default: fail(ErrorCode::HeaderJson, where, "{}: the header is not a JSON object: {}", file, why);
  }
}

/// A lone surrogate escape ("\udc00") unescapes to bytes that are not UTF-8 and cannot be written back.
void check_text(std::string_view text, const std::string& file) {
  if (!simdjson::validate_utf8(text.data(), text.size()))
    fail(ErrorCode::HeaderJson, {file, {}}, "{}: the header has a lone surrogate escape in a string", file);
}

/// Reads one tensor's entry.
class EntryReader {
 public:
  EntryReader(std::string_view name, i64 data_bytes, const std::string& file) : data_bytes_(data_bytes), file_(file) {
    tensor_.name = name;
  }

  TensorRef read(const element& entry) {
    object fields;
    if (entry.get(fields)) fail_field("is not an object");
    for (const auto& [key, value] : fields) read_field(key, value);
    if (!has_dtype_) fail_field("has no dtype");
    if (!has_shape_) fail_field("has no shape");
    if (!has_offsets_) fail_field("has no data_offsets");
    check_offsets();
    check_size();
    return std::move(tensor_);
  }

 private:
  Where where() const { return {file_, tensor_.name}; }

  [[noreturn]] void fail_field(std::string_view what) const {
    fail(ErrorCode::HeaderField, where(), "{}: tensor '{}' {}", file_, tensor_.name, what);
  }

  void mark(bool& seen, std::string_view key) const {
    if (seen)
      fail(ErrorCode::DuplicateKey, where(), "{}: tensor '{}' has the field '{}' twice", file_, tensor_.name, key);
    seen = true;
  }

  void read_field(std::string_view key, const element& value) {
    if (key == "dtype") {
      mark(has_dtype_, key);
      read_dtype(value);
    } else if (key == "shape") {
      mark(has_shape_, key);
      tensor_.shape = read_numbers(value, key);
    } else if (key == "data_offsets") {
      mark(has_offsets_, key);
      read_offsets(value);
    }
  }

  void read_dtype(const element& value) {
    std::string_view name;
    if (value.get(name)) fail_field("has a dtype that is not a string");
    const auto dtype = dtype_from_name(name);
    if (!dtype)
      fail(ErrorCode::DtypeUnknown, where(), "{}: tensor '{}' has the unknown dtype '{}'", file_, tensor_.name, name);
    tensor_.dtype = *dtype;
  }

  std::vector<i64> read_numbers(const element& value, std::string_view key) const {
    simdjson::dom::array array;
    if (value.get(array)) fail_field(fmt::format("has a {} that is not an array", key));
    std::vector<i64> numbers;
    numbers.reserve(array.size());
    for (const element item : array) numbers.push_back(read_number(item, key));
    return numbers;
  }

  i64 read_number(const element& item, std::string_view key) const {
    if (!item.is_number()) fail_field(fmt::format("has a {} that holds something else than numbers", key));
    i64 number = -1;
    if (item.type() == element_type::DOUBLE || item.get(number) || number < 0)
      fail(ErrorCode::BadNumber, where(), "{}: tensor '{}': {} holds {}, which is no whole number in 0..2^63-1", file_,
           tensor_.name, key, simdjson::minify(item));
    return number;
  }

  void read_offsets(const element& value) {
    const std::vector<i64> offsets = read_numbers(value, "data_offsets");
    if (offsets.size() != 2) fail_field("has data_offsets that are not two numbers");
    tensor_.offset = offsets[0];
    end_ = offsets[1];
  }

  void check_offsets() const {
    if (end_ < tensor_.offset)
      fail(ErrorCode::OffsetsReversed, where(), "{}: tensor '{}' ends at {}, before it begins at {}", file_,
           tensor_.name, end_, tensor_.offset);
    if (end_ > data_bytes_)
      fail(ErrorCode::OffsetsPastEnd, where(),
           "{}: tensor '{}' ends at {}, but there are only {} bytes of data; is the file cut off?", file_, tensor_.name,
           end_, data_bytes_);
  }

  void check_size() {
    const auto elements = checked_product(tensor_.shape);
    const auto bits = elements ? checked_mul(*elements, dtype_bits(tensor_.dtype)) : std::nullopt;
    if (!bits)
      fail(ErrorCode::ShapeOverflow, where(), "{}: tensor '{}': {} {} has more than 2^63 bits", file_, tensor_.name,
           dtype_name(tensor_.dtype), shape_text(tensor_.shape));
    if (*bits % 8 != 0)
      fail(ErrorCode::SubByteShape, where(), "{}: tensor '{}': {} {} has {} bits, which is not a whole number of bytes",
           file_, tensor_.name, dtype_name(tensor_.dtype), shape_text(tensor_.shape), *bits);
    tensor_.bytes = *bits / 8;
    if (end_ - tensor_.offset != tensor_.bytes)
      fail(ErrorCode::SizeMismatch, where(), "{}: tensor '{}': {} {} takes {} bytes, but its data_offsets span {}",
           file_, tensor_.name, dtype_name(tensor_.dtype), shape_text(tensor_.shape), tensor_.bytes,
           end_ - tensor_.offset);
  }

  TensorRef tensor_;
  i64 end_ = 0;
  i64 data_bytes_;
  const std::string& file_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

std::map<std::string, std::string> read_metadata(const element& value, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;
  object entries;
  if (value.get(entries))
    fail(ErrorCode::MetadataNotString, {file, {}}, "{}: __metadata__ is not an object of strings", file);
  for (const auto& [key, item] : entries) {
    std::string_view text;
    if (item.get(text))
      fail(ErrorCode::MetadataNotString, {file, {}}, "{}: __metadata__ '{}' is not a string", file, key);
    check_text(key, file);
    check_text(text, file);
    if (!metadata.emplace(key, text).second)
      fail(ErrorCode::DuplicateKey, {file, {}}, "{}: __metadata__ has '{}' twice", file, key);
  }
  return metadata;
}

/// By sorting, not hashing: names come from the file, and no choice of them makes this slow.
void check_unique(const std::vector<TensorRef>& tensors, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorRef& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    fail(ErrorCode::DuplicateKey, {file, std::string(*twice)}, "{}: tensor '{}' is there twice", file, *twice);
}

void sort_by_place(std::vector<TensorRef>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorRef& a, const TensorRef& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
}

/// Sorted tensors must follow each other without a gap from the first byte of data to the last.
void check_tiling(const std::vector<TensorRef>& tensors, i64 data_bytes, const std::string& file) {
  i64 end = 0;
  std::string_view previous;
  for (const TensorRef& tensor : tensors) {
    const Where where{file, tensor.name};
    if (tensor.offset > end)
      fail(ErrorCode::OffsetsHole, where, "{}: no tensor covers bytes [{}, {}) before '{}'", file, end, tensor.offset,
           tensor.name);
    if (tensor.offset < end)
      fail(ErrorCode::OffsetsOverlap, where, "{}: '{}' bytes [{}, {}) overlap '{}', which ends at {}", file,
           tensor.name, tensor.offset, tensor.offset + tensor.bytes, previous, end);
    end = tensor.offset + tensor.bytes;
    previous = tensor.name;
  }
  if (end != data_bytes)
    fail(ErrorCode::TrailingBytes, {file, {}}, "{}: {} bytes follow the last tensor, which ends at {} of {}", file,
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

}  // namespace

i64 check_header_length(std::span<const std::byte> prefix, i64 file_bytes, const std::string& file) {
  const Where where{file, {}};
  if (file_bytes < kHeaderPrefixBytes || prefix.size() < sizeof(u64))
    fail(ErrorCode::HeaderTooSmall, where, "{}: is {} bytes long; a safetensors file has at least 8", file, file_bytes);
  u64 length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  if (length > static_cast<u64>(kMaxHeaderBytes))
    fail(ErrorCode::HeaderTooLarge, where,
         "{}: the header would be {} bytes long; at most {} are allowed (is this a safetensors file?)", file, length,
         kMaxHeaderBytes);
  const auto header_bytes = static_cast<i64>(length);
  if (header_bytes > file_bytes - kHeaderPrefixBytes)
    fail(ErrorCode::HeaderLength, where, "{}: the header would end at byte {}, but the file is {} bytes long", file,
         kHeaderPrefixBytes + header_bytes, file_bytes);
  return header_bytes;
}

ParsedHeader parse_header(std::string_view json, i64 data_bytes, const std::string& file) {
  const JsonDocument document(json, kMaxDepth);
  if (document.fault() != JsonFault::None) fail_json(document, file);
  object entries;
  if (document.root().get(entries)) fail(ErrorCode::HeaderJson, {file, {}}, "{}: the header is not an object", file);

  ParsedHeader header;
  header.tensors.reserve(entries.size());
  bool has_metadata = false;
  for (const auto& [key, value] : entries) {
    if (key != kMetadataKey) {
      check_text(key, file);
      header.tensors.push_back(EntryReader(key, data_bytes, file).read(value));
      continue;
    }
    if (has_metadata) fail(ErrorCode::DuplicateKey, {file, {}}, "{}: __metadata__ is there twice", file);
    has_metadata = true;
    header.metadata = read_metadata(value, file);
  }
  check_unique(header.tensors, file);
  sort_by_place(header.tensors);
  check_tiling(header.tensors, data_bytes, file);
  return header;
}

std::string print_header(std::span<const OutputTensor> tensors, const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += json_string(kMetadataKey) + ":" + print_metadata(metadata);
  for (const OutputTensor& tensor : tensors) {
    if (json.size() > 1) json += ',';
    print_tensor(json, tensor);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > static_cast<std::size_t>(kMaxHeaderBytes))
    fail(ErrorCode::HeaderTooLarge, {},
         "the header of a shard of {} tensors would be {} bytes long; at most {} are allowed: give a smaller "
         "--max-shard-size",
         tensors.size(), json.size(), kMaxHeaderBytes);
  return length_prefix(json.size()) + json;
}

}  // namespace glu_ckpt
