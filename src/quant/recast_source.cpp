#include "quant/recast_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "core/fail.hpp"
#include "core/mxfp8_bits.hpp"
#include "format/model_config.hpp"
#include "quant/check_codes.hpp"
#include "quant/decode_row.hpp"
#include "quant/decoded_source.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantization_files.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMxCols = 32;
/// Stored bytes that are read at once.
constexpr i64 kRecastBatchBytes = i64{1} << 20;

/// The FP4 code of each number is this byte of E4M3. Code 8 is -0, or +0 where the format's decoder has it so.
constexpr std::array<std::uint8_t, 16> kE4m3OfE2m1{0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c,
                                                   0x80, 0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc};

/// The byte of 2^e that the scale is; none for what is no such power.
std::optional<std::uint8_t> exponent_byte(Dtype dtype, const std::byte* bytes) {
  if (dtype == Dtype::U8 || dtype == Dtype::F8_E8M0) {
    const auto byte = std::to_integer<std::uint8_t>(*bytes);
    return byte == 255 ? std::nullopt : std::optional(byte);
  }
  const u32 bits = std::bit_cast<u32>(scale_value(dtype, bytes));
  constexpr u32 kLeast = 0x00400000;  // 2^-127, which has no exponent of its own
  if (bits == kLeast) return std::uint8_t{0};
  const u32 exponent = bits >> 23;
  if ((bits & 0x7fffffU) != 0 || exponent == 0 || exponent > 254) return std::nullopt;
  return static_cast<std::uint8_t>(exponent);
}

/// The powers of two by which block scales may be multiplied and stay exact.
struct ShiftRange {
  int least = -512;
  int most = 512;

  bool has(int shift) const { return least <= shift && shift <= most; }

  /// NaN and zero are what they are.
  void meet(std::uint8_t code) {
    const u32 magnitude = code & 0x7fU;
    if (magnitude == 0 || magnitude == 0x7f) return;
    // The value is `units` * 2^(exponent - 10); those below 2^-6 have the exponent of the least normal number.
    const u32 field = magnitude >> 3U;
    const u32 units = field == 0 ? magnitude : 8 + (magnitude & 7U);
    const int exponent = field == 0 ? 1 : static_cast<int>(field);
    least = std::max(least, 1 - exponent - std::countr_zero(units));
    const int width = static_cast<int>(std::bit_width(units));
    // 15 * 2^5, which would be the largest number, is NaN.
    const bool is_full = units << (4 - width) == 15;
    most = std::min(most, 15 - exponent + (4 - width) - (is_full ? 1 : 0));
  }
};

/// The codes of E4M3 that stand for 2^shift times as much, where they are exact.
std::array<std::byte, 256> shifted_codes(int shift) {
  std::array<std::byte, 256> codes{};
  for (u32 code = 0; code < 256; ++code) {
    const bool is_nan = (code & 0x7fU) == 0x7f;
    const float value = std::ldexp(fp8_decoded(static_cast<std::uint8_t>(code), kE4m3), shift);
    codes[code] = static_cast<std::byte>(is_nan ? code : fp8_code(value, kE4m3));
  }
  return codes;
}

/// The second scale that goes with block scales of 2^shift times as much.
float shifted_second(float scale, int shift, bool divides) { return std::ldexp(scale, divides ? shift : -shift); }

/// The way in which a tensor is made from stored ones. Its rows are made one by one.
enum class Made {
  /// The stored bytes.
  AsStored,
  /// A row of scales for each `cell_rows` rows of the weight, each as it is stored for more of them.
  FinerScales,
  /// A byte of exponent for each 32 codes of a row.
  MxScales,
  /// A byte for each code of FP4.
  MxCodes,
  /// Block scales of NVFP4, of each matrix times a power of two.
  ShiftedScales,
  /// The second scales that go with them.
  SharedSecond,
};

struct Entry {
  std::size_t stored = 0;
  Made made = Made::AsStored;
  /// Index into Quantization::tensors, where it is made.
  std::size_t weight = 0;
};

