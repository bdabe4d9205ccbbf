#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "families/dense_rows.hpp"
#include "format/model_config.hpp"
#include "layout/optimizer_names.hpp"
#include "model/laid_out_source.hpp"
#include "model/part_config.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "quant/quantization_files.hpp"

namespace glu_ckpt {
namespace {

/// DeepSeek-V4's experts of each token of the vocabulary.
constexpr std::string_view kExpertsOfTokens = "tid2eid";

/// A tensor of a part: one of the source's, or those of the slabs along its first axis that are left.
struct PartTensor {
  std::size_t stored = 0;
  /// null: all of it.
  const std::vector<i64>* slabs = nullptr;
  i64 slab_bytes = 0;
  /// Its bytes, where they are others than the source's.
  std::vector<std::byte> made{};
};

/// Some tensors of a source, under other names.
class PartSource final : public WrappedSource {
 public:
  PartSource(CheckpointInfo info, std::vector<PartTensor> tensors, KeptExperts kept)
      : WrappedSource(std::move(info)), tensors_(std::move(tensors)), kept_(std::move(kept)) {}

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    const PartTensor& part = tensors_.at(tensor);
    if (!part.made.empty()) {
      for (const std::span<std::byte> piece : pieces) {
        std::copy_n(part.made.begin() + offset, piece.size(), piece.begin());
        offset += std::ssize(piece);
      }
      return;
    }
    if (part.slabs == nullptr) return stored().read_scattered(part.stored, offset, pieces);
    for (std::span<std::byte> piece : pieces)
      for (; !piece.empty();) {
        const std::span<std::byte> run = piece.first(std::min(piece.size(), run_bytes(part, offset)));
        const i64 slab = (*part.slabs)[static_cast<std::size_t>(offset / part.slab_bytes)];
        stored().read(part.stored, slab * part.slab_bytes + offset % part.slab_bytes, run);
        piece = piece.subspan(run.size());
        offset += std::ssize(run);
      }
  }

 private:
  /// Bytes from there on that follow each other in the source.
  static std::size_t run_bytes(const PartTensor& part, i64 offset) {
    auto slab = static_cast<std::size_t>(offset / part.slab_bytes);
    i64 end = static_cast<i64>(slab + 1) * part.slab_bytes;
    for (; slab + 1 < part.slabs->size() && (*part.slabs)[slab + 1] == (*part.slabs)[slab] + 1; ++slab)
      end += part.slab_bytes;
    return static_cast<std::size_t>(end - offset);
  }

  std::vector<PartTensor> tensors_;
  /// What `slabs` of the tensors point to.
  KeptExperts kept_;
};

/// Chooses and renames the tensors of a part.
class PartMaker {
 public:
  PartMaker(const Source& source, const ModelHints& hints, const Recognition& model, const SourceAnswers& answers)
      : source_(source), hints_(hints), model_(model), answers_(answers) {
    part_.of = part_.count = model.architecture->layers;
    part_.drops_mtp = answers.drop_mtp;
    if (!answers.layers.empty()) read_layers();
    prefix_ = model.dense_root + std::string(model.dense_naming->layers);
    find_mtp();
    if (answers.drop_vision) find_language();
    part_.experts = part_.experts_of = model.architecture->num_experts;
    part_.family = model.architecture->family;
    if (!answers.keep_experts.empty()) choose_experts();
  }

  std::unique_ptr<PartSource> make() {
    CheckpointInfo info = source_.info();
    std::vector<PartTensor> made;
    info.inventory = {{}, source_.inventory().files, false};
    const std::vector<std::size_t> decoded = std::exchange(info.decoded_weights, {});
    for (std::size_t i = 0; i < source_.inventory().tensors.size(); ++i) {
      const std::optional<std::string> name = name_of(i);
      if (!name) continue;
      TensorRef tensor = source_.inventory().tensors[i];
      tensor.name = *name;
      PartTensor part{i};
      if (const auto cut = cuts_.find(i); cut != cuts_.end()) {
        part.slabs = cut->second;
        part.slab_bytes = tensor.bytes / tensor.shape[0];
        tensor.shape[0] = part_.experts;
        tensor.bytes = part_.experts * part.slab_bytes;
      }
      if (const auto table = tables_.find(i); table != tables_.end()) part.made = std::move(table->second);
      if (std::ranges::binary_search(decoded, i)) info.decoded_weights.push_back(made.size());
      info.inventory.tensors.push_back(std::move(tensor));
      made.push_back(std::move(part));
    }
    edit(info);
    check_kinds(info.hints.config);
    if (!kept_.empty()) {
      check_routing(info.hints.config);
      if (std::string mixed = mixed_groups(info.hints.config); !mixed.empty())
        info.warnings.push_back(std::move(mixed));
    }
    return std::make_unique<PartSource>(std::move(info), std::move(made), std::move(kept_));
  }

