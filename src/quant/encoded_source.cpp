#include "quant/encoded_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "core/fail.hpp"
#include "core/kept.hpp"
#include "core/mxfp8_bits.hpp"
#include "format/model_config.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/cell_encoder.hpp"
#include "quant/quantization_files.hpp"

namespace glu_ckpt {
namespace {

/// Stored bytes of which the greatest is found at once.
constexpr i64 kScanBytes = i64{256} << 10;
/// Of a larger model, errors are measured in rows of cells spread over all of its weights; where a weight has a second
/// scale, for which all of it is read, in whole weights of each role.
constexpr i64 kMeasuredBytes = i64{32} << 20;

/// Scales that are kept while the codes of other weights are made.
constexpr i64 kKeptScaleBytes = i64{4} << 20;

enum class MadeAs { AsStored, Codes, Scales, Second, Shape };

/// Rows of the scales of one weight, as they were made with its codes.
struct MadeScales {
  std::mutex mutex;
  std::vector<std::byte> data;
  std::vector<char> is_made;
};

struct KnownGreatest {
  std::once_flag read;
  float value = 0;
};

/// As a value that stays the same while its rows are made.
struct ScalesOfWeight {
  std::unique_ptr<MadeScales> rows;
  i64 bytes() const { return std::ssize(rows->data) + std::ssize(rows->is_made); }
};

struct EncodedEntry {
  std::size_t stored = 0;
  MadeAs made = MadeAs::AsStored;
  /// Index into the weights, where it is made.
  std::size_t weight = 0;
};

class EncodedSource final : public Source {
 public:
  EncodedSource(const Source& source, const Encoder& encoder, std::vector<EncodedWeight> weights, EncodePath path,
                SimdLevel level)
      : source_(&source),
        encoder_(encoder),
        weights_(std::move(weights)),
        path_(path),
        level_(level),
        greatest_(std::make_unique<KnownGreatest[]>(weights_.size())) {
    info_ = source_->info();
    info_.inventory = {{}, source_->inventory().files, false};
    replace_tensors();
    replace_config();
    describe();
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const EncodedEntry& entry = entries_.at(tensor);
    if (entry.made == MadeAs::AsStored) return source_->read_scattered(entry.stored, offset, pieces);
    if (pieces.size() == 1) return read_made(entry, offset, pieces.front());
    // Pieces may be rows, and a turned matrix is read whole for any part of it.
    std::size_t bytes = 0;
    for (const std::span<std::byte> piece : pieces) bytes += piece.size();
    std::vector<std::byte> made(bytes);
    read_made(entry, offset, made);
    auto next = made.begin();
    for (const std::span<std::byte> piece : pieces) {
      std::copy_n(next, piece.size(), piece.begin());
      next += std::ssize(piece);
    }
  }

  /// Weights that are not finite are refused.
  bool may_have_read_nan_or_infinity() const override { return false; }
  /// All of a row of cells is read for each row of its codes.
  bool is_cheap_in_parts() const override { return false; }
  const ContentCheck* content_check() const override { return source_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }

  void own(std::unique_ptr<Source> source) { owned_ = std::move(source); }
  void compute_on(const std::weak_ptr<WeightDevice>& device) override {
    // The plain path proves what the other one gave, so it has nothing in common with it.
    if (path_ == EncodePath::Fast) device_ = device;
    if (owned_ != nullptr) owned_->compute_on(device);
  }

 private:
  const TensorRef& stored(std::size_t weight) const { return source_->inventory().tensors[weights_[weight].tensor]; }

  WeightCells cells_of(std::size_t weight) const { return {encoder_, stored(weight), weights_[weight].turned}; }

  void replace_tensors() {
    const std::vector<TensorRef>& tensors = source_->inventory().tensors;
    std::size_t next = 0;
    const auto add = [&](TensorRef tensor, MadeAs made, std::size_t from) {
      entries_.push_back({from, made, next});
      info_.inventory.tensors.push_back(std::move(tensor));
    };
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (next >= weights_.size() || weights_[next].tensor != i) {
        add(tensors[i], MadeAs::AsStored, i);
        note_left(tensors[i]);
        continue;
      }
      const WeightCells cells(encoder_, tensors[i], weights_[next].turned);
      add(cells.codes(), MadeAs::Codes, i);
      add(cells.scales(), MadeAs::Scales, i);
      if (has_second_scale(encoder_.row)) add(cells.second(), MadeAs::Second, i);
      if (encoder_.codes == Codes::Int4) add(cells.shape(), MadeAs::Shape, i);
      ++info_.recast_tensors;
      ++info_.encoded_weights;
      ++next;
    }
  }

