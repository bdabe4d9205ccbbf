#pragma once
/// Quantized formats, one file each: the parts of their tensors, how scales cover weights, and which decoders read
/// them. Moves (layout) and decoding (quant) read the same rows and know no format by its name.
///
/// Example: nvfp4.cpp says that bytes of two codes have a scale in F8_E4M3 for 16 weights and a second one for a
/// matrix.

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "core/encode_bits.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"

namespace glu_ckpt {

/// Rows of one kind in a constexpr struct.
template <typename Item, std::size_t kMost>
class ShortList {
 public:
  constexpr ShortList() = default;
  constexpr ShortList(std::initializer_list<Item> items) {
    for (const Item& item : items) items_[count_++] = item;
  }
  constexpr const Item* begin() const { return items_.data(); }
  constexpr const Item* end() const { return items_.data() + count_; }
  constexpr bool contains(const Item& item) const {
    for (const Item& own : *this)
      if (own == item) return true;
    return false;
  }

 private:
  std::array<Item, kMost> items_{};
  std::size_t count_ = 0;
};

using Dtypes = ShortList<Dtype, 4>;

/// A way in which the elements of a part may cover the weights of a matrix.
struct GridRow {
  enum class Kind : std::uint8_t {
    /// Each is for the weights that `grid` says.
    Fixed,
    /// One for each output, and one for the matrix.
    Outputs,
    Matrix,
    /// One for each block of as many rows and columns as quantization_config says, or else 128 x 128.
    Blocks,
    /// One for `grid.rows` outputs and as many columns as the shape says on `axis`.
    Groups,
  };
  Kind kind = Kind::Fixed;
  ElementGrid grid{};
  std::size_t axis = 0;
};

/// The meaning of a tensor beside codes.
enum class PartUse : std::uint8_t {
  Scales,
  /// A second scale for a whole matrix, by which is multiplied or divided.
  Multiplier,
  Divisor,
  /// The codes that stand for zero.
  Zeros,
  /// The group of each column.
  Order,
  StatedShape,
  /// It says how inputs are quantized, and is of no use once weights are decoded.
  Inputs,
};

struct FormatPart {
  PartUse use = PartUse::Scales;
  TensorKind kind = TensorKind::PlainScale;
  Dtypes dtypes{};
  ShortList<GridRow, 4> grids{};
};

/// A form in which codes are stored, and the tensors beside them.
struct CodeForm {
  TensorKind kind = TensorKind::Weight;
  Dtype dtype = Dtype::U8;
  Codes codes = Codes::E4m3;
  /// The weights of an element.
  ElementGrid packing{};
  ShortList<FormatPart, 5> parts{};
  /// A sentence, where no program reads this form.
  std::string_view unread{};