 private:
  /// "3" or "0-3".
  void read_layers() {
    const std::string& text = answers_.layers;
    const std::size_t dash = text.find('-');
    const auto first = parse_number<i64>(text.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_number<i64>(text.substr(dash + 1));
    if (!first || !last || *last < *first)
      fail(ErrorCode::Usage, {}, "--layers {}: layers that follow each other are expected, such as 0-3", text);
    if (*last >= part_.of)
      fail(ErrorCode::LayerMissing, {source_.path().string(), {}}, "{}: --layers {}: the model has layers 0 to {}",
           source_.path().string(), text, part_.of - 1);
    part_.first = *first;
    part_.count = *last - *first + 1;
  }

  /// The number of the layer that a name has, and where it stands.
  struct Numbered {
    i64 layer = 0;
    std::size_t end = 0;
  };
  std::optional<Numbered> layer_of(const std::string& name) const {
    if (!name.starts_with(prefix_)) return std::nullopt;
    const std::size_t end = name.find('.', prefix_.size());
    if (end == std::string::npos) return std::nullopt;
    const auto layer = parse_number<i64>(name.substr(prefix_.size(), end - prefix_.size()));
    return layer ? std::optional(Numbered{*layer, end}) : std::nullopt;
  }

  void find_mtp() {
    for (const ExpertBlock& block : model_.blocks)
      if (block.stack.starts_with("mtp"))
        for (const Matrix& matrix : block.matrices) mtp_.insert(matrix.tensor);
    for (const DenseMatrix& matrix : model_.dense)
      if (matrix.stack == "mtp") mtp_.insert(matrix.matrix.tensor);
    if (part_.drops_mtp && mtp_.empty() && model_.architecture->mtp_layers == 0)
      fail(ErrorCode::LayerMissing, {source_.path().string(), {}},
           "{}: --drop mtp: the model has no multi-token prediction", source_.path().string());
  }

  /// Finds the tensors of the language model inside a multimodal one.
  void find_language() {
    const std::string& root = model_.dense_root;
    const std::string_view own = model_.architecture->family->root;
    if (language_config(hints_.config, *model_.architecture->family, {}, {}) == hints_.config)
      fail(ErrorCode::LayerMissing, {source_.path().string(), {}},
           "{}: --drop vision: the model is a language model alone, as config.json has no text_config",
           source_.path().string());
    for (const ExpertBlock& block : model_.blocks)
      if (block.stack == "decoder" || block.stack.starts_with("mtp"))
        for (const Matrix& matrix : block.matrices) language_.insert(matrix.tensor);
    for (const std::size_t tensor : dense_tensors(model_)) language_.insert(tensor);
    for (std::size_t i = 0; i < source_.inventory().tensors.size(); ++i)
      if (source_.inventory().tensors[i].name.starts_with(root)) language_.insert(i);
    if (root.ends_with(own)) front_ = root.substr(0, root.size() - own.size());
  }

  /// The name that a language model by itself has for a tensor.
  std::string as_language(std::string name) const {
    if (!answers_.drop_vision) return name;
    if (name.starts_with(model_.dense_root))
      return std::string(model_.architecture->family->root) + name.substr(model_.dense_root.size());
    return name.starts_with(front_) ? name.substr(front_.size()) : name;
  }

  // ---- experts ----------------------------------------------------------------------------------

  void choose_experts() {
    std::vector<const ExpertBlock*> blocks;
    std::set<std::string> left_out;
    for (const ExpertBlock& block : model_.blocks) {
      if (block.is_optimizer_state()) fail_optimizer();
      const bool is_decoder = block.stack == "decoder";
      if (block.set != ExpertSet::Routed || !(is_decoder || block.stack.starts_with("mtp"))) continue;
      blocks.push_back(&block);
      if (is_decoder ? block.layer < part_.first || block.layer >= part_.first + part_.count : part_.drops_mtp)
        left_out.insert(layer_label(block));
    }
    if (!model_.buckets.empty()) fail_optimizer();
    if (std::ranges::all_of(blocks, [&](const ExpertBlock* block) { return left_out.contains(layer_label(*block)); }))
      fail(ErrorCode::NoExperts, {source_.path().string(), {}}, "{}: --keep-experts {}: the {} has no routed experts",
           source_.path().string(), answers_.keep_experts, blocks.empty() ? "model" : "part");
    kept_ = read_kept_experts(answers_.keep_experts, blocks, part_.of, left_out);
    part_.experts = std::ssize(kept_.begin()->second);
    for (const ExpertBlock* block : blocks)
      if (const std::vector<i64>* const kept = kept_of(layer_label(*block))) cut_experts(*block, *kept);
    for (const DenseMatrix& matrix : model_.dense)
      if (matrix.role == DenseRole::Router || matrix.role == DenseRole::CorrectionBias)
        cut(matrix.matrix.tensor, kept_of(layer_label(matrix)));
    cut_others();
  }

  [[noreturn]] void fail_optimizer() const {
    fail_asking(
        {"--optimizer"}, ErrorCode::NotSupported, {source_.path().string(), {}},
        "{}: --keep-experts takes experts out of the weights, not out of the optimizer's states; --optimizer drop "
        "leaves those out",
        source_.path().string());
  }

  const std::vector<i64>* kept_of(const std::string& label) const {
    const auto found = kept_.find(label);
    return found == kept_.end() ? nullptr : &found->second;
  }

  /// A tensor of one expert goes, or gets the expert's new number; one of all of them keeps some of its slabs.
  void cut_experts(const ExpertBlock& block, const std::vector<i64>& kept) {
    std::map<std::size_t, std::set<i64>> experts;
    for (const Matrix& matrix : block.matrices) experts[matrix.tensor].insert(matrix.expert);
    for (const BoundTensor& bound : model_.bound)
      if (const auto owner = experts.find(bound.weight); owner != experts.end()) experts[bound.tensor] = owner->second;
    for (const auto& [tensor, of] : experts) {
      if (of.size() != 1) {
        cut(tensor, &kept);
        continue;
      }
      const auto at = std::ranges::find(kept, *of.begin());
      const std::string& name = source_.inventory().tensors[tensor].name;
      if (at == kept.end())
        renamed_[tensor] = std::string();
      else
        renamed_[tensor] = renumbered(name, block.key_prefix.size(), *of.begin(), at - kept.begin());
    }
  }

  /// The name with another number of its expert, the first one behind the layer's.
  static std::string renumbered(const std::string& name, std::size_t from, i64 old_number, i64 new_number) {
    const std::string word = fmt::format(".{}.", old_number);
    const std::size_t at = name.find(word, from == 0 ? 0 : from - 1);
    if (at == name.npos)
      fail(ErrorCode::NotSupported, {{}, name}, "'{}': the number of its expert is not found in its name", name);
    return fmt::format("{}.{}.{}", name.substr(0, at), new_number, name.substr(at + word.size()));
  }

  void cut(std::size_t tensor, const std::vector<i64>* kept) {
    if (kept == nullptr) return;
    const TensorRef& stored = source_.inventory().tensors[tensor];
    // One value for all experts is theirs, however many are left.
    if (stored.shape.empty() || (stored.shape.size() == 1 && stored.shape[0] == 1 && part_.experts_of > 1)) return;
    if (stored.shape[0] != part_.experts_of || stored.bytes % stored.shape[0] != 0)
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' {}: --keep-experts takes experts along the first axis, which has {} here", stored.name,
           shape_text(stored.shape), part_.experts_of);
    cuts_[tensor] = kept;
  }

