#include "convert/target.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "arch/dense_table.hpp"
#include "arch/model_names.hpp"
#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "format/checkpoint_files.hpp"
#include "io/file_names.hpp"
#include "layout/layout_table.hpp"
#include "layout/optimizer_names.hpp"
#include "model/former_model.hpp"
#include "model/known_orders.hpp"
#include "model/open_checkpoint.hpp"
#include "model/stored_model.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kTorchtitan = "torchtitan";
constexpr std::string_view kHfPrefix = "hf:";
constexpr std::size_t kMaxRecordedConfigBytes = std::size_t{256} << 10;
/// Entries of a record about the model as it was in Hugging Face's form.
constexpr std::string_view kFormerPrefix = "hf_";

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

const std::string* entry_of(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found == record.end() ? nullptr : &found->second;
}

/// The format of the output: as asked, or what its extension says, or the usual one.
Format target_format(const std::filesystem::path& output, const std::optional<Format>& asked, Format usual) {
  const std::optional<Format> named = format_of_name(output);
  if (named && asked && *named != *asked)
    fail(ErrorCode::Usage, {output.string(), {}}, "{}: a name that ends in {} is a {} file, but --format says {}",
         output.string(), output.extension().string(), to_string(*named), to_string(*asked));
  return asked ? *asked : named.value_or(usual);
}

/// Fills the answers that a target settles and the user left open.
class TargetResolver {
 public:
  TargetResolver(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source)
      : output_(output),
        options_(options),
        source_(*source.source),
        hints_(source.hints),
        recognition_(source.recognition),
        architecture_(source.recognition.architecture.get()) {}

  Target run() {
    if (recognition_.is_adapter) return adapter_target();
    target_.to = options_.to;
    keep_stored_layout();
    read_former();
    std::optional<Format> native;
    if (options_.target) native = choose();
    target_.format = target_format(output_, options_.format, native.value_or(source_.format()));
    remember_former();
    return std::move(target_);
  }

 private:
  /// An adapter's tensors and its configuration are as they were asked for when it was opened.
  Target adapter_target() {
    const TargetAnswers& to = options_.to;
    // Megatron-Bridge has adapters with one pair for gate and up, and with two.
    const bool is_split = options_.target == kMegatron && to.glu == Glu{Glu::Kind::Split, 0};
    const std::string_view asked = to.naming             ? "--naming"
                                   : to.glu && !is_split ? "--glu"
                                   : to.shared_glu       ? "--shared-glu"
                                   : to.bias_experts     ? "--bias-experts"
                                                         : "";
    if (!asked.empty())
      fail(ErrorCode::Usage, {}, "{}: is for models, and {} is an adapter; --to and --experts say its layout", asked,
           source_.path().string());
    const bool is_for_bridge = options_.target == kMegatron;
    target_.format = target_format(output_, options_.format, is_for_bridge ? Format::TorchDist : Format::Safetensors);
    if ((target_.format != Format::Safetensors && !is_for_bridge) || names_single_file(output_))
      fail(ErrorCode::NoSpelling, {output_.string(), {}},
           "{}: an adapter is written as a directory with adapter_model.safetensors and adapter_config.json",
           output_.string());
    target_.extra_files = source_.extra_files();
    if (const std::string* const config = entry_of(source_.record(), "config");
        config != nullptr && config->size() <= kMaxRecordedConfigBytes)
      target_.former_record["config"] = *config;
    return std::move(target_);
  }

  /// What is not asked for is as in the files, also where codes were made of another layout.
  void keep_stored_layout() {
    const Record& stored = source_.info().laid_out_from;
    if (stored.empty() || options_.target) return;
    if (!options_.to.naming && find_naming(stored.at("naming")) != recognition_.naming)
      fail(ErrorCode::NoSpelling, {}, "{} --to hf writes it{}",
           options_.from.encode.empty()
               ? fmt::format("what is made of '{}' is in Hugging Face's form:", stored.at("naming"))
               : fmt::format("--encode: '{}' has no names for codes and scales:", stored.at("naming")),
           options_.from.encode.empty() ? ", --to megatron gives Megatron's form again" : " as servers read it");
    TargetAnswers& to = target_.to;
    if (const std::string& experts = stored.at("experts"); !to.experts && experts != "mixed" && experts != "none")
      to.experts = parse_experts(experts);
    if (!to.glu && stored.at("glu") != "none") to.glu = parse_glu(stored.at("glu"));
    if (const std::string* glu = entry_of(stored, "shared_glu"); glu != nullptr && !to.shared_glu)
      to.shared_glu = parse_glu(*glu);
  }

