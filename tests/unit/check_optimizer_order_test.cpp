/// Position-coded weights beside master weights that round to them, in orders that are claimed rightly and wrongly.

#include <algorithm>
#include <cstring>

#include "model/optimizer_order.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr i64 kWidth = 12;

/// Two layers of routed and shared experts in bf16. No code up to 2^14 is a NaN of bf16.
ModelSpec weights_of(Dtype dtype = Dtype::BF16) {
  ModelSpec model;
  for (const i64 layer : {0, 1}) {
    BlockSpec block;
    block.layer = layer;
    block.hidden = 3;
    block.widths = widths(3, kWidth);
    block.bias = true;
    block.dtype = dtype;
    model.blocks.push_back(block);
    block.set = ExpertSet::Shared;
    block.widths = {2 * kWidth};
    model.blocks.push_back(block);
  }
  return model;
}

/// fp32 that rounds to a bf16, but does not have its bits.
std::vector<std::byte> widened(const std::vector<std::byte>& bf16) {
  std::vector<std::byte> wide;
  for (std::size_t i = 0; i < bf16.size(); i += 2) {
    std::uint16_t code = 0;
    std::memcpy(&code, bf16.data() + i, 2);
    const bool finite = (code & 0x7f80) != 0x7f80;
    const u32 bits = u32{code} << 16 | (finite ? i % 0x8000 : 0);
    for (int byte = 0; byte < 4; ++byte) wide.push_back(static_cast<std::byte>(bits >> (8 * byte)));
  }
  return wide;
}