/// Makes rows of one tensor. One call uses it.
class RowMaker {
 public:
  RowMaker(const Source& source, const QuantizedTensor& weight, Made made, i64 finer_rows)
      : source_(source), weight_(weight), made_(made), finer_rows_(finer_rows) {}

  i64 rows() const {
    return made_ == Made::FinerScales ? (weight_.rows + finer_rows_ - 1) / finer_rows_ : weight_.rows;
  }
  i64 row_bytes() const {
    switch (made_) {
      case Made::FinerScales: return weight_.grid_cols() * scale_bytes();
      case Made::MxScales: return weight_.cols / kMxCols;
      default: return weight_.cols;
    }
  }

  /// Rows [begin, end) of a matrix, to `out`.
  void make(i64 matrix, i64 begin, i64 end, std::byte* out) {
    if (made_ == Made::MxCodes) return widen_codes(matrix, begin, end, out);
    const i64 of_one = made_ == Made::FinerScales ? finer_rows_ : 1;
    const auto cell_of = [&](i64 row) { return weight_.grid_row_of(row * of_one); };
    fetch_scales(matrix, cell_of(begin), cell_of(end - 1) + 1);
    for (i64 row = begin; row < end; ++row, out += row_bytes()) {
      const i64 at = (cell_of(row) - cell_of(begin)) * weight_.grid_cols();
      if (made_ == Made::FinerScales)
        std::memcpy(out, stored_.data() + at * scale_bytes(), static_cast<std::size_t>(row_bytes()));
      else
        put_exponents(matrix, cell_of(row), at, out);
    }
  }

  /// Throws NotExact for the first scale that is no power of two.
  void check_scales() {
    std::vector<std::byte> row(static_cast<std::size_t>(row_bytes()));
    const i64 batch = std::max<i64>(kRecastBatchBytes / std::max<i64>(weight_.grid_cols() * scale_bytes(), 1), 1);
    for (i64 matrix = 0; matrix < weight_.matrices; ++matrix)
      for (i64 begin = 0; begin < weight_.grid_rows(); begin += batch) {
        const i64 end = std::min(begin + batch, weight_.grid_rows());
        fetch_scales(matrix, begin, end);
        for (i64 cell = begin; cell < end; ++cell)
          put_exponents(matrix, cell, (cell - begin) * weight_.grid_cols(), row.data());
      }
  }

 private:
  const TensorRef& scales() const { return source_.inventory().tensors[weight_.scales]; }
  i64 scale_bytes() const { return dtype_bits(scales().dtype) / 8; }

  void fetch(std::size_t tensor, i64 offset, i64 count) {
    stored_.resize(static_cast<std::size_t>(count));
    source_.read(tensor, offset, stored_);
  }

  void fetch_scales(i64 matrix, i64 begin, i64 end) {
    const i64 cell_bytes = weight_.grid_cols() * scale_bytes();
    fetch(weight_.scales, (weight_.scales_of(matrix) * weight_.grid_rows() + begin) * cell_bytes,
          (end - begin) * cell_bytes);
  }

  /// `at` is the first scale of the row of cells in what was fetched.
  void put_exponents(i64 matrix, i64 cell, i64 at, std::byte* out) const {
    for (i64 col = 0; col < row_bytes(); ++col) {
      const i64 grid_col = col * kMxCols / weight_.cell_cols;
      const auto byte = exponent_byte(scales().dtype, stored_.data() + (at + grid_col) * scale_bytes());
      if (!byte)
        fail(ErrorCode::NotExact, {{}, scales().name},
             "'{}': scale [{}, {}]{} is no power of two between 2^-127 and 2^127, so '{}' is not MXFP8 exactly; "
             "--decode bf16 reads it",
             scales().name, cell, grid_col, weight_.matrices > 1 ? fmt::format(" of matrix {}", matrix) : "",
             weight_.name);
      out[col] = static_cast<std::byte>(*byte);
    }
  }

