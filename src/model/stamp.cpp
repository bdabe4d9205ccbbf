#include <fmt/format.h>

#include "core/fail.hpp"
#include "model/open_checkpoint.hpp"

namespace glu_ckpt {

Stamped stamp(const std::filesystem::path& path, const SourceAnswers& answers) {
  if (!answers.glu && !answers.shared_glu && !answers.optimizer_glu)
    fail(ErrorCode::Usage, {}, "stamp needs at least one of --glu, --shared-glu and --optimizer-glu");
  const Checkpoint checkpoint = open_checkpoint(path, answers);
  const Recognition& recognition = checkpoint.recognition;
  if (recognition.blocks.empty())
    fail(ErrorCode::NoExperts, {path.string(), {}}, "{}: no expert tensors were recognized", path.string());
  const LayoutAnswers& layout = recognition.layout;
  Record record = checkpoint.source->record();
  record["version"] = GLU_CKPT_VERSION;
  if (recognition.naming_settled) record["naming"] = layout.naming;
  record["experts"] = layout.experts;
  record["glu"] = to_string(layout.glu);
  if (layout.shared_glu) record["shared_glu"] = to_string(*layout.shared_glu);
  if (layout.optimizer_glu) record["optimizer_glu"] = to_string(*layout.optimizer_glu);
  const std::string& iteration = checkpoint.source->structure().iteration_dir;
  write_record(iteration.empty() ? path : path / iteration, record);
  return {recognition.naming_settled ? layout.naming : "no naming", record["experts"], record["glu"]};
}

}  // namespace glu_ckpt
