/// The experts of two models, each in its own layout, on the same tokens.
///
/// A layer's experts are run in batches, A's and then B's. Which experts make a batch is decided once for both sides: a
/// GPU's kernels are chosen by the rows of a call.

#include "glu_ckpt/verify_forward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "forward/load_expert.hpp"
#include "forward/seeded_tokens.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"
#include "verify/choose_layers.hpp"
#include "verify/diagnose.hpp"

namespace glu_ckpt {
namespace {

/// The experts of one layer in A and in B; null where one of them lacks them.
struct LayerPair {
  const ExpertBlock* a = nullptr;
  const ExpertBlock* b = nullptr;
  const ExpertBlock& any() const { return a != nullptr ? *a : *b; }
  std::string label() const { return layer_label(any()); }
};

/// A's layers in its order, then those that only B has.
std::vector<LayerPair> layer_pairs(const Model& a, const Model& b) {
  std::vector<LayerPair> pairs;
  for (const ExpertBlock& block : a.recognition->blocks)
    if (!block.is_optimizer_state()) pairs.push_back({&block, nullptr});
  for (const ExpertBlock& block : b.recognition->blocks) {
    if (block.is_optimizer_state()) continue;
    const auto same = std::ranges::find_if(pairs, [&](const LayerPair& pair) {
      return pair.a != nullptr && pair.a->set == block.set && layer_label(*pair.a) == layer_label(block);
    });
    if (same != pairs.end())
      same->b = &block;
    else
      pairs.push_back({nullptr, &block});
  }
  return pairs;
}

std::vector<LayerPair> chosen_pairs(const Model& a, const Model& b, const std::string& layers) {
  std::vector<LayerPair> pairs = layer_pairs(a, b);
  if (pairs.empty()) fail(ErrorCode::NoExperts, {}, "neither A nor B has experts to run; leave --forward out");
  std::vector<std::string> labels;
  for (const LayerPair& pair : pairs)
    if (std::ranges::find(labels, pair.label()) == labels.end()) labels.push_back(pair.label());
  labels = choose_layers(labels, layers);
  std::erase_if(pairs, [&](const LayerPair& pair) { return std::ranges::find(labels, pair.label()) == labels.end(); });
  return pairs;
}

bool is_gated(const ExpertBlock& block) { return block.glu.kind != Glu::Kind::None; }

/// Returns why the two sides cannot be compared, or nothing.
std::string fault_of(const LayerPair& pair, Dtype compute_a, Dtype compute_b) {
  if (pair.b == nullptr) return "only in A";
  if (pair.a == nullptr) return "only in B";
  const auto number = [](std::string_view what, i64 a, i64 b) {
    return fmt::format("{} {} in A, {} in B", what, a, b);
  };
  if (pair.a->num_experts != pair.b->num_experts) return number("experts", pair.a->num_experts, pair.b->num_experts);
  if (pair.a->hidden_size != pair.b->hidden_size)
    return number("hidden size", pair.a->hidden_size, pair.b->hidden_size);
  if (compute_a != compute_b) return fmt::format("{} in A, {} in B", dtype_name(compute_a), dtype_name(compute_b));
  if (is_gated(*pair.a) != is_gated(*pair.b)) return fmt::format("a gate only in {}", is_gated(*pair.a) ? "A" : "B");
  return {};
}

/// One layer's work.
struct LayerWork {
  LayerPair pair;
  Dtype compute = Dtype::F32;
  /// The layers of A and B; empty where there is a fault.
  std::vector<StoredExpert> experts[2];
  LayerForward result;
};

std::vector<LayerWork> plan_layers(const Model& a, const Model& b, const VerifyForwardOptions& options) {
  std::vector<LayerWork> layers;
  for (const LayerPair& pair : chosen_pairs(a, b, options.layers)) {
    LayerWork& layer = layers.emplace_back();
    layer.pair = pair;
    layer.result.layer = pair.label();
    layer.result.set = to_string(pair.any().set);
    const Dtype compute_a = pair.a != nullptr ? compute_dtype(a, *pair.a, options.fp32) : Dtype::F32;
    const Dtype compute_b = pair.b != nullptr ? compute_dtype(b, *pair.b, options.fp32) : Dtype::F32;
    layer.compute = compute_a;
    layer.result.fault = fault_of(pair, compute_a, compute_b);
    if (!layer.result.fault.empty()) continue;
    layer.experts[0] = stored_experts(*pair.a);
    layer.experts[1] = stored_experts(*pair.b);
    layer.result.expert_max_abs.resize(layer.experts[0].size());
  }
  return layers;
}

/// Experts [first, last) of a layer, of A and then of B.
struct Batch {
  std::size_t layer = 0;
  i64 first = 0;
  i64 last = 0;
};

i64 held_bytes(const LayerWork& layer, const Batch& batch) {
  i64 most = 0;
  for (const auto& side : layer.experts) {
    i64 bytes = 0;
    for (i64 e = batch.first; e < batch.last; ++e) bytes += side[static_cast<std::size_t>(e)].held_bytes;
    most = std::max(most, bytes);
  }
  return most;
}

std::vector<Batch> plan_batches(const std::vector<LayerWork>& layers, i64 most_bytes) {
  std::vector<Batch> batches;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto count = static_cast<i64>(layers[l].experts[0].size());
    for (i64 first = 0; first < count;) {
      i64 last = first + 1;
      while (last < count && held_bytes(layers[l], {l, first, last + 1}) <= most_bytes) ++last;
      batches.push_back({l, first, last});
      first = last;
    }
  }
  return batches;
}

/// Rows of a batch that are one expert's.
struct ExpertRows {
  i64 expert = 0;
  i64 first = 0;
  i64 count = 0;
};

/// The tokens of a batch: those of each expert, one after the other; the isolated expert's are the last.
struct BatchTokens {
  std::vector<ExpertRows> rows;
  /// Tokens per expert of those that run together, and of the isolated one on its own; the latter is empty where that
  /// expert is not in the batch.
  std::vector<i64> splits;
  std::vector<i64> isolated_splits;
  i64 together = 0;
  i64 total = 0;
  std::vector<std::byte> x;
  std::vector<float> probs;
};

BatchTokens make_tokens(const SeededTokens& tokens, const Batch& batch, Dtype dtype, i64 row_bytes) {
  BatchTokens made;
  const i64 isolated = tokens.isolated_expert();
  const auto add = [&](i64 expert) {
    made.rows.push_back({expert, made.total, tokens.count(expert)});
    made.total += tokens.count(expert);
  };
  for (i64 e = batch.first; e < batch.last; ++e) {
    made.splits.push_back(e == isolated ? 0 : tokens.count(e));
    if (e != isolated) add(e);
  }
  made.together = made.total;
  if (batch.first <= isolated && isolated < batch.last) {
    made.isolated_splits.assign(made.splits.size(), 0);
    made.isolated_splits[static_cast<std::size_t>(isolated - batch.first)] = tokens.count(isolated);
    add(isolated);
  }
  made.x.resize(static_cast<std::size_t>(made.total * row_bytes));
  made.probs.resize(static_cast<std::size_t>(made.total));
  for (const ExpertRows& rows : made.rows)
    tokens.fill(rows.expert, dtype, made.x.data() + rows.first * row_bytes, made.probs.data() + rows.first);
  return made;
}

i64 differing_bits(std::span<const std::byte> a, std::span<const std::byte> b) {
  i64 bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i) bits += std::popcount(std::to_integer<unsigned>(a[i] ^ b[i]));
  return bits;
}

