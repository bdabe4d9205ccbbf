#include "format/pickle_graph.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "support/pickle_equal.hpp"
#include "support/pickle_text.hpp"

namespace glu_ckpt {
namespace {

TEST(PickleGraph, KeepsValues) {
  PickleGraph graph("source");
  EXPECT_EQ(graph.source(), "source");
  for (const i64 value : {i64{0}, i64{255}, i64{256}, i64{-1}, std::numeric_limits<i64>::min()})
    EXPECT_EQ(graph.integer(graph.add_int(value)), value);
  EXPECT_EQ(graph.number(graph.add_float(-0.125)), -0.125);
  EXPECT_EQ(graph.text(graph.add_view(PickleKind::Bytes, graph.source().substr(2))), "urce");
  EXPECT_EQ(show(graph, graph.add_tuple({graph.add_none(), graph.add_bool(true), graph.add_string("s")})),
            "(None True 's')");
  const PickleRef global = graph.add_global(std::string("mod"), std::string("name"));
  EXPECT_EQ(graph.add_global("mod", "name"), global);
  EXPECT_NE(graph.add_global("mod", "other"), global);
  EXPECT_EQ(show(graph, graph.add_call(global, graph.add_tuple({}))), "call:mod.name()");
  EXPECT_EQ(show(graph, graph.add_new(global, graph.add_tuple({graph.add_int(300)}))), "new:mod.name(300)");
  EXPECT_EQ(show(graph, graph.add_persistent(graph.add_int(7))), "persistent:7");
}

TEST(PickleGraph, WhatANodeIsNotIsNoAnswerInAnyBuild) {
  PickleGraph graph;
  const PickleRef number = graph.add_int(1000);
  EXPECT_THROW((void)graph.text(number), std::logic_error);
  EXPECT_THROW((void)graph.integer(graph.add_float(1)), std::logic_error);
  EXPECT_THROW((void)graph.kind(static_cast<PickleRef>(graph.size())), std::logic_error);
}

TEST(PickleGraph, ItemsKeepTheirOrderWhateverGrowsInBetween) {
  PickleGraph graph;
  std::vector<PickleRef> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = graph.add_int(static_cast<i64>(i) + 1000);
  const PickleRef type = graph.add_global("m", "n");
  const PickleRef targets[] = {graph.add_container(PickleKind::List, {}), graph.add_container(PickleKind::Set, {}),
                               graph.add_container(PickleKind::Dict, {}), graph.add_call(type, graph.add_tuple({})),
                               graph.add_new(type, graph.add_tuple({}))};
  const auto span = std::span<const PickleRef>(numbers);
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    for (const PickleRef target : targets) graph.extend(target, span.subspan(i, 2));
    // Every tenth step grows one of them twice in a row.
    if (i % 10 == 0) graph.extend(targets[0], span.subspan(i, 2));
  }
  for (const PickleRef target : std::span(targets).subspan(1)) EXPECT_EQ(graph.items(target), numbers);
  std::vector<PickleRef> twice;
  for (std::size_t i = 0; i < numbers.size(); i += 2)
    for (std::size_t time = 0; time < (i % 10 == 0 ? 2 : 1); ++time)
      twice.insert(twice.end(), numbers.begin() + static_cast<std::ptrdiff_t>(i),
                   numbers.begin() + static_cast<std::ptrdiff_t>(i) + 2);
  EXPECT_EQ(graph.items(targets[0]), twice);
  EXPECT_TRUE(graph.items_are_pairs(targets[3]));
}

TEST(PickleGraph, ObjectsHaveItemsAndStatesInAnyOrder) {
  PickleGraph graph;
  const PickleRef type = graph.add_global("m", "n");
  const PickleRef state_first = graph.add_new(type, graph.add_tuple({}));
  const PickleRef one = graph.add_int(1), two = graph.add_int(2), three = graph.add_int(3);
  EXPECT_FALSE(graph.has_items(state_first));
  graph.add_state(state_first, one);
  EXPECT_FALSE(graph.has_items(state_first));
  graph.extend_single(state_first, std::vector{two});
  graph.add_state(state_first, three);
  EXPECT_EQ(show(graph, state_first), "new:m.n() items 2 built 1 3");
  const PickleRef items_first = graph.add_call(type, graph.add_tuple({}));
  graph.extend(items_first, std::vector{one, two});
  graph.add_state(items_first, three);
  EXPECT_EQ(show(graph, items_first), "call:m.n() pairs 1 2 built 3");
  const PickleRef dict = graph.add_container(PickleKind::Dict, std::vector{one, two});
  graph.add_state(dict, three);
  EXPECT_EQ(show(graph, dict), "{1 2} built 3");
}

/// One of everything, shared and cyclic.
PickleRef add_all_kinds(PickleGraph& graph) {
  const PickleRef text = graph.add_string("shared");
  const PickleRef list = graph.add_container(PickleKind::List, std::vector{text, graph.add_float(0.5)});
  const PickleRef object = graph.add_new(graph.add_global("m", "Class"), graph.add_tuple({list}));
  graph.extend_single(object, std::vector{text, graph.add_none()});
  graph.add_state(object, object);
  graph.add_state(object, graph.add_text(PickleKind::BigInt, std::string(9, '\x01')));
  const PickleRef dict = graph.add_container(PickleKind::Dict, std::vector{text, object});
  graph.add_state(dict, graph.add_int(1000));
  const PickleRef set = graph.add_container(PickleKind::Set, std::vector{graph.add_persistent(text)});
  const PickleRef frozen = graph.add_container(PickleKind::FrozenSet, std::vector{graph.add_bool(false)});
  const PickleRef root = graph.add_tuple({dict, set, frozen, graph.add_text(PickleKind::ByteArray, "b"), list});
  graph.extend(list, std::vector{root});
  return root;
}

TEST(PickleGraph, ImportKeepsSharingAndCycles) {
  PickleGraph to("other");
  PickleRef copy = 0;
  PickleGraph expected;
  const PickleRef root = add_all_kinds(expected);
  {
    PickleGraph from;
    from.add_int(12345);  // so that refs differ
    copy = to.import(from, add_all_kinds(from));
  }
  EXPECT_TRUE(equal_pickles(expected, root, to, copy));
}

TEST(PickleGraph, ImportTakesAnyDepth) {
  PickleGraph from;
  PickleRef node = from.add_string("bottom");
  for (int i = 0; i < 1'000'000; ++i) node = from.add_tuple({node});
  PickleGraph to;
  EXPECT_TRUE(equal_pickles(from, node, to, to.import(from, node)));
}

TEST(PickleComparison, SeesEveryDifference) {
  const auto differ = [](PickleRef (*make)(PickleGraph&), PickleRef (*other)(PickleGraph&)) {
    PickleGraph a, b;
    const PickleRef left = make(a);
    return !equal_pickles(a, left, b, other(b));
  };
  const auto two_lists = [](PickleGraph& g) {
    return g.add_tuple({g.add_container(PickleKind::List, {}), g.add_container(PickleKind::List, {})});
  };
  const auto one_list_twice = [](PickleGraph& g) {
    const PickleRef list = g.add_container(PickleKind::List, {});
    return g.add_tuple({list, list});
  };
  EXPECT_FALSE(differ(two_lists, two_lists));
  EXPECT_TRUE(differ(two_lists, one_list_twice));
  EXPECT_TRUE(differ(one_list_twice, two_lists));
  EXPECT_TRUE(differ([](PickleGraph& g) { return g.add_int(1); }, [](PickleGraph& g) { return g.add_bool(true); }));
  EXPECT_TRUE(
      differ([](PickleGraph& g) { return g.add_float(0.0); }, [](PickleGraph& g) { return g.add_float(-0.0); }));
  EXPECT_TRUE(differ([](PickleGraph& g) { return g.add_string("a"); },
                     [](PickleGraph& g) { return g.add_text(PickleKind::Bytes, "a"); }));
}

}  // namespace
}  // namespace glu_ckpt
