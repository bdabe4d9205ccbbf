#include "model/stored_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "arch/dense_table.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/readable.hpp"
#include "families/config_fields.hpp"
#include "format/checkpoint_files.hpp"
#include "format/optimizer_parts.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "layout/optimizer_names.hpp"
#include "model/saved_arguments.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

/// The value of a word in one of the checkpoint's JSON files; none where the file is not there, too large or no JSON.
std::optional<std::string> word_in(const Source& source, std::string_view file, std::string_view word) {
  constexpr i64 kMaxBytes = i64{1} << 20;
  const auto& files = source.extra_files();
  const auto found = std::ranges::find(files, file, &ExtraFile::name);
  if (found == files.end()) return std::nullopt;
  try {
    constexpr std::size_t kMaxDepth = 64;
    const JsonDocument document(read_small_file(found->path, kMaxBytes, ErrorCode::ConfigJson), kMaxDepth);
    if (document.fault()) return std::nullopt;
    const auto value = document.root().find<std::string_view>(word);
    return value ? std::optional(printable(*value)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string other_model_text(const Source& source) {
  const auto& files = source.extra_files();
  if (std::ranges::find(files, "adapter_config.json", &ExtraFile::name) != files.end()) {
    const std::string base = word_in(source, "adapter_config.json", "base_model_name_or_path").value_or("");
    return fmt::format(
        "adapter_config.json makes it an adapter (LoRA), which is loaded beside the model that it is for{}; "
        "to convert both, merge it first: `convert BASE OUT --merge` and this directory",
        base.empty() ? "" : ", " + base);
  }
  if (const auto part = word_in(source, "config.json", "_class_name"))
    return fmt::format("config.json makes it a part of a pipeline of diffusers ({}), which glu-ckpt does not convert",
                       *part);
  return {};
}

StoredModel stored_model(const Source& source, const ModelHints& hints, const Recognition& model) {
  StoredModel stored;
  stored.layout = model.layout;
  stored.has_rest = !model.others.empty() && lone_shard_text(source).empty();
  stored.model_type = hints.model_type;
  stored.text_model_type = hints.text_model_type;
  stored.in_memory = model.in_memory;
  stored.says_experts = hints.num_experts.value_or(0) > 0;
  stored.architecture = model.architecture.get();
  stored.no_architecture = model.no_architecture;
  stored.is_trained = !hints.trained.args.empty() || !hints.trained.glu.empty();
  stored.unread_form = unread_form(model.blocks);
  stored.quant_method = read_quant_config(hints.config).method;
  const auto is_code_matrix = [](const TensorRef& tensor) {
    return tensor.shape.size() > 1 && holds_codes(tensor.dtype);
  };
  stored.quantized = holds_codes(model.blocks) ||
                     (!stored.quant_method.empty() && std::ranges::any_of(source.inventory().tensors, is_code_matrix));
  if (!model.misfits.empty()) stored.not_whole = "config.json contradicts the tensors";
  if (std::string text = lone_shard_text(source); !text.empty()) stored.not_whole = std::move(text);
  if (const std::vector<std::string> flaws = run_flaw_texts(source, hints); !flaws.empty())
    stored.not_whole = flaws.front();
  if (const std::vector<std::string> bare = bare_code_texts(source.inventory(), model); !bare.empty())
    stored.not_whole = bare.front();
  stored.is_other = other_model_text(source);
  return stored;
}

LoadsIn loads_in(const Source& source, const ModelHints& hints, const Recognition& model, bool quantized) {
  StoredModel stored = stored_model(source, hints, model);
  for (const ExpertBlock& block : model.blocks)
    if (!block.is_optimizer_state()) stored.experts.push_back(stored_as(block));
  stored.format = to_string(source.format());
  if (!model.wrapper.empty())
    stored.why_no_rest = fmt::format("all keys begin with '{}', behind which programs do not look", model.wrapper);
  const auto& files = source.extra_files();
  stored.has_args = std::ranges::any_of(files, is_megatron_args, &ExtraFile::name);
  // One beside a file that was given alone is none of its own, but programs find it.
  stored.has_config = is_directory_at(source.path())
                          ? std::ranges::find(files, "config.json", &ExtraFile::name) != files.end()
                          : !source.hints().config.empty();
  if (model.dense_naming != nullptr && stored.why_no_rest == StoredModel().why_no_rest)
    stored.rest = model.dense_naming->name;
  if (const std::vector<std::string> doubts = file_doubts(source, hints); !doubts.empty())
    stored.not_whole = doubts.front();
  if (stored.not_whole.empty()) stored.not_whole = lone_shard_text(source);
  // Megatron-LM loads what it saved.
  if (stored.not_whole.empty() && stored.is_other.empty()) stored.is_other = unjoined_ranks_text(source.inventory());
  if (stored.not_whole.empty()) stored.not_whole = why_not_whole(model, stored.rest, true);
  stored.quantized |= quantized;
  return loads_in(stored);
}

std::string why_not_whole(const Recognition& model, std::string_view rest, bool keeps_keys) {
  using Kind = ModelFlaw::Kind;
  const auto counts = [&](const ModelFlaw& flaw) {
    return flaw.kind == Kind::Broken || flaw.kind == Kind::Unread || (flaw.kind == Kind::OtherPrefix && keeps_keys) ||
           ((flaw.kind == Kind::ExtraMtp || flaw.kind == Kind::Beside || flaw.kind == Kind::Alone) && rest == "hf");
  };
  const auto flaw = std::ranges::find_if(model.flaws, counts);
  return flaw == model.flaws.end() ? std::string() : flaw->text;
}

namespace {

/// The ranks in the name of a directory such as mp_rank_01_002.
std::vector<i64> ranks_in(std::string_view name) {
  std::vector<i64> ranks;
  while (!name.empty()) {
    i64 rank = 0;
    const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), rank);
    if (fault != std::errc()) return {};
    ranks.push_back(rank);
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    if (!name.empty() && name.front() != '_') return {};
    if (!name.empty()) name.remove_prefix(1);
  }
  return ranks;
}

/// The directories of ranks that hold files of the checkpoint.
std::set<std::vector<i64>> ranks_of(const Source& source) {
  constexpr std::string_view kPrefix = "mp_rank_";
  std::set<std::vector<i64>> ranks;
  const auto add = [&](std::string_view file) {
    if (!file.starts_with(kPrefix)) return;
    const std::string_view behind = file.substr(kPrefix.size());
    ranks.insert(ranks_in(behind.substr(0, behind.find('/'))));
  };
  for (const std::string& file : source.inventory().files) add(file);
  for (const TorchTree& tree : source.structure().trees) add(tree.file);
  return ranks;
}

}  // namespace

/// Megatron names a directory after the ranks of tensor, pipeline and expert parallelism, the latter two where there
/// are several.
std::string missing_ranks_text(const Source& source, const ModelHints& hints) {
  const std::set<std::vector<i64>> found = ranks_of(source);
  if (found.empty() || hints.trained.args.empty()) return {};
  const ConfigFields args(hints.trained.args);
  constexpr i64 kMost = 1 << 16;
  const auto size_of = [&](std::string_view name) {
    return std::clamp<i64>(args.integer({name}).value_or(1), 1, kMost);
  };
  const i64 tensor = size_of("tensor_model_parallel_size"), pipeline = size_of("pipeline_model_parallel_size");
  const i64 expert = size_of("expert_model_parallel_size");
  // Experts that are cut in another way than the rest have not all pairs of ranks.
  const i64 expert_tensor = args.integer({"expert_tensor_parallel_size"}).value_or(tensor);
  std::vector<std::pair<std::string_view, i64>> axes{{"tensor", tensor}};
  if (pipeline > 1) axes.emplace_back("pipeline", pipeline);
  if (expert > 1) axes.emplace_back("expert", expert);
  std::string said;
  i64 all = 1;
  for (const auto& [name, size] : axes) {
    all *= size;
    said += fmt::format("{}{}_model_parallel_size {}", said.empty() ? "" : ", ", name, size);
  }
  if (expert_tensor != tensor) all = std::max({tensor, expert}) * pipeline;
  if (std::ssize(found) >= all) return {};
  std::string missing;
  for (std::size_t axis = 0; axis < axes.size() && missing.empty(); ++axis)
    for (i64 rank = 0; rank < axes[axis].second && missing.empty(); ++rank)
      if (std::ranges::none_of(found, [&](const auto& ranks) { return ranks.size() > axis && ranks[axis] == rank; }))
        missing = fmt::format("; there is none of {} rank {}", axes[axis].first, rank);
  return fmt::format(
      "the arguments that the trainer saved say {}, which makes {} ranks with a directory each (mp_rank_*), and {} {} "
      "here{}",
      said, all, found.size(), found.size() == 1 ? "is" : "are", missing);
}

bool lacks_promised_mtp(const Recognition& model) {
  const Architecture* const architecture = model.architecture.get();
  return architecture != nullptr && architecture->mtp_layers > 0 &&
         std::ranges::none_of(model.dense, [](const DenseMatrix& matrix) { return matrix.stack == "mtp"; });
}

std::vector<std::string> file_doubts(const Source& source, const ModelHints& hints) {
  std::vector<std::string> texts = source.info().warnings;
  if (std::string text = missing_ranks_text(source, hints); !text.empty()) texts.push_back(std::move(text));
  return texts;
}

std::vector<std::string> missing_tower_texts(const Recognition& model) {
  std::vector<std::string> texts;
  for (const ModelFlaw& flaw : model.flaws)
    if (flaw.kind == ModelFlaw::Kind::Alone) texts.push_back(flaw.text);
  return texts;
}

std::vector<std::string> flaw_texts(const Source& source, const ModelHints& hints, const Recognition& model,
                                    bool keeps_keys) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> texts = file_doubts(source, hints);
  // One shard of several is known to be a part.
  if (!lone_shard_text(source).empty()) return texts;
  const auto broken = std::ranges::find(model.flaws, ModelFlaw::Kind::Broken, &ModelFlaw::kind);
  if (lacks_promised_mtp(model) || broken != model.flaws.end())
    for (const std::string& name : source.left_out())
      if (name.ends_with(".safetensors") && !name.starts_with("consolidated"))
        texts.push_back(fmt::format(
            "{} is in no index, and the model is not whole without tensors that it may hold ({}): programs that go by "
            "the index do not read it. Add its tensors to the weight_map of the index",
            name,
            broken == model.flaws.end() ? fmt::format("{} of config.json", model.architecture->mtp_field)
                                        : broken->text));
  std::ranges::move(listed_order_texts(source, hints, model), std::back_inserter(texts));
  std::size_t flaws = 0;
  const auto add = [&](const std::string& text) {
    if (++flaws <= kShown) texts.push_back(text);
  };
  using Kind = ModelFlaw::Kind;
  for (const ModelFlaw& flaw : model.flaws)
    if (flaw.kind != Kind::NotMoved && flaw.kind != Kind::Alone && (keeps_keys || flaw.kind != Kind::OtherPrefix))
      add(flaw.text);
  for (const std::string& text : run_flaw_texts(source, hints)) add(text);
  if (flaws > kShown) texts.push_back(fmt::format("{} more such faults of the model are not listed", flaws - kShown));
  return texts;
}