/// The buffers of one thread.
struct Lane {
  HostBuffer buffer;
  BatchTokens tokens;
  i64 row_bytes = 0;
  /// The outputs of A, B and B in a wrong layout for the batch's tokens.
  std::vector<std::byte> out[3];
};

/// Threads take batch after batch, each with a lane of its own, and do all of one: while one reads, others compute.
class ForwardVerifier {
 public:
  ForwardVerifier(const Model& a, const Model& b, MlpRunner& runner, const VerifyForwardOptions& options)
      : sources_{a.source, b.source}, runner_(runner), options_(options), layers_(plan_layers(a, b, options)) {
    // Two at the least, so that reading does not wait for computing.
    const int wanted = std::max(2, options.jobs);
    batches_ = plan_batches(layers_, std::min(options.memory_bytes / wanted, runner.batch_bytes(1)));
    i64 most = 1;
    for (const Batch& batch : batches_) most = std::max(most, held_bytes(layers_[batch.layer], batch));
    lanes_ = static_cast<int>(std::clamp<i64>(options.memory_bytes / most, 1, wanted));
    jobs_ = std::max(1, options.jobs / lanes_);
  }

  std::vector<LayerForward> run() {
    std::vector<Lane> lanes(static_cast<std::size_t>(lanes_));
    parallel_for(batches_.size(), lanes_,
                 [&](std::size_t i, int lane) { run_batch(batches_[i], lanes[static_cast<std::size_t>(lane)]); });
    std::vector<LayerForward> results;
    for (LayerWork& layer : layers_) results.push_back(std::move(layer.result));
    return results;
  }

 private:
  void run_batch(const Batch& batch, Lane& lane) {
    LayerWork& layer = layers_[batch.layer];
    const i64 hidden = layer.pair.a->hidden_size;
    lane.row_bytes = hidden * dtype_bits(layer.compute) / 8;
    const SeededTokens tokens(options_.seed, layer.result.layer + "/" + layer.result.set, layer.pair.a->num_experts,
                              hidden);
    lane.tokens = make_tokens(tokens, batch, layer.compute, lane.row_bytes);
    for (const int side : {0, 1}) {
      const std::vector<ExpertWeights> weights = load(batch, side, lane);
      const GroupedMlp mlp{hidden, layer.compute, options_.activation, weights};
      run_experts(mlp, lane, lane.out[side]);
      if (side == 0) continue;
      compare(layer, lane);
      if (wants_control(layer) && is_control_caught(mlp, lane)) {
        const std::lock_guard lock(mutex_);
        layer.result.control_caught = true;
      }
    }
  }