  /// Tensors beside the experts that count experts: a router's bias of a family that has none, and what nobody knows.
  void cut_others() {
    const std::vector<std::size_t> known = dense_tensors(model_);
    for (const IdleTensor& idle : model_.idle)
      if (const TensorRef& tensor = source_.inventory().tensors[idle.tensor];
          !tensor.shape.empty() && tensor.shape[0] == part_.experts_of)
        cut(idle.tensor, kept_of(label_of(tensor.name)));
    for (const std::size_t index : model_.others) {
      const TensorRef& tensor = source_.inventory().tensors[index];
      const std::string label = label_of(tensor.name);
      if (std::ranges::binary_search(known, index) || renamed_.contains(index) || cuts_.contains(index) ||
          kept_of(label) == nullptr)
        continue;
      if (tensor.name.ends_with(kExpertsOfTokens)) {
        renumber_table(index, *kept_of(label));
        continue;
      }
      const auto has = [&](std::string_view word) { return tensor.name.find(word) != std::string::npos; };
      if (has("expert") || has("router") || has("gate") || has("eid"))
        fail(ErrorCode::NotSupported, {{}, tensor.name},
             "'{}' {}: it seems to count experts of layer {}, and no rule says how, so it would still have those that "
             "--keep-experts takes out",
             tensor.name, shape_text(tensor.shape), label);
    }
  }

