#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "plan/draft_outputs.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kMainStack = "decoder.layers.";

/// "decoder.layers.12.mlp.router.weight", taken apart.
struct NumberedKey {
  i64 layer = 0;
  std::string tail;
};

std::optional<NumberedKey> read_numbered(std::string_view name) {
  if (!name.starts_with(kMainStack)) return std::nullopt;
  name.remove_prefix(kMainStack.size());
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const auto layer = parse_index(name.substr(0, digits));
  if (!layer || !name.substr(digits).starts_with('.')) return std::nullopt;
  return NumberedKey{*layer, std::string(name.substr(digits + 1))};
}

/// Joins the drafts of all layers to one for each tail.
class DraftStacker {
 public:
  explicit DraftStacker(std::vector<DraftOutput>& drafts) : drafts_(drafts) {
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      auto key = read_numbered(drafts[i].name);
      if (!key) continue;
      tails_[key->tail].emplace(key->layer, i);
      layers_ = std::max(layers_, key->layer + 1);
    }
  }

  /// A tensor that a layer of its own has; null where none has.
  const DraftOutput* numbered() const {
    return tails_.empty() ? nullptr : &drafts_[tails_.begin()->second.begin()->second];
  }

  /// Returns how many layers there are.
  i64 run() {
    std::vector<bool> joined(drafts_.size());
    for (const auto& [tail, layers] : tails_) {
      check_alike(tail, layers);
      DraftOutput& all = drafts_[layers.at(0)];
      all.name = fmt::format("{}{}", kMainStack, tail);
      const i64 bytes = all.bytes;
      for (const auto& [layer, index] : layers) {
        if (layer == 0) continue;
        DraftOutput& one = drafts_[index];
        for (Move& move : one.moves) move.dst_offset += layer * bytes;
        all.moves.insert(all.moves.end(), one.moves.begin(), one.moves.end());
        all.origin = std::min(all.origin, one.origin);
        joined[index] = true;
      }
      all.shape.insert(all.shape.begin(), layers_);
      all.bytes = layers_ * bytes;
    }
    std::size_t next = 0;
    std::erase_if(drafts_, [&](const DraftOutput&) { return joined[next++]; });
    return layers_;
  }

 private:
  using Layers = std::map<i64, std::size_t>;

  void check_alike(const std::string& tail, const Layers& layers) const {
    for (i64 layer = 0; layer < layers_; ++layer)
      if (!layers.contains(layer))
        fail_unlike(drafts_[layers.begin()->second].name,
                    fmt::format("layer {} has '{}{}.{}', and layer {} has none", layers.begin()->first, kMainStack,
                                layers.begin()->first, tail, layer));
    const DraftOutput& first = drafts_[layers.at(0)];
    for (const auto& [layer, index] : layers) {
      const DraftOutput& one = drafts_[index];
      if (one.compute)
        fail_unlike(one.name, fmt::format("'{}' is computed, and cannot be a part of a tensor", one.name));
      if (one.dtype != first.dtype || one.shape != first.shape)
        fail_unlike(one.name,
                    fmt::format("'{}' is {} {} and '{}' is {} {}", first.name, dtype_name(first.dtype),
                                shape_text(first.shape), one.name, dtype_name(one.dtype), shape_text(one.shape)));
    }
  }

  [[noreturn]] static void fail_unlike(const std::string& tensor, const std::string& why) {
    fail(ErrorCode::NoSpelling, {{}, tensor},
         "--stack-layers: the layers are not alike, so that they cannot share tensors: {}. Without the option each "
         "layer "
         "has tensors of its own, which any GPTModel loads",
         why);
  }

  std::vector<DraftOutput>& drafts_;
  /// Of each tail the layers that have it, with the numbers of their drafts.
  std::map<std::string, Layers> tails_;
  i64 layers_ = 0;
};

/// What the attention layers of Megatron-Core 0.19.2's HybridModel have not, and a GPTModel's may have.
constexpr auto kNotInHybrid = std::to_array<DenseRole>({DenseRole::QNorm, DenseRole::KNorm, DenseRole::WideQNorm,
                                                        DenseRole::WideKNorm, DenseRole::Sinks, DenseRole::KvDown});

/// Says how programs load it. A HybridModel has an attention and an MLP by turns where a GPTModel has a layer.
std::string words_of_stacked(const Recognition& from, i64 layers) {
  const std::string text = "all layers share tensors, as a GPTModel asks for them with megatron_args.txt as it is; ";
  const auto in = [&](std::string_view stack) {
    return [stack](const DenseMatrix& matrix) { return matrix.stack == stack; };
  };
  const auto foreign = std::ranges::find_if(from.dense, [](const DenseMatrix& matrix) {
    return matrix.stack == "decoder" && std::ranges::find(kNotInHybrid, matrix.role) != kNotInHybrid.end();
  });
  if (foreign != from.dense.end())
    return text + fmt::format("Megatron-Core 0.19.2's HybridModel has no {} in its attention, and would leave it out",
                              to_string(foreign->role));
  const std::string_view pair = from.architecture->kind_of("decoder", 0).mlp == Mlp::Experts ? "*E" : "*-";
  std::string pattern;
  for (i64 layer = 0; layer < layers; ++layer) pattern += pair;
  return text + fmt::format("a HybridModel loads them with --hybrid-layer-pattern '{}' besides{}", pattern,
                            std::ranges::any_of(from.dense, in("mtp")) ? ", and without --mtp-num-layers" : "");
}

}  // namespace

void stack_drafts(const Recognition& from, const DenseNaming* whole, std::vector<DraftOutput>& drafts, Plan& plan) {
  const Naming* const experts = find_naming(plan.to.naming);
  const DenseNaming* const rest = whole != nullptr ? whole : from.dense_naming;
  const bool has_stacks = from.layout.is_dense() || (experts != nullptr && experts->stacks_layers);
  if (!has_stacks || (rest != nullptr && !rest->stacks_layers))
    fail(ErrorCode::NoSpelling, {},
         "--stack-layers: in the naming {} of models of type '{}' each layer has tensors of its own", plan.to.naming,
         from.architecture == nullptr ? "" : from.architecture->model_type);
  DraftStacker stacker(drafts);
  const DraftOutput* const numbered = stacker.numbered();
  if (numbered == nullptr) return;
  if (whole == nullptr)
    fail(
        ErrorCode::NoSpelling, {{}, numbered->name},
        "--stack-layers: '{}' keeps its name: the checkpoint has Megatron's keys already, and its common.pt, its saved "
        "arguments and its `_extra_state` entries go with keys of each layer, and are copied as they are. Convert the "
        "checkpoint --to hf, and what that gives --to megatron --stack-layers",
        numbered->name);
  plan.notes.push_back(words_of_stacked(from, stacker.run()));
}

}  // namespace glu_ckpt
