#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "arch/dense_table.hpp"
#include "arch/recognize_model.hpp"
#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "families/dense_rows.hpp"
#include "format/both_checks.hpp"
#include "format/model_config.hpp"
#include "glu_ckpt/config_difference.hpp"
#include "model/laid_out_source.hpp"
#include "model/locate_errors.hpp"
#include "model/open_checkpoint.hpp"
#include "model/settle_copies.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxFilledConfigDepth = 64;

/// The tensors of one source, and some of another.
class FilledSource final : public WrappedSource {
 public:
  /// A tensor behind those of the source: its own one once more, or one of the other checkpoint.
  struct Filled {
    bool is_own = false;
    std::size_t tensor = 0;
  };

  FilledSource(CheckpointInfo info, std::size_t own_tensors, std::vector<Filled> filled)
      : WrappedSource(std::move(info)), own_tensors_(own_tensors), filled_(std::move(filled)) {}

  void own(std::unique_ptr<Source> source, std::unique_ptr<Source> other) {
    checks_ = {*source, *other};
    WrappedSource::own(std::move(source));
    other_ = std::move(other);
  }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    if (tensor < own_tensors_) return stored().read_scattered(tensor, offset, pieces);
    const Filled& filled = filled_.at(tensor - own_tensors_);
    (filled.is_own ? stored() : *other_).read_scattered(filled.tensor, offset, pieces);
  }
  bool may_have_read_nan_or_infinity() const override {
    return WrappedSource::may_have_read_nan_or_infinity() || other_->may_have_read_nan_or_infinity();
  }
  bool is_cheap_in_parts() const override { return WrappedSource::is_cheap_in_parts() && other_->is_cheap_in_parts(); }
  const ContentCheck* content_check() const override { return checks_.get(); }

 private:
  std::unique_ptr<Source> other_;
  BothChecks checks_;
  std::size_t own_tensors_;
  std::vector<Filled> filled_;
};

/// A checkpoint in Hugging Face's form, and what it is.
struct HubModel {
  ModelHints hints;
  Recognition model;
};

HubModel as_hub(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  HubModel hub{hints_of(*source, answers), {}};
  hub.model = recognize_source(*source, hub.hints, answers);
  if (hub.model.architecture == nullptr)
    fail_without_model(*source, hub.hints, hub.model, answers, "--fill-from has to know what the model lacks, and");
  if (is_hub_form(hub.model)) return hub;
  // What is missing is what this is about.
  std::erase_if(hub.model.flaws, [](const ModelFlaw& flaw) { return flaw.code == ErrorCode::ModelIncomplete; });
  lay_out_apart(source, hub.hints, hub.model);
  hub.hints = hints_of(*source, answers);
  hub.model = recognize_source(*source, hub.hints, answers);
  return hub;
}

