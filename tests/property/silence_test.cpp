/// No tensor goes missing, and none comes along, in silence: a plan for Megatron-Core of a model of testdata/whole
/// without one of its tensors, or with one more, is refused or has a flaw that names it. Headers alone are read.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "arch/recognize_model.hpp"
#include "families/architecture.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/model.hpp"
#include "support/whole_models.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

PlanOptions to_megatron(const Recognition& model, bool keep_unknown) {
  PlanOptions options;
  options.to.naming = "megatron-dist";
  options.to.keep_unknown = keep_unknown;
  if (!model.blocks.empty()) options.to.experts = options.to.bias_experts = Experts::Grouped;
  const bool gated = model.layout.glu.kind != Glu::Kind::None;
  if (gated && !model.blocks.empty()) options.to.glu = support::contiguous();
  if (gated && model.layout.shared_glu) options.to.shared_glu = support::contiguous();
  return options;
}

struct Said {
  bool is_refused = false;
  std::string text;
};

/// What is said of a plan of these tensors.
Said plan_of(const Checkpoint& checkpoint, const Inventory& inventory, bool keep_unknown) {
  try {
    const Recognition model = recognize_model(inventory, checkpoint.hints, {}, {});
    const Plan plan = make_plan(inventory, model, to_megatron(model, keep_unknown));
    check_plan(inventory, plan);
    std::string text;
    for (const ModelFlaw& flaw : model.flaws) text += flaw.text + "\n";
    return {false, text};
  } catch (const Error& error) {
    return {true, error.what()};
  }
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

/// Of experts the layer is named.
bool names(const std::string& text, const std::string& tensor) {
  if (has(text, tensor)) return true;
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t layers = tensor.find(kLayers);
  if (layers == tensor.npos || (!has(tensor, "expert") && !has(tensor, "shared_mlp"))) return false;
  const std::size_t number = layers + kLayers.size(), end = tensor.find('.', number);
  return has(text, "layer " + tensor.substr(number, end - number)) || has(text, tensor.substr(0, end) + ".") ||
         has(text, "layer mtp.");
}

/// The embedding and the head are read from where they are stored first, and what talks is no model that is known here.
bool may_go(const std::string& tensor) {
  return tensor.ends_with("3.embed_tokens.weight") || tensor.ends_with("shared_head.head.weight") ||
         tensor.starts_with("talker.") || tensor.starts_with("code2wav.");
}

template <typename Use>
void for_each_model(const Use& use) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(support::home_of("."))) folders.push_back(entry.path() / "hf");
  ASSERT_GE(folders.size(), 20U);
  std::ranges::sort(folders);
  for (const fs::path& folder : folders) {
    const Checkpoint checkpoint = open_checkpoint(folder);
    const bool is_wrapper = checkpoint.hints.model_type != checkpoint.recognition.architecture->model_type;
    const Said whole = plan_of(checkpoint, checkpoint.source->inventory(), is_wrapper);
    ASSERT_FALSE(whole.is_refused) << folder << ": " << whole.text;
    ASSERT_EQ(whole.text, "") << folder;
    use(folder.parent_path().filename().string(), checkpoint, is_wrapper);
  }
}

TEST(Silence, NoTensorGoesMissing) {
  int cases = 0;
  for_each_model([&](const std::string& family, const Checkpoint& checkpoint, bool is_wrapper) {
    const Inventory& whole = checkpoint.source->inventory();
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
      const std::string& name = whole.tensors[i].name;
      if (may_go(name)) continue;
      ++cases;
      Inventory left = whole;
      left.tensors.erase(left.tensors.begin() + static_cast<std::ptrdiff_t>(i));
      const Said said = plan_of(checkpoint, left, is_wrapper);
      EXPECT_TRUE(names(said.text, name)) << family << " without " << name << ": " << said.text;
    }
  });
  EXPECT_GT(cases, 1400);
}

TEST(Silence, NoTensorComesAlong) {
  int cases = 0;
  for_each_model([&](const std::string& family, const Checkpoint& checkpoint, bool is_wrapper) {
    // What is beside the language model travels on request, whatever it is called.
    if (is_wrapper) return;
    const Inventory& whole = checkpoint.source->inventory();
    for (std::size_t i = 0; i < whole.tensors.size(); ++i)
      for (const std::string& name : {whole.tensors[i].name + ".stray", "stray." + whole.tensors[i].name}) {
        ++cases;
        Inventory more = whole;
        more.tensors.push_back(whole.tensors[i]);
        more.tensors.back().name = name;
        const Said said = plan_of(checkpoint, more, false);
        EXPECT_TRUE(said.is_refused && names(said.text, name)) << family << " with " << name << ": " << said.text;
      }
  });
  EXPECT_GT(cases, 2000);
}

/// A bias of a layer that has none would go where nothing reads it.
TEST(Silence, NoBiasComesAlong) {
  int cases = 0;
  for_each_model([&](const std::string& family, const Checkpoint& checkpoint, bool is_wrapper) {
    if (is_wrapper) return;
    constexpr std::string_view kWeight = ".weight";
    const Inventory& whole = checkpoint.source->inventory();
    for (const TensorRef& weight : whole.tensors) {
      if (!weight.name.ends_with(kWeight)) continue;
      TensorRef bias = weight;
      bias.name = weight.name.substr(0, weight.name.size() - kWeight.size()) + ".bias";
      bias.shape = {weight.shape.front()};
      bias.bytes = weight.shape.front() * dtype_bits(weight.dtype) / 8;
      if (std::ranges::find(whole.tensors, bias.name, &TensorRef::name) != whole.tensors.end()) continue;
      ++cases;
      Inventory more = whole;
      more.tensors.push_back(bias);
      const Said said = plan_of(checkpoint, more, false);
      EXPECT_TRUE(said.is_refused && names(said.text, bias.name))
          << family << " with " << bias.name << ": " << said.text;
    }
  });
  EXPECT_GT(cases, 1000);
}

}  // namespace
}  // namespace glu_ckpt
