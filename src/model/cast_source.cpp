#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/compare_names.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "format/model_config.hpp"
#include "model/laid_out_source.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "model/stored_codes.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kCastBatchElements = std::size_t{1} << 18;

i64 float_bytes(Dtype dtype) { return dtype_bits(dtype) / 8; }

bool is_cast(Dtype dtype) { return is_float(dtype) || dtype == Dtype::F64; }

/// Every value of bf16 is one of fp32, and every one of fp16.
bool is_narrowing(Dtype from, Dtype to) { return from != to && (to != Dtype::F32 || from == Dtype::F64); }

/// The float from which rounding gives what it gives from `value`: rounded to fewer bits, one that is not `value`
/// itself has an odd last bit, so that it is never in the middle between two of those.
float float_to_round(double value, Dtype to) {
  const auto nearest = static_cast<float>(value);
  if (to == Dtype::F32 || static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

std::vector<double> doubles_of(const std::vector<std::byte>& read) {
  std::vector<double> values(read.size() / sizeof(double));
  std::memcpy(values.data(), read.data(), read.size());
  return values;
}

/// Elements as floats that narrow_row() rounds to `to`.
void read_floats(const std::vector<std::byte>& read, Dtype from, Dtype to, std::span<float> values) {
  if (from != Dtype::F64) return widen_row(read.data(), from, values);
  std::ranges::transform(doubles_of(read), values.begin(), [&](double value) { return float_to_round(value, to); });
}

// ---- rules --------------------------------------------------------------------------------------

struct DtypeRule {
  std::string pattern;
  Dtype dtype = Dtype::BF16;
  bool is_used = false;
  /// It fits something, and another rule in front of it, too.
  bool fits = false;
  /// The rule in front of it that gives another dtype to what it fits.
  std::string taken_by = {};
};

std::optional<Dtype> float_of_word(std::string_view word) {
  if (word == "bf16" || word == "bfloat16") return Dtype::BF16;
  if (word == "f16" || word == "fp16" || word == "float16") return Dtype::F16;
  if (word == "f32" || word == "fp32" || word == "float32") return Dtype::F32;
  return std::nullopt;
}

/// "router=f32,*=bf16"; a dtype alone is that of all tensors.
std::vector<DtypeRule> parse_dtype_rules(const std::string& text) {
  std::vector<DtypeRule> rules;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(", ", begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = one.rfind('=');
    const auto dtype = float_of_word(equals == one.npos ? one : one.substr(equals + 1));
    if (!dtype || equals == 0)
      fail(
          ErrorCode::Usage, {},
          "--dtype {}: '{}' is no rule: a role or a pattern of names, =, and bf16, f16 or f32, such as 'router=f32' or "
          "'*=bf16'",
          text, one);
    rules.push_back({equals == one.npos ? "*" : one.substr(0, equals), *dtype});
  }
  return rules;
}

/// The names of roles that a rule may have: those of diff and inspect.
std::string expert_role(ExpertSet set, Role role) {
  return fmt::format("{}/{}", set == ExpertSet::Routed ? "experts" : "shared_expert", to_string(role));
}

}  // namespace

std::vector<std::string> role_names() {
  std::vector<std::string> names;
  for (int role = 0; role <= static_cast<int>(DenseRole::MtpFinalNorm); ++role)
    names.emplace_back(to_string(static_cast<DenseRole>(role)));
  for (const ExpertSet set : {ExpertSet::Routed, ExpertSet::Shared})
    for (const Role role : {Role::Gate, Role::Up, Role::Down, Role::GateUp}) names.push_back(expert_role(set, role));
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

namespace {

bool is_role_pattern(const std::string& pattern) {
  return std::ranges::any_of(role_names(), [&](const std::string& role) { return fits_glob(pattern, role); });
}

/// Chooses the dtype of each tensor.
class DtypeChooser {
 public:
  DtypeChooser(const Source& source, const ModelHints& hints, const Recognition& model, const SourceAnswers& answers)
      : tensors_(source.inventory().tensors),
        model_(model),
        answers_(answers),
        rules_(parse_dtype_rules(answers.dtypes)) {
    find_roles();
    find_codes(source, hints);
  }

  std::map<std::size_t, Dtype> choose() {
    std::map<std::size_t, Dtype> chosen;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (const auto dtype = dtype_of(i); dtype && *dtype != tensors_[i].dtype) chosen[i] = *dtype;
    for (const DtypeRule& rule : rules_) {
      if (rule.is_used) continue;
      if (!rule.taken_by.empty())
        fail(ErrorCode::Usage, {},
             "--dtype {}={}: all that it fits is taken by rules in front of it, such as '{}', for the first rule that "
             "fits counts; write it in front of those, or leave it out",
             rule.pattern, float_word(rule.dtype), rule.taken_by);
      if (!rule.fits && !is_role_pattern(rule.pattern))
        fail(ErrorCode::Usage, {},
             "--dtype {}={}: no tensor has that role or name; `glu-ckpt inspect --tensors` lists both", rule.pattern,
             float_word(rule.dtype));
    }
    return chosen;
  }

 private:
  static std::string_view float_word(Dtype dtype) {
    return dtype == Dtype::BF16 ? "bf16" : dtype == Dtype::F16 ? "f16" : "f32";
  }

  void find_roles() {
    for (const ExpertBlock& block : model_.blocks) {
      if (block.is_optimizer_state()) continue;
      for (const Matrix& matrix : block.matrices) {
        roles_[matrix.tensor].insert(expert_role(block.set, matrix.role));
        if (matrix.tail) roles_[matrix.tail->tensor].insert(expert_role(block.set, matrix.role));
      }
    }
    for (const DenseMatrix& matrix : model_.dense) roles_[matrix.matrix.tensor].emplace(to_string(matrix.role));
    // A copy is cast as what it repeats.
    for (const TensorCopy& copy : model_.copies) roles_[copy.tensor].emplace(to_string(copy.of));
  }

  void find_codes(const Source& source, const ModelHints& hints) {
    for (const ExpertBlock& block : model_.blocks)
      for (const Matrix& matrix : block.matrices)
        if (block.is_optimizer_state() || is_scale(matrix.kind)) stays_.insert(matrix.tensor);
    for (const BoundTensor& bound : model_.bound) stays_.insert(bound.tensor);
    stays_.insert(model_.buckets.begin(), model_.buckets.end());
    stays_.insert(model_.dropped.begin(), model_.dropped.end());
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (is_optimizer_tensor(tensors_[i].name)) stays_.insert(i);
    if (!holds_any_codes(source.inventory())) return;
    const Quantization found = find_sound(source, hints, &model_);
    stays_.insert(found.companions.begin(), found.companions.end());
  }

  /// The dtype that the rules give to a tensor; none where it stays.
  std::optional<Dtype> dtype_of(std::size_t tensor) {
    const TensorRef& stored = tensors_[tensor];
    std::set<std::string> names = {stored.name};
    if (const auto roles = roles_.find(tensor); roles != roles_.end()) names = roles->second;
    std::optional<Dtype> chosen;
    const DtypeRule* by = nullptr;
    const std::string* without = nullptr;
    for (const std::string& name : names) {
      const auto fits = [&](const DtypeRule& one) {
        return fits_glob(one.pattern, name) || fits_glob(one.pattern, stored.name);
      };
      const auto rule = std::ranges::find_if(rules_, fits);
      if (rule == rules_.end()) {
        without = &name;
        continue;
      }
      rule->is_used = true;
      for (auto behind = std::next(rule); behind != rules_.end(); ++behind)
        if (fits(*behind)) {
          behind->fits = true;
          if (behind->taken_by.empty() && behind->dtype != rule->dtype)
            behind->taken_by = fmt::format("{}={}", rule->pattern, float_word(rule->dtype));
        }
      if (chosen && *chosen != rule->dtype)
        fail(ErrorCode::NotSupported, {{}, stored.name},
             "'{}' holds several matrices, and --dtype gives them {} and {}; name one dtype for all of them, or first "
             "convert to a layout that has them apart",
             stored.name, float_word(*chosen), float_word(rule->dtype));
      chosen = rule->dtype;
      by = &*rule;
    }
    if (!chosen) return std::nullopt;
    if (stays_.contains(tensor) || !is_cast(stored.dtype)) {
      if (by->pattern != "*" && dtype_bits(stored.dtype) <= 8 && !stays_.contains(tensor))
        fail(ErrorCode::NotSupported, {{}, stored.name},
             "'{}' is {}, which --dtype {} does not cast; --decode bf16 makes numbers of codes", stored.name,
             dtype_name(stored.dtype), answers_.dtypes);
      return std::nullopt;
    }
    if (without != nullptr && *chosen != stored.dtype)
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' holds several matrices, and --dtype gives {} a dtype and {} none; name one dtype for all of them, or "
           "first convert to a layout that has them apart",
           stored.name, by->pattern, *without);
    if (is_narrowing(stored.dtype, *chosen) && !answers_.allow_narrowing)
      fail_asking(
          {"--allow-narrowing"}, ErrorCode::NotExact, {{}, stored.name},
          "'{}' is {}, and --dtype {} would round it to {}: --allow-narrowing lets it, to nearest even, and says how "
          "many elements change",
          stored.name, dtype_name(stored.dtype), answers_.dtypes, dtype_name(*chosen));
    return chosen;
  }

  const std::vector<TensorRef>& tensors_;
  const Recognition& model_;
  const SourceAnswers& answers_;
  std::vector<DtypeRule> rules_;
  std::map<std::size_t, std::set<std::string>> roles_;
  std::set<std::size_t> stays_;
};

// ---- rounding -----------------------------------------------------------------------------------

/// The bits of bf16 or fp16 nearest to a value, found among all of them: the proof of narrow_row(), which computes.
std::uint16_t search_nearest(float value, Dtype to) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const std::uint16_t infinity = to == Dtype::BF16 ? 0x7F80 : 0x7C00;
  const auto decoded = [&](std::uint32_t bits) {
    const auto code = static_cast<std::uint16_t>(bits);
    std::byte stored[2];
    std::memcpy(stored, &code, 2);
    return static_cast<double>(widen_element(stored, to));
  };
  const double wanted = std::fabs(static_cast<double>(value));
  std::uint32_t low = 0, high = infinity;
  // decoded(low) <= wanted < decoded(high), where infinity is past every number.
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (decoded(middle) <= wanted ? low : high) = middle;
  }
  // Past the largest number the next one would be as far again.
  const double below = decoded(low), step = low + 1 < infinity ? decoded(low + 1) - below : below - decoded(low - 1);
  const double middle = below + step / 2;
  const bool goes_up = wanted > middle || (wanted == middle && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (std::isinf(wanted) ? infinity : goes_up ? low + 1 : low));
}