  /// A table that names experts by their numbers names them by their new ones.
  void renumber_table(std::size_t index, const std::vector<i64>& kept) {
    const TensorRef& table = source_.inventory().tensors[index];
    if (table.dtype != Dtype::I64 && table.dtype != Dtype::I32)
      fail(ErrorCode::NotSupported, {{}, table.name}, "'{}' is {}: numbers of experts are I64 or I32", table.name,
           dtype_name(table.dtype));
    std::vector<std::byte> bytes(static_cast<std::size_t>(table.bytes));
    source_.read(index, 0, bytes);
    std::vector<i64> numbers(static_cast<std::size_t>(part_.experts_of), -1);
    for (i64 i = 0; i < std::ssize(kept); ++i) numbers[static_cast<std::size_t>(kept[static_cast<std::size_t>(i)])] = i;
    const auto size = static_cast<std::size_t>(dtype_bits(table.dtype) / 8);
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      // Little-endian, so that the short number is the first half of the long one.
      i64 expert = 0;
      std::memcpy(&expert, bytes.data() + at, size);
      const bool is_kept = expert >= 0 && expert < part_.experts_of && numbers[static_cast<std::size_t>(expert)] >= 0;
      if (!is_kept)
        fail(ErrorCode::ExpertMissing, {{}, table.name},
             "'{}' {}: its number {} is {}, which is no expert of layer {} that --keep-experts keeps: keep those that "
             "it "
             "names",
             table.name, shape_text(table.shape), at / size, expert, label_of(table.name));
      std::memcpy(bytes.data() + at, &numbers[static_cast<std::size_t>(expert)], size);
    }
    tables_[index] = std::move(bytes);
  }

  /// The label of the layer in a name; may be empty.
  std::string label_of(const std::string& name) const {
    const auto numbered = layer_of(name);
    if (!numbered) return {};
    return numbered->layer < part_.of ? fmt::format("{}", numbered->layer)
                                      : fmt::format("mtp.{}", numbered->layer - part_.of);
  }

