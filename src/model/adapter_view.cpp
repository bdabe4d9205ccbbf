#include "model/adapter_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "adapters/adapter_layout.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "families/architecture.hpp"
#include "format/model_config.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "layout/adapter_names.hpp"
#include "model/laid_out_source.hpp"
#include "model/source_hints.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kBaseConfig = "config.json";
constexpr i64 kMaxBaseConfigBytes = i64{16} << 20;
constexpr std::size_t kMaxModelConfigDepth = 64;

/// The configuration of the model that an adapter is for: named, recorded, beside it, or where it was trained.
std::string model_config(const Source& adapter, const AdapterConfig& config, const SourceAnswers& answers) {
  std::string found = hints_of(adapter, answers).config;
  if (!found.empty()) return found;
  if (!answers.adapted_config.empty())
    return read_small_file(answers.adapted_config, kMaxBaseConfigBytes, ErrorCode::ConfigJson);
  if (config.base_name.empty()) return {};
  const std::filesystem::path near = std::filesystem::path(config.base_name) / kBaseConfig;
  if (!is_file(near)) return {};
  return read_small_file(near, kMaxBaseConfigBytes, ErrorCode::ConfigJson);
}

/// "qwen3moe" of "Qwen3MoeForCausalLM", "Qwen3MoeModel" and "qwen3_moe": a model and its head are classes of one
/// architecture.
std::string architecture_in(std::string_view text) {
  for (const std::string_view end : {"For", "Model", "Text", "_text"}) text = text.substr(0, text.find(end));
  std::string letters;
  for (const char c : text)
    if (c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

/// The classes and the type that a configuration names, and those of a language model in it.
std::vector<std::string> classes_in(const JsonValue& config) {
  std::vector<std::string> found;
  if (const auto classes = config.find("architectures"); classes && classes->kind() == JsonKind::Array)
    for (const JsonValue one : classes->items()) found.emplace_back(one.get<std::string_view>().value_or(""));
  if (const auto type = config.find<std::string_view>("model_type")) found.emplace_back(*type);
  if (const auto text = config.find("text_config"); text && text->kind() == JsonKind::Object)
    for (std::string& one : classes_in(*text)) found.push_back(std::move(one));
  return found;
}

/// Cuts a word like ":shared" off the end of an adapter's layout.
bool cut_word(std::string& layout, std::string_view word) {
  if (!layout.ends_with(word)) return false;
  layout.resize(layout.size() - word.size());
  return true;
}

LayAnswers lay_answers(const SourceAnswers& answers, const Architecture* architecture) {
  std::string layout = answers.adapter_layout;
  LayAnswers lay{.grow_rank = answers.grow_rank, .live_ranks = layout.empty()};
  lay.shares = cut_word(layout, kSharedFactors);
  lay.splits_gate_up = cut_word(layout, kSplitFactors);
  const bool is_grouped = cut_word(layout, kGroupedFactors), is_indexed = cut_word(layout, kIndexedFactors);
  lay.program = layout;
  if (is_grouped && layout == "sglang")
    fail(ErrorCode::NoSpelling, {},
         "--to sglang --experts grouped: SGLang has no names for PEFT's factors of packed experts; --to sglang alone "
         "writes a pair for each expert");
  if (layout == "torchtitan")
    fail(ErrorCode::NoSpelling, {}, "--to torchtitan: torchtitan has no adapters of routed experts");
  const bool is_stacked = lay.shares && (layout == "vllm" || layout == "sglang");
  if (lay.shares && !is_stacked && layout != "megatron")
    fail(ErrorCode::NoSpelling, {},
         "--experts shared: PEFT has no factors that experts share; --to sglang, --to vllm and --to megatron write "
         "them");
  // vLLM has w1 and w3, SGLang takes gate and up together.
  if (is_stacked) lay.splits_gate_up = layout == "vllm";
  const bool is_native = layout.starts_with("hf") || layout == "vllm";
  const bool is_packed =
      is_grouped || (!is_indexed && is_native && architecture != nullptr && architecture->family->packed_experts);
  lay.layout = layout == "megatron" ? AdapterLayout::Megatron
               : is_stacked         ? AdapterLayout::Stacked
               : is_packed          ? AdapterLayout::Packed
                                    : AdapterLayout::Indexed;
  if (lay.layout == AdapterLayout::Packed && layout != "vllm")
    lay.files = parse_packed_files(answers.to_lora);
  else if (!answers.to_lora.empty())
    fail(
        ErrorCode::Usage, {},
        "--to-lora {}: says how PEFT's files have factors of packed experts, and these are to be {}; --to hf --experts "
        "grouped writes PEFT's",
        answers.to_lora, layout == "vllm" ? "as vLLM reads them" : "laid out otherwise");
  return lay;
}

[[noreturn]] void fail_no_config(const AdapterConfig& config) {
  throw Error(
      ErrorCode::NoMap,
      fmt::format("nothing says what model the adapter is for{}, and factors of packed experts are read and written by "
                  "its sizes; --from-config FILE names the model's config.json",
                  config.base_name.empty() ? "" : fmt::format(" ('{}' is no directory here)", config.base_name)))
      .with_missing_options({"--from-config"});
}

/// An adapter's facts.
struct ReadAdapter {
  AdapterConfig config;
  /// config.json of its model, the sizes in it and the spelling of its experts; none where nobody knows.
  std::string base;
  std::shared_ptr<const Architecture> architecture;
  const Naming* naming = nullptr;
  std::vector<AdaptedModule> modules;
};

ReadAdapter read_adapter(const Source& source, const SourceAnswers& answers) {
  ReadAdapter adapter;
  adapter.config = adapter_config_of(source);
  adapter.base = model_config(source, adapter.config, answers);
  adapter.architecture = read_architecture(adapter.base);
  const Architecture* const architecture = adapter.architecture.get();
  if (!adapter.base.empty()) check_adapted_model(source, adapter.config, adapter.base, architecture);
  if (architecture != nullptr) adapter.naming = find_naming(architecture->family->expert_naming);
  AdaptedModel model = adapted_model(adapter.naming, architecture);
  model.sizes = [&](const std::string&) -> std::optional<PackedSizes> {
    if (adapter.base.empty()) fail_no_config(adapter.config);
    if (architecture == nullptr || architecture->num_experts <= 0 || architecture->expert_width <= 0)
      return std::nullopt;
    return PackedSizes{architecture->num_experts, architecture->expert_hidden, architecture->expert_width};
  };
  adapter.modules = read_factors(source.inventory(), adapter.config, model, packed_files_of(source, answers));
  return adapter;
}

/// The tensors of the other layout as outputs of a plan.
Plan plan_of(const LaidAdapter& laid) {
  Plan plan;
  for (const LaidTensor& tensor : laid.tensors) {
    i64 bytes = dtype_bits(tensor.dtype) / 8;
    for (const i64 extent : tensor.shape) bytes *= extent;
    plan.first_move.push_back(plan.moves.size());
    for (const LaidTensor::Part& part : tensor.parts) {
      Matrix to = part.to;
      to.tensor = plan.outputs.size();
      append_matrix_moves(part.from, to, plan.moves);
    }
    plan.outputs.push_back({});
    OutputTensor& output = plan.outputs.back();
    output.name = tensor.name;
    output.dtype = tensor.dtype;
    output.shape = tensor.shape;
    output.bytes = bytes;
  }
  plan.first_move.push_back(plan.moves.size());
  return plan;
}

/// Adds the scale of each module as a tensor, after the others.
Constants add_scales(const std::vector<LaidModule>& modules, const AdapterConfig& config, Plan& plan) {
  Constants constants;
  const auto add = [&](std::string name, float scale) {
    std::vector<std::byte> bytes(sizeof(scale));
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    constants.emplace(plan.outputs.size(), std::move(bytes));
    OutputTensor output;
    output.name = std::move(name);
    output.dtype = Dtype::F32;
    output.shape = {1};
    output.bytes = sizeof(scale);
    plan.outputs.push_back(std::move(output));
    plan.first_move.push_back(plan.moves.size());
  };
  for (const LaidModule& module : modules) {
    AdapterConfig own;
    own.rank = module.rank;
    own.alpha = module.alpha;
    own.rank_stabilized = config.rank_stabilized;
    add(fmt::format("{}{}{}", kAdaptedModel, module.name, kScaleName), own.scale_of(""));
  }
  // One that was not trained adds nothing.
  if (modules.empty()) add(fmt::format("base_model.model{}", kScaleName), 0);
  return constants;
}

bool is_as_stored(const LaidAdapter& laid, const Inventory& inventory) {
  if (laid.tensors.size() != inventory.tensors.size()) return false;
  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) numbers.emplace(inventory.tensors[i].name, i);
  return std::ranges::all_of(laid.tensors, [&](const LaidTensor& tensor) {
    const auto found = numbers.find(tensor.name);
    if (found == numbers.end() || inventory.tensors[found->second].shape != tensor.shape) return false;
    return std::ranges::all_of(tensor.parts, [&](const LaidTensor::Part& part) {
      const Placement &from = part.from.place, &to = part.to.place;
      return part.from.tensor == found->second && from.offset == to.offset && from.row_step == to.row_step &&
             from.col_step == to.col_step && from.block_rows == to.block_rows &&
             (from.block_step == to.block_step || from.block_rows >= part.from.rows);
    });
  });
}

/// The programs that read factors of packed experts, by the order in which these are.
LoadsIn packed_loaders(const Source& adapter, const SourceAnswers& answers) {
  std::optional<PackedFiles> files;
  // One that was laid out anew has the order that its record says, and its adapter_config.json is still the older one.
  if (!adapter.info().laid_out_from.empty()) {
    files = packed_files_of(adapter, {});
  } else if (const AdapterConfig config = adapter_config_of(adapter); !model_config(adapter, config, answers).empty()) {
    const auto is = [&, modules = read_adapter(adapter, answers).modules](bool Factors::*field) {
      return std::ranges::any_of(modules, [&](const AdaptedModule& module) { return module.factors.*field; });
    };
    files = is(&Factors::is_by_expert) ? PackedFiles::ByExpert
            : is(&Factors::is_turned)  ? PackedFiles::Peft018
                                       : PackedFiles::Peft019;
  }
  if (!files)
    return {{},
            "PEFT on transformers 5 reads it, 0.18 or a later one: they have the axes of packed experts otherwise, and "
            "the model's sizes tell which wrote it (--from-config FILE)",
            true};
  if (*files == PackedFiles::ByExpert)
    return {{{"Unsloth", "2026.10", "UNSLOTH_MOE_LORA_B_LAYOUT=grouped_by_expert; as its source code says, not tried"}},
            {}};
  if (*files == PackedFiles::Peft018) return {{{"PEFT", "0.18 with transformers 5", ""}}, {}};
  return {{{"PEFT", "0.19 or later with transformers 5", ""},
           {"vLLM", "0.33", "--enable-lora, for families of packed experts"}},
          {}};
}

}  // namespace