void narrow_plainly(std::span<const float> values, Dtype to, std::byte* out) {
  for (const float value : values) {
    std::uint16_t code = 0;
    if (std::isnan(value))
      narrow_row({&value, 1}, to, reinterpret_cast<std::byte*>(&code));
    else
      code = search_nearest(value, to);
    std::memcpy(out, &code, 2);
    out += 2;
  }
}

/// Counts the elements of all tensors that rounding changed.
struct RoundedCount {
  i64 elements = 0;
  i64 changed = 0;
  i64 to_zero = 0;
  i64 to_infinity = 0;
  i64 nan = 0;
  i64 infinite = 0;
  /// A tensor with elements that are, or become, no numbers.
  std::string odd;

  void add(std::span<const double> values, std::span<const float> rounded, const std::string& name) {
    const i64 before = to_infinity + nan + infinite;
    elements += std::ssize(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (static_cast<double>(rounded[i]) == values[i] && std::isfinite(values[i])) continue;
      if (std::isnan(values[i])) {
        ++nan;
      } else if (std::isinf(values[i])) {
        ++infinite;
      } else {
        ++changed;
        to_zero += rounded[i] == 0;
        to_infinity += std::isinf(rounded[i]);
      }
    }
    if (odd.empty() && before != to_infinity + nan + infinite) odd = name;
  }
};