  void require_architecture() const {
    if (architecture_ == nullptr && options_.to.scope != Scope::Experts) fail_no_architecture();
  }

  bool has_optimizer() const {
    return std::ranges::any_of(source_.inventory().tensors,
                               [](const TensorRef& tensor) { return is_optimizer_tensor(tensor.name); });
  }

  /// Asks at once for all that is not known, and for the optimizer to be left out, which only Megatron has a place for.
  [[noreturn]] void fail_no_architecture() const {
    if (const std::string text = other_model_text(source_); !text.empty())
      fail(ErrorCode::NoMap, {source_.path().string(), {}}, "--to {}: {}", *options_.target, text);
    if (const std::string text = unjoined_ranks_text(source_.inventory()); !text.empty())
      fail(ErrorCode::NoMap, {source_.path().string(), {}}, "--to {}: {}", *options_.target, text);
    std::vector<std::string> options = hints_.config_options;
    // The model's type may be known, and have no map.
    const bool is_nameless = hints_.config.empty() && hints_.no_config.empty();
    if (is_nameless) options = {"--from-config"};
    if (!options.empty())
      for (const std::string& answer : missing_answers(recognition_))
        options.push_back(options_.from.option_prefix + answer);
    const bool is_beside = *options_.target != kMegatron && !options_.from.drop_optimizer && has_optimizer();
    if (!options.empty() && is_beside) options.emplace_back("--optimizer");
    const std::string nameless = fmt::format(
        "{}; --from-config FILE names a config.json that says it{}",
        hints_.trained.glu.empty() ? ""
                                   : ", and the arguments that the trainer saved have no num_attention_heads, without "
                                     "which they describe no model",
        options.size() < 2
            ? ""
            : fmt::format(", and needs {} beside it", fmt::join(options.begin() + 1, options.end(), " and ")));
    const std::string_view advice =
        is_nameless ? std::string_view(nameless)
        : !recognition_.blocks.empty() && options.empty()
            ? "; under the names that it has, --experts, --glu and --decode change it, verify, diff and digest read "
              "it, "
              "and --scope experts renames its experts alone. docs/targets.md lists the families that convert whole"
            : "";
    throw Error(ErrorCode::NoMap, fmt::format("--to {}: {}{}", *options_.target, recognition_.no_architecture, advice))
        .with_missing_options(std::move(options));
  }

  /// Returns the target's own format.
  Format choose() {
    const std::string& name = *options_.target;
    const bool to_hub = name == kHf || name.starts_with(kHfPrefix);
    if (!to_hub || !recognition_.in_memory) require_architecture();
    if (name == kMegatron) {
      settle("megatron-dist", Experts::Grouped, {Glu::Kind::Contiguous, 0}, {Glu::Kind::Contiguous, 0});
      return Format::TorchDist;
    }
    if (name == kTorchtitan) {
      settle(name, Experts::Grouped, {Glu::Kind::Split, 0}, {Glu::Kind::Split, 0});
      return Format::TorchDist;
    }
    if (!to_hub)
      fail(ErrorCode::Usage, {}, "--to: '{}' is no target; megatron, torchtitan, hf and hf:<model_type> are", name);
    choose_hf(name);
    return Format::Safetensors;
  }

  /// Names the model's own family where several spell their experts alike.
  std::string own_name(const Naming& naming, const std::string& usual) const {
    for (const std::string& type : {hints_.model_type, architecture_->model_type})
      if (std::string own = std::string(kHfPrefix) + type; find_naming(own) == &naming) return own;
    return usual;
  }

  void choose_hf(const std::string& name) {
    if (architecture_ == nullptr) return choose_hub_of_memory(name);
    if (name.starts_with(kHfPrefix) && name.substr(kHfPrefix.size()) != architecture_->model_type)
      fail(ErrorCode::NoMap, {}, "--to {}: the source's model is of type '{}'; --to hf writes that type", name,
           architecture_->model_type);
    const Family& family = *architecture_->family;
    if (!family.has_experts())
      return settle("hf:" + architecture_->model_type, Experts::Indexed, {Glu::Kind::Split, 0}, {});
    const std::string* const recorded = entry_of(source_.record(), "hf_naming");
    const std::string expert_naming = recorded != nullptr && spells_experts_of(*architecture_, *recorded)
                                          ? *recorded
                                          : std::string(family.expert_naming);
    const Naming& naming = *find_naming(expert_naming);
    const Experts experts = family.packed_experts ? Experts::Grouped : Experts::Indexed;
    settle(own_name(naming, expert_naming), experts,
           family.packed_experts ? fixed_glu(naming) : Glu{Glu::Kind::Split, 0},
           {naming.native_shared_fused ? Glu::Kind::Contiguous : Glu::Kind::Split, 0});
  }

