/// Properties of the table of namings: every row spells, matches and recognizes itself.

#include <fmt/format.h>

#include <set>

#include "families/family.hpp"
#include "layout/key_pattern.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

TEST(NamingTable, NamesAndModelTypesAreUnique) {
  std::set<std::string_view> names;
  std::set<std::string> types;
  for (const Naming& naming : namings()) {
    EXPECT_TRUE(names.insert(naming.name).second) << naming.name;
    for (const std::string_view type : types_spelled_as(naming)) {
      const Family* const family = find_family(type);
      // The two forms of one family are told apart by shapes.
      if (family != nullptr && family->other_expert_naming == naming.name) continue;
      EXPECT_TRUE(types.insert("hf:" + std::string(type)).second) << type;
    }
  }
  EXPECT_GE(names.size(), 20u);
}

TEST(NamingTable, FindsRowsByNameAndByModelType) {
  for (const Naming& naming : namings()) EXPECT_EQ(find_naming(naming.name), &naming);
  EXPECT_EQ(find_naming("hf:olmoe"), find_naming("hf:qwen3_moe"));
  EXPECT_EQ(find_naming("hf:kimi_k2"), find_naming("hf:deepseek_v3"));
  EXPECT_EQ(find_naming("olmoe"), nullptr);
  EXPECT_EQ(find_naming("hf:"), nullptr);
  EXPECT_EQ(find_naming(""), nullptr);
}

TEST(NamingTable, EveryRowHasEveryTemplate) {
  for (const Naming& naming : namings()) {
    SCOPED_TRACE(naming.name);
    EXPECT_FALSE(naming.stacks.empty());
    EXPECT_FALSE(naming.router.empty());
    for (const PartNames* parts : {&naming.indexed, &naming.grouped})
      for (const Role role : {Role::GateUp, Role::Gate, Role::Up, Role::Down})
        EXPECT_FALSE(part_template(*parts, role).empty());
    const bool shared = !naming.shared.down.empty();
    for (const Role role : {Role::GateUp, Role::Gate, Role::Up})
      EXPECT_EQ(!part_template(naming.shared, role).empty(), shared);
    EXPECT_TRUE(naming.native_indexed_split || naming.native_indexed_fused || naming.native_grouped_split ||
                naming.native_grouped_fused);
    EXPECT_EQ(naming.fused_block_rows > 0, naming.fused_glu == Glu::Kind::Interleaved);
  }
}

/// Every key that a row can print is explained by that row, and by one pattern of it only.
TEST(NamingTable, EveryTemplateMatchesItself) {
  int keys = 0;
  for (const Naming& naming : namings())
    for (const StackPrefix& stack : naming.stacks)
      for (const auto& [set, experts] : {std::pair{ExpertSet::Routed, Experts::Indexed},
                                         {ExpertSet::Routed, Experts::Grouped},
                                         {ExpertSet::Shared, Experts::Indexed}})
        for (const Role role : {Role::GateUp, Role::Gate, Role::Up, Role::Down})
          for (const TensorKind kind : {TensorKind::Weight, TensorKind::Bias}) {
            const std::string_view part = part_template(part_names(naming, set, experts), role);
            if (part.empty()) continue;
            const std::string scope = stack.anchored ? "" : "module.";
            const std::string key = scope + print_stack(stack, "12", "7") + print_part(part, kind, "103");
            SCOPED_TRACE(key);
            const KeySkeleton skeleton = skeletonize(key);
            // A stack whose prefix ends another's leaves a longer scope: the first pattern is the one used.
            const KeyPattern* own = nullptr;
            std::set<std::tuple<ExpertSet, Experts, Role, TensorKind>> meanings;
            for (const KeyPattern* pattern : match_patterns(skeleton))
              if (pattern->naming == &naming) {
                if (own == nullptr) own = pattern;
                meanings.insert({pattern->set, pattern->experts, pattern->role, pattern->kind});
              }
            ASSERT_NE(own, nullptr);
            EXPECT_EQ(meanings.size(), 1u);
            EXPECT_EQ(own->role, role);
            EXPECT_EQ(own->kind, kind);
            EXPECT_EQ(own->set, set);
            EXPECT_EQ(own->experts, experts);
            const KeyParts parts = parse_key(key, skeleton, *own);
            EXPECT_EQ(parts.scope, scope);
            EXPECT_EQ(parts.layer, 12);
            EXPECT_EQ(parts.stack, stack.nested ? fmt::format("{}.7", stack.stack) : stack.stack);
            const ExpertPart expert = find_expert_part(key, *own);
            EXPECT_EQ(key.substr(0, expert.begin), scope + print_stack(stack, "12", "7"));
            EXPECT_EQ(expert.expert, own->has_expert ? 103 : 0);
            EXPECT_EQ(own->has_expert, set == ExpertSet::Routed && experts == Experts::Indexed);
            ++keys;
          }
  EXPECT_GT(keys, 1000);
}

