/// An optimizer's state that is no tensor of the checkpoint is found wherever it lies and however deep, and nothing
/// else is taken for it: values x ways to it x places, each of which says by construction what is right.

#include "format/optimizer_parts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/crc32.hpp"
#include "format/structure.hpp"
#include "format/zip_layout.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

// ---- pickles of protocol 2 ----------------------------------------------------------------------

std::string number(i64 value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}
std::string real(char value) { return "G" + std::string(7, value) + value; }
std::string bytes(i64 count) { return "B" + number(count, 4) + std::string(static_cast<std::size_t>(count), 'b'); }
std::string word(const std::string& text) { return "X" + number(std::ssize(text), 4) + text; }
std::string integer(i64 value) { return "J" + number(value, 4); }
std::string tuple(const std::string& items) { return "(" + items + "t"; }
std::string list(const std::string& items) { return "](" + items + "e"; }
std::string dict(const std::string& pairs) { return "}(" + pairs + "u"; }
std::string ordered(const std::string& pairs) { return "ccollections\nOrderedDict\n)R(" + pairs + "u"; }
std::string pair(const std::string& key, const std::string& value) { return word(key) + value; }

std::string tensor(i64 elements) {
  const std::string storage =
      tuple(word("storage") + "ctorch\nFloatStorage\n" + word("0") + word("cpu") + integer(elements)) + "Q";
  return "ctorch._utils\n_rebuild_tensor_v2\n" +
         tuple(storage + integer(0) + tuple(integer(elements)) + tuple(integer(1)) + "\x89" +
               "ccollections\nOrderedDict\n)R") +
         "R";
}

std::string zip_of(const std::string& value, i64 elements = 24) {
  const std::vector<std::pair<std::string, std::string>> records = {
      {"data.pkl", "\x80\x02" + value + "."},
      {"data/0", std::string(static_cast<std::size_t>(4 * elements), 'd')},
      {"version", "3\n"}};
  ZipLayout layout("archive");
  for (const auto& [name, text] : records) layout.add(name, std::ssize(text));
  std::string out;
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < records.size(); ++i) {
    crcs.push_back(crc32_of(std::as_bytes(std::span(records[i].second))));
    out += layout.header(i) + records[i].second + layout.descriptor(i, crcs[i]);
  }
  return out + layout.directory(crcs);
}

// ---- what a place holds -------------------------------------------------------------------------

struct Value {
  std::string name;
  std::string pickle;
  bool is_large = false;
  /// It says itself that it is an optimizer's, whatever leads to it.
  bool is_own = false;
};

std::vector<Value> values() {
  const std::string groups = list(dict(pair("lr", integer(1)) + pair("params", list(integer(0) + integer(1)))));
  std::string many;
  for (int i = 0; i < 100; ++i) many += real(static_cast<char>(i));
  return {
      {"a list of numbers", list(many), true},
      {"a tuple of numbers in a list", list(integer(3) + tuple(many)), true},
      {"bytes", bytes(4096), true},
      {"betas", tuple(real(1) + real(2))},
      {"few bytes", bytes(64)},
      {"numbers of parameters", list(integer(0) + integer(1))},
      {"a tensor", tensor(24), true},
      {"a tensor in a list", list(integer(1) + tensor(24)), true},
      {"a tensor in a tuple", tuple(integer(1) + tensor(24)), true},
      {"tensors by number", dict(integer(0) + dict(pair("a", tensor(24)))), true},
      {"an OrderedDict", ordered(pair("a", tensor(24))), true},
      {"a tensor ten deep", dict(pair("a", dict(pair("b", list(tuple(list(dict(pair("c", tensor(24)))))))))), true},
      {"a state_dict of torch.optim",
       dict(pair("state", dict(integer(0) + dict(pair("m", tensor(24))))) + pair("param_groups", groups)), true, true},
      {"a number", integer(7)},
      {"a step", tensor(1)},
      {"param_groups alone", dict(pair("param_groups", groups))},
      {"a state_dict without states", dict(pair("state", dict(pair("a", integer(1)))) + pair("param_groups", groups))},
      {"a word", word("adam")},
      {"nothing", "N"},
  };
}

struct Way {
  std::string name;
  /// The keys from the root on.
  Texts keys;
  bool is_optimizers = false;
  bool is_generators = false;
};

const std::vector<Way> kWays = {
    {"no key", {}},
    {"a key of the model", {"model"}},
    {"deep", {"model", "module", "weights"}},
    {"optimizer", {"optimizer"}, true},
    {"optimizer of a chunk", {"chunk_0", "optimizer_state"}, true},
    {"optim", {"optim"}, true},
    {"master weights", {"model", "fp32_from_fp16_params"}, true},
    {"buckets", {"dp_group_idx_0", "gbuf_idx_0", "bucket_idx_0"}, true},
    {"exp_avg", {"state", "exp_avg"}, true},
    {"momentum", {"model", "momentum_buffer"}, true},
    {"a generator", {"rng_state"}, false, true},
    {"a generator below an optimizer", {"optimizer", "rng_tracker_states"}, true, true},
    {"a state of a module", {"model", "_extra_state"}, false, true},
};

std::string along(const Way& way, std::string value) {
  for (auto key = way.keys.rbegin(); key != way.keys.rend(); ++key)  // NOLINT(modernize-loop-convert)
    value = dict(pair("iteration", integer(100)) + pair(*key, value));
  return value;
}