// ---- the source ---------------------------------------------------------------------------------

class CastSource final : public WrappedSource {
 public:
  CastSource(const Source& stored, const std::map<std::size_t, Dtype>& chosen, const SourceAnswers& answers)
      : WrappedSource(stored.info()), plainly_(answers.decode_plainly) {
    const Dtype main = main_dtype();
    for (const auto& [tensor, dtype] : chosen) {
      TensorRef& cast = info_.inventory.tensors[tensor];
      from_[tensor] = cast.dtype;
      cast.bytes = cast.bytes / float_bytes(cast.dtype) * float_bytes(dtype);
      cast.dtype = dtype;
    }
    info_.inventory.dense = false;
    for (const char* key : {"digest", "source_digest"}) info_.record.erase(key);
    info_.respelled = true;
    info_.record["dtypes"] = answers.dtypes;
    if (const Dtype now = main_dtype(); now != main)
      edit_config(info_, [to = now](std::string_view text) { return config_of_dtype(text, to); });
  }

  std::vector<u32> files_of(std::size_t tensor) const override { return stored().files_of(tensor); }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const auto from = from_.find(tensor);
    if (from == from_.end()) return stored().read_scattered(tensor, offset, pieces);
    for (const std::span<std::byte> piece : pieces) {
      read_cast(tensor, from->second, offset, piece);
      offset += std::ssize(piece);
    }
  }

  /// Reads all that is rounded.
  void count_rounded(const Source& stored) {
    RoundedCount count;
    std::vector<std::byte> read;
    std::vector<double> values;
    std::vector<float> rounded;
    for (const auto& [tensor, from] : from_) {
      const TensorRef& cast = info_.inventory.tensors[tensor];
      if (!is_narrowing(from, cast.dtype)) continue;
      const i64 elements = cast.bytes / float_bytes(cast.dtype);
      for (i64 at = 0; at < elements; at += static_cast<i64>(kCastBatchElements)) {
        const auto batch = static_cast<std::size_t>(std::min(elements - at, static_cast<i64>(kCastBatchElements)));
        read.resize(batch * static_cast<std::size_t>(float_bytes(from)));
        rounded.resize(batch);
        stored.read(tensor, at * float_bytes(from), read);
        read_floats(read, from, cast.dtype, rounded);
        if (from == Dtype::F64)
          values = doubles_of(read);
        else
          values.assign(rounded.begin(), rounded.end());
        round_row(rounded, cast.dtype);
        count.add(values, rounded, cast.name);
      }
    }
    if (count.elements == 0) return;
    info_.record["rounded"] = fmt::format("{} of {} elements changed", count.changed, count.elements) +
                              (count.to_zero > 0 ? fmt::format(", {} of them to zero", count.to_zero) : "");
    if (count.odd.empty()) return;
    info_.warnings.push_back(
        fmt::format("'{}': of the elements that --dtype rounds, {} are NaN, {} are infinite, and {} are too large for "
                    "their new dtype "
                    "and become infinite",
                    count.odd, count.nan, count.infinite, count.to_infinity));
  }

 private:
  /// The dtype of most elements that are numbers.
  Dtype main_dtype() const {
    std::map<Dtype, i64> elements;
    for (const TensorRef& tensor : info_.inventory.tensors)
      if (is_cast(tensor.dtype) && !is_optimizer_tensor(tensor.name))
        elements[tensor.dtype] += tensor.bytes / float_bytes(tensor.dtype);
    const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
    return most == elements.end() ? Dtype::BF16 : most->first;
  }

  /// Elements of which `out` has a part are cast whole.
  void read_cast(std::size_t tensor, Dtype from, i64 offset, std::span<std::byte> out) const {
    const Dtype to = info_.inventory.tensors[tensor].dtype;
    const i64 size = float_bytes(to), end = offset + std::ssize(out);
    std::vector<std::byte> read, made;
    std::vector<float> values;
    for (i64 at = offset / size; at * size < end; at += std::ssize(values)) {
      const i64 left = (end + size - 1) / size - at;
      values.resize(std::min(static_cast<std::size_t>(left), kCastBatchElements));
      read.resize(values.size() * static_cast<std::size_t>(float_bytes(from)));
      made.resize(values.size() * static_cast<std::size_t>(size));
      stored().read(tensor, at * float_bytes(from), read);
      read_floats(read, from, to, values);
      if (plainly_ && is_narrowing(from, to) && to != Dtype::F32)
        narrow_plainly(values, to, made.data());
      else
        narrow_row(values, to, made.data());
      const i64 first = std::max(at * size, offset), last = std::min(at * size + std::ssize(made), end);
      std::memcpy(out.data() + (first - offset), made.data() + (first - at * size),
                  static_cast<std::size_t>(last - first));
    }
  }

  /// The stored dtypes of the tensors that are cast.
  std::map<std::size_t, Dtype> from_;
  bool plainly_;
};

}  // namespace

void cast_tensors(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  const ModelHints hints = hints_of(*source, answers);
  const Recognition model = recognize_source(*source, hints, answers);
  const std::map<std::size_t, Dtype> chosen = DtypeChooser(*source, hints, model, answers).choose();
  if (chosen.empty()) return;
  auto cast = std::make_unique<CastSource>(*source, chosen, answers);
  if (!answers.decode_plainly) cast->count_rounded(*source);
  cast->own(std::move(source));
  source = std::move(cast);
}

}  // namespace glu_ckpt
