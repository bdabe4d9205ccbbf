#include "model/part_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"
#include "families/dense_rows.hpp"
#include "format/model_config.hpp"
#include "model/laid_out_source.hpp"
#include "model/part_config.hpp"
#include "model/source_hints.hpp"
#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

/// Some tensors of a source, under other names.
class PartSource final : public Source {
 public:
  PartSource(CheckpointInfo info, std::vector<std::size_t> stored)
      : info_(std::move(info)), stored_(std::move(stored)) {}

  void own(std::unique_ptr<Source> source) { source_ = std::move(source); }

  const CheckpointInfo& info() const override { return info_; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    source_->read_scattered(stored_.at(tensor), offset, pieces);
  }
  bool may_have_read_nan() const override { return source_->may_have_read_nan(); }
  const ContentCheck* content_check() const override { return source_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }

 private:
  std::unique_ptr<Source> source_;
  CheckpointInfo info_;
  std::vector<std::size_t> stored_;
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
  }

  std::unique_ptr<PartSource> make() {
    CheckpointInfo info = source_.info();
    std::vector<std::size_t> stored;
    info.inventory = {{}, source_.inventory().files, false};
    for (std::size_t i = 0; i < source_.inventory().tensors.size(); ++i) {
      const std::optional<std::string> name = name_of(i);
      if (!name) continue;
      TensorRef tensor = source_.inventory().tensors[i];
      tensor.name = *name;
      info.inventory.tensors.push_back(std::move(tensor));
      stored.push_back(i);
    }
    edit(info);
    check_kinds(info.hints.config);
    return std::make_unique<PartSource>(std::move(info), std::move(stored));
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
    if (*first > 0 && !answers_.merge.empty())
      fail(ErrorCode::NotSupported, {},
           "--layers {} counts layers anew, and --merge knows them by their numbers; merge first", text);
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

  /// The name in the part; none of what is left out.
  std::optional<std::string> name_of(std::size_t tensor) const {
    const std::string& name = source_.inventory().tensors[tensor].name;
    const auto numbered = layer_of(name);
    const bool is_mtp = mtp_.contains(tensor) || (numbered && numbered->layer >= part_.of) || name.starts_with("mtp.");
    if (is_mtp && part_.drops_mtp) return std::nullopt;
    if (!numbered) return name;
    i64 layer = numbered->layer - part_.first;
    if (numbered->layer >= part_.of)
      layer = numbered->layer - part_.of + part_.count;
    else if (layer < 0 || layer >= part_.count)
      return std::nullopt;
    return fmt::format("{}{}{}", prefix_, layer, name.substr(numbered->end));
  }

  /// What says of modules by their layers how they are quantized would say it of other ones.
  void check_unnamed() const {
    const auto names_modules = [](const ExtraFile& file) { return is_quantization_file(file.name); };
    if (part_.first == 0 || (hints_.config.find("layers.") == std::string::npos &&
                             std::ranges::none_of(source_.extra_files(), names_modules)))
      return;
    fail(ErrorCode::NotSupported, {source_.path().string(), {}},
         "{}: its configuration names modules by their layers, and --layers {} would count those anew; --layers 0-{} "
         "keeps their numbers",
         source_.path().string(), answers_.layers, part_.first + part_.count - 1);
  }

  void edit(CheckpointInfo& info) const {
    check_unnamed();
    const auto change = [part = part_](std::string_view text) { return part_config(text, part); };
    for (ExtraFile& file : info.extra_files)
      if (file.name == "config.json")
        file.edit = [change, inner = file.edit](std::string_view text) {
          return change(inner ? inner(text) : std::string(text));
        };
    info.config_edit = change;
    const std::string text = change(hints_.config);
    ModelHints hints = parse_config(text, source_.path().string());
    hints.config_is_made = hints_.config_is_made;
    info.hints = std::move(hints);
    info.respelled = true;
    for (const char* key : {"digest", "source_digest", "num_hidden_layers", "config"}) info.record.erase(key);
    std::string said;
    if (!answers_.layers.empty()) said = fmt::format("layers {} of {}", answers_.layers, part_.of);
    if (part_.drops_mtp) said += fmt::format("{}without multi-token prediction", said.empty() ? "" : ", ");
    info.record["part"] = said;
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
};

}  // namespace

bool asks_for_part(const SourceAnswers& answers) { return !answers.layers.empty() || answers.drop_mtp; }

void take_part(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  ModelHints hints = hints_of(*source, answers);
  Recognition model = recognize_model(source->inventory(), hints, source->record(), answers);
  if (model.architecture == nullptr)
    fail(ErrorCode::NoMap, {source->path().string(), {}},
         "{}: a part of a model needs one whose layers are known, and {}", source->path().string(),
         model.no_architecture);
  if (!is_hub_form(model)) {
    lay_out_apart(source, hints, model);
    hints = hints_of(*source, answers);
    model = recognize_model(source->inventory(), hints, source->record(), answers);
  }
  std::unique_ptr<PartSource> part = PartMaker(*source, hints, model, answers).make();
  part->own(std::move(source));
  source = std::move(part);
}

}  // namespace glu_ckpt