  constexpr const FormatPart* part(PartUse use) const {
    for (const FormatPart& row : parts)
      if (row.use == use) return &row;
    return nullptr;
  }
  constexpr bool has_second_scale() const {
    return part(PartUse::Multiplier) != nullptr || part(PartUse::Divisor) != nullptr;
  }
  constexpr bool has_scales(Dtype scales) const {
    for (const FormatPart& row : parts)
      if (row.use == PartUse::Scales && row.dtypes.contains(scales)) return true;
    return false;
  }
};

/// A program that decodes the format, and what it does differently.
struct DecoderRow {
  std::string_view program;
  /// Code 8 of FP4 is +0.
  bool positive_zero = false;
  /// Scales are rounded to the dtype of the decoded weight before they multiply.
  bool rounds_scale = false;
  /// It multiplies in the dtype of its scales, others in F32.
  bool rounds_product = false;
  /// It writes second scales by which is divided.
  bool divides = false;
  /// It writes codes of this dtype alone; those of others are decoded as by that program.
  std::optional<Dtype> own_dtype{};
  std::string_view for_others{};
};

/// A program that makes codes of the format from weights. The first row with a word is the one meant by it alone.
struct EncoderRow {
  /// "fp8:128x128".
  std::string_view word;
  std::string_view program;
  ScaleRule rule = ScaleRule::Slime;
  /// A scale is for so many rows and columns; 0: for all columns.
  std::int16_t cell_rows = 1;
  std::int16_t cell_cols = 0;
  /// The kind and dtype of codes and scales; BF16: that of the weights.
  TensorKind codes = TensorKind::Weight;
  TensorKind scales = TensorKind::PlainScale;
  Dtype scale_dtype = Dtype::F32;
  /// A weight is divided by the scale, or multiplied by its inverse; the quotient is rounded to the weights' dtype.
  bool divides = false;
  bool rounds_quotient = false;
  LeastPower least = LeastPower::AsSaid;
  Ties ties = Ties::Even;
  Signs signs = Signs::Kept;
  /// Weights whose shape is no multiple of the cell stay as they are.
  bool skips_uneven = false;
  /// The spelling of quantization_config: "fp8", "compressed-tensors", "modelopt", "mxfp8", "mxfp4"; and its format.
  std::string_view method;
  std::string_view config_format{};
};

/// A quant_method that means the format.
struct MethodRow {
  std::string_view word;
  /// The program whose decoder is followed.
  std::string_view decoder;
};

/// The fields of quantization_config in which the makers of codes in words say what tensors do not.
struct WordsConfig {
  /// The version of the format, in the first of these that is there; a flag that means the version `marlin`.
  ShortList<std::string_view, 2> version{};
  std::string_view marlin{};
  /// Columns were reordered.
  std::string_view order{};
  /// There are zero points other than 8; others say the opposite in `sym`.
  std::string_view zeros{};
  /// auto-round's word for the format (`packing_format`).
  std::string_view auto_round{};
  /// A file beside the weights that is of this format alone, and fields by which another is; of files without them, the
  /// format that has none is meant.
  std::string_view file{};
  ShortList<std::string_view, 2> own{};
};

struct QuantFormat {
  /// Its name in reports.
  std::string_view name;
  ShortList<CodeForm, 4> forms{};
  ShortList<DecoderRow, 5> decoders{};
  ShortList<MethodRow, 3> methods{};
  ShortList<EncoderRow, 12> encoders{};
  /// Codes lie in words under names that say no more: quant_method (`methods`) says that they are of this format, in
  /// one of these versions; an empty version is the first.
  ShortList<std::string_view, 2> versions{};
  /// Added to each word of zero points in the first of those versions, with carries.
  int zero_offset = 0;
  /// The numbers that codes are, in the words of compressed-tensors, and their bits.
  std::string_view type = "float";
  int bits = 8;
  /// The beginning of ModelOpt's word (quant_algo) for models that have no such codes.
  std::string_view other_algorithm{};
  WordsConfig words{};
  /// The last words of names of scales that are in no TensorKind, since no form of the format is read.
  ShortList<std::string_view, 2> foreign_scales{};
};

/// A form, and the format that it is one of.
struct FormRef {
  const QuantFormat* format = nullptr;
  const CodeForm* form = nullptr;
};

std::span<const QuantFormat* const> quant_formats();
/// The format of codes in words that this quant_method means; null where it means none.
const QuantFormat* format_of_words(std::string_view method);
/// The forms in which codes of this kind and dtype may be stored.
std::vector<FormRef> forms_of(TensorKind kind, Dtype dtype);

inline constexpr Dtypes kFloatScales{Dtype::F32, Dtype::BF16, Dtype::F16};
inline constexpr Dtypes kFp8Scales{Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0};
/// Powers of two, which some call bytes.
inline constexpr Dtypes kPowerScales{Dtype::U8, Dtype::F8_E8M0};
/// Codes of four bits: two in a byte of a row, eight in a word of a row, and in a word of a column.
inline constexpr ElementGrid kNibbles{1, 2};
inline constexpr ElementGrid kRowWords{1, 8};
inline constexpr ElementGrid kColumnWords{8, 1};
/// MXFP8: one power of two, a byte, for 32 weights of a row or of a column. Padded as TransformerEngine keeps them in
/// memory, which is also how its GEMM-swizzled scales are shaped; what stands in a checkpoint under these names is not
/// swizzled (ModelOpt, compressed-tensors and slime write rows).
inline constexpr ElementGrid kMxGrids[] = {{1, 32}, {32, 1}, {1, 32, 128, 4}, {32, 1, 4, 128}};
inline constexpr ElementGrid kUnitAxes{.has_unit_axes = true};
inline constexpr GridRow kMatrixGrid{GridRow::Kind::Matrix};
inline constexpr GridRow kOutputGrid{GridRow::Kind::Outputs};
inline constexpr GridRow kBlockGrid{GridRow::Kind::Blocks};
/// ModelOpt's (FP8_PB_WO): [n, 1, k, 1].
inline constexpr GridRow kUnitBlockGrid{GridRow::Kind::Blocks, kUnitAxes};
constexpr GridRow fixed_grid(ElementGrid grid) { return {GridRow::Kind::Fixed, grid}; }
constexpr GridRow group_grid(std::uint16_t rows, std::size_t axis) { return {GridRow::Kind::Groups, {rows, 1}, axis}; }
inline constexpr FormatPart kInputScale{PartUse::Inputs, TensorKind::InputScale};

}  // namespace glu_ckpt