  /// A model without a map goes from transformers' spelling in memory to the hub's all the same: few words differ.
  void choose_hub_of_memory(const std::string& name) {
    const bool experts_alone = options_.to.scope == Scope::Experts;
    if (!recognition_.in_memory && !experts_alone) fail_no_architecture();
    const std::string& type = hints_.text_model_type.empty() ? hints_.model_type : hints_.text_model_type;
    const std::string own = std::string(kHfPrefix) + type, expert_naming = experts_alone && name != kHf ? name : own;
    const Naming* const naming = find_naming(expert_naming);
    if (naming == nullptr || (name != kHf && name != expert_naming))
      fail(ErrorCode::NoMap, {}, "--to {}: the source's model is of type '{}'; --to hf writes that type", name, type);
    const bool packed = !naming->native_indexed_split;
    settle(expert_naming, packed ? Experts::Grouped : Experts::Indexed,
           packed ? fixed_glu(*naming) : Glu{Glu::Kind::Split, 0},
           {naming->native_shared_fused ? Glu::Kind::Contiguous : Glu::Kind::Split, 0});
  }

  void settle(const std::string& naming, Experts experts, const Glu& glu, const Glu& shared_glu) {
    TargetAnswers& to = target_.to;
    const bool back = naming.starts_with(kHfPrefix) && was_hub_model(source_, recognition_);
    const Record& record = source_.record();
    if (!to.naming) to.naming = naming;
    if (back) read_forms();
    const bool alike = back && !was_mixed();
    if (!to.experts) to.experts = alike ? recorded_experts(experts) : experts;
    if (!to.glu) to.glu = alike ? recorded_glu(record, "hf_glu", glu) : glu;
    if (!to.shared_glu) to.shared_glu = back ? recorded_glu(record, "hf_shared_glu", shared_glu) : shared_glu;
    forget_needless();
  }

  /// FC1 without a gate has no order, and is left as it is.
  void forget_needless() {
    const bool dense = recognition_.layout.is_dense();
    if (dense && !options_.to.experts) target_.to.experts.reset();
    const auto has = [&](ExpertSet set, bool gated) {
      return std::ranges::any_of(recognition_.blocks, [&](const ExpertBlock& block) {
        return block.set == set && (block.glu.kind != Glu::Kind::None || !gated);
      });
    };
    if (!options_.to.glu && !dense && !has(ExpertSet::Routed, true)) target_.to.glu.reset();
    if (!options_.to.shared_glu && !has(ExpertSet::Shared, true)) target_.to.shared_glu.reset();
  }

  /// Reads a word of the record, which is at fault where no conversion writes such a one.
  template <typename Read>
  static auto recorded(const std::string& key, const std::string& text, const Read& read) {
    try {
      return read(text);
    } catch (const Error& error) {
      fail(ErrorCode::RecordInvalid, {}, "the record's entry {}: {}", key, error.what());
    }
  }

  Experts recorded_experts(Experts native) const {
    const std::string* text = entry_of(source_.record(), "hf_experts");
    return text != nullptr ? recorded("hf_experts", *text, parse_experts) : native;
  }

  bool was_mixed() const {
    const std::string* const text = entry_of(source_.record(), "hf_experts");
    return text != nullptr && *text == "mixed";
  }

  /// Reads the forms of the layers, unless one form for all of them is asked for.
  void read_forms() {
    if (options_.to.experts || options_.to.glu) return;
    if (const std::string* const forms = entry_of(source_.record(), "hf_forms"))
      target_.former.forms = parse_expert_forms(*forms);
    else if (was_mixed())
      fail(ErrorCode::NotExact, {},
           "--to {}: the record says that the layers' experts were stored in several forms, but not which layer in "
           "which "
           "(an earlier version wrote it), so the original does not come back. --experts and --glu choose one form for "
           "all layers, such as --experts indexed --glu split",
           *options_.target);
  }

  static Glu recorded_glu(const Record& record, const std::string& key, const Glu& native) {
    const std::string* text = entry_of(record, key);
    return text != nullptr && *text != "none" && *text != "unknown" ? recorded(key, *text, parse_glu) : native;
  }

  // ---- the way back -----------------------------------------------------------------------------