/// The weights in one spelling beside master weights in another, under Megatron's keys of `state`.
std::vector<MemoryTensor> with_masters(const ModelSpec& model, const Spelling& weights, const Spelling& states,
                                       const std::string& state = "param") {
  std::vector<MemoryTensor> tensors = build(model, weights);
  for (MemoryTensor& tensor : build(model, states)) {
    tensor.name = "optimizer.state." + state + "." + tensor.name;
    if (tensor.dtype == Dtype::BF16) tensor.bytes = widened(tensor.bytes);
    tensor.dtype = Dtype::F32;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Spelling spelled(const std::string& naming, Experts experts, const Glu& glu, const Glu& shared) {
  Spelling spelling{naming, experts, experts, glu, shared};
  spelling.stacked = naming == "megatron-dist" && experts == Experts::Grouped;
  return spelling;
}

SourceAnswers answers(const Glu& glu, const Glu& shared, std::optional<Glu> optimizer = std::nullopt) {
  SourceAnswers said;
  said.glu = glu;
  said.shared_glu = shared;
  said.optimizer_glu = optimizer;
  return said;
}

OptimizerCheck check(const std::vector<MemoryTensor>& tensors, const SourceAnswers& said) {
  const MemorySource source(tensors);
  const Recognition recognition = recognize_source(source, said);
  return check_optimizer_order({&source, &recognition}, said.option_prefix);
}

const std::vector<std::pair<std::string, Experts>> kForms{{"megatron", Experts::Indexed},
                                                          {"megatron", Experts::Grouped},
                                                          {"megatron-sequential", Experts::Indexed},
                                                          {"megatron-dist", Experts::Grouped}};

TEST(CheckOptimizerOrder, RightClaimsAgree) {
  for (const auto& [naming, experts] : kForms)
    for (const std::string state : {"param", "fp32_param"})
      for (const Glu& weights : {contiguous(), interleaved(4)})
        for (const Glu& states : {contiguous(), interleaved(1), interleaved(6)}) {
          const Spelling a = spelled(naming, experts, weights, interleaved(8));
          const Spelling b = spelled(naming, experts, states, interleaved(8));
          const OptimizerCheck found =
              check(with_masters(weights_of(), a, b, state), answers(weights, interleaved(8), states));
          EXPECT_EQ(found.agreeing, 4) << a.describe();
          EXPECT_EQ(found.undecided + found.unread, 0);
          EXPECT_GE(found.rows, 4 * 8);
        }
}

TEST(CheckOptimizerOrder, AWrongClaimAboutTheStatesIsRefused) {
  for (const auto& [naming, experts] : kForms)
    for (const std::optional<Glu>& claimed : {std::optional<Glu>(), std::optional(interleaved(3))}) {
      const auto tensors = with_masters(weights_of(), spelled(naming, experts, contiguous(), contiguous()),
                                        spelled(naming, experts, interleaved(4), contiguous()));
      const SourceAnswers said = answers(contiguous(), contiguous(), claimed);
      expect_error(
          ErrorCode::GluConflict, [&] { check(tensors, said); }, "--from-optimizer-glu interleaved:4");
      expect_error(
          ErrorCode::GluConflict, [&] { check(tensors, said); }, "layer 0, routed experts");
      expect_error(
          ErrorCode::GluConflict, [&] { check(tensors, said); }, "linear_fc1.weight");
      EXPECT_EQ(check(tensors, answers(contiguous(), contiguous(), interleaved(4))).agreeing, 4);
    }
}

TEST(CheckOptimizerOrder, AWrongClaimAboutTheWeightsIsRefused) {
  const auto tensors = with_masters(weights_of(), spelled("megatron", Experts::Indexed, interleaved(2), contiguous()),
                                    spelled("megatron", Experts::Indexed, contiguous(), contiguous()));
  expect_error(
      ErrorCode::GluConflict, [&] { check(tensors, answers(contiguous(), contiguous())); },
      "--from-glu interleaved:2 --from-optimizer-glu contiguous");
  SourceAnswers other = answers(contiguous(), contiguous());
  other.option_prefix = "--to-";
  expect_error(
      ErrorCode::GluConflict, [&] { check(tensors, other); }, "--to-glu interleaved:2");
}

TEST(CheckOptimizerOrder, SharedExpertsAreChecked) {
  const auto tensors = with_masters(weights_of(), spelled("megatron", Experts::Indexed, contiguous(), contiguous()),
                                    spelled("megatron", Experts::Indexed, contiguous(), interleaved(8)));
  expect_error(
      ErrorCode::GluConflict, [&] { check(tensors, answers(contiguous(), contiguous())); }, "layer 0, shared experts");
  expect_error(
      ErrorCode::GluConflict, [&] { check(tensors, answers(contiguous(), contiguous())); }, "--optimizer drop");
}

/// The recorded order of the states is a claim as well.
TEST(CheckOptimizerOrder, ARecordIsAClaim) {
  const auto tensors = with_masters(weights_of(), spelled("megatron", Experts::Indexed, contiguous(), contiguous()),
                                    spelled("megatron", Experts::Indexed, interleaved(4), contiguous()));
  const MemorySource source(tensors, {},
                            {{"glu", "contiguous"}, {"shared_glu", "contiguous"}, {"optimizer_glu", "interleaved:2"}});
  const Recognition recognition = recognize_source(source);
  expect_error(
      ErrorCode::GluConflict,
      [&] {
        check_optimizer_order({&source, &recognition}, "--from-");
      },
      "remove it first");
}

/// Gate and up as two tensors, cut out of FC1s by position.
TEST(CheckOptimizerOrder, HalvesCutByPosition) {
  const auto halved = [](const Glu& states) {
    std::vector<MemoryTensor> halves;
    for (MemoryTensor& tensor :
         with_masters(weights_of(), spelled("megatron", Experts::Indexed, contiguous(), contiguous()),
                      spelled("megatron", Experts::Indexed, states, contiguous()))) {
      if (tensor.name.find("linear_fc1") == std::string::npos) {
        halves.push_back(tensor);
        continue;
      }
      tensor.shape[0] /= 2;
      const auto middle = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(tensor.bytes.size() / 2);
      halves.push_back({tensor.name + "_w", tensor.dtype, tensor.shape, {tensor.bytes.begin(), middle}});
      halves.push_back({tensor.name + "_v", tensor.dtype, tensor.shape, {middle, tensor.bytes.end()}});
    }
    return halves;
  };
  EXPECT_EQ(check(halved(contiguous()), {}).agreeing, 4);
  expect_error(
      ErrorCode::GluConflict, [&] { check(halved(interleaved(4)), {}); }, "--from-optimizer-glu interleaved:4");
  SourceAnswers said;
  said.optimizer_glu = interleaved(4);
  EXPECT_EQ(check(halved(interleaved(4)), said).agreeing, 4);
}

/// [H, 2F] with gate and up in turn: rows are columns there.
TEST(CheckOptimizerOrder, TransposedExperts) {
  const Spelling spelling{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
  ModelSpec model = weights_of();
  std::erase_if(model.blocks, [](const BlockSpec& block) { return block.set == ExpertSet::Shared; });
  Spelling states = spelling;
  EXPECT_EQ(check(with_masters(model, spelling, states), answers(interleaved(1), split())).agreeing, 2);
  states.glu = interleaved(3);
  expect_error(
      ErrorCode::GluConflict, [&] { check(with_masters(model, spelling, states), answers(interleaved(1), split())); },
      "interleaved:3");
}

TEST(CheckOptimizerOrder, WeightsInFp32) {
  const Spelling a = spelled("megatron", Experts::Indexed, contiguous(), contiguous());
  const Spelling b = spelled("megatron", Experts::Indexed, interleaved(6), contiguous());
  const auto tensors = with_masters(weights_of(Dtype::F32), a, b);
  expect_error(
      ErrorCode::GluConflict, [&] { check(tensors, answers(contiguous(), contiguous())); }, "interleaved:6");
  EXPECT_EQ(check(tensors, answers(contiguous(), contiguous(), interleaved(6))).agreeing, 4);
}

// ---- no evidence ----------------------------------------------------------------------------------

const Spelling kContiguous = spelled("megatron", Experts::Indexed, contiguous(), contiguous());
const Spelling kMixed = spelled("megatron", Experts::Indexed, interleaved(4), contiguous());

TEST(CheckOptimizerOrder, MomentsSayNothing) {
  const auto tensors = with_masters(weights_of(), kContiguous, kMixed, "exp_avg");
  const OptimizerCheck found = check(tensors, answers(contiguous(), contiguous()));
  EXPECT_EQ(found.agreeing + found.undecided + found.unread, 0);
}

TEST(CheckOptimizerOrder, UnknownOrdersClaimNothing) {
  const OptimizerCheck found = check(with_masters(weights_of(), kContiguous, kMixed), {});
  EXPECT_EQ(found.agreeing + found.undecided + found.unread, 0);
}

TEST(CheckOptimizerOrder, DtypesThatDoNotRound) {
  auto tensors = with_masters(weights_of(), kContiguous, kMixed);
  for (MemoryTensor& tensor : tensors)
    if (tensor.dtype == Dtype::F32) tensor.dtype = Dtype::I32;
  const OptimizerCheck found = check(tensors, answers(contiguous(), contiguous()));
  EXPECT_EQ(found.agreeing + found.undecided + found.unread, 0);
}

/// Tensors of a state, or of the weights.
void fill(std::vector<MemoryTensor>& tensors, bool of_states, std::byte value) {
  for (MemoryTensor& tensor : tensors)
    if (tensor.name.starts_with("optimizer.") == of_states) std::ranges::fill(tensor.bytes, value);
}

TEST(CheckOptimizerOrder, StaleMastersSayNothing) {
  auto tensors = with_masters(weights_of(), kContiguous, kMixed);
  for (MemoryTensor& tensor : tensors)
    if (tensor.dtype == Dtype::F32)
      for (std::size_t i = 2; i < tensor.bytes.size(); i += 4) tensor.bytes[i] ^= std::byte{1};
  const OptimizerCheck found = check(tensors, answers(contiguous(), contiguous()));
  EXPECT_EQ(found.agreeing, 0);
  EXPECT_EQ(found.undecided, 4);
  fill(tensors, true, std::byte{0});
  EXPECT_EQ(check(tensors, answers(contiguous(), contiguous())).undecided, 4);
}

TEST(CheckOptimizerOrder, RowsThatAreAlikeSayNothing) {
  auto tensors = with_masters(weights_of(), kContiguous, kMixed);
  fill(tensors, true, std::byte{0});
  fill(tensors, false, std::byte{0});
  EXPECT_EQ(check(tensors, answers(contiguous(), contiguous())).undecided, 4);
  // One stale value among zeros: the orders in which it is not looked at do not fit any better.
  for (MemoryTensor& tensor : tensors)
    if (tensor.dtype == Dtype::F32 && tensor.name.find("linear_fc1.weight") != std::string::npos)
      tensor.bytes[static_cast<std::size_t>(kWidth) * 3 * 4 + 3] = std::byte{0x40};
  EXPECT_EQ(check(tensors, answers(contiguous(), contiguous())).undecided, 4);
}

/// The last expert in another order than the first: no one order fits both.
TEST(CheckOptimizerOrder, TheLastExpertIsLookedAt) {
  auto tensors = with_masters(weights_of(), kContiguous, kContiguous);
  for (const MemoryTensor& other : with_masters(weights_of(), kContiguous, kMixed))
    for (MemoryTensor& tensor : tensors)
      if (tensor.name == other.name && tensor.name.ends_with("mlp.experts.linear_fc1.weight2"))
        tensor.bytes = other.bytes;
  const OptimizerCheck found = check(tensors, answers(contiguous(), contiguous()));
  EXPECT_EQ(found.agreeing, 2);
  EXPECT_EQ(found.undecided, 2);
}

/// One row that does not fit anywhere: the state is stale there, and nothing else is told.
TEST(CheckOptimizerOrder, ASampleMustFitAsAWhole) {
  auto tensors = with_masters(weights_of(), kContiguous, kMixed);
  for (MemoryTensor& tensor : tensors)
    if (tensor.dtype == Dtype::F32) tensor.bytes[2] ^= std::byte{1};
  EXPECT_EQ(check(tensors, answers(contiguous(), contiguous())).agreeing, 0);
}

}  // namespace
}  // namespace glu_ckpt