  void widen_codes(i64 matrix, i64 begin, i64 end, std::byte* out) {
    const i64 stored = weight_.cols / 2;
    fetch(weight_.weight, (matrix * weight_.rows + begin) * stored, (end - begin) * stored);
    std::array<std::uint8_t, 16> bytes = kE4m3OfE2m1;
    if (weight_.positive_zero) bytes[8] = 0;
    for (const std::byte pair : stored_) {
      const auto codes = std::to_integer<unsigned>(pair);
      *out++ = static_cast<std::byte>(bytes[codes & 15U]);
      *out++ = static_cast<std::byte>(bytes[codes >> 4U]);
    }
  }

  const Source& source_;
  const QuantizedTensor& weight_;
  Made made_;
  i64 finer_rows_;
  std::vector<std::byte> stored_;
};

class RecastSource final : public Source {
 public:
  RecastSource(const Source& source, Quantization quantization, i64 finer_rows)
      : source_(&source), quantization_(std::move(quantization)), finer_rows_(finer_rows) {
    info_ = source_->info();
    info_.inventory.dense = false;
    // The recorded digest is of the other scales.
    info_.record.erase("digest");
    info_.record.erase("source_digest");
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const Entry& entry = entries_.at(tensor);
    if (entry.made == Made::AsStored) return source_->read_scattered(entry.stored, offset, pieces);
    for (const std::span<std::byte> piece : pieces) {
      if (entry.made == Made::ShiftedScales)
        read_shifted(entry, offset, piece);
      else if (entry.made == Made::SharedSecond)
        read_shared(entry, offset, piece);
      else
        read_made(entry, offset, piece);
      offset += std::ssize(piece);
    }
  }

  bool is_cheap_in_parts() const override { return source_->is_cheap_in_parts(); }
  const ContentCheck* content_check() const override { return source_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }
  std::vector<u32> files_of(std::size_t tensor) const override {
    const Entry& entry = entries_.at(tensor);
    return entry.made == Made::AsStored ? source_->files_of(entry.stored)
                                        : files_of_all(*source_, quantization_.tensors.at(entry.weight).parts());
  }

  /// One second scale for each pair; returns how many had two.
  SharedScales share(std::span<const SecondScales> pairs) {
    std::map<std::size_t, std::size_t> weights;
    for (std::size_t i = 0; i < quantization_.tensors.size(); ++i)
      if (const QuantizedTensor& weight = quantization_.tensors[i];
          weight.global && !weight.scales_of_parts && !weight.one_for_all)
        weights.emplace(*weight.global, i);
    keep_all();
    std::vector<UnequalPair> unequal;
    for (const SecondScales& pair : pairs) {
      const auto gate = weights.find(pair.gate), up = weights.find(pair.up);
      if (gate == weights.end() || up == weights.end()) continue;
      add_unequal(gate->second, up->second, unequal);
    }
    // The first check reads little, and finds most models that have none.
    for (UnequalPair& pair : unequal)
      if (std::string why = why_no_power(pair); !why.empty()) return {0, std::move(why)};
    for (UnequalPair& pair : unequal)
      if (std::string why = choose_shifts(pair); !why.empty()) return {0, std::move(why)};
    for (const UnequalPair& pair : unequal) {
      set_shift(pair.gate, pair.matrix, pair.gate_shift);
      set_shift(pair.up, pair.matrix, pair.up_shift);
    }
    if (!unequal.empty()) info_.record["second_scales"] = "one";
    return {std::ssize(unequal), {}};
  }

