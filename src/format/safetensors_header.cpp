#include "format/safetensors_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/json_offset.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

/// A header needs 3 levels; the rest is room for unknown fields, which are allowed.
constexpr std::size_t kMaxHeaderDepth = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

/// The JSON of a header and where it lies.
struct HeaderText {
  std::string_view json;
  InputPart part;

  WhereAt at(std::initializer_list<std::size_t> steps, std::string tensor = {}) const {
    return {part, json_offset(json, steps), std::move(tensor)};
  }
  /// A byte of the data section.
  WhereAt at_data(i64 offset, std::string tensor = {}) const {
    return {part, static_cast<i64>(json.size()) + offset, std::move(tensor)};
  }
};

[[noreturn]] void fail_json(const JsonDocument& document, const HeaderText& header) {
  const WhereAt where{header.part, json_fault_offset(header.json, document.fault(), kMaxHeaderDepth)};
  const std::string& why = document.message();
  switch (document.fault()) {
    case JsonFault::Utf8: fail_at(ErrorCode::HeaderUtf8, where, "the header is not UTF-8");
    case JsonFault::Depth:
      fail_at(ErrorCode::HeaderDepth, where, "the header nests deeper than {} levels", kMaxHeaderDepth);
    case JsonFault::Number: fail_at(ErrorCode::BadNumber, where, "the header has a number outside 0..2^63-1: {}", why);
    default: fail_at(ErrorCode::HeaderJson, where, "the header is not a JSON object: {}", why);
  }
}

/// A lone surrogate escape ("\udc00") unescapes to bytes that are not UTF-8 and cannot be written back.
void check_text(std::string_view text, const HeaderText& header, std::initializer_list<std::size_t> steps) {
  if (!simdjson::validate_utf8(text.data(), text.size()))
    fail_at(ErrorCode::HeaderJson, header.at(steps), "the header has a lone surrogate escape in a string");
}

/// Reads one tensor's entry, which is member `number` of the header.
class EntryReader {
 public:
  EntryReader(std::string_view name, std::size_t number, i64 data_bytes, const HeaderText& header)
      : number_(number), data_bytes_(data_bytes), header_(header) {
    tensor_.name = name;
  }

  TensorRef read(const element& entry) {
    object fields;
    if (entry.get(fields)) fail_field(entry_at(), "is not an object");
    for (const auto& [key, value] : fields) {
      read_field(key, value);
      ++field_;
    }
    if (!has_dtype_) fail_field(entry_at(), "has no dtype");
    if (!has_shape_) fail_field(entry_at(), "has no shape");
    if (!has_offsets_) fail_field(entry_at(), "has no data_offsets");
    check_offsets();
    check_size();
    return std::move(tensor_);
  }

 private:
  WhereAt entry_at() const { return header_.at({number_}, tensor_.name); }
  /// The field that is being read.
  WhereAt field_at() const { return header_.at({number_, field_}, tensor_.name); }

  [[noreturn]] void fail_field(const WhereAt& where, std::string_view what) const {
    fail_at(ErrorCode::HeaderField, where, "tensor '{}' {}", tensor_.name, what);
  }

  void mark(bool& seen, std::string_view key) const {
    if (seen) fail_at(ErrorCode::DuplicateKey, field_at(), "tensor '{}' has the field '{}' twice", tensor_.name, key);
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
    if (value.get(name)) fail_field(field_at(), "has a dtype that is not a string");
    const auto dtype = dtype_from_name(name);
    if (!dtype)
      fail_at(ErrorCode::DtypeUnknown, field_at(), "tensor '{}' has the unknown dtype '{}'", tensor_.name, name);
    tensor_.dtype = *dtype;
  }

  std::vector<i64> read_numbers(const element& value, std::string_view key) const {
    simdjson::dom::array array;
    if (value.get(array)) fail_field(field_at(), fmt::format("has a {} that is not an array", key));
    std::vector<i64> numbers;
    numbers.reserve(array.size());
    for (const element item : array) numbers.push_back(read_number(item, key, numbers.size()));
    return numbers;
  }

  i64 read_number(const element& item, std::string_view key, std::size_t place) const {
    const auto where = [&] { return header_.at({number_, field_, place}, tensor_.name); };
    if (!item.is_number()) fail_field(where(), fmt::format("has a {} that holds something else than numbers", key));
    i64 number = -1;
    if (item.type() == element_type::DOUBLE || item.get(number) || number < 0)
      fail_at(ErrorCode::BadNumber, where(), "tensor '{}': {} holds {}, which is no whole number in 0..2^63-1",
              tensor_.name, key, simdjson::minify(item));
    return number;
  }

  void read_offsets(const element& value) {
    const std::vector<i64> offsets = read_numbers(value, "data_offsets");
    if (offsets.size() != 2) fail_field(field_at(), "has data_offsets that are not two numbers");
    tensor_.offset = offsets[0];
    end_ = offsets[1];
  }