/// The text with a field of the language model set, or added.
std::string with_field(std::string_view config, std::string_view field, const std::string& value) {
  const std::string strict = without_python_numbers(config);
  const JsonDocument document(strict, kMaxFilledConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return std::string(config);
  const auto inner = find_text_config(document.root());
  const JsonValue fields = inner ? *inner : document.root();
  for (const JsonMember member : fields.members())
    if (member.key == field) {
      const TextRange range = json_value_range(strict, static_cast<std::size_t>(member.value.offset()));
      return fmt::format("{} {}{}", config.substr(0, range.begin), value, config.substr(range.end));
    }
  const auto from = static_cast<std::size_t>(inner ? inner->offset() : 0);
  const std::size_t brace = strict.find('{', from) + 1;
  const std::string_view comma = fields.size() == 0 ? "" : ",";
  return fmt::format("{}\"{}\": {}{}{}", config.substr(0, brace), field, value, comma, config.substr(brace));
}

/// The configuration of a multimodal model with the fields of a language model's own one in its language model.
std::string with_own_fields(std::string config, const std::string& own) {
  // They say what wrote the file, and for what class. That of codes speaks of what sees, too.
  constexpr std::string_view kOfFile[] = {"architectures", "model_type",  "auto_map",           "transformers_version",
                                          "dtype",         "torch_dtype", "quantization_config"};
  const std::string strict_own = without_python_numbers(own);
  const JsonDocument own_document(strict_own, kMaxFilledConfigDepth);
  if (own_document.fault() || own_document.root().kind() != JsonKind::Object) return config;
  for (const JsonMember member : own_document.root().members()) {
    if (std::ranges::find(kOfFile, member.key) != std::end(kOfFile)) continue;
    // A strict text has each value where the other one has it.
    const auto text_of = [](const std::string& text, const std::string& strict, const JsonValue& value) {
      const TextRange range = json_value_range(strict, static_cast<std::size_t>(value.offset()));
      return text.substr(range.begin, range.end - range.begin);
    };
    const std::string wanted = text_of(own, strict_own, member.value), strict = without_python_numbers(config);
    const JsonDocument document(strict, kMaxFilledConfigDepth);
    const auto inner = find_text_config(document.root());
    if (!inner) return config;
    auto there = inner->find(member.key);
    if (!there) there = document.root().find(member.key);
    if (!there || text_of(config, strict, *there) != wanted) config = with_field(config, member.key, wanted);
  }
  return config;
}

bool is_multimodal(const std::string& config) {
  const JsonDocument document(without_python_numbers(config), kMaxFilledConfigDepth);
  return !document.fault() && find_text_config(document.root()).has_value();
}

/// "model.layers.3.mlp.experts.[0-5].up_proj.weight": names that differ by an expert's number as one.
std::vector<std::string> folded_names(const std::vector<std::string>& names) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<i64>> numbers;
  constexpr std::string_view kExperts = ".experts.";
  for (const std::string& name : names) {
    std::string folded = name;
    std::optional<i64> expert;
    if (const std::size_t at = name.find(kExperts); at != name.npos) {
      const std::size_t begin = at + kExperts.size(), end = name.find('.', begin);
      expert = parse_number<i64>(name.substr(begin, std::min(end, name.size()) - begin));
      if (expert) folded = fmt::format("{}[]{}", name.substr(0, begin), end == name.npos ? "" : name.substr(end));
    }
    if (!numbers.contains(folded)) order.push_back(folded);
    if (auto& of = numbers[folded]; expert) of.push_back(*expert);
  }
  for (std::string& name : order)
    if (std::vector<i64>& of = numbers.at(name); !of.empty()) {
      std::ranges::sort(of);
      const bool follow = of.back() - of.front() + 1 == std::ssize(of);
      name.replace(name.find("[]"), 2,
                   follow ? fmt::format("[{}-{}]", of.front(), of.back()) : fmt::format("[{}]", fmt::join(of, ",")));
    }
  return order;
}

/// The tensors of the model itself, without what sees, hears or talks beside it.
std::set<std::size_t> language_tensors(const Recognition& model) {
  const std::vector<std::size_t> dense = dense_tensors(model);
  std::set<std::size_t> tensors(dense.begin(), dense.end());
  for (const ExpertBlock& block : model.blocks)
    for (const Matrix& matrix : block.matrices) tensors.insert(matrix.tensor);
  return tensors;
}

/// Finds what a model lacks and another one has.
class Filler {
 public:
  Filler(const Source& source, const HubModel& own, const Source& other, const HubModel& donor)
      : source_(source),
        own_(own),
        other_(other),
        donor_(donor),
        info_(source.info()),
        donor_language_(language_tensors(donor.model)) {
    check_alike();
    // The language model of a multimodal one has keys of its own, so the source's follow where it becomes one.
    takes_config_ = is_multimodal(donor.hints.config) && !is_multimodal(own.hints.config);
    root_ = takes_config_ ? donor.model.dense_root : own.model.dense_root;
    rename_own();
    for (const TensorRef& tensor : info_.inventory.tensors) names_.insert(tensor.name);
    for (std::size_t i = 0; i < source.inventory().tensors.size(); ++i)
      if (const auto layer = layer_of(info_.inventory.tensors[i].name)) layers_.insert(*layer);
    find_mtp();
  }