  /// The scales of all weights with blocks of more rows.
  bool refine() {
    keep_all();
    for (std::size_t i = 0; i < quantization_.tensors.size(); ++i) {
      const QuantizedTensor& weight = quantization_.tensors[i];
      TensorRef& scales = info_.inventory.tensors[weight.scales];
      if (weight.codes != Codes::E4m3 && weight.codes != Codes::E5m2) continue;
      // A scale of a whole matrix, or of gate and of up, has no axis for more of them.
      if (weight.scales_of_parts || weight.cell_rows <= finer_rows_ || weight.cell_rows % finer_rows_ != 0 ||
          weight.cell_cols == 1 || scales.shape.size() < 2)
        continue;
      if (weight.restart_rows % finer_rows_ != 0)
        fail(ErrorCode::NotExact, {{}, scales.name},
             "'{}': its blocks begin anew behind {} rows, where up begins, and blocks of {} rows would not",
             scales.name, weight.restart_rows, finer_rows_);
      check_block_rows_are_said(weight, scales);
      std::vector<i64> expected(weight.shape.begin(), weight.shape.end() - 2);
      expected.insert(expected.end(), {weight.grid_rows(), weight.grid_cols()});
      if (scales.shape != expected)
        fail(ErrorCode::NotSupported, {{}, scales.name},
             "'{}': scales of shape {} have no axis of rows that could have more of them", scales.name,
             shape_text(scales.shape));
      entries_[weight.scales] = {weight.scales, Made::FinerScales, i};
      scales.shape[scales.shape.size() - 2] = RowMaker(*source_, weight, Made::FinerScales, finer_rows_).rows();
      scales.bytes = scales.bytes / weight.grid_rows() * scales.shape[scales.shape.size() - 2];
      ++info_.recast_tensors;
    }
    if (info_.recast_tensors == 0) return false;
    edit_config(info_, [rows = finer_rows_](std::string_view text) { return with_block_rows(text, rows); });
    info_.record["scale_rows"] = fmt::format("{}", finer_rows_);
    return true;
  }

  bool encode() {
    check_decodable(*source_, quantization_);
    std::map<std::size_t, std::size_t> weights, scales;
    for (std::size_t i = 0; i < quantization_.tensors.size(); ++i) {
      const QuantizedTensor& weight = quantization_.tensors[i];
      check_encodable(weight);
      weights.emplace(weight.weight, i);
      scales.emplace(weight.scales, i);
    }
    const Inventory stored = std::move(info_.inventory);
    info_.inventory = {{}, stored.files, false};
    for (std::size_t i = 0; i < stored.tensors.size(); ++i) {
      TensorRef tensor = stored.tensors[i];
      Entry entry{i};
      if (const auto found = weights.find(i); found != weights.end()) become_codes(tensor, entry, found->second);
      if (const auto found = scales.find(i); found != scales.end()) become_scales(tensor, entry, found->second);
      if (entry.made != Made::AsStored) ++info_.recast_tensors;
      entries_.push_back(entry);
      info_.inventory.tensors.push_back(std::move(tensor));
    }
    if (info_.recast_tensors == 0) return false;
    take_out_quantization_files(info_);
    edit_config(info_, with_mxfp8);
    info_.record["encoded_as"] = "mxfp8";
    return true;
  }

  void own(std::unique_ptr<Source> source) { owned_ = std::move(source); }

 private:
  /// Gate and up of one expert with two second scales, and the powers of two by which the block scales of each are
  /// multiplied so that one is left.
  struct UnequalPair {
    std::size_t gate = 0;
    std::size_t up = 0;
    i64 matrix = 0;
    float gate_scale = 0;
    float up_scale = 0;
    int gate_shift = 0;
    int up_shift = 0;
  };

  void keep_all() {
    for (std::size_t i = 0; i < info_.inventory.tensors.size(); ++i) entries_.push_back({i});
  }

  const TensorRef& stored_tensor(std::size_t number) const { return source_->inventory().tensors[number]; }

  float second_scale(const QuantizedTensor& weight, i64 matrix) const {
    std::byte bytes[4];
    source_->read(*weight.global, matrix * 4, bytes);
    return scale_value(Dtype::F32, bytes);
  }

  void add_unequal(std::size_t gate, std::size_t up, std::vector<UnequalPair>& unequal) const {
    const QuantizedTensor& of_gate = quantization_.tensors[gate];
    for (i64 matrix = 0; matrix < of_gate.matrices; ++matrix) {
      const float gate_scale = second_scale(of_gate, matrix);
      const float up_scale = second_scale(quantization_.tensors[up], matrix);
      if (gate_scale != up_scale) unequal.push_back({gate, up, matrix, gate_scale, up_scale});
    }
  }

