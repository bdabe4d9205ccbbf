#include "format/torch_tree.hpp"

#include <gtest/gtest.h>

#include "format/pickle_graph.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

/// A nested state dict being built.
struct Builder {
  PickleGraph graph;

  PickleRef text(const std::string& value) { return graph.add_string(value); }
  PickleRef tensor(const std::string& key) { return add_tensor(graph, Dtype::F32, {2, 3}, key, key); }
  PickleRef dict(const std::vector<std::pair<std::string, PickleRef>>& entries) {
    std::vector<PickleRef> items;
    for (const auto& [key, value] : entries) {
      items.push_back(text(key));
      items.push_back(value);
    }
    return graph.add_container(PickleKind::Dict, items);
  }
  PickleRef list(const std::vector<PickleRef>& items) { return graph.add_container(PickleKind::List, items); }
};

TorchContents read(const Builder& builder, PickleRef root) {
  const ReadTensor no_bytes = [](const TorchTensor& tensor, const std::string&) {
    return std::string(static_cast<std::size_t>(tensor.bytes()), 'r');
  };
  return read_contents(builder.graph, root, "file", no_bytes);
}

std::vector<std::string> names(const TorchContents& contents) {
  std::vector<std::string> found;
  for (const TorchContents::Found& tensor : contents.tensors) found.push_back(tensor.name);
  return found;
}

OutputTensor output(const std::string& name, const std::string& from) {
  return {name, Dtype::F32, {2, 3}, 24, 0, 0, from};
}

/// Keys of the dict at `path` of a tree, in order.
std::vector<std::string> keys(const TorchTree& tree, const std::vector<std::string>& path) {
  PickleGraph graph(tree.pickle);
  PickleRef node = read_pickle(graph, PickleNames::Torch, "tree");
  for (const std::string& step : path) {
    const auto items = graph.items(node);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (graph.text(items[i]) == step) node = items[i + 1];
  }
  std::vector<std::string> found;
  const auto items = graph.items(node);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) found.emplace_back(graph.text(items[i]));
  return found;
}

using Names = std::vector<std::string>;

TEST(TorchTree, NamesAreTheKeysOnTheWay) {
  Builder b;
  const PickleRef root =
      b.dict({{"a", b.dict({{"x.weight", b.tensor("0")}})}, {"l", b.list({b.text("t"), b.tensor("1")})}});
  EXPECT_EQ(names(read(b, root)), (Names{"a.x.weight", "l.1"}));
}

TEST(TorchTree, TheWrapperIsNoPartOfNames) {
  Builder b;
  const PickleRef root = b.dict({{"model", b.dict({{"w", b.tensor("0")}})},
                                 {"model0", b.dict({{"w", b.tensor("1")}})},
                                 {"optimizer", b.dict({{"w", b.tensor("2")}})}});
  EXPECT_EQ(names(read(b, root)), (Names{"w", "model0.w", "optimizer.w"}));
}

TEST(TorchTree, AKeyCalledModelOverNoTensorsWrapsNothing) {
  Builder b;
  const PickleRef root = b.dict({{"model", b.text("llama")}, {"rng_state", b.tensor("0")}});
  EXPECT_EQ(names(read(b, root)), (Names{"rng_state"}));
}

TEST(TorchTree, GeneratorsBesideAModelAreObjects) {
  Builder b;
  const PickleRef root =
      b.dict({{"model", b.dict({{"w", b.tensor("0")}})}, {"rng_state", b.list({b.dict({{"torch", b.tensor("1")}})})}});
  const TorchContents contents = read(b, root);
  EXPECT_EQ(names(contents), Names{"w"});
  // Their bytes come back with the tree.
  const std::vector<OutputTensor> outputs{output("w", "w")};
  const std::size_t members[] = {0};
  PickleGraph graph;
  std::vector<EmbeddedTensor> embedded;
  const MakeTensor make{[](PickleGraph& into, std::size_t) { return into.add_string("output"); },
                        [&](PickleGraph& into, EmbeddedTensor tensor) {
                          embedded.push_back(std::move(tensor));
                          return into.add_string("embedded");
                        }};
  place_in_tree({"file", "", contents.pickle}, outputs, members, graph, make);
  ASSERT_EQ(embedded.size(), 1U);
  EXPECT_EQ(embedded[0].dtype, Dtype::F32);
  EXPECT_EQ(embedded[0].shape, (std::vector<i64>{2, 3}));
  EXPECT_EQ(embedded[0].bytes, std::string(24, 'r'));
}

TEST(TorchTree, TwoTensorsOfOneNameAreRefused) {
  Builder b;
  const PickleRef root = b.dict({{"a.b", b.tensor("0")}, {"a", b.dict({{"b", b.tensor("1")}})}});
  EXPECT_EQ(slug_of([&] { read(b, root); }), "duplicate-key");
}

