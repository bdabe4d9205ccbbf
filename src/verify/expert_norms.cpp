/// A norm is what a matrix differs from zeros by, so it is made by compare_elements().

#include "glu_ckpt/expert_norms.hpp"

#include <cmath>
#include <limits>
#include <map>

#include "core/parallel.hpp"
#include "model/stage.hpp"
#include "verify/item_rows.hpp"

namespace glu_ckpt {
namespace {

/// Rows are read in batches of about this size.
constexpr i64 kNormBatchBytes = i64{1} << 20;

bool is_expert_weight(const Item& item) {
  return item.block != nullptr && item.block->set == ExpertSet::Routed && !item.block->is_optimizer_state() &&
         item.matrix->kind == TensorKind::Weight;
}

/// The sum of the squares, row by row, so that it does not depend on how many rows are read together.
double sum_squares(const Model& model, const Item& item, const Backend& backend, const ExecuteOptions& options,
                   HostBuffer& buffer, HostBuffer& scratch) {
  ItemRows rows(model, item);
  const i64 row_bytes = std::max<i64>(1, rows.stored_row_bytes());
  const i64 most = std::max<i64>(4096, options.memory_bytes / (2 * std::max(1, options.jobs)));
  const i64 batch = std::max<i64>(1, (rows.transposed() ? most : std::min(kNormBatchBytes, most)) / row_bytes);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(row_bytes));
  double sum = 0;
  for (i64 first = 0; first < rows.rows(); first += batch) {
    const i64 count = std::min(batch, rows.rows() - first);
    const auto bytes = rows.read(first, count, backend, buffer, scratch, most);
    for (i64 row = 0; row < count; ++row) {
      const auto of_row = bytes.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(row_bytes));
      sum += compare_elements(rows.dtype(), of_row, rows.dtype(), zeros).sum_squares;
    }
    if (options.on_progress) options.on_progress(count * row_bytes);
  }
  return sum;
}

}  // namespace

std::vector<LayerNorms> expert_norms(const std::filesystem::path& path, const SourceAnswers& answers,
                                     const RunOptions& run) {
  const Checkpoint checkpoint = open_checkpoint(path, answers);
  const Model model = checkpoint.model();
  std::vector<Item> items = list_items(model.source->inventory(), *model.recognition);
  std::erase_if(items, [](const Item& item) { return !is_expert_weight(item); });
  i64 bytes = 0;
  for (const Item& item : items) bytes += has_numbers(item.matrix->dtype) ? item.bytes : 0;
  std::vector<double> sums(items.size(), std::numeric_limits<double>::quiet_NaN());
  {
    Stage stage(run, "measuring experts", bytes);
    const ExecuteOptions options = stage.execute_options();
    const auto backend = make_backend("cpu");
    std::vector<std::pair<HostBuffer, HostBuffer>> buffers(static_cast<std::size_t>(std::max(1, options.jobs)));
    parallel_for(items.size(), options.jobs, [&](std::size_t i, int worker) {
      auto& [rows, scratch] = buffers[static_cast<std::size_t>(worker)];
      if (has_numbers(items[i].matrix->dtype)) sums[i] = sum_squares(model, items[i], *backend, options, rows, scratch);
    });
  }
  std::vector<LayerNorms> layers;
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto [at, is_new] = index.emplace(items[i].layer(), layers.size());
    if (is_new) layers.push_back({items[i].layer(), {}});
    std::vector<double>& norms = layers[at->second].norms;
    const auto expert = static_cast<std::size_t>(items[i].matrix->expert);
    if (expert >= norms.size()) norms.resize(expert + 1);
    norms[expert] += sums[i];
  }
  for (LayerNorms& layer : layers)
    for (double& norm : layer.norms) norm = std::sqrt(norm);
  return layers;
}

}  // namespace glu_ckpt
