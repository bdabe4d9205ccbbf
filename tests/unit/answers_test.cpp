#include "layout/glu_answers.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

TEST(Answers, GluParsesWhatItPrints) {
  for (const Glu& glu : {split(), contiguous(), interleaved(1), interleaved(32), interleaved(1'000'000'007)})
    EXPECT_EQ(parse_glu(to_string(glu)), glu) << to_string(glu);
  EXPECT_EQ(parse_glu("interleaved"), interleaved(32));
}

TEST(Answers, GluRefusesWhatNobodyMayAskFor) {
  for (const std::string text : {"", "Split", "unknown", "none", "interleaved:", "interleaved:0", "interleaved:-1",
                                 "interleaved:+2", "interleaved: 2", "interleaved:2x", "interleaved:1.5", "interleave",
                                 "interleaved:99999999999999999999", "keep"})
    expect_error(
        ErrorCode::Usage, [&] { parse_glu(text); }, "'" + text + "'");
}

TEST(Answers, Experts) {
  EXPECT_EQ(parse_experts("indexed"), Experts::Indexed);
  EXPECT_EQ(parse_experts("grouped"), Experts::Grouped);
  expect_error(ErrorCode::Usage, [] { parse_experts("mixed"); });
}

TEST(Answers, LayerLabels) {
  ExpertBlock block;
  block.stack = "decoder";
  block.layer = 3;
  EXPECT_EQ(layer_label(block), "3");
  block.scope = "module.";
  EXPECT_EQ(layer_label(block), "module.3");
  block.scope.clear();
  block.stack = "mtp";
  block.layer = 0;
  EXPECT_EQ(layer_label(block), "mtp.0");
}

// ---- who settles the order of gate and up ---------------------------------------------------------

/// A source of one layer, F = 12, in this spelling; answers and record come from each test.
class GluAnswers : public ::testing::Test {
 protected:
  static LayoutAnswers settle(const std::string& naming, bool fused, const SourceAnswers& answers, const Record& record,
                              const std::string& model_type = {}, const ArgumentOrders& said = {}) {
    ModelSpec model;
    BlockSpec block;
    block.widths = widths(2, 12);
    model.blocks.push_back(block);
    const Experts experts = naming == "megatron" || !fused ? Experts::Indexed : Experts::Grouped;
    const Spelling spelling{naming, experts, experts, fused ? contiguous() : split(), split()};
    ModelHints hints;
    hints.model_type = model_type;
    hints.trained.glu = said.trained;
    hints.listed.glu = said.listed;
    return recognize(make_inventory(build(model, spelling)), hints, record, answers).layout;
  }

  static SourceAnswers say(const Glu& glu) { return {{}, glu, {}}; }
};

TEST_F(GluAnswers, NothingIsGuessed) {
  const LayoutAnswers found = settle("megatron", true, {}, {});
  EXPECT_EQ(found.glu.kind, Glu::Kind::Unknown);
  EXPECT_EQ(found.glu_source, "none");
  EXPECT_EQ(settle("megatron", true, {}, {{"glu", "unknown"}}).glu.kind, Glu::Kind::Unknown);
}

TEST_F(GluAnswers, OptionThenRecordThenNaming) {
  LayoutAnswers found = settle("megatron", true, say(interleaved(4)), {});
  EXPECT_EQ(to_string(found.glu), "interleaved:4");
  EXPECT_EQ(found.glu_source, "option");
  found = settle("megatron", true, {}, {{"glu", "interleaved:6"}});
  EXPECT_EQ(to_string(found.glu), "interleaved:6");
  EXPECT_EQ(found.glu_source, "record");
  found = settle("megatron", true, say(interleaved(6)), {{"glu", "interleaved:6"}});
  EXPECT_EQ(found.glu_source, "option");
  found = settle("hf:gpt_oss", true, {}, {}, "gpt_oss");
  EXPECT_EQ(to_string(found.glu), "interleaved:1");
  EXPECT_EQ(found.glu_source, "naming");
  // An output of this tool may hold what its family's software does not; then its record says so.
  found = settle("hf:gpt_oss", true, {}, {{"naming", "hf:gpt_oss"}, {"glu", "interleaved:4"}}, "gpt_oss");
  EXPECT_EQ(to_string(found.glu), "interleaved:4");
  EXPECT_EQ(found.glu_source, "record");
  found = settle("hf:mixtral", false, {}, {});
  EXPECT_EQ(to_string(found.glu), "split");
  EXPECT_EQ(found.glu_source, "naming");
}

TEST_F(GluAnswers, AnswersThatDisagree) {
  expect_error(
      ErrorCode::GluConflict,
      [] {
        settle("megatron", true, say(interleaved(4)), {{"glu", "interleaved:6"}});
      },
      "interleaved:6");
  expect_error(ErrorCode::GluConflict, [] { settle("megatron", true, say(contiguous()), {{"glu", "interleaved:6"}}); });
  expect_error(
      ErrorCode::GluConflict, [] { settle("hf:gpt_oss", true, say(contiguous()), {}, "gpt_oss"); }, "interleaved:1");
  expect_error(
      ErrorCode::GluConflict, [] { settle("hf:granitemoe", true, say(interleaved(2)), {}, "granitemoe"); },
      "contiguous");
}

TEST_F(GluAnswers, MegatronArgsAnswerWhereNothingElseDoes) {
  const auto listed = [](const std::string& naming, bool fused, const SourceAnswers& answers, const Record& record,
                         const std::string& trained = {}) {
    return settle(naming, fused, answers, record, {}, {trained, "interleaved:4"});
  };
  LayoutAnswers found = listed("megatron", true, {}, {});
  EXPECT_EQ(to_string(found.glu), "interleaved:4");
  EXPECT_EQ(found.glu_source, "megatron_args.txt");
  EXPECT_EQ(listed("megatron", true, say(interleaved(4)), {}).glu_source, "option");
  found = listed("megatron", true, {}, {{"glu", "interleaved:4"}});
  EXPECT_EQ(to_string(found.glu), "interleaved:4");
  EXPECT_EQ(found.glu_source, "record");
  expect_error(
      ErrorCode::GluConflict,
      [&] {
        listed("megatron", true, {}, {{"glu", "interleaved:6"}});
      },
      "the record says interleaved:6, but megatron_args.txt says interleaved:4");
  // Only what `stamp` wrote is taken out by `stamp --remove`.
  for (const Record& record :
       {Record{{"glu", "interleaved:6"}}, Record{{"glu", "interleaved:6"}, {"digest", "gck2:0"}}}) {
    const char* const way_on = record.contains("digest") ? "put glu_ckpt.json elsewhere" : "stamp PATH --remove`";
    expect_error(
        ErrorCode::GluConflict, [&] { listed("megatron", true, {}, record); }, way_on);
    expect_error(
        ErrorCode::GluConflict, [&] { settle("megatron", true, say(interleaved(4)), record); }, way_on);
  }
  EXPECT_EQ(listed("megatron", true, {}, {}, "interleaved:4").glu_source, "arguments");
  expect_error(
      ErrorCode::GluConflict, [&] { listed("megatron", true, say(contiguous()), {}); },
      "megatron_args.txt says interleaved:4");
  expect_error(
      ErrorCode::GluConflict, [&] { listed("megatron", true, {}, {}, "contiguous"); }, "mend megatron_args.txt");
  expect_error(
      ErrorCode::RecordContradicts,
      [&] {
        settle("megatron", true, {}, {}, {}, {"", "interleaved:5"});
      },
      "megatron_args.txt says interleaved:5");
  // What was made of a checkpoint for Megatron may lie beside its arguments.
  EXPECT_EQ(listed("hf:mixtral", false, {}, {}).glu_source, "naming");
  EXPECT_EQ(to_string(listed("hf:mixtral", false, {}, {{"glu", "split"}}).glu), "split");
}

TEST_F(GluAnswers, AnswersThatTheTensorsContradict) {
  expect_error(
      ErrorCode::GluConflict, [] { settle("hf:mixtral", false, say(contiguous()), {}); }, "two tensors");
  expect_error(
      ErrorCode::GluConflict, [] { settle("megatron", true, say(split()), {}); }, "one tensor");
  expect_error(ErrorCode::RecordContradicts, [] { settle("hf:mixtral", false, {}, {{"glu", "contiguous"}}); });
  expect_error(ErrorCode::RecordContradicts, [] { settle("megatron", true, {}, {{"glu", "split"}}); });
  expect_error(ErrorCode::RecordContradicts, [] { settle("megatron", true, {}, {{"glu", "interleaved:5"}}); });
  expect_error(ErrorCode::RecordInvalid, [] { settle("megatron", true, {}, {{"glu", "sideways"}}); });
}

TEST_F(GluAnswers, BlocksThatDoNotDivide) {
  expect_error(
      ErrorCode::NotDivisible, [] { settle("megatron", true, say(interleaved(5)), {}); }, "24 rows");
  expect_error(ErrorCode::NotDivisible, [] { settle("megatron", true, say(interleaved(24)), {}); });
}

TEST_F(GluAnswers, AnOptionSettlesAPackedCheckpointOfNoKnownFamily) {
  const LayoutAnswers found = settle("hf:gpt_oss", true, say(interleaved(1)), {});
  EXPECT_EQ(to_string(found.glu), "interleaved:1");
  EXPECT_EQ(found.glu_source, "option");
}

TEST_F(GluAnswers, SharedExpertsHaveAnAnswerOfTheirOwn) {
  ModelSpec model;
  BlockSpec block;
  block.widths = widths(2, 12);
  model.blocks.push_back(block);
  block.set = ExpertSet::Shared;
  block.widths = {16};
  model.blocks.push_back(block);
  const Inventory inventory =
      make_inventory(build(model, {"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()}));
  const LayoutAnswers found = recognize(inventory, {}, {{"shared_glu", "interleaved:8"}}, say(interleaved(4))).layout;
  EXPECT_EQ(to_string(found.glu), "interleaved:4");
  ASSERT_TRUE(found.shared_glu);
  EXPECT_EQ(to_string(*found.shared_glu), "interleaved:8");
  EXPECT_EQ(recognize(inventory, {}, {}, say(interleaved(4))).layout.shared_glu->kind, Glu::Kind::Unknown);
  expect_error(ErrorCode::GluConflict, [&] {
    recognize(inventory, {}, {{"shared_glu", "interleaved:8"}}, {{}, {}, interleaved(4)});
  });
  expect_error(ErrorCode::NotDivisible, [&] { recognize(inventory, {}, {}, {{}, {}, interleaved(12)}); });
}

TEST_F(GluAnswers, ExpertsWithoutAGateTakeNone) {
  ModelSpec model;
  model.blocks.emplace_back();
  model.blocks[0].gated = false;
  const Inventory inventory =
      make_inventory(build(model, {"megatron", Experts::Indexed, Experts::Indexed, {Glu::Kind::None, 0}, split()}));
  expect_error(
      ErrorCode::GluConflict, [&] { recognize(inventory, {}, {}, say(contiguous())); }, "no gate");
  expect_error(ErrorCode::RecordContradicts, [&] { recognize(inventory, {}, {{"glu", "contiguous"}}, {}); });
  EXPECT_EQ(recognize(inventory, {}, {{"glu", "none"}}, {}).layout.glu.kind, Glu::Kind::None);
}

}  // namespace
}  // namespace glu_ckpt