namespace {

std::filesystem::path dangling_path(const Source& source, const std::string& name) {
  const std::filesystem::path directory =
      is_directory_at(source.path()) ? source.path() / source.structure().iteration_dir : directory_of(source.path());
  return (directory / name).lexically_normal();
}

std::string dangling_text(const std::filesystem::path& path) {
  return fmt::format("{} is a symlink to a file that is not there; is the download complete?", path.string());
}

}  // namespace

std::vector<std::string> dangling_texts(const Source& source) {
  std::vector<std::string> texts;
  for (const std::string& name : source.info().dangling) texts.push_back(dangling_text(dangling_path(source, name)));
  return texts;
}

void require_config(const Source& source) {
  for (const std::string& name : source.info().dangling) {
    const bool is_read = name == "config.json" || (name_in_hf(name) == "config.json" && source.hints().config.empty());
    if (!is_read) continue;
    const std::filesystem::path path = dangling_path(source, name);
    fail(ErrorCode::NotFound, {path.string(), {}}, "{}", dangling_text(path));
  }
}

std::vector<std::string> optimizer_part_texts(const Source& source) {
  std::vector<std::string> texts;
  for (const OptimizerPart& part : find_optimizer_parts(source.info()))
    texts.push_back(fmt::format(
        "'{}' holds optimizer state{} that does not say which parameters it belongs to, and that no tensor holds; the "
        "layout cannot change while it is there (--optimizer drop leaves it out{})",
        part.name, part.keys.empty() ? "" : fmt::format(" ({})", part.keys),
        part.kind == OptimizerPart::Kind::File ? "" : ", or save once with --dist-ckpt-optim-fully-reshardable"));
  return texts;
}

std::string lone_shard_text(const Source& source) {
  if (is_directory_at(source.path())) return {};
  const std::size_t shards = shards_promised(source.path().filename().string());
  if (shards < 2) return {};
  return fmt::format(
      "{}: is one of {} shards by its name, and holds a part of a model; give the directory that all of "
      "them are in for the whole one",
      source.path().string(), shards);
}

}  // namespace glu_ckpt