void check_adapted_model(const Source& adapter, const AdapterConfig& config, const std::string& model_config,
                         const Architecture* architecture) {
  const JsonDocument document(model_config, kMaxModelConfigDepth);
  if (config.base_class.empty() || document.fault() || document.root().kind() != JsonKind::Object) return;
  const auto own = document.root().find("architectures");
  if (!own || own->size() == 0) return;
  std::vector<std::string> classes = classes_in(document.root());
  const std::string named = classes.front();
  if (architecture != nullptr) classes.emplace_back(architecture->family->model_class);
  const std::string wanted = architecture_in(config.base_class);
  if (std::ranges::any_of(classes, [&](const std::string& one) { return architecture_in(one) == wanted; })) return;
  fail(ErrorCode::NotSupported, {adapter.path().string(), {}},
       "{}: {} says that it is for a {}, and config.json of the model says {}; give the model that it was trained on",
       adapter.path().string(), kAdapterConfigName, config.base_class, named);
}

std::vector<std::string> lora_file_words() { return packed_files_words(); }

AdapterSummary summarize_adapter(const Source& adapter, const SourceAnswers& answers) {
  const AdapterConfig config = adapter_config_of(adapter);
  const bool is_packed = adapter_experts(adapter.inventory()) == "grouped";
  AdapterSummary summary;
  summary.base_class = config.base_class;
  summary.base_name = config.base_name;
  summary.alpha = config.alpha;
  summary.rank_stabilized = config.rank_stabilized;
  summary.is_dora = config.is_dora;
  std::set<i64> ranks;
  std::set<double> alphas, scales;
  std::set<std::string> targets(config.target_parameters.begin(), config.target_parameters.end());
  if (is_packed && model_config(adapter, config, answers).empty()) {
    // Nobody says how many experts share a tensor.
    ranks.insert(config.rank);
    for (const auto& [module, rank] : config.rank_pattern) ranks.insert(static_cast<i64>(rank));
    alphas.insert(config.alpha);
    for (const auto& [module, alpha] : config.alpha_pattern) alphas.insert(alpha);
    for (const TensorRef& tensor : adapter.inventory().tensors)
      if (tensor.name.find(".lora_A") != tensor.name.npos || tensor.name.find(".linear_in") != tensor.name.npos)
        ++(tensor.name.find(".experts.") != tensor.name.npos ? summary.expert_modules : summary.other_modules);
  } else {
    for (const AdaptedModule& module : read_adapter(adapter, answers).modules) {
      ranks.insert(module.factors.rank);
      alphas.insert(config.alpha_for_scale(module.factors.scale, module.factors.rank));
      scales.insert(module.factors.scale);
      if (!module.packed) targets.insert(module.name.substr(module.name.rfind('.') + 1));
      ++(module.packed || module.name.find(".experts.") != module.name.npos ? summary.expert_modules
                                                                            : summary.other_modules);
    }
  }
  summary.ranks.assign(ranks.begin(), ranks.end());
  summary.alphas.assign(alphas.begin(), alphas.end());
  if (!scales.empty()) {
    summary.least_scale = *scales.begin();
    summary.greatest_scale = *scales.rbegin();
  }
  summary.targets.assign(targets.begin(), targets.end());
  return summary;
}

