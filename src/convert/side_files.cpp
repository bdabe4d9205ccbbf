/// The files beside the tensors: where those of the source go, which are made for the output's reader, and what the
/// output holds that is neither tensor nor file.

#include <algorithm>
#include <functional>
#include <set>

#include "arch/dense_table.hpp"
#include "arch/model_names.hpp"
#include "convert/target.hpp"
#include "format/checkpoint_files.hpp"
#include "format/megatron_state.hpp"
#include "format/optimizer_parts.hpp"
#include "format/structure.hpp"
#include "format/trainer_args.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "layout/optimizer_names.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "quant/quantization_files.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kReleaseDirectory = "release";
constexpr std::string_view kCommonStateFile = "common.pt";
constexpr std::string_view kConfigFile = "config.json";

class SideFiles {
 public:
  SideFiles(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source,
            Target& target)
      : output_(output),
        options_(options),
        source_(*source.source),
        hints_(source.hints),
        recognition_(source.recognition),
        is_stale_(!stale_quantization(*source.source, options.from).empty()),
        target_(target) {}

  void place() {
    const bool was_megatron = is_megatron(recognition_.dense_naming);
    const bool to_megatron = target_.to.naming ? target_.to.naming->starts_with(kMegatron) : was_megatron;
    const bool stays_megatron = target_.to.naming.value_or(recognition_.layout.naming).starts_with(kMegatron);
    const bool whole = options_.to.scope == Scope::Model && recognition_.architecture != nullptr;
    const bool dist = target_.format == Format::TorchDist;
    const auto& files = source_.extra_files();
    const bool has_args = std::ranges::any_of(files, is_megatron_args, &ExtraFile::name);
    // One that was made for Megatron-Core, and is in a directory without a tracker file now, gets one again.
    const bool lost_tracker = was_hub_model(source_, recognition_) && source_.structure().iteration_dir.empty();
    target_.for_megatron =
        options_.target == std::string(kMegatron) && dist && whole && (!was_megatron || lost_tracker);
    target_.makes_args = target_.for_megatron || (to_megatron && dist && whole && has_args);
    target_.drops_made = whole && !to_megatron && was_hub_model(source_, recognition_) && was_megatron;
    const bool leaves_megatron = whole && !to_megatron && was_megatron;
    const std::string config_name = std::string(to_megatron ? kHfFolder : "") + std::string(kConfigFile);
    const bool is_named = whole && !options_.from.config_file.empty();
    const std::vector<OptimizerPart> parts =
        options_.from.drop_optimizer ? find_optimizer_parts(source_.info()) : std::vector<OptimizerPart>();
    for (const ExtraFile& file : files) {
      ExtraFile placed = file;
      if (const auto part = std::ranges::find(parts, file.name, &OptimizerPart::name); part != parts.end()) {
        if (part->kind == OptimizerPart::Kind::File) continue;
        placed.edit = common_state_edit(file);
      }
      if (is_megatron_args(file.name) && target_.makes_args) continue;
      if (leaves_megatron && is_made(file)) continue;
      if (is_megatron_args(file.name) && (target_.to.glu || target_.to.shared_glu) && stays_megatron)
        placed.edit = [glu = block_rows(target_.to.glu), shared = block_rows(target_.to.shared_glu)](
                          std::string_view text) { return with_orders(text, glu, shared); };
      placed.name = placed_name(file.name, leaves_megatron);
      if (is_named && without_beside(placed.name) == without_beside(config_name)) continue;
      if (is_stale_ && is_quantization_file(file.name)) continue;
      if (is_stale_ && (file.name == kConfigFile || file.name.ends_with("/config.json"))) placed.edit = config_edit();
      target_.extra_files.push_back(std::move(placed));
    }
    if (is_named) target_.extra_files.push_back({config_name, options_.from.config_file, config_edit()});
    if (whole && wants_config(to_megatron)) make_config(config_name);
    find_config();
  }

 private:
  /// Returns whether the file was made for Megatron-Core, so that it goes with that naming.
  bool is_made(const ExtraFile& file) const {
    return is_megatron_args(file.name) || (file.name == kCommonStateFile && was_hub_model(source_, recognition_));
  }

  static std::optional<i64> block_rows(const std::optional<Glu>& glu) {
    if (!glu) return std::nullopt;
    return glu->kind == Glu::Kind::Interleaved ? glu->block_rows : 0;
  }

  /// Made here, so that what cannot be read is refused before the work.
  static std::function<std::string(std::string_view)> common_state_edit(const ExtraFile& file) {
    constexpr i64 kMaxStateBytes = i64{1} << 30;
    std::string zip =
        without_optimizer(read_small_file(file.path, kMaxStateBytes, ErrorCode::NotSupported), file.path.string());
    return [zip = std::move(zip)](std::string_view) { return zip; };
  }

  /// Files of a Hugging Face directory have a directory of their own beside Megatron's tensors, so that no loader takes
  /// those for such a model, and come back from there.
  std::string placed_name(const std::string& name, bool leaves_megatron) const {
    const std::string_view in_hf = name_in_hf(name);
    if (target_.for_megatron && !is_megatron(recognition_.dense_naming)) return std::string(kHfFolder) + name;
    if (in_hf.empty()) return name;
    if (leaves_megatron) return std::string(in_hf);
    return target_.for_megatron ? std::string(kHfFolder).append(in_hf) : name;
  }