  /// A router chooses among the experts that are left as it is told to.
  void check_routing(const std::string& config) const {
    const ConfigFields fields(config);
    const std::string where = source_.path().string();
    if (read_architecture(config)->num_experts != part_.experts)
      fail(ErrorCode::NotSupported, {where, {}},
           "{}: config.json has no field that says that each layer has {} experts, not {}", where, part_.experts,
           part_.experts_of);
    constexpr std::array<std::string_view, 3> top_k = {"num_experts_per_tok", "moe_topk", "moe_k"};
    const i64 chosen = fields.integer(top_k).value_or(1);
    if (chosen > part_.experts)
      fail(ErrorCode::NotSupported, {where, {}},
           "{}: --keep-experts keeps {} of each layer, and the router chooses {} ({}): keep as many at least", where,
           part_.experts == 1 ? "1 expert" : fmt::format("{} experts", part_.experts), chosen, fields.spelling(top_k));
    const i64 groups = std::max<i64>(fields.integer({"n_group"}).value_or(1), 1);
    const i64 chosen_groups = std::max<i64>(fields.integer({"topk_group"}).value_or(groups), 1);
    if (groups == 1) return;
    if (part_.experts % groups != 0)
      fail(ErrorCode::NotDivisible, {where, {}},
           "{}: --keep-experts keeps {} experts of each layer, and the router has {} groups of as many each (n_group): "
           "keep a multiple of {}",
           where, part_.experts, groups, groups);
    // Groups are ranked by the sum of the scores of their two best.
    if (model_.architecture->corrected_router && part_.experts / groups < 2)
      fail(ErrorCode::NotSupported, {where, {}},
           "{}: --keep-experts keeps {} experts of each layer, and the router ranks each of its {} groups (n_group) by "
           "two of its experts: keep {} at least",
           where, part_.experts, groups, 2 * groups);
    if (chosen > chosen_groups * (part_.experts / groups))
      fail(ErrorCode::NotSupported, {where, {}},
           "{}: --keep-experts keeps {} experts of each layer, and the router chooses {} ({}) out of {} groups "
           "(topk_group) of {}: keep {} at least",
           where, part_.experts, chosen, fields.spelling(top_k), chosen_groups, part_.experts / groups,
           (chosen + chosen_groups - 1) / chosen_groups * groups);
  }

  /// A router that first chooses groups chooses among others where an expert comes into another group. Says so.
  std::string mixed_groups(const std::string& config) const {
    const i64 groups = std::max<i64>(ConfigFields(config).integer({"n_group"}).value_or(1), 1);
    const i64 old_size = part_.experts_of / groups, new_size = part_.experts / groups;
    for (const auto& [label, experts] : kept_)
      for (i64 e = 0; e < std::ssize(experts); ++e)
        if (const i64 old = experts[static_cast<std::size_t>(e)]; old / old_size != e / new_size)
          return fmt::format(
              "the router chooses groups of experts first (n_group {}), and expert {} of layer {} comes from group {} "
              "to "
              "group {}, among others: keep {} experts of each group, in order, for the choice to stay what it was",
              groups, old, label, old / old_size, e / new_size, new_size);
    return {};
  }

  /// "experts 0-7 of 64"; of different ones a fingerprint, for they may be thousands.
  std::string experts_text() const {
    const auto is_first = [&](const auto& entry) { return entry.second == kept_.begin()->second; };
    if (std::ranges::all_of(kept_, is_first))
      return fmt::format("experts {} of {}", expert_list_text(kept_.begin()->second), part_.experts_of);
    std::string all;
    for (const auto& [label, experts] : kept_) all += fmt::format("{}: {}\n", label, expert_list_text(experts));
    return fmt::format("{} of {} experts of each layer, other ones of each (list {})", part_.experts, part_.experts_of,
                       hex(hash128(std::as_bytes(std::span(all)), 0)));
  }

  // ---- names ------------------------------------------------------------------------------------

  /// The name in the part; none of what is left out.
  std::optional<std::string> name_of(std::size_t tensor) const {
    const auto other = renamed_.find(tensor);
    const std::string& name = other != renamed_.end() ? other->second : source_.inventory().tensors[tensor].name;
    if (name.empty()) return std::nullopt;
    if (!is_optimizer_tensor(name)) return key_of(name, tensor);
    // What is left out as a whole needs no names.
    if (answers_.drop_optimizer) return name;
    if (answers_.drop_vision || is_bucket_key(name) || is_unnamed_state_key(name)) fail_state(name);
    for (const StateKey& state : read_state_key(name))
      if (const std::string key(state.model_key); layer_of(key) || key.starts_with("mtp.")) {
        const std::optional<std::string> made = key_of(key, tensor);
        return made ? std::optional(fmt::format("{}{}{}", state.before, *made, state.after)) : std::nullopt;
      }
    return name;
  }

