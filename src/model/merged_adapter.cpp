#include "model/merged_adapter.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "adapters/merged_source.hpp"
#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "io/file.hpp"
#include "model/open_checkpoint.hpp"
#include "model/source_hints.hpp"

namespace glu_ckpt {
namespace {

/// `merge_and_unload()`, and the same with `safe_merge=True`, which rounds the product of a linear layer first.
constexpr auto kPrograms = std::to_array<std::string_view>({"peft", "peft-safe"});
constexpr std::string_view kConfig = "adapter_config.json";
constexpr i64 kMaxConfigBytes = i64{16} << 20;

AdapterConfig config_of(const Source& adapter) {
  const auto& files = adapter.extra_files();
  const auto found = std::ranges::find(files, kConfig, &ExtraFile::name);
  if (found == files.end())
    fail(ErrorCode::NotSupported, {adapter.path().string(), {}},
         "{}: has no {}, which says by how much factors are multiplied; --merge takes the directory of an adapter that "
         "PEFT saved",
         adapter.path().string(), kConfig);
  return read_adapter_config(read_small_file(found->path, kMaxConfigBytes, ErrorCode::ConfigJson),
                             found->path.string());
}

}  // namespace

std::vector<std::string> merge_programs() { return {kPrograms.begin(), kPrograms.end()}; }

void merge_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  std::unique_ptr<Source> adapter = open_source(answers.merge);
  const AdapterConfig config = config_of(*adapter);
  const ModelHints hints = hints_of(*source, answers);
  const Recognition model = recognize_model(source->inventory(), hints, source->record(), answers);
  const std::string program = answers.merge_as.empty() ? std::string(kPrograms[0]) : answers.merge_as;
  std::vector<MergedMatrix> matrices = find_factors(*source, model, *adapter, config, program == kPrograms[1]);
  if (matrices.empty())
    fail(ErrorCode::NotSupported, {answers.merge, {}}, "{}: has no factors to merge", answers.merge);
  merge_source(source, std::move(adapter), std::move(matrices), program,
               answers.decode_plainly ? MergePath::Plain : MergePath::Fast);
}

}  // namespace glu_ckpt