TEST(TorchTree, SharedDictsCannotExpandWithoutEnd) {
  Builder b;
  PickleRef node = b.dict({{"w", b.tensor("0")}});
  for (int i = 0; i < 40; ++i) node = b.list({node, node});
  EXPECT_EQ(slug_of([&] { read(b, b.dict({{"a", node}})); }), "pickle-limit");
}

TEST(TorchTree, OutputsTakeThePlaceOfTheirSources) {
  Builder b;
  const PickleRef root = b.dict(
      {{"model",
        b.dict({{"first", b.tensor("0")}, {"l.w0", b.tensor("1")}, {"l.w1", b.tensor("2")}, {"last", b.tensor("3")}})},
       {"iteration", b.graph.add_int(7)}});
  const TorchTree tree{"file", "", read(b, root).pickle};
  const std::vector<OutputTensor> grouped{output("first", "first"), output("l.w", "l.w0"), output("last", "last")};
  const std::size_t three[] = {0, 1, 2};
  const TorchTree folded = rename_in_tree(tree, grouped, three);
  EXPECT_EQ(keys(folded, {"model"}), (Names{"first", "l.w", "last"}));
  EXPECT_EQ(keys(folded, {}), (Names{"model", "iteration"}));
  const std::vector<OutputTensor> split{output("first", "first"), output("l.w0", "l.w"), output("l.w1", "l.w"),
                                        output("last", "last")};
  const std::size_t four[] = {0, 1, 2, 3};
  EXPECT_EQ(rename_in_tree(folded, split, four).pickle, tree.pickle);
}

TEST(TorchTree, OutputsFromNowhereJoinTheModel) {
  Builder b;
  const PickleRef root = b.dict({{"model", b.dict({{"w", b.tensor("0")}})}, {"n", b.graph.add_int(1)}});
  const TorchTree tree{"file", "rank/", read(b, root).pickle};
  const std::vector<OutputTensor> outputs{output("rank/w", "rank/w"), output("rank/new", "rank/elsewhere")};
  const std::size_t members[] = {0, 1};
  EXPECT_EQ(keys(rename_in_tree(tree, outputs, members), {"model"}), (Names{"w", "new"}));
}

TEST(TorchTree, AListTakesNoNewMembers) {
  Builder b;
  const TorchTree tree{"file", "", read(b, b.dict({{"l", b.list({b.tensor("0")})}})).pickle};
  const std::vector<OutputTensor> outputs{output("l.0", "l.0"), output("l.1", "l.0")};
  const std::size_t members[] = {0, 1};
  EXPECT_EQ(slug_of([&] { rename_in_tree(tree, outputs, members); }), "not-supported");
}

TEST(TorchTree, KeysDropWithAllBelow) {
  Builder b;
  const PickleRef root =
      b.dict({{"model", b.dict({{"w", b.tensor("0")}})}, {"optimizer", b.dict({{"lr", b.text("1")}})}});
  const TorchTree tree{"file", "", read(b, root).pickle};
  EXPECT_EQ(keys(without_keys(tree, [](const std::string& key) { return key == "optimizer"; }), {}), Names{"model"});
}

TEST(TorchTree, ObjectsAreListedByDottedNames) {
  Builder b;
  const PickleRef root =
      b.dict({{"w", b.tensor("0")}, {"args", b.dict({{"lr", b.text("x")}, {"betas", b.list({b.text("y")})}})}});
  PickleGraph graph(read(b, root).pickle);
  const PickleRef read_root = read_pickle(graph, PickleNames::Torch, "tree");
  Names found;
  for (const TreeObject& object : objects_of_tree(graph, read_root, "tree")) found.push_back(object.name);
  EXPECT_EQ(found, (Names{"args.lr", "args.betas"}));
}

TEST(RenamedKey, KeepsWhatTheNamesShare) {
  EXPECT_EQ(renamed_key("w0", "a.b.w0", "a.b.w"), "w");
  EXPECT_EQ(renamed_key("b.w0", "a.b.w0", "a.c.w"), "c.w");
  EXPECT_EQ(renamed_key("w0", "a.b.w0", "a.b.w0"), "w0");
  EXPECT_EQ(renamed_key("w0", "a.b.w0", "x.y"), "x.y");
}

/// A tree of glu_ckpt.extras lies in that file as it is; one that was made lies nowhere.
TEST(TorchTree, ErrorsNameWhereATreeWasRead) {
  PickleGraph graph;
  const PickleRef storage = graph.add_persistent(graph.add_tuple({graph.add_string("storage")}));
  const std::string pickle =
      write_pickle(graph, graph.add_container(PickleKind::Dict, std::vector{graph.add_string("w"), storage}));
  const auto message = [&](const TorchTree& tree) {
    try {
      rename_in_tree(tree, {}, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string what = "an object's pickle holds a storage instead of a name";
  EXPECT_EQ(message({"a.pt", "", pickle, {}}), "a.pt: " + what);
  const std::string byte = std::to_string(100 + pickle.find('Q'));
  EXPECT_EQ(message({"a.pt", "", pickle, {"d/x", 100}}), "d/x: byte " + byte + ": " + what);
}

}  // namespace
}  // namespace glu_ckpt