  [[noreturn]] void fail_state(const std::string& name) const {
    fail_asking(
        {"--optimizer"}, ErrorCode::OptimizerBuckets, {{}, name},
        "'{}': the optimizer's state does not say by its names which of it is this part's; --optimizer drop leaves it "
        "out",
        name);
  }

  std::optional<std::string> key_of(const std::string& name, std::size_t tensor) const {
    const auto numbered = layer_of(name);
    const bool is_mtp = mtp_.contains(tensor) || (numbered && numbered->layer >= part_.of) || name.starts_with("mtp.");
    if (is_mtp && part_.drops_mtp) return std::nullopt;
    if (answers_.drop_vision && !language_.contains(tensor)) return std::nullopt;
    if (!numbered) return as_language(name);
    i64 layer = numbered->layer - part_.first;
    if (numbered->layer >= part_.of)
      layer = numbered->layer - part_.of + part_.count;
    else if (layer < 0 || layer >= part_.count)
      return std::nullopt;
    return as_language(fmt::format("{}{}{}", prefix_, layer, name.substr(numbered->end)));
  }

  /// What says of modules by their layers how they are quantized would say it of other ones.
  void check_unnamed() const {
    const auto names_modules = [](const ExtraFile& file) { return is_quantization_file(file.name); };
    if (counts_experts_anew() &&
        (names_experts(hints_.config) || std::ranges::any_of(source_.extra_files(), names_modules)))
      fail(ErrorCode::NotSupported, {source_.path().string(), {}},
           "{}: its configuration names modules by their experts, and --keep-experts would count those anew; "
           "--keep-experts 0-{} keeps their numbers",
           source_.path().string(), part_.experts - 1);
    if (part_.first == 0 || (hints_.config.find("layers.") == std::string::npos &&
                             std::ranges::none_of(source_.extra_files(), names_modules)))
      return;
    fail(ErrorCode::NotSupported, {source_.path().string(), {}},
         "{}: its configuration names modules by their layers, and --layers {} would count those anew; --layers 0-{} "
         "keeps their numbers",
         source_.path().string(), answers_.layers, part_.first + part_.count - 1);
  }

  bool counts_experts_anew() const {
    return std::ranges::any_of(kept_, [](const auto& entry) {
      for (std::size_t i = 0; i < entry.second.size(); ++i)
        if (entry.second[i] != static_cast<i64>(i)) return true;
      return false;
    });
  }

  static bool names_experts(const std::string& config) {
    constexpr std::string_view kWord = "experts.";
    for (std::size_t at = config.find(kWord); at != config.npos; at = config.find(kWord, at + 1))
      if (at + kWord.size() < config.size() && config[at + kWord.size()] >= '0' && config[at + kWord.size()] <= '9')
        return true;
    return false;
  }

  void edit(CheckpointInfo& info) const {
    check_unnamed();
    const auto change = [part = part_, alone = answers_.drop_vision, type = model_.architecture->model_type,
                         root = model_.dense_root](std::string_view text) {
      const std::string made = part_config(text, part);
      return alone ? language_config(made, *part.family, type, root) : made;
    };
    if (answers_.drop_vision)
      std::erase_if(info.extra_files,
                    [](const ExtraFile& file) { return file.name.ends_with("processor_config.json"); });
    edit_config(info, change);
    ModelHints hints = parse_config(change(hints_.config), source_.path().string());
    hints.config_is_made = hints_.config_is_made;
    info.hints = std::move(hints);
    info.respelled = true;
    for (const char* key : {"digest", "source_digest", "num_hidden_layers", "config"}) info.record.erase(key);
    std::string said;
    // All layers are no part: the record then says nothing of one.
    const bool has_all_layers = part_.count == part_.of;
    if (!answers_.layers.empty() && !has_all_layers) {
      said = part_.count == 1 ? fmt::format("layer {} alone, of {}", part_.first, part_.of)
                              : fmt::format("layers {} of {}", answers_.layers, part_.of);
      if (!mtp_.empty() && !part_.drops_mtp) said += ", with multi-token prediction";
    }
    if (!kept_.empty()) said += fmt::format("{}{}", said.empty() ? "" : ", ", experts_text());
    if (part_.drops_mtp) said += fmt::format("{}without multi-token prediction", said.empty() ? "" : ", ");
    if (answers_.drop_vision) said += fmt::format("{}the language model alone", said.empty() ? "" : ", ");
    // Of a part of a part the options would be about the first part.
    info.record.erase("part_options");
    if (said.empty()) return;
    if (!info.record.contains("part")) info.record["part_options"] = options_text();
    info.record["part"] = said;
  }