  void note_left(const TensorRef& tensor) {
    constexpr std::string_view kWeight = ".weight";
    if (!tensor.name.ends_with(kWeight)) return;
    std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const bool is_linear = tensor.shape.size() == 2 && !module.ends_with("embed_tokens");
    (is_linear ? left_ : others_).push_back(std::move(module));
  }

  void replace_config() {
    // The head of a tied model is a module all the same.
    constexpr std::string_view kHead = "lm_head";
    const auto is_head = [&](const std::string& module) { return module.ends_with(kHead); };
    if (std::ranges::none_of(left_, is_head)) left_.emplace_back(kHead);
    take_out_quantization_files(info_);
    const std::string object = quantization_object(encoder_, left_, others_);
    edit_config(info_, [object](std::string_view text) { return with_quantization(text, object); });
  }

  void describe() {
    info_.record.erase("digest");
    info_.record.erase("source_digest");
    info_.record["encoded_as"] = encoder_.row.word;
    info_.record["encoder"] = encoder_.row.program;
    // The side that proves the other one has no record of its own.
    if (path_ == EncodePath::Fast) info_.record["encode_error"] = measure();
  }

  /// SNR and the greatest error for each role, in order of the names.
  std::string measure() const {
    i64 bytes = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) bytes += stored(i).bytes;
    const double share =
        std::min(1.0, static_cast<double>(kMeasuredBytes) / static_cast<double>(std::max<i64>(bytes, 1)));
    std::map<std::string, EncodeErrors> by_role;
    std::map<std::string, double> due_of_role;
    EncodeErrors all;
    double due = 1;
    const bool takes_whole = share < 1 && has_second_scale(encoder_.row);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (takes_whole) {
        double& due_here = due_of_role.emplace(weights_[i].role, 1).first->second;
        const bool is_due = due_here >= 1;
        due_here += share - (is_due ? 1 : 0);
        if (!is_due) continue;
      }
      CellEncoder encoder(*source_, encoder_, weights_[i], EncodePath::Fast, level_, second_of(i));
      const WeightCells cells = cells_of(i);
      // A part of a turned matrix takes as long as all of it.
      const bool takes_rows = share < 1 && !takes_whole;
      const i64 step = takes_rows && !cells.turned() ? 1 : encoder.batch();
      for (i64 begin = 0; begin < cells.grid_rows(); begin += step) {
        if (takes_rows && (due += share) < 1) continue;
        if (takes_rows) due -= 1;
        encoder.load(begin, std::min(begin + step, cells.grid_rows()));
        const EncodeErrors errors = encoder.measure();
        by_role[weights_[i].role].add(errors);
        all.add(errors);
      }
    }
    std::string text;
    for (const auto& [role, errors] : by_role)
      text += fmt::format("{}{}: SNR {}, each weight off by at most {:.2f}% of the greatest one under its scale",
                          text.empty() ? "" : "; ", role, snr_text(errors), 100 * errors.greatest);
    if (all.lost > 0)
      text += fmt::format("; {} became 0", all.lost == 1 ? "1 weight" : fmt::format("{} weights", all.lost));
    if (share < 1) text += fmt::format("; measured on {} of the weights", all.weights);
    return text;
  }

  static std::string snr_text(const EncodeErrors& errors) {
    if (errors.error_squares == 0) return "without end";
    return fmt::format("{:.2f} dB", 10 * std::log10(errors.squares / errors.error_squares));
  }

  /// The greatest magnitude of a weight. Workers ask for the same one at once: the first reads it, and others wait for
  /// that weight alone.
  float greatest_of(std::size_t tensor) const {
    const auto found = std::ranges::lower_bound(weights_, tensor, {}, &EncodedWeight::tensor);
    // What is in memory may be other weights at the next call.
    if (info_.files.empty() || found == weights_.end() || found->tensor != tensor) return read_greatest(tensor);
    KnownGreatest& known = greatest_[static_cast<std::size_t>(found - weights_.begin())];
    std::call_once(known.read, [&] { known.value = read_greatest(tensor); });
    return known.value;
  }

  float second_of(std::size_t weight) const {
    if (!has_second_scale(encoder_.row)) return 1;
    std::size_t greatest_in = weights_[weight].tensor;
    float greatest = greatest_of(greatest_in);
    for (const std::size_t other : weights_[weight].shares_with)
      if (const float own = greatest_of(other); own > greatest) {
        greatest = own;
        greatest_in = other;
      }
    const float second = second_scale(encoder_.row, greatest, stored(weight).dtype);
    const std::string& name = source_->inventory().tensors[greatest_in].name;
    if (!std::isfinite(greatest))
      fail(ErrorCode::NotExact, {{}, name},
           "'{}': a weight is NaN or infinite, and no program's codes have a value for the others then; find out what "
           "wrote it",
           name);
    if (!std::isfinite(second) || second == 0)
      fail(ErrorCode::NotExact, {{}, name},
           "'{}': its greatest weight is {}, so that its second scale would be {} and its codes NaN", name, greatest,
           second);
    return second;
  }

  float read_greatest(std::size_t tensor) const {
    const TensorRef& weight = source_->inventory().tensors[tensor];
    const i64 size = dtype_bits(weight.dtype) / 8;
    std::vector<std::byte> bytes;
    float greatest = 0;
    for (i64 done = 0; done < weight.bytes; done += std::ssize(bytes)) {
      bytes.resize(static_cast<std::size_t>(std::min(weight.bytes - done, kScanBytes)));
      source_->read(tensor, done, bytes);
      const i64 count = std::ssize(bytes) / size;
      raise_greatest(bytes.data(), count, weight.dtype, count, &greatest, level_);
    }
    return greatest;
  }

  void read_made(const EncodedEntry& entry, i64 offset, std::span<std::byte> out) const {
    if (entry.made == MadeAs::Second) {
      const float second = second_of(entry.weight);
      std::memcpy(out.data(), std::as_bytes(std::span(&second, 1)).data() + offset, out.size());
      return;
    }
    if (entry.made == MadeAs::Shape) {
      const i64 shape[] = {cells_of(entry.weight).rows(), cells_of(entry.weight).cols()};
      std::memcpy(out.data(), std::as_bytes(std::span(shape)).data() + offset, out.size());
      return;
    }
    const WeightCells cells = cells_of(entry.weight);
    if (entry.made == MadeAs::Scales && copy_scales(entry.weight, cells, offset, out)) return;
    CellEncoder encoder(*source_, encoder_, weights_[entry.weight], path_, level_, second_of(entry.weight),
                        device_.lock());
    // Rows of codes, or of scales, of which some are made for one row of cells.
    const bool is_codes = entry.made == MadeAs::Codes;
    const i64 row_bytes = is_codes ? cells.code_row_bytes() : cells.scale_row_bytes();
    const i64 rows_of_cell = is_codes ? cells.cell_rows() : 1;
    std::vector<std::byte> made;
    while (!out.empty()) {
      const i64 row = offset / row_bytes, skip = offset % row_bytes;
      const i64 end_row = (offset + std::ssize(out) + row_bytes - 1) / row_bytes;
      const i64 begin = row / rows_of_cell;
      const i64 end = std::min(begin + encoder.batch(), (end_row + rows_of_cell - 1) / rows_of_cell);
      const i64 last = std::min(end * rows_of_cell, end_row);
      encoder.load(begin, end);
      keep_scales(entry.weight, cells, begin, end, encoder);
      const i64 bytes = std::min((last - row) * row_bytes - skip, std::ssize(out));
      const bool whole = is_codes && skip == 0 && bytes == (last - row) * row_bytes;
      made.resize(whole ? 0 : static_cast<std::size_t>((end - begin) * rows_of_cell * row_bytes));
      if (is_codes) {
        std::byte* to = whole ? out.data() : made.data();
        for (i64 one = row; one < last; ++one, to += row_bytes) encoder.put_codes(one, to);
      } else {
        encoder.put_scales(made.data());
      }
      if (!whole) std::memcpy(out.data(), made.data() + skip, static_cast<std::size_t>(bytes));
      out = out.subspan(static_cast<std::size_t>(bytes));
      offset += bytes;
    }
  }

  /// Null where the weights may be others at the next call, as those in memory may.
  std::shared_ptr<const ScalesOfWeight> scales_of(std::size_t weight, const WeightCells& cells) const {
    if (info_.files.empty()) return nullptr;
    return scales_.get(weight, [&] {
      const auto rows = static_cast<std::size_t>(cells.grid_rows());
      auto made = std::make_unique<MadeScales>();
      made->data.resize(rows * static_cast<std::size_t>(cells.scale_row_bytes()));
      made->is_made.resize(rows);
      return ScalesOfWeight{std::move(made)};
    });
  }

  /// The codes need the weights, and so do the scales: what was read for one of them is not read again for the other.
  void keep_scales(std::size_t weight, const WeightCells& cells, i64 begin, i64 end, const CellEncoder& encoder) const {
    const auto scales = scales_of(weight, cells);
    if (scales == nullptr) return;
    const std::lock_guard lock(scales->rows->mutex);
    encoder.put_scales(scales->rows->data.data() + begin * cells.scale_row_bytes());
    std::fill(scales->rows->is_made.begin() + begin, scales->rows->is_made.begin() + end, 1);
  }

  /// Returns false where some of these bytes were not made, or are no longer kept.
  bool copy_scales(std::size_t weight, const WeightCells& cells, i64 offset, std::span<std::byte> out) const {
    const auto scales = scales_of(weight, cells);
    if (scales == nullptr || out.empty()) return false;
    const i64 first = offset / cells.scale_row_bytes();
    const i64 end = (offset + std::ssize(out) - 1) / cells.scale_row_bytes() + 1;
    const std::lock_guard lock(scales->rows->mutex);
    const std::vector<char>& is_made = scales->rows->is_made;
    if (std::find(is_made.begin() + first, is_made.begin() + end, 0) != is_made.begin() + end) return false;
    std::memcpy(out.data(), scales->rows->data.data() + offset, out.size());
    return true;
  }

  const Source* source_;
  std::unique_ptr<Source> owned_;
  Encoder encoder_;
  std::vector<EncodedWeight> weights_;
  EncodePath path_;
  SimdLevel level_;
  std::weak_ptr<WeightDevice> device_;
  CheckpointInfo info_;
  std::vector<EncodedEntry> entries_;
  std::vector<std::string> left_;
  std::vector<std::string> others_;
  std::unique_ptr<KnownGreatest[]> greatest_;
  mutable Kept<ScalesOfWeight> scales_{kKeptScaleBytes};
};

}  // namespace