std::vector<std::string> target_texts(const Source& adapter) {
  // Megatron-Bridge's modules, and factors that experts share, have other names than those of targets.
  if (is_megatron_adapter(adapter.inventory())) return {};
  constexpr std::string_view kFactor = ".lora_A", kWrapped = ".base_layer", kPackedExperts = ".experts";
  std::vector<std::string> modules;
  for (const TensorRef& tensor : adapter.inventory().tensors) {
    std::string name = tensor.name.substr(0, tensor.name.find(kFactor));
    if (name.size() == tensor.name.size() || is_stacked_factor(tensor.name)) continue;
    if (name.starts_with(kAdaptedModel)) name.erase(0, kAdaptedModel.size());
    if (!name.ends_with(kPackedExperts) && !name.ends_with(kWrapped)) modules.push_back(std::move(name));
  }
  return target_contradictions(adapter_config_of(adapter), modules);
}

PackedFiles packed_files_of(const Source& adapter, const SourceAnswers& answers) {
  const auto recorded = adapter.record().find(std::string(kLoraFiles));
  if (recorded == adapter.record().end()) return parse_packed_files(answers.from_lora);
  if (const auto words = packed_files_words(); std::ranges::find(words, recorded->second) == words.end())
    fail(ErrorCode::RecordInvalid, {adapter.path().string(), {}},
         "the record of the adapter says that its files are '{}' ({}), and there are {}", recorded->second, kLoraFiles,
         fmt::join(words, ", "));
  // Of two adapters that are compared, the option is about the first; it serves the second where no record does.
  const bool is_asked = answers.option_prefix == SourceAnswers().option_prefix && !answers.from_lora.empty();
  if (is_asked && recorded->second != answers.from_lora)
    fail(ErrorCode::RecordContradicts, {adapter.path().string(), {}},
         "--from-lora {}: the record of the adapter says {}; one of them is wrong", answers.from_lora,
         recorded->second);
  return parse_packed_files(recorded->second);
}

