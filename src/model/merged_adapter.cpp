#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "adapters/merged_source.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "families/architecture.hpp"
#include "layout/adapter_names.hpp"
#include "model/adapter_view.hpp"
#include "model/laid_out_source.hpp"
#include "model/locate_errors.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"

namespace glu_ckpt {
namespace {

/// `merge_and_unload()`, and the same with `safe_merge=True`, which rounds the product of a linear layer first.
constexpr auto kPrograms = std::to_array<std::string_view>({"peft", "peft-safe"});
constexpr std::size_t kMaxModelConfigDepth = 64;

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

/// Shapes and names of two architectures may be alike, and the products would be added to weights of another model.
void check_base(const Source& adapter, const AdapterConfig& config, const std::string& model_config,
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

/// Returns what `work` returns. An error about one of the factors says in what file of the adapter that is; others are
/// about the model.
template <typename Work>
auto locate_in_adapter(const Source& adapter, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const auto& factors = adapter.inventory().tensors;
    if (std::ranges::find(factors, error.tensor(), &TensorRef::name) == factors.end()) throw;
    fail_located(error, adapter);
  }
}

}  // namespace

std::vector<std::string> merge_programs() { return {kPrograms.begin(), kPrograms.end()}; }

void merge_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  std::unique_ptr<Source> adapter = open_source(answers.merge);
  const AdapterConfig config = locate_errors(*adapter, [&] { return adapter_config_of(*adapter); });
  const ModelHints hints = hints_of(*source, answers);
  const Recognition model = recognize_source(*source, hints, answers);
  check_base(*adapter, config, hints.config, model.architecture.get());
  const std::string program = answers.merge_as.empty() ? std::string(kPrograms[0]) : answers.merge_as;
  std::vector<MergedMatrix> matrices = locate_in_adapter(*adapter, [&] {
    return find_factors(*source, model, *adapter, config,
                        {program == kPrograms[1], packed_files_of(*adapter, answers)});
  });
  if (matrices.empty())
    fail(ErrorCode::NotSupported, {answers.merge, {}}, "{}: has no factors to merge", answers.merge);
  // The factors are added all the same: whoever gives them means them.
  std::vector<std::string> warnings;
  for (const std::string& text : target_texts(*adapter))
    warnings.push_back(fmt::format("{}: {}", adapter->path().string(), text));
  merge_source(source, std::move(adapter), std::move(matrices), program,
               answers.decode_plainly ? MergePath::Plain : MergePath::Fast, simd_levels().front(), std::move(warnings));
}

}  // namespace glu_ckpt