  void read_former() {
    target_.former = former_model(source_.record(), hints_, recognition_);
    check_root();
    check_copies();
    // A naming that is asked for by its own name spells its keys in its own way.
    if (options_.target) target_.former.expert_root = expert_root();
    if (const std::string* root = entry_of(source_.record(), "hf_root"); root != nullptr && !target_.former.expert_root)
      target_.former.expert_root = *root;
  }

  /// Behind another text no program, and nothing here, finds the keys again.
  void check_root() const {
    const std::string* const root = entry_of(source_.record(), "hf_root");
    if (root == nullptr || architecture_ == nullptr || options_.to.scope == Scope::Experts) return;
    const std::vector<std::string_view> roots = roots_of(*architecture_->family);
    if (std::ranges::find(roots, *root) != roots.end()) return;
    fail(ErrorCode::RecordInvalid, {},
         "the record's entry hf_root is '{}', which is in front of no keys of a model of type '{}' (such are '{}')",
         *root, architecture_->model_type, fmt::join(roots, "', '"));
  }

  /// A name that repeats no tensor would be left out in silence, and with it the copy that it was. The numbers of
  /// layers are those of the whole model, of which this may be a part.
  void check_copies() const {
    if (architecture_ == nullptr || !target_.former.copies || options_.to.scope == Scope::Experts) return;
    const std::vector<std::string> own = copies_behind(target_.former.root);
    std::vector<std::string> known = own;
    for (const std::string_view root : roots_of(*architecture_->family))
      std::ranges::move(copies_behind(root), std::back_inserter(known));
    for (const std::string& name : *target_.former.copies)
      if (std::ranges::find(known, numberless(name)) == known.end())
        fail(ErrorCode::RecordInvalid, {},
             "the record's entry hf_copies names '{}', which repeats no other tensor in a model of type '{}'{}", name,
             architecture_->model_type, own.empty() ? "" : fmt::format(" (such do '{}')", fmt::join(own, "', '")));
  }

  /// The names of the tensors that repeat others, without the numbers of layers.
  std::vector<std::string> copies_behind(std::string_view root) const {
    std::vector<std::string> names;
    const DenseNaming& naming = architecture_->family->naming;
    for_each_row(naming, [&](const DenseRow& row) {
      const bool of_model = row.place == Place::Model;
      if (!row.copy && !(of_model && row.roles[0] == DenseRole::Head && architecture_->tied)) return;
      names.push_back(
          numberless(print_key(naming, row, root, of_model ? "" : "mtp", 0, TensorKind::Weight, *architecture_)));
    });
    return names;
  }

  /// "model.layers.N.x" of "model.layers.3.x".
  static std::string numberless(std::string_view name) {
    std::string text;
    for (const char c : name)
      if (c < '0' || c > '9')
        text += c;
      else if (!text.ends_with('N'))
        text += 'N';
    return text;
  }

  /// The text in front of layers of a hub's experts, behind what is no part of their naming: "model.language_model.".
  std::optional<std::string> expert_root() const {
    if (!recognition_.layout.naming.starts_with(kHfPrefix) || recognition_.in_memory) return std::nullopt;
    for (const ExpertBlock& block : recognition_.blocks)
      if (block.stack == "decoder" && !block.is_optimizer_state()) {
        const std::string text = block.key_prefix.substr(block.key_scope.size());
        if (const std::size_t layers = text.find("layers."); layers != text.npos) return text.substr(0, layers);
      }
    return std::nullopt;
  }

  void remember_former() {
    const bool renames = target_.to.naming && !target_.to.naming->starts_with(kHfPrefix);
    if (const auto root = expert_root(); root && renames && options_.to.scope == Scope::Experts) {
      target_.former_record["hf_root"] = *root;
      return;
    }
    if (!is_hub_model(recognition_)) {
      for (const auto& [key, value] : source_.record())
        if (key.starts_with(kFormerPrefix)) target_.former_record.emplace(key, value);
      return;
    }
    if (!target_.to.naming || target_.to.naming->starts_with(kHfPrefix) || options_.to.scope == Scope::Experts) return;
    Record& former = target_.former_record;
    const LayoutAnswers& layout = recognition_.layout;
    former["hf_model_type"] = architecture_->model_type;
    former["hf_root"] = recognition_.dense_root;
    // A form that programs have in memory alone comes back as the hub's.
    if (!recognition_.in_memory && !layout.is_dense()) remember_forms(layout, former);
    std::vector<std::string> copies;
    for (const TensorCopy& copy : recognition_.copies)
      copies.push_back(model_name(source_.inventory(), recognition_, copy.tensor));
    former["hf_copies"] = joined(copies);
    for (const DenseMatrix& matrix : recognition_.dense)
      if (matrix.op != ComputeOp::None) former["hf_computed_dtype"] = dtype_name(matrix.stored_dtype);
  }