LoadsIn adapter_loaders(const Source& adapter, const SourceAnswers& answers) {
  const Inventory& inventory = adapter.inventory();
  if (is_megatron_adapter(inventory))
    return {{}, "these are Megatron-Bridge's names of adapters, as its sources spell them; no program was tried", true};
  const auto has = [&](std::string_view word) {
    return std::ranges::any_of(inventory.tensors, [&](const TensorRef& tensor) {
      return is_stacked_factor(tensor.name) && tensor.name.find(word) != tensor.name.npos;
    });
  };
  if (has(".experts.w1.")) return {{{"vLLM", "0.33", "--enable-lora --enable-moe-shared-loras"}}, {}};
  if (has(".experts.")) return {{{"SGLang", "0.5.23", "--enable-lora, experts that share factors"}}, {}};
  if (std::ranges::any_of(inventory.tensors, [](const TensorRef& tensor) {
        return tensor.name.find(".lora_gate_and_up_") != tensor.name.npos ||
               tensor.name.find(".lora_down_") != tensor.name.npos;
      }))
    return {{},
            "these are AutoModel's parameters as it has them in memory; it reads PEFT's files, which --to hf writes",
            true};
  const bool is_packed = std::ranges::any_of(inventory.tensors, [](const TensorRef& tensor) {
    return tensor.name.find(".experts.lora_") != tensor.name.npos;
  });
  if (is_packed) return packed_loaders(adapter, answers);
  const bool is_dora = std::ranges::any_of(
      inventory.tensors, [](const TensorRef& tensor) { return tensor.name.find(kMagnitudes) != tensor.name.npos; });
  if (is_dora) return {{{"PEFT", "0.18 with transformers 4, or 0.21 with transformers 5", ""}}, {}};
  return {{{"PEFT", "0.18 with transformers 4, or 0.21 with transformers 5", ""},
           {"vLLM", "0.33", "--enable-lora"},
           {"SGLang", "0.5.23", "--enable-lora"}},
          {}};
}