struct NativeForm {
  Experts experts;
  bool fused;
};

std::vector<NativeForm> forms_of_experts(const Naming& naming) {
  std::vector<NativeForm> forms;
  for (const Experts experts : {Experts::Indexed, Experts::Grouped})
    for (const bool fused : {false, true})
      if (is_native(naming, ExpertSet::Routed, experts, fused)) forms.push_back({experts, fused});
  return forms;
}

std::vector<std::string> model_types(const Naming& naming) {
  std::vector<std::string> types;
  if (naming.name.starts_with("hf:") && naming.name != "hf:qwen3_vl_moe-v5") types.emplace_back(naming.name.substr(3));
  for (const std::string_view type : types_spelled_as(naming)) types.emplace_back(type);
  if (types.empty()) types.emplace_back();
  return types;
}

/// The forms that a family's own software writes, with its model_type and no record.
TEST(NamingTable, EveryNativeFormIsRecognized) {
  for (const Naming& naming : namings())
    for (const NativeForm form : forms_of_experts(naming))
      for (const std::string& type : model_types(naming)) {
        SCOPED_TRACE(fmt::format("{} model_type '{}' {} {}", naming.name, type, to_string(form.experts),
                                 form.fused ? "fused" : "split"));
        ModelSpec model;
        BlockSpec block;
        block.widths = widths(3, 2);
        model.blocks.push_back(block);
        const bool shared = !naming.shared.down.empty();
        if (shared) {
          block.set = ExpertSet::Shared;
          block.widths = {6};
          model.blocks.push_back(block);
        }
        Glu fixed = fixed_glu(naming);
        Spelling spelling{std::string(naming.name), form.experts, form.experts, split(), split()};
        if (form.fused) spelling.glu = fixed.kind == Glu::Kind::Unknown ? contiguous() : fixed;
        if (naming.native_shared_fused) spelling.shared_glu = contiguous();
        ModelHints hints;
        hints.model_type = type;
        hints.num_experts = 3;
        const Recognition found = recognize(make_inventory(build(model, spelling)), hints, {}, {});
        EXPECT_EQ(found.naming->name, naming.name);
        EXPECT_EQ(found.layout.experts, to_string(form.experts));
        EXPECT_EQ(to_string(found.layout.glu), to_string(form.fused ? fixed : split()));
        EXPECT_EQ(found.layout.glu_source, form.fused && fixed.kind == Glu::Kind::Unknown ? "none" : "naming");
        EXPECT_EQ(found.layout.shared_glu.has_value(), shared);
        EXPECT_TRUE(found.problems.empty());
        EXPECT_TRUE(found.others.empty());
        ASSERT_EQ(found.blocks.size(), model.blocks.size());
        EXPECT_EQ(found.blocks[0].num_experts, 3);
        EXPECT_EQ(found.blocks[0].hidden_size, 4);
        EXPECT_EQ(found.blocks[0].intermediate_size, 2);
        if (!type.empty() && naming.name != "hf:qwen3_vl_moe-v5") {
          EXPECT_EQ(found.layout.naming, "hf:" + type);
        }
      }
}

TEST(NamingTable, SummariesCoverTheTable) {
  const auto rows = naming_summaries();
  ASSERT_EQ(rows.size(), namings().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].name, namings()[i].name);
    EXPECT_FALSE(rows[i].glu.empty());
    EXPECT_NE(rows[i].example.find("{L}"), std::string::npos);
  }
}

}  // namespace
}  // namespace glu_ckpt