  std::unique_ptr<FilledSource> make() {
    const std::set<std::size_t> fillable = find_fillable();
    for (const std::size_t tensor : fillable) fill(tensor);
    if (filled_.empty()) return nullptr;
    for (const OpenedFile& file : other_.info().files) info_.files.push_back(file);
    for (const std::filesystem::path& file : other_.info().deciding_files) info_.deciding_files.push_back(file);
    for (const ExtraFile& file : other_.extra_files())
      if (file.name == "config.json") info_.deciding_files.push_back(file.path);
    describe();
    warn_of_config();
    return std::make_unique<FilledSource>(std::move(info_), source_.inventory().tensors.size(), std::move(filled_));
  }

 private:
  void check_alike() const {
    const Architecture &a = *own_.model.architecture, &b = *donor_.model.architecture;
    const auto refuse = [&](std::string_view what, const auto& mine, const auto& theirs) {
      fail(ErrorCode::NotSupported, {other_.path().string(), {}},
           "{}: it is no checkpoint of the same model: its {} is {}, and that of {} is {}", other_.path().string(),
           what, theirs, source_.path().string(), mine);
    };
    if (a.family != b.family) refuse("model_type", a.family->model_type, b.family->model_type);
    if (a.layers != b.layers) refuse("num_hidden_layers", a.layers, b.layers);
    for (std::size_t dim = 0; dim < kDims; ++dim)
      if (a.extents[dim] != b.extents[dim]) refuse(fields_of(static_cast<Dim>(dim)), a.extents[dim], b.extents[dim]);
    if (a.expert_width != b.expert_width) refuse(a.expert_width_field, a.expert_width, b.expert_width);
    if (a.shared_width != b.shared_width) refuse(a.shared_width_field, a.shared_width, b.shared_width);
    if (a.kv_heads != b.kv_heads) refuse("num_key_value_heads", a.kv_heads, b.kv_heads);
    if (a.kinds != b.kinds) refuse("list of layers", "another", "one");
    const bool own_codes = holds_any_codes(source_.inventory()), other_codes = holds_any_codes(other_.inventory());
    if (own_codes != other_codes)
      fail(ErrorCode::NotSupported, {other_.path().string(), {}},
           "{}: it holds {}, and {} {}: --fill-from takes tensors as they are{}", other_.path().string(),
           other_codes ? "codes" : "numbers", source_.path().string(), own_codes ? "codes" : "numbers",
           other_codes ? "; --decode bf16 makes numbers of them"
                       : fmt::format("; `glu-ckpt convert {} DST --decode bf16` makes numbers of these first",
                                     source_.path().string()));
  }

  /// The name in a model with the root `root_`: of the keys of a language model some are behind the root, and others,
  /// such as the head, beside it.
  std::string name_here(const std::string& name, const std::string& from, bool is_language) const {
    constexpr std::string_view kBeside = "/";
    if (from == root_) return name;
    if (name.starts_with(from)) return root_ + name.substr(from.size());
    const std::string before = with_root(from, kBeside);
    return is_language && name.starts_with(before) ? with_root(root_, kBeside) + name.substr(before.size()) : name;
  }

  void rename_own() {
    const std::set<std::size_t> language = language_tensors(own_.model);
    for (std::size_t i = 0; i < info_.inventory.tensors.size(); ++i) {
      std::string& name = info_.inventory.tensors[i].name;
      name = name_here(name, own_.model.dense_root, language.contains(i));
    }
  }

  std::string donor_name(std::size_t tensor) const {
    return name_here(other_.inventory().tensors[tensor].name, donor_.model.dense_root,
                     donor_language_.contains(tensor));
  }

  /// The number of the layer in a name, those of multi-token prediction behind the last one included.
  std::optional<i64> layer_of(const std::string& name) const {
    const std::string prefix = root_ + std::string(own_.model.dense_naming->layers);
    if (!name.starts_with(prefix)) return std::nullopt;
    const std::size_t end = name.find('.', prefix.size());
    return end == name.npos ? std::nullopt : parse_number<i64>(name.substr(prefix.size(), end - prefix.size()));
  }

  void find_mtp() {
    for (const ExpertBlock& block : donor_.model.blocks)
      for (const Matrix& matrix : block.matrices)
        (block.stack.starts_with("mtp") ? mtp_ : experts_).insert(matrix.tensor);
    for (const DenseMatrix& matrix : donor_.model.dense) {
      if (matrix.stack == "mtp") mtp_.insert(matrix.matrix.tensor);
      dense_.insert(matrix.matrix.tensor);
    }
  }