  std::string pair_text(const UnequalPair& pair) const {
    return fmt::format("'{}' is {} and '{}' {}", stored_tensor(*quantization_.tensors[pair.gate].global).name,
                       pair.gate_scale, stored_tensor(*quantization_.tensors[pair.up].global).name, pair.up_scale);
  }

  /// The power of two that gate's second scale is of up's.
  static std::optional<int> ratio_power(const UnequalPair& pair) {
    int gate = 0, up = 0;
    if (!std::isfinite(pair.gate_scale) || !std::isfinite(pair.up_scale)) return std::nullopt;
    if (std::frexp(pair.gate_scale, &gate) != std::frexp(pair.up_scale, &up)) return std::nullopt;
    if (pair.gate_scale == 0) return std::nullopt;
    return gate - up;
  }

  std::string why_no_power(const UnequalPair& pair) const {
    if (ratio_power(pair)) return {};
    return pair_text(pair) + ", whose ratio is no power of two";
  }

  ShiftRange shifts_of(std::size_t number, i64 matrix) const {
    const QuantizedTensor& weight = quantization_.tensors[number];
    const i64 bytes = weight.grid_rows() * weight.grid_cols();
    std::array<bool, 256> occur{};
    std::vector<std::byte> scales;
    for (i64 done = 0; done < bytes; done += std::ssize(scales)) {
      scales.resize(static_cast<std::size_t>(std::min(bytes - done, kRecastBatchBytes)));
      source_->read(weight.scales, matrix * bytes + done, scales);
      for (const std::byte code : scales) occur[std::to_integer<std::size_t>(code)] = true;
    }
    ShiftRange range;
    for (u32 code = 0; code < 256; ++code)
      if (occur[code]) range.meet(static_cast<std::uint8_t>(code));
    return range;
  }

  /// Gate's second scale g and up's u become one s = g / 2^a = u / 2^b, and their block scales 2^a and 2^b times as
  /// much; where they divide, s = g * 2^a = u * 2^b. Returns why there is none; empty where there is.
  std::string choose_shifts(UnequalPair& pair) const {
    const bool divides = quantization_.tensors[pair.gate].global_divides;
    const int ratio = (divides ? -1 : 1) * ratio_power(pair).value_or(0);
    const ShiftRange gate = shifts_of(pair.gate, pair.matrix), up = shifts_of(pair.up, pair.matrix);
    // a - b is the ratio. A scale between g and u, which fp32 has as it has both, does if any does: a step beyond one
    // of them moves both block scales the same way. At either end the block scales of one stay as they are.
    std::vector<int> shifts = {0, ratio};
    for (int a = std::min(0, ratio) + 1; a < std::max(0, ratio); ++a) shifts.push_back(a);
    const auto best = std::ranges::find_if(shifts, [&](int a) { return gate.has(a) && up.has(a - ratio); });
    if (best == shifts.end())
      return fmt::format("{}, and no power of two of either leaves every block scale exact in E4M3", pair_text(pair));
    pair.gate_shift = *best;
    pair.up_shift = *best - ratio;
    return {};
  }

  void set_shift(std::size_t number, i64 matrix, int shift) {
    if (shift == 0) return;
    const QuantizedTensor& weight = quantization_.tensors[number];
    if (entries_[weight.scales].made == Made::AsStored) info_.recast_tensors += 2;
    entries_[weight.scales] = {weight.scales, Made::ShiftedScales, number};
    entries_[*weight.global] = {*weight.global, Made::SharedSecond, number};
    shifts_.emplace(std::pair(number, matrix), shift);
  }

  int shift_of(std::size_t number, i64 matrix) const {
    const auto known = shifts_.find(std::pair(number, matrix));
    return known == shifts_.end() ? 0 : known->second;
  }