AdapterConfig adapter_config_of(const Source& adapter) {
  const auto& files = adapter.extra_files();
  const auto found = std::ranges::find(files, kAdapterConfigName, &ExtraFile::name);
  if (found == files.end())
    fail(ErrorCode::NotSupported, {adapter.path().string(), {}},
         "{0}: has no {1}, which says by how much factors are multiplied; give the directory of an adapter that PEFT "
         "saved, or, of one that PEFT did not save, write {1} into it: {{\"r\": RANK, \"lora_alpha\": ALPHA}}",
         adapter.path().string(), kAdapterConfigName);
  const std::string read = read_small_file(found->path, kMaxBaseConfigBytes, ErrorCode::ConfigJson);
  return read_adapter_config(read, found->path.string());
}

void check_adapter_answers(const SourceAnswers& answers, bool is_adapter) {
  const auto refuse = [&](bool is_given, std::string_view option) {
    if (is_given)
      fail(ErrorCode::Usage, {}, "{}: is for {}, and this is {}", option, is_adapter ? "models" : "adapters (LoRA)",
           is_adapter ? "an adapter (LoRA)" : "a model");
  };
  if (!is_adapter) {
    refuse(answers.grow_rank, "--grow-rank");
    refuse(answers.adapter_layout.ends_with(kSharedFactors), "--experts shared");
    refuse(!answers.from_lora.empty() && answers.merge.empty(), "--from-lora");
    refuse(!answers.to_lora.empty(), "--to-lora");
    return;
  }
  refuse(answers.decode.has_value(), "--decode");
  refuse(!answers.encode.empty(), "--encode");
  if (!answers.merge.empty())
    fail(ErrorCode::Usage, {},
         "--merge: SRC is the model and --merge names the adapter, and this SRC is an adapter: `glu-ckpt convert MODEL "
         "DST "
         "--merge ADAPTER`");
  refuse(!answers.dtypes.empty(), "--dtype");
  refuse(!answers.layers.empty(), "--layers");
  refuse(!answers.keep_experts.empty(), "--keep-experts");
  refuse(answers.pad_experts > 0, "--pad-experts");
  refuse(answers.unpad, "--unpad");
  refuse(!answers.fill_from.empty(), "--fill-from");
  refuse(answers.drop_mtp || answers.drop_vision, "--drop");
  refuse(answers.drop_optimizer, "--optimizer");
  refuse(answers.naming.has_value(), "--from-naming");
  refuse(answers.glu || answers.shared_glu || answers.optimizer_glu, "--from-glu");
}

void view_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  const ReadAdapter adapter = read_adapter(*source, answers);
  const AdapterConfig& config = adapter.config;
  const LayAnswers lay = lay_answers(answers, adapter.architecture.get());
  if (config.is_dora && (lay.program == "vllm" || lay.program == "sglang"))
    fail(ErrorCode::NotSupported, {},
         "the adapter is DoRA (use_dora), and {} takes none: `glu-ckpt convert MODEL DST --merge ADAPTER` puts it into "
         "the model",
         lay.program == "vllm" ? "vLLM" : "SGLang");
  if (lay.layout != AdapterLayout::Indexed && adapter.base.empty()) fail_no_config(config);
  LaidAdapter laid = lay_out_adapter(*source, config, adapter.modules, adapter.naming, adapter.architecture.get(), lay);
  Plan plan = plan_of(laid);
  const bool with_scales = answers.adapter_layout.empty();
  const Constants constants = with_scales ? add_scales(laid.modules, config, plan) : Constants();
  CheckpointInfo info = source->info();
  if (with_scales || !is_as_stored(laid, source->inventory())) info.recast_tensors = std::ssize(plan.outputs);
  info.laid_out_from = {{"experts", std::string(adapter_experts(source->inventory()))}};
  info.warnings.insert(info.warnings.end(), laid.notes.begin(), laid.notes.end());
  if (!adapter.base.empty()) info.record["config"] = adapter.base;
  info.record.erase(std::string(kLoraFiles));
  if (lay.layout == AdapterLayout::Packed) info.record.emplace(kLoraFiles, packed_files_word(lay.files));
  laid.tensors.clear();
  for (ExtraFile& file : info.extra_files)
    if (file.name == kAdapterConfigName)
      file.edit = [config, laid](std::string_view stored) { return laid_config(std::string(stored), config, laid); };
  source = lay_out_source(std::move(source), std::move(plan), std::move(info), constants);
}

}  // namespace glu_ckpt