  std::set<std::size_t> find_fillable() const {
    std::set<std::size_t> fillable;
    const auto& tensors = other_.inventory().tensors;
    std::set<std::size_t> copies;
    for (const TensorCopy& copy : donor_.model.copies) copies.insert(copy.tensor);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = donor_name(i);
      if (names_.contains(name) || is_optimizer_tensor(tensors[i].name)) continue;
      const std::optional<i64> layer = layer_of(name);
      const bool is_main = layer && *layer < own_.model.architecture->layers;
      if (is_main && (experts_.contains(i) || !layers_.contains(*layer) || !dense_.contains(i))) continue;
      if (!is_main && experts_.contains(i)) continue;
      // What the source has of it under another name, or in another form, it has.
      const bool has_own_layer = layer ? layers_.contains(*layer) : has_own_mtp();
      if (mtp_.contains(i) && has_own_layer && !dense_.contains(i)) continue;
      // A head that is the embedding is no tensor that the source lacks.
      if (own_.model.architecture->tied && !copies.contains(i) && is_head(i)) continue;
      if (std::ranges::any_of(donor_.model.idle, [&](const IdleTensor& idle) { return idle.tensor == i; })) continue;
      fillable.insert(i);
    }
    return fillable;
  }

  bool is_head(std::size_t tensor) const {
    return std::ranges::any_of(donor_.model.dense, [&](const DenseMatrix& matrix) {
      return matrix.matrix.tensor == tensor && matrix.role == DenseRole::Head && matrix.stack.empty();
    });
  }

  bool has_own_mtp() const {
    return std::ranges::any_of(own_.model.blocks, [](const ExpertBlock& b) { return b.stack.starts_with("mtp"); });
  }

  void fill(std::size_t tensor) {
    TensorRef made = other_.inventory().tensors[tensor];
    FilledSource::Filled filled{false, tensor};
    std::string from = other_.path().string();
    const auto copy = std::ranges::find(donor_.model.copies, tensor, &TensorCopy::tensor);
    if (copy != donor_.model.copies.end() && is_copy(*copy))
      if (const auto original = own_original(copy->of)) {
        made = source_.inventory().tensors[*original];
        from = fmt::format("'{}'", info_.inventory.tensors[*original].name);
        filled = {true, *original};
      }
    if (mtp_.contains(tensor)) fills_mtp_ = true;
    made.name = donor_name(tensor);
    if (!filled.is_own) made.file += static_cast<u32>(source_.inventory().files.size());
    sources_[made.name] = fmt::format("{} {} of {}", dtype_name(made.dtype), shape_text(made.shape), from);
    info_.inventory.tensors.push_back(std::move(made));
    filled_.push_back(filled);
  }

  /// One that was trained on its own is no copy, whatever its name: it is filled in as it is.
  bool is_copy(const TensorCopy& copy) const {
    const auto unlike = find_unlike_copies({}, other_, {copy});
    return unlike.empty() || unlike.front().rounded;
  }

  /// The source's own embedding or head, of which a filled tensor is a copy.
  std::optional<std::size_t> own_original(DenseRole role) const {
    for (const DenseMatrix& matrix : own_.model.dense)
      if (matrix.role == role && matrix.stack.empty()) return matrix.matrix.tensor;
    if (role == DenseRole::Head && own_.model.architecture->tied) return own_original(DenseRole::Embedding);
    return std::nullopt;
  }

  /// Warns where the two models, though of the same sizes, compute differently. A config.json that was made from a
  /// trainer's arguments says too little to be compared.
  void warn_of_config() {
    if (own_.hints.config_is_made || donor_.hints.config_is_made) return;
    auto differences = config_differences(own_.hints.config, donor_.hints.config);
    // Both fields count MTP layers, which --fill-from may add.
    std::erase_if(differences, [](const ConfigDifference& each) {
      return each.field == "num_nextn_predict_layers" || each.field == "mtp_num_hidden_layers";
    });
    if (!differences.empty())
      info_.warnings.push_back(fmt::format(
          "--fill-from: {}: the two are no models that compute alike, so its tensors may not fit",
          to_sentence(differences, "config.json of " + source_.path().string(), "that of " + other_.path().string())));
  }

  void describe() {
    for (const std::string& file : other_.inventory().files) info_.inventory.files.push_back(file);
    info_.inventory.dense = false;
    info_.respelled = true;
    for (const char* key : {"digest", "source_digest", "config"}) info_.record.erase(key);
    std::vector<std::string> names;
    for (const auto& [name, from] : sources_) names.push_back(name);
    for (const std::string& name : folded_names(names)) info_.filled.push_back(name);
    info_.record["filled"] = fmt::format("{} tensors: {}", names.size(), fmt::join(info_.filled, " "));
    info_.record["filled_from"] = other_.path().string();
    for (std::string& name : info_.filled)
      if (const auto one = sources_.find(name); one != sources_.end())
        name = fmt::format("'{}' {}", name, one->second);
      else
        name = fmt::format("'{}' of {}", name, other_.path().string());
    const Architecture& donor = *donor_.model.architecture;
    if (takes_config_) {
      take_processor_files();
      edit_config(info_,
                  [text = with_own_fields(donor_.hints.config, own_.hints.config)](std::string_view) { return text; });
    } else if (fills_mtp_ && own_.model.architecture->mtp_layers != donor.mtp_layers) {
      const auto edit = [field = std::string(donor.mtp_field), count = std::max(donor.mtp_layers, donor.mtp_repeats)](
                            std::string_view text) { return with_field(text, field, std::to_string(count)); };
      edit_config(info_, edit);
    }
    ModelHints hints =
        parse_config(info_.hints.config.empty() ? own_.hints.config : info_.hints.config, source_.path().string());
    hints.config_is_made = own_.hints.config_is_made;
    info_.hints = std::move(hints);
  }

  /// Files that say how images and sound become tokens.
  void take_processor_files() {
    for (const ExtraFile& file : other_.extra_files())
      if (file.name.ends_with("processor_config.json") &&
          std::ranges::find(info_.extra_files, file.name, &ExtraFile::name) == info_.extra_files.end())
        info_.extra_files.push_back(file);
  }

  const Source& source_;
  const HubModel& own_;
  const Source& other_;
  const HubModel& donor_;
  CheckpointInfo info_;
  std::set<std::size_t> donor_language_;
  bool takes_config_ = false;
  bool fills_mtp_ = false;
  std::string root_;
  std::set<std::string> names_;
  /// Layers of which the source has something.
  std::set<i64> layers_;
  /// The donor's tensors by what they are.
  std::set<std::size_t> mtp_;
  std::set<std::size_t> experts_;
  std::set<std::size_t> dense_;
  std::vector<FilledSource::Filled> filled_;
  std::map<std::string, std::string> sources_;
};