bool encodes_shape(const Encoder& encoder, const TensorRef& stored) {
  const EncoderRow& row = encoder.row;
  return !row.skips_uneven || (stored.shape[0] % row.cell_rows == 0 && stored.shape[1] % row.cell_cols == 0);
}

void check_encodable(const Encoder& encoder, const TensorRef& stored, bool turned) {
  const EncoderRow& row = encoder.row;
  if (stored.dtype != Dtype::BF16 && stored.dtype != Dtype::F32)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' is {}: the bits of {} are known for BF16 and F32 alone",
         stored.name, dtype_name(stored.dtype), row.program);
  // compressed-tensors' formula is of the sixteen bits of BF16.
  if (stored.dtype != Dtype::BF16 && row.rule == ScaleRule::PowerRounded)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' is {}: the bits of {} are known for BF16 alone", stored.name,
         dtype_name(stored.dtype), row.program);
  if (stored.shape.size() != 2)
    fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}': weights of shape {} are not encoded, only [out, in]",
         stored.name, shape_text(stored.shape));
  const i64 cols = stored.shape[turned ? 0 : 1];
  if (row.cell_rows == 1 && row.cell_cols > 0 && cols % row.cell_cols != 0)
    fail(ErrorCode::NotExact, {{}, stored.name},
         "'{}': rows of {} weights are not a multiple of {}, the weights of a row that share a scale in {}; another "
         "format has other blocks (`glu-ckpt help convert` lists them)",
         stored.name, cols, row.cell_cols, row.word);
}

void encode_source(std::unique_ptr<Source>& source, const Encoder& encoder, std::vector<EncodedWeight> weights,
                   EncodePath path, SimdLevel level) {
  auto encoded = std::make_unique<EncodedSource>(*source, encoder, std::move(weights), path, level);
  encoded->own(std::move(source));
  source = std::move(encoded);
}

}  // namespace glu_ckpt
