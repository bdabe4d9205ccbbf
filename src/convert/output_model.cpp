#include "convert/output_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "core/hash.hpp"
#include "format/checkpoint_files.hpp"
#include "format/record_file.hpp"
#include "plan/plan_bytes.hpp"

namespace glu_ckpt::cli {

OutputModel output_model(const Plan& plan, const Source& source, const Record& record) {
  OutputModel model;
  for (const OutputTensor& output : plan.outputs)
    model.inventory.tensors.push_back(
        {output.name, output.dtype, output.shape, output.bytes, output.shard, output.offset});
  for (u32 shard = 0; shard < plan.num_shards; ++shard) model.inventory.files.push_back(fmt::format("shard {}", shard));
  model.recognition = recognize(model.inventory, source.hints(), record, {});
  return model;
}

Record make_record(const Recognition& recognition, const Plan& plan, const std::optional<Digest>& digest) {
  Record record{{"version", GLU_CKPT_VERSION}};
  const bool has_experts = !recognition.blocks.empty();
  if (has_experts) {
    record["experts"] = plan.to.experts;
    record["glu"] = to_string(plan.to.glu);
  }
  // A family that nobody named is not to be believed later.
  if (has_experts && (recognition.naming_settled || plan.to.naming != plan.from.naming))
    record["naming"] = plan.to.naming;
  if (plan.to.shared_glu) record["shared_glu"] = to_string(*plan.to.shared_glu);
  if (plan.to.optimizer_glu) record["optimizer_glu"] = to_string(*plan.to.optimizer_glu);
  if (digest) record["digest"] = record["source_digest"] = to_string(*digest);
  if (recognition.num_hidden_layers) record["num_hidden_layers"] = fmt::format("{}", *recognition.num_hidden_layers);
  return record;
}

bool same_layout(const Inventory& a, const Recognition& a_recognition, const Inventory& b,
                 const Recognition& b_recognition) {
  const auto tensors = [](const Inventory& inventory) {
    std::set<std::tuple<std::string, Dtype, std::vector<i64>>> all;
    for (const TensorRef& tensor : inventory.tensors) all.emplace(tensor.name, tensor.dtype, tensor.shape);
    return all;
  };
  const LayoutAnswers &x = a_recognition.layout, &y = b_recognition.layout;
  return tensors(a) == tensors(b) && x.glu == y.glu && x.shared_glu == y.shared_glu &&
         x.optimizer_glu == y.optimizer_glu;
}

std::string config_of(const Source& source) {
  const auto& files = source.extra_files();
  const auto config = std::ranges::find(files, "config.json", &ExtraFile::name);
  if (config == files.end()) return {};
  const FileRecord record = record_of_file(File::open_read(config->path), config->name);
  return fmt::format("config {} {}\n", record.bytes, record.data_xxh3_128);
}

std::string fingerprint_of(const Options& options, const Opened& opened, const Plan& plan, Format format,
                           const std::string& config, i64 bytes_to_clone) {
  const Hash128 planned = hash128(plan_bytes(plan), 0);
  std::string text =
      fmt::format("glu-ckpt {}\nplan {}\nformat {}\noverwrite {}\ndigest {}\n", GLU_CKPT_VERSION, hex(planned),
                  to_string(format), options.overwrite, options.verify != VerifyMode::None);
  if (bytes_to_clone > 0)
    text += fmt::format("clones {} verify {}\n", bytes_to_clone, static_cast<int>(options.verify));
  for (const auto& [name, value] : options.typed) text += fmt::format("option {} {}\n", name, value);
  return text + identity_of(opened.source->info()) + config;
}

}  // namespace glu_ckpt::cli