  std::vector<ExpertWeights> load(const Batch& batch, int side, Lane& lane) const {
    std::vector<const StoredExpert*> experts;
    for (i64 e = batch.first; e < batch.last; ++e)
      experts.push_back(&layers_[batch.layer].experts[side][static_cast<std::size_t>(e)]);
    return load_experts(*sources_[side], experts, lane.buffer, jobs_, options_.on_progress);
  }

  void run_experts(const GroupedMlp& mlp, const Lane& lane, std::vector<std::byte>& out) const {
    const BatchTokens& tokens = lane.tokens;
    out.resize(tokens.x.size());
    const i64 at = tokens.together * lane.row_bytes;
    runner_.run(mlp, tokens.x.data(), tokens.together, tokens.splits, tokens.probs.data(), out.data(), jobs_);
    if (!tokens.isolated_splits.empty())
      runner_.run(mlp, tokens.x.data() + at, tokens.total - tokens.together, tokens.isolated_splits,
                  tokens.probs.data() + tokens.together, out.data() + at, jobs_);
  }

  void compare(LayerWork& layer, const Lane& lane) {
    const auto rows_of = [&](int side, const ExpertRows& rows) {
      return std::span(lane.out[side])
          .subspan(static_cast<std::size_t>(rows.first * lane.row_bytes),
                   static_cast<std::size_t>(rows.count * lane.row_bytes));
    };
    const std::lock_guard lock(mutex_);
    LayerForward& result = layer.result;
    result.tokens += lane.tokens.total;
    for (const ExpertRows& rows : lane.tokens.rows) {
      const auto a = rows_of(0, rows);
      const auto b = rows_of(1, rows);
      if (std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
      result.differing_bits += differing_bits(a, b);
      const i64 count = static_cast<i64>(a.size()) * 8 / dtype_bits(layer.compute);
      const DiffStats stats = diff_stats_host(a.data(), b.data(), count, layer.compute);
      result.max_abs = std::max(result.max_abs, stats.max_abs);
      result.expert_max_abs[static_cast<std::size_t>(rows.expert)] = stats.max_abs;
      result.max_rel = std::max(result.max_rel, stats.max_rel);
      ++result.differing_experts;
      if (result.first_expert < 0 || rows.expert < result.first_expert) result.first_expert = rows.expert;
    }
  }

  bool wants_control(const LayerWork& layer) {
    const std::lock_guard lock(mutex_);
    return !layer.result.control_caught;
  }

  /// Returns whether any of the batch's experts, taken for another layout, gives other bits than A's. All of them are,
  /// in the same calls as before, so that nothing but the layout is another one.
  bool is_control_caught(const GroupedMlp& mlp, Lane& lane) const {
    std::vector<std::vector<ExpertWeights>> layouts;
    std::size_t most = 0;
    for (const ExpertWeights& expert : mlp.experts) {
      layouts.push_back(wrong_layouts(expert));
      most = std::max(most, layouts.back().size());
    }
    for (std::size_t i = 0; i < most; ++i) {
      std::vector<ExpertWeights> wrong(mlp.experts.begin(), mlp.experts.end());
      for (std::size_t e = 0; e < wrong.size(); ++e)
        if (i < layouts[e].size()) wrong[e] = layouts[e][i];
      GroupedMlp control = mlp;
      control.experts = wrong;
      run_experts(control, lane, lane.out[2]);
      if (lane.out[2] != lane.out[0]) return true;
    }
    return false;
  }

  const Source* sources_[2];
  MlpRunner& runner_;
  const VerifyForwardOptions& options_;
  std::vector<LayerWork> layers_;
  std::vector<Batch> batches_;
  /// Threads that take batches, and those that each of them may start.
  int lanes_ = 1;
  int jobs_ = 1;
  /// Guards the layers' results.
  std::mutex mutex_;
};

}  // namespace

std::vector<LayerForward> verify_forward(const Model& a, const Model& b, MlpRunner& runner,
                                         const VerifyForwardOptions& options) {
  return ForwardVerifier(a, b, runner, options).run();
}

i64 forward_bytes(const Model& a, const Model& b, const VerifyForwardOptions& options) {
  i64 bytes = 0;
  for (const LayerWork& layer : plan_layers(a, b, options))
    for (const auto& experts : layer.experts)
      for (const StoredExpert& expert : experts) bytes += expert.bytes;
  return bytes;
}

}  // namespace glu_ckpt