/// Opens what `--fill-from` names. No option describes it, for those beside --fill-from describe SRC.
HubModel open_donor(const std::string& path, const SourceAnswers& as_stored, std::unique_ptr<Source>& other) {
  try {
    other = open_as(open_source(path), as_stored);
    const Source& found = *other;
    return locate_errors(found, [&] { return as_hub(other, as_stored); });
  } catch (const Error& error) {
    if (error.missing_options().empty()) throw;
    throw Error(error.code(),
                fmt::format("{}. Options beside --fill-from describe SRC: convert {} on its own first, with what it "
                            "asks for, and fill from that",
                            error.what(), path),
                error.file(), error.tensor());
  }
}

}  // namespace

void fill_source(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  SourceAnswers as_stored;
  as_stored.drop_optimizer = true;
  // Codes that only one of the two has are decoded; codes of both are decoded together later.
  if (answers.decode && !holds_any_codes(source->inventory())) {
    as_stored.decode = answers.decode;
    as_stored.decode_as = answers.decode_as;
  }
  std::unique_ptr<Source> other;
  const HubModel donor = open_donor(answers.fill_from, as_stored, other);
  const HubModel own = as_hub(source, answers);
  std::unique_ptr<FilledSource> filled = Filler(*source, own, *other, donor).make();
  if (filled == nullptr) return;
  filled->own(std::move(source), std::move(other));
  source = std::move(filled);
}

}  // namespace glu_ckpt