  void check_offsets() const {
    if (end_ < tensor_.offset)
      fail_at(ErrorCode::OffsetsReversed, entry_at(), "tensor '{}' ends at {}, before it begins at {}", tensor_.name,
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
      fail_at(ErrorCode::ShapeOverflow, entry_at(), "tensor '{}': {} {} has more than 2^63 bits", tensor_.name,
              dtype_name(tensor_.dtype), shape_text(tensor_.shape));
    if (*bits % 8 != 0)
      fail_at(ErrorCode::SubByteShape, entry_at(),
              "tensor '{}': {} {} has {} bits, which is not a whole number of bytes", tensor_.name,
              dtype_name(tensor_.dtype), shape_text(tensor_.shape), *bits);
    tensor_.bytes = *bits / 8;
    if (end_ - tensor_.offset != tensor_.bytes)
      fail_at(ErrorCode::SizeMismatch, entry_at(), "tensor '{}': {} {} takes {} bytes, but its data_offsets span {}",
              tensor_.name, dtype_name(tensor_.dtype), shape_text(tensor_.shape), tensor_.bytes, end_ - tensor_.offset);
  }

  TensorRef tensor_;
  i64 end_ = 0;
  std::size_t number_;
  std::size_t field_ = 0;
  i64 data_bytes_;
  const HeaderText& header_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

/// `number` is the member that `__metadata__` is.
std::map<std::string, std::string> read_metadata(const element& value, std::size_t number, const HeaderText& header) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;
  object entries;
  if (value.get(entries))
    fail_at(ErrorCode::MetadataNotString, header.at({number}), "__metadata__ is not an object of strings");
  std::size_t entry = 0;
  for (const auto& [key, item] : entries) {
    std::string_view text;
    if (item.get(text))
      fail_at(ErrorCode::MetadataNotString, header.at({number, entry}), "__metadata__ '{}' is not a string", key);
    check_text(key, header, {number, entry});
    check_text(text, header, {number, entry});
    if (!metadata.emplace(key, text).second)
      fail_at(ErrorCode::DuplicateKey, header.at({number, entry}), "__metadata__ has '{}' twice", key);
    ++entry;
  }
  return metadata;
}

/// The number of the second member of that name.
std::size_t second_member(const object& entries, std::string_view name) {
  std::size_t number = 0;
  int seen = 0;
  for (const auto& [key, value] : entries) {
    if (key == name && ++seen == 2) break;
    ++number;
  }
  return number;
}

/// By sorting, not hashing: names come from the file, and no choice of them makes this slow.
void check_unique(const std::vector<TensorRef>& tensors, const object& entries, const HeaderText& header) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorRef& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    fail_at(ErrorCode::DuplicateKey, header.at({second_member(entries, *twice)}, std::string(*twice)),
            "tensor '{}' is there twice", *twice);
}

void sort_by_place(std::vector<TensorRef>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorRef& a, const TensorRef& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
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
            "the file ends here; a safetensors file has at least 8 bytes");
  u64 length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  if (length > static_cast<u64>(kMaxHeaderBytes))
    fail_at(ErrorCode::HeaderTooLarge, {part, 0},
            "the header would be {} bytes long; at most {} are allowed (is this a safetensors file?)", length,
            kMaxHeaderBytes);
  const auto header_bytes = static_cast<i64>(length);
  if (header_bytes > file_bytes - kHeaderPrefixBytes)
    fail_at(ErrorCode::HeaderLength, {part, file_bytes}, "the file ends here, but its header would end at byte {}",
            kHeaderPrefixBytes + header_bytes);
  return header_bytes;
}

ParsedHeader parse_header(std::string_view json, i64 data_bytes, const std::string& file) {
  const HeaderText text{json, {file, kHeaderPrefixBytes}};
  const JsonDocument document(json, kMaxHeaderDepth);
  if (document.fault() != JsonFault::None) fail_json(document, text);
  object entries;
  if (document.root().get(entries)) fail_at(ErrorCode::HeaderJson, text.at({}), "the header is not an object");

  ParsedHeader header;
  header.tensors.reserve(entries.size());
  bool has_metadata = false;
  std::size_t number = 0;
  for (const auto& [key, value] : entries) {
    if (key != kMetadataKey) {
      check_text(key, text, {number});
      header.tensors.push_back(EntryReader(key, number, data_bytes, text).read(value));
    } else {
      if (has_metadata) fail_at(ErrorCode::DuplicateKey, text.at({number}), "__metadata__ is there twice");
      has_metadata = true;
      header.metadata = read_metadata(value, number, text);
    }
    ++number;
  }
  check_unique(header.tensors, entries, text);
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
