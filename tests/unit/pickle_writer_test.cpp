#include <gtest/gtest.h>

#include "format/pickle_graph.hpp"
#include "support/pickle_equal.hpp"
#include "support/pickle_text.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

std::string written(PickleRef (*make)(PickleGraph&)) {
  PickleGraph graph;
  return write_pickle(graph, make(graph));
}

struct Writing {
  PickleRef (*make)(PickleGraph&);
  std::string body;
};

TEST(PickleWriter, WritesProtocolTwo) {
  const Writing writings[] = {
      {[](PickleGraph& g) { return g.add_none(); }, "N"},
      {[](PickleGraph& g) { return g.add_bool(true); }, "\x88"},
      {[](PickleGraph& g) { return g.add_bool(false); }, "\x89"},
      {[](PickleGraph& g) { return g.add_int(255); }, "K\xff"},
      {[](PickleGraph& g) { return g.add_int(256); }, bytes_of("M\x00\x01")},
      {[](PickleGraph& g) { return g.add_int(65536); }, bytes_of("J\x00\x00\x01\x00")},
      {[](PickleGraph& g) { return g.add_int(-1); }, "J\xff\xff\xff\xff"},
      {[](PickleGraph& g) { return g.add_int(i64{1} << 31); }, bytes_of("\x8a\x05\x00\x00\x00\x80\x00")},
      {[](PickleGraph& g) { return g.add_int(-(i64{1} << 39)); }, bytes_of("\x8a\x05\x00\x00\x00\x00\x80")},
      {[](PickleGraph& g) { return g.add_int(std::numeric_limits<i64>::max()); },
       "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"},
      {[](PickleGraph& g) { return g.add_text(PickleKind::BigInt, "123456789"); },
       "\x8a\x09"
       "123456789"},
      {[](PickleGraph& g) { return g.add_text(PickleKind::BigInt, std::string(256, 'd')); },
       bytes_of("\x8b\x00\x01\x00\x00") + std::string(256, 'd')},
      {[](PickleGraph& g) { return g.add_float(-1.5); }, bytes_of("G\xbf\xf8\x00\x00\x00\x00\x00\x00")},
      {[](PickleGraph& g) { return g.add_string("hi"); }, bytes_of("X\x02\x00\x00\x00hi")},
      {[](PickleGraph& g) { return g.add_text(PickleKind::Bytes, "a\xff"); },
       bytes_of("c_codecs\nencode\nq\x00X\x03\x00\x00\x00"
                "a\xc3\xbfX\x06\x00\x00\x00latin1q\x01\x86R")},
      {[](PickleGraph& g) { return g.add_text(PickleKind::ByteArray, "a"); },
       bytes_of("c__builtin__\nbytearray\nq\x00"
                "c_codecs\nencode\nq\x01X\x01\x00\x00\x00"
                "aX\x06\x00\x00\x00latin1q\x02"
                "\x86R\x85R")},
      {[](PickleGraph& g) { return g.add_tuple({}); }, ")"},
      {[](PickleGraph& g) {
         return g.add_tuple({g.add_none(), g.add_int(1)});
       },
       "NK\x01\x86"},
      {[](PickleGraph& g) {
         return g.add_tuple({g.add_int(1), g.add_int(2), g.add_int(3), g.add_int(4)});
       },
       "(K\x01K\x02K\x03K\x04t"},
      {[](PickleGraph& g) { return g.add_container(PickleKind::List, std::vector{g.add_none()}); }, "]Na"},
      {[](PickleGraph& g) { return g.add_container(PickleKind::Set, std::vector{g.add_none()}); },
       bytes_of("c__builtin__\nset\nq\x00]Na\x85R")},
      {[](PickleGraph& g) { return g.add_container(PickleKind::FrozenSet, {}); },
       bytes_of("c__builtin__\nfrozenset\nq\x00]\x85R")},
      {[](PickleGraph& g) {
         return g.add_container(PickleKind::Dict, std::vector{g.add_int(1), g.add_none()});
       },
       "}K\x01Ns"},
      {[](PickleGraph& g) { return g.add_persistent(g.add_tuple({g.add_int(1)})); }, "K\x01\x85Q"},
  };
  for (const Writing& writing : writings)
    EXPECT_EQ(show_hex(written(writing.make)), show_hex(bytes_of("\x80\x02") + writing.body + "."));
}

TEST(PickleWriter, WritesObjects) {
  PickleGraph graph;
  const PickleRef type = graph.add_global("m", "C");
  const PickleRef object = graph.add_call(type, graph.add_tuple({}));
  graph.extend(object, std::vector{graph.add_int(1), graph.add_int(2), graph.add_int(3), graph.add_int(4)});
  graph.add_state(object, graph.add_none());
  EXPECT_EQ(write_pickle(graph, object), bytes_of("\x80\x02"
                                                  "cm\nC\n)R(K\x01K\x02K\x03K\x04uNb."));
  const PickleRef other = graph.add_new(type, graph.add_tuple({}));
  graph.extend_single(other, std::vector{graph.add_int(1), graph.add_int(2)});
  EXPECT_EQ(write_pickle(graph, other), bytes_of("\x80\x02"
                                                 "cm\nC\n)\x81(K\x01K\x02"
                                                 "e."));
}

