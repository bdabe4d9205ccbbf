#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/fail.hpp"
#include "model/open_checkpoint.hpp"
#include "model/saved_arguments.hpp"
#include "model/stored_model.hpp"

namespace glu_ckpt {

namespace {

std::filesystem::path stamped_path(const Source& source, const std::filesystem::path& path) {
  const std::string& iteration = source.structure().iteration_dir;
  return iteration.empty() ? path : path / iteration;
}

}  // namespace

Stamped stamp(const std::filesystem::path& path, const SourceAnswers& answers, StampMode mode) {
  if (!answers.glu && !answers.shared_glu && !answers.optimizer_glu)
    fail(ErrorCode::Usage, {}, "stamp needs at least one of --glu, --shared-glu and --optimizer-glu");
  const Checkpoint checkpoint = open_checkpoint(path, answers);
  const Recognition& recognition = checkpoint.recognition;
  if (recognition.blocks.empty() && !recognition.layout.is_dense())
    fail(ErrorCode::NoExperts, {path.string(), {}}, "{}: no expert tensors were recognized", path.string());
  const LayoutAnswers& layout = recognition.layout;
  Record record = checkpoint.source->record();
  record["version"] = GLU_CKPT_VERSION;
  if (recognition.naming_settled && !layout.is_dense()) record["naming"] = layout.naming;
  if (!layout.is_dense()) record["experts"] = layout.experts;
  record["glu"] = to_string(layout.glu);
  if (layout.shared_glu) record["shared_glu"] = to_string(*layout.shared_glu);
  if (layout.optimizer_glu) record["optimizer_glu"] = to_string(*layout.optimizer_glu);
  const std::filesystem::path written = stamped_path(*checkpoint.source, path);
  if (mode == StampMode::Write) write_record(written, record);
  std::vector<std::string> warnings = file_doubts(*checkpoint.source, checkpoint.hints);
  std::ranges::move(listed_order_texts(*checkpoint.source, checkpoint.hints, recognition),
                    std::back_inserter(warnings));
  return {record_file_of(written),
          recognition.naming_settled ? layout.naming : "no naming",
          layout.experts,
          record["glu"],
          std::move(warnings),
          layout.shared_glu ? record["shared_glu"] : "",
          layout.optimizer_glu ? record["optimizer_glu"] : ""};
}

Unstamped unstamp(const std::filesystem::path& path, StampMode mode) {
  static const std::vector<std::string> kLayoutKeys = {"naming", "experts", "glu", "shared_glu", "optimizer_glu"};
  const auto source = open_source(path);
  const std::filesystem::path written = stamped_path(*source, path);
  Unstamped result{record_file_of(written), false};
  for (const std::string& key : kLayoutKeys) result.was_there |= source->record().contains(key);
  if (source->record().contains("digest"))
    fail(ErrorCode::NotExact, {result.file.string(), {}},
         "{}: its record was written by a conversion, not by stamp: it says what the tensors are, so it stays. Where "
         "they were changed since, `convert --accept-changes` takes them as they are",
         result.file.string());
  if (result.was_there && mode == StampMode::Write) remove_from_record(written, kLayoutKeys);
  return result;
}

}  // namespace glu_ckpt
