#include "faults/fault_bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <functional>
#include <new>
#include <numeric>

#include "glu_ckpt/error.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt::faults {
namespace {

constexpr i64 kHidden = 128, kWidth = 64, kExperts = 3;
/// Output sizes are such that some tensors go past the page cache and their edges do not.
constexpr i64 kNorm = 96;

struct Named {
  std::string name;
  std::vector<i64> shape;
};

std::vector<Named> tensors_of_shard(int shard) {
  std::vector<Named> tensors;
  if (shard == 0) {
    tensors.push_back({"model.embed_tokens.weight", {40, kHidden}});
    tensors.push_back({"model.layers.0.mlp.gate.weight", {kExperts, kHidden}});
  }
  for (i64 e = shard; e < kExperts; e += 2)
    for (const char* part : {"gate", "up", "down"}) {
      const bool down = std::strcmp(part, "down") == 0;
      tensors.push_back({fmt::format("model.layers.0.mlp.experts.{}.{}_proj.weight", e, part),
                         down ? std::vector<i64>{kHidden, kWidth} : std::vector<i64>{kWidth, kHidden}});
    }
  if (shard == 1) tensors.push_back({"model.norm.weight", {kNorm}});
  return tensors;
}

/// Every two bytes tell where they are.
std::string content(const std::string& name, i64 elements) {
  u64 at = 1469598103934665603u;
  for (const char letter : name) at = (at ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  std::string bytes;
  for (i64 i = 0; i < elements; ++i) {
    const u64 value = at + static_cast<u64>(i);
    bytes += static_cast<char>(value & 0xff);
    bytes += static_cast<char>(value >> 8 & 0xff);
  }
  return bytes;
}

std::string content_of(const Named& tensor) {
  return content(tensor.name, std::accumulate(tensor.shape.begin(), tensor.shape.end(), i64{1}, std::multiplies()));
}

std::string shard_text(int shard) {
  std::vector<std::string> entries;
  std::string data;
  for (const Named& tensor : tensors_of_shard(shard)) {
    const auto begin = data.size();
    data += content_of(tensor);
    entries.push_back(fmt::format(R"("{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                                  fmt::join(tensor.shape, ","), begin, data.size()));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + data;
}

std::string shard_file(int shard) { return fmt::format("model-{:05}-of-00002.safetensors", shard + 1); }

/// Names only: what is in the files says nothing to a reader.
std::string difference(const Tree& found, const Tree& expected) {
  std::string text;
  for (const auto& [path, content] : found)
    if (!expected.contains(path))
      text += " more: " + path;
    else if (expected.at(path) != content)
      text += " differs: " + path;
  for (const auto& [path, content] : expected)
    if (!found.contains(path)) text += " lacks: " + path;
  return text;
}

}  // namespace

Tree make_source() {
  Tree source;
  std::vector<std::string> places;
  for (int shard = 0; shard < 2; ++shard) {
    source[shard_file(shard)] = shard_text(shard);
    for (const Named& tensor : tensors_of_shard(shard))
      places.push_back(fmt::format(R"("{}":"{}")", tensor.name, shard_file(shard)));
  }
  source["model.safetensors.index.json"] =
      fmt::format(R"({{"metadata":{{}},"weight_map":{{{}}}}})", fmt::join(places, ","));
  source["config.json"] =
      R"({"model_type":"qwen3_moe","num_experts":3,"hidden_size":128,"moe_intermediate_size":64,"num_hidden_layers":1})";
  source["tokenizer.json"] = "{}";
  return source;
}

const std::vector<Target>& all_targets() {
  const auto options_of = [](const std::function<void(ConvertOptions&)>& change = {}) {
    ConvertOptions options;
    options.to.naming = "megatron";
    options.to.scope = Scope::Experts;
    options.to.experts = Experts::Grouped;
    options.to.glu = parse_glu("interleaved:32");
    if (change) change(options);
    return options;
  };
  constexpr i64 kSmallShard = 100 << 10;
  // Experts of both shards by themselves, so that one shard goes before the other is read.
  const auto consuming = [&](const std::function<void(ConvertOptions&)>& change = {}) {
    return options_of([&](ConvertOptions& options) {
      options.to.experts = Experts::Indexed;
      options.max_shard_bytes = kSmallShard;
      options.consume_source = true;
      if (change) change(options);
    });
  };
  static const std::vector<Target> kTargets = {
      {"Safetensors", "out", options_of([](auto& options) { options.max_shard_bytes = kSmallShard; })},
      {"SingleFile", "out.safetensors", options_of()},
      {"Torch", "out", options_of([](auto& options) { options.format = Format::Torch; })},
      {"TorchFile", "out.pt", options_of()},
      {"TorchDist", "out", options_of([](auto& options) {
         options.to.naming = "megatron-dist";
         options.to.scope = Scope::Experts;
         options.format = Format::TorchDist;
       })},
      {"Overwriting", "out", options_of([](auto& options) { options.overwrite = true; })},
      {"OverwritingFile", "out.safetensors", options_of([](auto& options) { options.overwrite = true; })},
      {.name = "OnAPlainFilesystem", .output = "out", .options = options_of(), .plain = true},
      {"Consuming", "out", consuming()},
      {"ConsumingToAFile", "out.safetensors", consuming([](auto& options) { options.max_shard_bytes = 0; })},
      {"ConsumingToTorchDist", "out", consuming([](auto& options) {
         options.to.naming = "megatron-dist";
         options.format = Format::TorchDist;
       })},
      {"InParts", "out", options_of([](auto& options) {
         options.max_shard_bytes = kSmallShard;
         options.part.of = 2;
       })},
      {"InPartsToTorchDist", "out", options_of([](auto& options) {
         options.to.naming = "megatron-dist";
         options.format = Format::TorchDist;
         options.part.of = 2;
       })},
      // Not proved: the sample is a thousand reads, of which each would fail once.
      {.name = "Cloned",
       .output = "out",
       .options = options_of([](auto& options) {
         options.reflink = Reflink::Always;
         options.max_shard_bytes = kSmallShard;
         options.proof = ProofMode::None;
       }),
       .clones = true},
  };
  return kTargets;
}

std::string name_of_target(const testing::TestParamInfo<Target>& info) { return info.param.name; }

const std::vector<CallKind>& all_kinds() {
  static const std::vector<CallKind> kKinds = {
      CallKind::Open,  CallKind::Close,         CallKind::Read,   CallKind::Write,   CallKind::Copy,
      CallKind::Clone, CallKind::Sync,          CallKind::Advise, CallKind::Reserve, CallKind::Resize,
      CallKind::Lock,  CallKind::Mode,          CallKind::Stat,   CallKind::Statfs,  CallKind::List,
      CallKind::Link,  CallKind::MakeDirectory, CallKind::Remove, CallKind::Rename};
  return kKinds;
}

FaultBench::FaultBench(const Target& target) : target_(target), source_(make_source()) {
  begin();
  const Outcome outcome = convert();
  EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.message;
  calls_ = memory_->calls();
  for (const CallKind kind : all_kinds()) calls_of_[kind] = memory_->calls(kind);
  EXPECT_EQ(memory_->open_descriptors(), 0);
  // More than there are runs: the pages in between are shared, too.
  EXPECT_EQ(calls_of_[CallKind::Clone] > kExperts * 2 * kWidth / 32 + 1, target_.clones);
  expected_ = tree("/disk");
  if (target_.options.consume_source) expect_source_consumed();
  if (target_.options.consume_source || target_.options.part.of > 0) expect_same_when_plain();
  for (const auto& [path, content] : expected_) EXPECT_EQ(path.find("partial"), path.npos) << path;
  EXPECT_EQ(expected_.count(target_.output + "/" + std::string(StagedDir::kJournalName)), 0u);
  for (const auto& [path, content] : expected_)
    EXPECT_EQ(content.find("journal"), content.npos) << path << " speaks of a journal";
  if (!target_.clones) return;
  begin();
  memory_->allow_clone(false);
  EXPECT_EQ(convert().status, ExitStatus::MachineFailed);
  EXPECT_EQ(difference(tree("/disk"), {}), "") << "--reflink always without clones has written something";
}

void FaultBench::begin() {
  memory_ = std::make_unique<MemorySystem>();
  memory_->allow_direct(!target_.plain);
  memory_->allow_reserve(!target_.plain);
  memory_->allow_lock(!target_.plain);
  memory_->allow_clone(target_.clones);
  memory_->allow_rename_flags(!target_.plain);
  for (const auto& [path, content] : source_) memory_->put("/src/" + path, content);
  const bool file = target_.output.find('.') != target_.output.npos;
  if (target_.options.overwrite)
    memory_->put("/disk/" + target_.output + (file ? "" : "/model.safetensors"), "an older one");
  if (!target_.options.overwrite) {
    const SystemCallsScope scope(*memory_);
    (void)memory_->mkdir("/disk", 0755);
    memory_->crash(Crash::KeepAll);
  }
  memory_->reset();
}

Outcome FaultBench::convert(bool resume) {
  const i64 parts = target_.options.part.of;
  if (parts == 0) return convert_part(resume, 0);
  // One after the other: whatever befalls one, the next is not started.
  for (i64 part = 1; part < parts; ++part)
    if (Outcome outcome = convert_part(false, part); outcome.status != ExitStatus::Done) return outcome;
  return convert_part(false, parts);
}

Outcome FaultBench::convert_part(bool resume, i64 part) {
  ConvertOptions options = target_.options;
  options.resume = resume;
  options.part.number = part;
  // Small buffers, so that each tensor takes several ranges.
  RunOptions run;
  run.memory_bytes = i64{1} << 20;
  run.jobs = 2;
  run.device = "cpu";
  const SystemCallsScope scope(*memory_);
  try {
    (void)glu_ckpt::convert("/src", "/disk/" + target_.output, options, run);
    return {};
  } catch (const Error& error) {
    return {exit_status(error.code()), std::string(slug(error.code())), error.what()};
  } catch (const std::bad_alloc& error) {
    return {ExitStatus::MachineFailed, "no-memory", error.what()};
  }
}

Tree FaultBench::tree(const std::string& path) const {
  Tree found;
  for (const std::string& name : memory_->tree(path)) found[name] = memory_->get(path + "/" + name).value_or("");
  return found;
}

bool FaultBench::has_output() const {
  const Tree found = tree("/disk");
  // What was there before is no output.
  const bool old = target_.options.overwrite &&
                   (found.contains(target_.output) || found.contains(target_.output + "/")) &&
                   (memory_->get("/disk/" + target_.output) == "an older one" ||
                    memory_->get("/disk/" + target_.output + "/model.safetensors") == "an older one");
  return !old && (found.contains(target_.output) || found.contains(target_.output + "/"));
}

bool FaultBench::has_staging() const { return tree("/disk").contains(target_.output + ".partial/"); }

void FaultBench::expect_source_consumed() const {
  Tree rest = source_;
  std::erase_if(rest, [](const auto& file) { return file.first.ends_with(".safetensors"); });
  EXPECT_EQ(difference(tree("/src"), rest), "") << "other files than those of tensors are left";
}

void FaultBench::expect_same_when_plain() {
  begin();
  const ConvertOptions options = target_.options;
  target_.options.consume_source = false;
  target_.options.part = {};
  EXPECT_EQ(convert().status, ExitStatus::Done);
  target_.options = options;
  EXPECT_EQ(difference(tree("/disk"), expected_), "") << "other bytes than without --consume-source or --part";
}

void FaultBench::expect_source_is_there() const {
  if (!target_.options.consume_source) {
    EXPECT_EQ(difference(tree("/src"), source_), "");
    return;
  }
  const Tree found = tree("/src");
  std::string written;
  for (const auto& [path, content] : tree("/disk")) written += content;
  for (const auto& [path, content] : source_) {
    if (found.contains(path)) {
      EXPECT_EQ(found.at(path) == content, true) << path << " was changed";
      continue;
    }
    ASSERT_TRUE(path.ends_with(".safetensors")) << path << " was removed";
    for (const Named& tensor : tensors_of_shard(path == shard_file(0) ? 0 : 1)) {
      // Rows stay whole in every layout.
      const auto row = static_cast<std::size_t>(2 * tensor.shape.back());
      const std::string bytes = content_of(tensor);
      for (std::size_t at = 0; at < bytes.size(); at += row)
        ASSERT_NE(written.find(bytes.data() + at, 0, row), written.npos)
            << path << " was removed, and a row of " << tensor.name << " is nowhere else";
    }
  }
}

void FaultBench::expect_nothing_lost() const {
  expect_source_is_there();
  const Tree found = tree("/disk");
  const std::string staging = target_.output + ".partial/";
  const std::string journal = std::string(StagedDir::kJournalName);
  Tree output;
  bool has_others = false;
  for (const auto& [path, content] : found) {
    const bool staged = path.starts_with(staging);
    has_others |= staged && path != staging && !path.starts_with(staging + journal);
    if (!staged && !path.starts_with(target_.output + "/" + journal)) output.insert({path, content});
  }
  if (has_output()) {
    EXPECT_EQ(difference(output, expected_), "") << "the output is there, but it is not whole";
  } else if (!target_.options.overwrite) {
    EXPECT_EQ(difference(output, {}), "") << "neither an output nor work in progress";
  }
  // What was replaced has the staging directory's name for a moment; the output's journal tells.
  const bool replaced = has_output() && target_.options.overwrite && found.contains(target_.output + "/" + journal);
  if (has_others && !replaced) {
    EXPECT_TRUE(found.contains(staging + journal)) << "work in progress without a journal";
  }
}

void FaultBench::expect_resumes() {
  const Outcome outcome = convert(true);
  EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.slug << ": " << outcome.message;
  EXPECT_EQ(difference(tree("/disk"), expected_), "") << "resumed to other bytes";
  if (target_.options.consume_source)
    expect_source_consumed();
  else
    expect_source_is_there();
  EXPECT_EQ(memory_->open_descriptors(), 0);
}

}  // namespace glu_ckpt::faults