  /// The options with which `verify` takes the same part of the source.
  std::string options_text() const {
    std::string text;
    const auto add = [&](std::string_view option, std::string_view value) {
      if (!value.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : " ", option, value);
    };
    add("--from-layers", answers_.layers);
    add("--keep-experts", answers_.keep_experts);
    add("--drop", part_.drops_mtp && answers_.drop_vision ? "mtp,vision"
                  : part_.drops_mtp                       ? "mtp"
                  : answers_.drop_vision                  ? "vision"
                                                          : "");
    return text;
  }

  /// The configuration of the part must say of each layer what that of the model says.
  void check_kinds(const std::string& config) const {
    const auto made = read_architecture(config);
    const Architecture& model = *model_.architecture;
    const auto wanted =
        std::span(model.kinds).subspan(static_cast<std::size_t>(part_.first), static_cast<std::size_t>(part_.count));
    if (made != nullptr && !mtp_.empty() && !part_.drops_mtp && made->kind_of("mtp", 0) != model.kind_of("mtp", 0))
      fail(
          ErrorCode::NotSupported, {source_.path().string(), {}},
          "{}: multi-token prediction has a layer like the last one, which would be of another kind; --drop mtp leaves "
          "it out, or let layer {} be the last one",
          source_.path().string(), part_.of - 1);
    if (made != nullptr && made->layers == part_.count && std::ranges::equal(made->kinds, wanted) &&
        (!part_.drops_mtp || made->mtp_layers == 0))
      return;
    fail(ErrorCode::NotSupported, {source_.path().string(), {}},
         "{}: config.json has no words for this part: which layers are dense, or how they attend, would change; "
         "--layers 0-{} may do",
         source_.path().string(), part_.count - 1);
  }

  const Source& source_;
  const ModelHints& hints_;
  const Recognition& model_;
  const SourceAnswers& answers_;
  LayerPart part_;
  std::string prefix_;
  std::set<std::size_t> mtp_;
  /// The tensors of the language model, and the text in front of keys as a language model by itself has them.
  std::set<std::size_t> language_;
  std::string front_;
  KeptExperts kept_;
  /// Names of experts' tensors in the part; empty ones are left out.
  std::map<std::size_t, std::string> renamed_;
  /// The tensors of which some slabs are left.
  std::map<std::size_t, const std::vector<i64>*> cuts_;
  /// The new bytes of tables of experts.
  std::map<std::size_t, std::vector<std::byte>> tables_;
};

/// Recognizes a source, laid out in Hugging Face's form if it has another one.
std::pair<ModelHints, Recognition> recognize_for_part(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  const auto recognize_now = [&] {
    ModelHints hints = hints_of(*source, answers);
    Recognition model = recognize_source(*source, hints, answers);
    return std::pair(std::move(hints), std::move(model));
  };
  auto found = recognize_now();
  const auto& [hints, model] = found;
  if (model.architecture == nullptr)
    fail_without_model(*source, hints, model, answers, "a part of a model needs one whose layers are known, and");
  if (is_hub_form(model)) return found;
  lay_out_apart(source, hints, model);
  return recognize_now();
}

}  // namespace

bool asks_for_part(const SourceAnswers& answers) {
  return !answers.layers.empty() || answers.drop_mtp || answers.drop_vision || !answers.keep_experts.empty();
}

void lay_out_for_part(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  (void)recognize_for_part(source, answers);
}

void take_part(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  const auto [hints, model] = recognize_for_part(source, answers);
  std::unique_ptr<PartSource> part = PartMaker(*source, hints, model, answers).make();
  part->own(std::move(source));
  source = std::move(part);
}

}  // namespace glu_ckpt