  void remember_forms(const LayoutAnswers& layout, Record& former) const {
    if (find_naming(layout.naming) == find_naming(architecture_->family->other_expert_naming))
      former["hf_naming"] = layout.naming;
    former["hf_experts"] = layout.experts;
    former["hf_glu"] = to_string(layout.glu);
    if (std::string forms = print_expert_forms(recognition_.blocks); !forms.empty())
      former["hf_forms"] = std::move(forms);
    if (layout.shared_glu) former["hf_shared_glu"] = to_string(*layout.shared_glu);
  }

  const std::filesystem::path& output_;
  const ConvertOptions& options_;
  const Source& source_;
  const ModelHints& hints_;
  const Recognition& recognition_;
  const Architecture* architecture_;
  Target target_;
};

}  // namespace

Target resolve_target(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source) {
  Target target = TargetResolver(output, options, source).run();
  if (!source.recognition.is_adapter) place_extra_files(output, options, source, target);
  return target;
}

namespace {

/// Layers of one stack that follow one another and are alike.
struct FormRun {
  /// The text in front of the layer's number in its label.
  std::string before;
  i64 first = 0;
  i64 last = 0;
  ExpertForm form;
};

[[noreturn]] void fail_forms(std::string_view text) {
  fail(ErrorCode::RecordInvalid, {}, "the record's entry hf_forms has '{}', which is no LAYERS/EXPERTS/GLU", text);
}

std::string print_run(const FormRun& run) {
  const std::string last = run.last > run.first ? fmt::format("-{}", run.last) : std::string();
  return fmt::format("{}{}{}/{}/{}", run.before, run.first, last, to_string(run.form.experts),
                     run.form.glu ? to_string(*run.form.glu) : "none");
}

FormRun parse_run(std::string_view text) {
  const std::size_t behind_layers = text.find('/'), behind_experts = text.rfind('/');
  if (behind_layers == text.npos || behind_layers == behind_experts) fail_forms(text);
  const std::string_view layers = text.substr(0, behind_layers), glu = text.substr(behind_experts + 1);
  const std::string_view experts = text.substr(behind_layers + 1, behind_experts - behind_layers - 1);
  const std::size_t number = layers.find_last_not_of("0123456789-") + 1;
  const std::string_view range = layers.substr(number);
  const std::size_t dash = std::min(range.find('-'), range.size());
  const auto first = parse_number<i64>(range.substr(0, dash));
  const auto last = dash == range.size() ? first : parse_number<i64>(range.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || *last >= kMaxLayers) fail_forms(text);
  FormRun run{std::string(layers.substr(0, number)), *first, *last, {}};
  try {
    run.form.experts = parse_experts(experts);
    if (glu != "none") run.form.glu = parse_glu(glu);
  } catch (const Error&) {
    fail_forms(text);
  }
  return run;
}

}  // namespace

std::string print_expert_forms(const std::vector<ExpertBlock>& blocks) {
  std::vector<FormRun> runs;
  bool alike = true;
  for (const ExpertBlock& block : blocks) {
    if (block.set != ExpertSet::Routed || block.is_optimizer_state()) continue;
    std::string label = layer_label(block);
    label.resize(label.size() - std::to_string(block.layer).size());
    const bool ordered = block.glu.kind != Glu::Kind::None && block.glu.kind != Glu::Kind::Unknown;
    const ExpertForm form{block.experts, ordered ? std::optional(block.glu) : std::nullopt};
    alike = alike && (runs.empty() || runs.front().form == form);
    if (!runs.empty() && runs.back().before == label && runs.back().last + 1 == block.layer && runs.back().form == form)
      runs.back().last = block.layer;
    else
      runs.push_back({std::move(label), block.layer, block.layer, form});
  }
  if (alike) return {};
  std::string text;
  for (const FormRun& run : runs) text += (text.empty() ? "" : " ") + print_run(run);
  return text;
}

ExpertForms parse_expert_forms(std::string_view text) {
  ExpertForms forms;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const FormRun run = parse_run(text.substr(begin, end - begin));
    for (i64 layer = run.first; layer <= run.last; ++layer) forms[fmt::format("{}{}", run.before, layer)] = run.form;
    begin = end + 1;
  }
  return forms;
}

}  // namespace glu_ckpt