struct Place {
  OptimizerPart::Kind kind;
  std::string name;
  bool is_optimizers = false;
  bool is_generators = false;
  /// No part of the checkpoint, as other torch files beside safetensors.
  bool is_left_out = false;
};

const std::vector<Place> kPlaces = {
    {OptimizerPart::Kind::Object, "optimizer.distributed.dp_group_idx_0.param_state/shard_0_1", true},
    {OptimizerPart::Kind::Object, "chained_0.optimizer.state/shard_0_1", true},
    {OptimizerPart::Kind::Object, "opt_param_scheduler/shard_0_1"},
    {OptimizerPart::Kind::Object, "rng_state/shard_0.0_1.1", false, true},
    {OptimizerPart::Kind::Object, "decoder.layers.0.self_attention._extra_state/shard_0_1", false, true},
    {OptimizerPart::Kind::CommonState, "common_state/shard_0_1"},
    {OptimizerPart::Kind::CommonState, "common.pt"},
    {OptimizerPart::Kind::File, "optimizer.pt", true},
    {OptimizerPart::Kind::File, "distrib_optim.pt", true},
    {OptimizerPart::Kind::File, "mp_rank_00_model_states.pt"},
    {OptimizerPart::Kind::File, "training_state.bin"},
    {OptimizerPart::Kind::File, "scheduler.pth"},
    {OptimizerPart::Kind::File, "rng_state_0.pth", false, true},
    {OptimizerPart::Kind::File, "optimizer.pt", true, false, true},
    {OptimizerPart::Kind::File, "training_state.pt", false, false, true},
    {OptimizerPart::Kind::File, "pytorch_model.bin", false, false, true},
};

class OptimizerParts : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::path(testing::TempDir()) / "optimizer_parts_XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::vector<OptimizerPart> found_at(const Place& place, const std::string& zip) const {
    CheckpointInfo info;
    const bool is_object = place.name.find('/') != place.name.npos;
    if (is_object) {
      info.structure.objects.push_back({place.name, std::ssize(zip), store_of({zip}), 0});
    } else {
      const fs::path path = directory_ / place.name;
      fs::remove(path);
      File::create(path).pwrite_exact(std::as_bytes(std::span(zip)), 0);
      info.path = directory_;
      if (place.is_left_out)
        info.left_out.push_back(place.name);
      else
        info.extra_files.push_back({place.name, path});
    }
    return find_optimizer_parts(info);
  }

  fs::path directory_;
};

bool is_states(const Value& value, const Way& way, const Place& place) {
  const bool is_named = place.is_optimizers || way.is_optimizers || value.is_own;
  return value.is_large && is_named && !way.is_generators && !place.is_generators;
}

TEST_F(OptimizerParts, AreFoundWhereverTheyLieAndNothingElseIs) {
  int cases = 0, with_states = 0;
  for (const Value& value : values())
    for (const Way& way : kWays)
      for (const bool is_saved_twice : {false, true})
        for (const Place& place : kPlaces) {
          SCOPED_TRACE(value.name + ", " + way.name + ", " + place.name + (is_saved_twice ? ", saved twice" : ""));
          const std::string inner = along(way, value.pickle);
          const std::string once = zip_of(inner);
          // As bytes of a pickle of protocol 3 and more.
          const std::string zip =
              is_saved_twice ? zip_of(dict(pair("payload", "B" + number(std::ssize(once), 4) + once))) : once;
          const std::vector<OptimizerPart> found = found_at(place, zip);
          const bool expected = is_states(value, way, place);
          ++cases;
          with_states += expected ? 1 : 0;
          ASSERT_EQ(found.size(), expected ? 1U : 0U);
          if (!expected) continue;
          EXPECT_EQ(found.front().kind, place.kind);
          EXPECT_EQ(found.front().name, place.name);
          for (const std::string& key : way.keys) EXPECT_NE(found.front().keys.find(key), std::string::npos);
        }
  EXPECT_GT(cases, 4000);
  EXPECT_GT(with_states, 800);
}

/// What is left of a common state has no such entry, and all others.
TEST_F(OptimizerParts, AreCutFromACommonState) {
  const Place common{OptimizerPart::Kind::CommonState, "common.pt"};
  int cases = 0;
  for (const Value& value : values())
    for (const Way& way : kWays) {
      if (way.keys.empty()) continue;
      SCOPED_TRACE(value.name + ", " + way.name);
      const std::string entry = pair(way.keys.front(), [&] {
        Way rest = way;
        rest.keys.erase(rest.keys.begin());
        return along(rest, value.pickle);
      }());
      const std::string zip =
          zip_of(dict(pair("consumed_samples", integer(5)) + entry + pair("version_here", word("v"))));
      const std::string cut = without_optimizer(zip, "common.pt");
      ++cases;
      EXPECT_TRUE(found_at(common, cut).empty());
      for (const char* kept : {"consumed_samples", "version_here"}) EXPECT_NE(cut.find(kept), std::string::npos);
      const bool is_cut = is_states(value, way, common);
      EXPECT_EQ(cut.find(way.keys.front()) == std::string::npos, is_cut);
      EXPECT_EQ(cut.find("dddd") == std::string::npos,
                is_cut || value.pickle.find("FloatStorage") == std::string::npos);
    }
  EXPECT_GT(cases, 100);
}

}  // namespace
}  // namespace glu_ckpt