TEST(PickleWriter, FetchesSharedNodesFromTheMemo) {
  EXPECT_EQ(written([](PickleGraph& g) {
              const PickleRef text = g.add_string("a");
              return g.add_tuple({text, text, g.add_string("a")});
            }),
            bytes_of("\x80\x02X\x01\x00\x00\x00"
                     "aq\x00h\x00X\x01\x00\x00\x00"
                     "a\x87."));
  EXPECT_EQ(written([](PickleGraph& g) {
              const PickleRef list = g.add_container(PickleKind::List, {});
              g.extend(list, std::vector{list});
              return list;
            }),
            bytes_of("\x80\x02]q\x00h\x00"
                     "a."));
}

TEST(PickleWriter, SlotsPast255TakeFourBytes) {
  PickleGraph graph;
  std::vector<PickleRef> items;
  for (int i = 0; i < 257; ++i) items.push_back(graph.add_string(std::to_string(i)));
  for (int i = 0; i < 257; ++i) items.push_back(items[static_cast<std::size_t>(i)]);
  const PickleRef root = graph.add_container(PickleKind::Tuple, items);
  const std::string bytes = write_pickle(graph, root);
  EXPECT_TRUE(bytes.ends_with(bytes_of("h\xffj\x00\x01\x00\x00t.")));
  PickleGraph back(bytes);
  EXPECT_TRUE(equal_pickles(graph, root, back, read_pickle(back, PickleNames::Torch, "x.pt")));
}

TEST(PickleWriter, LargeContainersGoInBatches) {
  for (const std::size_t count : {999u, 1000u, 1001u, 1002u, 2000u, 2500u}) {
    PickleGraph graph;
    const std::vector<PickleRef> ones(count, graph.add_int(1));
    const std::vector<PickleRef> pairs(2 * count, graph.add_int(1));
    const PickleRef list = graph.add_container(PickleKind::List, ones);
    const PickleRef dict = graph.add_container(PickleKind::Dict, pairs);
    const std::string bytes = write_pickle(graph, graph.add_tuple({list, dict}));
    const auto marks = std::count(bytes.begin(), bytes.end(), '(');
    EXPECT_EQ(marks, static_cast<std::ptrdiff_t>(2 * (count / 1000 + (count % 1000 > 1 ? 1 : 0)))) << count;
    PickleGraph back(bytes);
    const auto items = back.items(read_pickle(back, PickleNames::Torch, "x.pt"));
    EXPECT_EQ(back.items(items[0]).size(), count);
    EXPECT_EQ(back.items(items[1]).size(), 2 * count);
  }
}

TEST(PickleWriter, WhatWasReadIsWrittenAsTheSameValues) {
  for (const char* name : {"tensor", "dcp_metadata", "opcodes", "values_protocol_2", "values_protocol_3",
                           "values_protocol_4", "values_protocol_5"}) {
    const PickleNames names = name == std::string("dcp_metadata") ? PickleNames::DcpMetadata : PickleNames::Torch;
    PickleGraph graph(pickle_seed(name));
    const PickleRef root = read_pickle(graph, names, name);
    PickleGraph back(write_pickle(graph, root));
    EXPECT_TRUE(equal_pickles(graph, root, back, read_pickle(back, names, name))) << name;
    EXPECT_EQ(write_pickle(graph, root), back.source()) << name;
  }
}

PickleRef nested(PickleGraph& graph, PickleKind kind, int depth) {
  PickleRef node = graph.add_string("bottom");
  for (int i = 1; i < depth; ++i) node = graph.add_container(kind, std::vector{node});
  return node;
}

TEST(PickleWriter, RefusesDepth) {
  for (const PickleKind kind : {PickleKind::List, PickleKind::Tuple, PickleKind::FrozenSet}) {
    PickleGraph graph;
    EXPECT_EQ(slug_of([&] { write_pickle(graph, nested(graph, kind, 1000)); }), "none");
    EXPECT_EQ(slug_of([&] { write_pickle(graph, nested(graph, kind, 1001)); }), "pickle-depth");
    EXPECT_EQ(slug_of([&] { write_pickle(graph, nested(graph, kind, 1'000'000)); }), "pickle-depth");
  }
}

TEST(PickleWriter, RefusesATupleAmongItsOwnItems) {
  PickleGraph graph;
  const PickleRef list = graph.add_container(PickleKind::List, {});
  const PickleRef tuple = graph.add_tuple({list});
  graph.extend(list, std::vector{tuple});
  EXPECT_EQ(slug_of([&] { write_pickle(graph, tuple); }), "pickle-depth");
  // Here the list is in the memo, so going on would end, with two tuples in place of one.
  const PickleRef both = graph.add_container(PickleKind::List, {});
  const PickleRef pair = graph.add_tuple({both, both});
  graph.extend(both, std::vector{pair});
  EXPECT_EQ(slug_of([&] { write_pickle(graph, pair); }), "pickle-depth");
  // From the list's side it can be written: the list is in the memo when the tuple asks for it.
  EXPECT_EQ(write_pickle(graph, list), bytes_of("\x80\x02]q\x00h\x00\x85"
                                                "a."));
}

TEST(PickleWriter, SharingKeepsWhatIsWrittenSmall) {
  PickleGraph graph;
  PickleRef node = graph.add_container(PickleKind::List, {});
  for (int level = 0; level < 60; ++level) node = graph.add_container(PickleKind::List, std::vector{node, node});
  EXPECT_LT(write_pickle(graph, node).size(), 500u);
}

}  // namespace
}  // namespace glu_ckpt