  void read_shifted(const Entry& entry, i64 offset, std::span<std::byte> out) const {
    source_->read(entry.stored, offset, out);
    const i64 of_matrix = stored_tensor(entry.stored).bytes / quantization_.tensors[entry.weight].matrices;
    while (!out.empty()) {
      const i64 matrix = offset / of_matrix, bytes = std::min(of_matrix - offset % of_matrix, std::ssize(out));
      if (const int shift = shift_of(entry.weight, matrix); shift != 0) {
        const auto codes = shifted_codes(shift);
        for (std::byte& code : out.first(static_cast<std::size_t>(bytes)))
          code = codes[std::to_integer<std::size_t>(code)];
      }
      out = out.subspan(static_cast<std::size_t>(bytes));
      offset += bytes;
    }
  }

  void read_shared(const Entry& entry, i64 offset, std::span<std::byte> out) const {
    const QuantizedTensor& weight = quantization_.tensors[entry.weight];
    std::vector<float> values;
    for (i64 matrix = 0; matrix < weight.matrices; ++matrix) {
      const float stored = second_scale(weight, matrix);
      const int shift = shift_of(entry.weight, matrix);
      // One without a shift may be NaN, and stays.
      values.push_back(shift == 0 ? stored : shifted_second(stored, shift, weight.global_divides));
    }
    std::memcpy(out.data(), std::as_bytes(std::span(values)).data() + offset, out.size());
  }

  /// Programs that read ModelOpt's blocks (vLLM, TensorRT-LLM) have 128 x 128 built in: scales for fewer rows would
  /// multiply other ones.
  void check_block_rows_are_said(const QuantizedTensor& weight, const TensorRef& scales) const {
    const QuantConfig config = read_quant_config(info_.hints.config);
    const bool is_modelopt = config.method == "modelopt" || scales.shape.size() == weight.shape.size() + 2;
    if (!is_modelopt && !block_rows_field(config).empty()) return;
    const std::string who = is_modelopt ? "ModelOpt" : "'" + config.method + "'";
    fail(ErrorCode::NotExact, {{}, scales.name},
         "'{}': each scale is for {} x {} weights, which the order of gate and up would cut into blocks of {} rows. "
         "quantization_config of {} has no field for the rows of a block, so that programs would take the scales for "
         "those of {} rows. Keep K, or F, a multiple of {}",
         scales.name, weight.cell_rows, weight.cell_cols, finer_rows_, who, weight.cell_rows, weight.cell_rows);
  }

  static bool is_mx(const QuantizedTensor& weight, Dtype scales) {
    return weight.codes == Codes::E4m3 && weight.cell_rows == 1 && weight.cell_cols == kMxCols &&
           (scales == Dtype::U8 || scales == Dtype::F8_E8M0);
  }

  void check_encodable(const QuantizedTensor& weight) const {
    const std::string& name = source_->inventory().tensors[weight.weight].name;
    const bool is_fp4 = weight.codes == Codes::E2m1 && !weight.global && weight.cell_cols == kMxCols;
    if (weight.in_out || (weight.transposed && !weight.has_block_axis))
      fail(ErrorCode::NotSupported, {{}, name},
           "'{}': its naming stores experts as [in, out], where the 32 codes of a block of MXFP8 would not lie beside "
           "each other, and no reader has that; --decode bf16 reads them, or rename them first (--scope experts)",
           name);
    if (weight.codes != Codes::E4m3 && !is_fp4)
      fail(ErrorCode::NotSupported, {{}, name},
           "'{}': --encode mxfp8 is for FP8 (E4M3) and MXFP4, whose numbers MXFP8 has; --decode bf16 reads others",
           name);
    if (weight.scales_of_parts)
      fail(ErrorCode::NotSupported, {{}, name},
           "'{}': gate and up have a scale each in one tensor; split them first (--experts indexed --glu split), then "
           "encode",
           name);
    if (weight.cols % kMxCols != 0)
      fail(ErrorCode::NotExact, {{}, name}, "'{}': rows of {} weights are no multiple of {}", name, weight.cols,
           kMxCols);
    if (weight.cell_cols < weight.cols && weight.cell_cols % kMxCols != 0)
      fail(ErrorCode::NotExact, {{}, name},
           "'{}': a scale is for {} columns, no multiple of {}: some blocks of MXFP8 would need two; --decode bf16 "
           "reads it",
           name, weight.cell_cols, kMxCols);
    if (!is_mx(weight, source_->inventory().tensors[weight.scales].dtype))
      RowMaker(*source_, weight, Made::MxScales, 0).check_scales();
  }

