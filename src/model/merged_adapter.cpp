#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "adapters/merged_source.hpp"
#include "core/fail.hpp"
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

/// Returns what `work` returns. An error about one of the factors, or about no tensor, says in what file of the adapter
/// that is; others are about the model.
template <typename Work>
auto locate_in_adapter(const Source& adapter, bool has_codes, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const auto& factors = adapter.inventory().tensors;
    const bool is_of_model = std::ranges::find(factors, error.tensor(), &TensorRef::name) == factors.end();
    if (is_of_model && !error.tensor().empty()) throw;
    // Codes have names of their own.
    if (error.code() == ErrorCode::UnknownTensor && has_codes)
      fail_located(
          Error(error.code(),
                fmt::format("{}. The model has codes: --decode bf16 beside --merge makes numbers of them first",
                            error.what()),
                error.file(), error.tensor()),
          adapter);
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
  check_adapted_model(*adapter, config, hints.config, model.architecture.get());
  const std::string program = answers.merge_as.empty() ? std::string(kPrograms[0]) : answers.merge_as;
  std::vector<MergedMatrix> matrices = locate_in_adapter(*adapter, holds_any_codes(source->inventory()), [&] {
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