  /// Returns whether the target is a model with its configuration. A shard alone is none.
  bool wants_config(bool to_megatron) const {
    if (to_megatron) return target_.for_megatron;
    const bool to_hub = options_.target && options_.target->starts_with(kHf);
    return hints_.config_is_made || (to_hub && lone_shard_text(source_).empty());
  }

  bool has_file(std::string_view name) const {
    return std::ranges::find(target_.extra_files, name, &ExtraFile::name) != target_.extra_files.end();
  }

  /// Has the configuration written that is no file among the source's: a recorded one, or one that lies beside a file.
  void make_config(const std::string& name) {
    if (has_file(name) || hints_.config.empty()) return;
    // The hints are those of the model that is presented.
    target_.config = {name, is_stale_ ? unquantized_config(hints_.config, largest_dtype()) : hints_.config};
  }

  void find_config() {
    const std::string made(without_beside(target_.config.name));
    target_.has_config = !names_single_file(output_) && (has_file(kConfigFile) || made == kConfigFile);
    target_.config_is_found =
        has_file(kConfigFile) || !made.empty() || std::ranges::any_of(target_.extra_files, [](const ExtraFile& file) {
          return name_in_hf(file.name) == kConfigFile;
        });
  }

  /// Edits a configuration that was named, where the weights are read as other ones.
  std::function<std::string(std::string_view)> config_edit() const {
    if (is_stale_)
      return [to = largest_dtype(), edit = source_.info().config_edit](std::string_view text) {
        return unquantized_config(edit ? edit(text) : std::string(text), to);
      };
    if (source_.info().config_edit) return source_.info().config_edit;
    const auto rows = source_.record().find("scale_rows");
    if (rows == source_.record().end()) return nullptr;
    return [count = std::stoll(rows->second)](std::string_view text) { return with_block_rows(text, count); };
  }

  Dtype largest_dtype() const {
    const auto& tensors = source_.inventory().tensors;
    return tensors.empty() ? Dtype::BF16 : std::ranges::max_element(tensors, {}, &TensorRef::bytes)->dtype;
  }

  const std::filesystem::path& output_;
  const ConvertOptions& options_;
  const Source& source_;
  const ModelHints& hints_;
  const Recognition& recognition_;
  /// The configuration says that weights are quantized, and none is: the output's does not.
  const bool is_stale_;
  Target& target_;
};

NamedObject object_without_optimizer(const NamedObject& object) {
  const std::vector<std::byte> bytes = object.read();
  std::string zip = without_optimizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, object.name);
  const i64 size = std::ssize(zip);
  return {object.name, size, store_of({std::move(zip)}), 0};
}

/// Takes the optimizer's values out of the common state; returns what says of the rest that it goes.
IsDropped drop_optimizer_parts(const Source& source, Structure& structure) {
  std::set<std::string, std::less<>> dropped;
  for (const OptimizerPart& part : find_optimizer_parts(source.info())) {
    if (part.kind == OptimizerPart::Kind::Object) dropped.insert(part.name);
    for (NamedObject& object : structure.objects)
      if (part.kind == OptimizerPart::Kind::CommonState && object.name == part.name)
        object = object_without_optimizer(object);
  }
  return [dropped](std::string_view name) { return is_optimizer_tensor(name) || dropped.contains(name); };
}

std::vector<SideFile> made_files(const Target& target) {
  std::vector<SideFile> files;
  if (target.for_megatron)
    files.push_back({std::string(kCommonStateFile), print_common_state(target.args.text, target.args.stacked)});
  if (!target.config.name.empty()) files.push_back(target.config);
  if (target.makes_args) files.push_back({std::string(kMegatronArgsFile), target.args.text});
  return files;
}

/// Returns what the output holds besides tensors and files.
Structure output_structure(const Target& target, const Checkpoint& source, const std::vector<OutputTensor>& outputs,
                           bool drops_optimizer) {
  Structure structure = source.source->structure();
  if (target.drops_made) return {};
  const bool leaves_megatron = is_megatron(source.recognition.dense_naming) && target.to.naming &&
                               !target.to.naming->starts_with(kMegatron) && target.to.scope == Scope::Model;
  if (target.for_megatron) {
    structure = {};
    structure.iteration_dir = kReleaseDirectory;
    structure.tracker = kReleaseDirectory;
    structure.metadata_json = kTorchDistMetadata;
    structure.objects = extra_states(outputs);
  }
  IsDropped is_dropped;
  if (drops_optimizer) is_dropped = drop_optimizer_parts(*source.source, structure);
  structure = structure_for(std::move(structure), target.format, is_dropped);
  // Megatron's modules of TransformerEngine are in no other program.
  if (leaves_megatron)
    std::erase_if(structure.objects, [](const NamedObject& object) { return is_made_anew(object.name); });
  return structure;
}

}  // namespace

void place_extra_files(const std::filesystem::path& output, const ConvertOptions& options, const Checkpoint& source,
                       Target& target) {
  SideFiles(output, options, source, target).place();
}

void complete_target(Target& target, const Checkpoint& source, const Plan& plan, bool drops_optimizer) {
  if (target.makes_args)
    target.args = megatron_args(source.hints.config, source.recognition,
                                {plan.to.glu, plan.to.shared_glu, stacks_layers(plan.outputs)});
  target.made_files = made_files(target);
  target.structure = output_structure(target, source, plan.outputs, drops_optimizer);
}

}  // namespace glu_ckpt
