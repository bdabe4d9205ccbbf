#include "model/merged_adapter.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "adapters/merged_source.hpp"
#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "model/adapter_view.hpp"
#include "model/open_checkpoint.hpp"
#include "model/source_hints.hpp"

namespace glu_ckpt {
namespace {

/// `merge_and_unload()`, and the same with `safe_merge=True`, which rounds the product of a linear layer first.
constexpr auto kPrograms = std::to_array<std::string_view>({"peft", "peft-safe"});
constexpr std::string_view kConfig = "adapter_config.json";
constexpr std::size_t kMaxDepth = 64;

/// "Qwen3Moe" of "Qwen3MoeForCausalLM" and of "Qwen3MoeModel": a model and its head are classes of one architecture.
std::string_view architecture_in(std::string_view model_class) {
  for (const std::string_view end : {"For", "Model"}) model_class = model_class.substr(0, model_class.find(end));
  return model_class;
}

/// Shapes and names of two architectures may be alike, and the products would be added to weights of another model.
void check_base(const Source& adapter, const AdapterConfig& config, const std::string& model_config) {
  const JsonDocument document(model_config, kMaxDepth);
  const auto classes = document.fault() ? std::nullopt : document.root().find("architectures");
  if (config.base_class.empty() || !classes || classes->size() == 0) return;
  std::string_view named;
  for (const JsonValue one : classes->items()) {
    named = one.get<std::string_view>().value_or("");
    if (architecture_in(named) == architecture_in(config.base_class)) return;
  }
  fail(ErrorCode::NotSupported, {adapter.path().string(), {}},
       "{}: {} says that it is for a {}, and config.json of the model says {}; give the model that it was trained on",
       adapter.path().string(), kConfig, config.base_class, named);
}

}  // namespace

std::vector<std::string> merge_programs() { return {kPrograms.begin(), kPrograms.end()}; }

void merge_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  std::unique_ptr<Source> adapter = open_source(answers.merge);
  const AdapterConfig config = adapter_config_of(*adapter);
  const ModelHints hints = hints_of(*source, answers);
  check_base(*adapter, config, hints.config);
  const Recognition model = recognize_model(source->inventory(), hints, source->record(), answers);
  const std::string program = answers.merge_as.empty() ? std::string(kPrograms[0]) : answers.merge_as;
  std::vector<MergedMatrix> matrices =
      find_factors(*source, model, *adapter, config, {program == kPrograms[1], parse_packed_files(answers.from_lora)});
  if (matrices.empty())
    fail(ErrorCode::NotSupported, {answers.merge, {}}, "{}: has no factors to merge", answers.merge);
  merge_source(source, std::move(adapter), std::move(matrices), program,
               answers.decode_plainly ? MergePath::Plain : MergePath::Fast);
}

}  // namespace glu_ckpt