  void become_codes(TensorRef& tensor, Entry& entry, std::size_t number) const {
    const QuantizedTensor& weight = quantization_.tensors[number];
    if (weight.codes != Codes::E2m1) return;
    entry = {entry.stored, Made::MxCodes, number};
    // gpt-oss's blocks keep their names and their axes, and get an axis of 32 bytes.
    if (!weight.has_block_axis) tensor.name = weight.name;
    tensor.dtype = Dtype::F8_E4M3;
    tensor.shape = weight.has_block_axis ? tensor.shape : weight.shape;
    if (weight.has_block_axis) tensor.shape.back() = kMxCols;
    tensor.bytes = weight.matrices * weight.rows * weight.cols;
  }

  void become_scales(TensorRef& tensor, Entry& entry, std::size_t number) const {
    const QuantizedTensor& weight = quantization_.tensors[number];
    if (is_mx(weight, tensor.dtype)) return;
    entry = {entry.stored, Made::MxScales, number};
    // DeepSeek-V4 calls them `scale`.
    if (tensor.name.ends_with(".scale")) tensor.name = weight.name + "_scale";
    tensor.dtype = Dtype::U8;
    if (!weight.has_block_axis) {
      tensor.shape = weight.shape;
      tensor.shape.back() /= kMxCols;
    }
    tensor.bytes = weight.matrices * weight.rows * (weight.cols / kMxCols);
  }

  void read_made(const Entry& entry, i64 offset, std::span<std::byte> out) const {
    const QuantizedTensor& weight = quantization_.tensors[entry.weight];
    RowMaker maker(*source_, weight, entry.made, finer_rows_);
    const i64 row_bytes = maker.row_bytes(), rows = maker.rows();
    std::vector<std::byte> made;
    while (!out.empty()) {
      const i64 row = offset / row_bytes, skip = offset % row_bytes;
      const i64 matrix = row / rows, begin = row % rows;
      const i64 wanted = (skip + std::ssize(out) + row_bytes - 1) / row_bytes;
      const i64 batch = std::max<i64>(kRecastBatchBytes / row_bytes, 1);
      const i64 end = std::min({rows, begin + wanted, begin + batch});
      made.resize(static_cast<std::size_t>((end - begin) * row_bytes));
      maker.make(matrix, begin, end, made.data());
      const i64 bytes = std::min((end - begin) * row_bytes - skip, std::ssize(out));
      std::memcpy(out.data(), made.data() + skip, static_cast<std::size_t>(bytes));
      out = out.subspan(static_cast<std::size_t>(bytes));
      offset += bytes;
    }
  }

  const Source* source_;
  std::unique_ptr<Source> owned_;
  Quantization quantization_;
  i64 finer_rows_;
  CheckpointInfo info_;
  std::vector<Entry> entries_;
  /// The power of two by which block scales are multiplied, for each weight and matrix.
  std::map<std::pair<std::size_t, i64>, int> shifts_;
};

}  // namespace

void refine_scales(std::unique_ptr<Source>& source, Quantization found, i64 rows) {
  auto recast = std::make_unique<RecastSource>(*source, std::move(found), rows);
  if (!recast->refine()) return;
  recast->own(std::move(source));
  source = std::move(recast);
}

SharedScales share_second_scales(std::unique_ptr<Source>& source, Quantization found,
                                 std::span<const SecondScales> pairs) {
  auto recast = std::make_unique<RecastSource>(*source, std::move(found), 0);
  SharedScales shared = recast->share(pairs);
  if (shared.pairs == 0) return shared;
  recast->own(std::move(source));
  source = std::move(recast);
  return shared;
}

void encode_mxfp8(std::unique_ptr<Source>& source, Quantization found) {
  auto recast = std::make_unique<RecastSource>(*source, std::move(found), 0);
  if (!recast->encode()) return;
  recast->own(std::move(source));
  source = std::move(recast);
}

}  // namespace glu_ckpt
